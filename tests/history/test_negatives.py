from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.core.choices import NEGATIVES
from dygmamba.core.errors import ConfigError, EventError, FileError
from dygmamba.data.events.event_store import EventStore
from dygmamba.history.negatives import NegativeRequest, load_or_sample_negatives, sample_negatives
from raising import raises
from strategies import event_streams


@st.composite
def requests(draw, strategies=NEGATIVES):
    """A stream, a suffix of positives, and a request with one of the strategies."""
    store = draw(event_streams(min_events=2))
    first = draw(st.integers(1, len(store) - 1))
    events = torch.arange(first, len(store))
    strategy = draw(st.sampled_from(strategies))
    until = float(store.time[first - 1])
    size = draw(st.integers(1, 9))
    return store, NegativeRequest(
        strategy, events, torch.arange(len(store)), until, draw(st.integers(0, 5)), size
    )


def pairs_of(store, rows):
    return set(zip(store.src[rows].tolist(), store.dst[rows].tolist(), strict=True))


def has_free_pair(store, request):
    """Every batch leaves at least one cell of the source x destination grid unused."""
    cells = len(set(store.src.tolist())) * len(set(store.dst.tolist()))
    return all(len(pairs_of(store, part)) < cells for part in request.events.split(request.batch_size))


POOLED = ("historical", "inductive")


@given(case=requests(POOLED))
def test_a_pool_negative_is_a_past_pair_absent_from_the_window(case):
    """Historical and inductive negatives: first the random fallback, then pairs of the pool.

    The pool is every pair known by the batch's first time, not in the window of its times, and for the
    inductive strategy first seen after `observed_until`; if it is large enough, all come from it, distinct.
    """
    store, request = case
    if not has_free_pair(store, request):
        return
    negatives = sample_negatives(store, request)
    start = 0
    for part in request.events.split(request.batch_size):
        begin, end = store.time[part[0]], store.time[part[-1]]
        window = pairs_of(store, (store.time >= begin) & (store.time <= end))
        pool = pairs_of(store, store.time <= begin) - window
        if request.strategy == "inductive":
            pool -= pairs_of(store, store.time <= request.observed_until)
        rows = slice(start, start + len(part))
        drawn = list(zip(negatives.src[rows].tolist(), negatives.dst[rows].tolist(), strict=True))
        fallback = max(0, len(part) - len(pool))
        assert set(drawn[fallback:]) <= pool
        assert len(set(drawn[fallback:])) == len(drawn[fallback:])
        assert not set(drawn[:fallback]) & pairs_of(store, part)
        start += len(part)


@given(case=requests())
def test_the_same_request_samples_the_same_pairs(case):
    """For all samplers: one pair per positive, a function of stream and request; global generators are not used."""
    store, request = case
    if not has_free_pair(store, request):
        return
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    first, second = sample_negatives(store, request), sample_negatives(store, request)
    assert len(first) == len(request.events)
    assert torch.equal(first.src, second.src)
    assert torch.equal(first.dst, second.dst)
    assert np.array_equal(before, np.random.get_state()[1])


@given(case=requests(("random",)))
def test_random_negatives_keep_the_source_and_sample_known_destinations(case):
    """Random: source of the positive, any destination of the sampler's events."""
    store, request = case
    negatives = sample_negatives(store, request)
    assert torch.equal(negatives.src, store.src[request.events])
    assert set(negatives.dst.tolist()) <= set(store.dst.tolist())


@given(case=requests(POOLED), extra=st.integers(1, 3))
def test_later_events_never_change_a_historical_negative(case, extra):
    """Events after the last positive change no historical negative from the pool."""
    store, request = case
    keep = len(store) - min(extra, len(request.events) - 1)
    if keep <= int(request.events[0]) or store.time[keep - 1] == store.time[min(keep, len(store) - 1)]:
        return
    events = torch.arange(int(request.events[0]), keep)
    small = NegativeRequest(
        request.strategy, events, torch.arange(keep), request.observed_until, request.seed, 4
    )
    large = NegativeRequest(
        request.strategy, events, torch.arange(len(store)), request.observed_until, request.seed, 4
    )
    grid = [set(column[:keep].tolist()) == set(column.tolist()) for column in (store.src, store.dst)]
    if all(grid) and has_free_pair(store, small):
        a, b = sample_negatives(store, small), sample_negatives(store, large)
        assert torch.equal(a.src, b.src)
        assert torch.equal(a.dst, b.dst)


def sample_or_refuse(store, request):
    """The pairs, or the code of the error for a batch that leaves no pair to sample."""
    try:
        negatives = sample_negatives(store, request)
    except EventError as error:
        return error.code
    return negatives.src.tolist(), negatives.dst.tolist()


@given(case=requests(), extra=st.integers(1, 4))
def test_earlier_negatives_have_nodes_of_earlier_events_and_ignore_later_ones(case, extra):
    """For all samplers with `earlier_only`: both ends are known before the query, and later events change nothing."""
    store, request = case
    keep = max(len(store) - extra, int(request.events[0]) + 1)
    events = torch.arange(int(request.events[0]), keep)
    known = replace(request, events=events, known=torch.arange(keep), earlier_only=True)
    found = sample_or_refuse(store, known)
    assert found == sample_or_refuse(store[:keep], known)
    if isinstance(found, str):
        assert found == "no-negative-pair"
        return
    for row, (event, src, dst) in enumerate(zip(events.tolist(), *found, strict=True)):
        pooled = request.strategy != "random"
        query = int(events[row - row % request.batch_size]) if pooled else event
        earlier = store.time < store.time[query]
        assert dst in {int(store.dst[0]), *store.dst[earlier].tolist()}
        assert src in {int(store.src[0]), *store.src[earlier].tolist()} if pooled else src == store.src[event]


def test_earlier_destinations_are_drawn_evenly():
    """Random with `earlier_only`: each destination that occurred before is equally likely, however often it did."""
    dst = torch.cat([torch.zeros(50), torch.arange(1, 10), torch.full((9000,), 3)]).long()
    store = EventStore.from_columns(torch.zeros(len(dst)), dst, torch.arange(float(len(dst))))
    events = torch.arange(60, len(dst))
    drawn = sample_negatives(store, NegativeRequest("random", events, events, 0.0, 7, earlier_only=True)).dst
    share = torch.bincount(drawn, minlength=10) / len(events)
    assert float((share - 0.1).abs().max()) < 4 * (0.1 * 0.9 / len(events)) ** 0.5


def tiny():
    store = EventStore.from_columns(torch.tensor([0, 1, 0, 2]), torch.tensor([1, 2, 2, 0]), torch.arange(4.0))
    return store, NegativeRequest("historical", torch.tensor([2, 3]), torch.arange(4), 1.0, 0)


def test_stored_negatives_are_loaded(tmp_path):
    """The second call reads the file of the first; a damaged file is an error."""
    store, request = tiny()
    first = load_or_sample_negatives(store, request, tmp_path)
    (path,) = tmp_path.iterdir()
    stamp = path.stat().st_mtime_ns
    again = load_or_sample_negatives(store, request, tmp_path)
    assert torch.equal(first.dst, again.dst)
    assert path.stat().st_mtime_ns == stamp
    path.write_bytes(b"not a tensor file")
    with raises("damaged-negatives", FileError):
        load_or_sample_negatives(store, request, tmp_path)


def test_an_unknown_strategy_is_an_error():
    """The message lists the known strategies."""
    store, request = tiny()
    with raises("unknown-negatives", ConfigError):
        sample_negatives(store, NegativeRequest("hard", request.events, request.known, 0.0, 0))
