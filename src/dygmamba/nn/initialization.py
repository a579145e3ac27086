"""Initial weights; those of the baselines have their published scale (decision 021).

torch draws a linear map and its bias from U(-b, b), b = 1 / sqrt(columns). The published figures come from DyGLib,
which pads node and edge features with zeros to 172 columns, the width of the embeddings. Its maps of features start at
the scale of the padded width. Here features are not padded; the padding counts for the initial scale only.
"""

import torch
from torch import nn


def padded_width(dim: int, width: int) -> int:
    """Return the number of columns after DyGLib's zero padding to `width`."""
    return max(dim, width)


def uniform_parameter(fan_in: int, *shape: int) -> nn.Parameter:
    """Draw a weight or bias as torch does for a linear map of `fan_in` columns."""
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def scaled_linear(columns: int, out: int, fan_in: int) -> nn.Linear:
    """Return a linear map with the initial scale of a map of `fan_in` columns."""
    layer = nn.Linear(columns, out)
    layer.weight, layer.bias = uniform_parameter(fan_in, out, columns), uniform_parameter(fan_in, out)
    return layer


def two_layers(columns: int, hidden: int, out: int, dropout: float) -> nn.Sequential:
    """Return a perceptron with one hidden layer, ReLU and dropout."""
    return nn.Sequential(nn.Linear(columns, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, out))
