"""Time and memory of one training step as histories grow: DyG-Mamba beside DyGFormer with patches of one token.

Both step on the same batch of a dense stream in which every history is full. Where a model runs out of memory its
series ends.
"""

import csv
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.engine.stream import Stream
from dygmamba.lab.benchmarks.harness import (
    BenchmarkRow,
    build_fit,
    make_last_step,
    measure_median_seconds,
    require_same_scores,
    track_device_peak,
)
from dygmamba.report.charts import render_svg_file
from dygmamba.report.document import LineChart, Point

NODES = 64
BATCH = {"cpu": 4, "cuda": 32}
LENGTHS = {"cpu": (64, 128, 256, 512), "cuda": (64, 128, 256, 512, 1024, 2048, 4096, 8192)}
MODELS: dict[str, dict[str, Any]] = {
    "dygformer": {"patch": 1},
    "dyg-mamba": {},
}  # each the next one's reference
CHECK_LENGTH, PAIRS = 256, 8  # length and number of the pairs whose scores are compared
REPEATS = 5


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[BenchmarkRow]:
    """Scores of both models checked at one length; then their series, the shortest first."""
    stream = generate_dense_stream(max(LENGTHS[device]), device)
    for model, settings in MODELS.items():
        say(f"checking {model}")
        require_same_scores(model, stream, settings | {"length": CHECK_LENGTH}, PAIRS)
    before: dict[int, BenchmarkRow] = {}
    rows: list[BenchmarkRow] = []
    for model in MODELS:
        found = measure_series(stream, model, before, say)
        before = {length: row for length, row in found.items() if row.seconds is not None}
        rows += found.values()
    return rows


def generate_dense_stream(longest: int, device: str) -> Stream:
    """Uniform random pairs of few nodes, until each has met the others `longest` times."""
    rng = torch.Generator().manual_seed(0)
    events = NODES * longest * 5 // 8  # an event is in two histories: a quarter more than the mean needs
    src = torch.randint(NODES, (events,), generator=rng)
    dst = (src + torch.randint(1, NODES, (events,), generator=rng)) % NODES
    time = torch.rand(events, generator=rng, dtype=torch.float64).cumsum(0)
    store = EventStore.of(src, dst, time, num_nodes=NODES)
    ids = torch.arange(events)
    split = Split(ids, ids[-PAIRS:], ids[-PAIRS:], torch.zeros(NODES, dtype=torch.bool))
    return Stream(store, split, torch.device(device))


def measure_series(
    stream: Stream, model: str, others: dict[int, BenchmarkRow], say: Callable[[str], None]
) -> dict[int, BenchmarkRow]:
    """One row per length until memory ends, each beside the other model's and the length before it."""
    device = stream.device.type
    rows: dict[int, BenchmarkRow] = {}
    last: BenchmarkRow | None = None
    for length in LENGTHS[device]:
        say(f"timing {model} at L={length}")
        case = f"{model} L={length}, batch {BATCH[device]}"
        try:
            row = measure_length(stream, model, length, case)
        except (torch.OutOfMemoryError, MemoryError):
            rows[length] = BenchmarkRow(
                case, None, None, None, float("nan"), note="out of memory; the series ends"
            )
            break
        row = add_reference(row, others.get(length))
        if last is not None and last.seconds and row.seconds:
            memory = row.peak_mb / last.peak_mb if last.peak_mb > 0 else None
            row = replace(row, growth=row.seconds / last.seconds, growth_mb=memory)
        rows[length] = last = row
    return rows


def measure_length(stream: Stream, model: str, length: int, case: str) -> BenchmarkRow:
    """Median time and peak memory of a training step, issued call by call."""
    device = stream.device.type
    step = make_last_step(
        build_fit(model, stream, MODELS[model] | {"length": length}, batch=BATCH[device], graphs=False)
    )
    step()
    with track_device_peak(device) as peak:
        step()
    return BenchmarkRow.of(case, measure_median_seconds(step, REPEATS, warmup=0), peak_mb=peak[0])


def add_reference(row: BenchmarkRow, other: BenchmarkRow | None) -> BenchmarkRow:
    """The row with the other model's at the same length as its reference."""
    if other is None or other.seconds is None or row.seconds is None:
        return row
    ratio = other.seconds / row.seconds
    return replace(row, reference_seconds=other.seconds, ratio=ratio, reference_mb=other.peak_mb)


def write(rows: list[BenchmarkRow], folder: Path) -> list[Path]:
    """The table as CSV and markdown, and the picture as SVG."""
    make_folder(folder)
    paths = [folder / f"length.{kind}" for kind in ("csv", "md", "svg")]
    for path, text in zip(
        paths, (format_csv(rows), format_markdown(rows), render_svg_file(build_charts(rows))), strict=True
    ):
        write_text(path, text)
    return paths


def format_csv(rows: list[BenchmarkRow]) -> str:
    """Every column of every row."""
    text = StringIO(newline="")
    writer = csv.DictWriter(text, [field.name for field in fields(BenchmarkRow)])
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def format_markdown(rows: list[BenchmarkRow]) -> str:
    """One line per model and length."""
    lines = ["| step | ms | growth | peak MB | growth |", "|---|---|---|---|---|"]
    for row in rows:
        if row.seconds is None:
            lines.append(f"| {row.case} | {row.note} | | | |")
            continue
        cells = [row.case, f"{1e3 * row.seconds:.2f}", _format_factor(row.growth), f"{row.peak_mb:.0f}"]
        lines.append("| " + " | ".join([*cells, _format_factor(row.growth_mb)]) + " |")
    return "\n".join(lines) + "\n"


def _format_factor(growth: float | None) -> str:
    return "" if growth is None else f"{growth:.2f}x"


def build_charts(rows: list[BenchmarkRow]) -> list[LineChart]:
    """Time and memory against length, a line per model."""
    timed = [(row, *row.case.partition(" L=")[::2]) for row in rows if row.seconds is not None]
    times: dict[str, list[Point]] = {}
    sizes: dict[str, list[Point]] = {}
    for row, model, rest in timed:
        length = float(rest.partition(",")[0])
        times.setdefault(model, []).append((length, 1e3 * (row.seconds or 0)))
        sizes.setdefault(model, []).append((length, row.peak_mb))
    axis = "tokens per sequence"
    named = {"time of a training step": ("ms", times), "peak memory": ("MB", sizes)}
    return [
        LineChart(title, axis, unit, lines, x_kind="log", y_kind="log")
        for title, (unit, lines) in named.items()
    ]
