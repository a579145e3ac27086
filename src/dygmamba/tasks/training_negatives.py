"""Training negatives: the pairs that are scored with each training event, and the odds of sampling them.

Evaluation uses random, historical and inductive negatives. A model trained against random destinations alone never has
to tell which sources are active; historical and mixed negatives teach that. What is sampled for an event is one number
per event and epoch, a function of (seed, epoch) alone.

Correction by known odds ("mixed-odds"): a classifier of events p(u, v) against negatives q(u, v) learns
log p(u, v) - log q(u, v). With random destinations q(u, v) = p(u) / m, so it learns log p(v | u) + log m: which
destination a source chooses. Other negatives shift this by log(q(u, v) / (p(u) / m)). Where q is known in closed form,
subtracting that from each logit, in the training loss only, leaves log p(v | u) + log m to be learned whatever the
negatives are (King and Zeng, "Logistic Regression in Rare Events Data", 2001, correct one constant this way). p(u) is
the share of source u in the activity of the moment. All of this is meant at one time and given the events before it, so
q must depend on these events only: odds that depend on events at or after the query time would tell the label of the
query, which no model can know (`docs/research/findings.md` measures what that costs).

The same holds among candidates ("popular-odds"): if one of several destinations is drawn from p(v | u) and the others
independently from q(v), then which one it was has odds p(v | u) / q(v). A softmax over logits minus log(m q(v))
therefore learns log p(v | u) up to a constant of the event (Bengio and Senecal, "Adaptive Importance Sampling to
Accelerate Training of a Neural Probabilistic Language Model", 2008).

Legend: k training events, b events of a batch, t instants of training, s distinct training pairs, m destinations,
c (window, pair) combinations that occur, p pairs.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.choices import TrainNegativesName as TrainNegativesName
from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventBatch, EventStore
from dygmamba.data.events.splits import Split
from dygmamba.history.destination_popularity import DestinationPopularity
from dygmamba.history.device_lists import SortedLists, count_before
from dygmamba.history.draws import Draws
from dygmamba.history.source_activity import SourceActivity
from dygmamba.history.view import LabelledPairs, PairBatch
from dygmamba.tasks.activity import fit_activity

WINDOW_EVENTS = 200  # pairs of an event's window of this many events are not sampled for it, as in evaluation
MAX_TRIES = 8
MIN_RELATIVE_RATE = 1e-6  # floor of a source's rate relative to the mean: an inactive source may act too
NO_DECAY_SCALE = 2.0**60  # time scale in periods, so long that nothing decays


@runtime_checkable
class SourceShares(Protocol):
    """Share of each source in the activity of a moment."""

    def at(self, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
        """Return the shares of these sources at these times."""
        ...


@dataclass(frozen=True, slots=True)
class ActivityShares:
    """Rate of a source over the sum of all rates, as fitted by `tasks/activity.py`; for times of training events.

    Everything is on the device and nothing is read back to the host, so a CUDA graph can capture it.
    """

    total: Float64[Tensor, "t"]  # sum of all rates at each instant
    weight: Float64[Tensor, "_"]  # of the count on each scale
    base: float
    lists: SortedLists  # by source

    @staticmethod
    def fit(
        activity: SourceActivity, src: Int64[Tensor, "k"], time: Float64[Tensor, "k"], device: torch.device
    ) -> "ActivityShares":
        """Fit the rates to the training events, in time order; `activity` must count exactly these events."""
        constant, *weights, number = fit_activity(activity, src, time).weights
        instant, sources = torch.unique(time), len(src.unique())
        base = (constant + MIN_RELATIVE_RATE * len(src) / sources) / activity.period
        per = torch.tensor([*activity.scales, activity.period], dtype=torch.float64)
        weight = torch.tensor([*weights, number], dtype=torch.float64) / per
        scale = torch.cat([per[:-1], NO_DECAY_SCALE * per[-1:]])
        own, joint = (SortedLists.count_events(group, time, scale) for group in (src, torch.zeros_like(src)))
        # rates are linear in the counts, so the sum of all rates is the rate of one source that has every event
        everyone = ActivityShares(torch.ones_like(instant), weight, sources * base, joint)
        total = everyone.at(torch.zeros_like(instant).long(), instant)
        return ActivityShares(total.to(device), weight.to(device), base, own.to(device))

    def at(self, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
        """Return the shares strictly before each time, which must be one of the instants."""
        rank = torch.searchsorted(self.lists.instant, time.contiguous())
        counts = count_before(self.lists, src, time)[0].double()
        return (self.base + (counts * self.weight).sum(dim=-1)) / self.total[rank]


@dataclass(frozen=True, slots=True)
class EarlierPairs:
    """Distinct training pairs with the time of their first event: which of them occurred strictly before a time."""

    pairs: Int64[Tensor, "s"]  # source * num_nodes + destination, sorted
    first: Float64[Tensor, "s"]  # time of the first event of each pair
    ordered: Int64[Tensor, "s"]  # the pairs in the order of their first events
    since: Float64[Tensor, "s"]  # their times, ascending

    @staticmethod
    def from_events(key: Int64[Tensor, "k"], time: Float64[Tensor, "k"]) -> "EarlierPairs":
        """Collect the pairs of events in time order."""
        pairs, pair = torch.unique(key, return_inverse=True)
        first = torch.full(pairs.shape, float("inf"), dtype=time.dtype).scatter_reduce(0, pair, time, "amin")
        since, order = torch.sort(first, stable=True)
        return EarlierPairs(pairs, first, pairs[order], since)

    def to(self, device: torch.device) -> "EarlierPairs":
        return EarlierPairs(*(part.to(device) for part in (self.pairs, self.first, self.ordered, self.since)))

    def count(self, time: Float64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        """Return how many pairs occurred strictly before each time: the first ones of `ordered`."""
        return torch.searchsorted(self.since, time.contiguous())

    def contain(self, key: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Bool[Tensor, "p"]:
        """Return whether each pair occurred strictly before its time."""
        index = torch.searchsorted(self.pairs, key).clamp(max=len(self.pairs) - 1)
        return (self.pairs[index] == key) & (self.first[index] < time)


@dataclass(frozen=True, slots=True)
class SamplingOdds:
    """Odds q(u, v) / (p(u) / m) of a pair being a negative of `MixedOddsNegatives` at a time, given the events before.

    Everything is on the device and nothing is read back to the host, so a CUDA graph can capture it.
    """

    earlier: EarlierPairs
    shares: SourceShares
    num_nodes: int
    destinations: int

    def log(
        self, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float32[Tensor, "p"]:
        """Return the log odds of these pairs at these times."""
        count = self.earlier.count(time)
        random = 1 / (1 + (count > 0).double())
        occurred = self.earlier.contain(src * self.num_nodes + dst, time).double()
        drawn = self.destinations / 2 * occurred / count.clamp(min=1)
        return (random + drawn / self.shares.at(src, time)).log().float()


class TrainingNegatives:
    """Base class of samplers of the negatives of training events."""

    __slots__ = ()

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """Draw a number for each training event that determines its negatives; the same on every device."""
        raise NotImplementedError

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        """Return each event as a pair of label 1, then its negatives with label 0."""
        raise NotImplementedError

    def offset(self, pairs: PairBatch) -> Float32[Tensor, "p"] | None:
        """Return what is added to the logits of these pairs in the training loss only, or None."""
        return None


@dataclass(frozen=True, slots=True)
class RandomDestinations(TrainingNegatives):
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
class HistoricalPairs(TrainingNegatives):
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
class MixedNegatives(TrainingNegatives):
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
class MixedOddsNegatives(TrainingNegatives):
    """Random destinations and earlier pairs for every other event, corrected by known odds.

    A model then learns which destination a source chooses. The earlier pair is any that occurred strictly before the
    event, each equally likely, whether or not it occurs around the event or is its own; if there is none, the negative
    is a random destination. `MixedNegatives` samples differently: it draws from the whole training period and leaves
    out the pairs of the event's window.
    """

    src: Int64[Tensor, "k"]
    earlier: EarlierPairs  # on the host
    count: Int64[Tensor, "k"]  # pairs that occurred before each event
    random: RandomDestinations  # on the host
    odds: SamplingOdds

    @staticmethod
    def create(
        store: EventStore, split: Split, device: torch.device, shares: SourceShares | None = None
    ) -> "MixedOddsNegatives":
        """Create the negatives; `shares` replaces the fitted shares of the sources."""
        src, dst, time = store.src[split.train], store.dst[split.train], store.time[split.train]
        if shares is None:
            shares = ActivityShares.fit(SourceActivity.from_events(store, split.train), src, time, device)
        random = RandomDestinations.create(store, split, torch.device("cpu"))
        earlier = EarlierPairs.from_events(src * store.num_nodes + dst, time)
        odds = SamplingOdds(earlier.to(device), shares, store.num_nodes, len(random.destinations))
        return MixedOddsNegatives(src, earlier, earlier.count(time), random, odds)

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """Draw one pair per training event; over two consecutive epochs each event gets one of either kind."""
        # 1 << 19: a seed of its own, different from that of the random destinations of any epoch
        rng = torch.Generator().manual_seed((seed << 20) + epoch + (1 << 19))
        drawn = torch.rand(self.count.shape, dtype=torch.float64, generator=rng) * self.count
        random = self.src * self.odds.num_nodes + self.random.draw_negatives(seed, epoch)
        is_random = ((torch.arange(len(random)) + epoch) % 2 == 0) | (self.count == 0)
        chosen = torch.where(is_random, random, self.earlier.ordered[drawn.long()])
        return chosen.to(self.odds.earlier.pairs.device)

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        return build_pair_queries(events, others, self.odds.num_nodes)

    def offset(self, pairs: PairBatch) -> Float32[Tensor, "p"]:
        """Return minus the log odds of each pair, which depend on no other pair of the batch."""
        return -self.odds.log(pairs.src, pairs.dst, pairs.time)


@dataclass(frozen=True, slots=True)
class CandidateDestinations(TrainingNegatives):
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
        destinations = _require_candidates(torch.unique(store.dst[split.train])).to(device)
        return CandidateDestinations(len(split.train), destinations, count, Draws.from_seed(0, device=device))

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        return _draw_keys(self.events, seed, epoch).to(self.destinations.device)

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        """Return the queries in the order of `RankingLoss`."""
        drawn = self.draws.uniform(others, events.time, 0, self.count).T * (len(self.destinations) - 1)
        index = drawn.long()  # [c b]
        own = torch.searchsorted(self.destinations, events.dst)
        node = self.destinations[index + (index >= own)]  # skips the event's own destination
        return build_candidate_queries(events, node)


@dataclass(frozen=True, slots=True)
class PopularDestinations(TrainingNegatives):
    """The event's source with `count` training destinations by recent popularity, corrected by known odds.

    Each is drawn independently (`history/destination_popularity.py`), whether or not it is the event's own: only then
    are the odds exact. The drawn number is a key from which the destinations follow.
    """

    events: int
    count: int
    popularity: DestinationPopularity
    draws: Draws

    @staticmethod
    def create(
        store: EventStore, split: Split, device: torch.device, count: int = 1
    ) -> "PopularDestinations":
        dst = store.dst[split.train]
        _require_candidates(torch.unique(dst))
        popularity = DestinationPopularity.fit(dst, store.time[split.train], device)
        return PopularDestinations(len(dst), count, popularity, Draws.from_seed(0, device=device))

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        return _draw_keys(self.events, seed, epoch).to(self.popularity.destinations.device)

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        """Return the queries in the order of `RankingLoss`."""
        chance = self.draws.uniform(others, events.time, 0, self.count).T  # [c b]
        node = self.popularity.sample(chance.flatten(), events.time.repeat(self.count))
        return build_candidate_queries(events, node.view(chance.shape))

    def offset(self, pairs: PairBatch) -> Float32[Tensor, "p"]:
        """Return minus the log odds of each destination, which depend on no other pair of the batch."""
        return -self.popularity.log_odds(pairs.dst, pairs.time).float()


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


def _draw_keys(events: int, seed: int, epoch: int) -> Int64[Tensor, "k"]:
    """Draw one key per training event."""
    rng = torch.Generator().manual_seed((seed << 20) + epoch)
    return torch.randint(1 << 62, (events,), generator=rng)


def _require_candidates(destinations: Int64[Tensor, "m"]) -> Int64[Tensor, "m"]:
    if len(destinations) < 2:
        raise EventError(
            "training has only one destination, so there is nothing to rank it against; use another stream",
            code="one-destination",
        )
    return destinations


TRAINING_NEGATIVES: dict[
    TrainNegativesName,
    type[RandomDestinations]
    | type[HistoricalPairs]
    | type[MixedNegatives]
    | type[MixedOddsNegatives]
    | type[PopularDestinations],
] = {
    "random": RandomDestinations,
    "historical": HistoricalPairs,
    "mixed": MixedNegatives,
    "mixed-odds": MixedOddsNegatives,
    "popular-odds": PopularDestinations,
}
# Candidates of the same source, which the ranking loss compares
RANKING_NEGATIVES: dict[TrainNegativesName, type[CandidateDestinations] | type[PopularDestinations]] = {
    "random": CandidateDestinations,
    "popular-odds": PopularDestinations,
}
