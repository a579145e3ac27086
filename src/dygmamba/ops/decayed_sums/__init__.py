"""Exponentially decayed sums of values before a time: each event adds its value times exp(-age / scale), exactly.

Events belong to groups (the events that a node sent, the events between two nodes), and each has a row of values.
`DecayedSums` lists the events of each group, oldest first, and for each the group's sums just after it,
c_k = x_k + c_{k-1} exp(-(t_k - t_{k-1}) / scale): the recurrence of `ops/decayed_counts`, which is the case x_k = 1.
The sums before any time are then one binary search for the last strictly earlier event, and one decay. A decayed mean
is the ratio of two sums, in which the decay after the last event cancels, so it needs none.

`latest` is the mean of the values at a group's last instant, so the order of simultaneous events is irrelevant.

Legend: g groups, m entries, q queries, s scales, c values per event.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.decayed_sums import reference
from dygmamba.ops.dispatch import Dispatch

DECAYED_SUMS = Dispatch(reference, cpu=("cpu",))


@dataclass(frozen=True, slots=True)
class DecayedSums:
    """Times, decayed sums and latest values of all groups; group i has `size[i]` entries from `start[i]` on.

    `running` are the sums just after each entry, on each scale; `latest` is the mean of the values of the group's
    entries at the same instant, up to and including each entry.
    """

    start: Int64[Tensor, "g"]
    size: Int64[Tensor, "g"]
    time: Float64[Tensor, "m"]
    running: Float64[Tensor, "m s c"]
    latest: Float64[Tensor, "m c"]
    scale: Float64[Tensor, "s"]


def build_decayed_sums(
    group: Int64[Tensor, "m"],
    time: Float64[Tensor, "m"],
    value: Float64[Tensor, "m c"],
    groups: int,
    scale: Float64[Tensor, "s"],
) -> DecayedSums:
    """Build the sums of events in time order, each in one group below `groups`; on the CPU, in linear time."""
    if not bool(((scale > 0) & torch.isfinite(scale)).all()):
        raise ConfigError(
            f"time scales must be positive and finite; got {scale.tolist()}", code="bad-time-scale"
        )
    return DECAYED_SUMS.pick("cpu").build_decayed_sums(group, time, value, groups, scale)


def find_last_entry(
    sums: DecayedSums, group: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> Int64[Tensor, "q"]:
    """Return each group's last entry strictly before each time; -1 if there is none, and for group -1."""
    return DECAYED_SUMS.pick("cpu").find_last_entry(sums, group, time)


def sum_before(
    sums: DecayedSums, group: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> Float64[Tensor, "q s c"]:
    """Return the decayed sums of each group strictly before each time, on every scale; 0 without events."""
    running, decay, _ = look_up_before(sums, group, time)
    return running * decay[..., None]


def look_up_before(
    sums: DecayedSums, group: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> tuple[Float64[Tensor, "q s c"], Float64[Tensor, "q s"], Float64[Tensor, "q c"]]:
    """Return, strictly before each time, the sums just after the last entry, the decay since, and the latest values.

    All are 0 for a group without an earlier entry and for group -1.
    """
    entry = find_last_entry(sums, group, time)
    if not len(sums.time):
        s, c = sums.running.shape[1:]
        return time.new_zeros(len(group), s, c), time.new_zeros(len(group), s), time.new_zeros(len(group), c)
    return read_entries(
        sums.time, sums.running, sums.latest, sums.scale, entry.clamp(min=0), entry >= 0, time
    )


def read_entries(
    times: Float64[Tensor, "m"],
    running: Float64[Tensor, "m s c"],
    latest: Float64[Tensor, "m c"],
    scale: Float64[Tensor, "s"],
    last: Int64[Tensor, "q"],
    found: Bool[Tensor, "q"],
    time: Float64[Tensor, "q"],
) -> tuple[Float64[Tensor, "q s c"], Float64[Tensor, "q s"], Float64[Tensor, "q c"]]:
    """Return the sums just after the entries `last`, their decay until each time, and the latest values.

    All are 0 where no entry was found.
    """
    age = torch.where(found, time - times[last], torch.inf)
    sums = torch.where(found[:, None, None], running[last], 0)
    values = torch.where(found[:, None], latest[last], 0)
    return sums, torch.exp(-age[:, None] / scale), values
