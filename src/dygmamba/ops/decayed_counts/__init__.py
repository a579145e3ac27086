"""How often something has happened before a time, each event counting exp(-age / scale): exactly, on many scales.

Events belong to groups (the events of a node, those between two nodes). A `Fading` lists each group's times oldest
first, and beside each time the group's count just after it, c_k = 1 + c_{k-1} exp(-(t_k - t_{k-1}) / scale). The count
before any time is then one binary search, strictly earlier, and one decay. Only differences of times are ever
exponentiated, so no unit and no origin overflows. On the CPU a Numba kernel; look-ups on a GPU by the reference.

Legend: g groups, m entries, a more of them, q questions, s scales.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.ops.dispatch import Dispatch

DECAYED_COUNTS = Dispatch(__name__, {"cpu": ("cpu",)})


@dataclass(frozen=True, slots=True)
class DecayedCounts:
    """Lists of times, group by group, each in a block of its own with perhaps some room behind it.

    Group i has `size[i]` entries from `start[i]` on. `running` is the count just after each entry, on each scale.
    """

    start: Int64[Tensor, "g"]
    size: Int64[Tensor, "g"]
    room: Int64[Tensor, "g"]
    time: Float64[Tensor, "m"]
    running: Float64[Tensor, "m s"]
    scale: Float64[Tensor, "s"]
    used: int  # entries of `time` that belong to a block

    def to(self, device: torch.device | str) -> "DecayedCounts":
        """The same lists on another device, to be asked there."""
        columns = (self.start, self.size, self.room, self.time, self.running, self.scale)
        return DecayedCounts(*(column.to(device) for column in columns), used=self.used)


def build_decayed_counts(
    group: Int64[Tensor, "m"], time: Float64[Tensor, "m"], groups: int, scale: Float64[Tensor, "s"]
) -> DecayedCounts:
    """The lists of events in time order, each of one group below `groups`; made on the CPU, in linear time."""
    if not bool(((scale > 0) & torch.isfinite(scale)).all()):
        raise ConfigError(f"a time scale must be above 0 and finite, got {scale.tolist()}")
    return DECAYED_COUNTS["cpu"].fading(group, time, groups, scale)


def append_events(
    lists: DecayedCounts, group: Int64[Tensor, "a"], time: Float64[Tensor, "a"]
) -> DecayedCounts:
    """The lists with later events, in constant time for each over many calls; the given lists are used up.

    A group's block that is full moves behind the others, into twice the room.
    """
    groups = lists.start.shape[0]
    if len(group) and not (int(group.min()) >= 0 and int(group.max()) < groups):
        raise EventError(
            f"groups must lie between 0 and {groups - 1}, got {int(group.max())}; widen the lists first"
        )
    last = last_time(lists, group)
    if bool((time < last).any()) or bool((time.diff() < 0).any()):
        raise EventError("an appended event is earlier than one that is listed; build the lists anew")
    return DECAYED_COUNTS["cpu"].appended(lists, group, time)


def add_groups(lists: DecayedCounts, groups: int) -> DecayedCounts:
    """The lists with empty ones behind them, so that there are this many groups."""
    more = max(0, groups - lists.start.shape[0])
    start, size, room = (
        torch.cat([column, column.new_zeros(more)]) for column in (lists.start, lists.size, lists.room)
    )
    return DecayedCounts(start, size, room, lists.time, lists.running, lists.scale, lists.used)


def last_time(lists: DecayedCounts, group: Int64[Tensor, "q"]) -> Float64[Tensor, "q"]:
    """The time of each group's last entry, -inf where it has none."""
    if not lists.used:
        return torch.full(group.shape, -torch.inf, dtype=torch.float64, device=group.device)
    end = lists.start[group] + lists.size[group]
    return torch.where(lists.size[group] > 0, lists.time[(end - 1).clamp(min=0)], -torch.inf)


def count_before(
    lists: DecayedCounts, group: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> Float64[Tensor, "q s"]:
    """The count of each group strictly before each time, on every scale; 0 for a group of -1."""
    return DECAYED_COUNTS[time.device.type].fading_counts(lists, group, time)


def past_size_and_age(
    lists: DecayedCounts, group: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> tuple[Int64[Tensor, "q"], Float64[Tensor, "q"]]:
    """How many entries each group has strictly before each time, and the age of the last; -1 where there is none."""
    return DECAYED_COUNTS[time.device.type].past_of(lists, group, time)


@dataclass(frozen=True, slots=True)
class NeighborMeetings:
    """Pairs of one end and the neighbours w of the other: the group of w with it, and the age of each w's own meeting.

    A group is -1 where there is no neighbour, or where the two never met. The ages stand once for all pairs that share
    the end: `row` says where.
    """

    met: Int64[Tensor, "q k"]
    row: Int64[Tensor, "q"]
    age: Float64[Tensor, "r k"]


def sum_neighbor_meetings(
    pairs: DecayedCounts, near: NeighborMeetings, time: Float64[Tensor, "q"]
) -> Float64[Tensor, "q 2 s"]:
    """How one end has met the neighbours of the other.

    On every scale the sum of the counts of w with it, each weighted by the fading of w's own meeting, and the largest
    of these counts. Zero where there are no neighbours.
    """
    return DECAYED_COUNTS[time.device.type].meetings_nearby(pairs, near, time)


def mean_neighbor_activity(
    nodes: DecayedCounts, own: Int64[Tensor, "r k"], time: Float64[Tensor, "r"]
) -> Float64[Tensor, "r s"]:
    """How busy neighbours are: on every scale the mean of log(1 + count) over groups that are not -1, 0 of none."""
    return DECAYED_COUNTS[time.device.type].busy_nearby(nodes, own, time)
