"""Sums over the temporal walks that end in a node, as row vectors: exact before any time, computed in one pass.

Every node has a row P^0. An event (u, v, t) adds P^{i-1}[v] to P^i[u] and P^{i-1}[u] to P^i[v], and P^i decays by
exp(-decay i) per unit of time. So P^i[u] is the sum of the rows P^0 of all nodes from which a walk of i events at
increasing times leads to u, each event decayed by its age. With unit vectors for P^0 these are the sums themselves;
with random rows, inner products give them up to noise (TPNet, Lu et al., NeurIPS 2024, section 4).

A table has the rows of one decay or of several, a bank of decays. All start from the same rows P^0 and come out of the
same pass over the events; rows of different decays are never combined.

Events at the same instant do not see each other: all of them add the rows from strictly before (decision 027). A
`WalkTable` keeps the rows of a node just after each instant at which it had an event. The rows before any time are
then one binary search and one decay. Only time differences are exponentiated.

Legend: n nodes, e events, m = 2 e ends, t instants, r entries (a node at an instant at which it had an event),
c decays, k layers, d width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.walks import reference

WALKS = Dispatch(reference, cpu=("cpu",))
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


class WalkRows(Protocol):
    """Rows of entries in any order, those of the nodes where walks start, and the decays."""

    @property
    def rows(self) -> Float[Tensor, "r c k d"]: ...

    @property
    def base(self) -> Float[Tensor, "n d"]: ...

    @property
    def decays(self) -> Float64[Tensor, "c"]: ...


@dataclass(frozen=True, slots=True)
class WalkTable:
    """Rows P^1..P^k of each entry at its own instant, sorted by `key` = node * (t + 1) + number of the instant."""

    instant: Float64[Tensor, "t"]
    key: Int64[Tensor, "r"]
    rows: Float[Tensor, "r c k d"]
    base: Float[Tensor, "n d"]  # P^0
    decays: Float64[
        Tensor, "c"
    ]  # per unit of time, for each event of a walk; a tensor, so look-ups copy nothing

    def to(self, device: torch.device | str) -> "WalkTable":
        """Copy to another device, for look-ups there."""
        columns = (self.instant, self.key, self.rows, self.base, self.decays)
        return WalkTable(*(column.to(device) for column in columns))


def build_walk_table(
    src: Int64[Tensor, "e"],
    dst: Int64[Tensor, "e"],
    time: Float64[Tensor, "e"],
    base: Float[Tensor, "n d"],
    layers: int,
    decays: Sequence[float],
) -> WalkTable:
    """Build the table of these events on the CPU in one pass, in the precision of `base`."""
    if not decays or not all(decay >= 0 for decay in decays) or layers < 1:
        raise ConfigError(
            f"walks need decays >= 0 and at least one layer; got decays={tuple(decays)}, layers={layers}",
            code="bad-walk-settings",
        )
    ends = WalkEnds.from_events(src, dst, time)
    need = len(ends.key) * len(decays) * layers * base.shape[1] * base.element_size()
    if need > MOST_BYTES:
        raise ConfigError(
            f"the walk table of this stream needs {need / 2**30:.1f} GiB ({len(ends.key):,} entries of "
            f"{len(decays)} x {layers} x {base.shape[1]} numbers), more than the limit of {MOST_BYTES >> 30} GiB; "
            "choose a smaller width, fewer decays or fewer layers",
            code="walk-table-too-large",
        )
    rates = torch.tensor(decays, dtype=torch.float64)
    rows = WALKS.pick("cpu").walk_rows(ends, base, layers, rates)
    if not bool(torch.isfinite(rows).all()):
        raise EventError(
            f"the sums over walks of {layers} events overflow; choose fewer layers or larger decays",
            code="walk-overflow",
        )
    return WalkTable(ends.instant, ends.key, rows, base, rates)


def look_up_rows(
    table: WalkTable, node: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
) -> Float[Tensor, "*q c k1 d"]:
    """Return rows P^0..P^k of each node strictly before each time, for every decay; zeros for node -1."""
    return reference.look_up_rows(table, node, time)


def decay_rows(
    table: WalkRows, node: Int64[Tensor, "*q"], last: Int64[Tensor, "*q"], age: Float64[Tensor, "*q"]
) -> Float[Tensor, "*q c k1 d"]:
    """Return P^0 of each node and the rows `last` decayed by `age`; zeros for row -1 and for node -1."""
    return reference.decay_rows(table, node, last, age)
