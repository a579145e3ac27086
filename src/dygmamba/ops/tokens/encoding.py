"""Encodings of tokens by several channels side by side, each projected to the same width (Eq. 5 and 6).

Legend: r sequences, l tokens, d columns of all channels, c of one; n rows of a table, f features, t frequencies,
h hidden columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor
from torch.nn.functional import linear, relu

from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.rows import gather_rows
from dygmamba.ops.tokens import count_pair_tokens


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


def encode_tokens(parts: Sequence[Part]) -> Float[Tensor, "r l d"]:
    """Encode each token by every part and put the encodings side by side."""
    return ENCODING.pick(parts[0].bias.device.type, parts)(parts)


def encode_each_part(parts: Sequence[Part]) -> Tensor:
    """Return the encodings of all parts, each computed by itself, side by side, [r l d]."""
    return torch.cat([encode_part(part) for part in parts], dim=-1)


ENCODING = Dispatch(encode_each_part, cuda=("triton_encoding:encode_tokens",))


def encode_part(part: Part) -> Tensor:
    """Return the encoding of one part, [r l c]."""
    match part:
        case FeatureRows():
            return _encode_features(part)
        case TimeSpans():
            angle = part.age[..., None] * part.omega + part.phase
            return linear(torch.cos(angle), part.weight, part.bias)
        case PairCounts():
            counts = count_pair_tokens(part.node, part.mask)
            layers = part.first_weight, part.first_bias, part.second_weight, part.second_bias
            return linear(encode_counts(counts, *layers), part.weight, part.bias)


def encode_counts(
    counts: Tensor, first_weight: Tensor, first_bias: Tensor, second_weight: Tensor, second_bias: Tensor
) -> Tensor:
    """Return f(a) + f(b), [r l h], of counts [r l 2]."""
    count = counts.to(first_weight.dtype)[..., None]
    # a linear map of one column is a product with a vector: no matrix product with an inner width of 1
    hidden = torch.addcmul(first_bias, count, first_weight[:, 0])  # [r l 2 h]
    # f(a) + f(b) = W2 (relu_a + relu_b) + 2 b2: one map for both counts, so its bias counts twice (Eq. 5)
    return linear(relu(hidden).sum(dim=-2), second_weight, 2 * second_bias)


def _encode_features(part: FeatureRows) -> Tensor:
    if part.table.shape[1] == 0:  # the paper's zero vectors: 0 W + b, without a product
        return part.bias.expand(*part.index.shape, -1)
    rows = torch.where(part.present[..., None], gather_rows(part.table, part.index), 0)
    return (rows if part.scale is None else rows * part.scale) @ part.weight + part.bias
