"""How often a pair is asked about as one that was not, by how often random destinations alone would; in closed form.

Who tells what happens, p(u, v), from what is asked beside it, q(u, v), learns log p(u, v) - log q(u, v): with random
destinations, q(u, v) = p(u) / m, that is log p(v | u) + log m, whom a source chooses; with other pairs something else,
how they are drawn among it. Where q is known, -log(q(u, v) / (p(u) / m)) added to each logit, in the loss of training
and nowhere else, leaves log p(v | u) + log m to be learned, whatever is asked beside (King and Zeng, "Logistic
Regression in Rare Events Data", 2001, have this of one constant). All of it at a moment: p(u) is who acts then.

Legend: k training events, t their instants, s their distinct pairs, n nodes, m destinations, c pairs present in cells
of events, p pairs asked.

What is asked beside each training event: pairs that were not, of one kind or another.

Evaluation asks about random, historical and inductive negatives; a model that is trained against random ones alone has
never had to tell who is active now. What is asked beside an event is one number per event and epoch, a function of
seed and epoch alone.

Legend: k training events, b of a batch, m destinations, s distinct pairs, c pairs present in cells of events.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventBatch, EventStore
from dygmamba.data.events.splits import Split
from dygmamba.sampling.decayed_counts import DecayedCountLists
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.source_activity import SourceActivity
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.activity import fit_activity

MIN_RELATIVE_RATE = (
    1e-6  # of the mean source's rate, which each has at least: who has never acted may act too
)
NO_DECAY_SCALE = 2.0**60  # periods: a scale of time on which nothing fades


@runtime_checkable
class SourceShares(Protocol):
    """Who acts: which share of the events of a moment each source has."""

    def of(self, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
        """Of these sources at these times."""
        ...


@dataclass(frozen=True, slots=True)
class ActivityShares:
    """A source's rate among the rates of all, as `tasks/activity.py` fits them; on the device, at training instants.

    Nothing is read back to the host, so a captured step can ask.
    """

    instant: Float64[Tensor, "t"]
    total: Float64[Tensor, "t"]  # of all sources
    scale: Float64[Tensor, "_"]
    weight: Float64[Tensor, "_"]  # of the count on each scale
    base: float
    lists: DecayedCountLists

    @staticmethod
    def fitted(
        senders: SourceActivity, src: Int64[Tensor, "k"], time: Float64[Tensor, "k"], device: torch.device
    ) -> "ActivityShares":
        """Of the training events, which are all that `senders` knows, in time order."""
        always, *weights, number = fit_activity(senders, src, time).weights
        instant, sources = torch.unique(time), len(src.unique())
        base = (always + MIN_RELATIVE_RATE * len(src) / sources) / senders.period
        per = torch.cat([senders.lists.scale, senders.lists.scale.new_tensor([senders.period])])
        weight = torch.tensor([*weights, number], dtype=torch.float64) / per
        scale = torch.cat([per[:-1], NO_DECAY_SCALE * per[-1:]])
        own, all_of_them = (
            DecayedCountLists.build(group, time, groups, scale, instant)
            for group, groups in ((src, len(senders.lists.start)), (torch.zeros_like(src), 1))
        )
        found = ActivityShares(instant, torch.ones_like(instant), scale, weight, sources * base, all_of_them)
        total = found.of(torch.zeros_like(instant).long(), instant)
        instant, total, scale, weight = (part.to(device) for part in (instant, total, scale, weight))
        return ActivityShares(instant, total, scale, weight, base, own.to(device))

    def of(self, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
        """Strictly before each time, which is one of the instants."""
        rank = torch.searchsorted(self.instant, time.contiguous())
        first = src * (len(self.instant) + 1)
        counts = self.lists.before(first, rank, time, self.scale).double()
        return (self.base + (counts * self.weight).sum(dim=-1)) / self.total[rank]


@dataclass(frozen=True, slots=True)
class PairPool:
    """What training pairs are drawn from: `tries` draws out of all that leave those of the event's own cell alone."""

    src: Int64[Tensor, "k"]
    pairs: Int64[Tensor, "s"]  # source * num_nodes + destination, sorted
    busy: Int64[Tensor, "c"]  # cell * s + pair
    num_nodes: int
    destinations: int
    cell: int
    tries: int


@dataclass(frozen=True, slots=True)
class SamplingOdds:
    """Of every pair of a training source and a training destination; on the device."""

    pairs: Int64[Tensor, "s"]
    drawn: Float64[
        Tensor, "s"
    ]  # how often each training pair is, by how often a random destination is one of them
    random: Float64[Tensor, "n"]  # the share of each source's questions that are random destinations
    num_nodes: int
    shares: SourceShares

    @staticmethod
    def of_both(pool: PairPool, shares: SourceShares, device: torch.device) -> "SamplingOdds":
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
        return SamplingOdds(pool.pairs.to(device), drawn, random.to(device), pool.num_nodes, shares)

    def log(
        self, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float32[Tensor, "p"]:
        """The log of the odds of these pairs."""
        key = src * self.num_nodes + dst
        place = torch.searchsorted(self.pairs, key).clamp(max=len(self.pairs) - 1)
        drawn = torch.where(self.pairs[place] == key, self.drawn[place], 0.0)
        return (self.random[src] + drawn / self.shares.of(src, time)).log().float()


TrainNegativesName = Literal["random", "historical", "mixed", "mixed-odds"]
WINDOW_EVENTS = 200  # events around a training event whose pairs are not asked about as ones that were not, as in evaluation
MAX_TRIES = 8


@runtime_checkable
class TrainingNegatives(Protocol):
    """A way to choose what is asked beside training events."""

    def others(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """A number for each training event that says what is asked beside it, the same on every device."""
        ...

    def questions(self, events: EventBatch, others: Int64[Tensor, "b"]) -> PairBatch:
        """Each event as a pair of label 1, then the pairs beside them with label 0."""
        ...

    def offset(self, pairs: PairBatch) -> Float32[Tensor, "p"] | None:
        """What is added to the logits of these questions where they are judged in training, and nowhere else."""
        ...


class NoOffset:
    """Questions that are judged by the logits themselves."""

    __slots__ = ()

    def offset(self, pairs: PairBatch) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class RandomDestinations(NoOffset):
    """The event's source with any training destination: the number is the destination."""

    events: int
    destinations: Int64[Tensor, "m"]  # on the device

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device) -> "RandomDestinations":
        """As published."""
        return RandomDestinations(len(split.train), torch.unique(store.dst[split.train]).to(device))

    def others(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """One random training destination per training event."""
        rng = torch.Generator().manual_seed((seed << 20) + epoch)
        draw = torch.randint(len(self.destinations), (self.events,), generator=rng)
        return self.destinations[draw.to(self.destinations.device)]

    def questions(self, events: EventBatch, others: Int64[Tensor, "b"]) -> PairBatch:
        """Both pairs of an event share the source's row."""
        b = others.shape[0]
        row = torch.arange(b, device=others.device)
        return PairBatch(
            node=torch.cat([events.src, events.dst, others]),
            when=events.time.repeat(3),
            src_row=torch.cat([row, row]),
            dst_row=torch.cat([row + b, row + 2 * b]),
            label=torch.cat([torch.ones_like(row), torch.zeros_like(row)]).float(),
            group=torch.cat([row, row]),
        )


@dataclass(frozen=True, slots=True)
class HistoricalPairs(NoOffset):
    """A pair of the training period that does not meet around the event, both ends replaced; the number is the pair.

    Drawn from the whole period, pairs that meet only later among them (`docs/beyond.md` has why). Where a few tries
    find none, the event's source with a random destination.
    """

    src: Int64[Tensor, "k"]
    pairs: Int64[Tensor, "s"]
    busy: Int64[Tensor, "c"]  # cell * s + pair, sorted
    num_nodes: int
    random: RandomDestinations  # on the host
    device: torch.device

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device) -> "HistoricalPairs":
        """Of the training events alone."""
        src, dst = store.src[split.train], store.dst[split.train]
        pairs, pair = torch.unique(src * store.num_nodes + dst, return_inverse=True)
        busy = torch.unique(torch.arange(len(src)) // WINDOW_EVENTS * len(pairs) + pair)
        random = RandomDestinations.of(store, split, torch.device("cpu"))
        return HistoricalPairs(src, pairs, busy, store.num_nodes, random, device)

    @property
    def pool(self) -> PairPool:
        """What is drawn from, and how."""
        known = (self.src, self.pairs, self.busy, self.num_nodes)
        return PairPool(
            *known, destinations=len(self.random.destinations), cell=WINDOW_EVENTS, tries=MAX_TRIES
        )

    def others(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """One pair per training event, each of the period's distinct pairs as likely."""
        rng = torch.Generator().manual_seed((seed << 20) + epoch + (1 << 19))
        cell = torch.arange(len(self.src)) // WINDOW_EVENTS * len(self.pairs)
        found = self.src * self.num_nodes + self.random.others(seed, epoch)
        wanted = torch.ones_like(found, dtype=torch.bool)
        for _ in range(MAX_TRIES):
            drawn = torch.randint(len(self.pairs), found.shape, generator=rng)
            fits = wanted & ~torch.isin(cell + drawn, self.busy)
            found = torch.where(fits, self.pairs[drawn], found)
            wanted &= ~fits
        return found.to(self.device)

    def questions(self, events: EventBatch, others: Int64[Tensor, "b"]) -> PairBatch:
        """Four rows for each event: its ends, and those of the other pair."""
        row = torch.arange(others.shape[0], device=others.device)
        src, dst = others // self.num_nodes, others % self.num_nodes
        return PairBatch.of(
            torch.cat([events.src, src]),
            torch.cat([events.dst, dst]),
            events.time.repeat(2),
            label=torch.cat([torch.ones_like(row), torch.zeros_like(row)]).float(),
            group=torch.cat([row, row]),
        )


@dataclass(frozen=True, slots=True)
class MixedNegatives(NoOffset):
    """Every other event against a random destination, the rest against a training pair; next epoch vice versa."""

    paired: HistoricalPairs

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device) -> "MixedNegatives":
        """Of both kinds."""
        return MixedNegatives(HistoricalPairs.of(store, split, device))

    def others(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """Pairs of one kind or the other; two epochs after one another have one of each for every event."""
        random = self.paired.src * self.paired.num_nodes + self.paired.random.others(seed, epoch)
        turn = (torch.arange(len(random)) + epoch) % 2 == 0
        return torch.where(
            turn.to(self.paired.device), random.to(self.paired.device), self.paired.others(seed, epoch)
        )

    def questions(self, events: EventBatch, others: Int64[Tensor, "b"]) -> PairBatch:
        """As of training pairs."""
        return self.paired.questions(events, others)


@dataclass(frozen=True, slots=True)
class MixedOddsNegatives:
    """The questions of `Mixed`, each judged from minus the log of how often it is asked.

    So what is learned is whom a source chooses, as against random destinations alone (`tasks/training_negatives.py`).
    """

    mixed: MixedNegatives
    odds: SamplingOdds

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device) -> "MixedOddsNegatives":
        """Of both kinds."""
        mixed = MixedNegatives.of(store, split, device)
        turns = ActivityShares.fitted(
            SourceActivity.of(store, split.train), mixed.paired.src, store.time[split.train], device
        )
        return MixedOddsNegatives(mixed, SamplingOdds.of_both(mixed.paired.pool, turns, device))

    def others(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """The same pairs."""
        return self.mixed.others(seed, epoch)

    def questions(self, events: EventBatch, others: Int64[Tensor, "b"]) -> PairBatch:
        """The same questions."""
        return self.mixed.questions(events, others)

    def offset(self, pairs: PairBatch) -> Float32[Tensor, "p"]:
        """Of each question alone, so the same in any batch, part and process."""
        return -self.odds.log(pairs.src, pairs.dst, pairs.time)


@dataclass(frozen=True, slots=True)
class CandidateDestinations(NoOffset):
    """The event's source with several training destinations, none of them its own; the number is a key to their draws.

    They are drawn with replacement, as a function of seed, epoch and event; an epoch of many candidates is held in as
    little as one of one.
    """

    events: int
    destinations: Int64[Tensor, "m"]  # on the device, sorted
    count: int
    draws: Draws

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device, count: int) -> "CandidateDestinations":
        """So many beside each training event."""
        destinations = torch.unique(store.dst[split.train]).to(device)
        if len(destinations) < 2:
            raise EventError("training has one destination; there is nothing to rank it among")
        return CandidateDestinations(len(split.train), destinations, count, Draws.of(0, device=device))

    def others(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """One key per training event."""
        rng = torch.Generator().manual_seed((seed << 20) + epoch)
        return torch.randint(1 << 62, (self.events,), generator=rng).to(self.destinations.device)

    def questions(self, events: EventBatch, others: Int64[Tensor, "b"]) -> PairBatch:
        """All pairs of an event share the source's row; first the events, then a candidate of each, then another."""
        b, c = others.shape[0], self.count
        place = (
            self.draws.uniform(others, events.time, 0, c).T * (len(self.destinations) - 1)
        ).long()  # [c b]
        own = torch.searchsorted(self.destinations, events.dst)
        node = self.destinations[place + (place >= own)]
        row = torch.arange(b, device=others.device)
        every = torch.arange((1 + c) * b, device=others.device)
        return PairBatch(
            node=torch.cat([events.src, events.dst, node.flatten()]),
            when=events.time.repeat(2 + c),
            src_row=row.repeat(1 + c),
            dst_row=every + b,
            label=(every < b).float(),
            group=row.repeat(1 + c),
        )


TRAINING_NEGATIVES: dict[
    TrainNegativesName,
    type[RandomDestinations] | type[HistoricalPairs] | type[MixedNegatives] | type[MixedOddsNegatives],
] = {
    "random": RandomDestinations,
    "historical": HistoricalPairs,
    "mixed": MixedNegatives,
    "mixed-odds": MixedOddsNegatives,
}
