"""The convolution's Triton kernels against the definition in float64, on a GPU or under Triton's interpreter."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from conv_cases import LENGTHS, MASKS, Case, case
from dygmamba.ops.conv import reference
from interpreted import DEVICE, GPU, INTERPRETED, compile_for_hopper, kernels_run, on_gpu
from scan_cases import assert_near

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
@pytest.mark.parametrize("taps", [1, 4])
def test_the_kernels_compile_for_hopper(taps: int) -> None:
    """What the interpreter forgives, the compiler may not: the kernels become machine code, GPU or no GPU."""
    from dygmamba.ops.conv import triton as fused
    from dygmamba.ops.conv import triton_kernels as kernels

    x, weight, bias, mask, reverse = case((2, 9, 400, taps)).to(torch.float32).arguments
    reading = fused._arguments(x, weight, bias, mask, reverse)
    adjoint = reading | fused._rows("dy", x) | {"dx": x, "parts": x, "STEPS": fused.FLIGHT}
    compile_for_hopper(kernels.forward_kernel, reading | {"y": x, "STEPS": fused.STEPS}, fused.WARPS)
    compile_for_hopper(kernels.backward_kernel, adjoint, fused.BACKWARD_WARPS)


def fused_results(x: Case) -> dict[str, Tensor]:
    """What `Case.results` gives, by the kernels."""
    from dygmamba.ops.conv import triton as fused

    dtype = torch.promote_types(x.x.dtype, x.weight.dtype)
    y = fused.forward(*x.arguments, dtype)
    grads = fused.backward(*x.arguments, x.dy.to(dtype))
    return {"y": y, **dict(zip(("dx", "dweight", "dbias"), grads, strict=True))}


def assert_exact(x: Case, tolerance: float = 2e-6) -> None:
    """Output and gradients are within `tolerance` of the definition in float64; NaN under the mask stays there."""
    true = x.to(torch.float64).to(DEVICE).results(reference.conv_silu)
    assert_near(fused_results(x.poisoned().to(DEVICE)), true, tolerance)


@kernels_run
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_matches_the_definition(length: int, reverse: bool) -> None:
    """For all lengths and directions: output and gradients equal the float64 definition's."""
    assert_exact(case((2, length, 5, 4), "holes", reverse).to(torch.float32))


@kernels_run
@pytest.mark.parametrize("mask", MASKS)
def test_what_lies_under_a_mask_reaches_nothing(mask: str) -> None:
    """For all masks: a masked step counts as 0, and NaN there stays there."""
    assert_exact(case((3, 18, 5, 4), mask, mask == "holes").to(torch.float32))


@kernels_run
@pytest.mark.parametrize(("channels", "taps"), [(1, 2), (65, 1), (65, 3), (5, 8)])
def test_every_width_matches_the_definition(channels: int, taps: int) -> None:
    """For all numbers of channels and taps, padding reaches no result."""
    assert_exact(case((2, 5, channels, taps), "ragged", taps % 2 == 0).to(torch.float32))


@kernels_run
def test_rows_may_lie_apart() -> None:
    """Half of a projection, and the gradient of a sum, are read where they are."""
    whole = case((2, 18, 5, 4), "holes").to(DEVICE).to(torch.float32)
    dense = replace(whole, x=whole.x.contiguous(), dy=torch.ones_like(whole.dy))
    packed = torch.cat([whole.x, torch.full_like(whole.x, float("nan"))], -1)
    apart = replace(whole, x=packed[..., :5], dy=torch.ones((), device=DEVICE).expand(whole.dy.shape))
    want, got = fused_results(dense), fused_results(apart)
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="the interpreter runs programs in one order")
def test_two_runs_agree_in_every_bit() -> None:
    """No result depends on the order in which programs finish."""
    x = case((300, 200, 400, 4), "holes").to(torch.float32).to(DEVICE)
    first, second = fused_results(x), fused_results(x)
    assert all(torch.equal(second[name], value) for name, value in first.items())


@kernels_run
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_bfloat16_inputs_lose_only_their_own_digits(weights: torch.dtype) -> None:
    """Sums are float32: the results, on the same rounded inputs, are right to their last bit."""
    x = case((2, 18, 5, 4), "holes").to(torch.bfloat16)
    x = replace(x, weight=x.weight.to(weights), bias=x.bias.to(weights))
    results = fused_results(x.to(DEVICE))
    assert results["y"].dtype == weights
    assert results["dx"].dtype == torch.bfloat16
    assert_exact(x, 2**-7)


@kernels_run
def test_no_sequences_have_no_gradients() -> None:
    """An empty batch is answered with tensors of its shapes, and zeros for the weights."""
    results = fused_results(case((0, 5, 4, 3)).to(torch.float32).to(DEVICE))
    assert results["y"].shape == results["dx"].shape == (0, 5, 4)
    assert not results["dweight"].any()


@pytest.mark.parametrize("size", [(800, 32, 400, 4), (70, 1000, 400, 4), (9, 1023, 33, 3)])
class TestLarge:
    """Shapes for the compiler: many tiles, programs and parts."""

    pytestmark = on_gpu

    def test_long_ragged_sequences_match_the_definition(self, size: tuple[int, int, int, int]) -> None:
        """Errors do not grow with the length."""
        assert_exact(case(size, "ragged", reverse=size[1] == 1000).to(torch.float32), 1e-5)
