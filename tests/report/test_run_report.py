"""The report of a run: right numbers, no request and no script in a real browser.

Sections that need the dataset are tested in test_error_analysis.
"""

import re
from dataclasses import asdict
from html.parser import HTMLParser

import pytest
import typer
from typer.testing import CliRunner

from browser import find_browser
from dygmamba.cli.runs import report
from dygmamba.core.errors import FileError
from dygmamba.data.storage.library import generate_default_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.forgetting import Closeness, Forgetting, save_forgetting
from dygmamba.report.html import render_document
from dygmamba.report.run_report import build_report_document, build_run_cards, write_report
from dygmamba.report.run_sections import (
    REPORT_TASKS,
    build_baselines_section,
    build_results_section,
    summarize_link_results,
)
from raising import raises

EVIL = "<script>alert(1)</script>"
CHART_LINES = {
    "AP by model": 0,
    "Training loss": 1,
    "Validation AP": 1,
    "Forgetting in the scores": 2,
    "Forgetting in the weights": 2,
}
MAX_BYTES = 300_000


def row(model, setting, ap, split="test"):
    metrics = {"ap": ap, "auc": ap - 0.01, "ap_pooled": ap - 0.02, "auc_pooled": ap - 0.03, "n": 1800}
    return {"model": model, "split": split, "setting": setting, "negatives": "random", "seed": 0, **metrics}


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
    run = RunDirectory(folder)
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


def render_report(*given, **options):
    return render_document(build_report_document(*given, **options))


class Attributes(HTMLParser):
    """Collects every URL in a page, and its content security policy."""

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


def test_a_browser_draws_every_chart_and_sends_no_request(browser, tmp_path):
    """Each chart has its lines, there is no script, the console is empty, and no URL leads out of the page."""
    page = write_report(make_run(tmp_path))
    dom, console = browser.dom(page)
    assert console == []
    assert "<script" not in dom
    assert page.stat().st_size < MAX_BYTES
    for name, lines in CHART_LINES.items():
        drawn = re.search(rf'<svg[^>]*aria-label="{name}".*?</svg>', dom, re.DOTALL)
        assert drawn is not None, name
        assert drawn[0].count('class="line') == lines
        assert "<title>" in drawn[0]
    attributes = Attributes(dom)
    assert not [address for address in attributes.addresses if not address.startswith("#")]
    assert attributes.policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_browser_reports_errors_and_requests(browser, tmp_path):
    """The checks above can fail: a thrown error and a forbidden request reach the console."""
    page = tmp_path / "bad.html"
    policy = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; script-src 'unsafe-inline'\">"
    page.write_text(f"{policy}<img src='http://127.0.0.1:9/x.png'><script>throw new Error('boom')</script>")
    console = " ".join(browser.dom(page)[1])
    assert "boom" in console
    assert "Content Security Policy" in console


def test_names_are_escaped(tmp_path):
    """The names of a dataset and of a model that contain a script are shown as text."""
    rows = [row(EVIL, "transductive", 0.5), *ROWS]
    page = write_report(make_run(tmp_path, data=EVIL, rows=rows))
    text = page.read_text()
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_results_table_has_every_row_and_highlights_the_best(tmp_path):
    """The baselines follow each evaluation of the run, the test first; the best value of a metric is highlighted."""
    rows = [row("dyg-mamba", "transductive", 0.9, split="val"), *ROWS]
    (table,) = build_results_section(rows, "dyg-mamba", REPORT_TASKS["link"]).tables
    assert [cells[0].text for cells in table.rows] == [
        "test, all nodes, random",
        "baseline recency",
        "baseline edgebank",
        "test, new nodes, random",
        "baseline recency",
        "baseline edgebank",
        "val, all nodes, random",
    ]
    assert [(cells[1].text, cells[1].tone) for cells in table.rows[:3]] == [
        ("92.08", "best"),
        ("78.36", "soft"),
        ("66.00", "soft"),
    ]
    assert not any(cell.tone for cell in table.rows[-1])
    page = render_report(make_run(tmp_path))
    for words in (
        "92.08",
        "78.36",
        "0.987",
        "0.043",
        "1 h 56 min",
        "2 h 0 min",
        "1,234 probes",
        "cooccurrence",
        "in 89 of 100 cases",
    ):
        assert words in page


def test_ranking_metrics_have_a_table_if_they_were_computed():
    """MRR and hits have a table; a baseline without them is not in it."""
    rows = [ROWS[0], ROWS[2] | {"mrr": 0.5, "hits@10": 0.75}]
    _, ranks = build_results_section(rows, "recency", REPORT_TASKS["link"]).tables
    assert ranks.columns == ("evaluation", "MRR", "Hits@10")
    assert [[cell.text for cell in line] for line in ranks.rows] == [["test, all nodes", "50.00", "75.00"]]


def test_ranking_metrics_state_their_error_and_their_events():
    """A standard error makes no column; the table says how many of the events were ranked."""
    ranks = {"mrr": 0.771, "mrr_se": 0.004, "hits@10": 0.75, "hits@10_se": None}
    row = ROWS[2] | ranks | {"candidates": 100, "ranked": 40, "n": 90}
    _, table = build_results_section([row], "recency", REPORT_TASKS["link"]).tables
    assert [cell.text for cell in table.rows[0][1:]] == ["77.10 ± 0.40", "75.00", "40 of 90"]
    assert "ranks among 100 random destinations; ± standard error" in table.note


def test_few_events_are_said_and_not_drawn():
    """Below 50 events a card and a table say how many there are, and no bar is drawn of them."""
    rows = [one | {"n": 2} if one["setting"] == "inductive" else one for one in ROWS]
    first, second = REPORT_TASKS["link"].build_cards(rows, "dyg-mamba")
    assert "only" not in first.note
    assert second.note.startswith("only 2 events: may be chance; best baseline")
    (table,) = build_results_section(rows, "dyg-mamba", REPORT_TASKS["link"]).tables
    assert "test, new nodes, random has only 2 events" in table.note
    section = build_baselines_section(rows, "dyg-mamba")
    assert "New nodes: only 2 events" in section.text
    assert list(section.charts[0].values) == ["all nodes"]


def test_equally_few_events_are_said_once():
    """Instead of the same sentence for every line; lines of different sizes keep their own."""
    rows = [ROWS[2] | {"n": 30, "negatives": kind} for kind in ("random", "historical")]
    (table,) = build_results_section(rows, "recency", REPORT_TASKS["link"]).tables
    assert table.note.startswith("each evaluation has only 30 events, so its figures say little")
    (table,) = build_results_section([rows[0], rows[1] | {"n": 20}], "recency", REPORT_TASKS["link"]).tables
    assert "random has only 30 events" in table.note
    assert "historical has only 20 events" in table.note


def test_inductive_negatives_are_not_called_new_nodes():
    """The setting has this label; the sampler of negatives is a word of its own in every table."""
    rows = [
        row("recency", setting, 0.9) | {"negatives": "inductive"} for setting in ("transductive", "inductive")
    ]
    (table,) = build_results_section(rows, "recency", REPORT_TASKS["link"]).tables
    assert [line[0].text for line in table.rows] == [
        "test, all nodes, inductive",
        "test, new nodes, inductive",
    ]


def test_a_note_on_standard_errors_needs_one():
    """Without a value that has one, the table of ranks does not speak of them."""
    _, table = build_results_section([ROWS[2] | {"mrr": 0.5}], "recency", REPORT_TASKS["link"]).tables
    assert "±" not in table.note


def test_a_difference_has_the_error_of_its_verdict():
    """± two standard errors where the verdict is on the same pair of models; nothing is invented for others."""
    verdict = {
        "rule": "recency",
        "split": "test",
        "setting": "transductive",
        "negatives": "random",
        "spread": 0.01,
    }
    section = build_baselines_section(ROWS, "dyg-mamba", verdict)
    assert "On all nodes, the AP of the model is 13.72 ± 2.00 points above" in section.text
    assert "On new nodes, the AP of the model is 13.72 points above" in section.text
    for other in ({"rule": "edgebank"}, {"spread": None}):
        assert "±" not in build_baselines_section(ROWS, "dyg-mamba", verdict | other).text


def test_the_model_is_compared_with_baselines():
    """Bars by nodes, the best first; the margin as a sentence, also if a baseline is better; None without any."""
    section = build_baselines_section(ROWS, "dyg-mamba")
    assert "13.72 points above the best baseline (recency)" in section.text
    (chart,) = section.charts
    assert list(chart.values) == ["all nodes", "new nodes"]
    assert list(chart.values["all nodes"]) == ["dyg-mamba", "recency", "edgebank"]
    assert (chart.own, chart.low) == ("dyg-mamba", 50.0)
    assert "points below" not in section.text
    assert (
        "below the best baseline (dyg-mamba). The baseline is"
        in build_baselines_section(ROWS, "recency").text
    )
    verdict = {"sentence": "all is well"}
    assert build_baselines_section(ROWS, "dyg-mamba", verdict).text.endswith("Verdict: all is well.")
    assert build_baselines_section(ROWS[-2:], "dyg-mamba") is None


def test_baselines_of_the_results_file_are_in_the_report(tmp_path):
    """Baselines and a verdict that the results file stores apart are shown like results."""
    run = make_run(tmp_path, rows=ROWS[-2:])
    run.write_results(ROWS[-2:], rules=ROWS[:-2], verdict={"sentence": "far above recency"})
    page = render_report(run)
    assert "Verdict: far above recency." in page
    assert "best baseline: 78.36 (recency)" in page


def test_the_cards_show_ap_and_the_best_baseline():
    """Own AP with the best of the others; without others, curves or epochs there are fewer cards."""
    cards = REPORT_TASKS["link"].build_cards
    first = asdict(cards(ROWS, "dyg-mamba")[0])
    assert first == {"name": "Test AP", "value": "92.08", "note": "best baseline: 78.36 (recency)"}
    assert [card.name for card in cards(ROWS, "dyg-mamba")] == ["Test AP", "Test AP, new nodes"]
    assert cards(ROWS[-2:], "dyg-mamba")[0].note == "random negatives"
    assert [card.name for card in build_run_cards(EPOCHS, "ap", CURVES)] == ["Learned decay", "Epochs"]
    assert [*cards([], "dyg-mamba"), *build_run_cards([], "ap", None)] == []


def test_node_classification_has_its_own_metrics(tmp_path):
    """AUC and AP by period with the number of positives; an undefined metric is a dash; AUC by epoch."""
    about = {"model": "dyg-mamba", "seed": 0, "n": 2_000}
    rows = [
        about | {"split": "val", "auc": 0.75, "ap": 0.02, "positives": 17},
        about | {"split": "test", "auc": 0.8345, "ap": 0.0312, "positives": 44},
    ]
    page = render_report(make_run(tmp_path, rows=rows, curves=None, task="node"))
    for words in ("83.45", "3.12", "44 of them positive", "random guessing: 2.20", "validation AUC (%)"):
        assert words in page
    assert "negatives" not in page
    none = [row | {"auc": None, "ap": None, "positives": 0} for row in rows]
    assert "<td>-</td>" in render_report(make_run(tmp_path, rows=none, curves=None, task="node"))


def test_a_run_without_an_epoch_has_a_report(tmp_path):
    """Without an epoch, a result or a curve the page says so."""
    page = render_report(make_run(tmp_path, epochs=[], rows=None, curves=None))
    assert "the run is not finished" in page
    assert "No epoch is finished yet" in page


def test_without_a_known_law_there_is_only_the_learned_curve(tmp_path):
    """Its axis has plain numbers, or durations if the times are dates, and there is no comparison."""
    alone = Forgetting([1.0, 2.0, 4.0], [1.0, 0.7, 0.4], [0.0, 0.1, 0.1], 50, None, 9.0)
    page = render_report(make_run(tmp_path, curves=alone))
    assert "Forgetting in the scores" in page
    assert "Forgetting in the weights" not in page
    assert "age of the event, in the unit of the data" in page
    assert "age of the event<" in render_report(make_run(tmp_path, curves=alone), is_dated=True)
    assert "known law" not in page


def test_a_damaged_run_is_an_error_and_the_old_report_is_kept(tmp_path):
    """A truncated metrics file raises an error, and the existing page stays complete."""
    run = make_run(tmp_path)
    page = write_report(run)
    before = page.read_bytes()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 5, "lo')
    with raises("damaged-results", kind=FileError):
        write_report(run)
    assert page.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


def test_a_file_that_lacks_an_entry_is_damaged_and_a_wrong_section_is_not(tmp_path, monkeypatch):
    """For all files that sections read: a missing entry is one sentence; an error of a section stays what it is."""
    rows, candidate = [dict(one) for one in ROWS], {"model": "trees"}
    del rows[0]["negatives"]
    damaged = (
        make_run(tmp_path / "epochs", epochs=[{"epoch": 0, "loss": 1.0}]),
        make_run(tmp_path / "rows", rows=rows),
        make_run(tmp_path / "selection", rows=None),
    )
    selection = {"reason": "best", "run": None, "budget": 60, "candidates": [candidate]}
    damaged[2].write_results(ROWS, selection=selection)
    for run in damaged:
        with raises("damaged-results", FileError):
            render_report(run)

    def fail(*_):
        raise KeyError("a bug")

    monkeypatch.setattr("dygmamba.report.run_report.build_training_section", fail)
    with pytest.raises(KeyError, match="a bug"):
        render_report(make_run(tmp_path / "whole"))


@pytest.fixture(scope="module")
def app():
    """The command `report` alone, as `dygmamba` registers it."""
    app = typer.Typer()
    app.command()(report)
    return app


def test_the_command_writes_to_out_or_into_the_run_directory(app, tmp_path):
    """`--out` names the file, in a new folder too; by default the page is in the run directory."""
    run = make_run(tmp_path / "run")
    out = tmp_path / "pages" / "one.html"
    answer = CliRunner().invoke(app, [str(run.path), "--out", str(out)])
    assert answer.exit_code == 0
    assert answer.stdout.split() == ["report:", str(out)]
    assert 20_000 < out.stat().st_size < MAX_BYTES
    assert CliRunner().invoke(app, [str(run.path)]).exit_code == 0
    assert (run.path / "report.html").exists()


def test_the_command_rejects_what_is_not_a_run(app, tmp_path):
    """A folder without config.toml, and a folder given as `--out`, are errors."""
    assert isinstance(CliRunner().invoke(app, [str(tmp_path)]).exception, FileError)
    run = make_run(tmp_path / "run")
    answer = CliRunner().invoke(app, [str(run.path), "--out", str(tmp_path)])
    assert answer.exception.code == "is-a-folder"


@pytest.mark.parametrize(("digest", "missing"), [("0", "data"), (None, "decay curve")])
def test_without_data_or_weights_the_report_is_shorter(app, tmp_path, digest, missing):
    """A run whose data or checkpoint is missing has a report of the rest; the command says why on stderr."""
    run = make_run(tmp_path / "run", curves=None, digest=digest or generate_default_dataset().digest)
    answer = CliRunner().invoke(app, [str(run.path)])
    assert answer.exit_code == 0
    assert missing in answer.stderr
    assert ("Events over time" in (run.path / "report.html").read_text()) == (digest is None)
    assert (run.path / "report.html").exists()


def test_a_run_that_knows_the_columns_of_the_query_is_not_compared():
    row = {
        "model": "trees", "split": "test", "setting": "transductive", "negatives": "random", "ap": 0.96,
        "auc_pooled": 0.97,
    }  # fmt: skip
    plain = summarize_link_results([row], "trees")
    assert "97 of 100" in plain
    told = summarize_link_results([row | {"query_columns": True}], "trees")
    assert told.startswith(plain)
    assert "do not compare" in told
