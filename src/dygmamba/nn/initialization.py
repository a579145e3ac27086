"""Initial weights; those of the baselines have the scale they were published with (decision 021).

torch draws a linear map and its bias from U(-b, b), b = 1 / sqrt(columns). The published figures are DyGLib's, which
fills node and edge features up with zeros to 172 columns, the width of the embeddings, so its maps of features
start at the scale of the filled width. Here columns of zeros do not exist; they are counted for the scale alone.
"""

import torch
from torch import nn


def padded_width(dim: int, width: int) -> int:
    """Columns that features were published with: filled up to `width`, or as many as there are."""
    return max(dim, width)


def uniform_parameter(fan_in: int, *shape: int) -> nn.Parameter:
    """A weight or bias as torch draws it for a linear map of `fan_in` columns."""
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def scaled_linear(columns: int, out: int, fan_in: int) -> nn.Linear:
    """A linear map that starts at the scale of one of `fan_in` columns."""
    made = nn.Linear(columns, out)
    made.weight, made.bias = uniform_parameter(fan_in, out, columns), uniform_parameter(fan_in, out)
    return made
