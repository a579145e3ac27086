"""Link prediction: will this pair interact at this time?"""

import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.data.events import EventBatch
from dygmamba.sampling.view import PairBatch


def positives_and_negatives(
    events: EventBatch, src: Int64[Tensor, "b"], dst: Int64[Tensor, "b"], first_group: int = 0
) -> PairBatch:
    """Each event as a pair of label 1, then its negative (src, dst) at the same time with label 0.

    Where the negatives keep the positives' sources (`src is events.src`), both point at one row.
    """
    b = len(events)
    row = torch.arange(b, device=dst.device)
    shared = src is events.src
    nodes = [events.src, events.dst, dst] if shared else [events.src, events.dst, dst, src]
    group = row + first_group
    return PairBatch(
        node=torch.cat(nodes),
        when=events.time.repeat(len(nodes)),
        src_row=torch.cat([row, row if shared else row + 3 * b]),
        dst_row=torch.cat([row + b, row + 2 * b]),
        label=torch.cat([torch.ones_like(row), torch.zeros_like(row)]).float(),
        group=torch.cat([group, group]),
    )
