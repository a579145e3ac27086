"""What a run took: time, memory, parameters."""

import gc
import time
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from dygmamba.engine.fit import Fit, Reporter
from dygmamba.engine.stream import Stream

STEPS, FEWEST = 20, 3  # timed where an epoch's cost is measured on a CPU, and fewer where they take long
LIMIT_CPU = 30.0  # seconds of steps there
LIMIT = 12.0  # seconds of epochs on a GPU, beyond which some steps of one are timed


def spent(fit: Fit) -> dict[str, Any]:
    """What training took, from the run's own record."""
    entries = fit.progress.entries
    return {
        "epochs": [round(entry["loss"], 6) for entry in entries],
        "validation": [round(entry["val_ap"], 6) for entry in entries],
        "best_epoch": fit.progress.best_epoch + 1,
        "epoch_seconds": round(median(entry["train_seconds"] for entry in entries), 4),
        "seconds": round(sum(entry["seconds"] for entry in entries), 2),
        "parameters": _parameters(fit),
        "peak_mb": _peak_mb(fit.stream),
        "config": {name: fit.run.config()[name] for name in ("train", "model")},
        "made_with": fit.run.config()["made_with"],
    }


def timed(fit: Fit, epochs: int) -> dict[str, Any]:
    """The last of so many epochs on a GPU; on a CPU, or where epochs are long, some steps, scaled to the epoch."""
    forget_peak(fit.stream.device)
    if fit.stream.device.type == "cuda":
        seconds, steps = _on_gpu(fit, epochs)
    else:
        last = fit.steps_per_epoch
        chosen = range(last - min(STEPS, last), last)  # the last ones, whose nodes have a past
        each = _each(fit, chosen, LIMIT_CPU)
        seconds, steps = median(each[1:] or each) * last, len(each)
    return {
        "epoch_seconds": round(seconds, 4),
        "stepstimed": steps,
        "steps": fit.steps_per_epoch,
        "parameters": _parameters(fit),
        "peak_mb": _peak_mb(fit.stream),
    }


def _on_gpu(fit: Fit, epochs: int) -> tuple[float, int]:
    """Seconds of an epoch and the steps they were measured in: all of the last epoch, or as many as time allows.

    A few steps, asked twice because the first time compiles and captures, say how long an epoch is.
    """
    last = fit.steps_per_epoch
    probe = range(last // 6, last, max(1, last // 3))
    _each(fit, probe)
    each = _each(fit, probe)
    whole = mean(each) * last
    if whole * epochs > LIMIT:
        chosen = range(0, last, max(1, round(whole / LIMIT)))
        each = _each(fit, chosen) if mean(each) * len(chosen) > sum(each) else each
        return mean(each) * last, len(each)
    seconds = 0.0
    for _ in range(epochs):
        began = time.perf_counter()
        fit.train_epoch(Reporter())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        fit.progress.step = 0
    return seconds, last


def _each(fit: Fit, numbers: Iterable[int], limit: float = inf) -> list[float]:
    """Seconds of each of these steps; of a few only, where all but the first, which may compile, take too long."""
    epoch, seconds = fit.epoch(0), []
    fit.scorer.train()
    for number in numbers:
        began = time.perf_counter()
        fit.executor.step(fit.batch(epoch, number)).item()
        seconds.append(time.perf_counter() - began)
        if len(seconds) >= FEWEST and sum(seconds[1:]) > limit:
            break
    return seconds


def forget_peak(device: torch.device) -> None:
    """From here on the most counts; what an earlier job of this process held and nobody needs is let go first."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):  # Linux alone can begin anew
        Path("/proc/self/clear_refs").write_text("5")


def _parameters(fit: Fit) -> int:
    return sum(parameter.numel() for parameter in fit.scorer.parameters())


def _peak_mb(stream: Stream) -> float:
    """On a GPU what torch held at most since the fit began; on a CPU what the process did, or had before elsewhere."""
    if stream.device.type == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    import resource

    own = Path("/proc/self/status")  # on Linux ru_maxrss begins with the parent's
    if own.exists():
        (peak,) = [line.split()[1] for line in own.read_text().splitlines() if line.startswith("VmHWM")]
        return round(int(peak) / 2**10, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1)
