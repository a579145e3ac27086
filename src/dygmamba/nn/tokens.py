"""Tokens of a neighbor sequence, including the query node, and the time spans between them.

Legend: q sequences, l tokens (neighbors and usually the query node), k slots, d width.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Float32, Int32, Int64
from torch import Tensor

from dygmamba.history.view import NeighborSequence
from dygmamba.ops.tokens import Sequences, build_tokens


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens in time order, real ones before padding; `gap` is the time to the previous (or next) token.

    `share` is gap / (tau - t_1), the paper's relative span, computed in 64 bits.
    """

    node: Int32[Tensor, "q l"]
    event: Int32[Tensor, "q l"]
    age: Float32[Tensor, "q l"]
    gap: Float32[Tensor, "q l"]
    share: Float32[Tensor, "q l"]
    length: Int64[Tensor, "q"]
    is_event: Bool[Tensor, "q l"]  # False for the query token and for padding
    mask: Bool[Tensor, "q l"]  # True where a token is real

    def __getitem__(self, rows: Int64[Tensor, "r"] | slice) -> "Tokens":
        return Tokens(*(getattr(self, field.name)[rows] for field in fields(self)))


# Position of the query token, and how many of the tokens it takes.
QUERIES = {"last": 1, "first": 1, "absent": 0}
SPAN_KINDS = ("preceding", "following")


def make_tokens(
    seq: NeighborSequence,
    query: str = "last",
    span: str = "preceding",
    rows: Int64[Tensor, "r"] | None = None,
) -> Tokens:
    """Turn each neighbor sequence into tokens, with spans also relative to the observed period tau - t_1.

    With `rows`, only these sequences, in this order; the same as of `seq[rows]`, without a copy of it on a GPU.
    """
    return Tokens(*build_tokens(Sequences(*seq.columns), rows, query, span))


def newest_last(
    x: Float[Tensor, "q l d"], seq: NeighborSequence, slots: int
) -> tuple[Float[Tensor, "q k d"], Bool[Tensor, "q k"]]:
    """Move the tokens to the last of `slots` slots; return them, zeros elsewhere, and the mask of taken slots."""
    place = torch.arange(slots, device=x.device) - slots + seq.length[:, None]  # [q k]
    taken = place >= 0
    moved = x.gather(1, place.clamp(min=0)[..., None].expand(-1, -1, x.shape[-1]))
    return moved * taken[..., None], taken
