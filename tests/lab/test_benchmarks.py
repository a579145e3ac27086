"""The benchmarks at toy sizes: they check before they time, and all print the same columns."""

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from commands import invoke
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine import executor
from dygmamba.engine.length_buckets import SHARE_CHOICES
from dygmamba.engine.stream import Stream
from dygmamba.lab.benchmarks import (
    candidates,
    epoch,
    harness,
    length,
    scan,
    serve,
    serve_process,
    serve_size,
    serve_soak,
    size,
    size_stages,
    step,
)
from dygmamba.lab.benchmarks.harness import BenchmarkRow, EpochAnchor, WrongResultError
from dygmamba.live.live_run import LiveRun
from dygmamba.ops.conv import cpu as conv_cpu
from dygmamba.ops.dispatch import use_reference
from dygmamba.ops.scan import cpu as scan_cpu
from dygmamba.report.charts import render_svg_file
from dygmamba.report.document import LineChart
from dygmamba.runs.predictor import Predictor
from live_server import running
from raising import raises
from torture_cases import SECONDS

TOY = {"length": 6, "width": 4, "states": 2, "blocks": 1, "out": 8, "time_dim": 4}
BENCHES = {"scan": scan, "step": step, "epoch": epoch, "length": length}
BENCHES |= {"candidates": candidates}
SIZES = {
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
}


@pytest.fixture(scope="module")
def toy():
    store = generate_stream(GeneratorConfig(seed=2, nodes=40, events=1_500))
    return Stream(store, chronological_split(store), torch.device("cpu"))


@pytest.fixture(autouse=True)
def toy_sizes(toy, monkeypatch):
    for module in (step, epoch, candidates):
        monkeypatch.setattr(module, "open_benchmark_stream", lambda device: ("toy", toy))
    for module, sizes in SIZES.items():
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)
    return toy


def test_operations_are_those_that_torch_counts(toy):
    """Matrix products of a whole step, as `FlopCounterMode` counts them."""
    trainer = harness.build_trainer("dyg-mamba", toy, TOY, batch=20)
    with step.OperationCounter() as ours:
        harness.make_last_step(trainer)()
    with FlopCounterMode(display=False) as theirs:
        harness.make_last_step(trainer)()
    assert ours.total == theirs.get_total_flops() > 0


def test_operations_of_a_step_in_parts_are_counted(toy, monkeypatch):
    """About as many as of the whole batch: only the padding differs."""
    whole = harness.build_trainer("dyg-mamba", toy, TOY | {"length": 40}, batch=20)
    monkeypatch.setattr(executor, "choose_shares", lambda lengths, most, costs: SHARE_CHOICES[3])
    parts = harness.build_trainer("dyg-mamba", toy, TOY | {"length": 40}, batch=20)
    assert step.count_flops(parts) == pytest.approx(step.count_flops(whole), rel=0.1)


@pytest.mark.parametrize(
    "name", [name for name in BENCHES if SECONDS or name != "scan"]
)  # compiles every kernel
def test_every_benchmark_prints_one_json_object(monkeypatch, capsys, tmp_path, name):
    """On a CPU each prints one JSON object whose rows have every column; progress goes to stderr."""
    code, out, err = invoke(monkeypatch, capsys, "bench", name, "--json", "--out", str(tmp_path / "made"))
    assert code == 0, err
    found = json.loads(out, parse_constant=pytest.fail)  # NaN is not valid JSON
    assert (found["bench"], found["device"]) == (name, "cpu")
    assert found["rows"]
    for row in found["rows"]:
        assert set(row) == {field.name for field in fields(BenchmarkRow)}
        assert row["seconds"] > 0
        assert row["anchor_seconds"] is None  # anchors apply to one kind of GPU only
    assert any(row["ratio"] for row in found["rows"])
    assert err


def test_the_table_omits_empty_columns(monkeypatch, capsys):
    """Without anchors there is no column for them; the rate relative to a matrix product is shown."""
    code, out, _ = invoke(monkeypatch, capsys, "bench", "step")
    assert code == 0
    assert "anchor" not in out
    assert all(text in out for text in ("look-up", "forward", "backward", "update", "GFLOP/s", "scaled"))


@pytest.mark.parametrize("name", BENCHES)
def test_a_wrong_kernel_is_not_timed(monkeypatch, name):
    """A kernel that is off by one percent stops every benchmark before its first measurement."""
    right, broken = scan_cpu.forward, conv_cpu.forward

    def off(*args):
        y, *rest = right(*args)
        return 1.01 * y, *rest

    monkeypatch.setattr(scan_cpu, "forward", off)
    monkeypatch.setattr(conv_cpu, "forward", lambda *args: 1.01 * broken(*args))
    module = BENCHES[name]
    monkeypatch.setattr(
        module, "measure_median_seconds", lambda *args, **kwargs: pytest.fail("timed a wrong result")
    )
    with raises("wrong-result", kind=WrongResultError):
        module.run("cpu")


def test_a_wrong_gradient_is_not_timed(monkeypatch):
    """A wrong gradient stops the benchmark of the step even if the loss is right."""
    right = conv_cpu.backward

    def off(*args):
        dx, dweight, dbias = right(*args)
        return dx, 1.01 * dweight, dbias

    monkeypatch.setattr(conv_cpu, "backward", off)
    with raises("wrong-result", kind=WrongResultError) as error:
        step.run("cpu")
    assert "gradient" in str(error.value)


def test_the_reference_gives_the_same_scores(monkeypatch, toy_sizes):
    """Inside `use_reference` no kernel is called, and the scores of a model are the same."""
    trainer = harness.build_trainer("dyg-mamba", toy_sizes, TOY, batch=20)
    fast = harness.score_pairs(trainer, 20)
    monkeypatch.setattr(scan_cpu, "forward", pytest.fail)
    monkeypatch.setattr(conv_cpu, "forward", pytest.fail)
    with use_reference():
        torch.testing.assert_close(harness.score_pairs(trainer, 20), fast)


def test_a_series_ends_when_memory_runs_out(monkeypatch):
    """The last row of the model says so, and the other model is still measured."""
    measure = length.measure_length

    def run_out_of_memory(stream, model, tokens, case):
        if model == "dygformer" and tokens == 16:
            raise torch.OutOfMemoryError
        return measure(stream, model, tokens, case)

    monkeypatch.setattr(length, "measure_length", run_out_of_memory)
    monkeypatch.setattr(length, "LENGTHS", {"cpu": (8, 16, 32)})
    rows = length.run("cpu")
    assert [row.case.split(",")[0] for row in rows] == [
        *("dygformer L=8", "dygformer L=16"),
        *("dyg-mamba L=8", "dyg-mamba L=16", "dyg-mamba L=32"),
    ]
    assert rows[1].seconds is None
    assert "out of memory" in (rows[1].note or "")
    assert rows[2].ratio is not None
    assert rows[3].ratio is None
    assert rows[3].growth is not None
    assert "out of memory" in length.format_markdown(rows)


def test_length_writes_table_and_chart(tmp_path):
    """The CSV has a line per row, and the SVG a point for each."""
    rows = [
        BenchmarkRow.from_times(f"{name} L={tokens}, batch 2", tokens / 10, peak_mb=float(tokens))
        for name in ("a", "b")
        for tokens in (64, 128)
    ]
    table, text, picture = length.write(rows, tmp_path / "new")
    assert len(table.read_text().splitlines()) == 5
    assert "| a L=64, batch 2 | 6400.00 |" in text.read_text()
    drawn = ElementTree.parse(picture).getroot()
    assert len(drawn.findall(".//{*}circle")) == 8


def test_every_history_of_the_dense_stream_is_long_enough(monkeypatch):
    """At the last events, each node has at least as many events as the longest sequence."""
    monkeypatch.setattr(length, "NODES", 64)
    stream = length.generate_dense_stream(512, "cpu")
    last = stream.store.select(stream.split.train[-32:])
    found = stream.training_index.recent(torch.cat([last.src, last.dst]), last.time.repeat(2), 511)
    assert int(found.length.min()) == 511


def test_a_curve_without_positive_points_is_not_drawn():
    """Memory that shrank has no position on a logarithmic axis."""
    drawn = ElementTree.fromstring(
        render_svg_file([LineChart("t", "x", "y", {"a": [(64.0, -1.0)]}, y_kind="log")])
    )
    assert not drawn.findall(".//{*}circle")


@pytest.mark.skipif(not SECONDS, reason="compiles for long; `make torture` runs it")
def test_an_epoch_has_a_row_per_anchor(monkeypatch, toy_sizes):
    """On the GPU and stream of the anchors, each has a row with the same seconds and its own ratio."""
    both = [EpochAnchor("dygformer", 4, by, seconds) for by, seconds in (("one", 20.0), ("two", 8.0))]
    monkeypatch.setattr(epoch, "EPOCH_ANCHORS", (*both, EpochAnchor("dygformer", 32, "one", 5.0)))
    monkeypatch.setattr(epoch, "anchors_apply", lambda device: True)
    monkeypatch.setattr(epoch, "REPEATS", 1)
    found = epoch.measure_on_gpu(harness.UCI, toy_sizes, epoch.EpochCase("dygformer", 4))
    assert [row.anchor_seconds for row in found] == [20.0, 8.0]
    assert len({row.seconds for row in found}) == 1
    assert all(row.anchor_ratio == row.anchor_seconds / row.seconds for row in found)


def test_a_model_with_memory_is_checked_after_observing_events(monkeypatch, toy_sizes):
    """Its scores are compared after the same events, and differ from those without any."""
    harness.require_same_scores("tgn", toy_sizes, {}, 20)
    seen = harness.score_pairs(harness.build_trainer("tgn", toy_sizes, {}), 20)
    monkeypatch.setattr(harness, "OBSERVED_EVENTS", 0)
    assert not torch.allclose(seen, harness.score_pairs(harness.build_trainer("tgn", toy_sizes, {}), 20))


@pytest.mark.parametrize("device", ["tpu", "cuda"])
def test_a_missing_device_is_an_error(monkeypatch, capsys, device):
    """One line on stderr and exit code 2, and nothing is measured."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = invoke(monkeypatch, capsys, "bench", "scan", "--device", device)
    assert code == 2
    assert not out
    assert err.startswith("error: --device")
    assert err.count("\n") == 1


def test_size_is_measured_stage_by_stage(tmp_path, monkeypatch):
    """The stages run in one folder and leave no files; each lap has a row, and there are a table and a chart."""
    laps = {}

    def stage(command, **_):
        name, folder, events = command[-3:]
        laps[name] = size_stages.STAGES[name](Path(folder), int(events))
        return SimpleNamespace(stdout=json.dumps({"laps": laps[name], "peak": 2e9, "own": 1e9}) + "\n")

    monkeypatch.setattr(size.subprocess, "run", stage)
    monkeypatch.setattr(size_stages, "STEPS", 1)
    monkeypatch.setattr(size, "MAX_TRAINED_EVENTS", 2_000)
    rows = size.run("cpu", lambda text: None, (2_000, 4_000), tmp_path)
    assert not list(tmp_path.iterdir())
    assert [row.case.partition(",")[0] for row in rows if "2,000" in row.case] == list(size.LAPS)
    assert len(rows) == 2 * len(size.LAPS) - 2
    assert all(row.growth for row in rows if row.case == "import, 4,000 events")
    texts = {path.suffix: path.read_text() for path in size.write(rows, tmp_path / "made")}
    assert "| import | 4,000 |" in texts[".md"]
    assert len({line.count("|") for line in texts[".md"].splitlines()}) == 1
    assert "peak of resident memory" in texts[".svg"]


def test_invalid_sizes_are_rejected(monkeypatch, capsys):
    """One line on stderr and exit code 2, before anything is written."""
    for sizes in ("many", "10", "1e12"):
        code, _, err = invoke(monkeypatch, capsys, "bench", "size", "--sizes", sizes)
        assert code == 2
        assert "--sizes" in err
        assert sizes in err
        assert err.count("\n") == 1


@contextmanager
def start_in_thread(run, state, device, batch_pairs):
    """A server of the benchmark in a thread of the tests."""
    live = LiveRun(serve_process.open_predictor(run, device), state, late=serve_process.MAX_LATE)
    with running(lambda: live, batch_pairs=batch_pairs) as url:
        yield serve_process.RunningServer(url, os.getpid())


def test_serve_is_checked_and_measured(monkeypatch, tmp_path):
    """Scores over HTTP are those of the run; events, latencies and batches have a row each; wrong scores have none."""
    store = generate_stream(GeneratorConfig(seed=2, nodes=40, events=600))
    data = Dataset.from_events("toy", store, NodeIds.identity(store.num_nodes))
    sizes = {"EVENTS": 200, "CLIENTS": 2, "REQUESTS": {1: 6, 100: 2}, "WARMUP": 1, "CHECKED_PAIRS": 20}
    models = {"trees": {"epochs": 1}, "dyg-mamba": TOY}
    for name, value in (sizes | {"open_stream": lambda: data, "MODELS": models}).items():
        monkeypatch.setattr(serve, name, value)
    monkeypatch.setattr(serve, "start_server", start_in_thread)
    rows = serve.run("cpu")
    cases = [row.case.partition(",")[0] for row in rows]
    parts = ["append 100 events", "score 1 pair", "score 100 pairs", "score 1 pair"]
    assert cases == [f"{model}: {part}" for model in models for part in parts]
    assert all(row.seconds > 0 for row in rows)
    assert rows[-1].ratio > 0
    assert "events/s acknowledged" in rows[0].note
    monkeypatch.setattr(Predictor, "with_events", lambda self, events: self)
    with raises("wrong-result", kind=WrongResultError):
        serve.run("cpu")


@pytest.fixture
def small_serve(monkeypatch):
    """The benchmark of a stream of a given size: small numbers, stages in this process, mapped states."""
    sizes = {
        "FIRST_APPENDS": 3,
        "APPENDS": 4,
        "SCORES": 3,
        "CHECKED_PAIRS": 20,
        "start_server": start_in_thread,
    }
    for name, value in (sizes | {"SETTINGS": {"epochs": 1, "rounds": 2}}).items():
        monkeypatch.setattr(serve_size, name, value)
    for module in ("live_run", "state"):
        monkeypatch.setattr(f"dygmamba.live.{module}.SHARED_EVENTS", 0)

    def stage(command, **_):
        name, *paths = command[-3:]
        return SimpleNamespace(stdout=json.dumps(serve_size.STAGES[name](*map(Path, paths))) + "\n")

    monkeypatch.setattr(serve_size.subprocess, "run", stage)


def test_serve_measures_a_stream_of_any_size(small_serve, monkeypatch, tmp_path):
    """A restart gives the same scores, and is refused if it does not; sizes per event add up to the whole."""
    rows = serve.run("cpu", events=2_000, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    cases = [row.case for row in rows]
    assert all(case.endswith(", 2,000 events") for case in cases)
    assert any(case.startswith("append 1 event, durable") for case in cases)
    assert all(row.seconds > 0 for row in rows)
    sizes = rows[0].note.split(";")[1]
    total, *parts = [float(part.replace(",", "")) for part in re.findall(r"\d[\d,]*\b", sizes)]
    assert total == pytest.approx(sum(parts), abs=len(parts))
    right = serve_size.reopen
    monkeypatch.setitem(serve_size.STAGES, "reopen", lambda *given: right(*given) | {"scores": [0.5]})
    with raises("wrong-result", kind=WrongResultError):
        serve.run("cpu", events=2_000, folder=tmp_path)


def test_soak_bounds_the_memory(small_serve, monkeypatch):
    """A tenth has a sample each; growth beyond two replicas of the appended events is an error."""
    monkeypatch.setattr(serve_soak, "start_server", start_in_thread)
    monkeypatch.setattr(serve_soak, "SPARE_BYTES", 1e9)  # this process also trains
    messages = []
    rows = serve.run("cpu", messages.append, events=2_000, soak=1.0)
    assert len([text for text in messages if "appended" in text]) == serve_soak.TENTHS
    assert [row.case for row in rows] == ["append 20 events, under load", "score 10 pairs, under load"]
    samples = [serve_soak.MemorySample(k, 100 * k, 0.0, 0.0, 1e9 * k) for k in range(11)]
    assert serve_soak.fit_slope(samples) == pytest.approx(1e7)
    with raises("memory-grows"):
        serve_soak.require_bounded(samples, 1_000.0)
    serve_soak.require_bounded(samples, 1e7)


def test_options_of_serve_are_checked(monkeypatch, capsys):
    """One line on stderr and exit code 2: options of another benchmark, no number, no time."""
    for given in ("size --events 1e6", "serve --events 1e6,1e7", "serve --events few", "serve --soak soon"):
        code, _, err = invoke(monkeypatch, capsys, "bench", *given.split())
        assert code == 2, given
        assert err.count("\n") == 1
