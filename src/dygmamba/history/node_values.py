"""Features of a query from the values of its nodes' earlier events: new partners, and means of edge features.

Only events strictly earlier than the query are counted: every look-up takes the query time. A node may appear as a
source ("sent") and as a destination ("received"); a query looks at what its source sent, at what its source received
and at what its destination received.

Legend: e events, p pairs, s scales, v values per event, f features per pair.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from dygmamba.core.errors import ConfigError
from dygmamba.core.memory_budget import require_memory
from dygmamba.history.block_lists import EventRows, SumLists, directed_key, flatten_rows
from dygmamba.history.counts import scale_label
from dygmamba.history.table_request import FeatureRequest
from dygmamba.ops import blocks
from dygmamba.ops.growing import LEAST_SPARE, Growing
from dygmamba.ops.key_slots import KeySlots

SIDES = ("the source sent", "the source received", "the destination received")
LEAST_COUNT = 1e-9  # a decayed count below this is that of no event


@dataclass(frozen=True, slots=True)
class NodeValueFeatures(FeatureRequest):
    """Request for features of each query from the values of its nodes' earlier events.

    Attributes:
        scales: Time scales of the decay exp(-age / scale).
        columns: Columns of the edge features that are values.
    """

    scales: tuple[float, ...]
    columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0 or min(self.columns, default=0) < 0:
            raise ConfigError(
                "a request for node values needs time scales above 0 and columns of at least 0; got "
                f"scales={self.scales}, columns={self.columns}",
                code="invalid-request",
            )

    def prepare(self, index: Any) -> Any:
        return index.table(NodeValueTable, self)

    @property
    def names(self) -> list[str]:
        return [name for side in SIDES for name in self._names_of(side)]

    def _names_of(self, side: str) -> list[str]:
        means = [f"mean of value {column} of the events {side}" for column in self.columns]
        return [
            *(f"new partners in the events {side}, {scale_label(scale)}" for scale in self.scales),
            *(f"{mean}, {scale_label(scale)}" for scale in self.scales for mean in means),
            *(f"value {column} of the last event {side}" for column in self.columns),
            f"number of partners in the events {side}",
        ]


class Meetings(Growing):
    """Number of events of each pair so far."""

    arrays: ClassVar[Mapping[str, str | None]] = {"number": "pairs"}
    integers = ("pairs",)

    def __init__(self) -> None:
        self.slots, self.number, self.pairs = KeySlots(), np.zeros(LEAST_SPARE, np.int64), 0

    @property
    def parts(self) -> Mapping[str, Growing]:
        return {"slots": self.slots}

    def append(self, pair: Int64[np.ndarray, "e"]) -> Bool[np.ndarray, "e"]:
        """Count events in time order; return which of them are the first of their pair."""
        slot = self.slots.insert(pair)
        self.make_room(self.slots.count, "number")
        self.pairs = self.slots.count
        is_first = np.empty(len(pair), np.bool_)
        blocks.mark_first_events(self.number, slot, is_first)
        return is_first

    def drop(self, pair: Int64[np.ndarray, "e"]) -> None:
        """Take events away again."""
        blocks.drop_newest(self.number, self.slots.slots(pair))


class NodeValueTable(Growing):
    """Decayed sums of event values by source and by destination, over a stream (or its training events)."""

    def __init__(self, request: NodeValueFeatures, is_growing: bool = False) -> None:
        """Create a table without events."""
        self.request, width = request, 2 + len(request.columns)
        # on the last scale nothing decays, so its sums are numbers of events
        scale = np.array([*request.scales, np.finfo(np.float64).max])
        self.meetings = Meetings()
        self.sent, self.received = (SumLists(width, scale, None, is_growing) for _ in range(2))

    @property
    def parts(self) -> Mapping[str, Growing]:
        return {"meetings": self.meetings, "sent": self.sent, "received": self.received}

    def require_memory(self, events: int) -> None:
        """Raise MemoryBudgetError if the sums of so many events do not fit into memory."""
        numbers = (2 + len(self.request.columns)) * (len(self.request.scales) + 2)
        what = f"the sums of event values of {events:,} events (fewer with a smaller `values`)"
        require_memory(2 * events * numbers * 8, what)

    def append_rows(self, rows: EventRows) -> None:
        """Append events with their values."""
        is_first = self.meetings.append(directed_key(rows.src, rows.dst))
        # what is summed up for each event: 1, whether the pair meets for the first time, and its values
        values = [np.ones((len(is_first), 1)), is_first[:, None], rows.read_numbers(self.request.columns)]
        value = np.concatenate(values, axis=1, dtype=np.float64)
        for lists, node in ((self.sent, rows.src), (self.received, rows.dst)):
            lists.append(node, rows.time, value)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        self.meetings.drop(directed_key(rows.src, rows.dst))
        self.sent.drop(rows.src)
        self.received.drop(rows.dst)

    @np.errstate(all="ignore")  # numbers of any size, which may overflow
    def compute_features(
        self, src: Int64[np.ndarray, "p"], dst: Int64[np.ndarray, "p"], time: Float64[np.ndarray, "p"]
    ) -> Float32[np.ndarray, "p f"]:
        """Return all features of each pair, in the order of the names of the request."""
        sides = ((self.sent, src), (self.received, src), (self.received, dst))
        return np.concatenate([_compute_side(lists, node, time) for lists, node in sides], axis=1)


def _compute_side(
    lists: SumLists, node: Int64[np.ndarray, "p"], time: Float64[np.ndarray, "p"]
) -> Float32[np.ndarray, "p _"]:
    """Return the features of one side of each pair, whose node this is."""
    running, decay, last, _ = lists.look_up(node, time)
    sums = running * decay[..., None]
    count, partners, values = sums[..., :1], sums[..., 1], sums[..., 2:]
    mean = np.where(count > LEAST_COUNT, values / np.maximum(count, LEAST_COUNT), 0.0)
    parts = [
        np.log1p(partners[:, :-1]),
        flatten_rows(mean[:, :-1]),
        last[:, 2:],
        np.log1p(partners[:, -1:]),
    ]
    return np.concatenate(parts, axis=1, dtype=np.float32)
