"""What a run took: time, memory, parameters."""

import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dygmamba.engine.fit import Fit, Reporter
from dygmamba.engine.stream import Stream

STEPS = 20  # timed where an epoch's cost is measured on a CPU


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
    """The last of so many epochs on a GPU; on a CPU some steps, scaled to the epoch."""
    device, seconds = fit.stream.device.type, []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        for _ in range(epochs):
            began = time.perf_counter()
            fit.train_epoch(Reporter())
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
            fit.progress.step = 0
        steps = fit.steps_per_epoch
    else:
        epoch, last = fit.epoch(0), fit.steps_per_epoch
        steps = min(STEPS, last)
        fit.scorer.train()
        for number in range(last - steps, last):  # the last ones, whose nodes have a past
            began = time.perf_counter()
            fit.executor.step(fit.batch(epoch, number)).item()
            seconds.append((time.perf_counter() - began) * last)
        seconds = [median(seconds[1:] or seconds)]
    return {
        "epoch_seconds": round(seconds[-1], 4),
        "stepstimed": steps,
        "steps": fit.steps_per_epoch,
        "parameters": _parameters(fit),
        "peak_mb": _peak_mb(fit.stream),
    }


def _parameters(fit: Fit) -> int:
    return sum(parameter.numel() for parameter in fit.scorer.parameters())


def _peak_mb(stream: Stream) -> float:
    """On a GPU what torch held at most since the fit began; on a CPU the process's most."""
    if stream.device.type == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    import resource

    own = Path("/proc/self/status")  # on Linux ru_maxrss begins with the parent's
    if own.exists():
        (peak,) = [line.split()[1] for line in own.read_text().splitlines() if line.startswith("VmHWM")]
        return round(int(peak) / 2**10, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1)
