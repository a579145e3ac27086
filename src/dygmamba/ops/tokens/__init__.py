"""Tokens of neighbor sequences: the entries, usually the query node, and the time spans between them.

Legend: s sequences, k slots of entries, q chosen sequences, l tokens: k, and one more if the query node is a token.
"""

from typing import NamedTuple

from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from dygmamba.ops.dispatch import Dispatch

__all__ = ["Sequences", "build_tokens"]

TOKENS = Dispatch(__name__, {"cuda": ("triton",)})


class Sequences(NamedTuple):
    """Entries of each query from oldest to newest, padding last."""

    query_node: Int64[Tensor, "s"]
    query_time: Float64[Tensor, "s"]
    node: Int32[Tensor, "s k"]
    event: Int32[Tensor, "s k"]
    time: Float64[Tensor, "s k"]
    length: Int64[Tensor, "s"]


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
    return TOKENS[seq.node.device.type].build_tokens(seq, rows, query, span)
