"""Parts of the model against what the paper says of them."""

import pytest
import torch
from hypothesis import given

from dygmamba.history.index import Index
from dygmamba.nn.encodings import CountEncoding
from dygmamba.nn.mixers import POOLS, LinearCrossAttention
from dygmamba.nn.steps import STEPS, StepConfig
from dygmamba.nn.tokens import make_tokens
from strategies import event_streams


@given(store=event_streams(min_events=1))
def test_relative_spans_sum_to_one_with_the_query_last(store):
    """With the query token last, a past's relative spans t_k - t_{k-1} over tau - t_1 add up to exactly 1."""
    seq = Index(store).recent(store.src, store.time, 5)
    tokens = make_tokens(seq, "last", "preceding")
    total = tokens.share.sum(dim=1)
    torch.testing.assert_close(total, (seq.length > 0).float(), rtol=0, atol=1e-5)
    assert bool((tokens.share >= 0).all())
    assert bool((tokens.length == seq.length + 1).all())


@given(store=event_streams(min_events=1))
def test_following_spans_are_the_preceding_ones_one_token_later(store):
    """Eq. 11 as printed: the span after event k is the span before event k + 1, and tau follows the last."""
    seq = Index(store).recent(store.src, store.time, 5)
    following = make_tokens(seq, "absent", "following")
    preceding = make_tokens(seq, "last", "preceding")
    torch.testing.assert_close(following.gap, preceding.gap[:, 1:] * following.mask)


@pytest.mark.parametrize("query", ["last", "first"])
def test_the_query_node_is_a_token(query):
    """The query node takes part once, with no age and no event of its own."""
    from dygmamba.data.events.event_store import EventStore

    store = EventStore.from_columns(torch.tensor([0, 0]), torch.tensor([1, 2]), torch.tensor([1.0, 3.0]))
    seq = Index(store).recent(torch.tensor([0]), torch.tensor([7.0], dtype=torch.float64), 3)
    tokens = make_tokens(seq, query)
    expected = {"last": [1, 2, 0], "first": [0, 1, 2]}[query]
    assert tokens.node[0][tokens.mask[0]].tolist() == expected
    assert tokens.age[0][tokens.mask[0]].tolist() == {"last": [6, 4, 0], "first": [0, 6, 4]}[query]
    assert tokens.is_event[0][tokens.mask[0]].tolist() == [node != 0 for node in expected]


@pytest.mark.parametrize("name", ["timespan", "linear", "logarithmic", "sigmoid", "exponential"])
def test_a_step_grows_with_the_span_and_starts_at_zero(name):
    """Monotone, positive, and no time passing means no forgetting; Eq. 11 is bounded by w1."""
    step = STEPS[name](StepConfig(channels=8, width=8, floor=0.0, gap_scale=1.0, rule="zoh"))
    delta = step.delta(torch.linspace(0, 1, 50)[None])[0]
    assert bool((delta[0] == 0).all())
    assert bool((delta.diff(dim=0) >= 0).all())
    if name == "timespan":
        assert bool((delta <= step.log_w1.exp()).all())


def test_the_second_layer_may_be_applied_to_the_sum():
    """Summing the hidden layers of both counts equals applying f, summing, and aligning (Eq. 5 and 6)."""
    part = CountEncoding(6, 5)
    total, align = part
    counts = torch.randint(0, 10, (3, 4, 2), dtype=torch.int32)
    f = total.second(total.first(counts.float()[..., None]).relu())  # [3 4 2 6]
    torch.testing.assert_close(part(counts), align(f.sum(dim=2)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(POOLS))
def test_pools_ignore_padding_and_survive_emptiness(name):
    """A pool of a padded sequence is the pool of the sequence; an empty one gives zeros."""
    torch.manual_seed(0)
    pool, x = POOLS[name](6), torch.randn(2, 5, 6)
    mask = torch.tensor([[True] * 3 + [False] * 2, [False] * 5])
    out = pool(x, mask)
    torch.testing.assert_close(out[:1], pool(x[:1, :3], mask[:1, :3]))
    assert not out[1].any()


def test_cross_attention_is_symmetric():
    """Swapping the pair swaps the outputs: neither side is updated first."""
    torch.manual_seed(0)
    layer = LinearCrossAttention(6, 0.0)
    both, mask = torch.randn(4, 3, 6), torch.ones(4, 3, dtype=torch.bool)
    mask[2, 2] = False
    swapped = layer(both.roll(2, dims=0), mask.roll(2, dims=0))
    torch.testing.assert_close(swapped, layer(both, mask).roll(2, dims=0))


def test_attention_in_half_precision_is_attention():
    """Under autocast the layer follows the definition, in bfloat16, forward and backward."""
    torch.manual_seed(0)
    layer, mask = LinearCrossAttention(6, 0.0), torch.rand(4, 5) < 0.8
    x = torch.randn(4, 5, 6, requires_grad=True)
    (exact,) = torch.autograd.grad(layer(x, mask).sin().sum(), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (rounded,) = torch.autograd.grad(layer(x, mask).float().sin().sum(), x)
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)


def test_cross_attention_reads_the_other_sequence():
    """A sequence's output depends on the other one of its pair, on no other pair, and on no padding."""
    torch.manual_seed(0)
    layer = LinearCrossAttention(6, 0.0)
    both, mask = torch.randn(4, 3, 6), torch.ones(4, 3, dtype=torch.bool)
    mask[2, 2] = False
    before = layer(both, mask)
    padding, partner = both.clone(), both.clone()
    padding[2, 2] += 1
    partner[2, 1] += 1
    torch.testing.assert_close(layer(padding, mask)[:2], before[:2])
    after = layer(partner, mask)
    assert not torch.allclose(after[0], before[0])
    torch.testing.assert_close(after[[1, 3]], before[[1, 3]])
