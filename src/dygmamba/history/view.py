"""Input of a model: a batch of pairs to score, and the neighbor sequences and tables that it requested.

Legend: p pairs, q queries (rows), l sequence length, r selected pairs or rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from operator import mul
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float32, Float64, Int32, Int64
from torch import Tensor

from dygmamba.core.choices import Strategy as Strategy
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.table_request import TableRequest


@dataclass(frozen=True, slots=True)
class NeighborRequest:
    """Request for neighbor sequences of each query.

    Attributes:
        fanout: Neighbors per hop, such as (20,) or (20, 20).
        strategy: How neighbors are chosen.
        scale: Decay rate per unit of time of the `time_aware` strategy.
    """

    on_host: ClassVar[bool] = False  # the index is on the device of the stream
    fanout: tuple[int, ...]
    strategy: Strategy = "recent"
    scale: float = 1e-6

    def __post_init__(self) -> None:
        if not self.fanout or min(self.fanout) < 0:
            raise ConfigError(
                f"a neighbor request needs a number of neighbors of at least 0 per hop; got fanout={self.fanout}",
                code="invalid-request",
            )

    @property
    def tokens(self) -> int:
        """Entries looked up per query, over all hops."""
        return sum(accumulate(self.fanout, mul))

    @staticmethod
    def longest(requests: "tuple[Request, ...]") -> int:
        """Return the largest number of entries per query among the requests."""
        return max((request.tokens for request in requests), default=0)

    def cut(self, length: int | None) -> "NeighborRequest":
        """Return the request with at most `length` entries per hop; None: the request itself."""
        return self if length is None else replace(self, fanout=tuple(min(k, length) for k in self.fanout))

    def prepare(self, index: Any) -> None:
        """Build the sampling weights, if the strategy needs them."""
        if self.strategy == "time_aware":
            index.weights(self.scale)

    def look_up(self, index: Any, pairs: Any, draws: Any) -> "tuple[NeighborSequence, ...]":
        """Return a sequence of each row per hop."""
        return index.gather(self, pairs.node, pairs.when, draws)


Request = NeighborRequest | TableRequest


@dataclass(frozen=True, slots=True)
class NeighborSequence:
    """Neighbors of each query from oldest to newest, padding last; every `time` is before `query_time`."""

    query_node: Int64[Tensor, "q"]
    query_time: Float64[Tensor, "q"]
    node: Int32[Tensor, "q l"]
    event: Int32[Tensor, "q l"]
    time: Float64[Tensor, "q l"]
    length: Int64[Tensor, "q"]

    @property
    def mask(self) -> Bool[Tensor, "q l"]:
        """True where an entry is not padding."""
        return torch.arange(self.node.shape[1], device=self.node.device) < self.length[:, None]

    @property
    def age(self) -> Float32[Tensor, "q l"]:
        """Query time minus event time, subtracted in 64 bits; 0 at padding."""
        return ((self.query_time[:, None] - self.time) * self.mask).float()

    @property
    def columns(self) -> tuple[Tensor, ...]:
        return self.query_node, self.query_time, self.node, self.event, self.time, self.length

    def __getitem__(self, rows: Int64[Tensor, "r"]) -> "NeighborSequence":
        return NeighborSequence(*(column[rows] for column in self.columns))

    def cut(self, length: int) -> "NeighborSequence":
        """Drop padding beyond `length`; no sequence may be longer than that."""
        entries = {"node": self.node, "event": self.event, "time": self.time}
        return replace(self, **{name: column[:, :length] for name, column in entries.items()})


# not `Self`, which the type checks of the tests do not support
Pairs = TypeVar("Pairs", bound="PairBatch")


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Pairs to score, each pointing at two rows of (node, time) queries: all that a model is told of them.

    Pairs that share a query point at the same row, so that it is looked up once.

    Attributes:
        node: Node of each row.
        when: Time of each row.
        src_row: Row of each pair's source.
        dst_row: Row of each pair's destination.
        lagged_time: Time before which tables (counts, walks) see events; None means the pair's own time. Under batch
            visibility tables lag behind the queries, as a memory that is updated after each batch does; sequences never
            lag.
        columns: What is known of the event in question, such as its amount; None if nothing is. A negative carries
            the columns of its positive, so that only their fit with the pair tells the two apart.
    """

    node: Int64[Tensor, "q"]
    when: Float64[Tensor, "q"]
    src_row: Int64[Tensor, "p"]
    dst_row: Int64[Tensor, "p"]
    lagged_time: Float64[Tensor, "p"] | None = None
    columns: QueryColumns | None = None

    def __len__(self) -> int:
        return self.src_row.shape[0]

    @property
    def src(self) -> Int64[Tensor, "p"]:
        return self.node[self.src_row]

    @property
    def dst(self) -> Int64[Tensor, "p"]:
        return self.node[self.dst_row]

    @property
    def time(self) -> Float64[Tensor, "p"]:
        return self.when[self.src_row]

    @property
    def table_time(self) -> Float64[Tensor, "p"]:
        """For each pair, the time before which counts and walks include events."""
        return self.time if self.lagged_time is None else self.lagged_time

    def with_table_time(self: Pairs, time: Float64[Tensor, "p"] | None) -> Pairs:
        """Return the pairs with these table times; None means the pairs' own times."""
        return replace(self, lagged_time=time)

    def with_columns(self: Pairs, columns: QueryColumns | None) -> Pairs:
        """Return the pairs with these columns of the events in question."""
        return replace(self, columns=columns)

    def with_labels(
        self, label: Float32[Tensor, "p"], group: Int64[Tensor, "p"] | None = None
    ) -> "LabelledPairs":
        """Return the pairs with these labels; groups default to the pair's number."""
        group = torch.arange(len(self), device=label.device) if group is None else group
        return LabelledPairs(*self._queries, label=label, group=group)

    def without_labels(self) -> "PairBatch":
        """Return the pairs as a model sees them."""
        return PairBatch(*self._queries)

    @property
    def _queries(self) -> tuple[Any, ...]:
        return self.node, self.when, self.src_row, self.dst_row, self.lagged_time, self.columns

    def at_table_time(self) -> "PairBatch":
        """Return the same pairs with their table times as query times."""
        if self.lagged_time is None:
            return self
        return PairBatch.from_pairs(self.src, self.dst, self.lagged_time).with_columns(self.columns)

    def to(self: Pairs, device: torch.device | str) -> Pairs:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(
            self, **{name: value.to(device) for name, value in values.items() if value is not None}
        )

    def select(self: Pairs, chosen: Int64[Tensor, "r"]) -> Pairs:
        """Return the chosen pairs, each with two rows of its own."""
        pairs = PairBatch.from_pairs(*(column[chosen] for column in (self.src, self.dst, self.time)))
        rows = {name: getattr(pairs, name) for name in ("node", "when", "src_row", "dst_row")}
        return replace(self, **rows, **self._select_columns(chosen))

    def select_shared(self: Pairs, chosen: Int64[Tensor, "r"], num_nodes: int) -> Pairs:
        """Return the chosen pairs with equal (node, time) queries merged, so that each is encoded once."""
        rows = torch.cat([self.src_row[chosen], self.dst_row[chosen]])
        instants, instant = torch.unique(self.when[rows], return_inverse=True)
        keys, row = torch.unique(self.node[rows] + num_nodes * instant, return_inverse=True)
        src, dst = row.chunk(2)
        queries = {
            "node": keys % num_nodes,
            "when": instants[keys // num_nodes],
            "src_row": src,
            "dst_row": dst,
        }
        return replace(self, **queries, **self._select_columns(chosen))

    def select_part(self: Pairs, chosen: Int64[Tensor, "r"]) -> Pairs:
        """Return the chosen pairs; all rows are kept, so that row numbers stay valid."""
        rows = {"src_row": self.src_row[chosen], "dst_row": self.dst_row[chosen]}
        return replace(self, **rows, **self._select_columns(chosen))

    def _select_columns(self, chosen: Int64[Tensor, "r"]) -> dict[str, Any]:
        """Return what the chosen pairs have besides their queries."""
        return {
            "lagged_time": None if self.lagged_time is None else self.lagged_time[chosen],
            "columns": None if self.columns is None else self.columns.select(chosen),
        }

    @staticmethod
    def from_pairs(
        src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> "PairBatch":
        """Create a batch with two rows per pair."""
        rows = torch.arange(len(src), device=src.device)
        return PairBatch(
            node=torch.cat([src, dst]),
            when=torch.cat([time, time]),
            src_row=rows,
            dst_row=rows + len(src),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPairs(PairBatch):
    """Pairs with what a task knows of them and no model that scores them may see.

    Attributes:
        label: 1 for a positive, 0 for a negative sample; of a node task the encoded target.
        group: Number of the positive that a pair belongs to.
    """

    label: Float32[Tensor, "p"]
    group: Int64[Tensor, "p"]

    def select_label(self, label: float) -> "LabelledPairs":
        """Return the pairs with this label, each with two rows of its own."""
        return self.select((self.label == label).nonzero()[:, 0])

    def _select_columns(self, chosen: Int64[Tensor, "r"]) -> dict[str, Any]:
        own = {"label": self.label[chosen], "group": self.group[chosen]}
        return PairBatch._select_columns(self, chosen) | own


@dataclass(frozen=True, slots=True)
class PairView:
    """A batch of pairs with the results of a model's requests: `view[request]`.

    A `NeighborRequest` gives a `NeighborSequence` of all rows per hop. Requests for features give a row of features per
    pair, at the pair's table time. Requests for tables give a table, to look up any node at a pair's table time.

    Attributes:
        pairs: The queries.
        features: Node and edge features of the stream.
        found: The result of each request.
    """

    pairs: PairBatch
    features: FeatureTable
    found: Mapping[Request, Any]

    def __getitem__(self, request: Request) -> Any:
        return self.found[request]

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """Tensors that differ between batches of one size; captured CUDA graphs copy new batches into them."""
        pairs, found = self.pairs, self.found.values()
        lagged = () if pairs.lagged_time is None else (pairs.lagged_time,)
        hops = [hop for hops in found if isinstance(hops, tuple) for hop in hops]
        return pairs.node, pairs.when, *lagged, *(column for hop in hops for column in hop.columns)

    def select_part(self, chosen: Int64[Tensor, "r"], length: int | None = None) -> "PairView":
        """Return the chosen pairs, sequences cut to `length` entries; all rows are kept. Only for one-hop requests."""

        def select(result: Any) -> Any:
            if isinstance(result, Tensor):  # features of each pair
                return result[chosen]
            if isinstance(result, tuple) and length is not None:
                (hop,) = result
                return (hop.cut(length),)
            return result

        found = {request: select(result) for request, result in self.found.items()}
        return replace(self, pairs=self.pairs.select_part(chosen), found=found)


class LabelledView(NamedTuple):
    """Training queries: what a model sees of them, and the labels that it learns from."""

    view: PairView
    pairs: LabelledPairs

    def select_part(self, chosen: Int64[Tensor, "r"], length: int | None = None) -> "LabelledView":
        """Return the chosen pairs, sequences cut to `length` entries; all rows are kept."""
        return LabelledView(self.view.select_part(chosen, length), self.pairs.select_part(chosen))
