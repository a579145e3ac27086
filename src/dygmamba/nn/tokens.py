"""Tokens of a neighbor sequence, including the query node, and the time spans between them.

Legend: q sequences, l tokens (neighbors and usually the query node), k slots, d width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Int32, Int64
from torch import Tensor
from torch.nn.functional import pad

from dygmamba.sampling.view import NeighborSequence


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
        columns = (
            self.node,
            self.event,
            self.age,
            self.gap,
            self.share,
            self.length,
            self.is_event,
            self.mask,
        )
        return Tokens(*(column[rows] for column in columns))


def _last(seq: NeighborSequence) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Neighbors, then the query node at the query time, so that the state decays once more before the readout."""
    place = torch.arange(seq.node.shape[1] + 1, device=seq.node.device)
    own = place == seq.length[:, None]
    node = torch.where(own, seq.query_node[:, None].int(), pad(seq.node, (0, 1)))
    is_event = place < seq.length[:, None]
    return node, pad(seq.event, (0, 1)), pad(seq.time, (0, 1)), seq.length + 1, is_event


def _first(seq: NeighborSequence) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The query node, then its neighbors (the released code's order)."""
    node = torch.cat([seq.query_node[:, None].int(), seq.node], dim=1)
    return node, pad(seq.event, (1, 0)), pad(seq.time, (1, 0)), seq.length + 1, pad(seq.mask, (1, 0))


def _absent(seq: NeighborSequence) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Neighbors only (the paper's text)."""
    return seq.node, seq.event, seq.time, seq.length, seq.mask


# Position of the query token, and how many of the tokens it takes.
QUERIES: dict[str, tuple[Callable, int]] = {"last": (_last, 1), "first": (_first, 1), "absent": (_absent, 0)}


def _preceding(time: Tensor, query_time: Tensor) -> Tensor:
    """t_k - t_{k-1}: the state decays over the time that passed before a token, then the token is read."""
    return pad(time[:, 1:] - time[:, :-1], (1, 0))


def _following(time: Tensor, query_time: Tensor) -> Tensor:
    """t_{k+1} - t_k with t_{n+1} = tau, as in the paper's Eq. 11."""
    return torch.cat([time[:, 1:], query_time[:, None]], dim=1) - time


SPAN_KINDS = {"preceding": _preceding, "following": _following}


def make_tokens(seq: NeighborSequence, query: str = "last", span: str = "preceding") -> Tokens:
    """Turn each neighbor sequence into tokens, with spans also relative to the observed period tau - t_1."""
    place, _ = QUERIES[query]
    node, event, time, length, is_event = place(seq)
    width = torch.arange(node.shape[1], device=node.device)
    mask = width < length[:, None]
    # padding gets the query time, so the span that follows the last token ends there
    time = torch.where(is_event, time, seq.query_time[:, None])
    gap = SPAN_KINDS[span](time, seq.query_time).clamp(min=0) * mask
    # the sum over the first column is that column, or 0 if there is no slot at all (length 1), where [:, 0] would fail
    oldest = torch.where(seq.length > 0, seq.time[:, :1].sum(dim=1), seq.query_time)
    reach = seq.query_time - oldest  # [q], 0 without neighbors
    share = gap / torch.where(reach > 0, reach, 1.0)[:, None]
    age = seq.query_time[:, None] - time
    return Tokens(node, event, age.float(), gap.float(), share.float(), length, is_event, mask)


def newest_last(
    x: Float[Tensor, "q l d"], seq: NeighborSequence, slots: int
) -> tuple[Float[Tensor, "q k d"], Bool[Tensor, "q k"]]:
    """Move the tokens to the last of `slots` slots; return them, zeros elsewhere, and the mask of taken slots."""
    place = torch.arange(slots, device=x.device) - slots + seq.length[:, None]  # [q k]
    taken = place >= 0
    moved = x.gather(1, place.clamp(min=0)[..., None].expand(-1, -1, x.shape[-1]))
    return moved * taken[..., None], taken
