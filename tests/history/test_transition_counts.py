"""Transitions on the device: equal to those of the host, strictly earlier."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from contract_cases import build, sample_store
from dygmamba.history.block_lists import EventRows
from dygmamba.history.transition_counts import TransitionCountTable, TransitionLookup
from dygmamba.history.transitions import TransitionTable
from dygmamba.history.view import PairBatch
from strategies import event_streams
from streams import unsplit

SCALES, LAGS, WINDOW = (0.5, 300.0), 3, 5


@given(event_streams(), st.data())
def test_table_equals_that_of_the_host(store, data):
    """For all pairs of nodes and all lags, at times of events, between and after them; node -1 counts zero."""
    request = TransitionLookup(SCALES, LAGS, WINDOW)
    rows = EventRows(store.src.numpy(), store.dst.numpy(), store.time.numpy(), store.num_nodes)
    table, transitions = TransitionCountTable.build(rows, request), TransitionTable(request)
    transitions.append_rows(rows)
    host = TransitionCountTable.from_transitions(transitions, request)
    at = data.draw(st.sampled_from([0.0, *store.time.tolist()]))
    at += data.draw(st.sampled_from([-0.25, 0.0, 7.0]))
    node = torch.arange(-1, store.num_nodes)
    origin, dst = (column.repeat(LAGS, 1).T for column in torch.cartesian_prod(node, node).T)
    lag, when = torch.arange(LAGS).expand(origin.shape), torch.full(origin.shape, at, dtype=torch.float64)
    count, total = table.count(lag, origin, dst, when), table.count_all(lag, origin, when)
    expected = transitions.counts(origin.numpy(), dst[:, 0].numpy(), when[:, 0].numpy())
    torch.testing.assert_close(count.double(), torch.from_numpy(expected), rtol=1e-6, atol=1e-7)
    expected = transitions.totals(origin.numpy(), when[:, 0].numpy())
    torch.testing.assert_close(total.double(), torch.from_numpy(expected), rtol=1e-6, atol=1e-7)
    assert torch.equal(count, host.count(lag, origin, dst, when))
    assert torch.equal(total, host.count_all(lag, origin, when))
    asked = (node, torch.full(node.shape, at, dtype=torch.float64))
    assert torch.equal(table.last_destinations(*asked), host.last_destinations(*asked))
    asked = (origin[:, 0], dst[:, 0], when[:, 0])
    found, width = table.compute_associations(*asked), request.association_width
    features = transitions.compute_features(*(column.numpy() for column in asked))[:, -width:]
    torch.testing.assert_close(found, torch.from_numpy(features), rtol=1e-6, atol=1e-6)
    assert torch.equal(found, host.compute_associations(*asked))


def test_a_model_reads_beyond_its_sequences():
    """With sequences of one event, earlier transitions of any source change the score."""
    store = sample_store(60)
    for more in ({"channels": ("time", "transitions")}, {"pair_features": ("transitions",)}):
        alone = {"length": 2, "channels": ("time",), "pair_features": ()} | more
        scorer = build(("dyg-mamba-counts", alone), store)
        pairs = PairBatch.from_pairs(store.src[50:], store.dst[50:], store.time[50:] + 0.5)
        with torch.no_grad():
            whole, cut = (scorer(unsplit(part).view(pairs, scorer.requests)) for part in (store, store[30:]))
        assert (whole != cut).any(), more
