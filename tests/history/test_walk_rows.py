"""Sums over walks, against the walks themselves and against a state that is decayed from instant to instant."""

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.history import walks
from dygmamba.history.block_lists import EventRows
from dygmamba.history.device_lists import SortedLists
from dygmamba.history.neighbor_lists import NeighborLists
from dygmamba.history.walks import TemporalWalks, WalkLists, WalkRequest
from raising import raises
from strategies import event_streams

LAYERS, DECAY = 3, 0.21
BANK = (1.7, DECAY, 0.003)
on_host = pytest.mark.parametrize("on_host", [False, True], ids=["sorted", "blocks"])


class GivenRows(WalkLists):
    """Walks from given rows P^0."""

    def __init__(self, base, rows, layers, decays, is_growing=False):
        self.base = base.numpy()
        super().__init__(WalkRequest(layers, base.shape[1], decays), NeighborLists(rows), is_growing)

    def sample_rows(self, first, stop):
        return self.base[first:stop]


def build_walks(src, dst, time, base, layers, decays, on_host=False):
    """Walks over these events, looked up in sorted keys or in the lists themselves."""
    rows = EventRows(src.numpy(), dst.numpy(), time.numpy(), len(base))
    lists = GivenRows(base, rows, layers, decays)
    lists.append_rows(rows)
    found = TemporalWalks.from_lists(lists)
    return found if on_host else replace(found, lists=SortedLists.from_blocks(lists, torch.unique(time)))


def one_hot(store):
    return torch.eye(store.num_nodes, dtype=torch.float64)


def built(store, cut=None, base=None, decays=(DECAY,), on_host=False):
    events = (store.src[:cut], store.dst[:cut], store.time[:cut])
    return build_walks(*events, one_hot(store) if base is None else base, LAYERS, decays, on_host)


def questions(store, shifts=(0.0, 0.25, 100.0)):
    """Every node at the stream's times and between them, and nobody."""
    times = torch.unique(torch.cat([store.time + shift for shift in shifts] + [torch.zeros(1).double()]))
    node, time = torch.cartesian_prod(torch.arange(-1, store.num_nodes).double(), times).T
    return node.long(), time.contiguous()


def listed_walks(store, now):
    """[k + 1, n, n]: the weight of all walks of i events from x to u at increasing times before now, one by one."""
    ends = [
        (a, b, t)
        for u, v, t in zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True)
        for a, b in ((u, v), (v, u))
        if t < now
    ]
    found = torch.zeros(LAYERS + 1, store.num_nodes, store.num_nodes, dtype=torch.float64)
    found[0] = one_hot(store)
    for steps in range(1, LAYERS + 1):
        for walk in product(ends, repeat=steps):
            joined = all(p[1] == q[0] and p[2] < q[2] for p, q in pairwise(walk))
            if joined:
                weight = math.exp(-DECAY * sum(now - t for _, _, t in walk))
                found[steps, walk[-1][1], walk[0][0]] += weight
    return found


@on_host
@settings(max_examples=25, deadline=None)
@given(store=event_streams(min_events=1, max_events=6, max_nodes=4), shift=st.sampled_from([0.0, 0.25, 9.0]))
def test_a_row_is_the_sum_over_its_walks(on_host, store, shift):
    """For all streams, ties and self-loops among them, and all times: each walk of increasing, earlier times once.

    It is faded by the ages of its events; with unit vectors inner products are sums over pairs of walks.
    """
    table = built(store, on_host=on_host)
    node = torch.arange(store.num_nodes)
    for now in torch.unique(store.time + shift).tolist():
        rows = table.at(node, torch.full(node.shape, now, dtype=torch.float64)).squeeze(1)
        expected = listed_walks(store, now).transpose(0, 1)
        torch.testing.assert_close(rows, expected, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(
            torch.einsum("uid,vjd->uivj", rows, rows),
            torch.einsum("uix,vjx->uivj", expected, expected),
            rtol=1e-9,
            atol=1e-13,
        )


@settings(max_examples=30, deadline=None)
@given(store=event_streams(), steps=st.lists(st.integers(0, 60), max_size=5), is_growing=st.booleans())
def test_appending_is_building_anew(store, steps, is_growing):
    """For all ways of cutting a stream into calls, within instants too: the bits of the whole."""
    base, near = torch.rand(store.num_nodes, 4), None
    cuts = sorted({0, *(min(step, len(store)) for step in steps), len(store)})
    for low, high in pairwise(cuts):
        columns = (part[low:high].numpy() for part in (store.src, store.dst, store.time))
        rows = EventRows(*columns, store.num_nodes, low)
        if near is None:
            lists = GivenRows(base, rows, LAYERS, BANK, is_growing)
            near = lists.near
        else:
            near.append_rows(rows)
        lists.append_rows(rows)
    if near is not None:
        node, time = questions(store)
        expected = built(store, base=base, decays=BANK).at(node, time)
        assert torch.equal(TemporalWalks.from_lists(lists).at(node, time), expected)


@on_host
@settings(max_examples=25, deadline=None)
@given(store=event_streams())
def test_a_bank_is_a_table_of_each_decay(on_host, store):
    """For all streams and queries: rows of each decay have the bits of a table of that decay alone."""
    node, time = questions(store)
    base = torch.randn(store.num_nodes, 4)
    bank = built(store, base=base, decays=BANK, on_host=on_host)
    single = [built(store, base=base, decays=(decay,), on_host=on_host) for decay in BANK]
    assert torch.equal(bank.rows, torch.cat([table.rows for table in single], dim=1))
    expected = torch.cat([table.at(node, time) for table in single], dim=-3)
    assert torch.equal(bank.at(node, time), expected)


@settings(max_examples=40, deadline=None)
@given(store=event_streams(), seed=st.integers(0, 9))
def test_the_order_of_simultaneous_events_changes_no_bit(store, seed):
    """For all streams and orders of the events of each instant: the same bits."""
    shuffled = torch.randperm(len(store), generator=torch.Generator().manual_seed(seed))
    order = shuffled[torch.argsort(store.time[shuffled], stable=True)]
    base = torch.randn(store.num_nodes, 4)
    table = build_walks(store.src[order], store.dst[order], store.time[order], base, LAYERS, BANK)
    assert torch.equal(table.rows, built(store, base=base, decays=BANK).rows)


@settings(max_examples=20, deadline=None)
@given(store=event_streams())
def test_nobody_has_no_rows(store):
    """For all streams and times: zeros for a node of -1, P^0 too; a node without a past has its P^0 alone."""
    node, time = questions(store)
    rows = built(store, decays=BANK).at(node, time)
    assert not bool(rows[node < 0].any())
    early = built(store).at(torch.arange(store.num_nodes), torch.full((store.num_nodes,), -1e12).double())
    assert torch.equal(early[:, 0, 0], one_hot(store))
    assert not bool(early[:, 0, 1:].any())


def test_no_span_overflows():
    """Decays and spans of any size: finite, fading to zero."""
    time = torch.tensor([-4e17, 0.0, 1e-6, 1.0, 3e9, 4e17], dtype=torch.float64)
    ends = torch.zeros(6).long(), torch.ones(6).long()
    table = build_walks(*ends, time, torch.ones(2, 1), LAYERS, (0.0, 1e-12, 1.0, 1e9))
    rows = table.at(torch.zeros(6).long(), time)
    assert bool((torch.isfinite(rows) & (rows >= 0)).all())


def test_overflow_and_large_tables_are_errors(monkeypatch):
    count = 400
    rows = EventRows(np.zeros(count, np.int64), np.ones(count, np.int64), np.arange(float(count)), 2)
    with raises("walk-overflow", EventError):
        TemporalWalks.build(rows, WalkRequest(40, 1, (0.0,)))
    monkeypatch.setattr(walks, "MOST_BYTES", 2 * count * LAYERS * 4)
    TemporalWalks.build(rows, WalkRequest(LAYERS, 1, (0.1,)))
    with raises("walk-table-too-large", ConfigError):
        TemporalWalks.build(rows, WalkRequest(LAYERS, 1, (0.1, 0.2)))
