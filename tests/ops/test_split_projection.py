"""A projection in two halves is the projection."""

import pytest
import torch
from torch.autograd import gradcheck

from dygmamba.ops.projections import autograd, split_projection
from gradient_cases import assert_same, poisoned


@pytest.fixture(autouse=True)
def _poison():
    with poisoned():
        yield


def draw(q: int = 3, length: int = 5, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(length)
    return torch.randn(q, length, 4, dtype=dtype), torch.randn(6, 4, dtype=dtype)


@pytest.mark.parametrize(("q", "length"), [(3, 5), (1, 1), (0, 4), (2, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_two_halves_are_one_product(q, length, dtype):
    """For all shapes and dtypes: the halves of x W^T and the gradients of x and W are those of the product."""
    near = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    assert_same(autograd.split_projection, split_projection.reference, draw(q, length, dtype), **near)


def test_autocast_chooses_the_precision():
    """Under autocast the halves are of its dtype, as a linear map's would be, and gradients of the inputs'."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert split_projection(*draw(dtype=torch.float32))[0].dtype == torch.bfloat16
        leaves = draw(dtype=torch.float32)
        assert_same(autograd.split_projection, split_projection.reference, leaves, rtol=2e-2, atol=5e-2)


def test_gradcheck():
    """The gradients are the derivatives of the values, by finite differences."""
    assert gradcheck(split_projection, tuple(leaf.requires_grad_() for leaf in draw()))


def test_one_half_alone_may_be_used():
    """A half that nobody reads adds nothing to the gradients."""
    leaves = draw()
    assert_same(
        lambda *t: autograd.split_projection(*t)[1], lambda *t: split_projection.reference(*t)[1], leaves
    )
