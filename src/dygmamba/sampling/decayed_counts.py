"""Exact decayed counts of any node and of any pair, looked up on the model's device.

Only events strictly earlier than the query are counted: every look-up takes the query time. The events never change, so
the entries of all groups are one column of sorted keys, group * (t + 1) + index of the instant, and one binary search
finds the end of a query's past. Nothing is read back to the host, so a CUDA graph can capture the look-up.

Legend: e events, t instants, m entries, g, h groups, s scales, q queries.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float32, Float64, Int, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.decayed_counts import build_decayed_counts
from dygmamba.sampling.counts import pair_key
from dygmamba.sampling.table_request import TableRequest


@dataclass(frozen=True, slots=True)
class DecayedCountRequest(TableRequest):
    """Request for a table of decayed counts on these time scales, in which any node can be looked up.

    Attributes:
        scales: Time scales of the decay exp(-age / scale).
        directed: Whether events are also counted by role: sent, received, and from one node to another.
    """

    on_host: ClassVar[bool] = False  # the table is on the device of the stream
    scales: tuple[float, ...]
    directed: bool = False

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise ConfigError(
                f"a decayed-count request needs time scales above 0; got scales={self.scales}",
                code="invalid-request",
            )


def compute_entry_keys(
    size: Int64[Tensor, "g"], time: Float64[Tensor, "m"], instant: Float64[Tensor, "t"]
) -> Int64[Tensor, "m"]:
    """Return the key of each entry: its group, in which it is one of `size` entries, and the index of its instant."""
    return torch.repeat_interleave(size) * (len(instant) + 1) + torch.searchsorted(instant, time)


def find_last_entries(
    key: Int64[Tensor, "m"], first: Int64[Tensor, "*q"], rank: Int64[Tensor, "*q"]
) -> tuple[Int64[Tensor, "*q"], Bool[Tensor, "*q"]]:
    """Return the index of each group's last entry strictly before a time, and whether there is one.

    Args:
        key: Sorted keys of all entries, at least one.
        first: Smallest key of the group; negative for no group.
        rank: Number of instants strictly earlier than the time.
    """
    last = torch.searchsorted(key, (first + rank).contiguous()) - 1
    exists = (last >= 0) & (first >= 0)
    last = last.clamp(min=0)
    return last, exists & (key[last] >= first)  # else the entry found belongs to an earlier group


@dataclass(frozen=True, slots=True)
class DecayedCountLists:
    """Entries of all groups in the order of their keys, with the group's decayed count just after each entry.

    `number` is the position of an entry in its group, from 1 on.
    """

    key: Int64[Tensor, "m"]
    time: Float64[Tensor, "m"]
    running: Float32[Tensor, "m s"]
    number: Int64[Tensor, "m"]

    @staticmethod
    def build(
        group: Int64[Tensor, "m"],
        time: Float64[Tensor, "m"],
        groups: int,
        scale: Float64[Tensor, "s"],
        instant: Float64[Tensor, "t"],
    ) -> "DecayedCountLists":
        """Count events in time order; `instant` are the distinct times of the stream, sorted."""
        counts = build_decayed_counts(group, time, groups, scale)
        key = compute_entry_keys(counts.size, counts.time, instant)
        start = torch.repeat_interleave(counts.size.cumsum(0) - counts.size, counts.size)
        number = torch.arange(1, len(key) + 1) - start
        return DecayedCountLists(key, counts.time, counts.running.float(), number)

    def to(self, device: torch.device | str) -> "DecayedCountLists":
        columns = (self.key, self.time, self.running, self.number)
        return DecayedCountLists(*(column.to(device) for column in columns))

    def before(
        self,
        first: Int64[Tensor, "*q"],
        rank: Int64[Tensor, "*q"],
        time: Float64[Tensor, "*q"],
        scale: Float64[Tensor, "s"],
    ) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of a group strictly before each time.

        Args:
            first: Smallest key of the group; negative for no group, which counts 0.
            rank: Number of instants strictly earlier than the time.
            time: Query times.
            scale: Time scales of the decay.
        """
        return self.look_up(first, rank, time, scale)[0]

    def look_up(
        self,
        first: Int64[Tensor, "*q"],
        rank: Int64[Tensor, "*q"],
        time: Float64[Tensor, "*q"],
        scale: Float64[Tensor, "s"],
    ) -> tuple[Float32[Tensor, "*q s"], Int64[Tensor, "*q"], Float64[Tensor, "*q"]]:
        """Return also the number of entries strictly before each time and the age of the latest one (-1 if none)."""
        if not len(self.key):
            none = torch.zeros(*first.shape, len(scale), device=first.device)
            return none, torch.zeros_like(first), torch.full_like(time, -1.0)
        last, some = find_last_entries(self.key, first, rank)
        age = torch.where(some, time - self.time[last], 0.0)
        decay = torch.exp(-age[..., None] / scale).float()
        count = torch.where(some[..., None], self.running[last] * decay, 0.0)
        return count, torch.where(some, self.number[last], 0), torch.where(some, age, -1.0)


class KeyedTable:
    """Base class of tables whose groups are sorted keys and whose entries are numbered by instants."""

    __slots__ = ()
    instant: Float64[Tensor, "t"]

    @property
    def _stride(self) -> int:
        return len(self.instant) + 1

    def _rank(self, time: Float64[Tensor, "*q"]) -> Int64[Tensor, "*q"]:
        """Return the number of instants strictly earlier than each time."""
        return torch.searchsorted(self.instant, time.contiguous())

    def _find_first(
        self, key: Int64[Tensor, "*q"], is_given: Bool[Tensor, "*q"], known: Int64[Tensor, "g"]
    ) -> Int64[Tensor, "*q"]:
        """Return the smallest entry key of each group; -1 if it does not exist or none is given.

        `known` are the keys of all groups, sorted.
        """
        if not len(known):
            return torch.full_like(key, -1)
        group = torch.searchsorted(known, key.contiguous()).clamp(max=len(known) - 1)
        return torch.where((known[group] == key) & is_given, group * self._stride, -1)


# Roles in which events of a pair (a, b) are counted: those of a, those between the two, those that a sent, those that a
# received, and those from a to b.
Role = Literal["node", "pair", "sent", "received", "way"]


@runtime_checkable
class DecayedCountLookup(Protocol):
    """Decayed counts of any node and any pair: of a fixed set of events, or of events that are appended to."""

    def of_node(self, node: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of each node's events strictly before each time; zeros for node -1."""
        ...

    def of_pair(
        self, a: Int[Tensor, "*q"], b: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of events between two nodes strictly before each time; zeros if one is -1."""
        ...

    def of_role(
        self, role: Role, a: Int64[Tensor, "q"], b: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
    ) -> tuple[Float32[Tensor, "q s"], Int64[Tensor, "q"], Float64[Tensor, "q"]]:
        """Return the decayed count of the events in a role, their number and the age of the latest one.

        Only events strictly before each time count; the age is -1 if there is none. Sent, received and directed events
        need a request with `directed`.
        """
        ...


@dataclass(frozen=True, slots=True)
class DirectedLists:
    """Decayed counts by role: of the events that a node sent, that it received, and from one node to another."""

    known: Int64[Tensor, "h"]  # keys of the directed pairs that ever occurred, sorted
    sent: DecayedCountLists
    received: DecayedCountLists
    ways: DecayedCountLists

    def to(self, device: torch.device | str) -> "DirectedLists":
        return DirectedLists(*(getattr(self, name).to(device) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class DecayedCountTable(KeyedTable):
    """Decayed counts of every node and every undirected pair of a stream (or of its training events)."""

    num_nodes: int
    scale: Float64[Tensor, "s"]
    instant: Float64[Tensor, "t"]
    known: Int64[Tensor, "g"]  # keys of the pairs that ever met, sorted
    nodes: DecayedCountLists
    pairs: DecayedCountLists
    directed: DirectedLists | None = None  # if they were requested

    @staticmethod
    def build(
        src: Int64[Tensor, "e"],
        dst: Int64[Tensor, "e"],
        time: Float64[Tensor, "e"],
        num_nodes: int,
        request: DecayedCountRequest,
    ) -> "DecayedCountTable":
        """Count events in time order; a self-loop is one event of its node."""
        scale, instant = torch.tensor(request.scales, dtype=torch.float64), torch.unique(time)

        def count(group: Tensor, time: Tensor, groups: int) -> DecayedCountLists:
            return DecayedCountLists.build(group, time, groups, scale, instant)

        ends, both = torch.stack([src, dst], dim=1).flatten(), time.repeat_interleave(2)
        once = torch.stack([torch.ones_like(src, dtype=torch.bool), src != dst], dim=1).flatten()
        known, group = torch.unique(pair_key(src, dst, num_nodes), return_inverse=True)
        nodes, pairs = count(ends[once], both[once], num_nodes), count(group, time, len(known))
        directed = None
        if request.directed:
            ways, way = torch.unique(src * num_nodes + dst, return_inverse=True)
            sent, received = count(src, time, num_nodes), count(dst, time, num_nodes)
            directed = DirectedLists(ways, sent, received, count(way, time, len(ways)))
        return DecayedCountTable(num_nodes, scale, instant, known, nodes, pairs, directed)

    def to(self, device: torch.device | str) -> "DecayedCountTable":
        scale, instant, known = (part.to(device) for part in (self.scale, self.instant, self.known))
        nodes, pairs = self.nodes.to(device), self.pairs.to(device)
        directed = None if self.directed is None else self.directed.to(device)
        return DecayedCountTable(self.num_nodes, scale, instant, known, nodes, pairs, directed)

    def of_node(self, node: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of each node's events strictly before each time; zeros for node -1."""
        return self.nodes.before(node.long() * self._stride, self._rank(time), time, self.scale)

    def of_pair(
        self, a: Int[Tensor, "*q"], b: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of events between two nodes strictly before each time; zeros if one is -1."""
        return self.pairs.before(self._find_pair(a, b), self._rank(time), time, self.scale)

    def of_role(
        self, role: Role, a: Int64[Tensor, "q"], b: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
    ) -> tuple[Float32[Tensor, "q s"], Int64[Tensor, "q"], Float64[Tensor, "q"]]:
        """Return the decayed count of the events in a role, their number and the age of the latest one.

        Only events strictly before each time count; the age is -1 if there is none. Sent, received and directed events
        need a request with `directed`.
        """
        lists, first = self._find_role(role, a, b)
        return lists.look_up(first, self._rank(time), time, self.scale)

    def _find_role(self, role: Role, a: Tensor, b: Tensor) -> tuple[DecayedCountLists, Tensor]:
        """Return the lists of a role and the smallest entry key of each query."""
        if role == "node":
            return self.nodes, a * self._stride
        if role == "pair":
            return self.pairs, self._find_pair(a, b)
        assert self.directed is not None
        if role == "way":
            given = (a >= 0) & (b >= 0)
            return self.directed.ways, self._find_first(a * self.num_nodes + b, given, self.directed.known)
        return self.directed.sent if role == "sent" else self.directed.received, a * self._stride

    def _find_pair(self, a: Tensor, b: Tensor) -> Tensor:
        return self._find_first(pair_key(a.long(), b.long(), self.num_nodes), (a >= 0) & (b >= 0), self.known)
