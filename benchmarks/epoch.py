"""Time of a training epoch, after a first one that compiles kernels and captures the CUDA graph.

On a GPU, the reference is the same epoch without CUDA graphs. On a CPU, a few steps are timed and scaled to the epoch,
and the reference is one step of the reference implementations, scaled too.
"""

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks import step
from benchmarks.harness import (
    EPOCH_ANCHORS,
    UCI,
    BenchmarkRow,
    anchors_apply,
    build_trainer,
    find_last_full_batch,
    log,
    measure_median_seconds,
    open_benchmark_stream,
    require_same_scores,
    synchronize,
    track_device_peak,
)
from dygmamba.engine.fit import Trainer
from dygmamba.engine.stream import Stream

BATCH = 200
STEPS = 20  # timed on a CPU
REPEATS = 3  # epochs timed on a GPU
PAIRS = 200


@dataclass(frozen=True, slots=True)
class EpochCase:
    """A model and its sequence length; None if the model has no such setting."""

    model: str
    length: int | None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that differ from those published for UCI."""
        return {} if self.length is None else {"length": self.length}

    def __str__(self) -> str:
        return self.model + ("" if self.length is None else f" L={self.length}")


CASES = {
    "cpu": (EpochCase("dyg-mamba", 32),),
    "cuda": (
        EpochCase("dyg-mamba", 32),
        EpochCase("dyg-mamba", 1024),
        EpochCase("dygformer", 32),
        EpochCase("tgn", None),
    ),
}


def run(device: str) -> list[BenchmarkRow]:
    """Check the scores of each model, then time its epoch."""
    name, stream = open_benchmark_stream(device)
    rows = []
    for case in CASES[device]:
        log(f"checking {case} on {name}")
        require_same_scores(case.model, stream, case.settings, PAIRS)
        log(f"timing {case}")
        measure = measure_on_gpu if device == "cuda" else measure_on_cpu
        rows += measure(name, stream, case)
    return rows


def measure_on_gpu(name: str, stream: Stream, case: EpochCase) -> list[BenchmarkRow]:
    """Time the epoch with and without CUDA graphs; one row per anchor of this case."""
    trainer, device = build_trainer(case.model, stream, case.settings, batch=BATCH), stream.device.type
    with track_device_peak(device) as peak:  # of the first epoch: replaying a graph allocates nothing
        time_epoch(trainer)
    seconds = median(time_epoch(trainer) for _ in range(REPEATS))
    plain = build_trainer(case.model, stream, case.settings, batch=BATCH, graphs=False)
    plain.executor.step(plain.batch(plain.epoch(0), 0))
    slow = time_epoch(plain)
    known = anchors_apply(device) and name == UCI
    anchors = [
        anchor
        for anchor in EPOCH_ANCHORS
        if known and (anchor.model, anchor.length) == (case.model, case.length)
    ]
    title = f"epoch of {case} on {name}"
    if not anchors:
        return [BenchmarkRow.from_times(title, seconds, slow, peak[0])]
    return [
        BenchmarkRow.from_times(
            f"{title}; {anchor.by}", seconds, slow, peak[0], anchor_seconds=anchor.seconds
        )
        for anchor in anchors
    ]


def measure_on_cpu(name: str, stream: Stream, case: EpochCase) -> list[BenchmarkRow]:
    """Time a few steps at equal distances in the epoch and scale them to the whole epoch."""
    trainer = build_trainer(case.model, stream, case.settings, batch=BATCH)
    epoch, full = trainer.epoch(0), find_last_full_batch(trainer) + 1
    batches = [trainer.batch(epoch, number * full // STEPS) for number in range(STEPS)]
    trainer.scorer.train()

    def run_steps() -> None:
        for batch in batches:
            trainer.executor.step(batch)

    trainer.executor.step(trainer.batch(epoch, full - 1))
    with track_device_peak("cpu") as peak:
        seconds = measure_median_seconds(run_steps, repeats=1, warmup=0)
    scale, few = trainer.steps_per_epoch, step.REFERENCE_BATCH["cpu"]
    slow = sum(step.measure_reference_parts(stream, few).values()) * scale
    note = f"{STEPS} of {scale} steps scaled; reference: 1 step, {few} of {BATCH} events, scaled"
    return [
        BenchmarkRow.from_times(
            f"epoch of {case} on {name}", seconds * scale / STEPS, slow, peak[0], note=note
        )
    ]


def time_epoch(trainer: Trainer) -> float:
    """Train one more epoch and return its wall time."""
    device = trainer.stream.device.type
    trainer.state.losses.clear()
    synchronize(device)
    start = time.perf_counter()
    trainer.train_epoch()
    synchronize(device)
    seconds = time.perf_counter() - start
    trainer.state.epoch, trainer.state.step = trainer.state.epoch + 1, 0
    return seconds
