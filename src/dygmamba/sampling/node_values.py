"""Features of a query from the values of its nodes' earlier events: new partners, and means of edge features.

Only events strictly earlier than the query are counted: every look-up takes the query time. A node may appear as a
source ("sent") and as a destination ("received"); a query looks at what its source sent, at what its source received
and at what its destination received.

Legend: e events, p pairs, s scales, v values per event, f features per pair.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.core.memory_budget import require_memory
from dygmamba.ops.decayed_sums import DecayedSums, build_decayed_sums, look_up_before
from dygmamba.sampling.counts import scale_label
from dygmamba.sampling.table_request import TableRequest

SIDES = ("the source sent", "the source received", "the destination received")
LEAST_COUNT = 1e-9  # a decayed count below this is that of no event


@dataclass(frozen=True, slots=True)
class NodeValueRequest(TableRequest):
    """Request for features of each query from the values of its nodes' earlier events.

    Attributes:
        scales: Time scales of the decay exp(-age / scale).
        columns: Columns of the edge features that are values.
    """

    scales: tuple[float, ...]
    columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0 or min(self.columns, default=0) < 0:
            raise ConfigError(
                "a request for node values needs time scales above 0 and columns of at least 0; got "
                f"scales={self.scales}, columns={self.columns}",
                code="invalid-request",
            )

    @property
    def tokens(self) -> int:
        """Cost of one query in tokens of a sequence."""
        return 1

    def make_scale(self) -> Float64[Tensor, "s"]:
        """Return all scales of the sums: on the last one nothing decays, so its sums are numbers of events."""
        return torch.tensor([*self.scales, torch.finfo(torch.float64).max], dtype=torch.float64)

    @property
    def names(self) -> list[str]:
        """Description of each feature, in the order of the columns.

        A checkpoint of boosted trees holds a checksum of these names: rewording one makes old runs unreadable.
        """
        return [name for side in SIDES for name in self._names_of(side)]

    def _names_of(self, side: str) -> list[str]:
        means = [f"mean of value {column} of the events {side}" for column in self.columns]
        return [
            *(f"new partners in the events {side}, {scale_label(scale)}" for scale in self.scales),
            *(f"{mean}, {scale_label(scale)}" for scale in self.scales for mean in means),
            *(f"value {column} of the last event {side}" for column in self.columns),
            f"number of partners in the events {side}",
        ]


@dataclass(frozen=True, slots=True)
class NodeValueTable:
    """Decayed sums of event values by source and by destination, over a stream (or its training events)."""

    sent: DecayedSums = field(repr=False)
    received: DecayedSums = field(repr=False)

    @staticmethod
    def build(
        src: Int64[Tensor, "e"],
        dst: Int64[Tensor, "e"],
        time: Float64[Tensor, "e"],
        value: Float32[Tensor, "e v"],
        num_nodes: int,
        request: NodeValueRequest,
    ) -> "NodeValueTable":
        """Sum events in time order; raise MemoryBudgetError if the sums do not fit into memory."""
        scale = request.make_scale()
        width = 2 + value.shape[1]
        require_memory(
            2 * len(src) * width * 8 * (len(scale) + 1),
            f"the sums of event values of {len(src):,} events (fewer with a smaller `values`)",
        )
        x = stack_values(is_first_meeting(src * num_nodes + dst), value)
        return NodeValueTable(*(build_decayed_sums(group, time, x, num_nodes, scale) for group in (src, dst)))

    def compute_features(
        self, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float32[Tensor, "p f"]:
        """Return all features of each pair, in the order of `NodeValueRequest.names`."""
        sides = ((self.sent, src), (self.received, src), (self.received, dst))
        return torch.cat([compute_side(lists, node, time) for lists, node in sides], dim=1)


def stack_values(first: Bool[Tensor, "e"], value: Float32[Tensor, "e v"]) -> Float64[Tensor, "e _"]:
    """Return what is summed up for each event: 1, whether the pair meets for the first time, and its values."""
    return torch.cat([torch.ones(len(value), 1), first.float()[:, None], value], dim=1).double()


def compute_side(
    lists: DecayedSums, node: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
) -> Float32[Tensor, "p _"]:
    """Return the features of one side: its node's group in `lists`, -1 without events."""
    running, decay, last = look_up_before(lists, node, time)
    sums = running * decay[..., None]
    count, partners, values = sums[..., :1], sums[..., 1], sums[..., 2:]
    mean = torch.where(count > LEAST_COUNT, values / count.clamp(min=LEAST_COUNT), 0.0)
    parts = [
        torch.log1p(partners[:, :-1]),
        mean[:, :-1].flatten(1),
        last[:, 2:],
        torch.log1p(partners[:, -1:]),
    ]
    return torch.cat(parts, dim=1).float()


def is_first_meeting(key: Int64[Tensor, "e"]) -> Tensor:
    """Return which events are the first of their key, in time order."""
    order = torch.argsort(key, stable=True)
    ordered = key[order]
    first = torch.ones(len(key), dtype=torch.bool)
    first[order[1:]] = ordered[1:] != ordered[:-1]
    return first
