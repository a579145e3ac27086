"""Transitions on the device: equal to those of the op, strictly earlier."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from contract_cases import build, sample_store
from dygmamba.ops.transitions import Transitions, last_destinations
from dygmamba.sampling.transition_counts import TransitionCountRequest, TransitionCountTable
from dygmamba.sampling.view import PairBatch
from strategies import event_streams
from streams import unsplit

SCALES, LAGS = (0.5, 300.0), 3


@given(event_streams(), st.data())
def test_table_equals_the_op(store, data):
    """For all pairs of nodes and all lags, at times of events, between and after them; node -1 counts zero."""
    columns = (store.src, store.dst, store.time, store.num_nodes)
    table = TransitionCountTable.build(*columns, TransitionCountRequest(SCALES, LAGS))
    transitions = Transitions(*columns, LAGS, torch.tensor(SCALES).double())
    at = data.draw(st.sampled_from([0.0, *store.time.tolist()]))
    at += data.draw(st.sampled_from([-0.25, 0.0, 7.0]))
    node = torch.arange(-1, store.num_nodes)
    origin, dst = (column.repeat(LAGS, 1).T for column in torch.cartesian_prod(node, node).T)
    lag, when = torch.arange(LAGS).expand(origin.shape), torch.full(origin.shape, at, dtype=torch.float64)
    expected = transitions.counts(origin, dst[:, 0], when[:, 0])
    torch.testing.assert_close(table.count(lag, origin, dst, when).double(), expected, rtol=1e-6, atol=1e-7)
    expected = transitions.totals(origin, when[:, 0])
    torch.testing.assert_close(table.count_all(lag, origin, when).double(), expected, rtol=1e-6, atol=1e-7)
    asked = (node, torch.full(node.shape, at, dtype=torch.float64))
    assert torch.equal(table.last_destinations(*asked), last_destinations(transitions.histories, *asked))


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
