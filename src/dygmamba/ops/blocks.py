"""Kernels on lists of events in blocks (`history/block_lists.py`): decayed counts and sums, last destinations.

Group i has `size[i]` entries from `start[i]` on, oldest first, and room for `room[i]`. A kernel that appends takes the
events from number `done` on and stops where an array is full; it returns the number of entries in use and the first
event that was not appended. A look-up is one binary search for the last entry strictly before a time.

- Counts: c_k = 1 + c_{k-1} exp(-(t_k - t_{k-1}) / scale) is the group's count just after its k-th entry, so the count
  before any time is that of the last earlier entry, decayed. Only time differences are exponentiated, so no time unit
  and no origin overflows.
- Sums: the same with a value x_k in place of 1.
- Last destinations: each entry has those of its source up to it, the last one first.
"""

import numpy as np

from dygmamba.ops.numba_kernels import copy_block, first_not_less, inlined, kernel, move_block

KNOWN_GROUPS = 1 << 12  # groups whose counts at an instant are kept
LARGE = 1e200  # a running product is begun again from here on, before it overflows


@inlined()
def _count_after(entries, running, scale, at, first):
    """Write the count just after entry `at`; `first` is the first entry of its block."""
    for s in range(scale.shape[0]):
        running[at, s] = 1.0
        if at > first:
            running[at, s] += running[at - 1, s] * np.exp(-(entries[at] - entries[at - 1]) / scale[s])


@kernel()
def append_counts(start, size, room, entries, running, scale, used, group, time, done):
    """Append events to the counts of their groups."""
    for i in range(done, group.shape[0]):
        v = group[i]
        if size[v] == room[v]:
            old, used = move_block(start, room, v, used, entries.shape[0])
            if old < 0:
                return used, i
            copy_block(entries, old, start[v], size[v])
            copy_block(running, old, start[v], size[v])
        at = start[v] + size[v]
        entries[at] = time[i]
        _count_after(entries, running, scale, at, start[v])
        size[v] += 1
    return used, group.shape[0]


@inlined()
def _add_values(entries, running, latest, same, scale, at, first, tied, value):
    """Write the sums and latest values of entry `at`, the `tied`-th one of its instant in the block from `first` on."""
    for c in range(value.shape[0]):
        # the latest value of equal ones is exactly that value
        same[at, c] = at == first or (same[at - 1, c] and value[c] == latest[at - 1, c])
        latest[at, c] = value[c]
        if tied > 1:
            latest[at, c] = latest[at - 1, c] + (value[c] - latest[at - 1, c]) / tied
    for s in range(scale.shape[0]):
        decay = 0.0
        if at > first:
            decay = np.exp(-(entries[at] - entries[at - 1]) / scale[s])
        for c in range(value.shape[0]):
            running[at, s, c] = value[c]
            if at > first:
                running[at, s, c] += running[at - 1, s, c] * decay


@kernel()
def append_sums(start, size, room, entries, running, latest, same, scale, used, group, time, value, done):
    """Append events to the sums of their groups."""
    for i in range(done, group.shape[0]):
        v = group[i]
        if size[v] == room[v]:
            old, used = move_block(start, room, v, used, entries.shape[0])
            if old < 0:
                return used, i
            copy_block(entries, old, start[v], size[v])
            copy_block(running, old, start[v], size[v])
            copy_block(latest, old, start[v], size[v])
            copy_block(same, old, start[v], size[v])
        at = start[v] + size[v]
        entries[at] = time[i]
        tied = 1
        while at - tied >= start[v] and entries[at - tied] == time[i]:
            tied += 1
        _add_values(entries, running, latest, same, scale, at, start[v], tied, value[i])
        size[v] += 1
    return used, group.shape[0]


@inlined()
def _insert_destination(recent, at, first, same, node):
    """Write the last destinations up to entry `at`: those of the entry before it and `node`.

    The first ones are the `same` earlier ones of the same instant, the largest first; `node` is inserted among them.
    """
    lags = recent.shape[1]
    place = 0
    while place < min(same, lags) and recent[at - 1, place] > node:
        place += 1
    for j in range(lags):
        if j == place:
            recent[at, j] = node
        else:
            other = j if j < place else j - 1
            recent[at, j] = recent[at - 1, other] if at > first else -1


@kernel()
def append_destinations(start, size, room, entries, recent, used, src, dst, time, previous, done):
    """Append events to the histories of their sources; write the last destinations strictly before each event."""
    for i in range(done, src.shape[0]):
        u = src[i]
        if size[u] == room[u]:
            old, used = move_block(start, room, u, used, entries.shape[0])
            if old < 0:
                return used, i
            copy_block(entries, old, start[u], size[u])
            copy_block(recent, old, start[u], size[u])
        first, at = start[u], start[u] + size[u]
        begin = first_not_less(entries, first, at, time[i])  # the first entry of this instant
        if begin > first:
            previous[i] = recent[begin - 1]
        _insert_destination(recent, at, first, at - begin, dst[i])
        entries[at] = time[i]
        size[u] += 1
    return used, src.shape[0]


@kernel()
def mark_first_events(number, group, is_first):
    """Add events to the number of their group; write which of them are the first."""
    for i in range(group.shape[0]):
        number[group[i]] += 1
        is_first[i] = number[group[i]] == 1


@kernel()
def drop_newest(size, group):
    """Remove the newest entry of each group, as often as the group is listed."""
    for i in range(group.shape[0]):
        size[group[i]] -= 1


@kernel()
def find_last(start, size, entries, group, time, entry):
    """Write each group's last entry strictly before each time; -1 if there is none, and for group -1."""
    for i in range(group.shape[0]):
        v = group[i]
        entry[i] = -1
        if v >= 0:
            end = first_not_less(entries, start[v], start[v] + size[v], time[i])
            if end > start[v]:
                entry[i] = end - 1


@kernel()
def count_before(start, size, entries, running, scale, group, time, out):
    """Write the decayed count of each group strictly before each time; 0 for group -1."""
    for i in range(group.shape[0]):
        v = group[i]
        out[i] = 0.0
        if v < 0:
            continue
        end = first_not_less(entries, start[v], start[v] + size[v], time[i])
        if end > start[v]:
            age = time[i] - entries[end - 1]
            for s in range(scale.shape[0]):
                out[i, s] = running[end - 1, s] * np.exp(-age / scale[s])


@kernel()
def sum_meetings(start, size, entries, running, scale, met, row, age, time, out):
    """Write the sum of the decayed counts of groups, each weighted by exp(-age / scale), and the largest of them."""
    scales, rate = scale.shape[0], 1.0 / scale
    for i in range(time.shape[0]):
        total, most = out[i, 0], out[i, 1]
        out[i] = 0.0
        for j in range(met.shape[1]):
            pair = met[i, j]
            if pair < 0:
                continue
            end = first_not_less(entries, start[pair], start[pair] + size[pair], time[i])
            if end > start[pair]:
                since = time[i] - entries[end - 1]
                for s in range(scales):
                    count = running[end - 1, s] * np.exp(-since * rate[s])
                    most[s] = max(most[s], count)
                    total[s] += count * np.exp(-age[row[i], j] * rate[s])


@inlined()
def _add_count(at, entries, running, rate, time, place, factor):
    """Add the count of the group of entry `at` to one row of factors."""
    for s in range(rate.shape[0]):
        factor[place, s] += running[at, s] * np.exp(-(time - entries[at]) * rate[s])


@inlined()
def _take_logarithms(product, logs, row):
    """Begin large products again; one logarithm of a product is cheaper than one of each factor."""
    for s in range(product.shape[0]):
        if product[s] > LARGE:
            logs[row, s] += np.log(product[s])
            product[s] = 1.0


@kernel()
def mean_activity(start, size, entries, running, scale, own, time, out):
    """Write the mean of log(1 + count) over the groups other than -1; 0 without any.

    Queries of one instant share many groups, as candidates of one event do: the counts of a group are computed once.
    """
    scales, rate = scale.shape[0], 1.0 / scale
    known, when, factor = np.full(KNOWN_GROUPS, -1), np.empty(KNOWN_GROUPS), np.empty((KNOWN_GROUPS, scales))
    product = np.empty(scales)
    for i in range(time.shape[0]):
        out[i] = 0.0
        product[:] = 1.0
        found = 0
        for j in range(own.shape[1]):
            v = own[i, j]
            if v < 0:
                continue
            found += 1
            place = v & (KNOWN_GROUPS - 1)
            if known[place] != v or when[place] != time[i]:
                known[place], when[place], factor[place] = v, time[i], 1.0
                end = first_not_less(entries, start[v], start[v] + size[v], time[i])
                if end > start[v]:
                    _add_count(end - 1, entries, running, rate, time[i], place, factor)
            is_large = False
            for s in range(scales):
                product[s] *= factor[place, s]
                is_large |= product[s] > LARGE
            if is_large:
                _take_logarithms(product, out, i)
        for s in range(scales):
            out[i, s] = (out[i, s] + np.log(product[s])) / max(found, 1)


@kernel()
def find_ages(start, size, entries, group, time, found):
    """Write the ages of each group's last entries strictly before each time; -1 if there are fewer."""
    for i in range(group.shape[0]):
        v = group[i]
        found[i] = -1.0
        if v >= 0:
            end = first_not_less(entries, start[v], start[v] + size[v], time[i])
            for j in range(min(found.shape[1], end - start[v])):
                found[i, j] = time[i] - entries[end - 1 - j]


@kernel()
def count_between(start, size, entries, group, since, time, found):
    """Write the number of entries of each group strictly later than `since` and strictly before `time`."""
    for i in range(group.shape[0]):
        v = group[i]
        found[i] = 0
        if v >= 0:
            end = first_not_less(entries, start[v], start[v] + size[v], time[i])
            found[i] = end - first_not_less(entries, start[v], end, np.nextafter(since[i], np.inf))
