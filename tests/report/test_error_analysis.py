"""Sections that need the dataset: its summary, errors over time and by node, calibration, examples."""

import re
from dataclasses import replace
from html import escape

import numpy as np
import pytest
import torch
from torch import nn

import dygmamba as dm
from browser import find_browser
from dygmamba.data.events.splits import chronological_split
from dygmamba.engine.checkpoint import TrainingState, save_checkpoint
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.dataset_summary import build_dataset_section
from dygmamba.report.document import BarChart, ContributionChart, LineChart, Section
from dygmamba.report.error_analysis import (
    CHANCE_LOSS,
    Example,
    ReliabilityBin,
    bin_by_score,
    build_calibration_section,
    build_error_over_time_section,
    build_examples_section,
    build_node_errors_section,
    list_reliability_bins,
    load_examples,
    save_examples,
    select_examples,
)
from dygmamba.report.run_report import build_data_sections, write_report
from dygmamba.report.run_sections import REPORT_TASKS
from dygmamba.runs.opening import open_run
from dygmamba.runs.stored_predictions import (
    StoredPredictions,
    load_predictions,
    recompute_predictions,
    save_predictions,
)
from dygmamba.tasks.calibration import Reliability
from dygmamba.tasks.link import build_link_set
from letters import COLUMNS, make_letters

EVIL = "<script>alert(1)</script>" + "x" * 60
FRAME = '<iframe width="{width}" height="900" style="border: 0" srcdoc="{page}"></iframe>'
MEASURE = """<script>onload = () => {
  const measured = [...document.querySelectorAll("iframe")].map((frame) => {
    const page = frame.contentDocument, width = page.documentElement.scrollWidth;
    const cut = [...page.querySelectorAll("svg.chart text")].filter((text) => {
      const own = text.getBoundingClientRect(), svg = text.closest("svg").getBoundingClientRect();
      return own.left < svg.left - 0.5 || own.right > svg.right + 0.5;
    }).map((text) => text.textContent);
    const hidden = [...page.querySelectorAll("tbody td:nth-child(2)")].filter((cell) =>
      cell.getBoundingClientRect().right > width).length;
    return [width, getComputedStyle(page.querySelector("svg .line")).stroke, cut, hidden].join("|");
  });
  document.body.dataset.measured = measured.join(";");
}</script>"""


def log(**changed):
    columns = make_letters(600)
    columns["who"] = [EVIL if name == "ann" else name for name in columns["who"]]
    columns["whom"] = [EVIL if name == "ann" else name for name in columns["whom"]]
    return dm.read(columns | changed, **COLUMNS, name="letters")


@pytest.fixture(scope="module")
def data():
    """A log with names and dates, and one name that is a script."""
    return log()


@pytest.fixture(scope="module")
def predictions(data):
    """Predictions of a model that is wrong on all events of one node and right on the others."""
    evaluation_set = build_link_set(data.store, chronological_split(data.store), "test")
    noise = np.random.default_rng(0).normal(size=len(evaluation_set.event_index))
    worst = int(data.ids.to_node(["bob"], "src")[0])
    hard = (evaluation_set.pairs.src == worst) | (evaluation_set.pairs.dst == worst)
    logit = torch.where((evaluation_set.pairs.label > 0) & ~hard, 4.0, -2.0) + torch.from_numpy(noise)
    return StoredPredictions.from_scores(evaluation_set, logit)


def test_the_dataset_is_described_with_own_ids_and_dates(data):
    """Counts, period, gaps and active nodes; the bars of the chart are all events, each in its split."""
    split = chronological_split(data.store)
    section = build_dataset_section(data, split)
    facts, quantiles, gaps, active = section.tables
    values = {row[0].text: row[1].text for row in facts.rows}
    counts = split.count(data.store)
    assert values["events"] == "600"
    assert values["split"] == counts.describe_events()
    assert [row[0].text for row in quantiles.rows] == ["events per node", "gap at a node"]
    assert (
        f"train {len(split.train)}, validation {len(split.val)}, test {len(split.test)} " in values["split"]
    )
    assert values["new nodes"] == counts.describe_new_nodes()
    assert values["period"].startswith("2024-05-01 00:")
    assert "repeat an earlier pair" in values["repeated pairs"]
    gap = np.diff(data.store.time.numpy())
    assert gaps.rows[0][0].text == np.datetime_as_string(
        np.datetime64(int(data.store.time[gap.argmax()]), "s"), "m"
    ).replace("T", " ")
    assert {row[0].text for row in active.rows} <= {
        EVIL,
        *make_letters(1)["who"],
        *data.ids.values.to_pylist(),
    }
    (chart,) = section.charts
    totals = [sum(counts) for counts in chart.counts.values()]
    assert totals == [600 - len(split.val) - len(split.test), len(split.val), len(split.test)]
    assert (chart.x, chart.x_kind) == ("date (UTC)", "date")


def test_a_long_gap_is_shaded():
    """Two months without events in a log of hours are first in the table and gray in the chart."""
    times = make_letters(600)["when"]
    times[300:] = [time.replace(month=time.month + 2) for time in times[300:]]
    section = build_dataset_section(late := log(when=times), chronological_split(late.store))
    ((start, stop, tooltip),) = section.charts[0].gaps
    assert stop - start > 50 * 86_400
    assert tooltip == f"no events for {section.tables[2].rows[0][2].text}"


def test_the_worst_node_is_listed_with_its_events(data, predictions):
    """The node that the model is wrong about comes first, with its number of test events and of all events."""
    section = build_node_errors_section(predictions, data)
    first = section.tables[0].rows[0]
    assert first[0].text == "bob"
    real = predictions.label > 0
    node = int(data.ids.to_node(["bob"], "src")[0])
    tested = ((predictions.src == node) | (predictions.dst == node)) & real
    assert first[3].text == str(int(tested.sum()))
    assert first[4].text == str(int(((data.store.src == node) | (data.store.dst == node)).sum()))
    below = (predictions.logit[~real][None] < predictions.logit[tested][:, None]).double().mean()
    assert first[1].text == f"{100 * float(below):.1f}"


def test_loss_and_ap_over_time_are_those_of_their_slices(data, predictions):
    """Every event is in one slice, in order; the mean over slices of equal size is the loss of the whole."""
    section = build_error_over_time_section(predictions, data, ranked=True)
    loss, quality = section.charts
    (points,) = loss.series.values()
    assert len(points) == predictions.events // 25
    assert [point[0] for point in points] == sorted(point[0] for point in points)
    whole = nn.functional.binary_cross_entropy_with_logits(predictions.logit, predictions.label.double())
    assert np.mean([point[1] for point in points]) == pytest.approx(float(whole), rel=0.05)
    assert loss.level[1] == CHANCE_LOSS
    assert all(0 <= point[1] <= 100 for point in quality.series["AP"])
    few = replace(
        predictions,
        **{name: getattr(predictions, name)[:10] for name in ("event", "src", "dst", "label", "logit")},
    )
    assert build_error_over_time_section(few, data, ranked=True) is None


def test_calibrated_scores_lie_on_the_diagonal():
    """If labels are drawn with the score as probability, the share that is true is the score."""
    rng = np.random.default_rng(1)
    score = rng.random(40_000)
    label = torch.from_numpy((rng.random(40_000) < score).astype(np.float32))
    zero = torch.zeros(40_000, dtype=torch.int64)
    scores = torch.from_numpy(score)
    points = bin_by_score(StoredPredictions(zero, zero, zero, label, torch.logit(scores), 1), scores)
    assert len(points) == 10
    assert sum(point.count for point in points) == 40_000
    assert all(abs(point.score - point.share) < 0.03 for point in points)
    section = build_calibration_section(
        {"run": [ReliabilityBin(0.95, 0.6, 300), ReliabilityBin(0.15, 0.1, 100)]}, "Intro."
    )
    assert section.text.startswith("Intro. ")
    assert "by 27.5 points" in section.text
    assert section.charts[1].counts == {"predictions": (0, 100, 0, 0, 0, 0, 0, 0, 0, 300)}
    assert build_calibration_section({"run": []}, "") is None
    new_nodes = {"raw": list_reliability_bins(Reliability((0.2, 0.8), (0.1, 1.0), (100, 100)))}
    both = build_calibration_section({"run": [ReliabilityBin(0.95, 0.6, 300)]}, "Intro.", new_nodes)
    assert [chart.title for chart in both.charts[:2]] == ["Reliability", "Reliability, new nodes"]
    assert both.charts[1].series == {"raw": [(20.0, 10.0), (80.0, 100.0)]}
    assert "its ECE is 15.0 raw" in both.text


def test_few_predictions_have_no_calibration_curve():
    """Below 50 predictions the text says how many there are; a curve of few new nodes is left out."""
    few, many = ([ReliabilityBin(0.95, 0.6, count)] for count in (49, 50))
    section = build_calibration_section({"run": few}, "Intro.")
    assert section.charts == ()
    assert "49 predictions are too few" in section.text
    section = build_calibration_section({"run": many}, "Intro.", {"raw": few})
    assert [chart.title for chart in section.charts] == ["Reliability", "Score distribution"]
    assert "Of new nodes there are 49 predictions only" in section.text


def test_examples_are_typical_events_and_the_worst_errors(data, predictions, tmp_path):
    """Ten of them; reasons are shown and stored, and examples of other weights are ignored."""
    shown = select_examples(
        predictions, data, lambda pairs: [[("met lately", 1.5)] for _ in range(len(pairs))]
    )
    assert [one.true for one in shown] == [True] * 7 + [False] * 3
    real = predictions.label > 0
    assert shown[4].score == pytest.approx(float(torch.sigmoid(predictions.logit[real].min())))
    assert shown[7].score == pytest.approx(float(torch.sigmoid(predictions.logit[~real].max())))
    assert shown[0].time.startswith("2024-05-")
    section = build_examples_section(shown)
    assert section.tables[0].rows[0][-1].text == "met lately (+1.50)"
    assert build_examples_section([]) is None
    assert "reasons" not in build_examples_section([Example("k", "a", "b", "t", 0.5, True)]).tables[0].columns
    run = make_folder(tmp_path, data)
    save_examples(run, shown)
    assert load_examples(run) == shown
    save_checkpoint(run.best, {"model.w": torch.ones(1)}, TrainingState(epoch=9), run.fingerprint)
    assert load_examples(run) is None
    (run.path / "examples.json").write_text("[" * 100_000)
    assert load_examples(run) is None


def make_folder(path, data):
    run = RunDirectory(path)
    about = {"data": data.name, "digest": data.digest, "model": "trees", "seed": 0}
    run.write_config({"run": about, "train": {}, "model": {}})
    save_checkpoint(run.best, {"model.w": torch.zeros(1)}, TrainingState(), run.fingerprint)
    return run


def test_predictions_are_stored_until_the_weights_change(data, predictions, tmp_path):
    """They are read as written; a file with a flipped bit or of other weights is ignored."""
    run = make_folder(tmp_path, data)
    save_predictions(run, predictions)
    found = load_predictions(run)
    assert found.total == predictions.total
    assert all(
        torch.equal(getattr(found, name), getattr(predictions, name))
        for name in ("event", "src", "dst", "label", "logit")
    )
    path = tmp_path / "answers.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert load_predictions(run) is None
    path.write_bytes(whole)
    save_checkpoint(run.best, {"model.w": torch.ones(1)}, TrainingState(epoch=1), run.fingerprint)
    assert load_predictions(run) is None


def test_predictions_of_a_long_test_are_stored_evenly(data, monkeypatch):
    """At most MAX_EVENTS events are stored, from the first to the last, each with its random pair."""
    monkeypatch.setattr("dygmamba.runs.stored_predictions.MAX_EVENTS", 20)
    evaluation_set = build_link_set(data.store, chronological_split(data.store), "test")
    found = StoredPredictions.from_scores(evaluation_set, torch.zeros(len(evaluation_set.event_index)))
    assert (found.events, len(found.label), found.total) == (20, 40, len(evaluation_set.events))
    assert {int(evaluation_set.events[0]), int(evaluation_set.events[-1])} <= set(found.event.tolist())
    assert float(found.label.sum()) == 20
    assert int(found.event.unique().diff().max()) <= 2 + len(evaluation_set.events) // 20


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A run of boosted trees on the log."""
    (run,) = dm.train(data, "trees", epochs=1, trees=5, out=tmp_path_factory.mktemp("runs"), device="cpu")
    return run


def test_training_writes_a_complete_report(trained):
    """Predictions, examples with reasons and the page exist; `report` writes the same page from them."""
    page = (trained.path / "report.html").read_text()
    for title in ("Events over time", "Error over time", "Errors by node", "Calibration", "Examples"):
        assert title in page
    assert len(page) < 300_000
    assert EVIL not in page
    assert all(example.reasons for example in load_examples(trained._folder))
    before = (trained.path / "answers.safetensors").read_bytes()
    assert trained.report().read_text() == page
    assert (trained.path / "answers.safetensors").read_bytes() == before


def test_recomputed_predictions_equal_the_stored_ones(trained):
    """The same events, the same random pairs and the same scores."""
    run = open_run(trained.path, torch.device("cpu"))
    again, stored = recompute_predictions(run), load_predictions(run.folder)
    assert torch.equal(again.event, stored.event)
    assert torch.equal(again.dst, stored.dst)
    assert torch.allclose(again.logit, stored.logit, atol=1e-5)


def test_the_page_fits_phone_and_desktop_and_follows_the_color_scheme(data, predictions, trained, tmp_path):
    """With every section and long names: as wide as the window, no text cut off, no console message, light or dark.

    The second column of every table (the score of an example) is visible without scrolling.
    """
    browser = find_browser(tmp_path / "profile")
    split = chronological_split(data.store)
    shown = select_examples(
        predictions, data, lambda pairs: [[("met " * 9, 1.5)] * 3 for _ in range(len(pairs))]
    )
    signs = ContributionChart(
        "t", (("ann -> " + "b" * 90, 12.458), ("c " * 60, -1.5)), ("base", -11.458), "note"
    )
    steps = LineChart(
        "t", "x", "y", {"a": [(0, -0.00025), (1, 1_250_000.5)], "b": [(0, -12_345), (1, -12_346)]}
    )
    bars = BarChart("t", "AP (%)", {"all": {"recency-regression (this run)": 100.0, "b": 99.5}}, low=0.0)
    extra = Section("Texts at the edges", "", (), (signs, steps, bars))
    page = write_report(
        trained._folder,
        tmp_path / "page.html",
        (*build_data_sections(data, split, REPORT_TASKS["link"], predictions, shown), extra),
    )
    outer, widths = tmp_path / "outer.html", (400, 800, 1200)
    frames = [FRAME.format(width=width, page=escape(page.read_text())) for width in widths]
    outer.write_text("".join([*frames, MEASURE]))
    for setting, color in (("1", "rgb(0, 114, 178)"), ("0", "rgb(91, 184, 240)")):
        dom, console = browser.dom(outer, f"--blink-settings=preferredColorScheme={setting}")
        assert console == []
        measured = re.search(r'data-measured="([^"]*)"', dom)[1]
        assert measured == ";".join(f"{width}|{color}||0" for width in widths)
