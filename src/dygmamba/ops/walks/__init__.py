"""Sums over the time-respecting walks that end in a node, as rows of numbers: exact before any time, made in one pass.

A row P^0 belongs to every node. An event (u, v, t) adds P^{i-1}[v] to P^i[u] and P^{i-1}[u] to P^i[v], and P^i fades by
exp(-decay i) in a unit of time. So P^i[u] is the sum of the rows P^0 from which a walk of i events at increasing times
leads to u, each event faded by its own age; with unit vectors for P^0 the sums themselves, with random rows their inner
products up to noise (TPNet, Lu et al., NeurIPS 2024, section 4).

Events of one instant do not see each other: all of them add what was there strictly before (decision 027). A
`WalkTable` keeps the rows of a node just after each instant at which it acted. The rows before any time are then one
binary search and one decay. Only differences of times are ever exponentiated.

Legend: n nodes, e events, m = 2 e ends, t instants, r entries (a node at an instant at which it acted), k layers,
d width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.walks import reference

WALKS = Dispatch(__name__, {"cpu": ("cpu",)})
MOST_BYTES = 8 << 30  # of one table


@dataclass(frozen=True, slots=True)
class WalkEnds:
    """Both ends of every event in the order of instant, node and partner, so the order of simultaneous rows is lost.

    `entry` and `partner` are places in the table of the node and of whom it met.
    """

    instant: Float64[Tensor, "t"]
    key: Int64[Tensor, "r"]
    entry: Int64[Tensor, "m"]
    partner: Int64[Tensor, "m"]

    @staticmethod
    def of(src: Int64[Tensor, "e"], dst: Int64[Tensor, "e"], time: Float64[Tensor, "e"]) -> "WalkEnds":
        """The ends of events in any order; a self-loop has two."""
        instant, number = torch.unique(time, return_inverse=True)
        stride = len(instant) + 1
        own = torch.cat([src * stride + number, dst * stride + number])
        key, entry = torch.unique(own, return_inverse=True)
        partner = entry.roll(len(src))
        order = torch.argsort(entry * len(key) + partner)
        order = order[torch.argsort((key % stride)[entry[order]], stable=True)]
        return WalkEnds(instant, key, entry[order], partner[order])


@dataclass(frozen=True, slots=True)
class WalkTable:
    """Rows P^1..P^k of each entry as of its own instant, sorted by `key` = node * (t + 1) + number of the instant."""

    instant: Float64[Tensor, "t"]
    key: Int64[Tensor, "r"]
    rows: Float[Tensor, "r k d"]
    base: Float[Tensor, "n d"]  # P^0
    decay: float  # per unit of time, of each event of a walk

    def to(self, device: torch.device | str) -> "WalkTable":
        """The same table on another device, to be asked there."""
        columns = (self.instant, self.key, self.rows, self.base)
        return WalkTable(*(column.to(device) for column in columns), decay=self.decay)


def build_walk_table(
    src: Int64[Tensor, "e"],
    dst: Int64[Tensor, "e"],
    time: Float64[Tensor, "e"],
    base: Float[Tensor, "n d"],
    layers: int,
    decay: float,
) -> WalkTable:
    """The table of these events, made on the CPU in one pass, in the precision of `base`."""
    if not decay >= 0 or layers < 1:
        raise ConfigError(f"walks need a decay of at least 0 and one layer, got {decay} and {layers}")
    ends = WalkEnds.of(src, dst, time)
    need = len(ends.key) * layers * base.shape[1] * base.element_size()
    if need > MOST_BYTES:
        raise ConfigError(
            f"the walks of this stream need {need / 2**30:.1f} GiB ({len(ends.key):,} rows of {layers} x "
            f"{base.shape[1]} numbers), at most {MOST_BYTES >> 30} are kept; choose a smaller dim or fewer layers"
        )
    rows = WALKS["cpu"].walk_rows(ends, base, layers, decay)
    if not bool(torch.isfinite(rows).all()):
        raise EventError(
            f"walks of {layers} steps are more than a number holds; choose fewer layers or more decay"
        )
    return WalkTable(ends.instant, ends.key, rows, base, decay)


def look_up_rows(
    table: WalkTable, node: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
) -> Float[Tensor, "*q k1 d"]:
    """Rows P^0..P^k of each node strictly before each time; zeros for a node of -1."""
    return reference.rows_before(table, node, time)
