"""Associations of destinations: how likely one follows another, however rare or popular the two are.

Numbers of transitions (`history/transitions.py`) cannot rank a rule that is strong but rare, because a popular
destination follows a popular one more often, and they do not see a rule whose two events have many others in between.
Let the window of an event (u, v, t) be the last K destinations of the source u strictly before t; n(w, v) is the number
of events on v with w in their window, c(w) the number of events on w and N that of all events, strictly before a time
and not decayed. As for association rules (Agrawal, Imielinski and Swami, SIGMOD 1993), with c enlarged so that rare
destinations have small numbers,

    share(w, v) = n(w, v) / (c(w) + 5)    (confidence),    lift(w, v) = share(w, v) N / (c(v) + 5).

The features of a pair are the best and the mean ones over the last destinations of its source. Where events have types,
there is also the best share of *items* in the place of w. An item is a destination together with the type of the event
on it: ink is due after a printer that was bought, not after one that was only looked at. Only items later than the
source's last event on v count, in the window of an event too: once the ink was bought it is no longer due, and a
favourite that the source turns to again and again follows an item once.

Legend: a appended events, p pairs, k items of a window, f features per pair.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from dygmamba.history.block_lists import CountLists, EventRows, directed_key
from dygmamba.ops.growing import Growing
from dygmamba.ops.key_slots import KeySlots

PRIOR = 5.0  # events that are added to those of a destination
LEAST_SHARE = 1e-3  # added to a share, so that its logarithm is finite


def name_associations(window: int, column: str = "") -> list[str]:
    """Return the names of the features, the last one for the event type in `column`; none without a window."""
    one = f"one of the source's last {window} destinations"
    names = [
        f"best share of the events on {one} that the destination followed within {window} events",
        f"mean share of the events on {one} that the destination followed within {window} events",
        f"best lift of the destination within {window} events after {one}",
        f"mean lift of the destination within {window} events after {one}",
        f"time since {one}, that with the best share",
    ]
    if column:
        names += [
            f"best share of events of one {column} that the destination followed, after the source's last one there",
            f"time since the source's event with the best share of one {column}",
        ]
    return names if window else []


def summarise_associations(xp: Any, counts: tuple[Any, Any, Any, Any], is_given: Any, age: Any) -> Any:
    """Return the features of each pair, in the order of `name_associations`.

    Args:
        xp: The module of the arrays, numpy or torch.
        counts: n(w, v) and c(w) for each last destination w, [p k], and c(v) and N, [p].
        is_given: Whether there are so many last destinations, [p k].
        age: Query time minus the time of the source's event on each of them, in any unit, [p k].
    """
    followed, visits, own, events = counts
    share, rate = followed / (visits + PRIOR), events / (own + PRIOR)
    best, since = _find_best(xp, share, age)
    mean = share.sum(axis=1) / xp.clip(is_given.sum(axis=1), 1, None)
    shares = [xp.log(number + LEAST_SHARE) for number in (best, mean)]
    return xp.stack([*shares, xp.log1p(best * rate), xp.log1p(mean * rate), since], axis=1)


def summarise_types(
    followed: Int64[np.ndarray, "p k"], visits: Int64[np.ndarray, "p k"], age: Float64[np.ndarray, "p k"]
) -> Float64[np.ndarray, "p 2"]:
    """Return the features of types of each pair, given n(w, v), c(w) and ages of the last items."""
    best, since = _find_best(np, followed / (visits + PRIOR), age)
    return np.stack([np.log(best + LEAST_SHARE), since], axis=1)


def _find_best(xp: Any, share: Any, age: Any) -> tuple[Any, Any]:
    """Return the largest share of each pair and the log of the least age that has it, -1 if all shares are 0."""
    best = xp.amax(share, axis=1)
    since = xp.amin(xp.where((share == best[:, None]) & (share > 0), age, np.inf), axis=1)
    return best, xp.where(best > 0, xp.log1p(xp.clip(since, 0, None)), -1.0)


class Association(NamedTuple):
    """An item that a source was on, n(w, v) and c(w)."""

    item: int
    followed: int
    visits: int

    @property
    def share(self) -> float:
        return self.followed / (self.visits + PRIOR)


class FollowerTable(Growing):
    """Numbers of events by item, and of those that followed each item within a window.

    Only the times of the lists are read, so they have no scales. Without types an item is a destination.

    Attributes:
        followers: Events on v with w in the window that they were appended with, by (w, v).
        visits: Events by item.
    """

    def __init__(self, is_growing: bool = False) -> None:
        """Create a table without events."""
        self.followers = CountLists(np.zeros(0), KeySlots(), is_growing)
        self.visits = CountLists(np.zeros(0), None, is_growing)

    @property
    def parts(self) -> Mapping[str, CountLists]:
        return {"followers": self.followers, "visits": self.visits}

    def append_after(
        self, window: Int64[np.ndarray, "a k"], item: Int64[np.ndarray, "a"], rows: EventRows
    ) -> None:
        """Append events, given their items and the last items of their sources strictly before each."""
        event, key = _list_followers(window, rows.dst)
        self.followers.append(key, rows.time[event])
        self.visits.append(item, rows.time)

    def drop_after(
        self, window: Int64[np.ndarray, "a k"], item: Int64[np.ndarray, "a"], rows: EventRows
    ) -> None:
        """Drop the newest events, given what `append_after` was given."""
        self.followers.drop(_list_followers(window, rows.dst)[1])
        self.visits.drop(item)

    def count_followers(
        self, origin: Int64[np.ndarray, "p k"], dst: Int64[np.ndarray, "p"], time: Float64[np.ndarray, "p"]
    ) -> tuple[Int64[np.ndarray, "p k"], Int64[np.ndarray, "p k"]]:
        """Return n(w, v) and c(w) strictly before each time, 0 where w is -1."""
        when = time.repeat(origin.shape[1])
        followed, visits = (
            lists.find_number_and_age(key.ravel(), when)[0].reshape(origin.shape)
            for lists, key in ((self.followers, directed_key(origin, dst[:, None])), (self.visits, origin))
        )
        return followed, visits

    def find_best(self, origin: Int64[np.ndarray, "1 k"], dst: Any, time: Any) -> Association | None:
        """Return the item with the best share, the latest of equal ones; None if the destination followed none."""
        followed, visits = self.count_followers(origin, dst, time)
        best = int((followed / (visits + PRIOR))[0].argmax())
        if not followed[0, best]:
            return None
        return Association(int(origin[0, best]), int(followed[0, best]), int(visits[0, best]))


class AssociationTable(FollowerTable):
    """The same numbers by destination, and that of all events.

    Attributes:
        events: All events, as those of group 0.
    """

    def __init__(self, is_growing: bool = False) -> None:
        """Create a table without events."""
        super().__init__(is_growing)
        self.events = CountLists(np.zeros(0), None, is_growing)

    @property
    def parts(self) -> Mapping[str, CountLists]:
        return {**super().parts, "events": self.events}

    def append_after(
        self, window: Int64[np.ndarray, "a k"], item: Int64[np.ndarray, "a"], rows: EventRows
    ) -> None:
        super().append_after(window, item, rows)
        self.events.append(np.zeros_like(item), rows.time)

    def drop_after(
        self, window: Int64[np.ndarray, "a k"], item: Int64[np.ndarray, "a"], rows: EventRows
    ) -> None:
        super().drop_after(window, item, rows)
        self.events.drop(np.zeros_like(item))

    def count(
        self, origin: Int64[np.ndarray, "p k"], dst: Int64[np.ndarray, "p"], time: Float64[np.ndarray, "p"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return n(w, v), c(w), c(v) and N strictly before each time; the first two are 0 where w is -1."""
        own = self.visits.find_number_and_age(dst, time)[0]
        events = self.events.find_number_and_age(np.zeros_like(dst), time)[0]
        return *self.count_followers(origin, dst, time), own, events


def _list_followers(
    window: Int64[np.ndarray, "a k"], dst: Int64[np.ndarray, "a"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return event and key of each (w, v), for the distinct items w of its window."""
    is_new = window >= 0
    for lag in range(1, window.shape[1]):
        is_new[:, lag] &= (window[:, :lag] != window[:, lag, None]).all(axis=1)
    event, lag = np.nonzero(is_new)
    return event, directed_key(window[event, lag], dst[event])
