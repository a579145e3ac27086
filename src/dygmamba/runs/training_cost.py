"""Estimates of what a training costs, from measured ones.

`measured.json` holds seconds per epoch, epochs and memory of trainings on an NVIDIA H200 alone or on two cores of a
server (docs/research/log.md). Time is taken to be proportional to the number of events and is interpolated between the
measured lengths. Entries with `evaluation_seconds` are processor time of one core; they are scaled by the speed of this
machine. A model without measurements has no estimate.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

SHORT_EVENTS = 28_000  # of streams with fewer, trees draw more negatives (`SHORT_STREAM` training events)
LENGTH_EXPONENT = 0.6  # cost grows with length to this power outside the measured lengths
REFERENCE_SECONDS = 0.035  # of the kernel of `measure_slowness` on the machine of `measured.json`
ROWS, BINS, REPETITIONS = 400_000, 4096, 5
SLOWNESS_RANGE = (0.2, 10.0)  # at most 5 times faster, 10 times slower


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Estimated cost of a training that has the device for itself."""

    epoch_seconds: float
    epochs: float  # that were trained until validation stopped improving
    megabytes: float
    evaluation_seconds: float = 0.0  # of the evaluation on the test split, where it was measured apart


def estimate_training(model: str, data: str, device: str, size: dict[str, float]) -> TrainingCost | None:
    """Estimate the cost of a training on a kind of device ("cpu" or "cuda"); None if nothing comparable was measured.

    Args:
        model: Name of the model.
        data: Name of the dataset.
        device: Kind of device.
        size: Events, whether they have types (1 or 0), length and patch.
    """
    measurements = [entry for entry in load_measurements() if entry["model"] == model]
    if not measurements:
        return None
    is_patched, is_short = size.get("patch", 1) > 1, size.get("events", SHORT_EVENTS) < SHORT_EVENTS
    # Prefer measurements on this device, on streams that are as short, with types or without, on this dataset and with
    # patches like the job's, in this order. There is not always one: trees run on CPU cores on any machine, and most
    # models were measured on one dataset.
    for matches in (
        lambda entry: entry["device"] == device,
        lambda entry: entry.get("short", False) == is_short,
        lambda entry: entry.get("types", False) == bool(size.get("types", 0)),
        lambda entry: entry["data"] == data,
        lambda entry: (entry.get("patch", 1) > 1) == is_patched,
    ):
        measurements = [entry for entry in measurements if matches(entry)] or measurements
    length = float(size.get("length", 1))
    memory = _interpolate_cost(length, [(entry.get("length", 1), entry["peak_mb"]) for entry in measurements])
    seconds_per_event = _interpolate_cost(
        length, [(entry.get("length", 1), entry["epoch_seconds"] / entry["events"]) for entry in measurements]
    )
    events = size.get("events", float(measurements[0]["events"]))
    # When early stopping ends a training depends on the stream: of several measured ones the geometric mean.
    measured_epochs = _geometric_mean([entry["epochs"] for entry in measurements])
    evaluations = [
        entry["evaluation_seconds"] / entry["events"] for entry in measurements if _is_processor_time(entry)
    ]
    slowness, evaluation = 1.0, 0.0
    if len(evaluations) == len(measurements):
        slowness, evaluation = measure_slowness(), _geometric_mean(evaluations) * events
    return TrainingCost(seconds_per_event * events * slowness, measured_epochs, memory, evaluation * slowness)


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.log(values).mean()))


def _is_processor_time(measurement: dict[str, Any]) -> bool:
    return "evaluation_seconds" in measurement


def _interpolate_cost(length: float, points: Iterable[tuple[float, float]]) -> float:
    """Return the cost at a length: log-log interpolation between (length, cost) points, LENGTH_EXPONENT outside.

    Several costs of one length, of different datasets, count as their geometric mean.
    """
    by_length: dict[float, list[float]] = {}
    for measured_length, measured_cost in points:
        by_length.setdefault(measured_length, []).append(measured_cost)
    lengths = sorted(by_length)
    costs = [float(np.log(by_length[own]).mean()) for own in lengths]
    nearest = float(np.clip(length, lengths[0], lengths[-1]))
    cost = float(np.exp(np.interp(np.log(nearest), np.log(lengths), costs)))
    return cost * (length / nearest) ** LENGTH_EXPONENT


@cache
def load_measurements() -> list[dict[str, Any]]:
    return json.loads(files("dygmamba.runs").joinpath("measured.json").read_text("utf-8"))


@cache
def measure_slowness() -> float:
    """Return how many times as long a core of this machine takes as the measured one; 0.2 s at the first call.

    The kernel has the two kinds of work that boosted trees do, sums into a table at random places and binary searches.
    Neither uses vector instructions: sorting and exponentials are up to ten times faster where numpy finds AVX-512, and
    trees are not. It is timed in processor time, so that other programs hardly matter.
    """
    rng = np.random.Generator(np.random.PCG64(0))
    places, values, edges = rng.integers(0, BINS, ROWS), rng.random(ROWS), np.linspace(0, 1, BINS)
    # the shortest: another program can only make it longer
    seconds = min(_time_kernel(places, values, edges) for _ in range(REPETITIONS))
    return min(max(seconds / REFERENCE_SECONDS, SLOWNESS_RANGE[0]), SLOWNESS_RANGE[1])


def _time_kernel(places: np.ndarray, values: np.ndarray, edges: np.ndarray) -> float:
    start = time.thread_time()
    for _ in range(4):
        np.bincount(places, values, BINS)
    np.searchsorted(edges, values)
    return time.thread_time() - start
