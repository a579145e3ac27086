"""Most of the numbers that boosted trees read of a pair, on the model's device, as one input of the link head.

Counts by role, numbers of events and ages of the last ones, transitions and numeric columns are over the whole history,
meetings with the neighbors of the other end over the entries of the sequences, all strictly before the query. Trees
look at more neighbors, weight each by its age, and also read the ages of the source's last six events. The numbers are
standardised with statistics of training queries, which are fitted once, before the first step: a score depends on no
other query.

Legend: p pairs, l tokens, s time scales, n numbers of a pair, o columns of the output.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor, nn

from dygmamba.history.decayed_counts import DecayedCountTable, Role
from dygmamba.history.view import NeighborSequence, PairView
from dygmamba.nn.history_features import (
    HistoryConfig,
    PairDecayedCounts,
    PairTransitions,
    PairWalks,
    count_transitions,
)
from dygmamba.nn.initialization import two_layers

HIDDEN, OUT = 256, 128  # columns of the perceptron and of its output
LARGEST = 8.0  # deviations; numbers of later periods may lie far outside of those of training
LARGEST_NUMBER = torch.finfo(torch.float32).max  # differences of extreme columns may be infinite in 32 bits
# of a number that is constant in training but for rounding, in units of its column
LEAST_DEVIATION = 1e-3
MEETINGS = 3  # numbers on each scale about the neighbors of one end
NO_AGE = -1.0  # of a pair or a node without an event

# Role of the events that are counted, whether the first node is the source, and whether numbers and ages are read too.
ROLES: tuple[tuple[Role, bool, bool], ...] = (
    ("node", True, True),
    ("node", False, True),
    ("pair", True, True),
    ("sent", True, True),
    ("received", False, True),
    ("directed_pair", True, False),
)


class Standardizer(nn.Module):
    """Numbers in deviations from the mean of training queries, at most `LARGEST`.

    Mean and deviation are 0 and 1 until they are fitted.
    """

    mean: Tensor
    deviation: Tensor
    fitted: Tensor

    def __init__(self, least: list[float]) -> None:
        super().__init__()
        # smallest deviation of each number; a column may have one that is 0 in 32 bits
        self.least = [max(number, torch.finfo(torch.float32).tiny) for number in least]
        self.register_buffer("mean", torch.zeros(len(least)))
        self.register_buffer("deviation", torch.ones(len(least)))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    def fit(self, numbers: Float32[Tensor, "p n"]) -> None:
        """Fit mean and deviation to the numbers of training queries."""
        wide = numbers.clamp(-LARGEST_NUMBER, LARGEST_NUMBER).double()
        self.mean.copy_(wide.mean(dim=0))
        self.deviation.copy_(wide.std(dim=0, correction=0).clamp(min=wide.new_tensor(self.least)))
        self.fitted.fill_(True)

    def forward(self, numbers: Float32[Tensor, "p n"]) -> Float32[Tensor, "p n"]:
        return ((numbers - self.mean) / self.deviation).clamp(-LARGEST, LARGEST)


class PairHistory(nn.Module):
    """A perceptron on what the whole history says about a pair."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.config, self.requests = config, (config.recent, config.counts, config.transitions)
        self.shortest, self.out_dim = min(config.counts.scales), OUT
        scales, ages = len(config.counts.scales), sum(with_age for _, _, with_age in ROLES)
        width = len(ROLES) * scales + 2 * ages + 2 * MEETINGS * scales
        width += config.transitions.width + config.transitions.association_width
        least = [LEAST_DEVIATION] * width
        if config.columns is not None:
            self.requests = (*self.requests, config.columns)
            least += [LEAST_DEVIATION * unit.deviation for unit in config.columns.columns.units]
        self.standardise, width = Standardizer(least), len(least)
        self.layers = two_layers(width, HIDDEN, OUT, config.dropout)

    @property
    def is_fitted(self) -> bool:
        return bool(self.standardise.fitted)

    def fit_inputs(self, views: Iterable[PairView]) -> None:
        """Fit the statistics of the numbers to training queries."""
        with torch.no_grad():
            self.standardise.fit(torch.cat([self.read(view) for view in views]))

    def forward(self, view: PairView) -> Float[Tensor, "p o"]:
        with torch.no_grad():
            numbers = self.standardise(self.read(view))
        return self.layers(numbers)

    def read(self, view: PairView) -> Float32[Tensor, "p n"]:
        """Return all numbers of each pair, not standardised."""
        config, pairs = self.config, view.pairs
        counts, (recent,) = view[config.counts], view[config.recent]
        src, dst, time = pairs.src, pairs.dst, pairs.table_time
        parts = self._count_roles(counts, src, dst, time)
        for row, other in ((pairs.src_row, dst), (pairs.dst_row, src)):
            parts += count_meetings(counts, recent[row], other, time)
        transitions = view[config.transitions]
        parts.append(count_transitions(transitions, src, dst, time))
        if config.transitions.window:
            parts.append(transitions.compute_associations(src, dst, time))
        if config.columns is not None:
            parts.append(view[config.columns].compute_features(src, dst, time))
        return torch.cat(parts, dim=1)

    def _count_roles(
        self,
        counts: DecayedCountTable,
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
    ) -> list[Tensor]:
        parts = []
        for role, from_source, with_age in ROLES:
            count, number, age = counts.of_role(role, *((src, dst) if from_source else (dst, src)), time)
            parts.append(torch.log1p(count))
            if with_age:
                age = torch.where(age < 0, NO_AGE, torch.log1p(age.clamp(min=0) / self.shortest))
                parts.append(torch.stack([torch.log1p(number.double()), age], dim=1).float())
        return parts


def count_meetings(
    counts: DecayedCountTable, recent: NeighborSequence, other: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
) -> list[Float32[Tensor, "p s"]]:
    """Return how often the other end met the recent neighbors of one end, and how active these are.

    The sum and the largest of their decayed counts with the other end, and the mean of log(1 + own count). Zero without
    neighbors.
    """
    mask: Bool[Tensor, "p l"] = recent.mask
    node = torch.where(mask, recent.node.long(), -1)
    when, others = (column[:, None].expand(node.shape) for column in (time, other))
    met = counts.of_pair(node, others, when)  # [p l s], 0 at padding
    active = torch.log1p(counts.of_node(node, when)).sum(dim=1) / recent.length.clamp(min=1)[:, None]
    largest = torch.zeros_like(active) if not node.shape[1] else met.amax(dim=1)
    return [torch.log1p(met.sum(dim=1)), torch.log1p(largest), active]


# Features of pairs for the link head.
PAIR_FEATURES: dict[
    str, type[PairDecayedCounts] | type[PairWalks] | type[PairTransitions] | type[PairHistory]
] = {
    "decayed-pair": PairDecayedCounts,
    "walks": PairWalks,
    "transitions": PairTransitions,
    "history": PairHistory,
}
