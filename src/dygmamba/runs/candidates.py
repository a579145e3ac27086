"""Candidates of a training with a time budget: which models are tried on a machine, and in which order; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from dygmamba.config import (
    SIZE_PRESETS,
    check_settings,
    find_preset,
    find_size_preset,
    is_preset_file,
    read_preset_file,
)
from dygmamba.core.errors import ConfigError
from dygmamba.runs.default_model import DEFAULT_CPU_MODEL, DEFAULT_GPU_MODEL, DEFAULT_NETWORK

# seconds of an epoch on two cores of a server per event, and epochs, of the preset for CPUs (docs/how-to/train.md)
SMALL_PER_EVENT, SMALL_EPOCHS = 9e-4, 12


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model, and its preset if not the published one."""

    model: str
    preset: str | None = None


# by device type, in the order of cost
CANDIDATES = {
    "cpu": (
        Candidate(DEFAULT_CPU_MODEL),
        Candidate("walk-trees"),
        Candidate(DEFAULT_GPU_MODEL, "small"),
        Candidate(DEFAULT_GPU_MODEL),
    ),
    "cuda": (
        Candidate(DEFAULT_CPU_MODEL),
        Candidate("walk-trees"),
        Candidate(DEFAULT_GPU_MODEL),
        # reads no order into events of the same instant, which helps where all events of a year have one time
        Candidate("dygformer", "short"),
    ),
}


def list_candidates(device_type: str, model: str | None, preset: str | None) -> tuple[Candidate, ...]:
    """Return the candidates in the order in which they are trained.

    Args:
        device_type: "cpu" or "cuda".
        model: The model if the user named one; it is then the only candidate.
        preset: The preset if the user named one; the candidates are then models that have it.
    """
    if model is not None:
        return (Candidate(model, preset),)
    if preset is not None and is_preset_file(preset):
        return (Candidate(read_preset_file(Path(preset)).model, preset),)
    if preset in SIZE_PRESETS:
        return (Candidate(DEFAULT_NETWORK, preset),)
    found = (Candidate(one.model, preset or one.preset) for one in CANDIDATES[device_type])
    return tuple(dict.fromkeys(found))  # with the published settings a model may be listed twice


def find_refused(candidates: tuple[Candidate, ...], settings: dict[str, Any]) -> dict[Candidate, str]:
    """Return the candidates that do not have these settings, each with the reason.

    Raises:
        ConfigError: No candidate has them.
    """
    errors: dict[Candidate, ConfigError] = {}
    for candidate in candidates:
        try:
            sized = {} if candidate.preset is None else find_size_preset(candidate.preset, candidate.model)
            check_settings(candidate.model, sized | settings, "link")
        except ConfigError as error:
            errors[candidate] = error
    if len(errors) == len(candidates):
        raise errors[candidates[0]]
    return {candidate: str(error) for candidate, error in errors.items()}


def estimate_seconds(
    candidate: Candidate, device_type: str, settings: dict[str, Any], *, name: str, events: int, types: bool
) -> float | None:
    """Estimate the time of a training from stored measurements; None if nothing comparable was measured.

    Args:
        candidate: The model.
        device_type: "cpu" or "cuda".
        settings: What the user set.
        name: Name of the dataset.
        events: Number of its events.
        types: Whether they have types.
    """
    from dygmamba.models import require_model
    from dygmamba.runs.training_cost import estimate_training

    if candidate.preset == "small":
        return SMALL_PER_EVENT * events * min(SMALL_EPOCHS, settings.get("epochs", inf))
    spec = require_model(candidate.model)
    sized = {} if candidate.preset is None else find_size_preset(candidate.preset, candidate.model)
    values = ({} if spec is None else spec.settings) | find_preset(candidate.model, name) | sized | settings
    size = {key: float(values[key]) for key in ("length", "patch") if key in values}
    cost = estimate_training(
        candidate.model, name, device_type, size | {"events": float(events), "types": float(types)}
    )
    return None if cost is None else cost.epoch_seconds * min(cost.epochs, values.get("epochs", inf))


def format_candidate_name(candidate: Mapping[str, Any]) -> str:
    """Return the model of a candidate, with its preset and seed where they are not the usual ones."""
    preset, seed = candidate["preset"], candidate.get("seed")  # records of earlier versions have no seed
    name = candidate["model"] + (f" (preset {preset})" if preset else "")
    return name if seed is None else f"{name}, seed {seed}"
