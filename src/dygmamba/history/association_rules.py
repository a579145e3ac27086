"""Associations between destinations: how often one followed another among the last destinations of a source.

For an event (u, v, t) let W be the set of the last destinations of the source u strictly before t. The event then says
that v followed each w of W. c(w -> v) is the number of events that say so strictly before a time, c(w) the number of
events on w. The confidence of the rule "after w comes v" is c(w -> v) / (c(w) + 5) (Agrawal et al., SIGMOD 1993); the 5
keeps rules of few events low. Events at the same instant do not see each other (`history/transitions.py`).

Legend: a appended events, q queries, w last destinations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from dygmamba.history.block_lists import CountLists, EventRows, directed_key
from dygmamba.history.table_request import TableRequest
from dygmamba.history.transitions import DestinationLists
from dygmamba.ops.growing import Growing
from dygmamba.ops.key_slots import KeySlots

PRIOR_EVENTS = 5.0  # added to the events of a destination


@dataclass(frozen=True, slots=True)
class AssociationRequest(TableRequest):
    """Request for a table of associations; `window` last destinations of a source count."""

    window: int = 10

    def prepare(self, index: Any) -> Any:
        return index.table(AssociationTable, self)


class AssociationTable(Growing):
    """Numbers of associations between destinations over a stream.

    Attributes:
        sources: Last destinations of every source.
        followed: Events that say v followed w, by (w, v); only their times are read, so there is no scale.
        visits: Events by destination.
    """

    def __init__(self, request: AssociationRequest, is_growing: bool = False) -> None:
        """Create a table without events."""
        no_scale = np.zeros(0)
        self.sources = DestinationLists(request.window, is_growing)
        self.followed = CountLists(no_scale, KeySlots(), is_growing)
        self.visits = CountLists(no_scale, None, is_growing)

    @property
    def parts(self) -> Mapping[str, Growing]:
        return {name: getattr(self, name) for name in ("sources", "followed", "visits")}

    def append_rows(self, rows: EventRows) -> None:
        """Append events."""
        for part in rows.split():
            previous = self.sources.append(part)
            event, place = np.nonzero(_find_distinct(previous))
            self.followed.append(directed_key(previous[event, place], part.dst[event]), part.time[event])
            self.visits.append(part.dst, part.time)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        previous = self.sources.last_destinations(rows.src, rows.time)  # as they were appended
        event, place = np.nonzero(_find_distinct(previous))
        self.followed.drop(directed_key(previous[event, place], rows.dst[event]))
        self.visits.drop(rows.dst)
        self.sources.drop(rows.src)

    def find_best_confidence(
        self, src: Int64[np.ndarray, "q"], dst: Int64[np.ndarray, "q"], time: Float64[np.ndarray, "q"]
    ) -> Float64[np.ndarray, "q"]:
        """Return the highest confidence of a rule from one of the source's last destinations to the destination."""
        recent = self.sources.last_destinations(src, time)  # [q w]
        when = np.broadcast_to(time[:, None], recent.shape).ravel()
        rule = np.where(recent >= 0, directed_key(recent, dst[:, None]), -1).ravel()
        followed = self.followed.find_number_and_age(rule, when)[0]
        visits = self.visits.find_number_and_age(recent.ravel(), when)[0]
        return (followed / (visits + PRIOR_EVENTS)).reshape(recent.shape).max(axis=1)


def _find_distinct(previous: Int64[np.ndarray, "a w"]) -> Bool[np.ndarray, "a w"]:
    """Return where a last destination stands for the first time in its row; False at padding."""
    first = previous >= 0
    for place in range(1, previous.shape[1]):
        first[:, place] &= (previous[:, place, None] != previous[:, :place]).all(axis=1)
    return first
