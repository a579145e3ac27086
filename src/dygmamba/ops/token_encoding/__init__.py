"""Encodings of tokens by several channels side by side, each projected to the same width (Eq. 5 and 6).

Legend: r sequences, l tokens, d columns of all channels.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.token_encoding.parts import FeatureRows, PairCounts, Part, TimeSpans

__all__ = ["FeatureRows", "PairCounts", "Part", "TimeSpans", "encode_tokens"]

TOKEN_ENCODING = Dispatch(__name__, {"cuda": ("triton",)})


def encode_tokens(parts: Sequence[Part]) -> Float[Tensor, "r l d"]:
    """Encode each token by every part and put the encodings side by side."""
    return TOKEN_ENCODING.choose(parts[0].bias.device.type, parts).encode_tokens(parts)
