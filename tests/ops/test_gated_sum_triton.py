"""The Triton kernels of the gated sum against the definition in float64."""

import pytest
import torch

from dygmamba.ops.attention import gated_sum
from gradient_cases import results
from interpreted import DEVICE, INTERPRETED, compile_for_hopper, kernels_run, on_gpu

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
def test_the_kernels_compile_for_hopper() -> None:
    """What the interpreter forgives, the compiler may not: the kernels become machine code, GPU or no GPU."""
    from dygmamba.ops.attention import triton as fused
    from dygmamba.ops.attention import triton_kernels as kernels

    x = torch.zeros(2, 30, 200)
    given = dict.fromkeys(("x", "gate", "mask", "y", "most", "total", "dy", "dx", "parts"), x)
    given |= fused.gated_sum_sizes(x) | {"length": 30}
    for kernel in (kernels.gated_sum_kernel, kernels.gated_sum_backward_kernel):
        compile_for_hopper(kernel, {name: given[name] for name in kernel.arg_names}, fused.WARPS)


def compare(
    count: int, length: int, width: int, dtype: torch.dtype = torch.float32, tolerance: float = 1e-5
) -> None:
    """Value and gradients are the definition's; one sequence has no token, one is whole, the others have holes."""
    from dygmamba.ops.attention import triton as fused

    generator = torch.Generator().manual_seed(length)
    x = torch.randn(count, length, width, generator=generator).double()
    gate = torch.randn(width, generator=generator).double()
    mask = torch.rand(count, length, generator=generator) < 0.6
    mask[0], mask[-1] = False, True
    true = results(gated_sum.reference, (x, gate), mask)
    hidden = x.masked_fill(~mask[..., None], float("nan"))
    ours = (hidden.to(DEVICE, dtype), gate.to(DEVICE, dtype))
    for found, exact in zip(results(fused.gated_sum, ours, mask.to(DEVICE)), true, strict=True):
        assert found.dtype == dtype
        assert (found.cpu().double() - exact).norm() <= tolerance * exact.norm().clamp(min=1)


@kernels_run
@pytest.mark.parametrize(("length", "width"), [(1, 5), (7, 64), (16, 3), (33, 70), (2, 300)])
def test_value_and_gradients_are_those_of_the_definition(length: int, width: int) -> None:
    """For all lengths and widths; what lies under a mask reaches nothing."""
    compare(4, length, width)


@kernels_run
def test_bfloat16_tokens_lose_only_their_own_digits() -> None:
    """Scores and sums are float32; a weight carries the rounding of its token and gate."""
    compare(4, 9, 40, torch.bfloat16, 2**-5)


@pytest.mark.parametrize("length", [32, 1000])
class TestLarge:
    """Shapes for the compiler."""

    pytestmark = on_gpu

    def test_many_sequences_match_the_definition(self, length: int) -> None:
        compare(400, length, 200)
