"""Features of a pair from the sequence of its source: what follows the source's last destinations, and how soon.

Only events strictly earlier than the query are counted: every look-up takes the query time.

Legend: e events, p pairs, l lags, s scales, f features per pair.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.core.memory_budget import require_memory
from dygmamba.ops.transitions import MAX_LAGS, Transitions, last_ages, last_destinations
from dygmamba.sampling.counts import scale_label
from dygmamba.sampling.table_request import TableRequest

AGES = 6  # last events of the source whose ages are features
BYTES_PER_EVENT, BYTES_PER_LAG = (
    150,
    80,
)  # of a table, where no pair of destinations repeats, beside its counts
LEAST_COUNT, LEAST_TOTAL = (
    1e-3,
    1e-2,
)  # added to a count and to its total, so that the share of a new pair is finite


@dataclass(frozen=True, slots=True)
class TransitionScales(TableRequest):
    """Base class of requests for transitions.

    Attributes:
        scales: Time scales of the decay exp(-age / scale).
        lags: Largest number of events from the first node of a transition to the second one.
    """

    scales: tuple[float, ...]
    lags: int = 3

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0 or not 0 < self.lags <= MAX_LAGS:
            raise ConfigError(
                f"a transition request needs time scales above 0 and 1 to {MAX_LAGS} lags; got "
                f"scales={self.scales}, lags={self.lags}",
                code="invalid-request",
            )


@dataclass(frozen=True, slots=True)
class TransitionRequest(TransitionScales):
    """Request for transition features of each pair; `lags` last destinations of the source are looked at."""

    @property
    def tokens(self) -> int:
        """Cost of one query in tokens of a sequence."""
        return 1

    @property
    def width(self) -> int:
        """Number of features per pair."""
        return len(self.names)

    @property
    def names(self) -> list[str]:
        """Description of each feature, in the order of the columns.

        A checkpoint of boosted trees holds a checksum of these names: rewording one makes old runs unreadable.
        """
        decayed = [
            text.format(_ordinal(lag), "" if lag == 1 else f" {lag} events later")
            for text in (
                "how often the destination followed the source's {} destination{}",
                "share of the events after the source's {} destination{} that were on the destination",
            )
            for lag in range(1, self.lags + 1)
        ]
        decayed.append(
            f"how often the destination was visited near the source's last {self.lags} destinations"
        )
        return [
            *(f"{name}, {scale_label(scale)}" for name in decayed for scale in self.scales),
            *(
                f"time since the source's {_ordinal(number)} event as a sender"
                for number in range(1, AGES + 1)
            ),
            "number of events of the source since its last one on the destination",
        ]


def _ordinal(number: int) -> str:
    return {1: "last", 2: "second last", 3: "third last"}.get(number, f"{number}th last")


@dataclass(frozen=True, slots=True)
class TransitionTable:
    """Transitions over the events of a stream (or over its training events); tensors are on the CPU."""

    transitions: Transitions = field(repr=False)
    shortest: float  # time scale

    @staticmethod
    def build(
        src: Int64[Tensor, "e"],
        dst: Int64[Tensor, "e"],
        time: Float64[Tensor, "e"],
        num_nodes: int,
        request: TransitionRequest,
    ) -> "TransitionTable":
        """Count the transitions of events in time order; raise MemoryBudgetError if they do not fit into memory."""
        size = len(src) * (BYTES_PER_EVENT + request.lags * (BYTES_PER_LAG + 16 * len(request.scales)))
        require_memory(size, f"the table of transitions of {len(src):,} events (none with `transitions=0`)")
        scale = torch.tensor(request.scales, dtype=torch.float64)
        return TransitionTable(
            Transitions(src, dst, time, num_nodes, request.lags, scale), min(request.scales)
        )

    def compute_features(
        self, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float32[Tensor, "p f"]:
        """Return all features of each pair, in the order of `TransitionRequest.names`."""
        table = self.transitions
        origin = last_destinations(table.histories, src, time)
        followed, left = table.counts(origin, dst, time), table.totals(origin, time)
        share = torch.log((followed + LEAST_COUNT) / (left + LEAST_TOTAL))
        near = torch.log1p(table.covisits(origin, dst, time))
        age = last_ages(table.histories, src, time, AGES)
        age = torch.where(age < 0, -1.0, torch.log1p(age.clamp(min=0) / self.shortest))
        since = table.events_since_met(src, dst, time).double()
        since = torch.where(since < 0, -1.0, torch.log1p(since.clamp(min=0)))
        parts = [torch.log1p(followed).flatten(1), share.flatten(1), near, age, since[:, None]]
        return torch.cat(parts, dim=1).float()
