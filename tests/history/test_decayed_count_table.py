"""Decayed counts on the device: equal to those of EventCounts, strictly earlier."""

from typing import get_args

import torch
from hypothesis import given
from hypothesis import strategies as st

from contract_cases import build, sample_store
from dygmamba.history.block_lists import EventRows, directed_key, pair_key
from dygmamba.history.counts import EventCounts
from dygmamba.history.decayed_counts import DecayedCountLookup, DecayedCountTable, Role
from dygmamba.history.view import PairBatch
from strategies import event_streams
from streams import unsplit

SCALES = (0.5, 4.0, 300.0)


def build_both(store, directed):
    """Tables for look-ups on a device and on the host, and the counts they must equal."""
    rows = EventRows(store.src.numpy(), store.dst.numpy(), store.time.numpy(), store.num_nodes)
    counts = EventCounts(SCALES)
    counts.append_rows(rows)
    request = DecayedCountLookup(SCALES, directed)
    return (DecayedCountTable.build(rows, request), DecayedCountTable.from_counts(counts)), counts


@given(event_streams(), st.data())
def test_table_equals_event_counts(store, data):
    """For all nodes and pairs, at times of events, between and after them; node -1 counts zero."""
    (fades, host), counts = build_both(store, directed=False)
    at = data.draw(st.sampled_from([0.0, *store.time.tolist()])) + data.draw(
        st.sampled_from([-0.25, 0.0, 7.0])
    )
    node = torch.arange(store.num_nodes)
    a, b = torch.cartesian_prod(node, node).T
    when = torch.full(a.shape, at, dtype=torch.float64)
    for role, key, found in (
        ("node", a, fades.of_node(a, when)),
        ("pair", pair_key(a, b, torch), fades.of_pair(a, b, when)),
    ):
        expected = torch.from_numpy(counts.groups[role].count_before(key.numpy(), when.numpy()))
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(fades.of_node(a, when), host.of_node(a, when))
    assert torch.equal(fades.of_pair(a, b, when), host.of_pair(a, b, when))
    nobody = torch.full_like(a, -1)
    assert not fades.of_node(nobody, when).any()
    assert not fades.of_pair(nobody, b, when).any()


@given(event_streams(), st.data())
def test_roles_equal_event_counts(store, data):
    """For every role: the decayed count, the number of strictly earlier events and the age of the last one."""
    (table, host), counts = build_both(store, directed=True)
    at = data.draw(st.sampled_from([0.0, *store.time.tolist()])) + data.draw(
        st.sampled_from([-0.25, 0.0, 7.0])
    )
    node = torch.arange(store.num_nodes)
    a, b = torch.cartesian_prod(node, node).T
    when = torch.full(a.shape, at, dtype=torch.float64)
    keys = {"pair": pair_key(a, b, torch), "directed_pair": directed_key(a, b)}
    for role in get_args(Role):
        key, lists = keys.get(role, a).numpy(), counts.groups[role]
        count, number, age = table.of_role(role, a, b, when)
        expected = torch.from_numpy(lists.count_before(key, when.numpy()))
        torch.testing.assert_close(count.double(), expected, rtol=1e-6, atol=1e-7)
        expected = lists.find_number_and_age(key, when.numpy())
        assert torch.equal(number, torch.from_numpy(expected[0]))
        assert torch.equal(age, torch.from_numpy(expected[1]))
        assert all(map(torch.equal, (count, number, age), host.of_role(role, a, b, when)))
        count, number, age = table.of_role(role, torch.full_like(a, -1), b, when)
        assert not count.any()
        assert not number.any()
        assert (age == -1).all()


def test_a_model_reads_beyond_its_sequences():
    """With sequences of one event, earlier events still change the score through counts and walks."""
    store = sample_store(60)
    for more in (
        {"channels": ("time", "decayed-counts")},
        {"pair_features": ("decayed-pair",)},
        {"channels": ("time", "walks")},
        {"pair_features": ("walks",)},
        {"pair_features": ("history",)},
    ):
        alone = {"length": 2, "channels": ("time",), "pair_features": ()} | more
        scorer = build(("dyg-mamba-counts", alone), store)
        pairs = PairBatch.from_pairs(store.src[50:], store.dst[50:], store.time[50:] + 0.5)
        with torch.no_grad():
            whole, cut = (scorer(unsplit(part).view(pairs, scorer.requests)) for part in (store, store[30:]))
        assert (whole != cut).any(), more
