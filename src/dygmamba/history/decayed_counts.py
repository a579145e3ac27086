"""Exact decayed counts of any node and of any pair, looked up on the model's device.

Legend: s scales, q queries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.history.block_lists import EventRows, directed_key, pair_key
from dygmamba.history.counts import COUNT_KINDS, EventCounts, create_lists
from dygmamba.history.device_lists import BlockLookup, Lookup, SortedLists, count_before
from dygmamba.history.table_request import TableRequest


@dataclass(frozen=True, slots=True)
class DecayedCountLookup(TableRequest):
    """Request for a table of decayed counts on these time scales, in which any node can be looked up.

    Attributes:
        scales: Time scales of the decay exp(-age / scale).
        directed: Whether events are also counted by role: sent, received, and from one node to another.
    """

    on_host: ClassVar[bool] = False  # the table is on the device of the stream
    scales: tuple[float, ...]
    directed: bool = False

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise ConfigError(
                f"a decayed-count request needs time scales above 0; got scales={self.scales}",
                code="invalid-request",
            )

    def prepare(self, index: Any) -> Any:
        if index.is_growing:
            return DecayedCountTable.from_counts(index.counts(self.scales))
        return index.move_once(self, lambda: DecayedCountTable.build(index.list_rows(), self))


# Roles in which events of a pair (a, b) are counted: those of a, those between the two, those that a sent, those that a
# received, and those from a to b.
Role = Literal["node", "pair", "sent", "received", "directed_pair"]


@dataclass(frozen=True, slots=True)
class DecayedCountTable:
    """Decayed counts of any node and any pair by role; only events strictly before each time count."""

    lists: Mapping[str, Lookup]

    @staticmethod
    def build(rows: EventRows, request: DecayedCountLookup) -> "DecayedCountTable":
        """Count events in time order, to be looked up on any device."""
        instant, lists = torch.from_numpy(np.unique(rows.time)), {}
        for role in (
            COUNT_KINDS if request.directed else ("node", "pair")
        ):  # one after the other, to save memory
            counts = EventCounts(request.scales, {role: create_lists(role, np.array(request.scales))})
            counts.append_rows(rows)
            lists[role] = SortedLists.from_blocks(counts.groups[role], instant)
        return DecayedCountTable(lists)

    @staticmethod
    def from_counts(counts: EventCounts) -> "DecayedCountTable":
        """Look up in counts on the host, which events are appended to."""
        return DecayedCountTable({role: BlockLookup(lists) for role, lists in counts.groups.items()})

    def to(self, device: torch.device | str) -> "DecayedCountTable":
        return DecayedCountTable(
            {role: lists.to(device) for role, lists in self.lists.items() if isinstance(lists, SortedLists)}
        )

    def of_node(self, node: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of each node's events strictly before each time; zeros for node -1."""
        return count_before(self.lists["node"], node.long(), time)[0]

    def of_pair(
        self, a: Int[Tensor, "*q"], b: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of events between two nodes strictly before each time; zeros if one is -1."""
        return count_before(self.lists["pair"], pair_key(a.long(), b.long(), torch), time)[0]

    def of_role(
        self, role: Role, a: Int64[Tensor, "q"], b: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
    ) -> tuple[Float32[Tensor, "q s"], Int64[Tensor, "q"], Float64[Tensor, "q"]]:
        """Return the decayed count of the events in a role, their number and the age of the latest one.

        The age is -1 if there is none. Sent, received and directed events need a request with `directed`.
        """
        keys = {"pair": pair_key(a, b, torch), "directed_pair": directed_key(a, b)}
        return count_before(self.lists[role], keys.get(role, a), time)
