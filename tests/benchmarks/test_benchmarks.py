"""Every benchmark at a tiny size: it checks before it times, and prints its rows."""

import json
import os
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    candidates,
    epoch,
    harness,
    length,
    sampling,
    scan,
    serve,
    serve_process,
    serve_size,
    size,
    size_stages,
    step,
)
from benchmarks.__main__ import main
from benchmarks.harness import BenchmarkRow, WrongResultError
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.stream import Stream
from dygmamba.live.live_run import LiveRun
from dygmamba.ops.conv import cpu as conv_cpu
from dygmamba.ops.dispatch import use_reference
from dygmamba.ops.scan import cpu as scan_cpu
from dygmamba.runs.predictor import Predictor
from live_server import running
from torture_cases import SECONDS

TOY = {"length": 6, "width": 4, "states": 2, "blocks": 1, "out": 8, "time_dim": 4}
MODULES = {"scan": scan, "step": step, "epoch": epoch, "length": length, "candidates": candidates}
SIZES = {
    sampling: {"QUERIES": 40, "LENGTH": 16, "LARGE_EVENTS": 2_000, "LARGE_NODES": 100},
    step: {"SETTINGS": TOY, "BATCH": 20, "REFERENCE_BATCH": {"cpu": 5}, "REPEATS": 1, "MATMUL_SIDE": 64},
    epoch: {
        "BATCH": 20,
        "STEPS": 2,
        "REPEATS": 1,
        "PAIRS": 20,
        "CASES": {"cpu": (epoch.EpochCase("dyg-mamba", 6),)},
    },
    length: {
        "NODES": 8,
        "BATCH": {"cpu": 2},
        "LENGTHS": {"cpu": (8, 16)},
        "CHECK_LENGTH": 8,
        "REPEATS": 1,
        "MODELS": {"dygformer": {"patch": 1, "width": 4, "out": 8, "time_dim": 4}, "dyg-mamba": TOY},
    },
    candidates: {
        "MODELS": {"dyg-mamba": TOY},
        "COUNTS": {"cpu": (3, 9)},
        "EVENTS": {"cpu": 4},
        "PAIRS": 20,
        "MAX_MOVED_RANKS": 0.5,
    },
    scan: {"SIZE": (2, 16, 8, 4), "SMALL": (2, 9, 8, 4)},
    serve: {"EVENTS": 200, "CLIENTS": 2, "REQUESTS": {1: 6, 100: 2}, "WARMUP": 1, "CHECKED_PAIRS": 20},
    serve_size: {
        "FIRST_APPENDS": 3,
        "APPENDS": 4,
        "SCORES": 3,
        "CHECKED_PAIRS": 20,
        "SETTINGS": {"epochs": 1, "rounds": 2},
    },
}


@pytest.fixture(scope="module")
def toy():
    store = generate_stream(GeneratorConfig(seed=2, nodes=40, events=1_500))
    return Stream(store, chronological_split(store), torch.device("cpu"))


@contextmanager
def start_in_thread(run, state, device, batch_pairs):
    """A server of the benchmark in a thread of the tests."""
    live = LiveRun(serve_process.open_predictor(run, device), state, late=serve_process.MAX_LATE)
    with running(lambda: live, batch_pairs=batch_pairs) as url:
        yield serve_process.RunningServer(url, os.getpid())


@pytest.fixture(autouse=True)
def tiny_sizes(toy, monkeypatch):
    for module in (step, epoch, candidates):
        monkeypatch.setattr(module, "open_benchmark_stream", lambda device: ("toy", toy))
    for module in (serve, serve_size):
        monkeypatch.setattr(module, "start_server", start_in_thread)
    for module, sizes in SIZES.items():
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("name", ["sampling", *(name for name in MODULES if SECONDS or name != "scan")])
def test_every_benchmark_prints_its_rows(capsys, name):
    """One JSON object whose rows have every column; progress goes to stderr. The scan compiles every kernel."""
    main([name, "--json"])
    out, err = capsys.readouterr()
    found = json.loads(out, parse_constant=pytest.fail)  # NaN is not valid JSON
    assert (found["bench"], found["device"]) == (name, "cpu")
    assert found["rows"]
    for row in found["rows"]:
        assert set(row) == {field.name for field in fields(BenchmarkRow)}
        assert row["seconds"] > 0
        assert row["anchor_seconds"] is None  # anchors apply to one kind of GPU only
    assert any(row["ratio"] for row in found["rows"])
    assert err


@pytest.mark.parametrize("name", MODULES)
def test_a_wrong_kernel_is_not_timed(monkeypatch, name):
    """A kernel that is off by one percent stops every benchmark before its first measurement."""
    right, broken = scan_cpu.forward, conv_cpu.forward

    def off(*args):
        y, *rest = right(*args)
        return 1.01 * y, *rest

    monkeypatch.setattr(scan_cpu, "forward", off)
    monkeypatch.setattr(conv_cpu, "forward", lambda *args: 1.01 * broken(*args))
    module = MODULES[name]
    monkeypatch.setattr(
        module, "measure_median_seconds", lambda *args, **kwargs: pytest.fail("timed a wrong result")
    )
    with pytest.raises(WrongResultError):
        module.run("cpu")


def test_the_reference_gives_the_same_scores(monkeypatch, toy):
    """Inside `use_reference` no kernel is called, and the scores of a model are the same."""
    trainer = harness.build_trainer("dyg-mamba", toy, TOY, batch=20)
    fast = harness.score_pairs(trainer, 20)
    monkeypatch.setattr(scan_cpu, "forward", pytest.fail)
    monkeypatch.setattr(conv_cpu, "forward", pytest.fail)
    with use_reference():
        torch.testing.assert_close(harness.score_pairs(trainer, 20), fast)


def test_operations_are_those_that_torch_counts(toy):
    """Matrix products of a whole step, as `FlopCounterMode` counts them."""
    trainer = harness.build_trainer("dyg-mamba", toy, TOY, batch=20)
    with step.OperationCounter() as ours:
        harness.make_last_step(trainer)()
    with FlopCounterMode(display=False) as theirs:
        harness.make_last_step(trainer)()
    assert ours.total == theirs.get_total_flops() > 0


def test_a_series_ends_when_memory_runs_out(monkeypatch):
    """The last row of the model says so, and the other model is still measured."""
    measure = length.measure_length

    def run_out_of_memory(stream, model, tokens, case):
        if model == "dygformer" and tokens == 16:
            raise torch.OutOfMemoryError
        return measure(stream, model, tokens, case)

    monkeypatch.setattr(length, "measure_length", run_out_of_memory)
    rows = length.run("cpu")
    assert [row.case.partition(",")[0] for row in rows] == [
        *("dygformer L=8", "dygformer L=16"),
        *("dyg-mamba L=8", "dyg-mamba L=16"),
    ]
    assert rows[1].seconds is None
    assert "out of memory" in rows[1].note
    assert (rows[2].ratio is None, rows[3].ratio, rows[3].growth is None) == (False, None, False)


def test_size_is_measured_stage_by_stage(tmp_path, monkeypatch):
    """The stages run in one folder and leave no files; each lap has a row."""

    def stage(command, **_):
        name, folder, events = command[-3:]
        laps = size_stages.STAGES[name](Path(folder), int(events))
        return SimpleNamespace(stdout=json.dumps({"laps": laps, "peak": 2e9, "own": 1e9}) + "\n")

    monkeypatch.setattr(size.subprocess, "run", stage)
    monkeypatch.setattr(size_stages, "STEPS", 1)
    monkeypatch.setattr(size, "MAX_TRAINED_EVENTS", 2_000)
    rows = size.run("cpu", (2_000, 4_000), tmp_path)
    assert not list(tmp_path.iterdir())
    assert [row.case.partition(",")[0] for row in rows if "2,000" in row.case] == list(size.LAPS)
    assert len(rows) == 2 * len(size.LAPS) - 2
    assert all(row.growth for row in rows if row.case == "import, 4,000 events")


def test_serve_is_checked_and_measured(monkeypatch):
    """Scores over HTTP are those of the run; events, latencies and batches have a row each; wrong scores have none."""
    store = generate_stream(GeneratorConfig(seed=2, nodes=40, events=600))
    data = Dataset.from_events("toy", store, NodeIds.identity(store.num_nodes))
    models = {"trees": {"epochs": 1}, "dyg-mamba": TOY}
    monkeypatch.setattr(serve, "open_stream", lambda: data)
    monkeypatch.setattr(serve, "MODELS", models)
    rows = serve.run("cpu")
    cases = [row.case.partition(",")[0] for row in rows]
    parts = ["append 100 events", "score 1 pair", "score 100 pairs", "score 1 pair"]
    assert cases == [f"{model}: {part}" for model in models for part in parts]
    assert all(row.seconds > 0 for row in rows)
    assert rows[-1].ratio > 0
    assert "events/s acknowledged" in rows[0].note
    monkeypatch.setattr(Predictor, "with_events", lambda self, events: self)
    with pytest.raises(WrongResultError):
        serve.run("cpu")


def test_serve_measures_a_stream_of_any_size(monkeypatch, tmp_path):
    """A restart gives the same scores, and is refused if it does not."""
    monkeypatch.setattr("dygmamba.live.replica.SHARED_EVENTS", 0)

    def stage(command, **_):
        name, *paths = command[-3:]
        return SimpleNamespace(stdout=json.dumps(serve_size.STAGES[name](*map(Path, paths))) + "\n")

    monkeypatch.setattr(serve_size.subprocess, "run", stage)
    rows = serve.run("cpu", events=2_000, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    assert all(row.case.endswith(", 2,000 events") and row.seconds > 0 for row in rows)
    assert any(row.case.startswith("append 1 event, durable") for row in rows)
    right = serve_size.reopen
    monkeypatch.setitem(serve_size.STAGES, "reopen", lambda *given: right(*given) | {"scores": [0.5]})
    with pytest.raises(WrongResultError):
        serve.run("cpu", events=2_000, folder=tmp_path)
