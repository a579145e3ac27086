"""Attention to the other sequence of a pair: every way of computing it is the definition."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from dygmamba.ops.attention import autograd, pair_attention
from gradient_cases import assert_same, poisoned, results

long, short, half = (
    autograd.long_pair_attention,
    autograd.short_pair_attention,
    autograd.half_pair_attention,
)
reference = pair_attention.reference
WAYS = {"long": long, "short": short, "half": half}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
WIDTH = 6


@pytest.fixture(autouse=True)
def _poison():
    with poisoned():
        yield


def draw(length: int, dtype: torch.dtype = torch.float64, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Three pairs: one sequence has no token, one is whole, the others have holes."""
    rng = torch.Generator().manual_seed(length)
    asked = torch.randn(6, length, 3 * width, generator=rng, dtype=torch.float64)
    mask = torch.rand(6, length, generator=rng) < 0.6
    mask[1], mask[2] = False, True
    return asked.to(dtype), mask


@every_way
@pytest.mark.parametrize("length", [1, 5, 6, 9, 131])
def test_the_order_of_products_does_not_matter(way, length):
    """Shorter than wide, as wide or longer, also without any token: value and gradient are the definition's."""
    asked, mask = draw(length)
    assert_same(way, reference, (asked,), mask)


@every_way
def test_single_precision_is_near(way):
    """In float32 the same, to its digits."""
    asked, mask = draw(9, torch.float32)
    assert_same(way, reference, (asked,), mask, rtol=1e-4, atol=1e-5)


@every_way
def test_gradcheck(way):
    """The gradients are the derivatives of the values, by finite differences."""
    asked, mask = draw(4)
    assert gradcheck(lambda asked: way(asked, mask), asked.requires_grad_())


@pytest.mark.parametrize("way", [*WAYS.values(), reference], ids=[*WAYS, "reference"])
def test_a_key_that_does_not_exist_reaches_nothing(way):
    """NaN in the key of a missing token changes no output and no gradient; a finite value gives nothing either."""
    asked, mask = draw(5)
    want = results(way, (asked,), mask)
    bad = asked.clone()
    bad[..., WIDTH : 2 * WIDTH][~mask] = torch.nan
    got = results(way, (bad,), mask)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    other = asked.clone()
    other[..., 2 * WIDTH :][~mask] += 3
    torch.testing.assert_close(way(other, mask), want[0])


@pytest.mark.parametrize("way", [*WAYS.values(), reference], ids=[*WAYS, "reference"])
def test_a_sequence_without_tokens_gives_zeros(way):
    """Who is paired with it gets 0, and it gets no gradient of keys and values."""
    y, gradient = results(way, draw(5)[:1], draw(5)[1])
    assert not y[4].any()
    assert not gradient[1, :, WIDTH:].any()


@pytest.mark.parametrize("way", [*WAYS.values(), reference], ids=[*WAYS, "reference"])
def test_padding_is_neutral(way):
    """Two more tokens that do not exist change nothing for the others."""
    asked, mask = draw(5)
    longer = (
        torch.cat([asked, asked[:, :2]], dim=1),
        torch.cat([mask, torch.zeros(6, 2, dtype=torch.bool)], dim=1),
    )
    torch.testing.assert_close(way(*longer)[:, :5], way(asked, mask))


def test_autocast_chooses_operation_by_operation():
    """In bfloat16, as it comes under autocast, the public function is near the definition in float64."""
    asked, mask = draw(9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = results(pair_attention, (asked.bfloat16(),), mask)
    for ours, true in zip(rounded, results(reference, (asked,), mask), strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=5e-2, atol=5e-2)


def test_a_device_has_its_own_long():
    """Up to 128 tokens the short way, on a GPU a kernel up to 64; else the long one, on a CPU if longer than wide."""
    triton = pytest.importorskip("dygmamba.ops.attention.triton")
    for (device, width), length in product(
        (("cuda", 200), ("cpu", 200), ("cpu", 50)), (1, 24, 33, 128, 129, 201)
    ):
        asked = torch.empty(2, length, 3 * width)
        if device == "cpu":
            assert _device_choice(device, asked) is (long if length > max(128, width) else short)
            assert _device_choice(device, asked.bfloat16()) is half
        elif 64 < length <= 128:
            assert _device_choice(device, asked) is short
            assert _device_choice(device, asked.bfloat16()) is half
        else:
            kernels = triton.short_pair_attention if length <= 64 else triton.long_pair_attention
            assert _device_choice(device, asked) is _device_choice(device, asked.bfloat16()) is kernels


def _device_choice(device: str, asked: Tensor):
    return pair_attention.pick(device, asked if device == "cpu" else _Pretended(asked), None)


class _Pretended:
    """A tensor as `serves` sees it, on a GPU that need not be there."""

    device = torch.device("cuda")

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
