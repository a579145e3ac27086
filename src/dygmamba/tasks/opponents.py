"""What is asked beside each training event: pairs that were not, of one kind or another.

Evaluation asks about random, historical and inductive negatives; a model that is trained against random ones alone has
never had to tell who is active now. What is asked beside an event is one number per event and epoch, a function of
seed and epoch alone.

Legend: k training events, b of a batch, m destinations, s distinct pairs, c pairs present in cells of events.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dygmamba.data.events import EventBatch, EventStore
from dygmamba.data.splits import Split
from dygmamba.errors import EventError
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.senders import Senders
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.odds import Odds, Pool, Turns

TrainNegatives = Literal["random", "historical", "mixed", "mixed-odds"]
CELL = 200  # events around a training event whose pairs are not asked about as ones that were not, as in evaluation
TRIES = 8


@runtime_checkable
class Opponents(Protocol):
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


class AsTheyAre:
    """Questions that are judged by the logits themselves."""

    __slots__ = ()

    def offset(self, pairs: PairBatch) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class RandomDestinations(AsTheyAre):
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
class TrainingPairs(AsTheyAre):
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
    def of(store: EventStore, split: Split, device: torch.device) -> "TrainingPairs":
        """Of the training events alone."""
        src, dst = store.src[split.train], store.dst[split.train]
        pairs, pair = torch.unique(src * store.num_nodes + dst, return_inverse=True)
        busy = torch.unique(torch.arange(len(src)) // CELL * len(pairs) + pair)
        random = RandomDestinations.of(store, split, torch.device("cpu"))
        return TrainingPairs(src, pairs, busy, store.num_nodes, random, device)

    @property
    def pool(self) -> Pool:
        """What is drawn from, and how."""
        known = (self.src, self.pairs, self.busy, self.num_nodes)
        return Pool(*known, destinations=len(self.random.destinations), cell=CELL, tries=TRIES)

    def others(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """One pair per training event, each of the period's distinct pairs as likely."""
        rng = torch.Generator().manual_seed((seed << 20) + epoch + (1 << 19))
        cell = torch.arange(len(self.src)) // CELL * len(self.pairs)
        found = self.src * self.num_nodes + self.random.others(seed, epoch)
        wanted = torch.ones_like(found, dtype=torch.bool)
        for _ in range(TRIES):
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
class Mixed(AsTheyAre):
    """Every other event against a random destination, the rest against a training pair; next epoch vice versa."""

    paired: TrainingPairs

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device) -> "Mixed":
        """Of both kinds."""
        return Mixed(TrainingPairs.of(store, split, device))

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
class MixedOdds:
    """The questions of `Mixed`, each judged from minus the log of how often it is asked.

    So what is learned is whom a source chooses, as against random destinations alone (`tasks/odds.py`).
    """

    mixed: Mixed
    odds: Odds

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device) -> "MixedOdds":
        """Of both kinds."""
        mixed = Mixed.of(store, split, device)
        turns = Turns.fitted(
            Senders.of(store, split.train), mixed.paired.src, store.time[split.train], device
        )
        return MixedOdds(mixed, Odds.of_both(mixed.paired.pool, turns, device))

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
class ManyDestinations(AsTheyAre):
    """The event's source with several training destinations, none of them its own; the number is a key to their draws.

    They are drawn with replacement, as a function of seed, epoch and event; an epoch of many candidates is held in as
    little as one of one.
    """

    events: int
    destinations: Int64[Tensor, "m"]  # on the device, sorted
    count: int
    draws: Draws

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device, count: int) -> "ManyDestinations":
        """So many beside each training event."""
        destinations = torch.unique(store.dst[split.train]).to(device)
        if len(destinations) < 2:
            raise EventError("training has one destination; there is nothing to rank it among")
        return ManyDestinations(len(split.train), destinations, count, Draws.of(0, device=device))

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


OPPONENTS: dict[
    TrainNegatives, type[RandomDestinations] | type[TrainingPairs] | type[Mixed] | type[MixedOdds]
] = {
    "random": RandomDestinations,
    "historical": TrainingPairs,
    "mixed": Mixed,
    "mixed-odds": MixedOdds,
}
