"""Several trained models as one: the weighted sum of their logits, each of what it asks for itself.

A blend is not trained: its parts were, as runs of their own, and `runs/blending.py` finds the weights on the validation
period. What every part keeps of the contract the sum keeps too.

Legend: p pairs.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import Settings
from dygmamba.data.events.event_store import EventBatch
from dygmamba.data.events.stream_prefix import StreamPrefix
from dygmamba.models.base import DatasetFacts, MemorySaver, ModelSpec, Scorer
from dygmamba.sampling.counts import CountRequest
from dygmamba.sampling.decayed_counts import DecayedCountRequest
from dygmamba.sampling.view import PairView, Request
from dygmamba.sampling.walks import WalkRequest

VIEW_FIELDS: dict[type, str] = {CountRequest: "counts", WalkRequest: "walks", DecayedCountRequest: "fades"}
NEIGHBORS = "neighbors"  # of a view: where the answers to all other requests are
FindModel = Callable[[str, str | None], ModelSpec]


@dataclass(frozen=True, slots=True)
class BlendConfig(Settings):
    """The models by name, their settings as JSON, where those from outside come from, and what each counts."""

    parts: tuple[str, ...] = ("trees",)  # models
    settings: tuple[str, ...] = ("{}",)  # the settings of each
    sources: tuple[str, ...] = ("",)  # module:attribute of each that is from outside
    weights: tuple[float, ...] = (1.0,)  # what each one's logit counts

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if len({len(self.parts), len(self.settings), len(self.sources), len(self.weights)}) > 1:
            raise ConfigError(
                f"a blend has as many parts as settings, sources and weights; got {len(self.parts)}, "
                f"{len(self.settings)}, {len(self.sources)} and {len(self.weights)}"
            )


class Blend(nn.Module):
    """Scores a pair as its parts do, each counting as much as it was found to be worth."""

    carries = False  # nothing is trained here, so nothing is kept but what the parts have

    def __init__(self, parts: list[Any], weights: tuple[float, ...]) -> None:
        super().__init__()
        self.parts, self.weights = nn.ModuleList(parts), weights
        self.requests: tuple[Request, ...] = tuple(request for part in parts for request in part.requests)
        self.stateful = any(part.stateful for part in parts)
        self.elastic = all(part.elastic for part in parts)

    def forward(self, view: PairView) -> Float64[Tensor, "p"]:
        """The sum of the logits."""
        scored = zip(self._scorers, self.weights, self._views(view), strict=True)
        return torch.stack([weight * part(own).double() for part, weight, own in scored]).sum(dim=0)

    def _views(self, view: PairView) -> list[PairView]:
        """Of the answers to all requests, each part's own: those of a kind stand in the order they were asked in."""
        given = {name: iter(getattr(view, name)) for name in (NEIGHBORS, *VIEW_FIELDS.values())}
        views = []
        for part in self._scorers:
            own: dict[str, list[Any]] = {name: [] for name in given}
            for request in part.requests:
                name = VIEW_FIELDS.get(type(request), NEIGHBORS)
                own[name].append(next(given[name]))
            views.append(replace(view, **{name: tuple(answers) for name, answers in own.items()}))
        return views

    @property
    def _scorers(self) -> list[Any]:
        return list(self.parts)

    def observe(self, events: EventBatch) -> None:
        """Every part is told."""
        for part in self._scorers:
            part.observe(events)

    def reset(self) -> None:
        """Every part forgets."""
        for part in self._scorers:
            part.reset()

    def snapshot(self, events: EventBatch) -> list[Any]:
        """What each part will change."""
        return [part.snapshot(events) for part in self._scorers]

    def restore(self, kept: list[Any]) -> None:
        """Each part as it was."""
        for part, own in zip(self._scorers, kept, strict=True):
            part.restore(own)

    @property
    def carried(self) -> StreamPrefix | None:
        """The events in the memories that training left, where every part with a memory has kept the same."""
        marks = {self._mark(part) for part in self._scorers if part.stateful}
        return marks.pop() if len(marks) == 1 else None

    @staticmethod
    def _mark(part: Any) -> StreamPrefix | None:
        return part.carried if isinstance(part, MemorySaver) else None

    def carry(self, mark: StreamPrefix) -> None:
        """Every part keeps its memory."""
        for part in self._carriers:
            part.carry(mark)

    def recall(self) -> None:
        """Every part goes on from what it has kept."""
        for part in self._carriers:
            part.recall()

    def let_go(self) -> None:
        """No part keeps anything."""
        for part in self._carriers:
            part.let_go()

    @property
    def _carriers(self) -> list[MemorySaver]:
        return [part for part in self._scorers if isinstance(part, MemorySaver)]


def blend_spec(find: FindModel) -> ModelSpec:
    """The registry's entry, given how models are found in it."""

    def build(config: BlendConfig, facts: DatasetFacts) -> Scorer:
        specs = [
            find(name, source or None) for name, source in zip(config.parts, config.sources, strict=True)
        ]
        parts = [
            spec.build(spec.config(**_parse_settings(given)), facts)
            for spec, given in zip(specs, config.settings, strict=True)
        ]
        return Blend(parts, config.weights)

    return ModelSpec(
        config=BlendConfig,
        build=build,
        trainable=True,
        title="several finished runs as one",
        looks_at="what its parts look at",
        cost="that of its parts together",
    )


def _parse_settings(given: str) -> dict[str, Any]:
    """Settings as a config takes them: what JSON has as a list is a tuple."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(given).items()
    }
