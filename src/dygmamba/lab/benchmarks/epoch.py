"""One training epoch, after one to compile kernels and capture the step.

On a GPU the reference is the same epoch issued call by call. On a CPU a few steps are timed and scaled to the
epoch, and the reference is one step by definition, scaled too.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from dygmamba.engine.fit import Reporter, Trainer
from dygmamba.engine.stream import Stream
from dygmamba.lab.benchmarks import step
from dygmamba.lab.benchmarks.harness import (
    EPOCH_ANCHORS,
    UCI,
    BenchmarkRow,
    anchors_apply,
    build_fit,
    find_last_full_batch,
    measure_median_seconds,
    open_benchmark_stream,
    require_same_scores,
    synchronize,
    track_device_peak,
)

BATCH = 200
STEPS = 20  # timed on a CPU
REPEATS = 3  # epochs timed on a GPU
PAIRS = 200


@dataclass(frozen=True, slots=True)
class EpochCase:
    """A model at a length; None where it has none."""

    model: str
    length: int | None

    @property
    def settings(self) -> dict[str, Any]:
        """What differs from UCI's published settings."""
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


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[BenchmarkRow]:
    """Each model's scores checked, then its epoch timed."""
    name, stream = open_benchmark_stream(device)
    rows = []
    for case in CASES[device]:
        say(f"checking {case} on {name}")
        require_same_scores(case.model, stream, case.settings, PAIRS)
        say(f"timing {case}")
        time_case = measure_on_gpu if device == "cuda" else measure_on_cpu
        rows += time_case(name, stream, case)
    return rows


def measure_on_gpu(name: str, stream: Stream, case: EpochCase) -> list[BenchmarkRow]:
    """The epoch as training runs it, call by call, and beside each anchor of that epoch."""
    fit, device = build_fit(case.model, stream, case.settings, batch=BATCH), stream.device.type
    with track_device_peak(
        device
    ) as peak:  # of the first epoch: a replayed graph asks the allocator for nothing
        time_epoch(fit)
    seconds = median(time_epoch(fit) for _ in range(REPEATS))
    plain = build_fit(case.model, stream, case.settings, batch=BATCH, graphs=False)
    plain.executor.step(plain.batch(plain.epoch(0), 0))
    slow = time_epoch(plain)
    known = anchors_apply(device) and name == UCI
    anchors = [one for one in EPOCH_ANCHORS if known and (one.model, one.length) == (case.model, case.length)]
    title = f"epoch of {case} on {name}"
    if not anchors:
        return [BenchmarkRow.of(title, seconds, slow, peak[0])]
    return [
        BenchmarkRow.of(f"{title}; {one.by}", seconds, slow, peak[0], anchor_seconds=one.seconds)
        for one in anchors
    ]


def measure_on_cpu(name: str, stream: Stream, case: EpochCase) -> list[BenchmarkRow]:
    """A few steps spread over the epoch, scaled to it."""
    fit = build_fit(case.model, stream, case.settings, batch=BATCH)
    epoch, full = fit.epoch(0), find_last_full_batch(fit) + 1
    chosen = [fit.batch(epoch, number * full // STEPS) for number in range(STEPS)]
    fit.scorer.train()

    def steps() -> None:
        for batch in chosen:
            fit.executor.step(batch)

    fit.executor.step(fit.batch(epoch, full - 1))
    with track_device_peak("cpu") as peak:
        seconds = measure_median_seconds(steps, repeats=1, warmup=0)
    scale, few = fit.steps_per_epoch, step.REFERENCE_BATCH["cpu"]
    slow = sum(step.measure_reference_parts(stream, few).values()) * scale
    note = f"{STEPS} of {scale} steps scaled; reference: 1 step, {few} of {BATCH} events, scaled"
    return [BenchmarkRow.of(f"epoch of {case} on {name}", seconds * scale / STEPS, slow, peak[0], note=note)]


def time_epoch(fit: Trainer) -> float:
    """Wall time of one more epoch."""
    device = fit.stream.device.type
    fit.progress.losses.clear()
    synchronize(device)
    start = time.perf_counter()
    fit.train_epoch(Reporter())
    synchronize(device)
    seconds = time.perf_counter() - start
    fit.progress.epoch, fit.progress.step = fit.progress.epoch + 1, 0
    return seconds
