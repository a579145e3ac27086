"""Temporal walks as random projections: inner products of two nodes' rows say how much the walks to them overlap.

Each step of a walk decays with its age, and only events strictly earlier than the query count: every look-up takes the
query time. The random rows are a function of seed and node, so appending events and new nodes changes no earlier row.

Legend: n nodes, e events, c decays, k layers, s = k + 1 rows of a node for each decay, d width, q queries.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.walks import WalkTable, build_walk_table, look_up_rows
from dygmamba.sampling.block_lists import EventRows
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.table_request import TableRequest


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

    def look_up(self, index: Any, pairs: Any, features: Any, draws: Any) -> Any:
        return index.walks(self)

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


@dataclass(frozen=True, slots=True)
class TemporalWalks:
    """Temporal walks over the events of a stream (or over its training events)."""

    table: WalkTable

    @staticmethod
    def build(rows: EventRows, request: WalkRequest) -> "TemporalWalks":
        """Sum up the walks over events in time order, from random rows for the nodes they start at."""
        base = sample_node_rows(torch.arange(rows.num_nodes), request.dim, request.seed)
        src, dst, time = map(torch.from_numpy, (rows.src, rows.dst, rows.time))
        return TemporalWalks(build_walk_table(src, dst, time, base, request.layers, request.decays))

    def to(self, device: torch.device | str) -> "TemporalWalks":
        return TemporalWalks(self.table.to(device))

    def at(self, node: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]) -> Float32[Tensor, "*q c s d"]:
        """Return the rows of each node strictly before each time, for every decay; zeros for node -1."""
        return look_up_rows(self.table, node, time)


def sample_node_rows(node: Int64[Tensor, "n"], dim: int, seed: int) -> Float32[Tensor, "n d"]:
    """Return normal numbers of variance 1 / dim, each a function of seed, node and column (Box and Muller 1958)."""
    drawn = Draws.from_seed(seed).uniform(node, torch.zeros(len(node), dtype=torch.float64), 0, 2 * dim)
    radius, angle = drawn.view(len(node), dim, 2).unbind(-1)
    normal = torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * math.pi * angle)
    return (normal / math.sqrt(dim)).float()
