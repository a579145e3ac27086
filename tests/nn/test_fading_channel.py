"""Fading co-occurrence: the definition by loops, and the published counts where nothing fades."""

import torch

from dygmamba.history.view import NeighborSequence
from dygmamba.nn.encodings import count_decayed_pair_tokens
from dygmamba.nn.tokens import make_tokens
from dygmamba.ops.tokens import count_pair_tokens


def some_tokens(seed: int):
    rng = torch.Generator().manual_seed(seed)
    q, k = 8, 6
    length = torch.randint(0, k + 1, (q,), generator=rng)
    time = torch.rand(q, k, generator=rng, dtype=torch.float64).sort(dim=1).values * 100
    node = torch.randint(5, (q, k), generator=rng, dtype=torch.int32)
    query = torch.full((q,), 100.5, dtype=torch.float64)
    return make_tokens(NeighborSequence(torch.arange(q) % 5, query, node, node * 0, time, length))


def test_each_token_counts_its_meetings_in_both_sequences_by_their_age():
    tokens, scale = some_tokens(0), torch.tensor([1.0, 20.0])
    found = count_decayed_pair_tokens(tokens, scale)
    rows, width = tokens.node.shape
    for row in range(rows):
        other = (row + rows // 2) % rows
        for at in range(width):
            for side, where in enumerate((row, other)):
                for s, theta in enumerate(scale.tolist()):
                    truth = sum(
                        float(torch.exp(-tokens.age[where, i] / theta))
                        for i in range(width)
                        if tokens.mask[where, i] and tokens.node[where, i] == tokens.node[row, at]
                    )
                    truth = truth if tokens.mask[row, at] else 0.0
                    assert abs(float(found[row, at, 2 * side + s]) - truth) < 1e-5


def test_where_nothing_fades_it_is_the_published_count():
    tokens = some_tokens(1)
    endless = count_decayed_pair_tokens(tokens, torch.tensor([1e30]))
    counts = count_pair_tokens(tokens.node, tokens.mask).float()
    p = len(counts) // 2
    own = torch.cat([counts[:p, :, 0], counts[p:, :, 1]])
    other = torch.cat([counts[:p, :, 1], counts[p:, :, 0]])
    assert torch.allclose(endless[..., 0], own * tokens.mask)
    assert torch.allclose(endless[..., 1], other * tokens.mask)


def test_padding_counts_nothing_and_moves_nothing():
    tokens = some_tokens(2)
    wide = type(tokens)(
        *(
            torch.nn.functional.pad(column, (0, 3)) if column.dim() == 2 else column
            for column in (
                tokens.node,
                tokens.event,
                tokens.age,
                tokens.gap,
                tokens.share,
                tokens.length,
                tokens.is_event,
                tokens.mask,
            )
        )
    )
    scale = torch.tensor([3.0])
    assert torch.allclose(
        count_decayed_pair_tokens(wide, scale)[:, : tokens.node.shape[1]],
        count_decayed_pair_tokens(tokens, scale),
    )
