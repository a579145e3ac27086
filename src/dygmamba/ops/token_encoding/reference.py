"""Reference of the encodings: each part by itself, then side by side; differentiated by torch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, relu

from dygmamba.ops.cooccurrence import count_pair_tokens
from dygmamba.ops.gather_rows import gather_rows
from dygmamba.ops.token_encoding.parts import FeatureRows, PairCounts, Part, TimeSpans


def encode_tokens(parts: Sequence[Part]) -> Tensor:
    """Return the encodings of all parts side by side, [r l d]."""
    return torch.cat([encode_part(part) for part in parts], dim=-1)


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
