"""The sum of tokens weighted by a gate: by hand as by definition."""

import pytest
import torch
from torch.autograd import gradcheck

from dygmamba.ops.attention import autograd, gated_sum
from gradient_cases import assert_same, poisoned, results


@pytest.fixture(autouse=True)
def _poison():
    with poisoned():
        yield


def draw(length: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Tokens, gate and mask of three sequences, the second without any token."""
    rng = torch.Generator().manual_seed(length)
    x, gate = torch.randn(3, length, 4, generator=rng), torch.randn(4, generator=rng)
    mask = torch.rand(3, length, generator=rng) < 0.7
    mask[1], mask[2] = False, True
    return x.to(dtype), gate.to(dtype), mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 5, 130])
def test_by_hand_it_is_its_definition(length, dtype):
    """For all lengths and dtypes: value and gradients; in bfloat16 the sums differ by its own rounding."""
    x, gate, mask = draw(length, dtype)
    near = {"rtol": 5e-2, "atol": 2e-1} if dtype == torch.bfloat16 else {}
    if dtype == torch.float32:
        near = {"rtol": 1e-4, "atol": 1e-5}
    assert_same(autograd.gated_sum, gated_sum.reference, (x, gate), mask, **near)


def test_gradcheck():
    """The gradients are the derivatives of the values, by finite differences."""
    x, gate, mask = draw(5)
    assert gradcheck(lambda x, gate: gated_sum(x, gate, mask), (x.requires_grad_(), gate.requires_grad_()))


@pytest.mark.parametrize("sum_up", [autograd.gated_sum, gated_sum.reference])
def test_padding_is_neutral_and_emptiness_is_zero(sum_up):
    """Tokens that do not exist add nothing; a sequence without tokens is 0, and gives no gradient."""
    x, gate, mask = draw(5)
    other = torch.where(mask[..., None], x, x + 3)
    want, got = results(sum_up, (x, gate), mask), results(sum_up, (other, gate), mask)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    assert not want[0][1].any()
    assert not want[1][~mask].any()


def test_autocast_changes_no_bit():
    """The sum is computed in its inputs' precision, forward and backward; by definition forward at least."""
    x, gate, mask = draw(5, torch.float32)
    want, true = results(gated_sum, (x, gate), mask), gated_sum.reference(x, gate, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = results(gated_sum, (x, gate), mask)
        assert torch.equal(gated_sum.reference(x, gate, mask), true)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
