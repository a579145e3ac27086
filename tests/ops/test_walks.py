"""Sums over walks: by kernel and by definition, against the walks themselves."""

import math
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.ops import walks
from dygmamba.ops.dispatch import use_reference
from dygmamba.ops.walks import build_walk_table, look_up_rows
from raising import raises
from strategies import event_streams

LAYERS, DECAY = 3, 0.21
BANK = (1.7, DECAY, 0.003)
ways = pytest.mark.parametrize("by_definition", [False, True], ids=["kernel", "reference"])


def one_hot(store):
    return torch.eye(store.num_nodes, dtype=torch.float64)


def built(store, cut=None, base=None, decays=(DECAY,)):
    events = (store.src[:cut], store.dst[:cut], store.time[:cut])
    return build_walk_table(*events, one_hot(store) if base is None else base, LAYERS, decays)


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


@ways
@settings(max_examples=25, deadline=None)
@given(store=event_streams(min_events=1, max_events=6, max_nodes=4), shift=st.sampled_from([0.0, 0.25, 9.0]))
def test_a_row_is_the_sum_over_its_walks(by_definition, store, shift):
    """For all streams, ties and self-loops among them, and all times: each walk of increasing, earlier times once.

    It is faded by the ages of its events; with unit vectors inner products are sums over pairs of walks.
    """
    with use_reference() if by_definition else pytest.MonkeyPatch.context():
        table = built(store)
    node = torch.arange(store.num_nodes)
    for now in torch.unique(store.time + shift).tolist():
        rows = look_up_rows(table, node, torch.full(node.shape, now, dtype=torch.float64)).squeeze(1)
        expected = listed_walks(store, now).transpose(0, 1)
        torch.testing.assert_close(rows, expected, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(
            torch.einsum("uid,vjd->uivj", rows, rows),
            torch.einsum("uix,vjx->uivj", expected, expected),
            rtol=1e-9,
            atol=1e-13,
        )


@settings(max_examples=40, deadline=None)
@given(store=event_streams())
def test_the_kernel_is_the_definition(store):
    """For all streams, with one decay and with a bank: the same rows, in float32 as well."""
    # positive rows: without cancellation, float32 is exact enough for sums of the slowest decay
    for base, decays in product((one_hot(store), torch.rand(store.num_nodes, 5)), ((DECAY,), BANK)):
        with use_reference():
            expected = built(store, base=base, decays=decays)
        found = built(store, base=base, decays=decays)
        assert torch.equal(found.key, expected.key)
        torch.testing.assert_close(found.rows, expected.rows, rtol=1e-4, atol=1e-6)


@ways
@settings(max_examples=25, deadline=None)
@given(store=event_streams())
def test_a_bank_is_a_table_of_each_decay(by_definition, store):
    """For all streams and queries: rows of each decay have the bits of a table of that decay alone."""
    node, time = questions(store)
    base = torch.randn(store.num_nodes, 4)
    with use_reference() if by_definition else pytest.MonkeyPatch.context():
        bank = built(store, base=base, decays=BANK)
        single = [built(store, base=base, decays=(decay,)) for decay in BANK]
    assert bank.rows.shape == (len(bank.key), len(BANK), LAYERS, 4)
    assert torch.equal(bank.rows, torch.cat([table.rows for table in single], dim=1))
    expected = torch.cat([look_up_rows(table, node, time) for table in single], dim=-3)
    assert torch.equal(look_up_rows(bank, node, time), expected)


@settings(max_examples=40, deadline=None)
@given(store=event_streams(), seed=st.integers(0, 9))
def test_the_order_of_simultaneous_events_changes_no_bit(store, seed):
    """For all streams and orders of the events of each instant: the same bits."""
    shuffled = torch.randperm(len(store), generator=torch.Generator().manual_seed(seed))
    order = shuffled[torch.argsort(store.time[shuffled], stable=True)]
    base = torch.randn(store.num_nodes, 4)
    table = build_walk_table(store.src[order], store.dst[order], store.time[order], base, LAYERS, BANK)
    assert torch.equal(table.rows, built(store, base=base, decays=BANK).rows)


@settings(max_examples=40, deadline=None)
@given(store=event_streams(), cut=st.integers(0, 60))
def test_later_events_change_no_bit(store, cut):
    """For all streams and cuts: questions up to the first dropped event's time have the same bits without the rest."""
    node, time = questions(store)
    cut = min(cut, len(store))
    asked = time <= (store.time[cut] if cut < len(store) else torch.inf)
    node, time = node[asked], time[asked]
    whole, prefix = built(store, decays=BANK), built(store, cut, decays=BANK)
    assert torch.equal(look_up_rows(whole, node, time), look_up_rows(prefix, node, time))


@settings(max_examples=40, deadline=None)
@given(
    store=event_streams(),
    shift=st.sampled_from([-(2.0**33), -64.0, 2.0**31]),
    power=st.sampled_from([-30, -3, 0, 20]),
)
def test_origin_and_unit_of_time_are_free(store, shift, power):
    """For all streams with exact times, all shifts and all powers of two: the same bits."""
    unit, (node, time) = 2.0**power, questions(store)
    moved = build_walk_table(
        store.src, store.dst, (store.time + shift) * unit, one_hot(store), LAYERS, (DECAY / unit,)
    )
    found = look_up_rows(moved, node, (time + shift) * unit)
    assert torch.equal(found, look_up_rows(built(store), node, time))


@settings(max_examples=20, deadline=None)
@given(store=event_streams())
def test_nobody_has_no_rows(store):
    """For all streams and times: zeros for a node of -1, P^0 too; a node without a past has its P^0 alone."""
    node, time = questions(store)
    rows = look_up_rows(built(store, decays=BANK), node, time)
    assert not bool(rows[node < 0].any())
    early = look_up_rows(
        built(store), torch.arange(store.num_nodes), torch.full((store.num_nodes,), -1e12).double()
    )
    assert torch.equal(early[:, 0, 0], one_hot(store))
    assert not bool(early[:, 0, 1:].any())


def test_no_span_overflows():
    """Decays and spans of any size: finite, fading to zero."""
    time = torch.tensor([-4e17, 0.0, 1e-6, 1.0, 3e9, 4e17], dtype=torch.float64)
    ends = torch.zeros(6).long(), torch.ones(6).long()
    table = build_walk_table(*ends, time, torch.ones(2, 1), LAYERS, (0.0, 1e-12, 1.0, 1e9))
    rows = look_up_rows(table, torch.zeros(6).long(), time)
    assert bool((torch.isfinite(rows) & (rows >= 0)).all())


def test_invalid_settings_overflow_and_large_tables_are_errors(monkeypatch):
    count = 400
    ends = torch.zeros(count).long(), torch.ones(count).long()
    time = torch.arange(count).double()
    for decays in ((), (-1.0,), (0.1, float("nan"))):
        with raises("bad-walk-settings", ConfigError):
            build_walk_table(*ends, time, torch.ones(2, 1), LAYERS, decays)
    with raises("walk-overflow", EventError):
        build_walk_table(*ends, time, torch.ones(2, 1), 40, (0.0,))
    monkeypatch.setattr(walks, "MOST_BYTES", 2 * count * LAYERS * 4)
    build_walk_table(*ends, time, torch.ones(2, 1), LAYERS, (0.1,))
    with raises("walk-table-too-large", ConfigError):
        build_walk_table(*ends, time, torch.ones(2, 1), LAYERS, (0.1, 0.2))
