"""Decayed counts on the device: equal to those of EventCounts, strictly earlier."""

from typing import get_args

import torch
from hypothesis import given
from hypothesis import strategies as st

from contract_cases import build, sample_store
from dygmamba.ops.decayed_counts import past_size_and_age
from dygmamba.sampling.counts import EventCounts, pair_key
from dygmamba.sampling.decayed_counts import DecayedCountRequest, DecayedCountTable, Role
from dygmamba.sampling.view import PairBatch
from strategies import event_streams
from streams import unsplit

SCALES = (0.5, 4.0, 300.0)


@given(event_streams(), st.data())
def test_table_equals_event_counts(store, data):
    """For all nodes and pairs, at times of events, between and after them; node -1 counts zero."""
    columns = (store.src, store.dst, store.time, store.num_nodes)
    fades, counts = (
        DecayedCountTable.build(*columns, DecayedCountRequest(SCALES)),
        EventCounts.build(*columns, SCALES),
    )
    at = data.draw(st.sampled_from([0.0, *store.time.tolist()])) + data.draw(
        st.sampled_from([-0.25, 0.0, 7.0])
    )
    node = torch.arange(store.num_nodes)
    a, b = torch.cartesian_prod(node, node).T
    for asked, found in (
        (("node", a), fades.of_node(a, torch.full(a.shape, at, dtype=torch.float64))),
        (
            ("pair", pair_key(a, b, store.num_nodes)),
            fades.of_pair(a, b, torch.full(a.shape, at, dtype=torch.float64)),
        ),
    ):
        expected = counts.count(*asked, torch.full(a.shape, at, dtype=torch.float64))
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)
    nobody = torch.full_like(a, -1)
    when = torch.full(a.shape, at, dtype=torch.float64)
    assert not fades.of_node(nobody, when).any()
    assert not fades.of_pair(nobody, b, when).any()


@given(event_streams(), st.data())
def test_roles_equal_event_counts(store, data):
    """For every role: the decayed count, the number of strictly earlier events and the age of the last one."""
    columns = (store.src, store.dst, store.time, store.num_nodes)
    table = DecayedCountTable.build(*columns, DecayedCountRequest(SCALES, directed=True))
    counts = EventCounts.build(*columns, SCALES)
    at = data.draw(st.sampled_from([0.0, *store.time.tolist()])) + data.draw(
        st.sampled_from([-0.25, 0.0, 7.0])
    )
    node = torch.arange(store.num_nodes)
    a, b = torch.cartesian_prod(node, node).T
    when = torch.full(a.shape, at, dtype=torch.float64)
    keys = {"pair": pair_key(a, b, store.num_nodes), "way": a * store.num_nodes + b}
    for role in get_args(Role):
        key, groups = keys.get(role, a), counts.groups[role]
        count, number, age = table.of_role(role, a, b, when)
        torch.testing.assert_close(count.double(), counts.count(role, key, when), rtol=1e-6, atol=1e-7)
        expected = past_size_and_age(groups.lists, groups.group(key), when)
        assert torch.equal(number, expected[0])
        assert torch.equal(age, expected[1])
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
