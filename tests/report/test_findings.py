"""What a run's data tell its page: own ids and dates, errors by time and node, what a score means, examples."""

import re
from dataclasses import replace
from html import escape

import numpy as np
import pytest
import torch
from torch import nn

import dygmamba as dm
from browser import find_browser
from door_cases import COLUMNS, letters
from dygmamba.data.events.splits import chronological_split
from dygmamba.engine.checkpoint import TrainingState, save_checkpoint
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.dataset_summary import build_dataset_section
from dygmamba.report.error_analysis import (
    CHANCE_LOSS,
    Example,
    ReliabilityBin,
    bin_by_score,
    build_calibration_section,
    build_error_over_time_section,
    build_examples_section,
    build_node_errors_section,
    load_examples,
    save_examples,
    select_examples,
)
from dygmamba.report.run_report import build_data_sections, write_report
from dygmamba.report.run_sections import REPORT_TASKS
from dygmamba.runs.opening import open_run
from dygmamba.runs.test_predictions import (
    StoredPredictions,
    load_predictions,
    recompute_predictions,
    save_predictions,
)
from dygmamba.tasks.link import build_link_set

EVIL = "<script>alert(1)</script>" + "x" * 60
FRAME = '<iframe width="{width}" height="900" style="border: 0" srcdoc="{page}"></iframe>'
MEASURE = """<script>onload = () => {
  const told = [...document.querySelectorAll("iframe")].map((frame) => [
    frame.contentDocument.documentElement.scrollWidth,
    getComputedStyle(frame.contentDocument.querySelector("svg .line")).stroke].join("|"));
  document.body.dataset.told = told.join(";");
}</script>"""


def log(**changed):
    columns = letters(600)
    columns["who"] = [EVIL if name == "ann" else name for name in columns["who"]]
    columns["whom"] = [EVIL if name == "ann" else name for name in columns["whom"]]
    return dm.read(columns | changed, **COLUMNS, name="letters")


@pytest.fixture(scope="module")
def data():
    """A log with names and dates, and one name that is a script."""
    return log()


@pytest.fixture(scope="module")
def answers(data):
    """A model that knows nothing of one node's events and all of the others'."""
    evaluation_set = build_link_set(data.store, chronological_split(data.store), "test")
    noise = np.random.default_rng(0).normal(size=len(evaluation_set.number))
    worst = int(data.ids.to_node(["bob"], "src")[0])
    hard = (evaluation_set.pairs.src == worst) | (evaluation_set.pairs.dst == worst)
    logit = torch.where((evaluation_set.pairs.label > 0) & ~hard, 4.0, -2.0) + torch.from_numpy(noise)
    return StoredPredictions.of(evaluation_set, logit)


def test_the_data_are_told_in_own_ids_and_dates(data):
    """Counts, period, silences, the busiest nodes; the picture's bars are all events, each in its period."""
    split = chronological_split(data.store)
    section = build_dataset_section(data, split)
    facts, silences, busiest = section.tables
    said = {row[0].text: row[1].text for row in facts.rows}
    assert said["events"].startswith("600; ")
    assert said["period"].startswith("2024-05-01 00:")
    assert "repeat an earlier pair" in said["returning pairs"]
    gap = np.diff(data.store.time.numpy())
    assert silences.rows[0][0].text == np.datetime_as_string(
        np.datetime64(int(data.store.time[gap.argmax()]), "s"), "m"
    ).replace("T", " ")
    assert {row[0].text for row in busiest.rows} <= {EVIL, *letters(1)["who"], *data.ids.values.to_pylist()}
    (chart,) = section.charts
    totals = [sum(counts) for counts in chart.counts.values()]
    assert totals == [600 - len(split.val) - len(split.test), len(split.val), len(split.test)]
    assert (chart.x, chart.x_kind) == ("date (UTC)", "date")


def test_a_silence_is_shaded():
    """A week without events in a log of hours stands first in the table and grey in the picture."""
    times = letters(600)["when"]
    times[300:] = [time.replace(month=time.month + 2) for time in times[300:]]
    section = build_dataset_section(late := log(when=times), chronological_split(late.store))
    ((start, stop, said),) = section.charts[0].gaps
    assert stop - start > 50 * 86_400
    assert said == f"silent for {section.tables[1].rows[0][2].text}"


def test_the_worst_node_is_named_with_its_events(data, answers):
    """The node the model knows nothing of stands first, with its number of events in the test and in all."""
    section = build_node_errors_section(answers, data)
    first = section.tables[0].rows[0]
    assert first[0].text == "bob"
    real = answers.label > 0
    node = int(data.ids.to_node(["bob"], "src")[0])
    tested = ((answers.src == node) | (answers.dst == node)) & real
    assert first[3].text == str(int(tested.sum()))
    assert first[4].text == str(int(((data.store.src == node) | (data.store.dst == node)).sum()))
    below = (answers.logit[~real][None] < answers.logit[tested][:, None]).double().mean()
    assert first[1].text == f"{100 * float(below):.1f}"


def test_loss_and_ap_along_the_test_are_those_of_their_slices(data, answers):
    """Every event is in one slice, in order; the mean over slices of one size is the loss of the whole."""
    section = build_error_over_time_section(answers, data, ranked=True)
    loss, quality = section.charts
    (points,) = loss.series.values()
    assert len(points) == answers.events // 25
    assert [point[0] for point in points] == sorted(point[0] for point in points)
    whole = nn.functional.binary_cross_entropy_with_logits(answers.logit, answers.label.double())
    assert np.mean([point[1] for point in points]) == pytest.approx(float(whole), rel=0.05)
    assert loss.level[1] == CHANCE_LOSS
    assert all(0 <= point[1] <= 100 for point in quality.series["AP"])
    few = replace(
        answers, **{name: getattr(answers, name)[:10] for name in ("event", "src", "dst", "label", "logit")}
    )
    assert build_error_over_time_section(few, data, ranked=True) is None


def test_a_score_that_is_a_probability_lies_on_the_line():
    """Of questions drawn by their score, the share that is true is the score; all questions are counted."""
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
        {"run": [ReliabilityBin(0.95, 0.6, 30), ReliabilityBin(0.15, 0.1, 10)]}, "Asked."
    )
    assert section.text == "Asked. On average a score is 27.5 points from the share that was true."
    assert section.charts[1].counts == {"questions": (0, 10, 0, 0, 0, 0, 0, 0, 0, 30)}
    assert build_calibration_section({"run": []}, "") is None


def test_examples_are_usual_answers_and_the_worst_of_both_kinds(data, answers, tmp_path):
    """Ten: the lowest real events, the highest random pairs; reasons are shown, kept, and bound to the weights."""
    shown = select_examples(answers, data, lambda pairs: [[("met lately", 1.5)] for _ in range(len(pairs))])
    assert [one.true for one in shown] == [True] * 7 + [False] * 3
    real = answers.label > 0
    assert shown[4].score == pytest.approx(float(torch.sigmoid(answers.logit[real].min())))
    assert shown[7].score == pytest.approx(float(torch.sigmoid(answers.logit[~real].max())))
    assert shown[0].time.startswith("2024-05-")
    section = build_examples_section(shown)
    assert section.tables[0].rows[0][-1].text == "met lately (+1.50)"
    assert build_examples_section([]) is None
    assert "why" not in build_examples_section([Example("k", "a", "b", "t", 0.5, True)]).tables[0].columns
    run = make_folder(tmp_path, data)
    save_examples(run, shown)
    assert load_examples(run) == shown
    save_checkpoint(run.best, {"model.w": torch.ones(1)}, TrainingState(epoch=9), run.fingerprint)
    assert load_examples(run) is None


def make_folder(path, data):
    run = RunDirectory(path)
    about = {"data": data.name, "digest": data.digest, "model": "trees", "seed": 0}
    run.write_config({"run": about, "train": {}, "model": {}})
    save_checkpoint(run.best, {"model.w": torch.zeros(1)}, TrainingState(), run.fingerprint)
    return run


def test_answers_are_kept_until_the_weights_change(data, answers, tmp_path):
    """What is read is what was written; a flipped bit, other weights and another run's file count as none."""
    run = make_folder(tmp_path, data)
    save_predictions(run, answers)
    found = load_predictions(run)
    assert found.total == answers.total
    assert all(
        torch.equal(getattr(found, name), getattr(answers, name))
        for name in ("event", "src", "dst", "label", "logit")
    )
    path = tmp_path / "answers.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert load_predictions(run) is None
    path.write_bytes(whole)
    save_checkpoint(run.best, {"model.w": torch.ones(1)}, TrainingState(epoch=1), run.fingerprint)
    assert load_predictions(run) is None


def test_a_long_test_is_asked_evenly(data, monkeypatch):
    """At most so many events are kept, from the first to the last; each with both its questions."""
    monkeypatch.setattr("dygmamba.runs.test_predictions.MAX_EVENTS", 20)
    evaluation_set = build_link_set(data.store, chronological_split(data.store), "test")
    found = StoredPredictions.of(evaluation_set, torch.zeros(len(evaluation_set.number)))
    assert (found.events, len(found.label), found.total) == (20, 40, len(evaluation_set.events))
    assert {int(evaluation_set.events[0]), int(evaluation_set.events[-1])} <= set(found.event.tolist())
    assert float(found.label.sum()) == 20
    assert int(found.event.unique().diff().max()) <= 2 + len(evaluation_set.events) // 20


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Trees on the log."""
    (run,) = dm.train(data, "trees", epochs=1, trees=5, out=tmp_path_factory.mktemp("runs"), device="cpu")
    return run


def test_training_leaves_a_page_with_everything(trained):
    """Answers, examples with reasons and the page are there; `report` writes the same page from them."""
    page = (trained.path / "report.html").read_text()
    for words in ("Events over time", "Error over time", "Errors by node", "What a score means", "Examples"):
        assert words in page
    assert len(page) < 300_000
    assert EVIL not in page
    assert all(one.reasons for one in load_examples(trained._folder))
    before = (trained.path / "answers.safetensors").read_bytes()
    assert trained.report().read_text() == page
    assert (trained.path / "answers.safetensors").read_bytes() == before


def test_answers_asked_again_are_those_kept(trained):
    """A run without its table of answers is asked again: the same questions, the same scores."""
    run = open_run(trained.path, torch.device("cpu"))
    again, kept = recompute_predictions(run), load_predictions(run.folder)
    assert torch.equal(again.event, kept.event)
    assert torch.equal(again.dst, kept.dst)
    assert torch.allclose(again.logit, kept.logit, atol=1e-5)


def test_the_page_fits_a_phone_and_a_desk_and_turns_dark_where_the_screen_is(
    data, answers, trained, tmp_path
):
    """With every section and long names: as wide as its window, silent, and its lines in the colour of the screen."""
    browser = find_browser(tmp_path / "profile")
    split = chronological_split(data.store)
    shown = select_examples(answers, data, lambda pairs: [[("met " * 9, 1.5)] * 3 for _ in range(len(pairs))])
    page = write_report(
        trained._folder,
        tmp_path / "page.html",
        build_data_sections(data, split, REPORT_TASKS["link"], answers, shown),
    )
    outer = tmp_path / "outer.html"
    frames = [FRAME.format(width=width, page=escape(page.read_text())) for width in (400, 1200)]
    outer.write_text("".join([*frames, MEASURE]))
    for setting, colour in (("1", "rgb(0, 114, 178)"), ("0", "rgb(91, 184, 240)")):
        dom, console = browser.dom(outer, f"--blink-settings=preferredColorScheme={setting}")
        assert console == []
        assert re.search(r'data-told="([^"]*)"', dom)[1] == f"400|{colour};1200|{colour}"
    for width in (400, 1200):
        picture = browser.screenshot(page, tmp_path / f"{width}.png", f"--window-size={width},2400")
        assert len(picture) > 30_000
