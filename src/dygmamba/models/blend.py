"""A blend: the weighted sum of the logits of several trained models.

A blend is not trained itself. Its models were trained as runs of their own; `runs/blending.py` fits the weights on the
validation period.

Legend: p pairs.
"""

import json
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError, first_line
from dygmamba.core.settings import check_value, get_setting_hints
from dygmamba.data.events.event_store import EventBatch
from dygmamba.data.events.stream_prefix import StreamPrefix
from dygmamba.history.view import PairView, Request
from dygmamba.models import COMPOSED, find_model
from dygmamba.models.base import DatasetFacts, ModelSpec, Scorer
from dygmamba.models.configs import BlendConfig
from dygmamba.models.stored_settings import update_stored_settings


class Blend(nn.Module, Scorer):
    """Weighted sum of the logits of its models; nothing is trained here, and only they may have a saved memory."""

    def __init__(self, parts: list[Any], weights: tuple[float, ...]) -> None:
        super().__init__()
        self.parts, self.weights = nn.ModuleList(parts), weights
        self.requests: tuple[Request, ...] = tuple(request for part in parts for request in part.requests)
        self.stateful = any(part.stateful for part in parts)
        self.elastic = all(part.elastic for part in parts)

    def forward(self, view: PairView) -> Float64[Tensor, "p"]:
        scored = zip(self._scorers, self.weights, strict=True)
        return torch.stack([weight * part(view).double() for part, weight in scored]).sum(dim=0)

    @property
    def _scorers(self) -> list[Any]:
        return list(self.parts)

    def observe(self, events: EventBatch) -> None:
        for part in self._scorers:
            part.observe(events)

    def reset(self) -> None:
        for part in self._scorers:
            part.reset()

    def snapshot(self, events: EventBatch) -> list[Any]:
        return [part.snapshot(events) for part in self._scorers]

    def restore(self, snapshot: list[Any]) -> None:
        for part, own in zip(self._scorers, snapshot, strict=True):
            part.restore(own)

    @property
    def saved_prefix(self) -> StreamPrefix | None:
        """The events in the saved memories, if all models with a memory have saved the same ones."""
        prefixes = {part.saved_prefix for part in self._scorers if part.stateful}
        return prefixes.pop() if len(prefixes) == 1 else None

    def load_saved_memory(self) -> None:
        for part in self._scorers:
            part.load_saved_memory()

    def delete_saved_memory(self) -> None:
        for part in self._scorers:
            part.delete_saved_memory()


def build_blend(config: BlendConfig, facts: DatasetFacts) -> Scorer:
    """Build the models of a blend and weight them."""
    if not config.parts or any(name in COMPOSED for name in config.parts):
        raise ConfigError("a blend needs models, and none of them may be a blend", code="blend-of-blend")
    specs = [
        find_model(name, source or None) for name, source in zip(config.parts, config.sources, strict=True)
    ]
    parts: list[Any] = [
        spec.build(spec.config(**_parse_settings(name, spec, text)), facts)
        for name, spec, text in zip(config.parts, specs, config.settings, strict=True)
    ]
    if not all(isinstance(part, nn.Module) for part in parts):
        raise ConfigError("a blend takes models with weights only", code="model-without-weights")
    return Blend(parts, config.weights)


def _parse_settings(name: str, spec: ModelSpec, text: str) -> dict[str, Any]:
    """Parse the stored settings of a model, as strictly as those that a user types."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the settings of '{name}' in this blend are not JSON ({first_line(error)}); blend the runs again",
            code="damaged-config",
        ) from error
    hints = get_setting_hints(spec.config)
    if not isinstance(stored, dict) or not set(settings := update_stored_settings(name, stored)) <= set(
        hints
    ):
        raise ConfigError(
            f"the settings of '{name}' in this blend are not those of the model; blend the runs again",
            code="unknown-setting",
        )
    return {key: check_value(key, value, hints[key]) for key, value in settings.items()}
