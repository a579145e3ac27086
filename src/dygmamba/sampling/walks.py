"""How the time-respecting walks to two nodes overlap, each step fading with its age: numbers about any two nodes.

Everything is strictly earlier than the question: `Walks` answers about (node, time) and has no other way to be asked.
The random rows are a function of seed and node, so a stream that goes on, with new nodes behind the old, moves nothing.

Legend: n nodes, e events, k layers, s = k + 1 rows of a node, d width.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.walks import WalkTable, build_walk_table, look_up_rows
from dygmamba.sampling.draws import Draws


@dataclass(frozen=True, slots=True)
class WalkRequest:
    """Walks of up to `layers` events, as rows of `dim` numbers; `decay` per unit of time, of each event of a walk."""

    layers: int = 3
    dim: int = 120
    decay: float = 1e-6
    seed: int = 0

    def __post_init__(self) -> None:
        if self.layers < 1 or self.dim < 1 or not 0 <= self.decay < math.inf:
            raise ConfigError(
                "a walk request needs layers and a dim of at least 1 and a decay of at least 0, got "
                f"{self.layers}, {self.dim} and {self.decay}"
            )

    @property
    def tokens(self) -> int:
        """Entries looked up for one query: none of its own, it is asked about those of others."""
        return 0

    @property
    def fanout(self) -> tuple[int, ...]:
        """Entries per hop."""
        return (0,)

    def cut(self, length: int) -> "WalkRequest":
        """The same: nothing here has a length."""
        return self

    @property
    def width(self) -> int:
        """Numbers about two nodes."""
        return (2 * self.layers + 2) ** 2

    @property
    def kinds(self) -> list[tuple[int, str]]:
        """Those of the numbers about a source and a destination that differ, and are no chance alone: place, name."""
        rows = [(who, steps) for who in ("source", "destination") for steps in range(self.layers + 1)]
        return [
            (place * len(rows) + other, f"walks of {i} to the {who} and of {j} to the {whom}, from one node")
            for place, (who, i) in enumerate(rows)
            for other, (whom, j) in enumerate(rows)
            if place <= other and i + j > 0
        ]


@dataclass(frozen=True, slots=True)
class TemporalWalks:
    """Every event of a stream, or the training events alone, as sums over walks."""

    table: WalkTable

    @staticmethod
    def build(
        src: Int64[Tensor, "e"],
        dst: Int64[Tensor, "e"],
        time: Float64[Tensor, "e"],
        num_nodes: int,
        request: WalkRequest,
    ) -> "TemporalWalks":
        """The walks of events, with random rows for the nodes they start from."""
        base = sample_node_rows(num_nodes, request.dim, request.seed)
        return TemporalWalks(build_walk_table(src, dst, time, base, request.layers, request.decay))

    def to(self, device: torch.device | str) -> "TemporalWalks":
        """The same on another device."""
        return TemporalWalks(self.table.to(device))

    def at(self, node: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]) -> Float32[Tensor, "*q s d"]:
        """The rows of each node strictly before each time; zeros for a node of -1."""
        return look_up_rows(self.table, node, time)


def sample_node_rows(num_nodes: int, dim: int, seed: int) -> Float32[Tensor, "n d"]:
    """Normal numbers of variance 1 / dim, each a function of seed, node and column (Box and Muller 1958)."""
    node = torch.arange(num_nodes)
    drawn = Draws.of(seed).uniform(node, torch.zeros(num_nodes, dtype=torch.float64), 0, 2 * dim)
    radius, angle = drawn.view(num_nodes, dim, 2).unbind(-1)
    normal = torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * math.pi * angle)
    return (normal / math.sqrt(dim)).float()
