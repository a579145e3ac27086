from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.ops.tokens import count_pair_tokens


@st.composite
def token_rows(draw, width: int):
    """Rows of node ids in which any token may be masked."""
    count = 3
    few = st.integers(0, 5)
    ids = draw(
        st.lists(
            draw(st.sampled_from([few, few.map(lambda x: 70_000 * x)])),
            min_size=count * width,
            max_size=count * width,
        )
    )
    mask = draw(st.lists(st.booleans(), min_size=count * width, max_size=count * width))
    return torch.tensor(ids, dtype=torch.int32).reshape(count, width), torch.tensor(mask).reshape(
        count, width
    )


@given(left=token_rows(5), right=token_rows(5))
def test_counts_equal_a_counter(left, right):
    """Each token's counts are those of collections.Counter over the unmasked tokens of either side."""
    ids, mask = (torch.cat(sides) for sides in zip(left, right, strict=True))
    pairs = len(left[0])
    for count in (count_pair_tokens, count_pair_tokens.reference):
        counts = count(ids, mask)
        assert counts.dtype == torch.int32
        for row in range(len(ids)):
            first = row % pairs
            sides = [Counter(ids[side][mask[side]].tolist()) for side in (first, first + pairs)]
            expected = [
                [side[int(x)] for side in sides] if m else [0, 0]
                for x, m in zip(ids[row], mask[row], strict=True)
            ]
            assert counts[row].tolist() == expected


@given(left=token_rows(4), right=token_rows(4))
def test_swapping_the_pair_swaps_the_columns(left, right):
    """Co-occurrence is symmetric: (u, v) and (v, u) hold the same numbers in swapped columns."""
    counts, swapped = (
        count_pair_tokens(*(torch.cat(sides) for sides in zip(*pair, strict=True)))
        for pair in ((left, right), (right, left))
    )
    assert torch.equal(counts, swapped.roll(len(left[0]), dims=0).flip(-1))


def test_the_papers_example():
    """S_u = {a, b}, S_v = {b, b, c, a}: the counts of u's tokens are [[1, 1], [1, 2]] (section 4.1)."""
    a, b, c = 0, 1, 2
    ids = torch.tensor([[a, b, 0, 0], [b, b, c, a]], dtype=torch.int32)
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    assert count_pair_tokens(ids, mask)[0, :2].tolist() == [[1, 1], [1, 2]]
