"""Recent popularity of destinations: their shares in the decayed number of earlier events.

At a time t each earlier event weighs exp(-age / scale). A destination has the share

    q(v, t) = (1 - UNIFORM_SHARE) * n(v, t) / n(t) + UNIFORM_SHARE / m,

where n(v, t) is the weight of the events that v received strictly before t, n(t) that of all of them, and m the number
of destinations; it is 1 / m before the first event. A sample is the destination of an earlier event drawn by weight, or
any destination. All weights are kept as logarithms, so that nothing underflows between the snapshots of a stream, and
nothing is read back to the host, so a CUDA graph can capture both look-ups.

Legend: k events, t instants, m destinations, p pairs.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.history.device_lists import SortedLists

UNIFORM_SHARE = 0.5
SCALES = tuple(4.0**-power for power in range(7))  # candidates for the time scale, in training periods


@dataclass(frozen=True, slots=True)
class DestinationPopularity:
    """Shares of destinations before any time that is one of the events' own."""

    destinations: Int64[Tensor, "m"]  # sorted
    instant: Float64[Tensor, "t"]  # distinct times of the events, sorted
    earlier: Int64[Tensor, "t"]  # number of events strictly before each instant
    dst: Int64[Tensor, "k"]  # destination of each event
    log_total: Float64[
        Tensor, "k"
    ]  # log of the summed weights exp((time - first time) / scale) up to each event
    lists: SortedLists  # by destination
    scale: float

    @staticmethod
    def build(
        dst: Int64[Tensor, "k"], time: Float64[Tensor, "k"], scale: float, device: torch.device
    ) -> "DestinationPopularity":
        """Count events in time order, with a given time scale."""
        destinations, group = torch.unique(dst, return_inverse=True)
        instant, size = torch.unique_consecutive(time, return_counts=True)
        lists = SortedLists.count_events(group, time, torch.tensor([scale]).double())
        return DestinationPopularity(
            destinations.to(device),
            instant.to(device),
            (size.cumsum(0) - size).to(device),
            dst.to(device),
            ((time - instant[0]) / scale).logcumsumexp(0).to(device),
            lists.to(device),
            scale,
        )

    @staticmethod
    def fit(
        dst: Int64[Tensor, "k"], time: Float64[Tensor, "k"], device: torch.device
    ) -> "DestinationPopularity":
        """Count events with the time scale under which their own destinations are the likeliest."""
        period = float(time[-1] - time[0]) or 1.0
        cpu = torch.device("cpu")
        choices = [DestinationPopularity.build(dst, time, share * period, cpu) for share in SCALES]
        best = max(choices, key=lambda choice: float(choice.log_odds(dst, time).sum()))
        return DestinationPopularity.build(dst, time, best.scale, device)

    def log_odds(self, dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
        """Return log(m q(v, t)): how much likelier each destination is sampled than by equal chances."""
        last, known = self.lists.find_last(torch.searchsorted(self.destinations, dst), time)
        own = self.lists.read("running", last)[:, 0].double().log()
        own = own - (time - self.lists.read("time", last)) / self.scale
        count = self.earlier[torch.searchsorted(self.instant, time.contiguous())]
        total = self.log_total[(count - 1).clamp(min=0)] - (time - self.instant[0]) / self.scale
        share = torch.where(known, (own - total).exp(), 0.0)
        odds = UNIFORM_SHARE + (1 - UNIFORM_SHARE) * len(self.destinations) * share
        return torch.where(count > 0, odds, 1.0).log()

    def sample(self, chance: Float64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        """Return the destinations that numbers in [0, 1) select at these times."""
        count = self.earlier[torch.searchsorted(self.instant, time.contiguous())]
        is_uniform = (chance < UNIFORM_SHARE) | (count == 0)
        # the number that decided is used again, stretched to [0, 1)
        rest = torch.where(
            chance < UNIFORM_SHARE, chance / UNIFORM_SHARE, (chance - UNIFORM_SHARE) / (1 - UNIFORM_SHARE)
        )
        equal = torch.where(count == 0, chance, rest)
        uniform = self.destinations[(equal * len(self.destinations)).long()]
        end = self.log_total[(count - 1).clamp(min=0)]
        drawn = torch.searchsorted(self.log_total, end + (1 - rest).log())
        return torch.where(is_uniform, uniform, self.dst[torch.minimum(drawn, (count - 1).clamp(min=0))])
