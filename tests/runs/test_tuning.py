"""Hyperparameter search: continues where it was killed, scores trials on equal terms, never sees the test split."""

import json
import re
import sys
from dataclasses import replace

import pytest
import torch
from optuna.distributions import CategoricalDistribution

import dygmamba as dm
from browser import find_browser
from commands import invoke
from dygmamba.config import load_presets, read_preset_file
from dygmamba.core.errors import ConfigError, EventError, LockedError, ScoreError
from dygmamba.core.files.locking import acquire_lock
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.models import MODELS
from dygmamba.report.html import render_document
from dygmamba.report.tuning_document import build_tuning_document
from dygmamba.runs import tuning
from dygmamba.runs.tuning import TuningRequest
from dygmamba.runs.tuning_trials import JOURNAL_FILE, build_search_space
from raising import raises

SMALL = {"epochs": 4, "patience": 4, "rounds": 2, "neighbors": 0, "scales": 2, "others": 1}
TRIALS = 9
MEASURE = """<script>onload = () => setTimeout(() => {
document.body.dataset.told = [...document.querySelectorAll("iframe")].map(one =>
one.contentDocument.documentElement.scrollWidth).join(" ") }, 100)</script>"""
FIXED = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=40, events=600, communities=4)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A study without interruption."""
    return dm.tune(data, "trees", trials=TRIALS, studies=tmp_path_factory.mktemp("whole"), **SMALL)


def timeless(found):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found.trials]


class Killed(BaseException):
    """An exception that no handler of the search catches."""


def test_a_killed_study_ends_with_the_same_trials_when_repeated(data, whole, tmp_path):
    """Killed inside a trial, with an incomplete last line in the journal."""
    seen = []

    def kill(entry):
        seen.append(entry["trial"])
        if entry["trial"] == "trial 4" and seen.count("trial 4") == 2:
            raise Killed

    how = {"studies": tmp_path, **SMALL}
    with pytest.raises(Killed):
        dm.tune(data, "trees", trials=TRIALS, progress=kill, **how)
    journal = tmp_path / "tune-generated-trees" / JOURNAL_FILE
    journal.write_bytes(journal.read_bytes() + b'{"op_code":4,"worker_id"')
    assert len(dm.tune(data, "trees", trials=6, resume=True, **how).trials) == 6
    again = dm.tune(data, "trees", trials=TRIALS, **how)
    assert timeless(again) == timeless(whole)
    assert again.preset.read_text() == whole.preset.read_text()
    assert not (again.folder / "trials").exists()


def test_poor_trials_are_pruned_and_the_best_is_not_worse_than_the_default(whole):
    cut = [row for row in whole.trials if row["state"] == "cut off"]
    assert cut
    assert all(row["epochs"] < SMALL["epochs"] for row in cut)
    assert whole.trials[0]["settings"]["rate"] == MODELS["trees"].settings["rate"]
    assert whole.score == max(row["ap"] for row in whole.trials if row["state"] == "done")
    assert whole.score >= whole.trials[0]["ap"]


def test_events_of_the_test_split_change_no_trial(data, whole, tmp_path):
    """With shuffled destinations in the test period every trial has the same settings and score."""
    store = data.store
    test = chronological_split(store).test
    dst = store.dst.clone()
    dst[test] = dst[test[torch.randperm(len(test), generator=torch.Generator().manual_seed(0))]]
    assert not torch.equal(dst, store.dst)
    shuffled = dm.Dataset.from_events(data.name, replace(store, dst=dst), data.ids, data.origin)
    assert shuffled.digest != data.digest
    found = dm.tune(shuffled, "trees", trials=6, studies=tmp_path, **SMALL)
    assert timeless(found) == timeless(whole)[:6]


def test_a_training_with_the_preset_reaches_the_score(data, whole, tmp_path):
    """The preset records where it comes from; a training as long as the trial has the same validation AP."""
    kept = read_preset_file(whole.preset)
    assert (kept.about["data"], kept.about["digest"], kept.about["trials"]) == (
        "generated",
        data.digest,
        TRIALS,
    )
    assert (kept.model, kept.about["score"]) == ("trees", whole.score)
    assert "epochs" not in kept.settings
    (run,) = dm.train(data, preset=str(whole.preset), epochs=4, patience=4, out=tmp_path)
    assert run.config["run"]["model"] == "trees"
    assert {name: run.config["model"][name] for name in whole.settings} == whole.settings
    assert whole.score in run.metrics["val_ap"].to_pylist()
    if whole.best["trial"] > 1:
        assert str(whole.preset) in run.config["chosen"]["preset"]
    with raises("preset-of-other-model", ConfigError):
        dm.train(data, "graphmixer", preset=str(whole.preset), out=tmp_path)


def test_ctrl_c_ends_a_search_with_its_finished_trials(data, whole, tmp_path):
    def stop(entry):
        if entry["trial"] == "trial 3":
            raise KeyboardInterrupt

    found = dm.tune(data, "trees", trials=TRIALS, studies=tmp_path, progress=stop, **SMALL)
    assert found.ended == "stopped"
    assert timeless(found) == timeless(whole)[:2]
    assert read_preset_file(found.preset).about["trials"] == 2


def test_the_command_prints_the_result(data, whole, tmp_path, monkeypatch, capsys):
    save_dataset(data, tmp_path)
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path))
    words = ["tune", "generated", "--model", "trees", "--studies", str(whole.folder.parent), *FIXED]
    code, out, _ = invoke(monkeypatch, capsys, *words, "--trials", str(TRIALS), "--json")
    assert code == 0
    assert json.loads(out)["page"] == str(whole.page)
    assert json.loads(out)["best"]["ap"] == whole.score
    code, out, _ = invoke(
        monkeypatch, capsys, *words, "--resume", "--out", str(tmp_path / "mine.toml"), "--trials", "9"
    )
    assert code == 0
    assert f"next: dygmamba train generated --preset {tmp_path / 'mine.toml'}" in out
    assert "what mattered" not in out or "%" in out
    assert (
        f"<code>dygmamba train generated --preset {tmp_path / 'mine.toml'}</code>" in whole.page.read_text()
    )
    assert (tmp_path / "mine.toml").read_text() == whole.preset.read_text()


def test_the_page_shows_every_trial_and_how_to_train(data, whole):
    """Each trial is a row and, if it has a score, a point in the chart of every setting; the page needs no network."""
    page = whole.page.read_text()
    assert re.search("<code>dygmamba(.train.*preset=| train .*--preset )", page)
    assert "<script" not in page
    assert len(page) < 200_000
    sheet = build_tuning_document(TuningRequest(data, "trees", torch.device("cpu"), fixed=SMALL), whole)
    found, course, against, table = sheet.sections
    assert found.command == f"dygmamba.train('generated', preset='{whole.preset}')"
    assert [row[0].text for row in found.tables[0].rows] == list(whole.settings)
    assert {chart.x for chart in against.charts} == set(whole.settings)
    for chart in (*course.charts, *against.charts):
        drawn = len(chart.series["finished"]) + len(chart.series["cut off"])
        assert drawn == sum(row["ap"] is not None for row in whole.trials) == TRIALS
        assert chart.series["chosen"][0][1] == 100 * whole.score
    best = [height for _, height in course.charts[0].series["best so far"]]
    assert best == sorted(best)
    assert best[-1] == 100 * whole.score
    assert sorted(int(row[0].text) for row in table.tables[0].rows) == list(range(1, TRIALS + 1))
    assert table.tables[0].rows[0][0].text == str(whole.best["trial"])


def test_a_page_of_odd_trials(data, whole):
    """Refused trials, an outlier, values that are text, and names that look like markup are shown as text."""
    evil = "<script>alert(1)</script>"
    odd = [
        {**row, "settings": row["settings"] | {"pool": (evil, "mean")[row["trial"] % 2]}}
        for row in whole.trials
    ]
    odd[1] |= {"ap": None, "state": "cut off", "why": evil}
    odd[2] |= {"ap": 0.01, "state": "done"}
    found = replace(whole, trials=odd, best=max(odd[3:], key=lambda row: row["ap"]), importances={})
    sheet = build_tuning_document(TuningRequest(data, "trees", torch.device("cpu")), found)
    (words,) = [chart for chart in sheet.sections[2].charts if "pool" in chart.title]
    assert words.x == f"pool: 0 {evil}, 1 mean"
    assert "far below the others" in words.note
    assert min(height for line in words.series.values() for _, height in line) > 1.0
    text = render_document(sheet)
    assert "refused" in text
    assert evil not in text


def test_the_page_fits_a_phone_and_a_desktop(whole, tmp_path):
    browser = find_browser(tmp_path / "profile")
    measured = tmp_path / "measured.html"
    frames = [
        f"<iframe src='{whole.page.as_uri()}' width={width} height=800></iframe>" for width in (400, 1200)
    ]
    measured.write_text("".join(frames) + MEASURE)
    dom, console = browser.dom(measured, "--allow-file-access-from-files")
    assert console == []
    assert 'data-told="400 1200"' in dom


def test_a_first_trial_that_diverges_is_kept_and_one_that_is_refused_is_not(data, tmp_path, monkeypatch):
    """The search goes on with other settings; wrong settings or data end it, and the same call starts it again."""
    calls, start = [], tuning.start_link_run

    def fail_first(*given):
        calls.append(given)
        if len(calls) == 1:
            raise error
        return start(*given)

    monkeypatch.setattr(tuning, "start_link_run", fail_first)
    error = ScoreError("the loss became nan", code="diverged")
    found = dm.tune(data, "trees", trials=2, studies=tmp_path / "diverged", **SMALL)
    assert [(row["why"], row["ap"] is None) for row in found.trials] == [(str(error), True), (None, False)]
    assert found.best["trial"] == 2
    calls.clear()
    with raises("no-trained-trial", ScoreError):
        dm.tune(data, "trees", trials=1, studies=tmp_path / "none", **SMALL)
    calls.clear()
    error = EventError("too few events", code="empty-split")
    with raises("empty-split", EventError):
        dm.tune(data, "trees", trials=1, studies=tmp_path / "refused", **SMALL)
    assert (
        timeless(dm.tune(data, "trees", trials=1, studies=tmp_path / "refused", **SMALL))[0]["state"]
        == "done"
    )


def test_hours_without_a_trial_name_the_study_to_continue(data, tmp_path):
    with raises("interrupted") as caught:
        dm.tune(data, "trees", hours=1e-9, studies=tmp_path)
    assert "tune-generated-trees" in str(caught.value)


def test_a_study_rejects_other_requests_and_other_processes(data, whole, tmp_path, monkeypatch):
    studies = whole.folder.parent
    with raises("different-study"):
        dm.tune(data, "trees", trials=1, studies=studies, seed=1, **SMALL)
    lock = acquire_lock(whole.folder / ".lock")
    with pytest.raises(LockedError):
        dm.tune(data, "trees", trials=1, studies=studies, **SMALL)
    lock.release()
    monkeypatch.setitem(sys.modules, "optuna", None)
    with raises("package-missing") as caught:
        dm.tune(data, "trees", trials=1, studies=tmp_path, **SMALL)
    assert "pip install 'dyg-mamba[tune]'" in str(caught.value)


@pytest.mark.parametrize("model", [name for name, spec in MODELS.items() if spec.trainable])
def test_the_search_space_of_every_model_is_valid_and_contains_the_default(model):
    """Settings that change the validation queries are not searched; a model's own ranges replace the general ones."""
    space = build_search_space(model, {}, {})
    assert not {"train_negatives", "batch", "visible", "epochs"} & set(space.parts)
    for name, part in space.parts.items():
        default = space.default[name]
        if isinstance(part, CategoricalDistribution):
            assert default in part.choices
        else:
            assert part.low <= default <= part.high
            assert not part.log or part.low > 0
    own = load_presets("spaces.toml")["model"].get(model, {})
    assert set(own.get("setting", {})) <= set(space.parts)
    assert not set(own.get("leave", ())) & set(space.parts)
    assert "lr" not in build_search_space(model, {}, {"lr": 1e-3}).parts
