"""Temporal walks that events are appended to: the rows of a node just after each instant at which it had an event.

Events at the same instant add the rows from strictly before it, in the order of the partners' numbers (`ops/walks`). So
events that are appended at an instant which the table has already make it write the rows of their nodes again.

Legend: e events, a appended or dropped events, n nodes, r rows, c decays, k layers, d width, q queries.
"""

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.ops.growing import enlarge, with_spare
from dygmamba.ops.walks import decay_rows
from dygmamba.ops.walks.cpu import append_walks, find_rows
from dygmamba.sampling.block_lists import BlockLists, EventRows
from dygmamba.sampling.neighbor_lists import NeighborLists
from dygmamba.sampling.walks import TemporalWalks, WalkRequest, sample_node_rows


class WalkLists(BlockLists):
    """Instants of all nodes, each with its rows P^1..P^k; rows lie in the order of their instants once appended."""

    columns = ("time", "place")
    place: np.ndarray
    integers = ("groups", "used", "row_count", "first_row", "nodes")

    def __init__(self, rows: EventRows, near: NeighborLists, request: WalkRequest) -> None:
        num_nodes = rows.num_nodes
        table = TemporalWalks.build(rows, request).table
        stride = len(table.instant) + 1
        size = torch.bincount(table.key // stride, minlength=num_nodes)
        instant = table.instant[table.key % stride]
        super().__init__((np.float64, ()), (np.int64, ()), is_growing=True)
        self.reserve(size.numpy())
        entry = np.arange(len(instant))
        at = entry + np.repeat(self.start[:num_nodes] - (size.cumsum(0) - size).numpy(), size.numpy())
        self.size[:num_nodes], self.time[at], self.place[at] = size.numpy(), instant.numpy(), entry
        self.near, self.request, self.rates, self.nodes = near, request, table.decays, num_nodes
        self.row_count = self.first_row = len(instant)  # rows in use, and those of the first build
        self.walk_rows, self.node_rows = with_spare(table.rows.numpy()), with_spare(table.base.numpy())

    def ensure_nodes(self, nodes: int) -> None:
        """Add nodes without events so that there are at least `nodes` of them."""
        self.ensure_groups(nodes)
        if nodes > len(self.node_rows):
            self.node_rows = enlarge(self.node_rows, self.nodes, 2 * nodes)
        if nodes > self.nodes:
            added = torch.arange(self.nodes, nodes)
            self.node_rows[self.nodes : nodes] = sample_node_rows(
                added, self.request.dim, self.request.seed
            ).numpy()
            self.nodes = nodes

    def append_rows(self, rows: EventRows) -> None:
        """Append events, which the neighbor lists have already."""
        self.ensure_nodes(rows.num_nodes)
        time, ends, near = rows.time, rows.ends, self.near
        number = np.searchsorted(np.unique(time), time).repeat(2)  # of the instant
        first = np.unique(number * self.nodes + ends, return_index=True)[1]
        node, when = ends[first], rows.end_times[first]
        lists, done = (near.start, near.size, near.neighbor, near.time), 0
        while True:
            counters = np.array([self.used, self.row_count])
            blocks = (self.start, self.size, self.room, self.time, self.place, self.walk_rows, counters)
            rest = (self.node_rows, self.rates.numpy(), lists, node, when)
            done = append_walks(*blocks, *rest, done)
            self.used, self.row_count = map(int, counters)
            if done == len(node):
                return
            for name in self.columns:
                column = getattr(self, name)
                setattr(self, name, enlarge(column, self.used, 2 * len(column)))
            if self.row_count == len(self.walk_rows):
                self.walk_rows = enlarge(self.walk_rows, self.row_count, 2 * self.row_count)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events; the first of them is the first one of its instant."""
        dropped, time = 0, float(rows.time[0])
        for own in np.unique(rows.ends).tolist():
            begin, size = self.start[own], self.size[own]
            self.size[own] = kept = np.searchsorted(self.time[begin : begin + size], time)
            dropped += int((self.place[begin + kept : begin + size] >= self.first_row).sum())
        self.row_count -= dropped  # rows of the first build are not used again

    # what `decay_rows` reads
    @property
    def rows(self) -> Float32[Tensor, "r c k d"]:
        return torch.from_numpy(self.walk_rows)

    @property
    def base(self) -> Float32[Tensor, "n d"]:
        return torch.from_numpy(self.node_rows)

    @property
    def decays(self) -> Float64[Tensor, "c"]:
        return self.rates


WalkLists.arrays = {**WalkLists.arrays, "walk_rows": "row_count", "node_rows": "nodes"}


class LiveWalks(TemporalWalks):
    """Temporal walks of a stream that events are appended to."""

    __slots__ = ("lists",)

    def __init__(self, lists: WalkLists) -> None:
        object.__setattr__(self, "lists", lists)

    def at(self, node: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]) -> Float32[Tensor, "*q c s d"]:
        """Return the rows of each node strictly before each time, for every decay; zeros for node -1."""
        own, lists = node.flatten(), self.lists
        row, age = torch.empty_like(own), torch.empty_like(own, dtype=torch.float64)
        asked = (own, time.flatten(), row, age)
        find_rows(lists.start, lists.size, lists.time, lists.place, *(column.numpy() for column in asked))
        return decay_rows(lists, node, row.view(node.shape), age.view(node.shape))
