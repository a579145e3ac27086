"""Features of boosted trees in numpy, each with its own histories of the events so far.

The definitions are those of `sampling/counts.py`, `sampling/transitions.py` and `sampling/columns.py`, in the order of
their columns. This module is part of the exported scorer (`export_numpy.py`) and needs numpy only.

Legend: p pairs, q look-ups, s time scales, c numeric columns, k neighbors, l lags.
"""

import numpy as np

from dygmamba.runs.numpy_histories import DecayedSums, History

BITS = 30  # of a node in the key of a pair


def encode_directed_pair(a, b):
    """Return the key of an ordered pair of nodes; -1 if one of them is -1."""
    return np.where((a >= 0) & (b >= 0), (a << BITS) | b, -1)


def encode_pair(a, b):
    """Return the key of an unordered pair of nodes; -1 if one of them is -1."""
    return encode_directed_pair(np.minimum(a, b), np.maximum(a, b))


class CountFeatures:
    """Decayed counts of both nodes, of their common events and around them; numbers and ages of events."""

    def __init__(self, about):
        self.num_neighbors, self.scale = about["neighbors"], np.array(about["scales"])
        kinds = ("node", "pair", "sent", "received", "directed_pair")
        self.counts_by_kind = {kind: DecayedSums(self.scale) for kind in kinds}
        self.neighbors, self.events = History(), 0

    def append(self, src, dst, time, columns):
        ends = np.stack([src, dst], 1).ravel()
        once = np.stack(
            [np.ones(len(src), bool), src != dst], 1
        ).ravel()  # a self-loop is one event of its node
        self.counts_by_kind["node"].append(ends[once], np.repeat(time, 2)[once])
        for kind, key in {
            "pair": encode_pair(src, dst),
            "sent": src,
            "received": dst,
            "directed_pair": encode_directed_pair(src, dst),
        }.items():
            self.counts_by_kind[kind].append(key, time)
        event = (
            self.events + np.arange(len(src)).repeat(2)
        ) << BITS  # neighbors of one instant: in order of events
        self.neighbors.add(ends, np.repeat(time, 2), event | np.stack([dst, src], 1).ravel())
        self.events += len(src)

    def compute(self, src, dst, time, query):
        both, directed = encode_pair(src, dst), encode_directed_pair(src, dst)
        keys = (
            ("node", src),
            ("node", dst),
            ("pair", both),
            ("sent", src),
            ("received", dst),
            ("directed_pair", directed),
        )
        decayed = [np.log1p(self.counts_by_kind[kind].compute_counts(key, time)) for kind, key in keys]
        neighbor_counts = [
            part
            for own, other in ((src, dst), (dst, src))
            for part in self._compute_neighbor_counts(own, other, time)
        ]
        plain = [part for kind, key in keys[:5] for part in self._compute_count_and_age(kind, key, time)]
        return [*decayed, *neighbor_counts, *plain]

    def _compute_neighbor_counts(self, own, other, time):
        """Return decayed counts of events of `other` with neighbors of `own` (sum, largest), and their activity."""
        (q, k), rate = (len(own), self.num_neighbors), 1 / self.scale
        when, tie = (column[:, ::-1] for column in self.neighbors.find_recent(own, time, k))  # oldest first
        node = np.where(tie >= 0, tie & ((1 << BITS) - 1), -1)
        age = np.where(tie >= 0, time[:, None] - when, 0.0)
        later, flat = time.repeat(k), node.ravel()
        common = (
            self.counts_by_kind["pair"]
            .compute_counts(encode_pair(flat, other.repeat(k)), later, rate)
            .reshape(q, k, -1)
        )
        activity = sum_logs(
            1 + self.counts_by_kind["node"].compute_counts(flat, later, rate).reshape(q, k, -1)
        )
        total = (common * np.exp(-age[..., None] * rate)).sum(1)
        return [
            np.log1p(total),
            np.log1p(common.max(1, initial=0.0)),
            activity / np.maximum((node >= 0).sum(1), 1)[:, None],
        ]

    def _compute_count_and_age(self, kind, key, time):
        number, age = self.counts_by_kind[kind].get_count_and_age(key, time)
        return [np.log1p(number)[:, None], scale_age(age, self.scale[0])[:, None]]


def sum_logs(factor):
    """Return the sum of the logarithms over axis 1, as the logarithm of a product, which is what the trees learned."""
    product, logs = np.ones_like(factor[:, 0]), np.zeros_like(factor[:, 0])
    for turn in range(factor.shape[1]):
        product *= factor[:, turn]
        is_large = product > 1e200
        logs += np.log(product, where=is_large, out=np.zeros_like(logs))
        product[is_large] = 1.0
    return logs + np.log(product)


def scale_age(age, scale):
    """Return log(1 + age / scale), -1 where there is no event."""
    return np.where(age < 0, -1.0, np.log1p(np.maximum(age, 0) / scale))


class TransitionFeatures:
    """Decayed counts of the destination after the last destinations of the source, and ages of the source's events."""

    def __init__(self, about):
        self.lags, self.ages, self.smoothing = about["lags"], about["ages"], about["least"]
        self.shortest = min(about["scales"])
        self.followed, self.outgoing = DecayedSums(about["scales"]), DecayedSums(about["scales"])
        self.sent, self.pair_events, self.source_events = History(), DecayedSums([]), DecayedSums([])

    def append(self, src, dst, time, columns):
        self.sent.add(
            src, time, dst
        )  # those of one instant in the order of their numbers, the largest as the last
        self.pair_events.append(encode_directed_pair(src, dst), time)
        self.source_events.append(src, time)
        _, origin = self.sent.find_recent(src, time, self.lags)
        event, lag = np.nonzero(origin >= 0)
        origin = origin[event, lag]
        self.followed.append(self._encode_transition(origin, dst[event], lag), time[event])
        self.outgoing.append(origin * self.lags + lag, time[event])

    def _encode_transition(self, origin, dst, lag):
        key = encode_directed_pair(origin, dst)
        return np.where(key >= 0, key << 3 | lag, -1)

    def compute(self, src, dst, time, query):
        _, origin = self.sent.find_recent(src, time, self.lags)
        lag, later = np.arange(self.lags), time.repeat(self.lags)
        cell, total = (
            self._encode_transition(origin, dst[:, None], lag),
            np.where(origin >= 0, origin * self.lags + lag, -1),
        )
        followed = self.followed.compute_counts(cell.ravel(), later)
        outgoing = self.outgoing.compute_counts(total.ravel(), later)
        share = np.log((followed + self.smoothing[0]) / (outgoing + self.smoothing[1]))
        w, v = origin[:, :, None], dst[:, None, None]
        cells = np.concatenate(
            [self._encode_transition(w, v, lag), self._encode_transition(v, w, lag)], 1
        ).reshape(len(src), -1)
        counts = self.followed.compute_counts(
            cells.ravel(), time.repeat(cells.shape[1]), 1 / self.followed.scale
        )
        covisits = counts.reshape(*cells.shape, -1).sum(1)
        when, _ = self.sent.find_recent(src, time, self.ages)
        age = np.where(np.isinf(when), -1.0, time[:, None] - np.where(np.isinf(when), 0, when))
        flat = [np.log1p(followed).reshape(len(src), -1), share.reshape(len(src), -1), np.log1p(covisits)]
        return [*flat, scale_age(age, self.shortest), self._count_events_since(src, dst, time)[:, None]]

    def _count_events_since(self, src, dst, time):
        """Return log(1 + events of the source after its last one on the destination), -1 if there is none."""
        found, when, _ = self.pair_events.find_last(encode_directed_pair(src, dst), time)
        number, _ = self.source_events.get_count_and_age(src, time)
        until, _ = self.source_events.get_count_and_age(
            src, np.nextafter(when, np.inf)
        )  # that one and its ties included
        return np.where(found, np.log1p(np.maximum(number - until, 0)), -1.0)


class ColumnFeatures:
    """Means, sums and last values of the numbers of events, and decayed counts of their types."""

    def __init__(self, about):
        self.about, self.query, self.smoothing = about, about["query"], about["least"]
        self.center = np.array([column["mean"] for column in about["numeric"]])
        self.unit = np.array([column["deviation"] for column in about["numeric"]])
        self.numeric = [DecayedSums(about["scales"], has_latest=True) for _ in range(3)]
        self.types = [[DecayedSums(about["scales"]) for _ in range(3)] for _ in about["types"]]

    def _list_keys(self, src, dst):
        return src, dst, encode_pair(src, dst)

    def read_columns(self, columns):
        """Return the standardised numbers of each row, and the bucket of each of its types."""
        z = [
            (np.asarray(columns[column["name"]], np.float32).astype(np.float64) - column["mean"])
            / column["deviation"]
            for column in self.about["numeric"]
        ]
        buckets = []
        for column in self.about["types"]:
            rank = {value: number for number, value in enumerate(column["values"])}
            values = [str(value) for value in np.asarray(columns[column["name"]]).tolist()]
            buckets.append(np.array([rank.get(value, len(rank)) for value in values], np.int64))
        return np.stack(z, 1) if z else None, buckets

    def append(self, src, dst, time, columns):
        (z, buckets), keys = self.read_columns(columns), self._list_keys(src, dst)
        if z is not None:
            moments = np.concatenate([np.ones_like(z[:, :1]), z, z**2], 1)
            for history, key in zip(self.numeric, keys, strict=True):
                history.append(key, time, moments)
        for column, bucket, histories in zip(self.about["types"], buckets, self.types, strict=True):
            for history, key in zip(histories, keys, strict=True):
                history.append(self._encode_typed_key(key, bucket, column), time)

    def _encode_typed_key(self, key, bucket, column):
        """Return the key of a history and a type; those of pairs have 60 bits, so a remainder would collide."""
        return key * (len(column["values"]) + 1) + bucket

    def compute(self, src, dst, time, query):
        keys, (z, buckets) = self._list_keys(src, dst), (None, [None] * len(self.types))
        if self.query:
            z, buckets = self.read_columns(query)
        parts = [self._compute_numeric(keys, time, z)] if self.about["numeric"] else []
        for column, bucket, histories in zip(self.about["types"], buckets, self.types, strict=True):
            parts += self._compute_types(column, bucket, histories, keys, time)
        return parts

    def _compute_numeric(self, keys, time, z):
        c, unit, center = len(self.unit), self.unit, self.center
        parts, differences, means, lasts = [], [], [], []
        for history, key in zip(self.numeric, keys, strict=True):
            names = ("running", "latest", "same")
            found, when, (running, latest, same) = history.find_last(key, time, *names)
            if running is None or latest is None or same is None:
                running = np.zeros((len(key), len(history.scale), 1 + 2 * c))
                latest, same = np.zeros((2, len(key), 1 + 2 * c))
            decay = np.exp(-np.where(found, time - when, np.inf)[:, None] / history.scale)
            count, total, square = running[..., :1], running[..., 1 : 1 + c], running[..., 1 + c :]
            mean = np.where(count > 0, total / np.maximum(count, 1e-300), 0.0)
            last = np.where(count[:, -1] > 0, latest[:, 1 : 1 + c], 0.0)
            mean = np.where(same[:, None, 1 : 1 + c] > 0, last[:, None], mean)
            variance = np.maximum(square - total * mean, 0)[:, -1]
            spread = np.sqrt((variance + 1) / (count[:, -1] + 1))  # shrunk to that of training by one event
            amount = (total * unit + count * center) * decay[..., None]
            means.append(mean)
            lasts.append(last)
            rows = [
                (last * unit + center)[:, None],
                ((last - mean[:, -1]) * unit)[:, None],
                (spread * unit)[:, None],
            ]
            parts += [mean * unit + center, np.sign(amount) * np.log1p(np.abs(amount)), *rows]
            if z is not None:
                gaps = np.concatenate([z[:, None] - mean, (z - last)[:, None]], 1) * unit
                differences += [gaps, ((z - mean[:, -1]) / spread)[:, None]]
        parts.append(np.concatenate([means[0] - means[1], (lasts[0] - means[1][:, -1])[:, None]], 1) * unit)
        if z is not None:
            parts += [(z * unit + center)[:, None], *differences]
        return np.concatenate(parts, 1).transpose(0, 2, 1).reshape(len(time), -1)  # column after column

    def _compute_types(self, column, bucket, histories, keys, time):
        every = np.arange(len(column["values"]) + 1)
        later, shape = time.repeat(len(every)), (len(time), len(every), -1)
        counts = [
            history.compute_counts(
                self._encode_typed_key(key[:, None], every, column).ravel(), later
            ).reshape(shape)
            for history, key in zip(histories, keys, strict=True)
        ]
        counts = np.stack(counts, 1)  # [p histories buckets s]
        share = counts / np.maximum(counts.sum(2, keepdims=True), 1e-300)
        parts = [np.log1p(counts).reshape(len(time), -1), (share[:, 0] * share[:, 1]).sum(1)]
        if bucket is not None:
            same = counts[np.arange(len(time)), :, bucket]  # [p histories s]
            own = np.log((same + self.smoothing[0]) / (counts.sum(2) + self.smoothing[1]))
            parts += [bucket[:, None], np.log1p(same).reshape(len(time), -1), own.reshape(len(time), -1)]
        return parts


FEATURES = {"counts": CountFeatures, "transitions": TransitionFeatures, "columns": ColumnFeatures}
