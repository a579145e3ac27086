"""Three more scores that need no training: how popular a destination is, how recently a pair met, or a source acted."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dygmamba.core.settings import Settings
from dygmamba.data.events.event_store import EventBatch
from dygmamba.models.base import DatasetFacts, Heuristic, ModelSpec
from dygmamba.models.pair_statistics import KeyStatistics, to_numpy
from dygmamba.sampling.counts import CountRequest
from dygmamba.sampling.view import PairView


@dataclass(frozen=True, slots=True)
class NoConfig(Settings):
    """A model without settings."""


class Popularity(Heuristic):
    """The number of events a destination has received so far."""

    def __init__(self, config: NoConfig, facts: DatasetFacts) -> None:
        self._count = np.zeros(facts.num_nodes, np.int64)

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        """Events received by each pair's destination."""
        return torch.from_numpy(self._count[view.pairs.dst.cpu().numpy()].astype(np.float32))

    def observe(self, events: EventBatch) -> None:
        """Count a batch's destinations."""
        np.add.at(self._count, events.dst.cpu().numpy(), 1)

    def reset(self) -> None:
        """Forget everything."""
        self._count[:] = 0


class Recency(Heuristic):
    """Pairs that met, the latest first; then pairs whose destination was active, the latest first."""

    def __init__(self, config: NoConfig, facts: DatasetFacts) -> None:
        self._num_nodes = facts.num_nodes
        self.reset()

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        """1 + 1 / (1 + age of the last meeting) if any, else 1 / (1 + age of the destination's last event)."""
        src, dst = view.pairs.src.cpu().numpy(), view.pairs.dst.cpu().numpy()
        now = view.pairs.time.cpu().numpy()
        met = self._pairs.last_seen(src * self._num_nodes + dst)
        active = self._destination[dst]
        score = np.where(np.isfinite(met), 1 + 1 / (1 + now - met), 1 / (1 + now - active))
        return torch.from_numpy(score)

    def observe(self, events: EventBatch) -> None:
        """Remember when each pair and each destination was last seen."""
        src, dst, time = to_numpy(events)
        self._pairs.add(self._pairs.insert(src * self._num_nodes + dst), time)
        np.maximum.at(self._destination, dst, time)

    def reset(self) -> None:
        """Forget everything."""
        self._pairs = KeyStatistics()
        self._destination = np.full(self._num_nodes, -np.inf)


class SourceRecency(Heuristic):
    """Pairs whose source acted last, the latest first: who is active now, and nothing of whom they choose.

    It remembers nothing: what it asks for is looked up, so unlike a memory it lags by a cell of events only where the
    rule says `batch`.
    """

    stateful = False

    def __init__(self, config: NoConfig, facts: DatasetFacts) -> None:
        self.requests = (CountRequest((1.0,), neighbors=0),)
        self._column = self.requests[0].names.index("time since the last event the source sent")

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        """1 / (1 + log(1 + age)) of the last event that the source sent, 0 if there is none."""
        age = view.counts[0][:, self._column].double()
        return torch.where(age < 0, 0.0, 1 / (1 + age.clamp(min=0)))

    def observe(self, events: EventBatch) -> None:
        """Nothing: what has happened is looked up when it is asked for."""

    def reset(self) -> None:
        """Nothing to forget."""


POPULARITY = ModelSpec(
    config=NoConfig,
    build=Popularity,
    trainable=False,
    title="popularity",
    looks_at="how many events the destination has received",
    cost="one look-up of the destination",
)

RECENCY = ModelSpec(
    config=NoConfig,
    build=Recency,
    trainable=False,
    title="recency",
    looks_at="when the pair last met, then when the destination was last active",
    cost="one look-up of the pair and one of the destination",
)

SOURCE_RECENCY = ModelSpec(
    config=NoConfig,
    build=SourceRecency,
    trainable=False,
    title="source recency",
    looks_at="when the source last acted",
    cost="one look-up of the source",
)
