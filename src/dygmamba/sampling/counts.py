"""How often two nodes have acted and met before a time, fading on many scales: numbers about a pair, not a sequence.

Everything is strictly earlier than the question: `Counts` answers about (node, time) and has no other way to be asked.

Legend: e events, p pairs, q ends of pairs, s scales, f numbers per pair, k neighbours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.decayed_counts import (
    DecayedCounts,
    NeighborMeetings,
    add_groups,
    append_events,
    build_decayed_counts,
    count_before,
    mean_neighbor_activity,
    past_size_and_age,
    sum_neighbor_meetings,
)
from dygmamba.ops.hash_map import HashMap

NEIGHBORS_PER_TOKEN = 16  # neighbours that cost what a token costs


@dataclass(frozen=True, slots=True)
class CountRequest:
    """What a model wants counted for each pair: on these time scales, over so many neighbours of either end."""

    scales: tuple[float, ...]
    neighbors: int = 32

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0 or self.neighbors < 0:
            raise ConfigError(f"a count request needs time scales above 0, got {self.scales}")

    @property
    def tokens(self) -> int:
        """What one query takes of a pass, in tokens of a sequence: a neighbour is two numbers here and no vector."""
        return max(1, self.neighbors // NEIGHBORS_PER_TOKEN)

    @property
    def fanout(self) -> tuple[int, ...]:
        """Entries per hop."""
        return (self.neighbors,)

    def cut(self, length: int) -> "CountRequest":
        """The same with at most that many neighbours of either end."""
        return replace(self, neighbors=min(self.neighbors, length))

    @property
    def width(self) -> int:
        """Numbers per pair."""
        return len(self.names)

    @property
    def names(self) -> list[str]:
        """What each number is, in words."""
        return [
            *(f"{what}, {_scale_label(scale)}" for what in DECAYED_NAMES for scale in self.scales),
            *(f"{what}, {_scale_label(scale)}" for what in NEIGHBORHOOD_NAMES for scale in self.scales),
            *PLAIN_NAMES,
        ]


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


def _scale_label(scale: float) -> str:
    return f"fading over {scale:.4g}"


class MemoryCountGroups:
    """Fading lists of whatever has a 64-bit key: a node, a pair in either order, a pair in one direction."""

    def __init__(
        self, key: Int64[Tensor, "e"], time: Float64[Tensor, "e"], scale: Float64[Tensor, "s"]
    ) -> None:
        self._slots = HashMap(max(16, len(key)))
        slot = torch.from_numpy(self._slots.insert(key.numpy()))
        self.lists: DecayedCounts = build_decayed_counts(slot, time, len(self._slots), scale)

    def append(self, key: Int64[Tensor, "e"], time: Float64[Tensor, "e"]) -> None:
        """Later events, in constant time for each over many calls."""
        slot = torch.from_numpy(self._slots.insert(key.numpy()))
        known = self.lists.start.shape[0]
        if len(self._slots) > known:
            self.lists = add_groups(self.lists, max(len(self._slots), 2 * known))
        self.lists = append_events(self.lists, slot, time)

    def group(self, key: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The group of each key, -1 where it never occurred; a key may be negative for nobody's."""
        found = torch.from_numpy(self._slots.slots(key.flatten().clamp(min=0).numpy()))
        return torch.where(key.flatten() >= 0, found, -1).view(key.shape)


@runtime_checkable
class CountGroups(Protocol):
    """Fading lists by key, wherever they are."""

    lists: DecayedCounts

    def append(self, key: Int64[Tensor, "e"], time: Float64[Tensor, "e"]) -> None:
        """Later events."""
        ...

    def group(self, key: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The group of each key, -1 where it never occurred."""
        ...


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Every event of a stream, or the training events alone, as fading lists of nodes and of pairs; on the host."""

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
        """The lists of events in time order."""
        scale = torch.tensor(scales, dtype=torch.float64)
        listed = _keys_by_kind(src, dst, time, num_nodes)
        return EventCounts(
            num_nodes,
            scale,
            {kind: MemoryCountGroups(key, when, scale) for kind, (key, when) in listed.items()},
        )

    def append(self, src: Int64[Tensor, "e"], dst: Int64[Tensor, "e"], time: Float64[Tensor, "e"]) -> None:
        """Events that are no earlier than those it has; nothing that was asked before them changes."""
        for kind, (key, when) in _keys_by_kind(src, dst, time, self.num_nodes).items():
            self.groups[kind].append(key, when)

    def of(self, kind: str, key: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p s"]:
        """The fading count of each node or pair strictly before each time."""
        grouped = self.groups[kind]
        return count_before(grouped.lists, grouped.group(key), time)

    def numbers(
        self,
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
        near: "PairNeighbors",
    ) -> Float32[Tensor, "p f"]:
        """All numbers about each pair, in the order of `CountRequest.names`; `near` are both ends' neighbours."""
        pair, way = pair_key(src, dst, self.num_nodes), src * self.num_nodes + dst
        asked = {"node": src, "partner": dst, "pair": pair, "sent": src, "received": dst, "way": way}
        fades = [self.of(COUNT_KINDS[kind], key, time) for kind, key in asked.items()]
        busy = mean_neighbor_activity(
            self.groups["node"].lists, self.groups["node"].group(near.node), near.time
        )
        ends = zip(near.rows, (dst, src), strict=True)
        nearby = [part for row, other in ends for part in (self._met(near, row, other, time), busy[row])]
        single = (("node", src), ("node", dst), ("pair", pair), ("sent", src), ("received", dst))
        plain = [self._past(kind, key, time) for kind, key in single]
        return torch.cat([torch.log1p(torch.cat(fades, 1)), *nearby, *plain], dim=1).float()

    def _met(
        self,
        near: "PairNeighbors",
        row: Int64[Tensor, "p"],
        other: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
    ) -> Tensor:
        """How the other end of each pair has met the neighbours of the end at `row`."""
        node, pairs = near.node[row], self.groups["pair"]
        key = torch.where(node >= 0, pair_key(node, other[:, None].expand_as(node), self.num_nodes), -1)
        found = sum_neighbor_meetings(pairs.lists, NeighborMeetings(pairs.group(key), row, near.age), time)
        return torch.log1p(found).flatten(1)

    def _past(self, kind: str, key: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Tensor:
        """log(1 + events) and log(1 + age of the last one in units of the shortest scale), -1 for none."""
        grouped = self.groups[kind]
        number, age = past_size_and_age(grouped.lists, grouped.group(key), time)
        age = torch.where(age < 0, -1.0, torch.log1p(age.clamp(min=0) / self.scale[0]))
        return torch.stack([torch.log1p(number.double()), age], dim=1)


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
    """The last neighbours of ends of pairs, -1 where there is none, how long ago they met, and when that is asked.

    An end that several pairs share stands once; `rows` are where the pairs' sources and destinations stand.
    """

    node: Int64[Tensor, "q k"]
    age: Float64[Tensor, "q k"]
    time: Float64[Tensor, "q"]
    rows: tuple[Int64[Tensor, "p"], Int64[Tensor, "p"]]


def pair_key(a: Int64[Tensor, "*p"], b: Int64[Tensor, "*p"], num_nodes: int) -> Int64[Tensor, "*p"]:
    """The same number for (a, b) and (b, a)."""
    return torch.minimum(a, b) * num_nodes + torch.maximum(a, b)


def _keys_by_kind(src: Tensor, dst: Tensor, time: Tensor, num_nodes: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Keys and times of every kind of list; a self-loop is one event of its node."""
    ends, both = torch.stack([src, dst], dim=1).flatten(), time.repeat_interleave(2)
    once = torch.stack([torch.ones_like(src, dtype=torch.bool), src != dst], dim=1).flatten()
    return {
        "node": (ends[once], both[once]),
        "pair": (pair_key(src, dst, num_nodes), time),
        "sent": (src, time),
        "received": (dst, time),
        "way": (src * num_nodes + dst, time),
    }
