"""Decayed counts of the events of a pair's nodes, between them and around them, as a fixed number of features per pair.

Only events strictly earlier than the query are counted: every method of `EventCounts` takes the query time.

Legend: e events, p pairs, q endpoints of pairs, s scales, f features per pair, k neighbors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.decayed_counts import (
    DecayedCounts,
    NeighborMeetings,
    build_decayed_counts,
    count_before,
    mean_neighbor_activity,
    past_size_and_age,
    sum_neighbor_meetings,
)
from dygmamba.ops.hash_map import HashMap

NEIGHBORS_PER_TOKEN = 16  # neighbors that cost as much time as one token of a sequence


@dataclass(frozen=True, slots=True)
class CountRequest:
    """Request for count features of each pair.

    Attributes:
        scales: Time scales of the decay exp(-age / scale).
        neighbors: Recent neighbors of either endpoint that are looked at.
    """

    on_host: ClassVar[bool] = True  # counts are looked up on the CPU
    scales: tuple[float, ...]
    neighbors: int = 32

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0 or self.neighbors < 0:
            raise ConfigError(
                "a count request needs time scales above 0 and a number of neighbors of at least 0; got "
                f"scales={self.scales}, neighbors={self.neighbors}",
                code="invalid-request",
            )

    @property
    def tokens(self) -> int:
        """Cost of one query in tokens of a sequence: a neighbor is two numbers here, not a vector."""
        return max(1, self.neighbors // NEIGHBORS_PER_TOKEN)

    @property
    def fanout(self) -> tuple[int, ...]:
        return (self.neighbors,)

    def cut(self, length: int) -> "CountRequest":
        """Return the request with at most `length` neighbors of either endpoint."""
        return replace(self, neighbors=min(self.neighbors, length))

    @property
    def width(self) -> int:
        """Number of features per pair."""
        return len(self.names)

    @property
    def names(self) -> list[str]:
        """Description of each feature, in the order of the columns."""
        return [
            *(f"{what}, {scale_label(scale)}" for what in DECAYED_NAMES for scale in self.scales),
            *(f"{what}, {scale_label(scale)}" for what in NEIGHBORHOOD_NAMES for scale in self.scales),
            *PLAIN_NAMES,
        ]


# A checkpoint of boosted trees holds a checksum of these names: rewording one makes old runs unreadable.
DECAYED_NAMES = (
    "events of the source",
    "events of the destination",
    "events between them",
    "events the source sent",
    "events the destination received",
    "events from source to destination",
)
NEIGHBORHOOD_NAMES = tuple(
    text.format(*ends)
    for ends in (("source", "destination"), ("destination", "source"))
    for text in (
        "meetings of the {1} with the {0}'s neighbours",
        "most meetings of the {1} with one of the {0}'s neighbours",
        "how busy the {0}'s neighbours are",
    )
)
PLAIN_NAMES = tuple(
    f"{what} {whose}"
    for whose in (
        "of the source",
        "of the destination",
        "between them",
        "the source sent",
        "the destination received",
    )
    for what in ("number of events", "time since the last event")
)


def scale_label(scale: float) -> str:
    """Return the end of the name of a decayed count: its time scale."""
    return f"fading over {scale:.4g}"


class MemoryCountGroups:
    """Decayed counts in memory by 64-bit key: a node, an undirected pair or a directed pair."""

    def __init__(
        self, key: Int64[Tensor, "e"], time: Float64[Tensor, "e"], scale: Float64[Tensor, "s"]
    ) -> None:
        self._slots = HashMap(max(16, len(key)))
        slot = torch.from_numpy(self._slots.insert(key.numpy()))
        self.lists: DecayedCounts = build_decayed_counts(slot, time, len(self._slots), scale)

    def group(self, key: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """Return the group of each key, -1 for unknown and for negative keys (padding)."""
        slot = torch.from_numpy(self._slots.slots(key.flatten().clamp(min=0).numpy()))
        return torch.where(key.flatten() >= 0, slot, -1).view(key.shape)


@runtime_checkable
class CountGroups(Protocol):
    """Decayed counts by key, in memory or on disk."""

    @property
    def lists(self) -> DecayedCounts: ...

    def group(self, key: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """Return the group of each key, -1 for unknown keys."""
        ...


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Decayed counts of nodes and pairs over a stream (or its training events); tensors are on the CPU."""

    num_nodes: int
    scale: Float64[Tensor, "s"]
    groups: Mapping[str, CountGroups] = field(repr=False)

    @staticmethod
    def build(
        src: Int64[Tensor, "e"],
        dst: Int64[Tensor, "e"],
        time: Float64[Tensor, "e"],
        num_nodes: int,
        scales: tuple[float, ...],
    ) -> "EventCounts":
        """Count events that are in time order."""
        scale = torch.tensor(scales, dtype=torch.float64)
        keys = _keys_by_kind(src, dst, time, num_nodes)
        return EventCounts(
            num_nodes,
            scale,
            {kind: MemoryCountGroups(key, when, scale) for kind, (key, when) in keys.items()},
        )

    def count(self, kind: str, key: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p s"]:
        """Return the decayed count of each node or pair strictly before each time, on every scale."""
        groups = self.groups[kind]
        return count_before(groups.lists, groups.group(key), time)

    def compute_features(
        self,
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
        near: "PairNeighbors",
    ) -> Float32[Tensor, "p f"]:
        """Return all features of each pair, in the order of `CountRequest.names`."""
        pair, way = pair_key(src, dst, self.num_nodes), src * self.num_nodes + dst
        keys = {"node": src, "partner": dst, "pair": pair, "sent": src, "received": dst, "way": way}
        decayed = [self.count(COUNT_KINDS[kind], key, time) for kind, key in keys.items()]
        busy = mean_neighbor_activity(
            self.groups["node"].lists, self.groups["node"].group(near.node), near.time
        )
        ends = zip(near.rows, (dst, src), strict=True)
        nearby = [
            part
            for row, other in ends
            for part in (self._neighbor_meetings(near, row, other, time), busy[row])
        ]
        single = (("node", src), ("node", dst), ("pair", pair), ("sent", src), ("received", dst))
        plain = [self._size_and_age(kind, key, time) for kind, key in single]
        return torch.cat([torch.log1p(torch.cat(decayed, 1)), *nearby, *plain], dim=1).float()

    def _neighbor_meetings(
        self,
        near: "PairNeighbors",
        row: Int64[Tensor, "p"],
        other: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
    ) -> Tensor:
        """Count meetings of each pair's other endpoint with the neighbors of the endpoint at `row`."""
        node, pairs = near.node[row], self.groups["pair"]
        key = torch.where(node >= 0, pair_key(node, other[:, None].expand_as(node), self.num_nodes), -1)
        meetings = sum_neighbor_meetings(pairs.lists, NeighborMeetings(pairs.group(key), row, near.age), time)
        return torch.log1p(meetings).flatten(1)

    def _size_and_age(self, kind: str, key: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Tensor:
        """Return log(1 + events) and log(1 + age of the last event / shortest scale), the latter -1 without events."""
        groups = self.groups[kind]
        number, age = past_size_and_age(groups.lists, groups.group(key), time)
        age = torch.where(age < 0, -1.0, torch.log1p(age.clamp(min=0) / self.scale[0]))
        return torch.stack([torch.log1p(number.double()), age], dim=1)


# the group that computes each key of `compute_features`
COUNT_KINDS = {
    "node": "node",
    "partner": "node",
    "pair": "pair",
    "sent": "sent",
    "received": "received",
    "way": "way",
}


@dataclass(frozen=True, slots=True)
class PairNeighbors:
    """Recent neighbors of the endpoints of pairs, each distinct (node, time) query once.

    Attributes:
        node: Neighbors of each query, -1 as padding.
        age: Query time minus the time of the event with that neighbor.
        time: Query times.
        rows: Query of each pair's source and of its destination.
    """

    node: Int64[Tensor, "q k"]
    age: Float64[Tensor, "q k"]
    time: Float64[Tensor, "q"]
    rows: tuple[Int64[Tensor, "p"], Int64[Tensor, "p"]]


def pair_key(a: Int64[Tensor, "*p"], b: Int64[Tensor, "*p"], num_nodes: int) -> Int64[Tensor, "*p"]:
    """Return a key of undirected pairs: the same for (a, b) and (b, a)."""
    return torch.minimum(a, b) * num_nodes + torch.maximum(a, b)


def _keys_by_kind(src: Tensor, dst: Tensor, time: Tensor, num_nodes: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the keys and times of every kind of group; a self-loop is one event of its node."""
    ends, both = torch.stack([src, dst], dim=1).flatten(), time.repeat_interleave(2)
    once = torch.stack([torch.ones_like(src, dtype=torch.bool), src != dst], dim=1).flatten()
    return {
        "node": (ends[once], both[once]),
        "pair": (pair_key(src, dst, num_nodes), time),
        "sent": (src, time),
        "received": (dst, time),
        "way": (src * num_nodes + dst, time),
    }
