"""Histories of events by key in numpy: the last entries before a time, and sums that decay with age.

Every event of a history adds exp(-age / scale) to a decayed count, on several time scales.
c_k = 1 + c_{k-1} exp(-(t_k - t_{k-1}) / scale) is the count just after the k-th event. So the count before any time is
one binary search and one decay. This module is part of the exported scorer (`export_numpy.py`) and needs numpy only.

Legend: m entries of a history, g keys, q look-ups, s time scales, c values of an event.
"""

import math

import numpy as np


class Block:
    """Entries sorted by key, time and `tie`; one binary search finds those of a key before a time."""

    def __init__(self, key, time, tie, values):
        order = np.lexsort((tie, time, key))
        self.key, self.time, self.tie = key[order], time[order], tie[order]
        self.values = {name: column[order] for name, column in values.items()}
        self.instant, number = np.unique(self.time, return_inverse=True)
        self.known, self.start, size = np.unique(self.key, return_index=True, return_counts=True)
        self.place = np.repeat(np.arange(len(size)), size) * (len(self.instant) + 1) + number

    def __len__(self):
        return len(self.key)

    def find(self, key, time):
        """Return the first entry of each key, and the first one that is not strictly earlier than each time."""
        slot = np.minimum(np.searchsorted(self.known, key), len(self.known) - 1)
        rank = np.searchsorted(self.instant, time)  # instants strictly earlier
        end = np.searchsorted(self.place, slot * (len(self.instant) + 1) + rank)
        return self.start[slot], np.where(self.known[slot] == key, end, self.start[slot])


class History:
    """Entries by key, oldest first: a few sorted blocks, each at least twice as large as the next.

    So appending an event moves each entry only a few times, and a look-up searches a few blocks.
    """

    def __init__(self):
        self.blocks = []

    def add(self, key, time, tie, **values):
        """Append entries, which must not be earlier than those before; `tie` orders those of one instant."""
        if not len(key):
            return
        block = Block(key, time, tie, values)
        while self.blocks and len(self.blocks[-1]) < 2 * len(block):
            old = self.blocks.pop()
            both = {name: np.concatenate([old.values[name], block.values[name]]) for name in values}
            parts = ((old.key, block.key), (old.time, block.time), (old.tie, block.tie))
            block = Block(*map(np.concatenate, parts), both)
        self.blocks.append(block)

    def find_last(self, key, time, *names):
        """Return, for each key, whether it has an entry strictly before the time, and time and values of the last."""
        found, when, values = np.zeros(len(key), bool), np.array(time, np.float64), {}
        for block in self.blocks:  # a later block has later entries
            start, end = block.find(key, time)
            has = end > start
            found |= has
            when[has] = block.time[end[has] - 1]
            for name in names:
                column = block.values[name]
                into = values.setdefault(name, np.zeros((len(key), *column.shape[1:])))
                into[has] = column[end[has] - 1]
        return found, when, [values.get(name) for name in names]

    def find_recent(self, key, time, count):
        """Return time and `tie` of the last entries strictly before each time, the last first; time inf if none."""
        times, ties, place = [], [], np.arange(count)
        for block in self.blocks:
            start, end = block.find(key, time)
            at = end[:, None] - 1 - place
            has = at >= start[:, None]
            times.append(np.where(has, block.time[at.clip(0)], np.inf))
            ties.append(np.where(has, block.tie[at.clip(0)], -1))
        if not times:
            return np.full((len(key), count), np.inf), np.full((len(key), count), -1)
        when, tie = np.concatenate(times, 1), np.concatenate(ties, 1)
        if len(times) > 1:  # of all blocks the last `count`
            order = np.lexsort((-tie, np.where(np.isinf(when), np.inf, -when)), axis=1)[:, :count]
            when, tie = np.take_along_axis(when, order, 1), np.take_along_axis(tie, order, 1)
        return when, tie


class DecayedSums(History):
    """Sums of the values of events by key, each times exp(-age / scale); a count is the sum of ones.

    `latest` is the mean of the values at the last instant of a key, so that the order of ties is irrelevant; `same`
    says whether all values of a key are equal.
    """

    def __init__(self, scale, has_latest=False):
        super().__init__()
        self.scale, self.has_latest = np.array(scale, np.float64), has_latest

    def append(self, key, time, value=None):
        """Append events in time order, each with a row of values (default: 1)."""
        value = np.ones((len(key), 1)) if value is None else value
        order = np.argsort(key, kind="stable")
        key, time, value = key[order], time[order], value[order]
        known, start, size = np.unique(key, return_index=True, return_counts=True)
        names = ("running", "number", *(("latest", "tied", "same") if self.has_latest else ()))
        empty = {
            "running": (len(self.scale), value.shape[1]),
            "latest": value.shape[1:],
            "same": value.shape[1:],
        }
        found, when, kept = self.find_last(known, np.full(len(known), np.inf), *names)
        state = {
            name: np.zeros((len(known), *empty.get(name, ()))) if old is None else old
            for name, old in zip(names, kept, strict=True)
        }
        when = np.where(found, when, time[start])
        columns = {name: np.empty((len(key), *state[name].shape[1:])) for name in names}
        largest = np.argsort(-size, kind="stable")
        for turn in range(int(size.max(initial=0))):  # the next event of every key that has one more
            own = largest[: np.searchsorted(-size[largest], -turn)]
            at = start[own] + turn
            gap, x = time[at] - when[own], value[at]
            decay = self._exp(-gap[:, None] / self.scale)
            state["running"][own] = x[:, None] + state["running"][own] * decay[..., None]
            if self.has_latest:
                equal = (state["same"][own] > 0) & (x == state["latest"][own])
                state["same"][own] = equal | (state["number"][own] == 0)[:, None]
                tied = np.where((gap == 0) & (state["number"][own] > 0), state["tied"][own] + 1, 1)
                moved = state["latest"][own] + (x - state["latest"][own]) / tied[:, None]
                state["latest"][own], state["tied"][own] = np.where(tied[:, None] > 1, moved, x), tied
            state["number"][own] += 1
            when[own] = time[at]
            for name in names:
                columns[name][at] = state[name][own]
        self.add(key, time, np.zeros(len(key), np.int64), **columns)

    def _exp(self, x):
        """Return exp(x); that of the C library where values are subtracted from means.

        Trees may split such a difference at the size of rounding errors, where the last bit of numpy's exp matters.
        """
        if not self.has_latest:
            return np.exp(x)
        return np.array(list(map(math.exp, x.ravel().tolist()))).reshape(x.shape)

    def compute_counts(self, key, time, rate=None):
        """Return the decayed count of each key strictly before each time [q s]; 0 for key -1."""
        found, when, (running,) = self.find_last(key, time, "running")
        if running is None:
            return np.zeros((len(key), len(self.scale)))
        age = (time - when)[:, None]
        return found[:, None] * running[..., 0] * np.exp(-age / self.scale if rate is None else -age * rate)

    def get_count_and_age(self, key, time):
        """Return the number of events of each key strictly before each time, and the age of the last, -1 if none."""
        found, when, (number,) = self.find_last(key, time, "number")
        number = np.zeros(len(key)) if number is None else number
        return number, np.where(found, time - when, -1.0)
