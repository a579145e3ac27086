"""Exponentially decayed event counts before a time: each event counts exp(-age / scale), exactly, on many time scales.

Events belong to groups (the events of a node, the events between two nodes). `DecayedCounts` lists the timestamps of
each group, oldest first, and for each the group's count just after it,
c_k = 1 + c_{k-1} exp(-(t_k - t_{k-1}) / scale). The count before any time is then one binary search for the last
strictly earlier event, and one decay. Only time differences are exponentiated, so no time unit and no origin
overflows. The CPU runs Numba kernels, a GPU the reference.

Legend: g groups, m entries, a appended entries, q queries, s scales.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.ops.decayed_counts import reference
from dygmamba.ops.dispatch import Dispatch

DECAYED_COUNTS = Dispatch(reference, cpu=("cpu",))


@dataclass(frozen=True, slots=True)
class DecayedCounts:
    """Timestamps and decayed counts of all groups, each group in a block of its own that may have spare room.

    Group i has `size[i]` entries from `start[i]` on, and room for `room[i]`. `running` is the count just after each
    entry, on each scale.
    """

    start: Int64[Tensor, "g"]
    size: Int64[Tensor, "g"]
    room: Int64[Tensor, "g"]
    time: Float64[Tensor, "m"]
    running: Float64[Tensor, "m s"]
    scale: Float64[Tensor, "s"]
    used: int  # entries of `time` that are part of a block

    def to(self, device: torch.device | str) -> "DecayedCounts":
        """Copy to another device, for look-ups there."""
        columns = (self.start, self.size, self.room, self.time, self.running, self.scale)
        return DecayedCounts(*(column.to(device) for column in columns), used=self.used)


def build_decayed_counts(
    group: Int64[Tensor, "m"], time: Float64[Tensor, "m"], groups: int, scale: Float64[Tensor, "s"]
) -> DecayedCounts:
    """Build the counts of events in time order, each in one group below `groups`; on the CPU, in linear time."""
    if not bool(((scale > 0) & torch.isfinite(scale)).all()):
        raise ConfigError(
            f"time scales must be positive and finite; got {scale.tolist()}", code="bad-time-scale"
        )
    return DECAYED_COUNTS.pick("cpu").build_decayed_counts(group, time, groups, scale)


def append_events(
    lists: DecayedCounts, group: Int64[Tensor, "a"], time: Float64[Tensor, "a"]
) -> DecayedCounts:
    """Append later events in amortized constant time each; `lists` must not be used afterwards.

    A full block moves to the end and gets twice the room.
    """
    groups = lists.start.shape[0]
    if len(group) and not (int(group.min()) >= 0 and int(group.max()) < groups):
        raise EventError(
            f"groups must lie between 0 and {groups - 1}; got {int(group.max())}. Call `add_groups` first",
            code="group-out-of-range",
        )
    last = last_time(lists, group)
    if bool((time < last).any()) or bool((time.diff() < 0).any()):
        raise EventError(
            "an appended event is earlier than an event that is already counted; build the counts again",
            code="unsorted-events",
        )
    return DECAYED_COUNTS.pick("cpu").append_events(lists, group, time)


def add_groups(lists: DecayedCounts, groups: int) -> DecayedCounts:
    """Add empty groups so that there are `groups` of them."""
    more = max(0, groups - lists.start.shape[0])
    start, size, room = (
        torch.cat([column, column.new_zeros(more)]) for column in (lists.start, lists.size, lists.room)
    )
    return DecayedCounts(start, size, room, lists.time, lists.running, lists.scale, lists.used)


def last_time(lists: DecayedCounts, group: Int64[Tensor, "q"]) -> Float64[Tensor, "q"]:
    """Return the timestamp of each group's last entry, -inf for an empty group."""
    if not lists.used:
        return torch.full(group.shape, -torch.inf, dtype=torch.float64, device=group.device)
    end = lists.start[group] + lists.size[group]
    return torch.where(lists.size[group] > 0, lists.time[(end - 1).clamp(min=0)], -torch.inf)


def count_before(
    lists: DecayedCounts, group: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> Float64[Tensor, "q s"]:
    """Return the decayed count of each group strictly before each time, on every scale; 0 for group -1."""
    return DECAYED_COUNTS.pick(time.device.type).count_before(lists, group, time)


def past_size_and_age(
    lists: DecayedCounts, group: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> tuple[Int64[Tensor, "q"], Float64[Tensor, "q"]]:
    """Return the number of entries of each group strictly before each time and the age of the last (-1 if none)."""
    return DECAYED_COUNTS.pick(time.device.type).past_size_and_age(lists, group, time)


@dataclass(frozen=True, slots=True)
class NeighborMeetings:
    """Queries about one end of a pair and the neighbors w of the other end.

    `met` is the group of the events between w and the first end: -1 if there is no neighbor or the two never met.
    `age` is the age of w's last event with its own end, stored once for all queries that share that end; `row` is the
    row of `age` for each query.
    """

    met: Int64[Tensor, "q k"]
    row: Int64[Tensor, "q"]
    age: Float64[Tensor, "r k"]


def sum_neighbor_meetings(
    pairs: DecayedCounts, near: NeighborMeetings, time: Float64[Tensor, "q"]
) -> Float64[Tensor, "q 2 s"]:
    """Sum up how often one end of a pair has met the neighbors w of the other.

    On every scale: the sum of the decayed counts of w with that end, each weighted by exp(-age / scale) of w's own
    event, and the largest of these counts. Zero without neighbors.
    """
    return DECAYED_COUNTS.pick(time.device.type).sum_neighbor_meetings(pairs, near, time)


def mean_neighbor_activity(
    nodes: DecayedCounts, own: Int64[Tensor, "r k"], time: Float64[Tensor, "r"]
) -> Float64[Tensor, "r s"]:
    """Return the mean of log(1 + count) over the groups other than -1, on every scale; 0 without any."""
    return DECAYED_COUNTS.pick(time.device.type).mean_neighbor_activity(nodes, own, time)
