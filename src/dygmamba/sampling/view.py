"""What a model sees of the past: the pairs it is asked about and their neighbour sequences.

Legend: p pairs, q queries (rows), l sequence length.
"""

from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Literal

import torch
from jaxtyping import Bool, Float32, Float64, Int32, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.sampling.counts import CountRequest
from dygmamba.sampling.decayed_counts import DecayedCountRequest, DecayedCounts
from dygmamba.sampling.walks import TemporalWalks, WalkRequest

Strategy = Literal["recent", "uniform", "time_aware"]


@dataclass(frozen=True, slots=True)
class NeighborRequest:
    """What a model wants to know of each query: `fanout` entries per hop, chosen by `strategy`."""

    fanout: tuple[int, ...]
    strategy: Strategy = "recent"
    scale: float = 1e-6  # decay per unit of time of the time-aware strategy

    def __post_init__(self) -> None:
        if not self.fanout or min(self.fanout) < 0:
            raise ConfigError(f"a neighbour request needs a count of neighbours per hop, got {self.fanout}")

    @property
    def tokens(self) -> int:
        """Entries looked up for one query, over all hops."""
        return sum(accumulate(self.fanout, mul))

    @staticmethod
    def longest(requests: "tuple[Request, ...]") -> int:
        """The most entries that one of these requests asks for."""
        return max((request.tokens for request in requests), default=0)

    def cut(self, length: int) -> "NeighborRequest":
        """The same with at most that many entries per hop."""
        return replace(self, fanout=tuple(min(k, length) for k in self.fanout))


Request = NeighborRequest | CountRequest | DecayedCountRequest | WalkRequest


@dataclass(frozen=True, slots=True)
class NeighborSequence:
    """For each query its past entries, oldest to newest, valid ones first; every time < query_time."""

    query_node: Int64[Tensor, "q"]
    query_time: Float64[Tensor, "q"]
    node: Int32[Tensor, "q l"]
    event: Int32[Tensor, "q l"]
    time: Float64[Tensor, "q l"]
    length: Int64[Tensor, "q"]

    @property
    def mask(self) -> Bool[Tensor, "q l"]:
        """True where an entry is real."""
        return torch.arange(self.node.shape[1], device=self.node.device) < self.length[:, None]

    @property
    def age(self) -> Float32[Tensor, "q l"]:
        """Span from each entry to the query, subtracted in 64 bits; 0 where there is none."""
        return ((self.query_time[:, None] - self.time) * self.mask).float()

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """All that is known, in the order of the fields."""
        return self.query_node, self.query_time, self.node, self.event, self.time, self.length

    def __getitem__(self, rows: Int64[Tensor, "r"]) -> "NeighborSequence":
        """The sequences of these rows."""
        return NeighborSequence(*(column[rows] for column in self.columns))

    def cut(self, length: int) -> "NeighborSequence":
        """The same without the padding beyond `length`, which no sequence may exceed."""
        entries = {"node": self.node, "event": self.event, "time": self.time}
        return replace(self, **{name: column[:, :length] for name, column in entries.items()})


@dataclass(frozen=True, slots=True)
class PairBatch:
    """What is asked: pairs pointing at two rows of (node, time) queries; a negative has label 0.

    Pairs that share a query point at the same row, so its look-up is done once. `group` is the number
    of the positive a pair belongs to. With `until` tables of the past lag behind the questions, as a memory does that
    is brought up to date after each batch; sequences never do.
    """

    node: Int64[Tensor, "q"]
    when: Float64[Tensor, "q"]
    src_row: Int64[Tensor, "p"]
    dst_row: Int64[Tensor, "p"]
    label: Float32[Tensor, "p"]
    group: Int64[Tensor, "p"]
    until: Float64[Tensor, "p"] | None = (
        None  # before which tables know of events; None: before the pair's own time
    )

    def __len__(self) -> int:
        return self.src_row.shape[0]

    @property
    def src(self) -> Int64[Tensor, "p"]:
        """Source of each pair."""
        return self.node[self.src_row]

    @property
    def dst(self) -> Int64[Tensor, "p"]:
        """Destination of each pair."""
        return self.node[self.dst_row]

    @property
    def time(self) -> Float64[Tensor, "p"]:
        """Query time of each pair."""
        return self.when[self.src_row]

    @property
    def known(self) -> Float64[Tensor, "p"]:
        """The time that tables of the past are asked at: they know what is strictly earlier."""
        return self.time if self.until is None else self.until

    def as_of(self, until: Float64[Tensor, "p"] | None) -> "PairBatch":
        """The same pairs, tables asked at these times instead of the pairs' own."""
        return replace(self, until=until)

    def at_known(self) -> "PairBatch":
        """The pairs as questions at the time that tables are asked at."""
        if self.until is None:
            return self
        return PairBatch.of(self.src, self.dst, self.until, self.label, self.group)

    def to(self, device: torch.device | str) -> "PairBatch":
        """The same pairs on another device."""
        columns = (self.node, self.when, self.src_row, self.dst_row, self.label, self.group)
        until = None if self.until is None else self.until.to(device)
        return PairBatch(*(column.to(device) for column in columns), until=until)

    def of_label(self, label: float) -> "PairBatch":
        """The pairs of that label, two rows each."""
        return self.of_rows((self.label == label).nonzero()[:, 0])

    def of_rows(self, chosen: Int64[Tensor, "r"]) -> "PairBatch":
        """Some of the pairs, two rows each."""
        columns = (self.src, self.dst, self.time, self.label, self.group)
        return PairBatch.of(*(column[chosen] for column in columns)).as_of(self._until(chosen))

    def shared(self, chosen: Int64[Tensor, "r"], num_nodes: int) -> "PairBatch":
        """Some of the pairs; equal (node, time) queries become one row, so each is looked up and encoded once."""
        rows = torch.cat([self.src_row[chosen], self.dst_row[chosen]])
        instants, instant = torch.unique(self.when[rows], return_inverse=True)
        keys, row = torch.unique(self.node[rows] + num_nodes * instant, return_inverse=True)
        src, dst = row.chunk(2)
        when = instants[keys // num_nodes]
        told = self.label[chosen], self.group[chosen], self._until(chosen)
        return PairBatch(keys % num_nodes, when, src, dst, *told)

    def part(self, chosen: Int64[Tensor, "r"]) -> "PairBatch":
        """Some of the pairs; all rows are kept."""
        rows = self.src_row[chosen], self.dst_row[chosen]
        return PairBatch(
            self.node, self.when, *rows, self.label[chosen], self.group[chosen], self._until(chosen)
        )

    def _until(self, chosen: Int64[Tensor, "r"]) -> Float64[Tensor, "r"] | None:
        return None if self.until is None else self.until[chosen]

    @staticmethod
    def of(
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
        label: Float32[Tensor, "p"] | None = None,
        group: Int64[Tensor, "p"] | None = None,
    ) -> "PairBatch":
        """Loose pairs, two rows each."""
        rows = torch.arange(len(src), device=src.device)
        return PairBatch(
            node=torch.cat([src, dst]),
            when=torch.cat([time, time]),
            src_row=rows,
            dst_row=rows + len(src),
            label=torch.ones(len(src), device=src.device) if label is None else label,
            group=rows if group is None else group,
        )


@dataclass(frozen=True, slots=True)
class PairView:
    """A batch of pairs and the answers to requests: neighbors[request][hop], counts[request], tables."""

    pairs: PairBatch
    neighbors: tuple[tuple[NeighborSequence, ...], ...]
    features: FeatureTable
    counts: tuple[Float32[Tensor, "p f"], ...] = ()  # numbers about each pair, of models that ask for them
    walks: tuple[TemporalWalks, ...] = ()  # to be asked about any node at a pair's time
    fades: tuple[DecayedCounts, ...] = ()  # the same

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """What is different from batch to batch, whatever their size is."""
        hops, pairs = [hop for hops in self.neighbors for hop in hops], self.pairs
        lag = () if pairs.until is None else (pairs.until,)
        return pairs.node, pairs.when, *lag, *(column for hop in hops for column in hop.columns)

    def part(self, chosen: Int64[Tensor, "r"], length: int | None = None) -> "PairView":
        """Some of the pairs, without the padding beyond `length` entries of their one hop; all rows are kept."""
        cut = tuple((hop if length is None else hop.cut(length),) for (hop,) in self.neighbors)
        counts = tuple(numbers[chosen] for numbers in self.counts)
        return PairView(self.pairs.part(chosen), cut, self.features, counts, self.walks, self.fades)
