"""Time and memory of a training step against sequence length, for DyG-Mamba and DyGFormer (patches of one token).

Both take the same step on a dense stream in which every history is longer than the sequence. If a model runs out of
memory, its series ends.
"""

from dataclasses import replace
from typing import Any

import torch

from benchmarks.harness import (
    BenchmarkRow,
    build_trainer,
    log,
    make_last_step,
    measure_median_seconds,
    require_same_scores,
    track_device_peak,
)
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.engine.stream import Stream

NODES = 64
BATCH = {"cpu": 4, "cuda": 32}
LENGTHS = {"cpu": (64, 128, 256, 512), "cuda": (64, 128, 256, 512, 1024, 2048, 4096, 8192)}
# each model is the reference of the next one
MODELS: dict[str, dict[str, Any]] = {"dygformer": {"patch": 1}, "dyg-mamba": {}}
CHECK_LENGTH, PAIRS = 256, 8  # sequence length and number of pairs of the check
REPEATS = 5


def run(device: str) -> list[BenchmarkRow]:
    """Check the scores of both models at one length, then measure each model at every length."""
    stream = generate_dense_stream(max(LENGTHS[device]), device)
    for model, settings in MODELS.items():
        log(f"checking {model}")
        require_same_scores(model, stream, settings | {"length": CHECK_LENGTH}, PAIRS)
    reference: dict[int, BenchmarkRow] = {}
    rows: list[BenchmarkRow] = []
    for model in MODELS:
        series = measure_series(stream, model, reference)
        reference = {length: row for length, row in series.items() if row.seconds is not None}
        rows += series.values()
    return rows


def generate_dense_stream(longest: int, device: str) -> Stream:
    """Generate uniform random pairs of few nodes, until each node has `longest` events."""
    rng = torch.Generator().manual_seed(0)
    events = NODES * longest * 5 // 8  # an event is in two histories; a quarter more than the mean needs
    src = torch.randint(NODES, (events,), generator=rng)
    dst = (src + torch.randint(1, NODES, (events,), generator=rng)) % NODES
    time = torch.rand(events, generator=rng, dtype=torch.float64).cumsum(0)
    store = EventStore.from_columns(src, dst, time, num_nodes=NODES)
    ids = torch.arange(events)
    split = Split(ids, ids[-PAIRS:], ids[-PAIRS:], torch.zeros(NODES, dtype=torch.bool))
    return Stream(store, split, torch.device(device))


def measure_series(stream: Stream, model: str, reference: dict[int, BenchmarkRow]) -> dict[int, BenchmarkRow]:
    """Measure a model at every length until it runs out of memory; `reference` are the rows of the other model."""
    device = stream.device.type
    rows: dict[int, BenchmarkRow] = {}
    last: BenchmarkRow | None = None
    for length in LENGTHS[device]:
        log(f"timing {model} at L={length}")
        case = f"{model} L={length}, batch {BATCH[device]}"
        try:
            row = measure_length(stream, model, length, case)
        except (torch.OutOfMemoryError, MemoryError):
            rows[length] = BenchmarkRow(
                case, None, None, None, float("nan"), note="out of memory; the series ends"
            )
            break
        rows[length] = last = add_reference(row, reference.get(length)).compare_growth(last)
    return rows


def measure_length(stream: Stream, model: str, length: int, case: str) -> BenchmarkRow:
    """Measure median time and peak memory of a training step without CUDA graphs."""
    device = stream.device.type
    step = make_last_step(
        build_trainer(model, stream, MODELS[model] | {"length": length}, batch=BATCH[device], graphs=False)
    )
    step()
    with track_device_peak(device) as peak:
        step()
    return BenchmarkRow.from_times(case, measure_median_seconds(step, REPEATS, warmup=0), peak_mb=peak[0])


def add_reference(row: BenchmarkRow, other: BenchmarkRow | None) -> BenchmarkRow:
    """Add the other model's row at the same length as the reference."""
    if other is None or other.seconds is None or row.seconds is None:
        return row
    ratio = other.seconds / row.seconds
    return replace(row, reference_seconds=other.seconds, ratio=ratio, reference_mb=other.peak_mb)
