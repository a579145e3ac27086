"""Count features of pairs: equal to brute force, strictly earlier, the same in any batch."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract_cases import sample_store
from dygmamba.history.counts import CountFeatures
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import PairBatch
from strategies import event_streams

SCALES = (0.5, 4.0)
REQUEST = CountFeatures(SCALES, neighbors=3)


def numbers(store, pairs, request=REQUEST, events=None):
    index = Index(store, events)
    return gather_view(index, store.features, pairs, (request,))[request]


def every_pair(store, time):
    nodes = torch.arange(store.num_nodes)
    src, dst = torch.cartesian_prod(nodes, nodes).T
    return PairBatch.from_pairs(src, dst, torch.full((len(src),), time, dtype=torch.float64))


def by_name(store, u, v, now):
    """Features of one pair by brute force over the list of events, by their names."""
    past = [
        e for e in zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True) if e[2] < now
    ]

    def fading(test, scale):
        return sum(math.exp(-(now - t) / scale) for a, b, t in past if test(a, b))

    def met(w, x, scale):
        return fading(lambda a, b: {a, b} == {w, x}, scale)

    def near(node):
        listed = [
            (b if a == node else a, t)
            for a, b, t in past
            for _ in range(2 if a == b else 1)
            if node in (a, b)
        ]
        return listed[-REQUEST.neighbors :]

    found = []
    for test in (
        lambda a, b: u in (a, b),
        lambda a, b: v in (a, b),
        lambda a, b: {a, b} == {u, v},
        lambda a, b: a == u,
        lambda a, b: b == v,
        lambda a, b: (a, b) == (u, v),
    ):
        found += [math.log1p(fading(test, scale)) for scale in SCALES]
    for own, other in ((u, v), (v, u)):
        around = near(own)
        counts = {scale: [met(w, other, scale) for w, _ in around] for scale in SCALES}
        weights = {scale: [math.exp(-(now - t) / scale) for _, t in around] for scale in SCALES}
        found += [math.log1p(sum(c * f for c, f in zip(counts[s], weights[s], strict=True))) for s in SCALES]
        found += [math.log1p(max(counts[s], default=0)) for s in SCALES]
        for scale in SCALES:
            busy = [math.log1p(fading(lambda a, b, w=w: w in (a, b), scale)) for w, _ in around]
            found.append(sum(busy) / max(1, len(busy)))
    for test in (
        lambda a, b: u in (a, b),
        lambda a, b: v in (a, b),
        lambda a, b: {a, b} == {u, v},
        lambda a, b: a == u,
        lambda a, b: b == v,
    ):
        times = [t for a, b, t in past if test(a, b)]
        found += [math.log1p(len(times)), math.log1p((now - times[-1]) / SCALES[0]) if times else -1.0]
    return found


@settings(max_examples=15, deadline=None)
@given(store=event_streams(min_events=1, max_events=20, max_nodes=4), at=st.integers(0, 19))
def test_every_feature_is_what_its_name_says(store, at):
    """For all streams, pairs and times, with ties and self-loops: equal to brute force."""
    now = float(store.time[min(at, len(store) - 1)])
    pairs = every_pair(store, now)
    expected = torch.tensor(
        [by_name(store, u, v, now) for u, v in zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True)]
    )
    assert expected.shape[1] == len(REQUEST.names)
    torch.testing.assert_close(numbers(store, pairs), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(store=event_streams(min_events=1), power=st.sampled_from([-20, -3, 3, 20]))
def test_the_unit_of_time_does_not_matter(store, power):
    """For all powers of two: times and scales multiplied together give the same features."""
    unit, pairs = 2.0**power, PairBatch.from_pairs(store.src, store.dst, store.time)
    moved = type(store).from_columns(
        store.src, store.dst, store.time * unit, num_nodes=store.num_nodes, features=store.features
    )
    request = CountFeatures(tuple(scale * unit for scale in SCALES), neighbors=3)
    asked = PairBatch.from_pairs(store.src, store.dst, store.time * unit)
    torch.testing.assert_close(numbers(moved, asked, request), numbers(store, pairs), rtol=1e-6, atol=1e-6)


def test_cached_features_equal_computed_ones(monkeypatch):
    """Asked again, beyond the limit of the cache, or for two requests: the same bits as without cache.

    Queries that come once, as those of training do, are not kept.
    """
    store = sample_store(80)
    pairs, other = PairBatch.from_pairs(store.src, store.dst, store.time), CountFeatures((1.0,), neighbors=2)
    kept = Index(store)
    asked = (REQUEST, other, REQUEST, REQUEST)
    first = [kept.compute_features(request, pairs) for request in asked]
    assert sum(part is not None for part in kept._features.values()) == 1
    monkeypatch.setattr("dygmamba.history.index.MAX_CACHED_NUMBERS", 0)
    fresh = Index(store)
    again = [fresh.compute_features(request, pairs) for request in asked]
    assert first[2] is first[3]
    assert again[2] is not again[3]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_threads_change_no_feature(monkeypatch):
    """Pairs dealt out to any number of threads: the same bits."""
    store = sample_store(80)
    pairs = PairBatch.from_pairs(store.src, store.dst, store.time)
    alone = numbers(store, pairs)
    monkeypatch.setattr("dygmamba.history.index.UPDATES_PER_PAIR", 1 << 20)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(numbers(store, pairs), alone)
