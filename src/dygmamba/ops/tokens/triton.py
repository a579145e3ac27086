"""The tokens on a GPU: one kernel that reads the chosen sequences where they lie."""

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from dygmamba.ops.tokens import reference
from dygmamba.ops.tokens.triton_kernels import tokens_kernel

if TYPE_CHECKING:
    from dygmamba.ops.tokens import Sequences

BLOCK = 256  # tokens of a program
FLOATS = ("age", "gap", "share")


@torch.no_grad()
def build_tokens(seq: "Sequences", rows: Tensor | None, query: str, span: str) -> tuple[Tensor, ...]:
    """Return node, event, age, gap, share, length, is_event and mask of the tokens of the chosen sequences."""
    slots, device = seq.node.shape[1], seq.node.device
    shape = (seq.length if rows is None else rows).shape[0], slots + (query != "absent")
    if 0 in shape:
        return reference.build_tokens(seq, rows, query, span)
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
