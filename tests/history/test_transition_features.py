"""Transition features of pairs: equal to brute force, strictly earlier, the same in any batch and from disk."""

import math
from dataclasses import replace
from itertools import takewhile
from statistics import mean

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.column_facts import TypeColumn
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.history.index import Index, gather_view
from dygmamba.history.transitions import AGES, TransitionFeatures
from dygmamba.history.view import PairBatch
from raising import raises
from strategies import event_streams

SCALES = (4.0, 0.5)
REQUEST = TransitionFeatures(SCALES, lags=2, window=4)
TYPED = replace(REQUEST, column=TypeColumn(0, "kind", (1, 0), ("buy", "view")))


def numbers(store, pairs, request=REQUEST, events=None):
    index = Index(store, events)
    return gather_view(index, store.features, pairs, (request,))[request]


def every_pair(store, time):
    nodes = torch.arange(store.num_nodes)
    src, dst = torch.cartesian_prod(nodes, nodes).T
    return PairBatch.from_pairs(src, dst, torch.full((len(src),), time, dtype=torch.float64))


def by_name(store, u, v, now):
    """Features of one pair by brute force over the list of events, by their names."""
    events = list(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True))

    def last_of(node, time, count=REQUEST.lags):
        own = sorted(((t, b) for a, b, t in events if a == node and t < time), reverse=True)
        return [b for _, b in own[:count]]

    moves = [(lag, w, b, t) for a, b, t in events for lag, w in enumerate(last_of(a, t)) if t < now]

    def fading(test, scale):
        return sum(math.exp(-(now - t) / scale) for lag, a, b, t in moves if test(lag, a, b))

    origin = last_of(u, now)
    often, share = [], []
    for i in range(REQUEST.lags):
        w = origin[i] if i < len(origin) else None
        for scale in SCALES:
            count = fading(lambda lag, a, b, i=i, w=w: (lag, a, b) == (i, w, v), scale)
            left = fading(lambda lag, a, b, i=i, w=w: (lag, a) == (i, w), scale)
            often.append(math.log1p(count))
            share.append(math.log((count + 1e-3) / (left + 1e-2)))
    near = [
        math.log1p(
            sum(
                fading(lambda lag, a, b, w=w: (a, b) == (w, v), scale)
                + fading(lambda lag, a, b, w=w: (a, b) == (v, w), scale)
                for w in origin
            )
        )
        for scale in SCALES
    ]
    own = sorted((t for a, _, t in events if a == u and t < now), reverse=True)
    met = [t for a, b, t in events if (a, b) == (u, v) and t < now]
    ages = [math.log1p((now - t) / min(SCALES)) for t in own[:AGES]]
    since = math.log1p(sum(t > max(met) for t in own)) if met else -1.0
    usual = [*often, *share, *near, *ages, *[-1.0] * (AGES - len(ages)), since]
    earlier, window = [event for event in events if event[2] < now], last_of(u, now, REQUEST.window)

    def visits(node):
        return sum(b == node for _, b, _ in earlier) + 5

    def confidence(w):
        followed = sum(b == v and w in last_of(a, t, REQUEST.window) for a, b, t in earlier)
        return followed / visits(w)

    confidences = [confidence(w) for w in window] or [0.0]
    summaries = [max(confidences), mean(confidences)]
    lifts = [math.log1p(number * len(earlier) / visits(v)) for number in summaries]
    best = [t for t, number in zip(own, confidences, strict=False) if 0 < number == max(confidences)]
    age = math.log1p((now - max(best)) / min(SCALES)) if best else -1.0
    return [*usual, *(math.log(number + 1e-3) for number in summaries), *lifts, age]


@settings(max_examples=15, deadline=None)
@given(store=event_streams(min_events=1, max_events=20, max_nodes=4), at=st.integers(0, 19))
def test_every_feature_is_what_its_name_says(store, at):
    """For all streams, pairs and times, with ties and self-loops: equal to brute force."""
    now = float(store.time[min(at, len(store) - 1)])
    pairs = every_pair(store, now)
    expected = torch.tensor(
        [by_name(store, u, v, now) for u, v in zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True)]
    )
    assert expected.shape[1] == len(REQUEST.names) == len(set(REQUEST.names))
    torch.testing.assert_close(numbers(store, pairs), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    store=event_streams(min_events=1, max_events=20, max_nodes=4),
    at=st.integers(0, 19),
    seed=st.integers(0, 9),
)
def test_the_share_by_type_is_of_first_events_after_one_of_the_type(store, at, seed):
    """For all streams, types, pairs and times: by brute force; the other features are those without types."""
    codes = torch.from_numpy(np.random.default_rng(seed).integers(-1, 4, (len(store), 1), np.int32))
    features = replace(store.features, codes=codes, categories=(Category("kind", ("view", "buy", "a", "b")),))
    typed, now = replace(store, features=features), float(store.time[min(at, len(store) - 1)])
    kinds = [{1: 0, 0: 1}.get(code, 2) for code in codes[:, 0].tolist()]
    events = list(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), kinds, strict=True))

    def last_of(node, time):
        own = sorted(((t, b, kind) for a, b, t, kind in events if a == node and t < time), reverse=True)
        return [(*item, t) for t, *item in own[: REQUEST.window]]

    def open_of(node, time, v):
        """Return the last items up to the last one on v, the last one first."""
        return list(takewhile(lambda item: item[0] != v, last_of(node, time)))

    def share(item, v):
        earlier = [event for event in events if event[2] < now]
        followed = sum(b == v and item in [known for *known, _ in open_of(a, t, v)] for a, b, t, _ in earlier)
        return followed / (sum([b, kind] == item for _, b, _, kind in earlier) + 5)

    pairs = every_pair(store, now)
    found = numbers(typed, pairs, TYPED)
    expected = []
    for u, v in zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True):
        shares = [(share(item, v), time) for *item, time in open_of(u, now, v)]
        best, when = max(shares, default=(0.0, now))
        since = math.log1p((now - when) / min(SCALES)) if best else -1.0
        expected.append([math.log(best + 1e-3), since])
    torch.testing.assert_close(found[:, -2:], torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert torch.equal(found[:, :-2], numbers(store, pairs))
    assert found.shape[1] == len(TYPED.names)


def test_features_are_cached_and_a_part_of_a_view_has_its_rows():
    """Asked again and again: the same tensor; another request: another one; chosen pairs keep their features."""
    store = generate_stream(GeneratorConfig(nodes=20, events=80, seed=1))
    pairs, index = PairBatch.from_pairs(store.src, store.dst, store.time), Index(store)
    _, first, other, again = (
        index.compute_features(request, pairs)
        for request in (REQUEST, REQUEST, TransitionFeatures((1.0,), 1), REQUEST)
    )
    assert first is again
    assert other.shape[1] == len(TransitionFeatures((1.0,), 1).names) != first.shape[1]
    view = gather_view(index, store.features, pairs, (REQUEST,))
    chosen = torch.tensor([5, 2])
    assert torch.equal(view.select_part(chosen)[REQUEST], first[chosen])


def test_requests_are_checked():
    """Scales above 0 and a number of lags that a key can hold."""
    for scales, lags in (((), 3), ((0.0,), 3), ((1.0,), 0), ((1.0,), 8)):
        with raises("invalid-request", ConfigError):
            TransitionFeatures(scales, lags)
