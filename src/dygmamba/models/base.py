"""A memory that is kept as training left it: what the engine knows of a scorer that has one.

What the engine knows of a model, whatever it is inside.
"""

import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import MISSING, dataclass, fields
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.event_store import EventBatch, EventStore
from dygmamba.data.events.statistics import compute_median_gap
from dygmamba.data.events.stream_prefix import StreamPrefix
from dygmamba.sampling.view import NeighborRequest, PairBatch, PairView, Request


@runtime_checkable
class MemorySaver(Protocol):
    """A scorer that can keep its memory as training left it, beside its weights (decision 036)."""

    carries: bool  # whether it wants to

    @property
    def carried(self) -> StreamPrefix | None:
        """The events that are in the memory it has kept; None where it has kept none."""
        ...

    def carry(self, mark: StreamPrefix) -> None:
        """Keep the memory as it is, told of these events."""
        ...

    def recall(self) -> None:
        """Make the memory what was kept."""
        ...

    def let_go(self) -> None:
        """Keep nothing any more."""
        ...


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """All a builder may know of the data."""

    num_nodes: int
    node_dim: int
    edge_dim: int
    gap_mean: float = 1.0  # between consecutive events of the stream
    start: float = 0.0  # time of the first event
    src_gap: tuple[float, float] = (0.0, 1.0)  # mean and deviation of a source's gaps, the first from `start`
    dst_gap: tuple[float, float] = (0.0, 1.0)  # the same of a destination's
    node_gap: float = 1.0  # median span between two events of a node, ties left out
    period: float = 1.0  # from the first event to the last

    def scales(self, count: int) -> tuple[float, ...]:
        """So many time scales, log-spaced from the typical gap of a node to the length of the training period."""
        low, high = math.log(min(self.node_gap, self.period)), math.log(self.period)
        steps = max(count - 1, 1)
        return tuple(math.exp(low + (high - low) * step / steps) for step in range(count))

    @staticmethod
    def of(store: EventStore, events: Int64[Tensor, "k"] | None = None) -> "DatasetFacts":
        """The facts of a stream, its times taken from these (training) events only."""
        kept = slice(None) if events is None else events
        time = store.time[kept]
        period = float(time[-1] - time[0]) if len(time) > 1 else 0.0
        return DatasetFacts(
            num_nodes=store.num_nodes,
            node_dim=store.features.node.shape[1],
            edge_dim=store.features.edge.shape[1],
            gap_mean=period / (len(time) - 1) if period > 0 else 1.0,
            start=float(time[0]) if len(time) else 0.0,
            src_gap=_gap_statistics(store.src[kept], time),
            dst_gap=_gap_statistics(store.dst[kept], time),
            node_gap=compute_median_gap(torch.cat([store.src[kept], store.dst[kept]]), time.repeat(2)),
            period=period if period > 0 else 1.0,
        )


def _gap_statistics(node: Int64[Tensor, "k"], time: Float64[Tensor, "k"]) -> tuple[float, float]:
    """Mean and deviation of the spans between a node's events; its first one is counted from the start."""
    if not len(node):
        return 0.0, 1.0
    order = torch.argsort(node, stable=True)
    node, since = node[order], time[order] - time[0]
    again = pad(node[1:] == node[:-1], (1, 0))
    gap = since - torch.where(again, since.roll(1), 0)
    deviation = float(gap.std(correction=0))
    return float(gap.mean()), deviation if deviation > 0 else 1.0


@runtime_checkable
class Scorer(Protocol):
    """A model as the engine drives it; streaming state changes only in `observe`."""

    stateful: bool  # whether `observe` changes later scores
    elastic: bool  # whether a look-up of fewer entries changes nothing, as long as nothing is cut off

    @property
    def requests(self) -> tuple[Request, ...]:
        """The neighbour sequences the model wants for each query."""
        ...

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        """A score per pair: the higher, the likelier."""
        ...

    def observe(self, events: EventBatch) -> None:
        """Take in what has happened; stateless models ignore it."""
        ...

    def reset(self) -> None:
        """Forget everything observed."""
        ...

    def snapshot(self, events: EventBatch) -> Any:
        """What observing these events will change, for `restore`."""
        ...

    def restore(self, kept: Any) -> None:
        """Be as when `kept` was made, if nothing but its events was observed since."""
        ...


Offset = Callable[[PairBatch], Tensor | None]


@runtime_checkable
class RoundLearner(Protocol):
    """A scorer that learns from all training questions at once, round after round, instead of along a gradient.

    An epoch is `rounds` of them; after each the validation says how good it is, as for any other model. `negatives` is
    how many other nodes are asked about beside each training event, once and for all.
    """

    rounds: int
    negatives: int

    def study(self, views: Iterable[PairView], offset: Offset | None = None) -> Any:
        """What the rounds learn from: all questions of the training period, as views of strictly earlier events.

        `offset` says what is added to the logits of such questions where they are judged, and in no score.
        """
        ...

    def learn(self, lesson: Any) -> Float[Tensor, ""]:
        """One round; the mean loss before it. What was learned is in the module's buffers, so checkpoints hold it."""
        ...


class Heuristic:
    """A score without weights, from what was observed; asks for no neighbours."""

    requests: tuple[Request, ...] = ()
    stateful = True
    elastic = False

    def snapshot(self, events: EventBatch) -> Any:
        """Everything: what is remembered is small."""
        return deepcopy(self.__dict__)

    def restore(self, kept: Any) -> None:
        """Be as when `kept` was made."""
        self.__dict__.update(kept)


class Encoder(nn.Module):
    """A model that turns each pair into two vectors: forward(view) -> [p d], [p d].

    A model with memory sets `stateful`, keeps the memory in buffers and changes it only in `observe`.
    """

    requests: tuple[Request, ...]
    out_dim: int
    stateful: bool = False
    # whether a look-up of fewer entries changes nothing, as long as nothing is cut off: one hop, recent entries
    elastic: bool = False
    carries: bool = False  # whether the memory that training leaves is kept beside the weights

    beside_dim: int = 0  # numbers of a pair that a link head reads beside the two vectors

    def beside(self, view: PairView) -> tuple[Float[Tensor, "p _"], ...]:
        """What a link head reads of each pair beside the two vectors, `beside_dim` numbers in all."""
        return ()

    def observe(self, events: EventBatch) -> None:
        """Take in what has happened; without memory there is nothing to do."""

    def reset(self) -> None:
        """Forget everything observed."""

    def snapshot(self, events: EventBatch) -> Any:
        """What observing these events will change; without memory, nothing."""

    def restore(self, kept: Any) -> None:
        """Be as when `kept` was made."""

    @property
    def carried(self) -> StreamPrefix | None:
        """The events that are in the memory it has kept; without memory there is none."""
        return None

    def carry(self, mark: StreamPrefix) -> None:
        """Keep the memory as it is."""

    def recall(self) -> None:
        """Make the memory what was kept."""

    def let_go(self) -> None:
        """Keep nothing any more."""


class NodeEncoder(Encoder):
    """An encoder that looks at one node at a time: each row of the batch is encoded once, pairs point at rows."""

    def encode(self, view: PairView) -> Float[Tensor, "q d"]:
        """The embedding of each row (node, time)."""
        raise NotImplementedError

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        """Source and destination embedding of each pair."""
        rows = self.encode(view)
        return rows[view.pairs.src_row], rows[view.pairs.dst_row]


class LinkHead(nn.Module):
    """One logit per pair from its two embeddings (Eq. 15), and from what else is known of it, `beside` numbers."""

    def __init__(self, dim: int, hidden: int = 172, beside: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * dim + beside, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(
        self, src: Float[Tensor, "p d"], dst: Float[Tensor, "p d"], *beside: Float[Tensor, "p _"]
    ) -> Float[Tensor, "p"]:
        """The logits."""
        return self.out(relu(self.hidden(torch.cat([src, dst, *beside], dim=-1)))).squeeze(-1)


def require_cuttable(encoder: Encoder) -> None:
    """Raise ConfigError unless each look-up may be cut: one hop, and the most recent entries rather than a draw."""
    for request in encoder.requests:
        strategy = request.strategy if isinstance(request, NeighborRequest) else "recent"
        if len(request.fanout) > 1 or strategy != "recent":
            raise ConfigError(
                f"{type(encoder).__name__} is elastic, so it must ask for one hop of recent entries; got a fanout of "
                f"{request.fanout}, {strategy}; leave elastic False"
            )


class EncoderWrapper(nn.Module):
    """What reads an encoder's vectors, as the engine drives it: the memory is the encoder's."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        if encoder.elastic:
            require_cuttable(encoder)
        self.encoder = encoder
        self.requests, self.stateful, self.elastic = encoder.requests, encoder.stateful, encoder.elastic
        self.observe, self.reset = encoder.observe, encoder.reset
        self.snapshot, self.restore = encoder.snapshot, encoder.restore


class MemorySavingWrapper(EncoderWrapper):
    """The same, with the memory that training of links left, if the encoder keeps it."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.carries, self.carry = encoder.carries, encoder.carry
        self.recall, self.let_go = encoder.recall, encoder.let_go

    @property
    def carried(self) -> StreamPrefix | None:
        """The events that are in what the encoder has kept."""
        return self.encoder.carried


class EncoderScorer(MemorySavingWrapper):
    """An encoder with a link head."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.head = LinkHead(encoder.out_dim, beside=encoder.beside_dim)

    def forward(self, view: PairView) -> Float[Tensor, "p"]:
        """A logit per pair."""
        return self.head(*self.encoder(view), *self.encoder.beside(view))


def with_link_head(
    encoder: Callable[[Any, DatasetFacts], Encoder],
) -> Callable[[Any, DatasetFacts], EncoderScorer]:
    """What builds a scorer, given what builds its encoder."""
    return lambda config, facts: EncoderScorer(encoder(config, facts))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One entry of the registry: how a model is configured and built, what it looks at and how its cost grows."""

    config: type
    build: Callable[[Any, DatasetFacts], Scorer]
    trainable: bool
    title: str
    looks_at: str
    cost: str
    source: str | None = None  # module:attribute, of a model from outside this package

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings with their defaults."""
        return {
            part.name: part.default if part.default_factory is MISSING else part.default_factory()
            for part in fields(self.config)
        }
