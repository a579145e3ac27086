"""Decayed counts of the events of a pair's nodes, between them and around them, as a fixed number of features per pair.

Only events strictly earlier than the query are counted: every look-up takes the query time.

Legend: e events, p pairs, q endpoints of pairs, s scales, f features per pair, k neighbors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int64

from dygmamba.core.errors import ConfigError
from dygmamba.history.block_lists import (
    CountLists,
    EventRows,
    directed_key,
    flatten_rows,
    interleave,
    pair_key,
)
from dygmamba.history.table_request import HISTORY, FeatureGroup, FeatureRequest, FeatureUnit
from dygmamba.ops.growing import Growing
from dygmamba.ops.key_slots import KeySlots

NEIGHBORS_PER_TOKEN = 16  # neighbors that cost as much time as one token of a sequence


@dataclass(frozen=True, slots=True)
class CountFeatures(FeatureRequest):
    """Request for count features of each pair.

    Attributes:
        scales: Time scales of the decay exp(-age / scale).
        neighbors: Recent neighbors of either endpoint that are looked at.
    """

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

    def prepare(self, index: Any) -> Any:
        return index.counts(self.scales)

    def compute(self, index: Any, pairs: Any, src: Any, dst: Any, time: Any) -> Any:
        near = index.find_pair_neighbors(pairs, self.neighbors)
        return self.prepare(index).compute_features(src, dst, time, near)

    @property
    def units(self) -> list[FeatureUnit]:
        """Name of each feature, and the events that it counts."""
        decayed = [
            FeatureUnit(f"{what}, {scale_label(scale)}", group)
            for what, group in (DECAYED_NAMES | dict.fromkeys(NEIGHBORHOOD_NAMES, NEIGHBORS)).items()
            for scale in self.scales
        ]
        return decayed + [FeatureUnit(*named) for named in PLAIN_NAMES.items()]


SOURCE, DESTINATION, PAIR, NEIGHBORS = (
    FeatureGroup(HISTORY, f"{whose} events")
    for whose in ("source's", "destination's", "pair's", "neighbors'")
)
# names of features, with the events that they count
DECAYED_NAMES = {
    "events of the source": SOURCE,
    "events of the destination": DESTINATION,
    "events between them": PAIR,
    "events the source sent": SOURCE,
    "events the destination received": DESTINATION,
    "events from source to destination": PAIR,
}
NEIGHBORHOOD_NAMES = tuple(
    text.format(*ends)
    for ends in (("source", "destination"), ("destination", "source"))
    for text in (
        "meetings of the {1} with the {0}'s neighbours",
        "most meetings of the {1} with one of the {0}'s neighbours",
        "how busy the {0}'s neighbours are",
    )
)
PLAIN_NAMES = {
    f"{what} {whose}": group
    for whose, group in (
        ("of the source", SOURCE),
        ("of the destination", DESTINATION),
        ("between them", PAIR),
        ("the source sent", SOURCE),
        ("the destination received", DESTINATION),
    )
    for what in ("number of events", "time since the last event")
}


def scale_label(scale: float) -> str:
    """Return the end of the name of a decayed count: its time scale."""
    return f"fading over {scale:.4g}"


# groups of counts: of a node and a pair in any role, of a node as source or destination, of a directed pair
COUNT_KINDS = ("node", "pair", "sent", "received", "directed_pair")
NODE_KINDS = ("node", "sent", "received")  # of them: their keys are nodes


class EventCounts(Growing):
    """Decayed counts of nodes and pairs over the events of a stream (or its training events)."""

    def __init__(
        self,
        scales: tuple[float, ...],
        groups: Mapping[str, CountLists] | None = None,
        is_growing: bool = False,
    ) -> None:
        """Create counts without events, or with lists that have some."""
        self.scale = np.array(scales)
        self.groups = groups or {kind: create_lists(kind, self.scale, is_growing) for kind in COUNT_KINDS}

    @property
    def parts(self) -> Mapping[str, Growing]:
        return self.groups

    def append_rows(self, rows: EventRows) -> None:
        """Append events."""
        for kind, lists in self.groups.items():
            lists.append(*_list_keys(rows, kind))

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        for kind, lists in self.groups.items():
            lists.drop(_list_keys(rows, kind)[0])

    @np.errstate(all="ignore")  # numbers of any size, which may overflow
    def compute_features(
        self,
        src: Int64[np.ndarray, "p"],
        dst: Int64[np.ndarray, "p"],
        time: Float64[np.ndarray, "p"],
        near: "PairNeighbors",
    ) -> Float32[np.ndarray, "p f"]:
        """Return all features of each pair, in the order of `CountFeatures.names`."""
        pair = pair_key(src, dst)
        single = (("node", src), ("node", dst), ("pair", pair), ("sent", src), ("received", dst))
        keys = (*single, ("directed_pair", directed_key(src, dst)))
        decayed = [self.groups[kind].count_before(key, time) for kind, key in keys]
        busy = self.groups["node"].mean_activity(near.node, near.time)
        nearby = [
            part
            for row, other in zip(near.rows, (dst, src), strict=True)
            for part in (self._neighbor_meetings(near, row, other, time), busy[row])
        ]
        plain = [self._size_and_age(kind, key, time) for kind, key in single]
        return np.concatenate([np.log1p(np.concatenate(decayed, 1)), *nearby, *plain], 1, dtype=np.float32)

    def _neighbor_meetings(
        self,
        near: "PairNeighbors",
        row: Int64[np.ndarray, "p"],
        other: Int64[np.ndarray, "p"],
        time: Float64[np.ndarray, "p"],
    ) -> np.ndarray:
        """Count meetings of each pair's other endpoint with the neighbors of the endpoint at `row`."""
        key = pair_key(near.node[row], other[:, None])
        meetings = self.groups["pair"].sum_meetings(key, row, near.age, time)
        return flatten_rows(np.log1p(meetings))

    def _size_and_age(
        self, kind: str, key: Int64[np.ndarray, "p"], time: Float64[np.ndarray, "p"]
    ) -> np.ndarray:
        """Return log(1 + events) and log(1 + age of the last event / shortest scale), the latter -1 without events."""
        number, age = self.groups[kind].find_number_and_age(key, time)
        age = np.where(age < 0, -1.0, np.log1p(np.maximum(age, 0) / self.scale[0]))
        return np.stack([np.log1p(number), age], axis=1)


def create_lists(kind: str, scale: Float64[np.ndarray, "s"], is_growing: bool = False) -> CountLists:
    """Create counts of a kind without events."""
    return CountLists(scale, None if kind in NODE_KINDS else KeySlots(), is_growing)


def _list_keys(rows: EventRows, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys and times of a kind of groups; a self-loop is one event of its node."""
    match kind:
        case "node":
            is_loop = rows.src == rows.dst
            if not is_loop.any():
                return rows.ends, rows.end_times
            once = interleave(np.ones_like(is_loop), ~is_loop)
            return rows.ends[once], rows.end_times[once]
        case "pair":
            return pair_key(rows.src, rows.dst), rows.time
        case "sent":
            return rows.src, rows.time
        case "received":
            return rows.dst, rows.time
        case _:
            return directed_key(rows.src, rows.dst), rows.time


@dataclass(frozen=True, slots=True)
class PairNeighbors:
    """Recent neighbors of the endpoints of pairs, each distinct (node, time) query once.

    Attributes:
        node: Neighbors of each query, -1 as padding.
        age: Query time minus the time of the event with that neighbor.
        time: Query times.
        rows: Query of each pair's source and of its destination.
    """

    node: Int64[np.ndarray, "q k"]
    age: Float64[np.ndarray, "q k"]
    time: Float64[np.ndarray, "q"]
    rows: tuple[Int64[np.ndarray, "p"], Int64[np.ndarray, "p"]]
