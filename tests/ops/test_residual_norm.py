"""Norms behind residual connections: the Triton kernels against the definition in float64."""

import pytest
import torch
from torch import Tensor

from dygmamba.ops.residual_norm import add_layer_norm, add_rms_norm
from gradient_cases import results
from interpreted import DEVICE, GPU, INTERPRETED, compile_for_hopper, kernels_run, on_gpu

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
def test_the_kernels_compile_for_hopper() -> None:
    """What the interpreter forgives, the compiler may not: the kernels become machine code, GPU or no GPU."""
    from dygmamba.ops.residual_norm import triton as fused
    from dygmamba.ops.residual_norm import triton_kernels as kernels

    x = torch.zeros(3, 4, 200)
    names = ("x", "branch", "offset", "weight", "bias", "total", "y", "mean", "rstd", "dtotal", "dy", "dx")
    given = dict.fromkeys((*names, "dbranch", "parts"), x) | fused._sizes(x)
    for kernel in (kernels.rms_forward_kernel, kernels.rms_backward_kernel):
        compile_for_hopper(kernel, {name: given.get(name, 1) for name in kernel.arg_names}, fused.WARPS)
    for kernel in (kernels.layer_forward_kernel, kernels.layer_backward_kernel):
        arguments = {name: given.get(name, 1) for name in kernel.arg_names} | {"keep": None}
        compile_for_hopper(kernel, arguments, fused.WARPS)


def normal(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).double() for shape in shapes]


def assert_near(found: list[Tensor], true: list[Tensor], tolerance: float = 1e-5) -> None:
    for ours, exact in zip(found, true, strict=True):
        error = (ours.cpu().double() - exact).norm() / exact.norm().clamp(min=1e-6)
        assert error <= tolerance


def compare_rms(shape: tuple[int, int, int], has_branch: bool = True, has_weight: bool = True) -> None:
    from dygmamba.ops.residual_norm import triton as fused

    leaves = normal(shape, shape, shape[-1:])
    chosen = [True, has_branch, has_weight]

    def run(norm, leaves):
        def op(*given):
            given = iter(given)
            x, branch, weight = (next(given) if chosen_one else None for chosen_one in chosen)
            return norm(x, branch, weight, 1e-5)

        return results(op, tuple(leaf for leaf, keep in zip(leaves, chosen, strict=True) if keep))

    true = run(add_rms_norm.reference, leaves)
    assert_near(run(fused.add_rms_norm, [leaf.float().to(DEVICE) for leaf in leaves]), true)


@kernels_run
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 1, 1), (3, 7, 64), (2, 9, 200)])
def test_the_rms_norm_of_a_sum_is_its_definition(shape: tuple[int, int, int]) -> None:
    """For all sizes: sum, norm and every gradient."""
    compare_rms(shape)


@kernels_run
def test_bfloat16_rows_lose_only_their_own_digits() -> None:
    """Norms and sums are float32, and gradients of weights stay so."""
    from dygmamba.ops.residual_norm import triton as fused

    x, branch, weight, bias = normal((2, 9, 40), (2, 9, 40), (40,), (40,))
    small = [t.bfloat16().to(DEVICE) for t in (x, branch)]
    true = results(lambda *given: add_rms_norm.reference(*given, 1e-5), (x, branch, weight))
    found = results(lambda *given: fused.add_rms_norm(*given, 1e-5), (*small, weight.float().to(DEVICE)))
    assert [t.dtype for t in found] == [torch.bfloat16] * 4 + [torch.float32]
    assert_near(found, true, 2**-6)
    vectors = [t.float().to(DEVICE) for t in (bias, weight, bias)]
    found = results(lambda *given: fused.AddLayerNorm.apply(*given, None, 0.0, 1e-5), (*small, *vectors))
    true = results(
        lambda x, branch, offset, *norm: torch.nn.functional.layer_norm(x + branch + offset, (40,), *norm),
        (x, branch, bias, weight, bias),
    )
    assert [t.dtype for t in found] == [torch.bfloat16] * 3 + [torch.float32] * 3
    assert_near(found, true, 2**-6)


@kernels_run
@pytest.mark.parametrize(("has_branch", "has_weight"), [(False, True), (True, False), (False, False)])
def test_branch_and_weight_may_be_absent(has_branch: bool, has_weight: bool) -> None:
    compare_rms((2, 5, 12), has_branch, has_weight)


@kernels_run
def test_the_sum_needs_no_gradient_of_its_own() -> None:
    """The last norm of a stack: only the norm is used."""
    from dygmamba.ops.residual_norm import triton as fused

    leaves = normal((2, 5, 12), (2, 5, 12), (12,))
    true = results(lambda *given: add_rms_norm.reference(*given, 1e-5)[1], tuple(leaves))
    ours = tuple(leaf.float().to(DEVICE) for leaf in leaves)
    assert_near(results(lambda *given: fused.add_rms_norm(*given, 1e-5)[1], ours), true)


@kernels_run
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 1, 9), (2, 9, 200)])
def test_the_layer_norm_of_a_sum_is_its_definition(shape: tuple[int, int, int], dropped: bool) -> None:
    """For all sizes, with the same values dropped: the norm and every gradient."""
    from dygmamba.ops.residual_norm import triton as fused

    d = shape[-1]
    x, branch, offset, weight, bias = leaves = normal(shape, shape, (d,), (d,), (d,))
    keep = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.75 if dropped else None
    rate = 0.25 if dropped else 0.0

    def define(x, branch, offset, weight, bias):
        value = branch + offset
        value = value if keep is None else value * keep / (1 - rate)
        return torch.nn.functional.layer_norm(x + value, (d,), weight, bias, 1e-5)

    def compute(*given):
        return fused.AddLayerNorm.apply(*given, None if keep is None else keep.to(DEVICE), rate, 1e-5)

    ours = results(compute, tuple(leaf.float().to(DEVICE) for leaf in leaves))
    assert_near(ours, results(define, (x, branch, offset, weight, bias)), 3e-5)


@kernels_run
def test_projection_and_norm_are_those_of_the_reference() -> None:
    """The bias of the projection is added by the norm's kernel."""
    from dygmamba.ops.residual_norm import triton as fused

    leaves = normal((2, 6, 8), (2, 6, 3), (8, 3), (8,), (8,), (8,))

    def run(norm, leaves):
        return results(lambda x, branch, W, b, w, v: norm(x, branch, (W, b), (w, v), 0.0, 1e-5), leaves)

    ours = run(fused.add_layer_norm, tuple(leaf.float().to(DEVICE) for leaf in leaves))
    assert_near(ours, run(add_layer_norm.reference, tuple(leaves)), 1e-3 if GPU else 1e-5)


@kernels_run
@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (127, 65), (128, 1), (300, 70), (9000, 2)])
def test_rows_are_summed(rows: int, columns: int) -> None:
    """For all numbers of rows, added in one, two or three rounds."""
    from dygmamba.ops.rows.triton import sum_rows

    (x,) = normal((2, rows, columns))
    assert_near([sum_rows(x.float().to(DEVICE))], [x.sum(1)])


@pytest.mark.parametrize("shape", [(800, 32, 200), (9, 1023, 33)])
class TestLarge:
    """Shapes for the compiler: programs with many tiles."""

    pytestmark = on_gpu

    def test_sums_match_the_definition(self, shape: tuple[int, int, int]) -> None:
        compare_rms(shape)
