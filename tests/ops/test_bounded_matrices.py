"""Bounded matrices: the Triton kernels against the definition."""

import pytest
import torch

from dygmamba.ops.dispatch import use_reference
from dygmamba.ops.projections import bound_matrices
from gradient_cases import results
from interpreted import DEVICE, INTERPRETED, compile_for_hopper, kernels_run

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
def test_the_kernels_compile_for_hopper() -> None:
    """What the interpreter forgives, the compiler may not: the kernels become machine code, GPU or no GPU."""
    from dygmamba.ops.projections import triton as fused
    from dygmamba.ops.projections import triton_kernels as kernels

    weight = torch.zeros(2, 16, 400)
    given = dict.fromkeys(("weight", "y", "power", "facts", "dy", "dweight"), weight)
    given |= fused._sizes(weight) | {"FIRST": 4, "SECOND": 4}
    for kernel in (kernels.forward_kernel, kernels.backward_kernel):
        compile_for_hopper(kernel, {name: given[name] for name in kernel.arg_names}, fused.WARPS)


@kernels_run
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 0.05, 1.0, 1e15])
@pytest.mark.parametrize("shape", [(2, 16, 400), (1, 3, 7), (3, 20, 129)])
def test_values_and_gradients_are_those_of_the_definition(shape: tuple[int, int, int], scale: float) -> None:
    """For matrices of any size and scale, below the bound and above it."""
    from dygmamba.ops.projections import triton as fused

    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scale
    with use_reference():
        true = results(bound_matrices, (weight,))
    found = results(fused.bound_matrices, (weight.to(DEVICE),))
    for ours, exact in zip(found, true, strict=True):
        torch.testing.assert_close(ours.cpu(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))
    assert bool((torch.linalg.matrix_norm(found[0].cpu().double(), ord=2) <= 1 + 1e-5).all())


@kernels_run
def test_zero_matrices_stay_zero() -> None:
    """A zero matrix has a finite gradient and does not touch the others."""
    from dygmamba.ops.projections import triton as fused

    weight = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(0))
    weight[0] = 0
    value, grad = results(fused.bound_matrices, (weight.to(DEVICE),))
    assert not value[0].any()
    assert bool(torch.isfinite(grad).all())
