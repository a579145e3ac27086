"""A backtest: each period is evaluated by models that know earlier events only, and is continued where it stopped."""

import json
import shutil
from itertools import pairwise

import pytest
import torch

import dygmamba as dm
from commands import invoke
from dygmamba.core.errors import FileError, Interrupted
from dygmamba.engine.fit import Trainer
from dygmamba.runs import backtest, backtest_periods, baselines
from dygmamba.runs.backtest_periods import Period, TrainingSpan, list_periods, slice_dataset
from raising import raises

SETTINGS = {"epochs": 1, "rounds": 3, "least": 5, "scales": 2, "neighbors": 0, "transitions": 0}


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Rank few events of a period, and evaluate few rules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backtest_periods, "MAX_RANKED_EVENTS", 5)
        patch.setattr(baselines, "BASELINES", ("pair-recency", "source-recency"))
        yield


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=40, events=700, communities=4, change_at=0.6)


@pytest.fixture(scope="module")
def start(data):
    return float(data.store.time[350])


@pytest.fixture(scope="module")
def whole(data, start, tmp_path_factory):
    """All variants over the second half of the stream."""
    out = tmp_path_factory.mktemp("backtest")
    return dm.backtest(data, "trees", every="12h", start=start, out=out, **SETTINGS)


def find_row(data, time):
    """The first event at a time or later."""
    return int(torch.searchsorted(data.store.time, torch.tensor(time, dtype=torch.float64)))


def figures(result, periods=None):
    """The rows without the duration, of the first periods."""
    return [
        {name: value for name, value in row.items() if name != "seconds"}
        for row in result.rows
        if periods is None or row["period"] < periods
    ]


def test_the_variants_learn_at_their_origins(data, start, whole):
    """Frozen once, warm and refit at every origin; in the first period they are one run; every event is evaluated."""
    frozen, warm, refit = (whole.list_variant_rows(name) for name in ("frozen", "warm", "refit"))
    assert len(refit) > 2
    assert {row["trained_at"] for row in frozen} == {start}
    for rows in (warm, refit):
        assert [row["trained_at"] for row in rows] == [row["begin"] for row in rows]
    assert frozen[0]["ap"] == warm[0]["ap"] == refit[0]["ap"]
    assert len({rows[-1]["ap"] for rows in (frozen, warm, refit)}) == 3
    assert sum(row["events"] for row in frozen) == 350
    assert all(row[f"{name}_se"] >= 0 for row in refit[:2] for name in ("ap", "auc", "log_loss", "mrr"))
    assert "source-recency" not in {row["model"] for row in whole.rows}  # it cannot tell pairs apart


def test_a_refitted_period_is_the_test_of_a_training(data, whole, tmp_path):
    """With the same events, split and seed, AP and AUC of a period are those that `train` reports for its test."""
    row = whole.list_variant_rows("refit")[1]
    first, last = (find_row(data, row[side]) for side in ("begin", "end"))
    span = TrainingSpan.before(data.store, Period(1, row["begin"], row["end"], first, last), None)
    (run,) = dm.train(
        slice_dataset(data, 0, last),
        "trees",
        split=span.rule.numbers,
        protocol="time",
        out=tmp_path,
        **SETTINGS,
    )
    (test,) = (
        one for one in run.results.to_pylist() if (one["split"], one["setting"]) == ("test", "transductive")
    )
    assert (row["ap"], row["auc"]) == (test["ap"], test["auc"])


def test_later_events_change_no_period(data, start, whole, tmp_path):
    """For all periods: the figures are functions of the events until their end."""
    end = whole.list_variant_rows("refit")[1]["end"]
    last = find_row(data, end)
    shorter = dm.backtest(
        slice_dataset(data, 0, last), "trees", every="12h", start=start, out=tmp_path, **SETTINGS
    )
    assert figures(shorter) == figures(whole, periods=2)


def test_a_stopped_backtest_continues_with_the_same_figures(data, start, whole, tmp_path, monkeypatch):
    """Whether it was stopped in a validation or between a training and its evaluation; what is done is kept."""
    calls = {"validate": 0, "evaluate": 0}

    def stop_at(name, number, function):
        def wrapped(*values, **options):
            calls[name] += 1
            if calls[name] == number:
                raise KeyboardInterrupt
            return function(*values, **options)

        return wrapped

    def run():
        return dm.backtest(data, "trees", every="12h", start=start, out=tmp_path, **SETTINGS)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "validate", stop_at("validate", 2, Trainer.validate))
        with pytest.raises(Interrupted, match="the same call continues"):
            run()
    done = json.loads((tmp_path / "backtest.json").read_text())
    assert {row["period"] for row in done["rows"]} == {0}
    assert set(done["runs"]) == {"frozen 0", "warm 1"}
    with monkeypatch.context() as patch:
        patch.setattr(backtest, "evaluate_queries", stop_at("evaluate", 3, backtest.evaluate_queries))
        with pytest.raises(KeyboardInterrupt):
            run()
    assert figures(run()) == figures(whole)
    assert not (tmp_path / "runs").exists()
    with raises("other-backtest"):
        dm.backtest(data, "trees", every="1d", start=start, out=tmp_path, **SETTINGS)


@pytest.fixture(scope="module")
def stopped(data, start, tmp_path_factory):
    """The folder of a backtest that was stopped after its first period."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backtest, "open_warm_start", None)
        with pytest.raises(TypeError):  # as if the process ended here
            dm.backtest(data, "trees", every="12h", start=start, out=folder, variants=("warm",), **SETTINGS)
    return folder


def edit_rows(rows, **change):
    return [row | change for row in rows]


def drop_key(rows, key):
    return [{name: value for name, value in row.items() if name != key} for row in rows]


@pytest.mark.parametrize(
    ("code", "edit"),
    [
        ("path-outside-folder", lambda content, place: {"runs": {"frozen 0": str(place)}}),
        ("path-outside-folder", lambda content, place: {"runs": {"frozen 0": f"../{place.name}"}}),
        ("path-outside-folder", lambda content, place: {"runs": {"frozen 0": 3}}),
        ("damaged-backtest", lambda content, place: {"runs": {}}),
        ("damaged-backtest", lambda content, place: {"rows": [3]}),
        ("damaged-backtest", lambda content, place: {"rows": drop_key(content["rows"], "period")}),
        ("damaged-backtest", lambda content, place: {"rows": drop_key(content["rows"], "ap_se")}),
        ("damaged-backtest", lambda content, place: {"rows": edit_rows(content["rows"], period=4)}),
        ("damaged-backtest", lambda content, place: {"rows": edit_rows(content["rows"], ap="high")}),
    ],
)
def test_an_edited_backtest_is_refused(data, start, stopped, tmp_path, code, edit):
    """With one sentence, whatever was edited; what a path outside of the folder leads to stays where it is."""
    folder, place = tmp_path / "backtest", tmp_path / "place"
    shutil.copytree(stopped, folder)
    (place / "inner").mkdir(parents=True)
    content = json.loads((folder / "backtest.json").read_text())
    (folder / "backtest.json").write_text(json.dumps(content | edit(content, place)))
    with raises(code, FileError):
        dm.backtest(data, "trees", every="12h", start=start, out=folder, variants=("warm",), **SETTINGS)
    assert (place / "inner").is_dir()


def test_nothing_is_deleted_through_a_symbolic_link(tmp_path):
    """A finished period removes runs of its own folder only."""
    folder, place = tmp_path / "backtest", tmp_path / "place"
    (place / "inner").mkdir(parents=True)
    folder.mkdir()
    (folder / "runs").symlink_to(place)
    backtest.Journal(folder, {}, runs={"frozen 0": "runs/inner"}).add_rows([], {})
    assert (place / "inner").is_dir()


def test_a_window_limits_what_is_known(data, start, whole, tmp_path):
    """A window as long as the stream changes nothing; a short one leaves fewer training events."""
    long, short = (
        dm.backtest(
            data, "trees", every="12h", window=window, start=start, out=tmp_path / name, variants=("frozen", "warm"),
            **SETTINGS,
        )
        for name, window in (("long", "100d"), ("short", "1d"))
    )  # fmt: skip
    models = ("frozen", "warm")
    assert figures(long) == [row for row in figures(whole) if row["model"] in models or row["is_rule"]]
    for model in models:
        for row, wide in zip(short.list_variant_rows(model), long.list_variant_rows(model), strict=True):
            assert row["trained_events"] < wide["trained_events"]
            assert row["events"] == wide["events"]


def test_periods_cover_the_stream(data, start):
    """Periods are adjacent, have events, and no event belongs to two; empty stretches are left out."""
    periods = list_periods(data.store, start, 1_000.0)
    assert sum(map(len, periods)) == 350
    assert all(a.last == b.first and a.end <= b.begin for a, b in pairwise(periods))
    assert all(len(period) for period in periods)


def test_the_command_reads_a_finished_backtest(data, start, whole, tmp_path, monkeypatch, capsys):
    """It prints AP by period and what it says, and the page has a chart per metric; a mistake is one sentence."""
    dm.save(data, data_dir=tmp_path)
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path))
    options = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    words = (
        "backtest",
        data.name,
        "--start",
        repr(start),
        "--model",
        "trees",
        "--out",
        str(whole.folder),
        *options,
    )
    code, out, err = invoke(monkeypatch, capsys, *words, "--every", "12h")
    assert code == 0, err
    assert "frozen" in out
    assert whole.sentences[0] in " ".join(out.split())
    page = whole.page.read_text()
    assert all(f"{name} by period" in page for name in ("Difference of AP", "AP", "AUC", "log loss", "MRR"))
    table = (whole.folder / "periods.csv").read_text().splitlines()
    assert len(table) == 1 + len(whole.rows)
