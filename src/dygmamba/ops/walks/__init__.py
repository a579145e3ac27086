"""Sums over the temporal walks that end in a node, as row vectors: exact before any time, computed in one pass.

Every node has a row P^0. An event (u, v, t) adds P^{i-1}[v] to P^i[u] and P^{i-1}[u] to P^i[v], and P^i decays by
exp(-decay i) per unit of time. So P^i[u] is the sum of the rows P^0 of all nodes from which a walk of i events at
increasing times leads to u, each event decayed by its age. With unit vectors for P^0 these are the sums themselves;
with random rows, inner products give them up to noise (TPNet, Lu et al., NeurIPS 2024, section 4).

Events at the same instant do not see each other: all of them add the rows from strictly before (decision 027). A
`WalkTable` keeps the rows of a node just after each instant at which it had an event. The rows before any time are
then one binary search and one decay. Only time differences are exponentiated.

Legend: n nodes, e events, m = 2 e ends, t instants, r entries (a node at an instant at which it had an event),
k layers, d width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.walks import reference

WALKS = Dispatch(__name__, {"cpu": ("cpu",)})
MOST_BYTES = 8 << 30  # largest size of a table


@dataclass(frozen=True, slots=True)
class WalkEnds:
    """Both ends of every event, sorted by instant, node and partner, which makes the order of ties irrelevant.

    `entry` and `partner` are the table entries of the node and of the other end.
    """

    instant: Float64[Tensor, "t"]
    key: Int64[Tensor, "r"]
    entry: Int64[Tensor, "m"]
    partner: Int64[Tensor, "m"]

    @staticmethod
    def from_events(
        src: Int64[Tensor, "e"], dst: Int64[Tensor, "e"], time: Float64[Tensor, "e"]
    ) -> "WalkEnds":
        """Sort the ends of events given in any order; a self-loop has two."""
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
    """Rows P^1..P^k of each entry at its own instant, sorted by `key` = node * (t + 1) + number of the instant."""

    instant: Float64[Tensor, "t"]
    key: Int64[Tensor, "r"]
    rows: Float[Tensor, "r k d"]
    base: Float[Tensor, "n d"]  # P^0
    decay: float  # per unit of time, for each event of a walk

    def to(self, device: torch.device | str) -> "WalkTable":
        """Copy to another device, for look-ups there."""
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
    """Build the table of these events on the CPU in one pass, in the precision of `base`."""
    if not decay >= 0 or layers < 1:
        raise ConfigError(
            f"walks need decay >= 0 and at least one layer; got decay={decay}, layers={layers}",
            code="bad-walk-settings",
        )
    ends = WalkEnds.from_events(src, dst, time)
    need = len(ends.key) * layers * base.shape[1] * base.element_size()
    if need > MOST_BYTES:
        raise ConfigError(
            f"the walk table of this stream needs {need / 2**30:.1f} GiB ({len(ends.key):,} rows of {layers} x "
            f"{base.shape[1]} numbers), more than the limit of {MOST_BYTES >> 30} GiB; choose a smaller width or fewer "
            "layers",
            code="walk-table-too-large",
        )
    rows = WALKS["cpu"].walk_rows(ends, base, layers, decay)
    if not bool(torch.isfinite(rows).all()):
        raise EventError(
            f"the sums over walks of {layers} events overflow; choose fewer layers or a larger decay",
            code="walk-overflow",
        )
    return WalkTable(ends.instant, ends.key, rows, base, decay)


def look_up_rows(
    table: WalkTable, node: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
) -> Float[Tensor, "*q k1 d"]:
    """Return rows P^0..P^k of each node strictly before each time; zeros for node -1."""
    return reference.look_up_rows(table, node, time)
