"""What an epoch would take on 1 to 64 GPUs: a simulation, calibrated on what one GPU was measured to take.

Measured: the bytes of a model's gradients and of a stream's indices, counted here; the epochs of DyG-Mamba and TGN on
one H200, and what a part of a step costs there to issue (docs/log.md, `engine/length_buckets.py`). Assumed: how long
processes take to sum, from data sheets and others' measurements (docs/scaling.md). Nothing was run on several GPUs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, log2
from pathlib import Path

import torch
from torch import Tensor

from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.engine.length_buckets import DEVICE_COSTS, BucketCosts
from dygmamba.engine.stream import Stream
from dygmamba.lab.benchmarks.harness import BenchmarkRow, build_fit, open_benchmark_stream, require
from dygmamba.report.charts import render_svg_file
from dygmamba.report.document import LineChart

GPUS = (1, 2, 4, 8, 16, 32, 64)
STREAMS = {"UCI": 60_000, "1M": 10**6, "100M": 10**8, "1G": 10**9}  # events
TRAIN_SHARE = 0.7  # of the events are trained on
PER_GPU = 200  # events of a batch that grows with the GPUs, as published for one
BATCH = 200  # of a batch that stays
UCI_STEPS = 172  # of an epoch of UCI
EPOCH_SECONDS = {"dyg-mamba": 0.751, "tgn": 0.217}  # seconds on UCI, one H200, batch 200 (docs/log.md)
MEMORY_UPDATE_SHARE = (
    0.15  # assumed: what a memory's updates are of a step of TGN; of its processor time on a CPU they are 3 %
)
COPIES = 4  # of the weights: they, their gradients, Adam's two moments


@dataclass(frozen=True, slots=True)
class Cluster:
    """GPUs, eight to a machine, and what they take to compute and to sum; in seconds, bytes and bytes a second."""

    costs: BucketCosts = DEVICE_COSTS["cuda"]
    memory: float = 141e9
    machine: int = 8
    start: float = 12e-6  # assumed: to begin a sum, and for each doubling within a machine
    hop: float = 10e-6  # assumed: for each doubling of machines
    inside: float = 300e9  # assumed: 376 to 380 GB/s between two H100 were measured, of 450 one way
    between: float = 40e9  # assumed: of 50 GB/s, a card of 400 Gb/s a GPU

    def sum_seconds(self, size: float, gpus: int) -> float:
        """An all-reduce of so many bytes: a tree's latency, a ring's bandwidth."""
        if gpus == 1:
            return 0.0
        near, far = min(gpus, self.machine), ceil(gpus / self.machine)
        waits = self.start * (1 + log2(near)) + self.hop * log2(far)
        return waits + 2 * (gpus - 1) / gpus * size / (self.inside if far == 1 else self.between)


@dataclass(frozen=True, slots=True)
class Load:
    """What a model asks of a cluster, per step, per event and per node."""

    step: float  # seconds of a step of 200 events on one GPU
    gradients: float  # bytes
    index: float  # bytes an event, on every GPU
    plan: float = (
        200.0  # bytes a training event of an epoch's questions, each GPU its share (counted in the code)
    )
    length: int = 32
    told: float = 0.0  # of a step on one GPU, what every process does for itself: updates of a memory
    state: float = 0.0  # bytes a node
    nodes: float = 0.1  # a node for so many events


@dataclass(frozen=True, slots=True)
class Estimate:
    """An epoch: what its steps take, and how much memory each GPU."""

    gpus: int
    batch: int
    steps: int
    issued: float  # of a step: seconds that no GPU can take from another
    computed: float
    summed: float
    memory: float

    @property
    def seconds(self) -> float:
        """The epoch."""
        return self.steps * (self.issued + self.computed + self.summed)

    @property
    def bound(self) -> str:
        """What most of a step is."""
        parts = {"issuing": self.issued, "computing": self.computed, "summing": self.summed}
        return max(parts, key=lambda name: parts[name])


def estimate(cluster: Cluster, load: Load, events: int, batch: int, gpus: int) -> Estimate:
    """An epoch of so many events, each step's batch shared by so many GPUs."""
    issue, entries = cluster.costs.issue, 2 * BATCH * load.length  # of the step that was measured
    unit = load.step / (issue + entries)
    pairs = max(2 * ceil(batch / gpus), cluster.costs.narrow)
    told = load.told * unit * 2 * batch * load.length
    return Estimate(
        gpus,
        batch,
        steps=ceil(TRAIN_SHARE * events / batch),
        issued=unit * issue + told,
        computed=(1 - load.told) * unit * pairs * load.length,
        summed=cluster.sum_seconds(load.gradients, gpus),
        memory=events * (load.index + load.nodes * load.state + TRAIN_SHARE * load.plan / gpus)
        + COPIES * load.gradients,
    )


def measure_load(stream: Stream, model: str) -> Load:
    """The bytes of a model's gradients and memory, and of a stream's events and both its indices."""
    fit = build_fit(model, stream, {})
    entries = [_count_bytes(list_tensors(index.entries)) for index in (stream.index, stream.training_index)]
    columns = (stream.store.src, stream.store.dst, stream.store.time)
    whole = (sum(entries) + _count_bytes(columns)) / len(stream.store)
    trained = sum(
        weight.numel() * weight.element_size() for weight in fit.scorer.parameters() if weight.requires_grad
    )
    state = _count_bytes(fit.scorer.buffers()) / stream.store.num_nodes if fit.scorer.stateful else 0.0
    return Load(
        EPOCH_SECONDS[model] / UCI_STEPS,
        trained,
        whole,
        told=MEMORY_UPDATE_SHARE if fit.scorer.stateful else 0.0,
        state=state,
    )


def list_tensors(entries: object) -> Iterable[Tensor]:
    """The tensors of a dataclass."""
    columns = (getattr(entries, name) for name in getattr(entries, "__slots__", ()))
    return [column for column in columns if isinstance(column, Tensor)]


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def measure_stale_share(stream: Stream, batch: int) -> float:
    """The share of training events that follow one of theirs in the same batch, of which a memory is not told yet."""
    ends = torch.stack([stream.store.src, stream.store.dst], dim=1)[stream.split.train]
    step = torch.arange(len(ends)).repeat_interleave(2) // batch
    key = ends.flatten() + stream.store.num_nodes * step
    order = torch.argsort(key, stable=True)
    again = torch.zeros(len(key), dtype=torch.bool)
    again[order[1:]] = (key[order[1:]] == key[order[:-1]]) & (order[1:] // 2 != order[:-1] // 2)
    return float(again.view(-1, 2).any(dim=1).float().mean())


def build_rows(cluster: Cluster, load: Load, model: str) -> list[BenchmarkRow]:
    """Epochs of every stream: the batch as published, and one that grows with the GPUs."""
    rows = []
    for name, events in STREAMS.items():
        for kind in ("200", "200 a GPU"):
            alone = estimate(cluster, load, events, BATCH, 1)
            for gpus in GPUS:
                batch = BATCH if kind == "200" else PER_GPU * gpus
                rows.append(
                    _build_row(
                        f"{model}, {name} events, batch {kind}",
                        cluster,
                        alone,
                        estimate(cluster, load, events, batch, gpus),
                    )
                )
    return rows


def _build_row(case: str, cluster: Cluster, alone: Estimate, found: Estimate) -> BenchmarkRow:
    fits = found.memory <= cluster.memory
    note = None if fits else f"{found.memory / 1e9:,.0f} GB a GPU, of {cluster.memory / 1e9:,.0f}"
    row = BenchmarkRow.of(
        f"{case}, {found.gpus} GPUs", found.seconds, alone.seconds, found.memory / 1e6, note=note
    )
    return row if fits else replace(row, seconds=None, ratio=None)


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[BenchmarkRow]:
    """The simulation held to what it was calibrated on, then its table, for a model without and one with a memory."""
    name, stream = open_benchmark_stream(device)
    say(f"counting bytes on {name}; the rest is a simulation")
    cluster, rows = Cluster(), []
    for model in ("dyg-mamba", "tgn"):
        load = measure_load(stream, model)
        one = estimate(cluster, load, STREAMS["1M"], BATCH, 1)
        require(
            abs(one.seconds / one.steps / load.step - 1) < 1e-9, f"a step of {model} takes what was measured"
        )
        bytes_of = f"{load.gradients / 1e6:.2f} MB of gradients, {load.index:.0f} bytes an event"
        say(f"{model}: {bytes_of}, {load.state:,.0f} a node")
        rows += build_rows(cluster, load, model)
    for batch in (200, 800, 3_200, 12_800):
        say(
            f"a batch of {batch:,}: {measure_stale_share(stream, batch):.0%} of the events follow another of theirs in it"
        )
    return rows


def write(rows: list[BenchmarkRow], folder: Path) -> list[Path]:
    """The table as markdown and the picture as SVG."""
    make_folder(folder)
    paths = [folder / "scaling.md", folder / "scaling.svg"]
    for path, text in zip(paths, (format_markdown(rows), render_svg_file(build_charts(rows))), strict=True):
        write_text(path, text)
    return paths


def format_markdown(rows: list[BenchmarkRow]) -> str:
    """A line per stream and batch, a column per number of GPUs: the epoch, and how often it fits into one GPU's."""
    lines = [
        "| an epoch of | " + " | ".join(f"{gpus}" for gpus in GPUS) + " |",
        "|---" * (1 + len(GPUS)) + "|",
    ]
    for case, group in groupby(rows, lambda row: row.case.rpartition(", ")[0]):
        cells = [
            "no room" if row.seconds is None else f"{_format_time(row.seconds)} ({row.ratio:.1f}x)"
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
    """How many times as fast, against the number of GPUs; the streams are alike, so one is shown."""
    lines = {}
    for case, group in groupby(rows, lambda row: row.case.rpartition(", ")[0]):
        model, stream, batch = case.split(", ")
        if stream == "1M events":
            lines[f"{model}, {batch}"] = [(float(row.case.split()[-2]), row.ratio or 0.0) for row in group]
    return [
        LineChart(
            "an epoch on several GPUs", "GPUs", "times as fast as one", lines, x_kind="log", y_kind="log"
        )
    ]
