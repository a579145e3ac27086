"""Attention parts: equal to the textbook form, blind to what is masked."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from dygmamba.nn.attention import NeighborAttention, PostNormLayer, PreNormLayer, TokenAttention, lookup

WIDTH, HEADS = 12, 2


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mask_of(*lengths, width=5):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def test_one_query_attention_is_attention_with_every_key_and_value_projected():
    """W_k and W_v applied to the query and to the sum give what they give applied to each neighbour."""
    torch.manual_seed(0)
    part = NeighborAttention(WIDTH, 7, 7, HEADS, dropout=0.0).double()
    query, keys, mask = random(4, WIDTH).double(), random(4, 5, 7, seed=1).double(), mask_of(1, 2, 4, 5)
    q = part.query(query).view(4, HEADS, 1, -1)
    k, v = (torch.einsum("rlc,hic->rhli", keys, weight) for weight in (part.key, part.value))
    found = scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None]).flatten(1)
    expected = part.norm(query + part.out(found))
    torch.testing.assert_close(part(query, keys, mask), expected, rtol=1e-12, atol=1e-12)


def test_one_query_attention_has_no_order_and_an_empty_past_says_nothing():
    """Keys permuted: the same answer; no keys: the query with the output's bias, and a finite gradient."""
    torch.manual_seed(0)
    part = NeighborAttention(WIDTH, 7, 7, HEADS, dropout=0.0)
    query, keys, mask = random(3, WIDTH), random(3, 5, 7, seed=1).requires_grad_(), mask_of(0, 3, 5)
    order = torch.tensor([4, 2, 0, 1, 3])
    answer = part(query, keys, mask)
    torch.testing.assert_close(part(query, keys[:, order], mask[:, order]), answer)
    torch.testing.assert_close(answer[0], part.norm(query[0] + part.out.bias))
    answer.square().sum().backward()
    assert bool(torch.isfinite(keys.grad).all())
    assert not keys.grad[~mask].any()


def copy_attention(ours: TokenAttention, theirs: nn.MultiheadAttention) -> None:
    """The textbook module with the weights of ours."""
    parts = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())


def test_token_attention_is_multi_head_attention():
    """Tokens asking another sequence get what torch's module gives them under the same key mask."""
    torch.manual_seed(0)
    ours, theirs = TokenAttention(WIDTH, HEADS, 0.0), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    copy_attention(ours, theirs)
    x, keys, mask = random(3, 4, WIDTH), random(3, 5, WIDTH, seed=1), mask_of(1, 3, 5)
    expected, _ = theirs(x, keys, keys, key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, keys, mask), expected)


@pytest.mark.parametrize("before", [False, True])
def test_layers_are_the_textbook_transformer_layers(before):
    """Post-norm with ReLU and pre-norm with GELU equal torch's encoder layer with the same weights."""
    torch.manual_seed(0)
    ours = (PreNormLayer if before else PostNormLayer)(WIDTH, HEADS, 0.0)
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu" if before else "relu", batch_first=True, norm_first=before
    )
    copy_attention(ours.attend, theirs.self_attn)
    theirs.linear1.load_state_dict(ours.feed[0].state_dict())
    theirs.linear2.load_state_dict(ours.feed[3].state_dict())
    x, mask = random(3, 5, WIDTH), mask_of(1, 3, 5)
    answer = ours(x, mask) if before else ours(x, x, mask)
    torch.testing.assert_close(answer, theirs(x, src_key_padding_mask=~mask))


def test_lookup_reads_nothing_where_nothing_is_present():
    """NaN behind an absent entry stays there; a table without columns gives none."""
    table = torch.tensor([[1.0], [torch.nan]])
    index, present = torch.tensor([[0, 1]]), torch.tensor([[True, False]])
    assert lookup(table, index, present).tolist() == [[[1.0], [0.0]]]
    assert lookup(torch.zeros(2, 0), index, present).shape == (1, 2, 0)
