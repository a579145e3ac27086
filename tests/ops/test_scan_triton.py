"""The scan's Triton kernels against the definition in float64, on a GPU or under Triton's interpreter."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import scans
from dygmamba.core.errors import ConfigError
from interpreted import DEVICE, GPU, INTERPRETED, compile_for_hopper, kernels_run, on_gpu
from raising import raises
from scans import RULES, adjoints, combine, holes, inputs, padding_left

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
@pytest.mark.parametrize("rule", ["zoh", "euler"])
def test_the_kernels_compile_for_hopper(rule: str) -> None:
    """What the interpreter forgives, the compiler may not: both kernels become machine code, GPU or no GPU."""
    from dygmamba.ops.scan import triton as fused
    from dygmamba.ops.scan import triton_kernels as kernels

    x = inputs(2, 9, 40, 16, entry="span" if rule == "zoh" else "delta", mask=holes)
    plan = fused.plan_for(x)
    room = fused._allocate_outputs(
        x, torch.ones(2, 40, 16), x.span is not None, plan, fused.BackwardGrid.from_inputs(x, plan)
    )
    shared = fused._arguments(x, rule, False, plan, plan.step)
    forward = shared | dict.fromkeys(("y", "final", "kept"), x.u)
    backward = shared | room | fused._adjoints(x.u, x.u)
    backward |= dict.fromkeys(("count", "first", "last", "start", "window"), 1) | {"HALVINGS": 4}
    for kernel, arguments in ((kernels.forward_kernel, forward), (kernels.backward_kernel, backward)):
        compile_for_hopper(kernel, arguments, plan.warps)


CUTS = {
    "small": {"interval": 4, "window": 1},
    "large": {"interval": 8, "step": 4, "window": 800},
}
assert_exact: Any = partial(scans.assert_exact, "triton")
fused_results: Any = partial(scans.fused_results, "triton")


@kernels_run
@pytest.mark.parametrize(
    ("length", "entry", "rule", "reverse"),
    [
        (1, "span", "zoh", False),
        (1, "delta", "euler", True),
        (3, "span", "zoh", True),
        (31, "span", "euler", True),
        (33, "delta", "zoh", False),
    ],
)
def test_every_length_matches_the_definition(length: int, entry: str, rule: str, reverse: bool) -> None:
    """For all lengths, entries, rules and directions: outputs and gradients equal the float64 definition's."""
    assert_exact(inputs(1, length, 3, 2, entry), rule, reverse)


@kernels_run
@pytest.mark.parametrize(
    ("size", "rule"),
    combine([((5, 1), "zoh"), ((33, 4), "euler"), ((20, 24), "zoh")], ((5, 1), (33, 4), (20, 24)), RULES),
)
def test_every_width_matches_the_definition(size: tuple[int, int], rule: str) -> None:
    """For all numbers of channels and states, powers of two or not, padding reaches no result."""
    d, n = size
    assert_exact(inputs(1, 5, d, n, "span" if n > 1 else "delta"), rule)


@kernels_run
class TestLaws(scans.Laws):
    """What holds for every implementation."""

    kernels, channels, states, ragged = "triton", 4, 3, (3, 7)


@kernels_run
@pytest.mark.parametrize(
    ("rule", "cut"), combine([("zoh", "small"), ("euler", "large")], RULES, ("small", "large"))
)
def test_how_the_work_is_cut_does_not_matter(rule: str, cut: str) -> None:
    """For all chunks, windows and tiles, with masks and backwards in time: the definition again."""
    from dygmamba.ops.scan import triton as fused

    x = inputs(2, 19, 4, 3, "span", holes)
    plan = replace(fused.plan_for(x), **CUTS[cut])
    assert len(fused.BackwardGrid.from_inputs(x, plan).windows) > 1
    assert_exact(x, rule, reverse=True, plan=plan)


@kernels_run
def test_a_scan_in_two_pieces_is_the_scan() -> None:
    """Handing the state over at any step changes nothing: scan(x) = scan(x[k:], state=scan(x[:k]))."""
    from dygmamba.ops.scan import triton as fused

    x = inputs(2, 7, 4, 3, "delta")
    whole, last, _ = fused.forward(x, "zoh", False, False)
    tokens = {"u": x.u, "delta": x.delta, "B": x.B, "C": x.C, "z": x.z}
    early = x._replace(**{name: t[:, :3] for name, t in tokens.items()})
    start, state, _ = fused.forward(early, "zoh", False, False)
    late = x._replace(**{name: t[:, 3:] for name, t in tokens.items()}, state=state)
    end, final, _ = fused.forward(late, "zoh", False, False)
    torch.testing.assert_close(torch.cat([start, end], 1), whole)
    torch.testing.assert_close(final, last)


@kernels_run
def test_rows_may_lie_apart() -> None:
    """Halves of one projection, and the gradient of a sum, are read where they are."""
    x = inputs(2, 5, 4, 3)
    halves = torch.cat([x.present["u"], x.present["z"]], -1)
    u, z = halves.chunk(2, -1)
    dy = torch.ones((), device=DEVICE).expand(x.u.shape)
    dstate = torch.zeros(2, 4, 3, device=DEVICE)
    apart = fused_results(x._replace(u=u, z=z), "zoh", False, dy, dstate)
    dense = fused_results(x, "zoh", False, dy.contiguous(), dstate[:0])
    for name, value in dense.items():
        assert torch.equal(apart[name], value), name


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="the interpreter runs programs in one order")
@pytest.mark.parametrize("rule", ["zoh", "euler"])
def test_two_runs_agree_in_every_bit(rule: str) -> None:
    """No result depends on the order in which programs finish."""
    x = inputs(64, 300, 100, 16, "span", holes)
    first, second = (fused_results(x, rule, False, *adjoints(x)) for _ in range(2))
    for name, value in first.items():
        assert torch.equal(second[name], value), name


@kernels_run
@pytest.mark.parametrize("rule", ["zoh", "euler"])
def test_bfloat16_inputs_lose_only_their_own_digits(rule: str) -> None:
    """States and sums are float32: the results, on the same rounded inputs, are right to their last bit."""
    assert_exact(inputs(2, 5, 4, 3, "span", holes, dtype=torch.bfloat16), rule, tolerance=2**-7)


@kernels_run
def test_no_sequences_have_no_gradients() -> None:
    """An empty batch is answered with tensors of its shapes, and zeros for the weights."""
    x = inputs(0, 5, 4, 3)
    results = fused_results(x, "zoh", False, x.u, x.u.new_zeros(0, 4, 3))
    assert results["y"].shape == (0, 5, 4)
    assert results["A"].shape == (4, 3)
    assert not results["A"].any()


@kernels_run
def test_what_the_kernels_cannot_do_is_refused() -> None:
    """Double precision and more than 64 states are errors, not approximations."""
    from dygmamba.ops.scan import triton as fused

    x = inputs(1, 2, 2, 2)
    with raises("bad-op-dtype", ConfigError):
        fused.forward(x._replace(u=x.u.double()), "zoh", False, False)
    with raises("too-many-states", ConfigError):
        fused.forward(x._replace(A=x.A.new_ones(2, 65)), "zoh", False, False)


@pytest.mark.parametrize("entry", ["span", "delta"])
@pytest.mark.parametrize("rule", ["zoh", "euler"])
@pytest.mark.parametrize(
    ("q", "length", "d", "n"), [(8, 1000, 33, 16), (3, 2048, 400, 16), (70, 130, 100, 24)]
)
class TestLarge:
    """Shapes for the compiler: many chunks, windows, programs."""

    pytestmark = on_gpu

    def test_long_sequences_match_the_definition(self, q, length, d, n, rule, entry) -> None:
        """Errors do not grow with the length."""
        assert_exact(inputs(q, length, d, n, entry, scale=0.1), rule, reverse=entry == "delta")

    def test_long_ragged_sequences_match_the_definition(self, q, length, d, n, rule, entry) -> None:
        """Whole tiles without a live step are skipped, and still written."""
        assert_exact(inputs(q, length, d, n, entry, padding_left, scale=0.1), rule)
