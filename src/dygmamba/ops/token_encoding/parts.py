"""Inputs and weights of the channels that encode tokens.

Legend: r sequences, l tokens, n rows of a table, f features, t frequencies, h hidden columns, c channel width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Rows of a feature table in units of `scale`, zeros where `present` is False; the table may have no columns."""

    table: Float[Tensor, "n f"]
    index: Int[Tensor, "r l"]
    present: Bool[Tensor, "r l"]
    scale: Float[Tensor, "f"] | None
    weight: Float[Tensor, "f c"]
    bias: Float[Tensor, "c"]

    @property
    def shape(self) -> torch.Size:
        return self.index.shape


@dataclass(frozen=True, slots=True)
class TimeSpans:
    """Ages, encoded as cos(omega * age + phase)."""

    age: Float[Tensor, "r l"]
    omega: Float[Tensor, "t"]
    phase: Float[Tensor, "t"]
    weight: Float[Tensor, "c t"]
    bias: Float[Tensor, "c"]

    @property
    def shape(self) -> torch.Size:
        return self.age.shape


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Counts a, b of the token's node in both sequences of its pair, encoded as f(a) + f(b), f a perceptron (Eq. 5)."""

    node: Int32[Tensor, "r l"]
    mask: Bool[Tensor, "r l"]
    first_weight: Float[Tensor, "h 1"]
    first_bias: Float[Tensor, "h"]
    second_weight: Float[Tensor, "h h"]
    second_bias: Float[Tensor, "h"]
    weight: Float[Tensor, "c h"]
    bias: Float[Tensor, "c"]

    @property
    def shape(self) -> torch.Size:
        return self.node.shape


Part = FeatureRows | TimeSpans | PairCounts
