"""Associations of destinations: how likely one follows another, however rare or popular the two are.

Numbers of transitions (`history/transitions.py`) cannot rank a rule that is strong but rare, because a popular
destination follows a popular one more often, and they do not see a rule whose two events have many others in between.
Let the window of an event (u, v, t) be the last K destinations of the source u strictly before t; n(w, v) is the number
of events on v with w in their window, c(w) the number of events on w and N that of all events, strictly before a time
and not decayed. As for association rules (Agrawal, Imielinski and Swami, SIGMOD 1993), with c enlarged so that rare
destinations have small numbers,

    share(w, v) = n(w, v) / (c(w) + 5)    (confidence),    lift(w, v) = share(w, v) N / (c(v) + 5).

The features of a pair are the best and the mean ones over the last destinations of its source.

Legend: a appended events, p pairs, k destinations of a window, f features per pair.
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


def name_associations(window: int) -> list[str]:
    """Return the names of the features; none without a window."""
    one = f"one of the source's last {window} destinations"
    names = [
        f"best share of the events on {one} that the destination followed within {window} events",
        f"mean share of the events on {one} that the destination followed within {window} events",
        f"best lift of the destination within {window} events after {one}",
        f"mean lift of the destination within {window} events after {one}",
        f"time since {one}, that with the best share",
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
    best = xp.amax(share, axis=1)
    mean = share.sum(axis=1) / xp.clip(is_given.sum(axis=1), 1, None)
    since = xp.amin(xp.where((share == best[:, None]) & (followed > 0), age, np.inf), axis=1)
    since = xp.where(best > 0, xp.log1p(xp.clip(since, 0, None)), -1.0)
    shares = [xp.log(number + LEAST_SHARE) for number in (best, mean)]
    return xp.stack([*shares, xp.log1p(best * rate), xp.log1p(mean * rate), since], axis=1)


class Association(NamedTuple):
    """A last destination of a source, n(w, v) and c(w)."""

    node: int
    followed: int
    visits: int


class AssociationTable(Growing):
    """Numbers of events by destination, and of those that followed each destination within a window.

    Only the times of the lists are read, so they have no scales.

    Attributes:
        followers: Events on v with w in their window, by (w, v).
        visits: Events by destination.
        events: All events, as those of group 0.
    """

    def __init__(self, is_growing: bool = False) -> None:
        """Create a table without events."""
        self.followers = CountLists(np.zeros(0), KeySlots(), is_growing)
        self.visits, self.events = (CountLists(np.zeros(0), None, is_growing) for _ in range(2))

    @property
    def parts(self) -> Mapping[str, CountLists]:
        return {name: getattr(self, name) for name in ("followers", "visits", "events")}

    def append_after(self, window: Int64[np.ndarray, "a k"], rows: EventRows) -> None:
        """Append events, given the last destinations of their sources strictly before each."""
        event, key = _list_followers(window, rows.dst)
        self.followers.append(key, rows.time[event])
        self.visits.append(rows.dst, rows.time)
        self.events.append(np.zeros_like(rows.dst), rows.time)

    def drop_after(self, window: Int64[np.ndarray, "a k"], rows: EventRows) -> None:
        """Drop the newest events, given what `append_after` was given."""
        self.followers.drop(_list_followers(window, rows.dst)[1])
        self.visits.drop(rows.dst)
        self.events.drop(np.zeros_like(rows.dst))

    def count(
        self, origin: Int64[np.ndarray, "p k"], dst: Int64[np.ndarray, "p"], time: Float64[np.ndarray, "p"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return n(w, v), c(w), c(v) and N strictly before each time; the first two are 0 where w is -1."""
        when = time.repeat(origin.shape[1])
        followed, visits = (
            lists.find_number_and_age(key.ravel(), when)[0].reshape(origin.shape)
            for lists, key in ((self.followers, directed_key(origin, dst[:, None])), (self.visits, origin))
        )
        own = self.visits.find_number_and_age(dst, time)[0]
        return followed, visits, own, self.events.find_number_and_age(np.zeros_like(dst), time)[0]


def _list_followers(
    window: Int64[np.ndarray, "a k"], dst: Int64[np.ndarray, "a"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return event and key of each (w, v), for the distinct destinations w of its window."""
    is_new = window >= 0
    for lag in range(1, window.shape[1]):
        is_new[:, lag] &= (window[:, :lag] != window[:, lag, None]).all(axis=1)
    event, lag = np.nonzero(is_new)
    return event, directed_key(window[event, lag], dst[event])
