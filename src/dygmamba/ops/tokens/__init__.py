"""Tokens of neighbor sequences: built from their entries and counted here, encoded in `encoding`.

A token is an entry, or the query node; with it goes the time span to the token before or behind. The functions are the
definitions, in vectorised torch; times are subtracted and divided in 64 bits.

Legend: s sequences, k slots of entries, q chosen sequences, l tokens: k, and one more if the query node is a token.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int32, Int64
from torch import Tensor
from torch.nn.functional import pad

from dygmamba.ops.dispatch import dispatched

__all__ = ["Sequences", "build_tokens", "count_pair_tokens"]


class Sequences(NamedTuple):
    """Entries of each query from oldest to newest, padding last."""

    query_node: Int64[Tensor, "s"]
    query_time: Float64[Tensor, "s"]
    node: Int32[Tensor, "s k"]
    event: Int32[Tensor, "s k"]
    time: Float64[Tensor, "s k"]
    length: Int64[Tensor, "s"]

    @property
    def device(self) -> torch.device:
        return self.node.device


@dispatched(cuda=("triton:build_tokens",))
def build_tokens(
    seq: Sequences, rows: Int64[Tensor, "q"] | None, query: str, span: str
) -> tuple[Tensor, ...]:
    """Return node, event, age, gap, share [q l], length [q], is_event and mask [q l] of the tokens.

    Args:
        seq: The sequences.
        rows: Sequences to turn into tokens, in this order; None for all.
        query: Where the query node is a token: "last", "first" or "absent".
        span: Which gap a token has: "preceding" or "following".
    """
    seq = seq if rows is None else type(seq)(*(column[rows] for column in seq))
    node, event, time, length, is_event = PLACES[query](seq)
    width = torch.arange(node.shape[1], device=node.device)
    mask = width < length[:, None]
    # padding gets the query time, so the span that follows the last token ends there
    time = torch.where(is_event, time, seq.query_time[:, None])
    gap = SPANS[span](time, seq.query_time).clamp(min=0) * mask
    # the sum over the first column is that column, or 0 if there is no slot at all (length 1), where [:, 0] would fail
    oldest = torch.where(seq.length > 0, seq.time[:, :1].sum(dim=1), seq.query_time)
    reach = seq.query_time - oldest  # [q], 0 without neighbors
    share = gap / torch.where(reach > 0, reach, 1.0)[:, None]
    age = seq.query_time[:, None] - time
    return node, event, age.float(), gap.float(), share.float(), length, is_event, mask


@dispatched(cpu=("cpu:count_pair_tokens",), cuda=("triton:count_pair_tokens",))
def count_pair_tokens(node: Int32[Tensor, "q l"], mask: Bool[Tensor, "q l"]) -> Int32[Tensor, "q l 2"]:
    """Count each token's node in the first and in the second sequence of its pair, sequences i and p + i of q = 2 p.

    Masked tokens are not counted and get 0. Counts by sorting, O(l log l) per pair without an (l, l) comparison.
    """
    # node.shape, not len(): an exported program would be fixed to one number of pairs
    p, nowhere = (
        node.shape[0] // 2,
        torch.iinfo(node.dtype).max,
    )  # masked tokens sort to the end and match no id
    among = torch.where(mask, node, nowhere).sort(dim=1).values
    counts = torch.stack([_count(node, side.repeat(2, 1)) for side in (among[:p], among[p:])], dim=-1)
    return counts * mask[..., None]


def _count(tokens: Tensor, among: Tensor) -> Tensor:
    """Count each of `tokens` [q l] in the same row of the sorted `among`."""
    tokens = tokens.contiguous()
    low = torch.searchsorted(among, tokens, side="left", out_int32=True)
    return torch.searchsorted(among, tokens, side="right", out_int32=True) - low


def _last(seq: Sequences) -> tuple[Tensor, ...]:
    """Neighbors, then the query node at the query time, so that the state decays once more before the readout."""
    place = torch.arange(seq.node.shape[1] + 1, device=seq.node.device)
    own = place == seq.length[:, None]
    node = torch.where(own, seq.query_node[:, None].int(), pad(seq.node, (0, 1)))
    is_event = place < seq.length[:, None]
    return node, pad(seq.event, (0, 1)), pad(seq.time, (0, 1)), seq.length + 1, is_event


def _first(seq: Sequences) -> tuple[Tensor, ...]:
    """The query node, then its neighbors (the released code's order)."""
    node = torch.cat([seq.query_node[:, None].int(), seq.node], dim=1)
    return node, pad(seq.event, (1, 0)), pad(seq.time, (1, 0)), seq.length + 1, pad(_mask(seq), (1, 0))


def _absent(seq: Sequences) -> tuple[Tensor, ...]:
    """Neighbors only (the paper's text)."""
    return seq.node, seq.event, seq.time, seq.length, _mask(seq)


def _mask(seq: Sequences) -> Tensor:
    return torch.arange(seq.node.shape[1], device=seq.node.device) < seq.length[:, None]


def _preceding(time: Tensor, query_time: Tensor) -> Tensor:
    """t_k - t_{k-1}: the state decays over the time that passed before a token, then the token is read."""
    return pad(time[:, 1:] - time[:, :-1], (1, 0))


def _following(time: Tensor, query_time: Tensor) -> Tensor:
    """t_{k+1} - t_k with t_{n+1} = tau, as in the paper's Eq. 11."""
    return torch.cat([time[:, 1:], query_time[:, None]], dim=1) - time


PLACES = {"last": _last, "first": _first, "absent": _absent}
SPANS = {"preceding": _preceding, "following": _following}
