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
from dygmamba.benchmarks.workload import UCI, Workload
from dygmamba.engine.stepping import EagerSteps
from dygmamba.engine.training import Reporter, Training
from dygmamba.engine.work import TrainingData

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
    work = Workload.find()
    data = work.on(device)
    rows = []
    for case in CASES[device]:
        say(f"checking {case} on {work.name}")
        work.require_same_scores(case.model, case.settings, device, PAIRS)
        say(f"timing {case}")
        time_case = gpu_rows if device == "cuda" else cpu_rows
        rows += time_case(work, data, case)
    return rows


def gpu_rows(work: Workload, data: TrainingData, case: Case) -> list[Row]:
    """The epoch as training runs it, call by call, and beside each anchor of that epoch."""
    training = work.training(case.model, data, case.settings, batch=BATCH)
    device = data.store.time.device.type
    with device_peak(device) as peak:  # of the first epoch: a replayed graph asks the allocator for nothing
        epoch_seconds(training)
    seconds = median(epoch_seconds(training) for _ in range(REPEATS))
    slow = None
    if type(training.steps) is not EagerSteps:  # a model that is issued call by call anyway has no reference
        plain = work.training(case.model, data, case.settings, batch=BATCH, graphs=False)
        plain.steps(0, data.negatives(plain.seed, 0))
        slow = epoch_seconds(plain)
    known = hold_on(device) and work.name == UCI
    anchors = [one for one in EPOCHS if known and (one.model, one.length) == (case.model, case.length)]
    name = f"epoch of {case} on {work.name}"
    if not anchors:
        return [Row.of(name, seconds, slow, peak[0])]
    return [
        Row.of(f"{name}; {one.by}", seconds, slow, peak[0], anchor_seconds=one.seconds) for one in anchors
    ]


def cpu_rows(work: Workload, data: TrainingData, case: Case) -> list[Row]:
    """A few steps spread over the epoch, scaled to it."""
    training = work.training(case.model, data, case.settings, batch=BATCH)
    negatives = data.negatives(training.seed, 0)
    full = len(data.split.train) // BATCH
    chosen = [number * full // STEPS for number in range(STEPS)]

    def steps() -> None:
        for number in chosen:
            training.steps(number, negatives)

    training.steps(full - 1, negatives)
    with device_peak("cpu") as peak:
        seconds = median_seconds(steps, repeats=1, warmup=0)
    scale = training.steps_per_epoch
    few = step.REFERENCE_BATCH["cpu"]
    slow = sum(step.reference_parts(work, data, few).values()) * scale
    note = f"{STEPS} of {scale} steps scaled; reference: 1 step, {few} of {BATCH} events, scaled"
    return [Row.of(f"epoch of {case} on {work.name}", seconds * scale / STEPS, slow, peak[0], note=note)]


def epoch_seconds(training: Training) -> float:
    """Wall time of one more epoch."""
    device = training.data.store.time.device.type
    training.progress.losses.clear()
    wait(device)
    start = time.perf_counter()
    training.train_epoch(Reporter())
    wait(device)
    seconds = time.perf_counter() - start
    training.progress.epoch += 1
    return seconds
