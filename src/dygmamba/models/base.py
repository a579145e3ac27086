"""Base classes of models as the engine uses them: scorers, encoders and heads; and facts about a dataset."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from dygmamba.core.choices import TargetKind
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.column_facts import ColumnFacts
from dygmamba.data.events.columns import compute_edge_scale, compute_moments, rank_columns
from dygmamba.data.events.event_store import EventBatch, EventStore, FeatureTable
from dygmamba.data.events.node_rows import select_node_columns
from dygmamba.data.events.statistics import compute_median_gap
from dygmamba.data.events.stream_prefix import StreamPrefix
from dygmamba.history.view import LabelledView, NeighborRequest, PairView, Request
from dygmamba.models.configs import NetworkConfig
from dygmamba.models.spec import ModelSpec as ModelSpec
from dygmamba.ops.rows import gather_rows

# Longest time scale of a bank of walk decays, in training periods: the test may lie far behind them.
SLOWEST_WALKS = 4
TRANSITION_SCALES, TRANSITION_STEP = 3, 8  # time scales of transitions and the ratio of neighboring ones


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """Facts about a dataset that a model is built with: sizes, and time statistics of the training events."""

    num_nodes: int
    node_dim: int
    edge_dim: int
    gap_mean: float = 1.0  # mean time gap between consecutive events of the stream
    start: float = 0.0  # time of the first event
    # mean and standard deviation of the time gaps of a source and of a destination, the first gap from `start`
    src_gap: tuple[float, float] = (0.0, 1.0)
    dst_gap: tuple[float, float] = (0.0, 1.0)
    node_gap: float = 1.0  # median time gap between two events of a node, without ties
    period: float = 1.0  # time from the first event to the last
    columns: ColumnFacts = field(default_factory=ColumnFacts)  # of events, the best first
    node_columns: ColumnFacts = field(default_factory=ColumnFacts)  # named node features, the best first
    edge_scale: tuple[float, ...] = ()  # factors that bring edge features near 1; none if all are near it
    num_events: int = 0  # training events

    def scales(self, count: int) -> tuple[float, ...]:
        """Return `count` time scales, log-spaced from the median time gap of a node to the training period."""
        low, high = math.log(min(self.node_gap, self.period)), math.log(self.period)
        steps = max(count - 1, 1)
        return tuple(math.exp(low + (high - low) * step / steps) for step in range(count))

    @property
    def transition_scales(self) -> tuple[float, ...]:
        """Time scales of transitions: the training period, an eighth of it, and so on."""
        return tuple(self.period / TRANSITION_STEP**power for power in range(TRANSITION_SCALES))

    def walk_decays(self, count: int, decay: float = 0.0) -> tuple[float, ...]:
        """Return `count` decays of temporal walks per unit of time.

        A single one is `decay`, or 2 over the training period if that is 0. Several are a bank: 1 / scale for time
        scales log-spaced from the median time gap of a node to `SLOWEST_WALKS` training periods, fastest first.
        """
        if count == 1:
            return (decay or 2 / self.period,)
        low, high = math.log(min(self.node_gap, self.period)), math.log(SLOWEST_WALKS * self.period)
        return tuple(math.exp(-low - (high - low) * step / (count - 1)) for step in range(count))

    @staticmethod
    def of(store: EventStore, events: Int64[Tensor, "k"] | None = None) -> "DatasetFacts":
        """Compute the facts of a stream; time statistics use the given (training) events only."""
        chosen = slice(None) if events is None else events
        time = store.time[chosen]
        period = float(time[-1] - time[0]) if len(time) > 1 else 0.0
        return DatasetFacts(
            num_nodes=store.num_nodes,
            node_dim=store.features.node.shape[1],
            edge_dim=store.features.edge.shape[1],
            gap_mean=period / (len(time) - 1) if period > 0 else 1.0,
            start=float(time[0]) if len(time) else 0.0,
            src_gap=_gap_statistics(store.src[chosen], time),
            dst_gap=_gap_statistics(store.dst[chosen], time),
            node_gap=compute_median_gap(torch.cat([store.src[chosen], store.dst[chosen]]), time.repeat(2)),
            period=period if period > 0 else 1.0,
            columns=rank_columns(store, events),
            node_columns=select_node_columns(
                store.features.node_rows, float(time[-1]) if len(time) else -math.inf
            ),
            edge_scale=compute_edge_scale(store, events),
            num_events=len(time),
        )


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Facts about the target that a model of nodes is built with.

    Attributes:
        kind: Two states, classes or a number.
        outputs: Number of outputs of the model.
        weights: Weights of the classes in the loss; none for equal ones.
        label_columns: Columns behind the edge features that hold the labels of events; 0 if labels are hidden.
    """

    kind: TargetKind = "binary"
    outputs: int = 1
    weights: tuple[float, ...] = ()
    label_columns: int = 0


def _gap_statistics(node: Int64[Tensor, "k"], time: Float64[Tensor, "k"]) -> tuple[float, float]:
    """Return mean and standard deviation of a node's time gaps; the first gap is counted from the start."""
    if not len(node):
        return 0.0, 1.0
    order = torch.argsort(node, stable=True)
    node, since = node[order], time[order] - time[0]
    again = pad(node[1:] == node[:-1], (1, 0))
    gap = since - torch.where(again, since.roll(1), 0)
    mean, deviation = compute_moments(gap)
    return mean, deviation if deviation > 0 else 1.0


class Model:
    """What scorers and encoders have in common; a model overrides what it has, and the rest does nothing.

    The memory, if there is one, changes only in `observe`, `reset`, `restore` and `load_saved_memory`.
    """

    requests: tuple[Request, ...] = ()  # look-ups for each query: neighbor sequences, counts, walks
    stateful: bool = False  # whether `observe` changes later scores
    # whether shorter look-ups give the same result as long as they drop no entries; needs one hop of recent entries
    elastic: bool = False
    saves_memory: bool = False  # whether the memory after training is saved with the weights (decision 036)

    @property
    def is_fitted(self) -> bool:
        """Whether nothing is left to fit before the first step or score."""
        return True

    def fit_inputs(self, views: Iterable[PairView]) -> None:
        """Fit the statistics of the inputs to training queries, before the first step; keep them in buffers."""

    def observe(self, events: EventBatch) -> None:
        """Update the memory with observed events."""

    def reset(self) -> None:
        """Clear the memory."""

    def snapshot(self, events: EventBatch) -> Any:
        """Return the state that observing these events will change, for `restore`."""

    def restore(self, snapshot: Any) -> None:
        """Undo `observe`: restore a snapshot, if only its events were observed since."""

    @property
    def saved_prefix(self) -> StreamPrefix | None:
        """The events in the saved memory; None if no memory is saved."""
        return None

    def save_memory(self, prefix: StreamPrefix) -> None:
        """Save the current memory, which has observed these events."""

    def load_saved_memory(self) -> None:
        """Replace the memory with the saved one."""

    def delete_saved_memory(self) -> None:
        """Delete the saved memory."""

    def allocate(self, tensors: Mapping[str, Tensor]) -> None:
        """Give buffers that grow in training the sizes of these stored ones, which are loaded next."""

    def check_buffers(self) -> None:
        """Raise ValueError for loaded values that no training gives, where they could do harm, as in indices."""


class Scorer(Model):
    """Base class of models as the engine uses them: scorer(view) returns a logit per pair, higher for a likelier event.

    A scorer with weights is also an `nn.Module`, with `forward`. One that sets `rounds_per_epoch` is fitted to all
    training queries at once, round after round, instead of by gradient steps. An epoch is so many rounds, followed by
    validation as for any other model. What the rounds fit is in buffers, so checkpoints contain it.
    """

    rounds_per_epoch: int = 0  # 0: gradient steps
    negatives: int = 1  # negative samples per training event; those of rounds are drawn once
    ranks_candidates: bool = False  # whether rounds can also learn to rank each event among its candidates
    continues_rounds: bool = False  # whether rounds can be added to those of an earlier run
    names: Sequence[str] = ()  # of the features of each pair, if these are what it reads
    __call__: Callable[[PairView], Tensor]

    def study(self, queries: Iterable[LabelledView]) -> Any:
        """Prepare the training table: all queries of the training period with their labels."""
        raise NotImplementedError

    def study_groups(self, queries: Iterable[LabelledView]) -> Any:
        """Prepare a table as `study` does, for a softmax over each event and its candidates.

        All queries of an event have the same number in `group` and come together, and every event has equally many.
        """
        raise NotImplementedError

    def learn(self, table: Any) -> Float[Tensor, ""]:
        """Run one round on the prepared table; return the mean loss before it."""
        raise NotImplementedError

    def keep_rounds(self) -> None:
        """Take the rounds learned so far as given: a new run learns further ones on its own table."""


class Heuristic(Scorer):
    """Base class of scorers without weights that use observed events only."""

    stateful = True

    def fit(self, queries: LabelledView) -> None:
        """Fit a few weights to training queries, unless `is_fitted`, in closed form or by a convex problem."""

    def snapshot(self, events: EventBatch) -> Any:
        """Copy the whole memory, which is small."""
        return deepcopy(self.__dict__)

    def restore(self, snapshot: Any) -> None:
        """Restore a snapshot."""
        self.__dict__.update(snapshot)


class Encoder(nn.Module, Model):
    """Base class of models that embed each pair as two vectors: forward(view) -> [p d], [p d].

    A model with memory sets `stateful`, keeps the memory in buffers and changes it only in `observe`.
    """

    out_dim: int
    pair_feature_dim: int = 0  # number of pair features that a link head reads next to the two embeddings
    pair_feature_requests: tuple[Request, ...] = ()  # look-ups of these features, which no embedding needs
    edge_scale: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edge_scale", None, persistent=False)

    def set_edge_scale(self, factors: Sequence[float]) -> None:
        """Multiply edge features by these factors wherever they are looked up; by none if there are none."""
        self.edge_scale = torch.tensor(factors) if factors else None

    def scale_edges(self, features: FeatureTable) -> FeatureTable:
        """Return the features with edge features in the units that this encoder reads."""
        return features if self.edge_scale is None else replace(features, edge_scale=self.edge_scale)

    def pair_features(self, view: PairView) -> tuple[Float[Tensor, "p _"], ...]:
        """Return what a link head reads next to the two embeddings, `pair_feature_dim` columns in total."""
        return ()


class NodeEncoder(Encoder):
    """Base class of encoders that embed one node at a time; each (node, time) row is encoded once for all its pairs."""

    def encode(self, view: PairView) -> Float[Tensor, "q d"]:
        """Return the embedding of each row (node, time)."""
        raise NotImplementedError

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        rows = self.encode(view)
        return gather_rows(rows, view.pairs.src_row), gather_rows(rows, view.pairs.dst_row)


class LinkHead(nn.Module):
    """One logit per pair from its two embeddings (Eq. 15) and `pair_feature_dim` columns of pair features."""

    def __init__(self, dim: int, hidden: int = 172, pair_feature_dim: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * dim + pair_feature_dim, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(
        self, src: Float[Tensor, "p d"], dst: Float[Tensor, "p d"], *pair_features: Float[Tensor, "p _"]
    ) -> Float[Tensor, "p"]:
        return self.out(relu(self.hidden(torch.cat([src, dst, *pair_features], dim=-1)))).squeeze(-1)


def require_cuttable(encoder: Encoder) -> None:
    """Raise ConfigError unless all look-ups can be shortened: one hop of the most recent entries, no random draw."""
    for request in encoder.requests:
        strategy = request.strategy if isinstance(request, NeighborRequest) else "recent"
        if len(request.fanout) > 1 or strategy != "recent":
            raise ConfigError(
                f"{type(encoder).__name__} sets elastic = True, which needs one hop of recent entries; its request has "
                f"fanout {request.fanout} and sampling '{strategy}'. Remove `elastic`",
                code="not-elastic",
            )


class EncoderWrapper(nn.Module, Scorer):
    """Base class of scorers on an encoder; requests and memory are the encoder's."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        if encoder.elastic:
            require_cuttable(encoder)
        self.encoder = encoder
        self.requests, self.stateful, self.elastic = encoder.requests, encoder.stateful, encoder.elastic
        self.saves_memory = encoder.saves_memory
        self.reset, self.snapshot, self.restore = encoder.reset, encoder.snapshot, encoder.restore
        self.save_memory, self.load_saved_memory = encoder.save_memory, encoder.load_saved_memory
        self.delete_saved_memory = encoder.delete_saved_memory

    def embed_pairs(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        """Return the embeddings of both ends of each pair."""
        if self.encoder.edge_scale is not None:
            view = replace(view, features=self.encoder.scale_edges(view.features))
        return self.encoder(view)

    def observe(self, events: EventBatch) -> None:
        """Update the memory of the encoder with observed events."""
        if self.encoder.edge_scale is not None:
            events = replace(events, features=self.encoder.scale_edges(events.features))
        self.encoder.observe(events)

    @property
    def saved_prefix(self) -> StreamPrefix | None:
        return self.encoder.saved_prefix


class EncoderScorer(EncoderWrapper):
    """An encoder with a link head."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        # each look-up once: an encoder may read a table that its pair features read too
        self.requests = tuple(dict.fromkeys((*encoder.requests, *encoder.pair_feature_requests)))
        self.head = LinkHead(encoder.out_dim, pair_feature_dim=encoder.pair_feature_dim)
        self.fit_inputs = encoder.fit_inputs

    @property
    def is_fitted(self) -> bool:
        return self.encoder.is_fitted

    def forward(self, view: PairView) -> Float[Tensor, "p"]:
        return self.head(*self.embed_pairs(view), *self.encoder.pair_features(view))


def build_scorer(
    build: Callable[[Any, DatasetFacts], Encoder | Scorer], config: Any, facts: DatasetFacts
) -> Scorer:
    """Build a model; an encoder gets the units of its edge features and a link head."""
    model = build(config, facts)
    if not isinstance(model, Encoder | Scorer):
        raise ConfigError(
            f"{type(model).__name__} is neither an Encoder nor a Scorer; derive it from `dygmamba.Encoder` or "
            "`dygmamba.Scorer`",
            code="not-a-model",
        )
    if isinstance(model, Scorer):
        return model
    own = type(model).__mro__[: type(model).__mro__.index(Encoder)]
    if not any("requests" in vars(part) for part in (model, *own)):
        raise ConfigError(
            f"{type(model).__name__} does not set `requests`; give it in the constructor what it needs, such as "
            "`self.requests = (dygmamba.NeighborRequest((20,)),)`, or () if it looks at no earlier event",
            code="no-requests",
        )
    if isinstance(config, NetworkConfig) and config.edge_units == "scaled":
        model.set_edge_scale(facts.edge_scale)
    return EncoderScorer(model)
