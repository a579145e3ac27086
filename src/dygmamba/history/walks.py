"""Temporal walks as random projections: inner products of two nodes' rows say how much the walks to them overlap.

Every node has a row P^0. An event (u, v, t) adds P^{i-1}[v] to P^i[u] and P^{i-1}[u] to P^i[v], and P^i decays by
exp(-decay i) per unit of time. So P^i[u] is the sum of the rows P^0 of all nodes from which a walk of i events at
increasing times leads to u, each event decayed by its age. With unit vectors for P^0 these are the sums themselves;
with random rows, inner products give them up to noise (TPNet, Lu et al., NeurIPS 2024, section 4). The random rows are
a function of seed and node, so appending events and new nodes changes no earlier row.

A table has the rows of one decay or of several, a bank of decays. All start from the same rows P^0; rows of different
decays are never combined.

Events at the same instant do not see each other: all of them add the rows from strictly before (decision 027), in the
order of the partners' numbers. So events that are appended at an instant which the table has already make it write the
rows of their nodes again. The rows before any time are one binary search and one decay; only time differences are
exponentiated.

Legend: n nodes, r rows (a node at an instant at which it had an event), c decays, k layers, s = k + 1 rows of a node
for each decay, d width, q queries.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.history.block_lists import BlockLists, EventRows
from dygmamba.history.device_lists import BlockLookup, Lookup, SortedLists
from dygmamba.history.draws import Draws
from dygmamba.history.neighbor_lists import NeighborLists
from dygmamba.history.table_request import HISTORY, FeatureGroup, FeatureUnit, TableRequest
from dygmamba.ops.growing import LEAST_SPARE, allocate_zeros, enlarge
from dygmamba.ops.walk_rows import append_walks

MOST_BYTES = 8 << 30  # largest size of a table
WALKS = FeatureGroup(HISTORY, "temporal walks")


@dataclass(frozen=True, slots=True)
class WalkRequest(TableRequest):
    """Request for temporal walks.

    Attributes:
        layers: Events of the longest walks.
        dim: Width of the random projection.
        decays: Decay rates per unit of time of the stream, applied to each event of a walk. Several are a bank: the
            walks of each decay have rows of their own.
        seed: Seed of the random projection; a table is cached by request, so another seed has a table of its own.
    """

    on_host: ClassVar[bool] = False  # the table is on the device of the stream
    layers: int = 3
    dim: int = 120
    decays: tuple[float, ...] = (1e-6,)
    seed: int = 0

    def __post_init__(self) -> None:
        finite = self.decays and all(0 <= decay < math.inf for decay in self.decays)
        if self.layers < 1 or self.dim < 1 or not finite:
            raise ConfigError(
                "a walk request needs layers and dim of at least 1, and at least one decay, each finite and at least "
                f"0; got layers={self.layers}, dim={self.dim}, decays={self.decays}",
                code="invalid-request",
            )

    def prepare(self, index: Any) -> Any:
        if index.is_growing:
            return TemporalWalks.from_lists(index.table(WalkLists, self, index.near))
        return index.move_once(self, lambda: TemporalWalks.build(index.list_rows(), self))

    @property
    def products(self) -> int:
        """Number of inner products of a pair of nodes for one decay."""
        return (2 * self.layers + 2) ** 2

    @property
    def width(self) -> int:
        """Number of features of a pair of nodes: the inner products of every decay."""
        return len(self.decays) * self.products

    @property
    def kinds(self) -> list[tuple[int, str]]:
        """Index and name of the distinct features of a (source, destination) pair.

        The matrix of inner products is symmetric, and products of two rows without steps are random noise: both are
        left out. A checkpoint of boosted trees holds a checksum of these names, so they must not be reworded; those
        of a single decay do not name it.
        """
        rows = [(who, steps) for who in ("source", "destination") for steps in range(self.layers + 1)]
        one_decay = [
            (place * len(rows) + other, f"walks of {i} to the {who} and of {j} to the {whom}, from one node")
            for place, (who, i) in enumerate(rows)
            for other, (whom, j) in enumerate(rows)
            if place <= other and i + j > 0
        ]
        if len(self.decays) == 1:
            return one_decay
        return [
            (self.products * number + place, f"{name}, decay {number + 1} of {len(self.decays)}: {decay:.4g}")
            for number, decay in enumerate(self.decays)
            for place, name in one_decay
        ]

    @property
    def units(self) -> list[FeatureUnit]:
        """Features that boosted trees read, by the names of `kinds`."""
        return [FeatureUnit(name, WALKS) for _, name in self.kinds]


class WalkLists(BlockLists):
    """Instants of all nodes, each with the place of its rows P^1..P^k, which lie in the order of their instants."""

    columns = ("time", "place")
    other_arrays: ClassVar[Mapping[str, str]] = {"walk_rows": "row_count", "node_rows": "nodes"}
    place: np.ndarray
    integers = ("groups", "used", "row_count", "nodes")

    def __init__(self, request: WalkRequest, near: NeighborLists, is_growing: bool = False) -> None:
        """Create lists without events; those that are appended must be in the neighbor lists already."""
        super().__init__((np.float64, ()), (np.int64, ()), is_growing=is_growing)
        self.request, self.near, self.decays = request, near, np.array(request.decays)
        self.row_count = self.nodes = 0  # rows in use, and nodes that have a row P^0
        self.node_rows = self.sample_rows(0, 0)
        shape = (0, len(request.decays), request.layers, request.dim)
        self.walk_rows = np.zeros(shape, self.node_rows.dtype)

    def sample_rows(self, first: int, stop: int) -> Float[np.ndarray, "n d"]:
        """Return the rows P^0 of nodes from `first` on."""
        return sample_node_rows(torch.arange(first, stop), self.request.dim, self.request.seed).numpy()

    def _ensure_nodes(self, nodes: int) -> None:
        """Add nodes without events so that there are at least `nodes` of them."""
        self.ensure_groups(nodes)
        if nodes > len(self.node_rows):
            room = nodes if not self.nodes and not self.is_growing else 2 * nodes + LEAST_SPARE
            self.node_rows = enlarge(self.node_rows, self.nodes, room)
        if nodes > self.nodes:
            self.node_rows[self.nodes : nodes] = self.sample_rows(self.nodes, nodes)
            self.nodes = nodes

    def append_rows(self, rows: EventRows) -> None:
        """Append events."""
        number = np.searchsorted(np.unique(rows.time), rows.time).repeat(2)  # of the instant
        first = np.unique(number * rows.num_nodes + rows.ends, return_index=True)[1]
        node, when = rows.ends[first], rows.end_times[first]
        if not self.used:
            self._reserve_rows(node, rows.num_nodes)
        self._ensure_nodes(rows.num_nodes)
        near, done = (self.near.start, self.near.size, self.near.neighbor, self.near.time), 0
        while True:
            counters = np.array([self.used, self.row_count])
            blocks = (self.start, self.size, self.room, self.time, self.place, self.walk_rows, counters)
            done = append_walks(*blocks, self.node_rows, self.decays, near, node, when, done)
            self.used, self.row_count = map(int, counters)
            if done == len(node):
                return
            self.make_room(len(self.time) + 1, *self.columns)
            self.make_room(self.row_count + 1, "walk_rows")

    def _reserve_rows(self, node: Int64[np.ndarray, "r"], num_nodes: int) -> None:
        """Make room for the first rows; raise ConfigError if they are too large."""
        bank, layers, width = self.walk_rows.shape[1:]
        need = len(node) * bank * layers * width * self.walk_rows.itemsize
        if need > MOST_BYTES:
            raise ConfigError(
                f"the walk table of this stream needs {need / 2**30:.1f} GiB ({len(node):,} entries of "
                f"{bank} x {layers} x {width} numbers), more than the limit of {MOST_BYTES >> 30} GiB; "
                "choose a smaller width, fewer decays or fewer layers",
                code="walk-table-too-large",
            )
        self.reserve(np.bincount(node, minlength=num_nodes))
        room = 2 * len(node) + LEAST_SPARE if self.is_growing else len(node)
        self.walk_rows = allocate_zeros((room, bank, layers, width), self.walk_rows.dtype)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events; the first of them is the first one of its instant."""
        for own in np.unique(rows.ends).tolist():
            begin, size = self.start[own], self.size[own]
            self.size[own] = kept = np.searchsorted(self.time[begin : begin + size], rows.time[0])
            self.row_count -= int(size - kept)


@dataclass(frozen=True, slots=True)
class TemporalWalks:
    """Temporal walks over the events of a stream (or over its training events), to be looked up for any node."""

    lists: Lookup
    rows: Float[Tensor, "r c k d"]
    base: Float[Tensor, "n d"]  # P^0
    decays: Float64[
        Tensor, "c"
    ]  # per unit of time, for each event of a walk; a tensor, so look-ups copy nothing

    @staticmethod
    def build(rows: EventRows, request: WalkRequest) -> "TemporalWalks":
        """Sum up the walks over events in time order, to be looked up on any device."""
        lists = WalkLists(request, NeighborLists(rows))
        lists.append_rows(rows)
        if not np.isfinite(lists.walk_rows).all():
            raise EventError(
                f"the sums over walks of {request.layers} events overflow; choose fewer layers or larger decays",
                code="walk-overflow",
            )
        instant = torch.from_numpy(np.unique(rows.time))
        return replace(TemporalWalks.from_lists(lists), lists=SortedLists.from_blocks(lists, instant))

    @staticmethod
    def from_lists(lists: WalkLists) -> "TemporalWalks":
        """Look up in lists on the host, which events are appended to."""
        tensors = map(torch.from_numpy, (lists.walk_rows, lists.node_rows, lists.decays))
        return TemporalWalks(BlockLookup(lists), *tensors)

    def to(self, device: torch.device | str) -> "TemporalWalks":
        assert isinstance(self.lists, SortedLists)
        tensors = (part.to(device) for part in (self.rows, self.base, self.decays))
        return TemporalWalks(self.lists.to(device), *tensors)

    def at(self, node: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]) -> Float[Tensor, "*q c s d"]:
        """Return the rows P^0..P^k of each node strictly before each time, for every decay; zeros for node -1."""
        last, some = self.lists.find_last(node, time)
        age = torch.where(some, time - self.lists.read("time", last), 0)
        base = self.base[node.clamp(min=0)] * (node >= 0)[..., None]  # [*q d]
        bank, layers = self.rows.shape[1:3]
        base = base[..., None, None, :].expand(*node.shape, bank, 1, -1)  # the same P^0 for every decay
        if not len(self.rows):
            return torch.cat([base, base.new_zeros(*node.shape, bank, layers, base.shape[-1])], dim=-2)
        steps = torch.arange(1, layers + 1, device=node.device)
        decay = torch.exp(-self.decays[:, None] * age[..., None, None] * steps)  # [*q c k]
        decay = torch.where(some[..., None, None], decay, 0)
        rows = self.rows[self.lists.read("place", last)] * decay[..., None].to(base.dtype)
        return torch.cat([base, rows], dim=-2)


def sample_node_rows(node: Int64[Tensor, "n"], dim: int, seed: int) -> Float32[Tensor, "n d"]:
    """Return normal numbers of variance 1 / dim, each a function of seed, node and column (Box and Muller 1958)."""
    drawn = Draws.from_seed(seed).uniform(node, torch.zeros(len(node), dtype=torch.float64), 0, 2 * dim)
    radius, angle = drawn.view(len(node), dim, 2).unbind(-1)
    normal = torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * math.pi * angle)
    return (normal / math.sqrt(dim)).float()
