"""Exact fading counts of any node and of any two nodes, asked where a model runs: those of `counts`, on its device.

Everything is strictly earlier than the question: `Fades` answers about (node, time) and has no other way to be asked.
Its events never change, so the lists of a kind are one sorted column of keys, group * (t + 1) + number of the instant,
and the past of a question ends where one search says; nothing is read back to the host, so a step can be captured.

Legend: e events, t instants, m entries, g groups, s scales.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Float64, Int, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.decayed_counts import build_decayed_counts
from dygmamba.sampling.counts import pair_key


@dataclass(frozen=True, slots=True)
class DecayedCountRequest:
    """Counts on these time scales, of whichever nodes a model asks about."""

    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise ConfigError(f"a fade request needs time scales above 0, got {self.scales}")

    @property
    def tokens(self) -> int:
        """Entries looked up for one query: none of its own, it is asked about those of others."""
        return 0

    @property
    def fanout(self) -> tuple[int, ...]:
        """Entries per hop."""
        return (0,)

    def cut(self, length: int) -> "DecayedCountRequest":
        """The same: nothing here has a length."""
        return self


@dataclass(frozen=True, slots=True)
class DecayedCountLists:
    """The entries of groups by key, their times, and their groups' counts just after each."""

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
        """The lists of events in time order."""
        made = build_decayed_counts(group, time, groups, scale)
        owner = torch.repeat_interleave(made.size)
        key = owner * (len(instant) + 1) + torch.searchsorted(instant, made.time)
        return DecayedCountLists(key, made.time, made.running.float())

    def to(self, device: torch.device | str) -> "DecayedCountLists":
        """The same on another device."""
        return DecayedCountLists(self.key.to(device), self.time.to(device), self.running.to(device))

    def before(
        self,
        first: Int64[Tensor, "*q"],
        rank: Int64[Tensor, "*q"],
        time: Float64[Tensor, "*q"],
        scale: Float64[Tensor, "s"],
    ) -> Float32[Tensor, "*q s"]:
        """The count of the group whose keys begin at `first` strictly before each time; 0 where that is negative.

        `rank` is how many instants are strictly earlier than the time.
        """
        if not len(self.key):
            return torch.zeros(*first.shape, len(scale), device=first.device)
        last = torch.searchsorted(self.key, first + rank) - 1
        some = (last >= 0) & (first >= 0)
        last = last.clamp(min=0)
        some &= self.key[last] >= first
        age = torch.where(some, time - self.time[last], 0.0)
        fade = torch.exp(-age[..., None] / scale).float()
        return torch.where(some[..., None], self.running[last] * fade, 0.0)


@dataclass(frozen=True, slots=True)
class DecayedCounts:
    """Every event of a stream, or the training events alone, counted by node and by pair in either order."""

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
    ) -> "DecayedCounts":
        """The lists of events in time order; a self-loop is one event of its node."""
        scale, instant = torch.tensor(request.scales, dtype=torch.float64), torch.unique(time)
        ends, both = torch.stack([src, dst], dim=1).flatten(), time.repeat_interleave(2)
        once = torch.stack([torch.ones_like(src, dtype=torch.bool), src != dst], dim=1).flatten()
        known, group = torch.unique(pair_key(src, dst, num_nodes), return_inverse=True)
        nodes = DecayedCountLists.build(ends[once], both[once], num_nodes, scale, instant)
        pairs = DecayedCountLists.build(group, time, len(known), scale, instant)
        return DecayedCounts(num_nodes, scale, instant, known, nodes, pairs)

    def to(self, device: torch.device | str) -> "DecayedCounts":
        """The same on another device."""
        scale, instant, known = (part.to(device) for part in (self.scale, self.instant, self.known))
        return DecayedCounts(
            self.num_nodes, scale, instant, known, self.nodes.to(device), self.pairs.to(device)
        )

    def of_node(self, node: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]) -> Float32[Tensor, "*q s"]:
        """Events of each node strictly before each time; zeros for a node of -1."""
        return self.nodes.before(node.long() * self._stride, self._rank(time), time, self.scale)

    def of_pair(
        self, a: Int[Tensor, "*q"], b: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Events between two nodes strictly before each time; zeros where one of them is -1."""
        if not len(self.known):
            return torch.zeros(*a.shape, len(self.scale), device=a.device)
        key = pair_key(a.long(), b.long(), self.num_nodes)
        group = torch.searchsorted(self.known, key).clamp(max=len(self.known) - 1)
        met = (self.known[group] == key) & (a >= 0) & (b >= 0)
        first = torch.where(met, group * self._stride, -1)
        return self.pairs.before(first, self._rank(time), time, self.scale)

    @property
    def _stride(self) -> int:
        return len(self.instant) + 1

    def _rank(self, time: Float64[Tensor, "*q"]) -> Int64[Tensor, "*q"]:
        return torch.searchsorted(self.instant, time.contiguous())
