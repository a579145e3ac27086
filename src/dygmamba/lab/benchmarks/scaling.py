"""Estimate the time of an epoch on 1 to 64 GPUs: a simulation, calibrated with measurements on one GPU.

Measured: the bytes of a model's gradients and of a stream's indices (counted here), the epochs of DyG-Mamba and TGN on
one H200, and the cost of launching a step there (`engine/length_buckets.py`). Assumed: the time of an all-reduce, from
data sheets and the measurements of others (docs/how-to/several-processes.md). Nothing was run on several GPUs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, log2
from pathlib import Path

import torch
from torch import Tensor

from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.engine.length_buckets import DEVICE_COSTS, BucketCosts
from dygmamba.engine.stream import Stream
from dygmamba.lab.benchmarks.harness import (
    BenchmarkRow,
    Log,
    build_trainer,
    ignore_message,
    open_benchmark_stream,
    require,
)
from dygmamba.report.charts import render_svg_file
from dygmamba.report.document import LineChart

GPUS = (1, 2, 4, 8, 16, 32, 64)
STREAMS = {"UCI": 60_000, "1M": 10**6, "100M": 10**8, "1G": 10**9}  # events
TRAIN_SHARE = 0.7  # of the events
PER_GPU = 200  # events per GPU of a batch that grows with the number of GPUs; the published batch size
BATCH = 200  # events of a batch of fixed size
UCI_STEPS = 172  # steps of an epoch on UCI
EPOCH_SECONDS = {"dyg-mamba": 0.751, "tgn": 0.217}  # measured on UCI, one H200, batch 200
MEMORY_UPDATE_SHARE = 0.15  # of a step of TGN; assumed (on a CPU it is 3 % of the processor time)
COPIES = 4  # the weights, their gradients and two moments of Adam


@dataclass(frozen=True, slots=True)
class Cluster:
    """GPUs in machines of eight: memory, latency and bandwidth, in bytes, seconds and bytes per second."""

    costs: BucketCosts = DEVICE_COSTS["cuda"]
    memory: float = 141e9
    machine: int = 8
    start: float = 12e-6  # assumed: to start an all-reduce, and per doubling of GPUs within a machine
    hop: float = 10e-6  # assumed: per doubling of machines
    inside: float = 300e9  # assumed: between two H100, 376 to 380 of 450 GB/s were measured
    between: float = 40e9  # assumed: of 50 GB/s, with a network card of 400 Gb/s per GPU

    def sum_seconds(self, size: float, gpus: int) -> float:
        """Return the time of an all-reduce of `size` bytes: the latency of a tree, the bandwidth of a ring."""
        if gpus == 1:
            return 0.0
        near, far = min(gpus, self.machine), ceil(gpus / self.machine)
        latency = self.start * (1 + log2(near)) + self.hop * log2(far)
        return latency + 2 * (gpus - 1) / gpus * size / (self.inside if far == 1 else self.between)


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Time and memory that a model needs per step, per event and per node."""

    step: float  # seconds of a step of 200 events on one GPU
    gradients: float  # bytes
    index: float  # bytes per event, on every GPU
    plan: float = 200.0  # bytes per training event for the queries of an epoch, divided among the GPUs
    length: int = 32
    memory_share: float = 0.0  # of a step on one GPU: memory updates, which every process repeats
    state: float = 0.0  # bytes per node
    nodes: float = 0.1  # nodes per event


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated times of a step, and memory per GPU."""

    gpus: int
    batch: int
    steps: int
    issued: float  # seconds of launching kernels and updating memory, which every GPU does in full
    computed: float  # seconds of computation, divided among the GPUs
    summed: float  # seconds of the all-reduce
    memory: float  # bytes

    @property
    def seconds(self) -> float:
        """Time of the epoch."""
        return self.steps * (self.issued + self.computed + self.summed)


def estimate(cluster: Cluster, cost: ModelCost, events: int, batch: int, gpus: int) -> Estimate:
    """Estimate an epoch over `events` events whose batches are divided among the GPUs."""
    issue, entries = cluster.costs.issue, 2 * BATCH * cost.length  # of the measured step
    unit = cost.step / (issue + entries)
    pairs = max(2 * ceil(batch / gpus), cluster.costs.narrow)
    memory_updates = cost.memory_share * unit * 2 * batch * cost.length
    return Estimate(
        gpus,
        batch,
        steps=ceil(TRAIN_SHARE * events / batch),
        issued=unit * issue + memory_updates,
        computed=(1 - cost.memory_share) * unit * pairs * cost.length,
        summed=cluster.sum_seconds(cost.gradients, gpus),
        memory=events * (cost.index + cost.nodes * cost.state + TRAIN_SHARE * cost.plan / gpus)
        + COPIES * cost.gradients,
    )


def measure_model_cost(stream: Stream, model: str) -> ModelCost:
    """Count the bytes of a model's gradients and memory, and of a stream's events and both its indices."""
    trainer = build_trainer(model, stream, {})
    entries = [_count_bytes(list_tensors(index.entries)) for index in (stream.index, stream.training_index)]
    columns = (stream.store.src, stream.store.dst, stream.store.time)
    whole = (sum(entries) + _count_bytes(columns)) / len(stream.store)
    trained = sum(
        weight.numel() * weight.element_size()
        for weight in trainer.scorer.parameters()
        if weight.requires_grad
    )
    state = (
        _count_bytes(trainer.scorer.buffers()) / stream.store.num_nodes if trainer.scorer.stateful else 0.0
    )
    return ModelCost(
        EPOCH_SECONDS[model] / UCI_STEPS,
        trained,
        whole,
        memory_share=MEMORY_UPDATE_SHARE if trainer.scorer.stateful else 0.0,
        state=state,
    )


def list_tensors(entries: object) -> Iterable[Tensor]:
    """Return the tensors of a dataclass with slots."""
    columns = (getattr(entries, name) for name in getattr(entries, "__slots__", ()))
    return [column for column in columns if isinstance(column, Tensor)]


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def measure_stale_share(stream: Stream, batch: int) -> float:
    """Return the share of training events with an earlier event of one of their nodes in the same batch.

    A node memory has not observed that earlier event yet when the later one is scored.
    """
    ends = torch.stack([stream.store.src, stream.store.dst], dim=1)[stream.split.train]
    step = torch.arange(len(ends)).repeat_interleave(2) // batch
    key = ends.flatten() + stream.store.num_nodes * step
    order = torch.argsort(key, stable=True)
    stale = torch.zeros(len(key), dtype=torch.bool)
    stale[order[1:]] = (key[order[1:]] == key[order[:-1]]) & (order[1:] // 2 != order[:-1] // 2)
    return float(stale.view(-1, 2).any(dim=1).float().mean())


def build_rows(cluster: Cluster, cost: ModelCost, model: str) -> list[BenchmarkRow]:
    """Estimate epochs of every stream, with a batch of fixed size and with one that grows with the GPUs."""
    rows = []
    for name, events in STREAMS.items():
        for kind in ("200", "200 per GPU"):
            alone = estimate(cluster, cost, events, BATCH, 1)
            for gpus in GPUS:
                batch = BATCH if kind == "200" else PER_GPU * gpus
                case = f"{model}, {name} events, batch {kind}"
                rows.append(_build_row(case, cluster, alone, estimate(cluster, cost, events, batch, gpus)))
    return rows


def _build_row(case: str, cluster: Cluster, alone: Estimate, many: Estimate) -> BenchmarkRow:
    fits = many.memory <= cluster.memory
    note = (
        None
        if fits
        else f"needs {many.memory / 1e9:,.0f} GB per GPU, {cluster.memory / 1e9:,.0f} GB are available"
    )
    row = BenchmarkRow.from_times(
        f"{case}, {many.gpus} GPUs", many.seconds, alone.seconds, many.memory / 1e6, note=note
    )
    return row if fits else replace(row, seconds=None, ratio=None)


def run(device: str, log: Log = ignore_message) -> list[BenchmarkRow]:
    """Check the simulation against its calibration, then estimate a model without and one with a node memory."""
    name, stream = open_benchmark_stream(device)
    log(f"counting bytes on {name}; the rest is a simulation")
    cluster, rows = Cluster(), []
    for model in ("dyg-mamba", "tgn"):
        cost = measure_model_cost(stream, model)
        alone = estimate(cluster, cost, STREAMS["1M"], BATCH, 1)
        require(
            abs(alone.seconds / alone.steps / cost.step - 1) < 1e-9,
            f"the simulated step of {model} takes the measured time",
        )
        sizes = f"{cost.gradients / 1e6:.2f} MB of gradients, {cost.index:.0f} bytes per event"
        log(f"{model}: {sizes}, {cost.state:,.0f} bytes per node")
        rows += build_rows(cluster, cost, model)
    for batch in (200, 800, 3_200, 12_800):
        share = measure_stale_share(stream, batch)
        log(f"batch of {batch:,}: {share:.0%} of the events follow an event of the same node in their batch")
    return rows


def write(rows: list[BenchmarkRow], folder: Path) -> list[Path]:
    """Write the table as Markdown and the chart as SVG."""
    make_folder(folder)
    paths = [folder / "scaling.md", folder / "scaling.svg"]
    for path, text in zip(paths, (format_markdown(rows), render_svg_file(build_charts(rows))), strict=True):
        write_text(path, text)
    return paths


def format_markdown(rows: list[BenchmarkRow]) -> str:
    """Format a line per stream and batch and a column per number of GPUs: time of an epoch, and speed-up."""
    lines = [
        "| epoch of | " + " | ".join(f"{gpus}" for gpus in GPUS) + " |",
        "|---" * (1 + len(GPUS)) + "|",
    ]
    for case, group in groupby(rows, lambda row: row.case.rpartition(", ")[0]):
        cells = [
            "out of memory" if row.seconds is None else f"{_format_time(row.seconds)} ({row.ratio:.1f}x)"
            for row in group
        ]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _format_time(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"


def build_charts(rows: list[BenchmarkRow]) -> list[LineChart]:
    """Plot the speed-up against the number of GPUs for one stream; the others are alike."""
    lines = {}
    for case, group in groupby(rows, lambda row: row.case.rpartition(", ")[0]):
        model, stream, batch = case.split(", ")
        if stream == "1M events":
            lines[f"{model}, {batch}"] = [(float(row.case.split()[-2]), row.ratio or 0.0) for row in group]
    return [
        LineChart(
            "speed-up of an epoch (simulation)",
            "GPUs",
            "times as fast as one GPU",
            lines,
            x_kind="log",
            y_kind="log",
        )
    ]
