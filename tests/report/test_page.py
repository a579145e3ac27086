"""A run's page: right figures, no request, no script error, in a real browser."""

import re
import sys
from dataclasses import asdict
from html.parser import HTMLParser

import pytest
import typer
from typer.testing import CliRunner

from browser import find_browser
from dygmamba.cli.report import report
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import ConfigError, FileError
from dygmamba.explain.forgetting import Closeness, Forgetting, save_forgetting
from dygmamba.report.page import TASKS, render, result_groups, run_cards, write_report

EVIL = "<script>alert(1)</script>"
FIGURES = ("loss", "validation", "returns", "retention")


def row(model, setting, ap, split="test"):
    figures = {"ap": ap, "auc": ap - 0.01, "ap_pooled": ap - 0.02, "auc_pooled": ap - 0.03, "n": 1800}
    return {"model": model, "split": split, "setting": setting, "negatives": "random", "seed": 0, **figures}


ROWS = [
    row(model, setting, ap - 0.1 * (setting == "inductive"))
    for model, ap in (("edgebank", 0.66), ("recency", 0.7836), ("dyg-mamba", 0.9208))
    for setting in ("transductive", "inductive")
]
EPOCHS = [
    {"epoch": e, "loss": 0.6 / (e + 1), "val_ap": 0.9 - 0.1 / (e + 1), "val_auc": 0.9, "seconds": 6.0}
    for e in range(5)
]
CURVES = Forgetting(
    span=[900.0, 3_600.0, 14_400.0],
    learned=[1.0, 0.8, 0.2],
    error=[0.0, 0.1, 0.05],
    probes=1_234,
    retention={key: [0.9, 0.5, 0.1] for key in ("0.1", "0.25", "0.5", "0.75", "0.9")},
    reach=90_000.0,
    law="exponential",
    true=[1.0, 0.77, 0.27],
    closeness=Closeness(0.987, 0.0432, 0.0765, 7_000.0, 7_200.0),
)


def make_run(folder, data="generated", epochs=EPOCHS, rows=ROWS, curves=CURVES, **about):
    run = RunFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sections = {
        "run": {"data": data, "digest": "0", "model": "dyg-mamba", "seed": 3, **about},
        "train": {"lr": 0.005},
        "model": {"channels": ["time", "cooccurrence"], "length": 32},
    }
    run.write_config(sections)
    run.write_metrics(epochs)
    if rows:
        run.write_results(rows)
    if curves:
        save_forgetting(run, curves)
    return run


class Attributes(HTMLParser):
    """Every address a page names, and its content security policy."""

    def __init__(self, page):
        super().__init__()
        self.addresses, self.policy = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        own = dict(attrs)
        self.addresses += [
            own[key] for key in ("src", "href", "xlink:href", "srcset", "action") if own.get(key)
        ]
        if own.get("http-equiv") == "Content-Security-Policy":
            self.policy = own["content"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    return find_browser(tmp_path_factory.mktemp("profile"))


def test_a_browser_draws_every_figure_and_asks_nobody(browser, tmp_path):
    """Each figure has drawn lines, the console is silent, and no address leads out of the page."""
    page = write_report(make_run(tmp_path))
    dom, console = browser.dom(page)
    assert console == []
    for name, lines in zip(FIGURES, (1, 1, 4, 4), strict=True):
        drawn = re.search(rf'<div[^>]*id="{name}".*?(?=<figcaption)', dom, re.DOTALL)
        assert drawn is not None
        assert drawn[0].count('class="main-svg"') >= 1
        assert drawn[0].count('class="trace scatter') == lines
    attributes = Attributes(dom)
    assert not [address for address in attributes.addresses if not address.startswith(("#", "data:"))]
    assert attributes.policy.startswith("default-src 'none'")


def test_the_page_is_a_picture_and_turns_dark_where_the_screen_is(browser, tmp_path):
    """The screenshot has content; where the reader prefers dark, lines have their dark colour and no light one."""
    page = write_report(make_run(tmp_path / "run"))
    picture = browser.screenshot(page, tmp_path / "light.png")
    assert picture[:4] == b"\x89PNG"
    assert len(picture) > 50_000
    dom, console = browser.dom(page, "--blink-settings=preferredColorScheme=0")
    assert console == []
    assert "rgb(91, 184, 240)" in dom
    assert "rgb(0, 114, 178)" not in dom


def test_the_browser_would_tell_of_errors_and_requests(browser, tmp_path):
    """The two checks above are not vacuous: a thrown error and a forbidden request reach the console."""
    page = tmp_path / "bad.html"
    policy = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; script-src 'unsafe-inline'\">"
    page.write_text(f"{policy}<img src='http://127.0.0.1:9/x.png'><script>throw new Error('boom')</script>")
    console = " ".join(browser.dom(page)[1])
    assert "boom" in console
    assert "Content Security Policy" in console


def test_names_are_text_and_never_markup(browser, tmp_path):
    """A dataset and a model named like a script stay what they are: words."""
    rows = [row(EVIL, "transductive", 0.5), *ROWS]
    page = write_report(make_run(tmp_path, data=EVIL, rows=rows))
    text = page.read_text()
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    dom, console = browser.dom(page)
    assert console == []
    assert f"dyg-mamba on {EVIL}".replace("<", "&lt;").replace(">", "&gt;") in dom


def test_the_table_has_every_row_and_marks_the_best(tmp_path):
    """All models of a group stand together; the largest figure of a column has the star, the own row its class."""
    rows = [row("dyg-mamba", "transductive", 0.9, split="val"), *ROWS]
    groups = result_groups(rows, "dyg-mamba", TASKS["link"])
    assert [group["title"].split(",")[0] for group in groups] == ["test", "test", "val"]
    first = groups[0]["rows"]
    assert [one["model"] for one in first] == ["edgebank", "recency", "dyg-mamba"]
    assert [one["values"][0] for one in first] == [("66.00", False), ("78.36", False), ("92.08", True)]
    assert [one["own"] for one in first] == [False, False, True]
    assert not any(best for _, best in groups[2]["rows"][0]["values"])
    page = render(make_run(tmp_path))
    for words in (
        "92.08",
        "78.36",
        "0.987",
        "0.043",
        "1 h 56 min",
        "2 h 0 min",
        "1,234 probes",
        "cooccurrence",
    ):
        assert words in page


def test_the_cards_tell_the_margin():
    """Own AP with the best of the others beside it; without others, without curves, without epochs: less."""
    cards = TASKS["link"].cards
    first = asdict(cards(ROWS, "dyg-mamba")[0])
    assert first == {"name": "Test AP", "value": "92.08", "note": "best without training: 78.36 (recency)"}
    assert [card.name for card in cards(ROWS, "dyg-mamba")] == ["Test AP", "Test AP, new nodes"]
    assert cards(ROWS[-2:], "dyg-mamba")[0].note == "random negatives"
    assert [card.name for card in run_cards(EPOCHS, "ap", CURVES)] == ["Learned forgetting", "Epochs"]
    assert [*cards([], "dyg-mamba"), *run_cards([], "ap", None)] == []


def test_a_classifier_has_a_page_of_its_own_metrics(browser, tmp_path):
    """AUC and AP by period with the number of positives; a metric that does not exist is said; AUC by epoch."""
    about = {"model": "dyg-mamba", "seed": 0, "n": 2_000}
    rows = [
        about | {"split": "val", "auc": 0.75, "ap": 0.02, "positives": 17},
        about | {"split": "test", "auc": 0.8345, "ap": 0.0312, "positives": 44},
    ]
    page = write_report(make_run(tmp_path, rows=rows, curves=None, task="node"))
    dom, console = browser.dom(page)
    assert console == []
    for words in ("83.45", "3.12", "44 of them positive", "a blind guess has 2.20", "validation AUC (%)"):
        assert words in dom
    assert "negatives" not in dom
    none = [row | {"auc": None, "ap": None, "positives": 0} for row in rows]
    assert "none" in render(make_run(tmp_path, rows=none, curves=None, task="node"))


def test_a_run_that_just_began_has_a_page(browser, tmp_path):
    """No epoch, no result, no curve: the page says so and still opens without complaint."""
    page = write_report(make_run(tmp_path, epochs=[], rows=None, curves=None))
    dom, console = browser.dom(page)
    assert console == []
    assert "the run is not finished" in dom
    assert "No epoch is finished yet" in dom
    assert page.stat().st_size < 50_000


def test_without_the_law_the_curve_stands_alone(browser, tmp_path):
    """On a stream whose law nobody knows there is a learned curve, plain numbers on its axis, and no comparison."""
    alone = Forgetting([1.0, 2.0, 4.0], [1.0, 0.7, 0.4], [0.0, 0.1, 0.1], 50, None, 9.0)
    dom, console = browser.dom(write_report(make_run(tmp_path, curves=alone)))
    assert console == []
    assert 'id="returns"' in dom
    assert 'id="retention"' not in dom
    assert "known law" not in dom


@pytest.mark.parametrize("package", ["plotly", "jinja2"])
def test_a_missing_package_is_one_sentence(monkeypatch, tmp_path, package):
    """Without plotly or jinja2 the message names what to install."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match="pip install plotly jinja2"):
        write_report(make_run(tmp_path))


def test_a_damaged_run_is_said_and_the_old_page_kept(tmp_path):
    """A torn metrics file is one sentence; the page that was there stays whole."""
    run = make_run(tmp_path)
    page = write_report(run)
    before = page.read_bytes()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 5, "lo')
    with pytest.raises(FileError, match="damaged"):
        write_report(run)
    assert page.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


@pytest.fixture(scope="module")
def app():
    """The command alone, as `dygmamba` registers it."""
    app = typer.Typer()
    app.command()(report)
    return app


def test_the_command_writes_where_it_is_told(app, tmp_path):
    """`--out` names the file, in a new folder too; without it the page lies in the run folder."""
    run = make_run(tmp_path / "run")
    out = tmp_path / "pages" / "one.html"
    answer = CliRunner().invoke(app, [str(run.path), "--out", str(out)])
    assert answer.exit_code == 0
    assert answer.stdout.split() == ["report:", str(out)]
    assert out.stat().st_size > 1_000_000
    assert CliRunner().invoke(app, [str(run.path)]).exit_code == 0
    assert (run.path / "report.html").exists()


def test_the_command_says_what_is_no_run(app, tmp_path):
    """A folder without config.toml, and a folder given as the page's name: one sentence each."""
    assert isinstance(CliRunner().invoke(app, [str(tmp_path)]).exception, FileError)
    run = make_run(tmp_path / "run")
    answer = CliRunner().invoke(app, [str(run.path), "--out", str(tmp_path)])
    assert isinstance(answer.exception, ConfigError)


def test_without_weights_the_page_leaves_forgetting_out(app, tmp_path):
    """A run without a checkpoint has no curve; the command says why on stderr and goes on."""
    run = make_run(tmp_path / "run", curves=None)
    answer = CliRunner().invoke(app, [str(run.path)])
    assert answer.exit_code == 0
    assert "no forgetting curve:" in answer.stderr
    assert (run.path / "report.html").exists()
