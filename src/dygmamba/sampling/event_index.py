"""Base class of indices of events: sequences by any strategy over any number of hops, and features of pairs.

`NeighborIndex` lists a fixed set of events; `LiveIndex` is one that events are appended to.

Legend: m entries, q queries, k entries per query, p pairs, f features per pair.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.ops.recent_neighbors import NeighborEntries, find_past, find_weight_quantile, last_k_before
from dygmamba.sampling.column_sums import ColumnSumRequest, ColumnSumTable
from dygmamba.sampling.columns import ColumnRequest
from dygmamba.sampling.counts import CountRequest, EventCounts, PairNeighbors
from dygmamba.sampling.decayed_counts import DecayedCountRequest, DecayedCountTable
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.event_history import EventHistory, HistoryRequest
from dygmamba.sampling.node_features import NodeFeatureRequest
from dygmamba.sampling.node_values import NodeValueRequest
from dygmamba.sampling.transition_counts import TransitionCountRequest, TransitionCountTable
from dygmamba.sampling.transitions import TransitionRequest
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairBatch, PairView, Request
from dygmamba.sampling.walks import TemporalWalks, WalkRequest


class EventIndex(ABC):
    """Base class of indices: events by node, each listed under its source and its destination."""

    __slots__ = ()

    @property
    @abstractmethod
    def entries(self) -> NeighborEntries:
        """The entries of all nodes."""

    @abstractmethod
    def weights(self, scale: float) -> Float64[Tensor, "m"]:
        """Return the cumulative sampling weights of the time-aware strategy, of all entries."""

    def past(
        self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
    ) -> tuple[Int64[Tensor, "q"], Int64[Tensor, "q"]]:
        """Return the first entry and the number of entries of each query's history; node -1 has no history."""
        return find_past(self.entries, node, time)

    def recent(self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], k: int) -> NeighborSequence:
        """Return the `k` most recent entries strictly before each query."""
        return NeighborSequence(node, time, *last_k_before(self.entries, node, time, k))

    @abstractmethod
    def counts(self, scales: tuple[float, ...]) -> EventCounts:
        """Return the decayed counts of the events on these scales."""

    @abstractmethod
    def count_features(self, request: CountRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        """Return the count features of each pair, from events strictly before its time."""

    @abstractmethod
    def transition_features(self, request: TransitionRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        """Return the transition features of each pair, from events strictly before its time."""

    @abstractmethod
    def column_features(
        self, request: ColumnRequest, pairs: PairBatch, features: FeatureTable
    ) -> Float32[Tensor, "p f"]:
        """Return the column features of each pair, from events strictly before its time, whose columns are given."""

    @abstractmethod
    def column_sums(self, request: ColumnSumRequest, features: FeatureTable) -> ColumnSumTable:
        """Return the numeric columns of the events of any pair, whose columns are given."""

    @abstractmethod
    def node_value_features(
        self, request: NodeValueRequest, pairs: PairBatch, features: FeatureTable
    ) -> Float32[Tensor, "p f"]:
        """Return the features of event values of each pair's nodes, from events strictly before its time."""

    @abstractmethod
    def node_features(
        self, request: NodeFeatureRequest, pairs: PairBatch, features: FeatureTable
    ) -> Float32[Tensor, "p f"]:
        """Return the node features of each pair's ends, as they were known strictly before its time."""

    @abstractmethod
    def history(self, request: HistoryRequest) -> EventHistory:
        """Return the history of nodes, pairs and the whole stream."""

    @abstractmethod
    def walks(self, request: WalkRequest) -> TemporalWalks:
        """Return the temporal walks of the events."""

    @abstractmethod
    def decayed_counts(self, request: DecayedCountRequest) -> DecayedCountTable:
        """Return the decayed counts of any nodes and pairs."""

    @abstractmethod
    def transition_counts(self, request: TransitionCountRequest) -> TransitionCountTable:
        """Return the transitions between any nodes."""

    def gather(
        self,
        request: NeighborRequest,
        node: Int64[Tensor, "q"],
        time: Float64[Tensor, "q"],
        draws: Draws | None = None,
    ) -> tuple[NeighborSequence, ...]:
        """Return one sequence per hop; hop h + 1 looks up each entry of hop h at that entry's own time.

        Random strategies take their draws from the root query: hop h has consecutive slots, k for each entry of the
        hop before, so that a query draws the same neighbors in any batch.
        """
        pick, root, slots = STRATEGIES[request.strategy], (node, time), 1
        hops: list[NeighborSequence] = []
        for hop, k in enumerate(request.fanout):
            if hops:
                node = torch.where(hops[-1].mask, hops[-1].node, -1).flatten().long()
                time = hops[-1].time.flatten()
            slots *= k
            if pick is None:
                hops.append(self.recent(node, time, k))
                continue
            if draws is None:
                raise ConfigError(
                    f"strategy '{request.strategy}' samples neighbors at random and needs `draws`; got None",
                    code="missing-draws",
                )
            begin, count = self.past(node, time)
            chance = draws.uniform(*root, hop, slots).view(len(node), k)
            position = pick(self, begin, count, chance, request.scale)
            hops.append(_sequences_at(self.entries, node, time, position, count))
        return tuple(hops)

    def _compute_count_features(self, request: CountRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        recent = self.recent(pairs.node, pairs.when, request.neighbors)
        age = (recent.query_time[:, None] - recent.time) * recent.mask
        node = torch.where(recent.mask, recent.node.long(), -1)
        node, age, when, src, dst = to_host(node, age, pairs.when, pairs.src_row, pairs.dst_row)
        near = PairNeighbors(node, age, when, (src, dst))
        return compute_on_host(self.counts(request.scales), pairs, near)


def to_host(*columns: Tensor) -> tuple[np.ndarray, ...]:
    """Return tensors as arrays of numpy."""
    return tuple(column.cpu().numpy() for column in columns)


def compute_on_host(table: Any, pairs: PairBatch, *more: Any) -> Float32[Tensor, "p f"]:
    """Return the features of pairs in a table of the host, on the device of the pairs."""
    features = table.compute_features(*to_host(pairs.src, pairs.dst, pairs.time), *more)
    return torch.from_numpy(features).to(pairs.node.device)


def compute_node_features(
    request: NodeFeatureRequest, pairs: PairBatch, features: FeatureTable
) -> Float32[Tensor, "p f"]:
    """Look up the node features of each pair's ends strictly before its time; they do not depend on events."""
    if features.node_rows is None:
        names = ", ".join(column.name for column in (*request.columns.numeric, *request.columns.types))
        raise EventError(
            f"this model reads the node features {names}, and the events have none; import them with the same "
            "`node_features`",
            code="node-features-missing",
        )
    queries = (pairs.src.cpu(), pairs.dst.cpu(), pairs.time.cpu())
    return request.compute_features(features.node_rows, *queries).to(pairs.node.device)


def _pick_uniform(index: EventIndex, begin: Tensor, count: Tensor, chance: Tensor, scale: float) -> Tensor:
    return begin[:, None] + (chance * count[:, None]).long()


def _pick_time_aware(index: EventIndex, begin: Tensor, count: Tensor, chance: Tensor, scale: float) -> Tensor:
    return find_weight_quantile(index.weights(scale), begin, count, chance)


# Maps random numbers in [0, 1) to entries of a history of `count` entries from `begin` on; None: the last k entries.
STRATEGIES: dict[str, Callable[[EventIndex, Tensor, Tensor, Tensor, float], Tensor] | None] = {
    "recent": None,
    "uniform": _pick_uniform,
    "time_aware": _pick_time_aware,
}


def _sequences_at(
    entries: NeighborEntries, node: Tensor, time: Tensor, position: Tensor, count: Tensor
) -> NeighborSequence:
    """Return the entries at these positions in time order; drawn with replacement, so any history fills all slots."""
    k = position.shape[1]
    some = (count[:, None] > 0).expand(-1, k)  # [q k]
    if entries.time.shape[0] == 0:
        empty = torch.zeros_like(position, dtype=torch.int32)
        return NeighborSequence(node, time, empty, empty, empty.double(), torch.zeros_like(node))
    position = torch.where(some, position, 0).sort(dim=1).values
    return NeighborSequence(
        node,
        time,
        entries.neighbor[position] * some,
        entries.event[position] * some,
        entries.time[position] * some,
        k * (count > 0).long(),
    )


def gather_view(
    index: EventIndex,
    features: FeatureTable,
    pairs: PairBatch,
    requests: tuple[Request, ...],
    draws: Draws | None = None,
    length: int | None = None,
) -> PairView:
    """Look up what a model requests for a batch of pairs; each row is looked up once per request.

    Features of pairs are those at their table time (`PairBatch.table_time`), sequences those at the pair's own time.

    Args:
        index: Events that are visible, each to later queries only.
        features: Node and edge features.
        pairs: The queries.
        requests: The model's requests.
        draws: Random numbers of the `uniform` and `time_aware` strategies; `recent` needs none.
        length: Cut sequences to so many entries per hop.
    """
    found = {
        request: request.cut(length).look_up(index, pairs, features, draws)
        for request in dict.fromkeys(requests)
    }
    # labels end here: whatever scores a view cannot read them
    return PairView(pairs.without_labels(), features, found)
