"""Reference: sums as explicit sums over all earlier events of a group, look-ups as a count of earlier entries."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dygmamba.ops.decayed_sums import DecayedSums


def build_decayed_sums(
    group: Tensor, time: Tensor, value: Tensor, groups: int, scale: Tensor
) -> "DecayedSums":
    """Sum over each group's entries up to and including each entry."""
    from dygmamba.ops.decayed_sums import DecayedSums

    order = torch.argsort(group, stable=True)
    size = torch.bincount(group, minlength=groups)
    running, latest = [value.new_zeros(0, len(scale), value.shape[1])], [value[:0]]
    for when, own in zip(time[order].split(size.tolist()), value[order].split(size.tolist()), strict=True):
        for k in range(len(when)):
            weight = torch.exp(-(when[k] - when[: k + 1])[:, None] / scale)  # [k+1 s]
            running.append((weight[..., None] * own[: k + 1, None]).sum(dim=0)[None])
            latest.append(own[: k + 1][when[: k + 1] == when[k]].mean(dim=0)[None])
    return DecayedSums(size.cumsum(0) - size, size, time[order], torch.cat(running), torch.cat(latest), scale)


def find_last_entry(sums: "DecayedSums", group: Tensor, time: Tensor) -> Tensor:
    """Count the entries of each group that are strictly earlier (decision 003)."""
    found = []
    for own, when in zip(group.tolist(), time.tolist(), strict=True):
        start = int(sums.start[own]) if own >= 0 else 0
        size = int(sums.size[own]) if own >= 0 else 0
        earlier = int((sums.time[start : start + size] < when).sum())
        found.append(start + earlier - 1 if earlier else -1)
    return torch.tensor(found, dtype=torch.int64)
