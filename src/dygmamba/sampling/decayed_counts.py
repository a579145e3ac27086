"""Exact decayed counts of any node and of any pair, looked up on the model's device.

Only events strictly earlier than the query are counted: every look-up takes the query time. The events never change, so
the entries of all groups are one column of sorted keys, group * (t + 1) + index of the instant, and one binary search
finds the end of a query's past. Nothing is read back to the host, so a CUDA graph can capture the look-up.

Legend: e events, t instants, m entries, g groups, s scales, q queries.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float32, Float64, Int, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.decayed_counts import build_decayed_counts
from dygmamba.sampling.counts import pair_key
from dygmamba.sampling.table_request import TableRequest


@dataclass(frozen=True, slots=True)
class DecayedCountRequest(TableRequest):
    """Request for a table of decayed counts on these time scales, in which any node can be looked up."""

    on_host: ClassVar[bool] = False  # the table is on the device of the stream
    scales: tuple[float, ...]

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
    """Entries of all groups in the order of their keys, with the group's decayed count just after each entry."""

    key: Int64[Tensor, "m"]
    time: Float64[Tensor, "m"]
    running: Float32[Tensor, "m s"]

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
        return DecayedCountLists(key, counts.time, counts.running.float())

    def to(self, device: torch.device | str) -> "DecayedCountLists":
        return DecayedCountLists(self.key.to(device), self.time.to(device), self.running.to(device))

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
        if not len(self.key):
            return torch.zeros(*first.shape, len(scale), device=first.device)
        last, some = find_last_entries(self.key, first, rank)
        age = torch.where(some, time - self.time[last], 0.0)
        decay = torch.exp(-age[..., None] / scale).float()
        return torch.where(some[..., None], self.running[last] * decay, 0.0)


class KeyedTable:
    """Base class of tables whose groups are sorted keys and whose entries are numbered by instants."""

    __slots__ = ()
    instant: Float64[Tensor, "t"]
    known: Int64[Tensor, "g"]  # keys of the groups, sorted

    @property
    def _stride(self) -> int:
        return len(self.instant) + 1

    def _rank(self, time: Float64[Tensor, "*q"]) -> Int64[Tensor, "*q"]:
        """Return the number of instants strictly earlier than each time."""
        return torch.searchsorted(self.instant, time.contiguous())

    def _find_first(self, key: Int64[Tensor, "*q"], is_given: Bool[Tensor, "*q"]) -> Int64[Tensor, "*q"]:
        """Return the smallest entry key of each group; -1 if it does not exist or none is given."""
        if not len(self.known):
            return torch.full_like(key, -1)
        group = torch.searchsorted(self.known, key.contiguous()).clamp(max=len(self.known) - 1)
        return torch.where((self.known[group] == key) & is_given, group * self._stride, -1)


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


@dataclass(frozen=True, slots=True)
class DecayedCountTable(KeyedTable):
    """Decayed counts of every node and every undirected pair of a stream (or of its training events)."""

    num_nodes: int
    scale: Float64[Tensor, "s"]
    instant: Float64[Tensor, "t"]
    known: Int64[Tensor, "g"]  # keys of the pairs that ever met, sorted
    nodes: DecayedCountLists
    pairs: DecayedCountLists

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
        ends, both = torch.stack([src, dst], dim=1).flatten(), time.repeat_interleave(2)
        once = torch.stack([torch.ones_like(src, dtype=torch.bool), src != dst], dim=1).flatten()
        known, group = torch.unique(pair_key(src, dst, num_nodes), return_inverse=True)
        nodes = DecayedCountLists.build(ends[once], both[once], num_nodes, scale, instant)
        pairs = DecayedCountLists.build(group, time, len(known), scale, instant)
        return DecayedCountTable(num_nodes, scale, instant, known, nodes, pairs)

    def to(self, device: torch.device | str) -> "DecayedCountTable":
        scale, instant, known = (part.to(device) for part in (self.scale, self.instant, self.known))
        return DecayedCountTable(
            self.num_nodes, scale, instant, known, self.nodes.to(device), self.pairs.to(device)
        )

    def of_node(self, node: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of each node's events strictly before each time; zeros for node -1."""
        return self.nodes.before(node.long() * self._stride, self._rank(time), time, self.scale)

    def of_pair(
        self, a: Int[Tensor, "*q"], b: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of events between two nodes strictly before each time; zeros if one is -1."""
        first = self._find_first(pair_key(a.long(), b.long(), self.num_nodes), (a >= 0) & (b >= 0))
        return self.pairs.before(first, self._rank(time), time, self.scale)
