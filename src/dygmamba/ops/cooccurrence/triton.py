"""Counts on a GPU: each token is compared with all tokens of its pair, tile by tile, without a sort."""

import torch
import triton
from torch import Tensor

from dygmamba.ops.cooccurrence.triton_kernels import count_kernel

ROWS, COLUMNS, WARPS = (
    32,
    128,
    4,
)  # tokens counted by a program, and at most so many compared with them at a time


@torch.no_grad()
def cooccurrence(left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Count each token in the left and in the right sequence."""
    sides = (left, left_mask), (right, right_mask)
    counts = [torch.empty(*node.shape, 2, dtype=torch.int32, device=node.device) for node, _ in sides]
    for (node, mask), out in zip(sides, counts, strict=True):
        _launch(node, mask, left, right, left_mask, right_mask, out)
    return counts[0], counts[1]


@torch.no_grad()
def count_pair_tokens(node: Tensor, mask: Tensor) -> Tensor:
    """Count each token's node in both sequences of its pair, sequences i and p + i of 2 p."""
    p, counts = node.shape[0] // 2, torch.empty(*node.shape, 2, dtype=torch.int32, device=node.device)
    _launch(node, mask, node[:p], node[p:], mask[:p], mask[p:], counts)
    return counts


def _launch(
    node: Tensor,
    mask: Tensor,
    left: Tensor,
    right: Tensor,
    left_mask: Tensor,
    right_mask: Tensor,
    out: Tensor,
) -> None:
    """Count the tokens of each of `node`'s sequences i [q l] in the pair i % p."""
    if out.numel() == 0:
        return
    ids = {"node": node, "left": left, "right": right}
    masks = {"mask": mask, "left_mask": left_mask, "right_mask": right_mask}
    tensors = {name: t.contiguous() for name, t in ids.items()}
    tensors |= {name: t.contiguous().view(torch.uint8) for name, t in masks.items()}
    sizes = {"pairs": left.shape[0], "length": node.shape[1]}
    sizes |= {"left_length": left.shape[1], "right_length": right.shape[1]}
    columns = min(COLUMNS, triton.next_power_of_2(max(left.shape[1], right.shape[1], 1)))
    with torch.cuda.device_of(out):
        count_kernel[(node.shape[0] * triton.cdiv(node.shape[1], ROWS),)](
            **tensors, **sizes, out=out, ROWS=ROWS, COLUMNS=columns, num_warps=WARPS
        )
