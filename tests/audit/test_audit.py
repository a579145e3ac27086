"""The audit as a user sees it: exit codes, JSON, outside models that leak, and a page in a real browser."""

import json
import re
from dataclasses import replace

import pytest
import torch

import dygmamba as dm
from browser import find_browser
from commands import invoke
from dygmamba.auditing.audit import build_audit_document
from dygmamba.auditing.model_checks import MIN_EVENTS, AuditedModel, check_ceiling
from dygmamba.auditing.oracles import EventsByTime, compute_ceiling, measure_tie_luck
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.models.base import Heuristic
from dygmamba.report.html import render_document
from dygmamba.report.published import list_published_values
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metrics import link_metrics
from dygmamba.testing import list_audit_checks
from letters import COLUMNS, make_letters
from outside_models import NoSettings, Sound
from raising import raises
from streams import split_stream
from torture_cases import SECONDS

long_run = pytest.mark.skipif(
    not SECONDS, reason="`make torture` audits it; tests/research/test_ceiling_bounds.py has its oracles"
)


@pytest.fixture
def registered(monkeypatch):
    """Registers a model for one test."""
    import dygmamba.models as registry

    monkeypatch.setattr(registry, "REGISTERED", {})
    return lambda name, build, **rest: dm.register(name, NoSettings, build, **rest)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small dataset that has an edge feature."""
    place = tmp_path_factory.mktemp("data")
    save_dataset(dm.generate(nodes=40, events=800, communities=4, name="small"), place)
    return place


def audit(monkeypatch, capsys, folder, *words):
    return invoke(monkeypatch, capsys, "audit", *words, "--data-dir", str(folder))


def test_a_stream_alone_has_ceilings_and_no_checks(monkeypatch, capsys, folder):
    """Two splits, two settings, three negative samplers; no published values; exit code 0."""
    code, out, _ = audit(monkeypatch, capsys, folder, "small", "--json", "--protocol", "benchmark")
    found = json.loads(out)
    assert code == 0
    assert (found["dataset"], found["checks"], found["above"]) == ("small", [], 0)
    assert found["above_reference"] == 0
    evaluations = {(row["split"], row["setting"], row["negatives"]) for row in found["ceilings"]}
    assert len(evaluations) == len(found["ceilings"]) == 12
    for row in found["ceilings"]:
        assert row["published_above"] == []
        assert 0.5 <= row["edge_oracle_ap_pooled"] <= 1
        assert 0 <= row["true_share"] <= 1
        for metric in ("ap", "auc"):
            names = ("edge_oracle", "moment_oracle", "posterior_oracle")
            assert row[f"reference_{metric}"] == max(row[f"{name}_{metric}"] for name in names)
    assert {row["rule"] for row in found["rules"]} >= {"edgebank", "popularity"}


def test_tables_fit_a_terminal_of_80_columns(monkeypatch, capsys, folder):
    """No heading and no cell is truncated, and headings are broken between words."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = audit(monkeypatch, capsys, folder, "small", "--protocol", "benchmark")
    assert code == 0
    assert "\\n" not in out
    assert "…" not in out
    assert re.search(r"edge +moment +posterior +best", out)
    assert re.search(r"baseline +random +historical +inductive *\n", out)
    tables = [line for line in out.splitlines() if re.search(r"^test, |^[a-z-]+ +\d", line)]
    assert max(map(len, tables)) <= 80


def test_a_model_that_does_not_leak_passes(monkeypatch, capsys, folder, registered):
    """The same model without the leak passes every check, on the dataset and on the synthetic stream."""
    registered("mine", Sound)
    code, out, _ = audit(monkeypatch, capsys, folder, "small", "--model", "mine", "--json")
    checks = json.loads(out)["checks"]
    assert code == 0
    assert [row["name"] for row in checks] == [*list_audit_checks(), "own time"]
    assert all(row["passed"] for row in checks)


def snapshots(at_once=100):
    """3,000 events among nine nodes, `at_once` events per timestamp."""
    rng = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(9, (3000,), generator=rng).tolist() for _ in range(2))
    return dm.read({"src": src, "dst": dst, "time": [k // at_once for k in range(3000)]}, name="snapshots")


class FirstHalf(Heuristic):
    """Scores by the position in the call: positives come first."""

    def __init__(self, config, facts):
        pass

    def __call__(self, view):
        return (torch.arange(len(view.pairs)) < len(view.pairs) // 2).float()

    def observe(self, events):
        pass

    def reset(self):
        pass


def distinct_snapshots():
    """3,900 events among twelve nodes; every timestamp has 130 of their 144 pairs once."""
    rng = torch.Generator().manual_seed(0)
    pairs = torch.cat([torch.randperm(144, generator=rng)[:130] for _ in range(30)])
    columns = {"src": (pairs // 12).tolist(), "dst": (pairs % 12).tolist()}
    return dm.read(columns | {"time": [k // 130 for k in range(3900)]}, name="snapshots")


def test_an_ap_above_the_ceiling_fails_a_check(registered):
    """On snapshots no leak-free score separates positives from negatives that are events; a higher AP is detected."""
    data = distinct_snapshots()
    registered("first-half", FirstHalf, trainable=False)
    found = dm.audit(data, "first-half")
    assert not found.sound
    assert {"order", "ceiling"} <= {check.name for check in found.checks if not check.passed}
    assert dm.audit(data, "edgebank").sound


def test_every_published_value_above_the_edge_oracle_is_listed():
    """For a dataset with a published name: exactly the printed values above each edge oracle, by metric."""
    found = dm.audit(replace(snapshots(), name="can-parl"))
    assert found.above > 10
    for one, cells in found.ceilings:
        limits = {"ap": one.edge_oracle_ap, "auc": one.edge_oracle_auc}
        expected = [
            (model, metric, cell.mean)
            for model, metric, cell in list_published_values("CanParl", one.setting, one.negatives)
            if one.split == "test" and cell.mean > 100 * limits[metric]
        ]
        assert [(cell.model, cell.metric, cell.value) for cell in cells] == expected
        assert all(cell.source for cell in cells)
        assert all(cell.reference == getattr(one, f"reference_{cell.metric}") for cell in cells)
    above = [cell for _, cells in found.ceilings for cell in cells]
    assert found.above_reference == sum(cell.value > 100 * cell.reference for cell in above) < found.above
    page = render_document(build_audit_document(found))
    assert f"Published values above the edge oracle: {found.above};" in page
    assert "Dots are published values." in page


@pytest.mark.parametrize(
    ("name", "low", "high", "counts"),
    [
        ("USLegis", 0.777, 0.779, (2, 2)),
        pytest.param("CanParl", 0.937, 0.9395, (30, 26), marks=long_run),
    ],
)
def test_ceilings_of_the_two_datasets_of_snapshots(name, low, high, counts, real_data):
    """Edge oracle with random negatives; published values above it and above the best oracle."""
    found = dm.audit(name, data_dir=real_data)
    first = found.ceilings[0][0]
    assert (first.split, first.setting, first.negatives) == ("test", "transductive", "random")
    assert low <= first.edge_oracle_ap <= high
    assert (found.above, found.above_reference) == counts


def test_a_run_is_audited_with_its_own_weights(monkeypatch, capsys, tmp_path, folder):
    """Given a run directory alone, or after its dataset."""
    data = dm.load("small", folder)
    (run,) = dm.train(
        data, "tgn", epochs=1, neighbors=4, time_dim=6, out=tmp_path, device="cpu", data_dir=folder
    )
    code, out, _ = audit(monkeypatch, capsys, folder, str(run.path), "--json")
    checks = {row["name"]: row["passed"] for row in json.loads(out)["checks"]}
    assert code == 0
    assert checks == dict.fromkeys((*list_audit_checks(), "own time", "ceiling"), True)
    assert audit(monkeypatch, capsys, folder, "small", str(run.path))[0] == 0


def test_a_memory_that_sees_the_query_time_fails(tmp_path):
    """With published visibility on snapshots earlier batches contain events of the same timestamp."""
    small = {"epochs": 1, "time_dim": 4, "out": tmp_path, "device": "cpu", "negatives": "random"}
    (run,) = dm.train(snapshots(at_once=300), "jodie", visible="batch", **small)
    found = dm.audit(run.path)
    assert [check.name for check in found.checks if not check.passed] == ["own time"]


def test_invalid_arguments_are_reported_in_one_line(monkeypatch, capsys, folder, tmp_path):
    """An unknown dataset, model or setting, a model and a run, settings without a model: exit code 2."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("")
    for words, said in [
        (["nothing"], "no dataset"),
        (["small", "--model", "nobody"], "nobody"),
        (["small", "--set", "width=3"], "--model"),
        (["small", "--model", "edgebank", "--set", "x=3"], "x"),
        (["small", str(run), "--model", "tgn"], "not both"),
        (["small", "--out", str(tmp_path)], "is a folder"),
    ]:
        code, out, error = audit(monkeypatch, capsys, folder, *words)
        assert (code, out, error.count("\n")) == (2, "", 1), words
        assert said in error


@pytest.mark.parametrize("model", [None, "edgebank", "graphmixer"])
def test_a_stream_without_a_test_period_is_an_error(model):
    """One timestamp only, or one event; a dozen events are audited."""
    for rows in ([(0, 1, 0)], [(0, 1, 5), (1, 2, 5)]):
        with raises("empty-split"):
            dm.audit(dm.read(rows, name="tiny"), model)
    assert dm.audit(dm.read([(k % 3, (k + 1) % 3, k) for k in range(12)], name="tiny"), model).sound


def test_a_csv_file_is_audited_without_import(monkeypatch, capsys, tmp_path):
    """Its columns have the usual names."""
    log = make_letters(400)
    lines = [
        f"{who},{whom},{when:%Y-%m-%dT%H:%M}"
        for who, whom, when in zip(*(log[c] for c in COLUMNS.values()), strict=True)
    ]
    file = tmp_path / "mail.csv"
    file.write_text("\n".join(["src,dst,time", *(line.replace("Zoë, Ltd.", "zoe") for line in lines)]))
    code, out, _ = audit(monkeypatch, capsys, tmp_path, str(file), "--json")
    assert (code, json.loads(out)["dataset"]) == (0, "mail")


MEASURE = (
    "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></body>"
)


def test_the_page_opens_and_fits_a_phone(monkeypatch, capsys, folder, tmp_path):
    """No error, script or link; at 400 px nothing scrolls sideways; names are escaped."""
    browser = find_browser(tmp_path / "profile")
    page = tmp_path / "pages" / "one.html"
    words = ["small", "--model", "edgebank", "--protocol", "benchmark", "--out", str(page)]
    code, out, _ = audit(monkeypatch, capsys, folder, *words)
    assert code == 0
    assert "edge" in out
    text = page.read_text()
    assert "<script" not in text
    assert not re.search(r'(?:src|href)="(?!#)', text)
    dom, console = browser.dom(page)
    assert console == []
    assert dom.count("<circle") == 0
    assert "published values" not in dom.lower()
    assert dom.count('class="bar ') == 6
    measured = tmp_path / "measured.html"
    free = re.sub(r"<meta http-equiv[^>]*>", "", text)
    framed = free.replace("</body>", MEASURE)
    (tmp_path / "inner.html").write_text(framed)
    measured.write_text(
        "<body><iframe src='inner.html' width=400 height=800></iframe><script>onload = () => setTimeout(() => {"
        "document.body.textContent = document.querySelector('iframe').contentDocument.title }, 500)</script></body>"
    )
    dom, _ = browser.dom(measured, "--allow-file-access-from-files")
    width, room = map(int, re.search(r"(\d+) of (\d+)", dom).groups())
    assert room == 400
    assert width <= room
    evil = dm.generate(nodes=40, events=800, communities=4)
    object.__setattr__(evil, "name", "<script>alert(1)</script>")
    assert "<script" not in dm.audit(evil).page(tmp_path / "evil.html").read_text()


def check_ap(events, ap):
    """The ceiling check of a model with this AP on `events` test events of two nodes, a few at a time."""
    store = dm.read([(k % 3, (k + 1) % 3, k // 3) for k in range(round(events / 0.15))]).store
    evaluation_set, events_by_time = (
        build_link_set(store, split_stream(store).split, "test"),
        EventsByTime(store),
    )
    ceiling = compute_ceiling(events_by_time, evaluation_set)
    model = AuditedModel("given", (), lambda sets: [one.about | {"ap": ap(ceiling)} for one in sets])
    return check_ceiling(model, events_by_time, [evaluation_set], [ceiling]), ceiling


def test_few_events_have_no_ceiling():
    """On few test events an AP above the oracles is chance; from `MIN_EVENTS` on an impossible one is refused."""
    checks, ceiling = check_ap(MIN_EVENTS - 5, lambda ceiling: 1.0)
    assert ceiling.events < MIN_EVENTS
    assert ceiling.edge_oracle_ap < 1
    assert checks == []
    (check,), ceiling = check_ap(MIN_EVENTS + 5, lambda ceiling: 1.0)
    assert ceiling.events >= MIN_EVENTS
    assert not check.passed
    assert check_ap(MIN_EVENTS + 5, lambda ceiling: ceiling.edge_oracle_ap_untied)[0][0].passed


def test_luck_with_ties_is_the_spread_over_random_orders():
    """The deviation equals that of the metric itself with random ties, and falls with the number of events."""
    spreads = []
    for events in (1_300, 3_900):
        store = distinct_snapshots().store[:events]
        evaluation_set = build_link_set(store, split_stream(store).split, "test")
        pairs, is_event = evaluation_set.pairs, EventsByTime(store).is_event(evaluation_set.pairs)
        rng = torch.Generator().manual_seed(1)
        found = torch.tensor(
            [
                link_metrics(is_event + torch.rand(len(pairs), generator=rng) / 2, pairs.label, pairs.group)[
                    "ap"
                ]
                for _ in range(200)
            ]
        )
        spreads.append(measure_tie_luck(pairs, is_event))
        assert spreads[-1] == pytest.approx(float(found.std()), rel=0.2)
    assert spreads[1] < spreads[0]
