"""One training epoch, after one to compile kernels and capture the step.

On a GPU the reference is the same epoch issued call by call. On a CPU a few steps are timed and scaled to the
epoch, and the reference is one step by definition, scaled too.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from dygmamba.benchmarks import step
from dygmamba.benchmarks.anchors import EPOCHS, hold_on
from dygmamba.benchmarks.verify import Row, device_peak, median_seconds, wait
from dygmamba.benchmarks.workload import UCI, find_stream, fit_of, last_full, require_same_scores
from dygmamba.engine.fit import Fit, Reporter
from dygmamba.engine.stream import Stream

BATCH = 200
STEPS = 20  # timed on a CPU
REPEATS = 3  # epochs timed on a GPU
PAIRS = 200


@dataclass(frozen=True, slots=True)
class Case:
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
    "cpu": (Case("dyg-mamba", 32),),
    "cuda": (Case("dyg-mamba", 32), Case("dyg-mamba", 1024), Case("dygformer", 32), Case("tgn", None)),
}


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Each model's scores checked, then its epoch timed."""
    name, stream = find_stream(device)
    rows = []
    for case in CASES[device]:
        say(f"checking {case} on {name}")
        require_same_scores(case.model, stream, case.settings, PAIRS)
        say(f"timing {case}")
        time_case = gpu_rows if device == "cuda" else cpu_rows
        rows += time_case(name, stream, case)
    return rows


def gpu_rows(name: str, stream: Stream, case: Case) -> list[Row]:
    """The epoch as training runs it, call by call, and beside each anchor of that epoch."""
    fit, device = fit_of(case.model, stream, case.settings, batch=BATCH), stream.device.type
    with device_peak(device) as peak:  # of the first epoch: a replayed graph asks the allocator for nothing
        epoch_seconds(fit)
    seconds = median(epoch_seconds(fit) for _ in range(REPEATS))
    plain = fit_of(case.model, stream, case.settings, batch=BATCH, graphs=False)
    plain.executor.step(plain.batch(plain.epoch(0), 0))
    slow = epoch_seconds(plain)
    known = hold_on(device) and name == UCI
    anchors = [one for one in EPOCHS if known and (one.model, one.length) == (case.model, case.length)]
    title = f"epoch of {case} on {name}"
    if not anchors:
        return [Row.of(title, seconds, slow, peak[0])]
    return [
        Row.of(f"{title}; {one.by}", seconds, slow, peak[0], anchor_seconds=one.seconds) for one in anchors
    ]


def cpu_rows(name: str, stream: Stream, case: Case) -> list[Row]:
    """A few steps spread over the epoch, scaled to it."""
    fit = fit_of(case.model, stream, case.settings, batch=BATCH)
    epoch, full = fit.epoch(0), last_full(fit) + 1
    chosen = [fit.batch(epoch, number * full // STEPS) for number in range(STEPS)]
    fit.scorer.train()

    def steps() -> None:
        for batch in chosen:
            fit.executor.step(batch)

    fit.executor.step(fit.batch(epoch, full - 1))
    with device_peak("cpu") as peak:
        seconds = median_seconds(steps, repeats=1, warmup=0)
    scale, few = fit.steps_per_epoch, step.REFERENCE_BATCH["cpu"]
    slow = sum(step.reference_parts(stream, few).values()) * scale
    note = f"{STEPS} of {scale} steps scaled; reference: 1 step, {few} of {BATCH} events, scaled"
    return [Row.of(f"epoch of {case} on {name}", seconds * scale / STEPS, slow, peak[0], note=note)]


def epoch_seconds(fit: Fit) -> float:
    """Wall time of one more epoch."""
    device = fit.stream.device.type
    fit.progress.losses.clear()
    wait(device)
    start = time.perf_counter()
    fit.train_epoch(Reporter())
    wait(device)
    seconds = time.perf_counter() - start
    fit.progress.epoch, fit.progress.step = fit.progress.epoch + 1, 0
    return seconds
