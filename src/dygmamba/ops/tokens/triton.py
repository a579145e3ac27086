"""Tokens on a GPU: one kernel that reads the chosen sequences where they lie, and one that counts.

Each token is counted by comparing it with all tokens of its pair, tile by tile, without a sort.
"""

import torch
import triton
from torch import Tensor

from dygmamba.ops import tokens
from dygmamba.ops.tokens.triton_kernels import count_kernel, tokens_kernel

BLOCK = 256  # tokens of a program that builds them
FLOATS = ("age", "gap", "share")
ROWS, COLUMNS, WARPS = (
    32,
    128,
    4,
)  # tokens counted by a program, and at most so many compared with them at a time


@torch.no_grad()
def build_tokens(seq: tokens.Sequences, rows: Tensor | None, query: str, span: str) -> tuple[Tensor, ...]:
    """Return node, event, age, gap, share, length, is_event and mask of the tokens of the chosen sequences."""
    slots, device = seq.node.shape[1], seq.node.device
    shape = (seq.length if rows is None else rows).shape[0], slots + (query != "absent")
    if 0 in shape:
        return tokens.build_tokens.reference(seq, rows, query, span)
    entries = seq.node, seq.event, seq.time
    if any(t.stride() != (seq.node.stride(0), 1) for t in entries):
        entries = [t.contiguous() for t in entries]
    ids = {name: torch.empty(shape, dtype=torch.int32, device=device) for name in ("node", "event")}
    spans = {name: torch.empty(shape, dtype=torch.float32, device=device) for name in FLOATS}
    length = torch.empty(shape[0], dtype=torch.int64, device=device)
    flags = {name: torch.empty(shape, dtype=torch.bool, device=device) for name in ("is_event", "mask")}
    columns = ids | spans | {"length": length} | {name: t.view(torch.uint8) for name, t in flags.items()}
    with torch.cuda.device_of(length):
        tokens_kernel[(triton.cdiv(shape[0] * shape[1], BLOCK),)](
            **{f"out_{name}": column for name, column in columns.items()},
            **dict(zip(("node", "event", "time"), entries, strict=True)),
            **{name: getattr(seq, name).contiguous() for name in ("query_node", "query_time", "length")},
            rows=None if rows is None else rows.contiguous(),
            count=shape[0] * shape[1], width=shape[1], slots=slots, stride=entries[0].stride(0),
            LAST=int(query == "last"), FIRST=int(query == "first"), FOLLOWING=int(span == "following"), BLOCK=BLOCK,
        )  # fmt: skip
    return *ids.values(), *spans.values(), length, *flags.values()


@torch.no_grad()
def count_pair_tokens(node: Tensor, mask: Tensor) -> Tensor:
    """Count each token's node in both sequences of its pair, sequences i and p + i of 2 p."""
    (q, length), counts = node.shape, torch.empty(*node.shape, 2, dtype=torch.int32, device=node.device)
    if counts.numel() > 0:
        columns = min(COLUMNS, triton.next_power_of_2(length))
        node, mask = node.contiguous(), mask.contiguous().view(torch.uint8)
        with torch.cuda.device_of(counts):
            count_kernel[(q * triton.cdiv(length, ROWS),)](
                node, mask, counts, q // 2, length, ROWS=ROWS, COLUMNS=columns, num_warps=WARPS
            )
    return counts
