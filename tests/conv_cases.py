"""Convolution inputs of every kind, and results to compare.

Legend: q sequences, l steps, d channels, w taps.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from scan_cases import make_mask

LENGTHS = (1, 2, 3, 5, 33)
MASKS = ("full", "ragged", "leading", "holes", "empty row")


@dataclass(frozen=True)
class Case:
    """A call of `conv_silu`, and the gradient of its output."""

    x: Tensor  # [q l d], half of a projection
    weight: Tensor
    bias: Tensor
    mask: Tensor
    reverse: bool
    dy: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
        """In the order of the op."""
        return self.x, self.weight, self.bias, self.mask, self.reverse

    def results(self, conv_silu: Any) -> dict[str, Tensor]:
        """The output and the gradients."""
        leaves = [t.detach().requires_grad_() for t in (self.x, self.weight, self.bias)]
        y = conv_silu(*leaves, self.mask, self.reverse)
        grads = torch.autograd.grad(y, leaves, self.dy.to(y.dtype))
        return {"y": y.detach(), **dict(zip(("dx", "dweight", "dbias"), grads, strict=True))}

    def to(self, *args: Any) -> "Case":
        """The same case of another dtype or on another device; the mask stays a mask."""
        tensors = {name: getattr(self, name).to(*args) for name in ("x", "weight", "bias", "dy")}
        return replace(self, **tensors, mask=self.mask.to(tensors["x"].device))

    def poisoned(self) -> "Case":
        """The same case with NaN in x and dy wherever it is masked."""
        hidden = ~self.mask[..., None]
        x, dy = (t.masked_fill(hidden, float("nan")) for t in (self.x, self.dy))
        return replace(self, x=x, dy=dy)


def case(
    size: tuple[int, int, int, int] = (3, 7, 5, 4), mask: str = "full", reverse: bool = False, seed: int = 0
) -> Case:
    """Random inputs, float64 with values that float32 holds exactly."""
    q, length, d, taps = size
    g = torch.Generator().manual_seed(seed)
    shapes = ((q, length, 2 * d), (d, taps), (d,), (q, length, d))
    packed, weight, bias, dy = (torch.randn(shape, generator=g).double() for shape in shapes)
    return Case(packed[..., :d], weight, bias, make_mask(mask, q, length, g), reverse, dy)
