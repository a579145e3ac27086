"""The Triton kernels of the attention between two sequences against the definition in float64."""

import pytest
import torch

from dygmamba.ops.attention import pair_attention
from gradient_cases import Op, results
from interpreted import DEVICE, INTERPRETED, compile_for_hopper, kernels_run, on_gpu

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
def test_the_kernels_compile_for_hopper() -> None:
    """What the interpreter forgives, the compiler may not: the kernels become machine code, GPU or no GPU."""
    from dygmamba.ops.attention import triton as fused
    from dygmamba.ops.attention import triton_kernels as kernels

    x = torch.zeros(2, 30, 600)
    options = fused.short_options(x)
    warps, _ = options.pop("num_warps"), options.pop("num_stages")
    given = dict.fromkeys(("projected", "mask", "y", "dy", "dprojected"), x) | options | {"PRECISION": "tf32"}
    for kernel in (kernels.short_kernel, kernels.short_backward_kernel):
        compile_for_hopper(kernel, {name: given[name] for name in kernel.arg_names}, warps)
    given |= dict.fromkeys(("query", "weight", "total", "target", "grad", "slope", "mean"), x)
    given |= {"count": 60, "WIDTH": 200, "ROWS": 4, "TOKENS": 32}
    given_keys = given | {"BLOCK": 64}
    compile_for_hopper(
        kernels.key_kernel, {name: given_keys[name] for name in kernels.key_kernel.arg_names}, 4
    )
    for kernel in (kernels.query_kernel, kernels.query_gradient_kernel, kernels.key_gradient_kernel):
        compile_for_hopper(kernel, {name: (given | {"BLOCK": 256})[name] for name in kernel.arg_names}, 4)


def kernel_function(kernels: str) -> Op:
    from dygmamba.ops.attention import triton

    return {"short": triton.short_pair_attention, "long": triton.long_pair_attention}[kernels]


def compare(
    count: int,
    length: int,
    width: int,
    tolerance: float = 1e-5,
    kernels: str = "short",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Value and gradient are the definition's; one sequence has no token, one is whole, the others have holes."""
    fused = kernel_function(kernels)
    generator = torch.Generator().manual_seed(length)
    projected = torch.randn(count, length, 3 * width, generator=generator).double()
    mask = torch.rand(count, length, generator=generator) < 0.6
    mask[0], mask[-1] = False, True
    true = results(pair_attention.reference, (projected,), mask)
    found = results(fused, (projected.to(DEVICE, dtype),), mask.to(DEVICE))
    for ours, exact in zip(found, true, strict=True):
        assert ours.dtype == dtype
        assert (ours.cpu().double() - exact).norm() <= tolerance * exact.norm()


@kernels_run
@pytest.mark.parametrize(("length", "width"), [(1, 5), (7, 64), (16, 3), (33, 70), (64, 8)])
def test_value_and_gradient_are_those_of_the_definition(length: int, width: int) -> None:
    """For all lengths and widths, padding reaches no result."""
    compare(6, length, width)


@kernels_run
@pytest.mark.parametrize(("length", "width"), [(1, 5), (33, 70), (70, 8)])
def test_the_softmaxes_of_long_sequences_are_those_of_the_definition(length: int, width: int) -> None:
    """For all lengths and widths."""
    compare(6, length, width, kernels="long")


@kernels_run
@pytest.mark.parametrize("kernels", ["short", "long"])
def test_bfloat16_rows_lose_only_their_own_digits(kernels: str) -> None:
    """Softmaxes and sums are float32."""
    compare(6, 20, 24, 2**-5, kernels, torch.bfloat16)


@kernels_run
@pytest.mark.parametrize("kernels", ["short", "long"])
def test_the_key_of_a_missing_token_reaches_nothing(kernels: str) -> None:
    """NaN in the key of a masked token changes no output."""
    fused = kernel_function(kernels)
    projected = torch.randn(4, 5, 18, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    mask = torch.tensor([[True] * 3 + [False] * 2] * 4, device=DEVICE)
    want = fused(projected, mask)
    projected[:, 3:, 6:12] = float("nan")
    assert torch.equal(fused(projected, mask), want)


@pytest.mark.parametrize("length", [32, 50, 64, 300])
class TestLarge:
    """Shapes for the compiler."""

    pytestmark = on_gpu

    def test_many_sequences_match_the_definition(self, length: int) -> None:
        compare(600, length, 200, kernels="short" if length <= 64 else "long")

    def test_tensor_cores_lose_only_their_digits(self, length: int) -> None:
        torch.set_float32_matmul_precision("high")
        try:
            compare(600, length, 200, 2e-3, "short" if length <= 64 else "long")
        finally:
            torch.set_float32_matmul_precision("highest")
