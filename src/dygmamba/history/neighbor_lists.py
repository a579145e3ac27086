"""Neighbors of all nodes in lists that events are appended to, and their sampling weights."""

import numpy as np

from dygmamba.history.block_lists import BlockLists, EventRows, interleave
from dygmamba.ops.recent_neighbors.counting_sort import put_entries
from dygmamba.ops.recent_neighbors.cpu_kernels import append_neighbors, append_weights, weigh_blocks


class NeighborLists(BlockLists):
    """Neighbors, events and times of all nodes, each event listed under its source and its destination."""

    columns = ("neighbor", "event", "time")
    neighbor: np.ndarray
    event: np.ndarray

    def __init__(self, rows: EventRows, is_growing: bool = False) -> None:
        super().__init__((np.int32, ()), (np.int32, ()), (np.float64, ()), is_growing=is_growing)
        nodes = rows.num_nodes
        count = np.bincount(rows.src, minlength=nodes) + np.bincount(rows.dst, minlength=nodes)
        self.reserve(count)
        # sorted into their blocks, which takes half the time of appending them
        columns, events = (self.neighbor, self.event, self.time), (rows.src, rows.dst, rows.time, rows.event)
        put_entries(*map(np.ascontiguousarray, events), 0, nodes, self.start.copy(), *columns)
        self.size[:nodes] = count

    @property
    def entries(self) -> tuple[np.ndarray, ...]:
        """The arrays that look-ups read; valid until events are appended or dropped."""
        return self.start, self.size, self.neighbor, self.event, self.time

    def append_rows(self, rows: EventRows) -> None:
        """Append events."""
        self.ensure_groups(rows.num_nodes)
        other = interleave(rows.dst, rows.src)
        self.extend(append_neighbors, (), rows.ends, other, rows.event.repeat(2), rows.end_times)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        self.drop(rows.ends)


class WeightLists(BlockLists):
    """Cumulated sampling weights of all nodes' entries, in the blocks of `NeighborLists`."""

    columns = ("time", "count", "running")
    count: np.ndarray
    running: np.ndarray

    def __init__(self, near: NeighborLists, scale: float) -> None:
        """Weight the entries of neighbor lists; equal appends keep the blocks of both at the same places."""
        super().__init__(*(((np.float64, ()),) * 3), is_growing=True)
        self.scale = np.array([scale])
        self.groups, self.used = near.groups, near.used
        self.start, self.size, self.room = near.start.copy(), near.size.copy(), near.room.copy()
        self.time = near.time.copy()
        self.count, self.running = np.zeros(len(self.time)), np.zeros(len(self.time))
        weigh_blocks(self.start, self.size, self.time, self.count, self.running, self.scale)

    def append_rows(self, rows: EventRows) -> None:
        """Append events."""
        self.ensure_groups(rows.num_nodes)
        self.extend(append_weights, (self.scale,), rows.ends, rows.end_times)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        self.drop(rows.ends)
