"""The scan's Triton kernels against the definition in float64, on a GPU or under Triton's interpreter.

Interpreting is decided when triton is first imported, for a whole process; where there is no GPU, a process of its own
runs this file again.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dygmamba.errors import ConfigError
from dygmamba.ops.scan import reference
from dygmamba.ops.scan.inputs import Inputs
from interpreted import DEVICE, GPU, INTERPRETED, compile_for_hopper, interpret, kernels_run, on_gpu, poison

pytest.importorskip("triton")


@pytest.mark.skipif(GPU or INTERPRETED, reason="the kernels run in this process")
def test_the_kernels_hold_under_the_interpreter() -> None:
    """Every test of this file passes where Triton interprets instead of compiling."""
    interpret(__file__)


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
@pytest.mark.parametrize("rule", ["zoh", "euler"])
def test_the_kernels_compile_for_hopper(rule: str) -> None:
    """What the interpreter forgives, the compiler may not: both kernels become machine code, GPU or no GPU."""
    from dygmamba.ops.scan import triton as fused
    from dygmamba.ops.scan import triton_kernels as kernels

    x = inputs(2, 9, 40, 16, entry="span" if rule == "zoh" else "delta", mask=holes)
    plan = fused.plan_for(x)
    room = fused._room(x, torch.ones(2, 40, 16), x.span is not None, plan, fused.Cut.of(x, plan))
    shared = fused._arguments(x, rule, False, plan, plan.step)
    forward = shared | dict.fromkeys(("y", "final", "kept"), x.u)
    backward = shared | room | fused._adjoints(x.u, x.u)
    backward |= dict.fromkeys(("count", "first", "last", "start", "window"), 1) | {"HALVINGS": 4}
    for kernel, arguments in ((kernels.forward_kernel, forward), (kernels.backward_kernel, backward)):
        compile_for_hopper(kernel, arguments, plan.warps)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Fresh memory is NaN, and nobody writes beside it."""
    with poison():
        yield


Masks = Callable[[int, int], Tensor]


def padding_left(q: int, length: int) -> Tensor:
    """Sequence i starts with 3 i + 1 masked steps, or is masked whole."""
    return torch.arange(length) > 3 * torch.arange(q)[:, None]


def padding_right(q: int, length: int) -> Tensor:
    return padding_left(q, length).flip(1)


def holes(q: int, length: int) -> Tensor:
    return torch.rand(q, length, generator=torch.Generator().manual_seed(length)) > 0.4


def inputs(
    q: int,
    length: int,
    d: int,
    n: int,
    entry: str = "span",
    mask: Masks | None = None,
    optional: bool = True,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    """Random inputs; what lies under a mask is NaN."""
    generator = torch.Generator().manual_seed(1000 * length + 10 * d + n)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(DEVICE)

    steps: dict[str, Tensor | None] = {
        "delta": scale * uniform(q, length, d),
        "span": None,
        "w1": None,
        "w2": None,
    }
    if entry == "span":
        steps = {
            "delta": None,
            "span": scale * uniform(q, length),
            "w1": 0.1 + uniform(d),
            "w2": 3 * uniform(d),
        }
    x = Inputs(
        u=normal(q, length, d),
        A=-torch.exp(normal(d, n)),
        B=normal(q, length, n),
        C=normal(q, length, n),
        D=normal(d) if optional else None,
        z=normal(q, length, d) if optional else None,
        mask=None if mask is None else mask(q, length).to(DEVICE),
        state=normal(q, d, n) if optional else None,
        **steps,
    )
    tokens = {
        name: t.to(dtype) for name, t in x.present.items() if t.shape[:2] == (q, length) and name != "mask"
    }
    if x.mask is not None:
        for name, t in tokens.items():
            tokens[name] = t.masked_fill(~(x.mask if t.dim() == 2 else x.mask[..., None]), float("nan"))
    return x._replace(**tokens)


def exact(x: Inputs, rule: str, reverse: bool, dy: Tensor, dstate: Tensor) -> dict[str, Tensor]:
    """Outputs and gradients by the definition, in float64."""
    leaves: Any = {name: t.double().requires_grad_() for name, t in x.present.items() if name != "mask"}
    scan = reference.span_scan if x.delta is None else reference.scan
    y, state = scan(**leaves, mask=x.mask, rule=rule, reverse=reverse)
    loss = (y * dy.double()).sum() + (state * dstate.double()).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return {"y": y.detach(), "final": state.detach(), **dict(zip(leaves, grads, strict=True))}


def fused_results(
    x: Inputs, rule: str, reverse: bool, dy: Tensor, dstate: Tensor, plan=None
) -> dict[str, Tensor]:
    """The same by the kernels."""
    from dygmamba.ops.scan import triton as fused

    y, state, kept = fused.forward(x, rule, reverse, True, plan)
    grads = fused.backward(x, rule, reverse, kept, dy, dstate, True, plan)
    assert {name: t.dtype for name, t in grads.present.items()} == {
        name: t.dtype for name, t in x.present.items() if name != "mask"
    }
    return {"y": y, "final": state, **grads.present}


def adjoints(x: Inputs) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    q, _, d = x.u.shape
    dy = torch.randn(x.u.shape, generator=generator).to(x.u)
    return dy, torch.randn(q, d, x.A.shape[1], generator=generator).to(DEVICE)


def assert_exact(
    x: Inputs, rule: str = "zoh", reverse: bool = False, plan=None, tolerance: float = 1e-5
) -> None:
    """Every output and gradient is within `tolerance` of the definition in float64, by relative norm."""
    dy, dstate = adjoints(x)
    want = exact(x, rule, reverse, dy, dstate)
    got = fused_results(x, rule, reverse, dy, dstate, plan)
    assert want.keys() == got.keys()
    for name, value in want.items():
        error = (got[name].double() - value).norm() / value.norm().clamp(min=1e-30)
        assert error <= tolerance, f"{name} is off by {error:.1e}"


@kernels_run
@pytest.mark.parametrize(
    ("length", "entry", "rule", "reverse"),
    [
        (1, "span", "zoh", False),
        (1, "delta", "euler", True),
        (2, "delta", "zoh", True),
        (2, "span", "euler", False),
        (3, "span", "zoh", True),
        (3, "delta", "euler", False),
        (31, "delta", "zoh", False),
        (31, "span", "euler", True),
        (63, "span", "zoh", False),
        (64, "delta", "zoh", True),
        (65, "span", "euler", True),
    ],
)
def test_every_length_matches_the_definition(length: int, entry: str, rule: str, reverse: bool) -> None:
    """For all lengths, entries, rules and directions: outputs and gradients equal the float64 definition's."""
    assert_exact(inputs(1, length, 3, 2, entry), rule, reverse)


@kernels_run
@pytest.mark.parametrize("rule", ["zoh", "euler"])
@pytest.mark.parametrize(("d", "n"), [(5, 1), (33, 4), (5, 16), (20, 24)])
def test_every_width_matches_the_definition(d: int, n: int, rule: str) -> None:
    """For all numbers of channels and states, powers of two or not, padding reaches no result."""
    assert_exact(inputs(2, 5, d, n, "span" if n > 4 else "delta"), rule)


@kernels_run
@pytest.mark.parametrize("rule", ["zoh", "euler"])
@pytest.mark.parametrize("mask", [padding_left, padding_right, holes])
@pytest.mark.parametrize("entry", ["span", "delta"])
def test_what_lies_under_a_mask_reaches_nothing(mask: Masks, entry: str, rule: str) -> None:
    """For all masks: a masked step keeps the state and outputs 0, and NaN there stays there."""
    assert_exact(inputs(3, 7, 4, 3, entry, mask), rule, reverse=mask is holes)


@kernels_run
@pytest.mark.parametrize("missing", ["D", "z", "state", "all"])
@pytest.mark.parametrize("rule", ["zoh", "euler"])
def test_every_optional_input_may_be_missing(missing: str, rule: str) -> None:
    """Without D, z, the initial state, or any of them, the rest is as defined."""
    x = inputs(2, 6, 4, 3, "delta" if missing == "all" else "span", optional=missing != "all")
    assert_exact(x if missing == "all" else x._replace(**{missing: None}), rule)


@kernels_run
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.05, 10.0])
@pytest.mark.parametrize("length", [1, 6])
def test_the_exact_rule_is_exact_for_small_and_large_steps(scale: float, length: int) -> None:
    """Where delta A is near 0 no digits cancel, not even in the gradient of A; nor where it is large."""
    assert_exact(inputs(2, length, 5, 4, "delta", scale=scale))


@kernels_run
@pytest.mark.parametrize("rule", ["zoh", "euler"])
def test_states_that_do_not_decay_are_integrals(rule: str) -> None:
    """A = 0 is a state like any other: h_k = h_(k-1) + delta B u."""
    x = inputs(2, 5, 3, 4, "delta")
    x.A[:, ::2] = 0
    assert_exact(x, rule)


@kernels_run
@pytest.mark.parametrize("rule", ["zoh", "euler"])
@pytest.mark.parametrize("cut", [{"interval": 4, "window": 1}, {"interval": 8, "step": 4, "window": 800}])
def test_how_the_work_is_cut_does_not_matter(rule: str, cut: dict[str, int]) -> None:
    """For all chunks, windows and tiles, with masks and backwards in time: the definition again."""
    from dygmamba.ops.scan import triton as fused

    x = inputs(2, 19, 4, 3, "span", holes)
    plan = replace(fused.plan_for(x), **cut)
    assert len(fused.Cut.of(x, plan).windows) > 1
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


@kernels_run
@pytest.mark.parametrize("rule", ["zoh", "euler"])
def test_two_runs_agree_in_every_bit(rule: str) -> None:
    """No result depends on the order in which programs finish."""
    x = inputs(2, 5, 33, 4, "span", holes) if INTERPRETED else inputs(64, 300, 100, 16, "span", holes)
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
    with pytest.raises(ConfigError, match="float64"):
        fused.forward(x._replace(u=x.u.double()), "zoh", False, False)
    with pytest.raises(ConfigError, match="65"):
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
