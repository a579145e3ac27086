"""The softmax of what exists: the definition, and the way of a GPU."""

import pytest
import torch
from torch.autograd import gradcheck

from dygmamba.ops.attention import autograd, masked_softmax
from gradient_cases import assert_same, results

WAYS = [masked_softmax.reference, autograd.masked_softmax]
both_ways = pytest.mark.parametrize("softmax", WAYS, ids=["reference", "exponentials"])
LENGTHS = [1, 3, autograd.LONG, autograd.LONG + 3]


def draw(length: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Three sequences: with a hole, without any token, whole."""
    rng = torch.Generator().manual_seed(length)
    score = 9 * torch.randn(3, length, 4, generator=rng, dtype=torch.float64)
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[0, length // 2 :], mask[1] = False, False
    mask[0, 0] = True
    return score.to(dtype), mask


@both_ways
@pytest.mark.parametrize("length", LENGTHS)
def test_it_is_the_softmax_of_what_exists(softmax, length):
    """Weights are those of the existing tokens alone, others are 0; without tokens all are 0, gradients too."""
    score, mask = draw(length)
    weight, gradient = results(softmax, (score,), mask)
    torch.testing.assert_close(weight[0][mask[0]], score[0][mask[0]].softmax(dim=0))
    torch.testing.assert_close(weight[2], score[2].softmax(dim=0))
    assert not weight[~mask].any()
    assert not gradient[~mask].any()


@both_ways
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_what_lies_under_the_mask_reaches_nothing(softmax, garbage):
    """For whatever is there, NaN too: no weight and no gradient changes."""
    score, mask = draw(5)
    want = results(softmax, (score,), mask)
    got = results(softmax, (score.masked_fill(~mask[..., None], garbage),), mask)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@both_ways
def test_padding_is_neutral(softmax):
    """More tokens that do not exist change no weight of those that do."""
    score, mask = draw(6)
    more = (
        torch.cat([score, torch.full((3, 2, 4), torch.nan)], dim=1),
        torch.cat([mask, mask[:, :2] & False], 1),
    )
    torch.testing.assert_close(softmax(*more)[:, :6], softmax(score, mask))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_both_ways_are_one(length, dtype):
    """For all lengths and dtypes: values and gradients of the two agree."""
    score, mask = draw(length, dtype)
    near = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    assert_same(autograd.masked_softmax, masked_softmax.reference, (score,), mask, **near)


@both_ways
def test_gradcheck(softmax):
    """The gradients are the derivatives of the values, by finite differences."""
    score, mask = draw(4)
    assert gradcheck(lambda score: softmax(score, mask), score.requires_grad_())


def test_what_was_measured_on_a_gpu_chooses_there_only():
    """On a CPU the definition is the quickest at any length; on a GPU up to 128 tokens, and for one score each."""
    for length in LENGTHS:
        score, mask = draw(length)
        assert masked_softmax.pick("cpu", score, mask) is masked_softmax.reference
        assert torch.equal(masked_softmax(score, mask), masked_softmax.reference(score, mask))
        chosen = autograd.masked_softmax if length > autograd.LONG else masked_softmax.reference
        assert masked_softmax.pick("cuda", score, mask) is chosen
        assert masked_softmax.pick("cuda", score[..., :1], mask) is masked_softmax.reference
