"""Scan inputs of every kind: both entries, optional parts present or absent, masks with padding anywhere.

Legend: q sequences, l steps, d channels, n states.
"""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

LENGTHS = (1, 2, 3, 31, 63, 64, 65, 200)
OPTIONAL = ("D", "z", "state")
MASKS = ("none", "full", "ragged", "leading", "holes", "empty row")


@dataclass(frozen=True)
class Case:
    """A call of `scan` or `span_scan`, with the weights of the loss over its outputs."""

    entry: str
    tensors: dict[str, Any]
    rule: str = "zoh"
    reverse: bool = False

    def results(self, implementation: ModuleType) -> dict[str, Tensor]:
        """y, the final state and the gradient of every floating input under a fixed random loss."""
        leaves = {
            name: t.detach().requires_grad_() for name, t in self.tensors.items() if t.is_floating_point()
        }
        scan = getattr(implementation, self.entry)
        y, state = scan(**(self.tensors | leaves), rule=self.rule, reverse=self.reverse)
        g = torch.Generator().manual_seed(1)
        weights = [torch.randn(t.shape, generator=g).to(t) for t in (y, state)]
        grads = torch.autograd.grad((y, state), list(leaves.values()), weights)
        named = {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
        return {"y": y.detach(), "final": state.detach(), **named}

    def with_(self, **tensors: Tensor) -> "Case":
        """The same case with some tensors replaced."""
        return replace(self, tensors=self.tensors | tensors)

    def to(self, dtype: torch.dtype) -> "Case":
        """The same case in another floating dtype."""
        return self.with_(**{k: t.to(dtype) for k, t in self.tensors.items() if t.is_floating_point()})


def case(
    entry: str = "span_scan",
    size: tuple[int, int, int, int] = (3, 7, 5, 4),
    mask: str = "none",
    parts: tuple[str, ...] = OPTIONAL,
    seed: int = 0,
    **rest,
) -> Case:
    """Random inputs, float64 with values that float32 holds exactly."""
    q, length, d, n = size
    g = torch.Generator().manual_seed(seed)
    tensors: dict[str, Any] = {"u": torch.randn(q, length, d, generator=g)}
    if entry == "scan":
        tensors["delta"] = torch.rand(q, length, d, generator=g)
    else:
        tensors["span"] = torch.rand(q, length, generator=g)
        tensors["w1"] = 0.1 + torch.rand(d, generator=g)
        tensors["w2"] = 0.1 + 3 * torch.rand(d, generator=g)
    tensors["A"] = -3 * torch.rand(d, n, generator=g)
    for name, shape in {"B": (q, length, n), "C": (q, length, n)}.items():
        tensors[name] = torch.randn(shape, generator=g)
    optional = {"D": (d,), "z": (q, length, d), "state": (q, d, n)}
    tensors |= {name: torch.randn(optional[name], generator=g) for name in parts}
    tensors = {name: t.double() for name, t in tensors.items()}
    if mask != "none":
        tensors["mask"] = make_mask(mask, q, length, g)
    return Case(entry, tensors, **rest)


def make_mask(kind: str, q: int, length: int, g: torch.Generator) -> Tensor:
    """A mask of one of the MASKS but "none"."""
    step = torch.arange(length)
    cut = torch.randint(0, length + 1, (q, 1), generator=g)
    kinds = {
        "full": torch.ones(q, length, dtype=torch.bool),
        "ragged": step < cut,
        "leading": step >= cut,
        "holes": torch.rand(q, length, generator=g) < 0.6,
        "empty row": (torch.arange(q) % 2 == 1)[:, None].expand(q, length),
    }
    return kinds[kind].contiguous()


@st.composite
def cases(draw) -> Case:
    """Every combination of entry, length, width, mask, optional parts, rule and direction."""
    size = draw(st.tuples(st.sampled_from((1, 3)), st.sampled_from(LENGTHS), st.sampled_from((1, 5, 64, 70))))
    return case(
        entry=draw(st.sampled_from(("scan", "span_scan"))),
        size=(*size, draw(st.sampled_from((1, 3, 16)))),
        mask=draw(st.sampled_from(MASKS)),
        parts=tuple(draw(st.lists(st.sampled_from(OPTIONAL), unique=True))),
        seed=draw(st.integers(0, 99)),
        rule=draw(st.sampled_from(("zoh", "euler"))),
        reverse=draw(st.booleans()),
    )


def assert_near(ours: dict[str, Tensor], true: dict[str, Tensor], relative: float) -> None:
    """Each entry agrees within `relative` of its largest absolute value; NaN never agrees.

    An entry of a few numbers may nearly cancel, so none is measured by less than a tenth of the largest entry.
    """
    assert ours.keys() == true.keys()
    sizes = {name: float(want.abs().max()) if want.numel() else 0.0 for name, want in true.items()}
    for name, want in true.items():
        scale = max(sizes[name], max(sizes.values()) / 10)
        off = (ours[name].double() - want.double()).abs()
        assert (off <= relative * scale).all(), f"{name} is off by {off.max():g} of {scale:g}"
