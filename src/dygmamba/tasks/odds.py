"""How often a pair is asked about as one that was not, by how often random destinations alone would; in closed form.

Who tells what happens, p(u, v), from what is asked beside it, q(u, v), learns log p(u, v) - log q(u, v): with random
destinations, q(u, v) = p(u) / m, that is log p(v | u) + log m, whom a source chooses; with other pairs something else,
how they are drawn among it. Where q is known, -log(q(u, v) / (p(u) / m)) added to each logit, in the loss of training
and nowhere else, leaves log p(v | u) + log m to be learned, whatever is asked beside (King and Zeng, "Logistic
Regression in Rare Events Data", 2001, have this of one constant). All of it at a moment: p(u) is who acts then.

Legend: k training events, t their instants, s their distinct pairs, n nodes, m destinations, c pairs present in cells
of events, p pairs asked.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.sampling.fades import Lists
from dygmamba.sampling.senders import Senders
from dygmamba.tasks.activity import fit_activity

STRANGER = 1e-6  # of the mean source's rate, which each has at least: who has never acted may act too
ALWAYS = 2.0**60  # periods: a scale of time on which nothing fades


@runtime_checkable
class Shares(Protocol):
    """Who acts: which share of the events of a moment each source has."""

    def of(self, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
        """Of these sources at these times."""
        ...


@dataclass(frozen=True, slots=True)
class Turns:
    """A source's rate among the rates of all, as `tasks/activity.py` fits them; on the device, at training instants.

    Nothing is read back to the host, so a captured step can ask.
    """

    instant: Float64[Tensor, "t"]
    total: Float64[Tensor, "t"]  # of all sources
    scale: Float64[Tensor, "_"]
    weight: Float64[Tensor, "_"]  # of the count on each scale
    base: float
    lists: Lists

    @staticmethod
    def fitted(
        senders: Senders, src: Int64[Tensor, "k"], time: Float64[Tensor, "k"], device: torch.device
    ) -> "Turns":
        """Of the training events, which are all that `senders` knows, in time order."""
        always, *weights, number = fit_activity(senders, src, time).weights
        instant, sources = torch.unique(time), len(src.unique())
        base = (always + STRANGER * len(src) / sources) / senders.period
        per = torch.cat([senders.lists.scale, senders.lists.scale.new_tensor([senders.period])])
        weight = torch.tensor([*weights, number], dtype=torch.float64) / per
        scale = torch.cat([per[:-1], ALWAYS * per[-1:]])
        own, all_of_them = (
            Lists.build(group, time, groups, scale, instant)
            for group, groups in ((src, len(senders.lists.start)), (torch.zeros_like(src), 1))
        )
        found = Turns(instant, torch.ones_like(instant), scale, weight, sources * base, all_of_them)
        total = found.of(torch.zeros_like(instant).long(), instant)
        instant, total, scale, weight = (part.to(device) for part in (instant, total, scale, weight))
        return Turns(instant, total, scale, weight, base, own.to(device))

    def of(self, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
        """Strictly before each time, which is one of the instants."""
        rank = torch.searchsorted(self.instant, time.contiguous())
        first = src * (len(self.instant) + 1)
        counts = self.lists.before(first, rank, time, self.scale).double()
        return (self.base + (counts * self.weight).sum(dim=-1)) / self.total[rank]


@dataclass(frozen=True, slots=True)
class Pool:
    """What training pairs are drawn from: `tries` draws out of all that leave those of the event's own cell alone."""

    src: Int64[Tensor, "k"]
    pairs: Int64[Tensor, "s"]  # source * num_nodes + destination, sorted
    busy: Int64[Tensor, "c"]  # cell * s + pair
    num_nodes: int
    destinations: int
    cell: int
    tries: int


@dataclass(frozen=True, slots=True)
class Odds:
    """Of every pair of a training source and a training destination; on the device."""

    pairs: Int64[Tensor, "s"]
    drawn: Float64[
        Tensor, "s"
    ]  # how often each training pair is, by how often a random destination is one of them
    random: Float64[Tensor, "n"]  # the share of each source's questions that are random destinations
    num_nodes: int
    shares: Shares

    @staticmethod
    def of_both(pool: Pool, shares: Shares, device: torch.device) -> "Odds":
        """Of random destinations and training pairs in turn, half of the questions each."""
        s, k, cell = len(pool.pairs), len(pool.src), torch.arange(len(pool.src)) // pool.cell
        events = torch.bincount(cell).double()
        taken = torch.bincount(pool.busy // s, minlength=len(events)).double() / s
        idle = (
            events * sum(taken**tries for tries in range(pool.tries)) / s
        )  # a pair that does not meet there
        busy = torch.zeros(s, dtype=torch.float64).index_add_(0, pool.busy % s, idle[pool.busy // s])
        drawn = (idle.sum() - busy).clamp(min=0) / k
        acts = torch.bincount(pool.src, minlength=pool.num_nodes).clamp(min=1)
        failed = torch.bincount(pool.src, (taken**pool.tries)[cell], minlength=pool.num_nodes)
        random = (1 + failed / acts) / 2  # where no pair was found, a random destination is asked about
        drawn = (drawn / 2 * pool.destinations).to(device)
        return Odds(pool.pairs.to(device), drawn, random.to(device), pool.num_nodes, shares)

    def log(
        self, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float32[Tensor, "p"]:
        """The log of the odds of these pairs."""
        key = src * self.num_nodes + dst
        place = torch.searchsorted(self.pairs, key).clamp(max=len(self.pairs) - 1)
        drawn = torch.where(self.pairs[place] == key, self.drawn[place], 0.0)
        return (self.random[src] + drawn / self.shares.of(src, time)).log().float()
