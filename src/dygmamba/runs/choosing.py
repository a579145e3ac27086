"""What was chosen for a run where its user said nothing, and why, in words that config.toml keeps."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from dygmamba.config import preset, presets, size_preset, to_settings
from dygmamba.data.splits import PUBLISHED, SplitBy
from dygmamba.data.statistics import as_duration, looks_like_epoch
from dygmamba.data.store import Dataset
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.stream import Stream
from dygmamba.models.base import RoundLearner, Scorer
from dygmamba.sampling.counts import CountRequest

CHANGED = (
    "preset",
    "published",
)  # where it is said what these changed: the preset asked for, that of the data
LENGTHS = ("length", "neighbors", "walks")  # what models call how far they look back


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run begins with beside model, seed and settings: its cuts, the size asked for, and why what was chosen."""

    by: SplitBy = PUBLISHED
    size: str | None = None  # a preset that goes before the published one
    why: dict[str, str] = field(
        default_factory=dict
    )  # of choices that were made before: the model, the device
    of: Path | None = None  # the run whose settings these are, trained again on everything


def layers(
    model: str, dataset: str, beginning: Beginning, asked: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Settings by where they come from; each goes before those after it."""
    size = {} if beginning.size is None else size_preset(beginning.size, model)
    return {
        "asked for": asked,
        f"preset {beginning.size}": size,
        f"preset for {dataset if dataset in presets().get(model, {}) else model}": preset(model, dataset),
    }


def merged(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All settings that anything says."""
    return {name: value for part in reversed(found.values()) for name, value in part.items()}


def reasons(
    dataset: Dataset,
    stream: Stream,
    scorer: Scorer,
    how: FitConfig,
    config: Any,
    found: dict[str, dict[str, Any]],
) -> dict[str, str]:
    """How far it looks back, in how large steps, how exactly and on which scales of time, each with the reason."""
    own = to_settings(config)
    usual = _defaults(how) | _defaults(config)

    def of(name: str, value: Any) -> str:
        source = next((layer for layer, settings in found.items() if name in settings), "the default")
        return f"{value} ({source})"

    said = changes(found, usual)
    for name in (name for name in LENGTHS if own.get(name)):
        said[name] = f"{of(name, own[name])}; {_history(stream)}"
    if isinstance(scorer, RoundLearner):
        said["batch"] = "none: every round learns from all training events"
        said["precision"] = "float64, as sums of trees are"
    else:
        said["batch"] = of("batch", how.batch)
        on_cpu = stream.device.type == "cpu" and how.precision == "tf32"
        said["precision"] = (
            f"{of('precision', how.precision)}{'; on a CPU this is float32' if on_cpu else ''}"
        )
    scales = [request.scales for request in scorer.requests if isinstance(request, CountRequest)]
    if scales:
        first, last = (_span(span, dataset) for span in (scales[0][0], scales[0][-1]))
        said["time_scales"] = (
            f"{len(scales[0])} from {first}, the typical gap of a node, to {last}, the training period"
        )
    return said


def changes(found: dict[str, dict[str, Any]], usual: dict[str, Any]) -> dict[str, str]:
    """What each preset changed, and from what: of values that hold in the end, those that differ without it."""
    said, below, over = {}, dict(usual), [*found.items()]
    for place in range(len(over) - 1, 0, -1):
        name, settings = over[place]
        above = {key for _, layer in over[:place] for key in layer}
        parts = [
            f"{key} {_plain(value)} instead of {_plain(below.get(key))}"
            for key, value in settings.items()
            if key not in above and _plain(value) != _plain(below.get(key))
        ]
        below |= settings
        if parts:
            said[CHANGED[place - 1]] = f"{name}: {', '.join(parts)}"
    return said


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _defaults(config: Any) -> dict[str, Any]:
    return {field.name: field.default for field in fields(config)}


def _history(stream: Stream) -> str:
    store, train = stream.store, stream.split.train
    count = torch.bincount(torch.cat([store.src[train], store.dst[train]]))
    return f"half of the nodes have at most {int(count[count > 0].median()):,} events in training"


def _span(seconds: float, dataset: Dataset) -> str:
    first, last = float(dataset.store.time[0]), float(dataset.store.time[-1])
    dated = dataset.origin.time_origin or looks_like_epoch(first, last)
    return as_duration(float(f"{seconds:.3g}")) if dated else f"{seconds:.3g}"
