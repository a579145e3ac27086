from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.ops.tokens.counts import cooccurrence


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


@given(left=token_rows(5), right=token_rows(3))
def test_counts_equal_a_counter(left, right):
    """Each token's counts are those of collections.Counter over the unmasked tokens of either side."""
    for count in (cooccurrence, cooccurrence.reference):
        in_left, in_right = count(left[0], right[0], left[1], right[1])
        for row in range(len(left[0])):
            sides = [Counter(ids[row][mask[row]].tolist()) for ids, mask in (left, right)]
            for out, (ids, mask) in ((in_left, left), (in_right, right)):
                expected = [
                    [side[int(x)] for side in sides] if m else [0, 0]
                    for x, m in zip(ids[row], mask[row], strict=True)
                ]
                assert out[row].tolist() == expected


@given(left=token_rows(4), right=token_rows(4))
def test_swapping_the_pair_swaps_the_columns(left, right):
    """Co-occurrence is symmetric: (u, v) and (v, u) hold the same numbers in swapped columns."""
    in_left, in_right = cooccurrence(left[0], right[0], left[1], right[1])
    swapped_right, swapped_left = cooccurrence(right[0], left[0], right[1], left[1])
    assert torch.equal(in_left, swapped_left.flip(-1))
    assert torch.equal(in_right, swapped_right.flip(-1))


def test_the_papers_example():
    """S_u = {a, b}, S_v = {b, b, c, a}: the counts of u's tokens are [[1, 1], [1, 2]] (section 4.1)."""
    a, b, c = 0, 1, 2
    left, right = torch.tensor([[a, b]], dtype=torch.int32), torch.tensor([[b, b, c, a]], dtype=torch.int32)
    counts, _ = cooccurrence(
        left, right, torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 4, dtype=torch.bool)
    )
    assert counts.tolist() == [[[1, 1], [1, 2]]]
