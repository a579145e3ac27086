"""The simulation of several GPUs: it reproduces its calibration, and its limits hold for any cluster."""

import pytest

from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine.length_buckets import BucketCosts
from dygmamba.lab.benchmarks import scaling
from dygmamba.lab.benchmarks.scaling import BATCH, GPUS, Cluster, ModelCost, estimate
from streams import split_stream

FREE = {"start": 0.0, "hop": 0.0, "inside": 1e30, "between": 1e30}
COST = ModelCost(step=0.751 / 172, gradients=3.2e6, index=116.0)


@pytest.fixture(scope="module")
def stream():
    return split_stream(generate_stream(GeneratorConfig(nodes=40, events=1_000)))


def test_one_gpu_takes_the_measured_time():
    """172 steps of 200 events take 0.751 s, without an all-reduce."""
    found = estimate(Cluster(), COST, events=int(172 * BATCH / scaling.TRAIN_SHARE), batch=BATCH, gpus=1)
    assert found.steps == 172
    assert found.seconds == pytest.approx(0.751)
    assert found.summed == 0


def test_without_overhead_the_speed_up_is_the_number_of_gpus():
    """Without launch cost and communication, n GPUs take an n-th of the time."""
    free = Cluster(costs=BucketCosts(issue=0, narrow=0), **FREE)
    alone = estimate(free, COST, 10**6, 6_400, 1)
    for gpus in GPUS:
        assert alone.seconds / estimate(free, COST, 10**6, 6_400, gpus).seconds == pytest.approx(gpus)


def test_launch_cost_and_memory_updates_limit_the_speed_up():
    """With 200 events per step, launching limits the gain of many GPUs; with a node memory, its updates do."""
    alone = estimate(Cluster(), COST, 10**6, BATCH, 1)
    most = (alone.issued + alone.computed) / alone.issued
    gains = [alone.seconds / estimate(Cluster(), COST, 10**6, BATCH, gpus).seconds for gpus in GPUS]
    assert max(gains) < most
    many = estimate(Cluster(), COST, 10**6, BATCH, 64)
    assert many.issued > max(many.computed, many.summed)
    with_memory = ModelCost(COST.step, COST.gradients, COST.index, memory_share=0.2)
    alone, many = (estimate(Cluster(), with_memory, 10**6, 200 * gpus, gpus) for gpus in (1, 64))
    assert alone.seconds / many.seconds < 1 / 0.2 * 1.5


def test_a_stream_that_does_not_fit_has_no_time():
    """A billion events are too many for one GPU, and the note says so; an event costs every GPU the same."""
    rows = [row for row in scaling.build_rows(Cluster(), COST, "m") if "1G events" in row.case]
    assert rows[0].seconds is None
    assert "GB per GPU" in rows[0].note
    small = [
        estimate(Cluster(), ModelCost(0, 0, index=1.0, plan=0.0), 100, BATCH, gpus).memory for gpus in (1, 64)
    ]
    assert small == [100, 100]


def test_bytes_are_those_of_the_model_and_the_index(stream):
    """Gradients need four bytes per trained weight; an index lists an event under both nodes: more than 32 bytes."""
    cost = scaling.measure_model_cost(stream, "dyg-mamba")
    weights = scaling.build_trainer("dyg-mamba", stream, {}).scorer.parameters()
    assert cost.gradients == 4 * sum(weight.numel() for weight in weights if weight.requires_grad)
    assert cost.index > 32
    assert cost.state == cost.memory_share == 0


def test_the_stale_share_equals_a_count_in_a_loop(stream):
    """For every batch size; in batches of one event it is zero."""
    src, dst = (column[stream.split.train].tolist() for column in (stream.store.src, stream.store.dst))
    for batch in (1, 7, 100):
        late = 0
        for start in range(0, len(src), batch):
            seen: set[int] = set()
            for ends in zip(src[start : start + batch], dst[start : start + batch], strict=True):
                late += not seen.isdisjoint(ends)
                seen.update(ends)
        assert scaling.measure_stale_share(stream, batch) == pytest.approx(late / len(src))
    assert scaling.measure_stale_share(stream, 1) == 0


def test_scaling_writes_table_and_chart(stream, monkeypatch, tmp_path):
    """A line per stream and batch, and an SVG file."""
    monkeypatch.setattr(scaling, "open_benchmark_stream", lambda device: ("toy", stream))
    monkeypatch.setattr(scaling, "measure_model_cost", lambda stream, model: COST)
    table, picture = scaling.write(scaling.run("cpu"), tmp_path)
    assert len(table.read_text().splitlines()) == 2 + 2 * 2 * len(scaling.STREAMS)
    assert picture.read_text().startswith("<svg")
