"""Random scans, and what is asked of every implementation of them: the definition's results, in float64."""

import os
from collections.abc import Callable
from importlib import import_module
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from dygmamba.ops.scan import reference
from dygmamba.ops.scan.inputs import Inputs, Upstream
from interpreted import DEVICE

Masks = Callable[[int, int], Tensor]
RULES, ENTRIES = ("zoh", "euler"), ("span", "delta")


def combine(few: list[tuple], *axes: tuple) -> list[tuple]:
    """Return these few combinations, which hold every value; in `make torture` all combinations of the axes."""
    every = list(product(*axes))
    assert set(few) <= set(every)
    assert all({one[at] for one in few} == set(axis) for at, axis in enumerate(axes))
    return every if os.environ.get("DYGMAMBA_TORTURE") else few


def padding_left(q: int, length: int) -> Tensor:
    """Sequence i starts with 3 i + 1 masked steps, or is masked whole."""
    return torch.arange(length) > 3 * torch.arange(q)[:, None]


def padding_right(q: int, length: int) -> Tensor:
    """The same at the end."""
    return padding_left(q, length).flip(1)


def holes(q: int, length: int) -> Tensor:
    """Two of five steps are masked."""
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
    kernels: str, x: Inputs, rule: str, reverse: bool, dy: Tensor, dstate: Tensor, **how: Any
) -> dict[str, Tensor]:
    """The same by the kernels of that name; `how` is theirs alone."""
    fused = import_module(f"dygmamba.ops.scan.{kernels}")
    y, state, kept = fused.forward(x, rule, reverse, True, **how)
    grads = fused.backward(x, rule, reverse, Upstream(y, kept, dy, dstate, True), **how)
    assert {name: t.dtype for name, t in grads.present.items()} == {
        name: t.dtype for name, t in x.present.items() if name != "mask"
    }
    return {"y": y, "final": state, **grads.present}


def adjoints(x: Inputs) -> tuple[Tensor, Tensor]:
    """A gradient of y and one of the final state."""
    generator = torch.Generator().manual_seed(7)
    q, _, d = x.u.shape
    dy = torch.randn(x.u.shape, generator=generator).to(x.u)
    return dy, torch.randn(q, d, x.A.shape[1], generator=generator).to(DEVICE)


def assert_exact(
    kernels: str, x: Inputs, rule: str = "zoh", reverse: bool = False, tolerance: float = 1e-5, **how: Any
) -> None:
    """Every output and gradient is within `tolerance` of the definition in float64, by relative norm."""
    dy, dstate = adjoints(x)
    want = exact(x, rule, reverse, dy, dstate)
    got = fused_results(kernels, x, rule, reverse, dy, dstate, **how)
    assert want.keys() == got.keys()
    for name, value in want.items():
        error = (got[name].double() - value).norm() / value.norm().clamp(min=1e-30)
        assert error <= tolerance, f"{name} is off by {error:.1e}"


class Laws:
    """What holds for every implementation; a test class of each names its kernels and the shapes they are made for."""

    kernels: str
    channels: int
    states: int
    ragged: tuple[int, int]  # sequences and steps of the masked ones

    @pytest.mark.parametrize(
        ("mask", "entry", "rule"),
        combine(
            # every pair of two values
            [
                (padding_left, "span", "zoh"),
                (padding_left, "delta", "euler"),
                (padding_right, "span", "euler"),
                (padding_right, "delta", "zoh"),
                (holes, "span", "zoh"),
                (holes, "delta", "euler"),
            ],
            (padding_left, padding_right, holes),
            ENTRIES,
            RULES,
        ),
    )
    def test_what_lies_under_a_mask_reaches_nothing(self, mask: Masks, entry: str, rule: str) -> None:
        """For all masks: a masked step keeps the state and outputs 0, and NaN there stays there."""
        x = inputs(*self.ragged, self.channels, self.states, entry, mask)
        assert_exact(self.kernels, x, rule, reverse=mask is holes)

    @pytest.mark.parametrize(
        ("missing", "rule"),
        combine(
            [("D", "zoh"), ("z", "euler"), ("state", "zoh"), ("all", "zoh"), ("all", "euler")],
            ("D", "z", "state", "all"),
            RULES,
        ),
    )
    def test_every_optional_input_may_be_missing(self, missing: str, rule: str) -> None:
        """Without D, z, the initial state, or any of them, the rest is as defined."""
        entry, optional = ("delta", False) if missing == "all" else ("span", True)
        x = inputs(2, 11, self.channels, self.states, entry, optional=optional)
        assert_exact(self.kernels, x if missing == "all" else x._replace(**{missing: None}), rule)

    @pytest.mark.parametrize(
        ("scale", "length"),
        combine([(1e-6, 6), (1e-3, 1), (0.05, 6), (10.0, 6)], (1e-6, 1e-3, 0.05, 10.0), (1, 6)),
    )
    def test_the_exact_rule_is_exact_for_small_and_large_steps(self, scale: float, length: int) -> None:
        """Where delta A is near 0 no digits cancel, not even in the gradient of A; nor where it is large."""
        assert_exact(self.kernels, inputs(2, length, self.channels, self.states, "delta", scale=scale))

    @pytest.mark.parametrize("rule", ["zoh", "euler"])
    def test_states_that_do_not_decay_are_integrals(self, rule: str) -> None:
        """A = 0 is a state like any other: h_k = h_(k-1) + delta B u."""
        x = inputs(2, 5, self.channels, self.states, "delta")
        x.A[:, ::2] = 0
        assert_exact(self.kernels, x, rule)
