"""Training negatives: the pairs that are scored with each training event.

Evaluation uses random, historical and inductive negatives. A model trained against random destinations alone never has
to tell which sources are active; historical and mixed negatives teach that. What is sampled for an event is one number
per event and epoch, a function of (seed, epoch) alone (`draw_negatives`); `build_queries` returns each event as a pair
of label 1, then its negatives with label 0.

Legend: k training events, b events of a batch, s distinct training pairs, m destinations, c (window, pair)
combinations that occur.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventBatch, EventStore
from dygmamba.data.events.splits import Split
from dygmamba.history.draws import Draws
from dygmamba.history.view import LabelledPairs, PairBatch

WINDOW_EVENTS = 200  # pairs of an event's window of this many events are not sampled for it, as in evaluation
MAX_TRIES = 8


@dataclass(frozen=True, slots=True)
class RandomDestinations:
    """The event's source with a random training destination, as in DyGLib; the drawn number is the destination."""

    events: int
    destinations: Int64[Tensor, "m"]  # on the device

    @staticmethod
    def create(store: EventStore, split: Split, device: torch.device) -> "RandomDestinations":
        return RandomDestinations(len(split.train), torch.unique(store.dst[split.train]).to(device))

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        # drawn on the host, so that every device sees the same destinations
        rng = torch.Generator().manual_seed((seed << 20) + epoch)
        draw = torch.randint(len(self.destinations), (self.events,), generator=rng)
        return self.destinations[draw.to(self.destinations.device)]

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        return build_candidate_queries(events, others[None])


def build_pair_queries(events: EventBatch, others: Int64[Tensor, "b"], num_nodes: int) -> LabelledPairs:
    """Return the queries of negatives with any source; four rows per event: both nodes of it and of its negative."""
    row = torch.arange(others.shape[0], device=others.device)
    src, dst = others // num_nodes, others % num_nodes
    both = torch.cat([events.src, src]), torch.cat([events.dst, dst]), events.time.repeat(2)
    label = torch.cat([torch.ones_like(row), torch.zeros_like(row)]).float()
    return PairBatch.from_pairs(*both).with_labels(label, torch.cat([row, row]))


@dataclass(frozen=True, slots=True)
class HistoricalPairs:
    """A training pair that does not occur in the event's window; the drawn number is the pair.

    Pairs are sampled from the whole training period, later ones included (`docs/research/findings.md` says why). If
    `MAX_TRIES` draws all hit the window, the negative is the event's source with a random destination.
    """

    src: Int64[Tensor, "k"]
    pairs: Int64[Tensor, "s"]
    busy: Int64[Tensor, "c"]  # window * s + pair, sorted
    num_nodes: int
    random: RandomDestinations  # on the host
    device: torch.device

    @staticmethod
    def create(store: EventStore, split: Split, device: torch.device) -> "HistoricalPairs":
        src, dst = store.src[split.train], store.dst[split.train]
        pairs, pair = torch.unique(src * store.num_nodes + dst, return_inverse=True)
        busy = torch.unique(torch.arange(len(src)) // WINDOW_EVENTS * len(pairs) + pair)
        random = RandomDestinations.create(store, split, torch.device("cpu"))
        return HistoricalPairs(src, pairs, busy, store.num_nodes, random, device)

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """Draw one pair per training event; each distinct training pair is equally likely."""
        # 1 << 19: a seed of its own, different from that of the random destinations of any epoch
        rng = torch.Generator().manual_seed((seed << 20) + epoch + (1 << 19))
        window = torch.arange(len(self.src)) // WINDOW_EVENTS * len(self.pairs)
        chosen = self.src * self.num_nodes + self.random.draw_negatives(seed, epoch)
        missing = torch.ones_like(chosen, dtype=torch.bool)
        for _ in range(MAX_TRIES):
            drawn = torch.randint(len(self.pairs), chosen.shape, generator=rng)
            fits = missing & ~torch.isin(window + drawn, self.busy)
            chosen = torch.where(fits, self.pairs[drawn], chosen)
            missing &= ~fits
        return chosen.to(self.device)

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        return build_pair_queries(events, others, self.num_nodes)


@dataclass(frozen=True, slots=True)
class MixedNegatives:
    """Random destinations and historical pairs for every other event, swapped from epoch to epoch."""

    paired: HistoricalPairs

    @staticmethod
    def create(store: EventStore, split: Split, device: torch.device) -> "MixedNegatives":
        return MixedNegatives(HistoricalPairs.create(store, split, device))

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """Draw one pair per training event; over two consecutive epochs each event gets one of either kind."""
        random = self.paired.src * self.paired.num_nodes + self.paired.random.draw_negatives(seed, epoch)
        is_random = (torch.arange(len(random)) + epoch) % 2 == 0
        return torch.where(
            is_random.to(self.paired.device),
            random.to(self.paired.device),
            self.paired.draw_negatives(seed, epoch),
        )

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        return self.paired.build_queries(events, others)


@dataclass(frozen=True, slots=True)
class CandidateDestinations:
    """The event's source with `count` random training destinations, none of them the event's own.

    The drawn number is a key from which the destinations follow, with replacement; so an epoch with many candidates
    takes no more memory than one with a single candidate.
    """

    events: int
    destinations: Int64[Tensor, "m"]  # on the device, sorted
    count: int
    draws: Draws

    @staticmethod
    def create(store: EventStore, split: Split, device: torch.device, count: int) -> "CandidateDestinations":
        destinations, draws = (
            torch.unique(store.dst[split.train]).to(device),
            Draws.from_seed(0, device=device),
        )
        if len(destinations) < 2:
            raise EventError(
                "training has only one destination, so there is nothing to rank it against; use another stream",
                code="one-destination",
            )
        return CandidateDestinations(len(split.train), destinations, count, draws)

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        rng = torch.Generator().manual_seed((seed << 20) + epoch)
        return torch.randint(1 << 62, (self.events,), generator=rng).to(self.destinations.device)

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        """Return the queries in the order of `RankingLoss`."""
        drawn = self.draws.uniform(others, events.time, 0, self.count).T * (len(self.destinations) - 1)
        index = drawn.long()  # [c b]
        own = torch.searchsorted(self.destinations, events.dst)
        node = self.destinations[index + (index >= own)]  # skips the event's own destination
        return build_candidate_queries(events, node)


def build_candidate_queries(events: EventBatch, node: Int64[Tensor, "c b"]) -> LabelledPairs:
    """Return all events, then the first candidate of each, and so on; the pairs of an event share the source's row."""
    c, b = node.shape
    row, every = torch.arange(b, device=node.device), torch.arange((1 + c) * b, device=node.device)
    return LabelledPairs(
        node=torch.cat([events.src, events.dst, node.flatten()]),
        when=events.time.repeat(2 + c),
        src_row=row.repeat(1 + c),
        dst_row=every + b,
        label=(every < b).float(),
        group=row.repeat(1 + c),
    )


TrainingNegatives = RandomDestinations | HistoricalPairs | MixedNegatives | CandidateDestinations
TRAINING_NEGATIVES: dict[str, type[RandomDestinations | HistoricalPairs | MixedNegatives]] = {
    "random": RandomDestinations,
    "historical": HistoricalPairs,
    "mixed": MixedNegatives,
}
