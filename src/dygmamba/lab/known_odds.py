"""Simulation of training with known sampling odds: the learned logits compared with the true ones.

    python -m dygmamba.lab.known_odds docs/research/results

Streams are simulated whose choice probabilities p(destination | source, earlier events) are known. A table with one
logit per state of a pair is fitted by logistic regression against training negatives. Without bias each logit is
log p(v | u) + log m, where m is the number of destinations. The command writes known-odds.json; `make results` copies
its table to docs/research/known-odds.md.

Legend: k events, u sources, m destinations, s distinct pairs, n nodes, p pairs.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventBatch, EventStore
from dygmamba.data.events.splits import Split
from dygmamba.report.result_records import ResultRecord, StudyResults
from dygmamba.sampling.view import LabelledPairs, PairBatch
from dygmamba.tasks.training_negatives import (
    MAX_TRIES,
    WINDOW_EVENTS,
    EarlierPairs,
    MixedNegatives,
    MixedOddsNegatives,
    RandomDestinations,
    SourceShares,
    TrainingNegatives,
)

FILE = "known-odds"
COMMAND = "python -m dygmamba.lab.known_odds docs/research/results"
CPU = torch.device("cpu")
STATES = ("never met", "met before", "last destination")  # of a pair, with respect to its source
EPOCHS = 20
SEEDS = 10
NEWTON_STEPS = 40


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """Sources and destinations of a simulated stream.

    A source repeats its last destination with probability `repeat` and else chooses any destination. With probability
    `excited` the source of an event is chosen in proportion to its decayed count of events, else uniformly.
    """

    repeat: float
    excited: float
    sources: int = 30
    destinations: int = 100
    events: int = 6000
    scale: float = 20.0  # of the decayed counts, in events

    @property
    def logits(self) -> tuple[float, float, float]:
        """The true log p(v | u) + log m of each state."""
        other = log(1 - self.repeat)
        return other, other, log(1 - self.repeat + self.repeat * self.destinations)


STREAMS = {
    "stationary": SimulationConfig(repeat=0.0, excited=0.0),
    "half repeats": SimulationConfig(repeat=0.5, excited=0.5),
    "bursty": SimulationConfig(repeat=0.9, excited=0.5),
}


@dataclass(frozen=True, slots=True)
class KnownShares:
    """The true share of each source at each time; times are the numbers of the events."""

    share: Float64[Tensor, "k u"]

    def at(self, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
        return self.share[time.long(), src]


@dataclass(frozen=True, slots=True)
class SimulatedStream:
    """A simulated stream; the first events are one of each source, so that every source has a last destination."""

    config: SimulationConfig
    store: EventStore
    shares: KnownShares

    @property
    def split(self) -> Split:
        """All events are training events."""
        events = torch.arange(len(self.store))
        return Split(events, events[:0], events[:0], torch.zeros(self.store.num_nodes, dtype=torch.bool))

    def find_states(self, pairs: PairBatch) -> Int64[Tensor, "p"]:
        """Return the state of each pair at its time, an index of `STATES`."""
        src, dst, time = self.store.src, self.store.dst, self.store.time
        order = torch.argsort(src, stable=True)
        k = len(self.store)
        before = torch.searchsorted(src[order] * k + order, pairs.src * k + pairs.time.long()) - 1
        is_last = (
            dst[order][before.clamp(min=0)] == pairs.dst
        )  # `before` is of the same source after the first events
        earlier = EarlierPairs.from_events(src * self.store.num_nodes + dst, time)
        met = earlier.contain(pairs.src * self.store.num_nodes + pairs.dst, pairs.time)
        return met.long() + (met & is_last).long()


def simulate_stream(config: SimulationConfig, seed: int) -> SimulatedStream:
    """Simulate a stream; destinations are the nodes after the sources."""
    rng = np.random.default_rng(seed)
    u, m, k = config.sources, config.destinations, config.events
    src, dst, share = np.empty(k, int), np.empty(k, int), np.empty((k, u))
    last, count = np.zeros(u, int), np.zeros(u)
    for event in range(k):
        total = count.sum()
        share[event] = (1 - config.excited) / u + config.excited * (count / total if total > 0 else 1 / u)
        source = event if event < u else rng.choice(u, p=share[event])
        if event < u or rng.random() >= config.repeat:
            last[source] = rng.integers(m)
        src[event], dst[event] = source, u + last[source]
        count *= np.exp(-1 / config.scale)
        count[source] += 1
    time = torch.arange(k)
    store = EventStore.from_columns(torch.from_numpy(src), torch.from_numpy(dst), time, num_nodes=u + m)
    return SimulatedStream(config, store, KnownShares(torch.from_numpy(share)))


@dataclass(frozen=True, slots=True)
class MeanOddsNegatives:
    """`MixedNegatives` with their odds averaged over the training period, which depend on later events.

    What `mixed-odds` did at first: a pair that occurs in the window of an event is never a historical negative there,
    but has the same odds there as everywhere.
    """

    mixed: MixedNegatives
    drawn: Float64[Tensor, "s"]  # probability of each training pair as a negative, times the destinations
    random: Float64[Tensor, "n"]  # share of each source's negatives that are random destinations
    shares: SourceShares

    @staticmethod
    def create(stream: SimulatedStream) -> "MeanOddsNegatives":
        mixed = MixedNegatives.create(stream.store, stream.split, CPU)
        pool, s, k = mixed.paired, len(mixed.paired.pairs), len(stream.store)
        window = torch.arange(k) // WINDOW_EVENTS
        events = torch.bincount(window).double()
        taken = torch.bincount(pool.busy // s, minlength=len(events)).double() / s
        # expected draws in each window of one pair that does not occur there: a sum over the tries
        idle = events * sum(taken**tries for tries in range(MAX_TRIES)) / s
        busy = torch.zeros(s, dtype=torch.float64).index_add_(0, pool.busy % s, idle[pool.busy // s])
        drawn = (idle.sum() - busy).clamp(min=0) / k / 2 * len(pool.random.destinations)
        failed = torch.bincount(pool.src, (taken**MAX_TRIES)[window], minlength=pool.num_nodes)
        random = (1 + failed / torch.bincount(pool.src, minlength=pool.num_nodes).clamp(min=1)) / 2
        return MeanOddsNegatives(mixed, drawn, random, stream.shares)

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        return self.mixed.draw_negatives(seed, epoch)

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        return self.mixed.build_queries(events, others)

    def offset(self, pairs: PairBatch) -> Float32[Tensor, "p"]:
        known, key = self.mixed.paired.pairs, pairs.src * self.mixed.paired.num_nodes + pairs.dst
        index = torch.searchsorted(known, key).clamp(max=len(known) - 1)
        drawn = torch.where(known[index] == key, self.drawn[index], 0.0)
        return -(self.random[pairs.src] + drawn / self.shares.at(pairs.src, pairs.time)).log().float()


def create_whole_period_negatives(stream: SimulatedStream) -> MixedOddsNegatives:
    """Create `mixed-odds` negatives that may be any training pair, also one that occurs only later."""
    exact = MixedOddsNegatives.create(stream.store, stream.split, CPU, stream.shares)
    always = torch.full_like(exact.earlier.first, -float("inf"))
    earlier = replace(exact.earlier, first=always, since=always)
    count = earlier.count(stream.store.time)
    return replace(exact, earlier=earlier, count=count, odds=replace(exact.odds, earlier=earlier))


NEGATIVES: dict[str, Callable[[SimulatedStream], TrainingNegatives]] = {
    "`random`": lambda stream: RandomDestinations.create(stream.store, stream.split, CPU),
    "`mixed`, no correction": lambda stream: MixedNegatives.create(stream.store, stream.split, CPU),
    "`mixed`, mean odds of the period": MeanOddsNegatives.create,
    "any training pair": create_whole_period_negatives,
    "earlier pairs": lambda stream: MixedOddsNegatives.create(stream.store, stream.split, CPU, stream.shares),
    "earlier pairs, fitted shares (`mixed-odds`)": lambda stream: MixedOddsNegatives.create(
        stream.store, stream.split, CPU
    ),
}


def fit_logits(stream: SimulatedStream, negatives: TrainingNegatives, seed: int) -> list[float]:
    """Fit one logit per state to the events after the first of each source and their negatives of all epochs."""
    rows = torch.arange(stream.config.sources, len(stream.store))
    events = stream.store.select(rows)
    state, label, offset = [], [], []
    for epoch in range(EPOCHS):
        pairs = negatives.build_queries(events, negatives.draw_negatives(seed, epoch)[rows])
        added = negatives.offset(pairs)
        state.append(stream.find_states(pairs))
        label.append(pairs.label.double())
        offset.append(torch.zeros_like(label[-1]) if added is None else added.double())
    return fit_logit_table(torch.cat(state), torch.cat(label), torch.cat(offset), len(STATES)).tolist()


def fit_logit_table(
    index: Int64[Tensor, "p"], label: Float64[Tensor, "p"], offset: Float64[Tensor, "p"], size: int
) -> Float64[Tensor, "_"]:
    """Return the logits that maximize the likelihood of the labels given logit[index] + offset; by Newton's method."""
    logit = torch.zeros(size, dtype=torch.float64)
    for _ in range(NEWTON_STEPS):
        probability = torch.sigmoid(logit[index] + offset)
        slope = torch.zeros_like(logit).index_add_(0, index, label - probability)
        curvature = torch.zeros_like(logit).index_add_(0, index, probability * (1 - probability))
        logit += (slope / curvature).clamp(
            -1, 1
        )  # bounded steps: far from the optimum the curvature is too small
    return logit


def run_simulation(seeds: int = SEEDS) -> StudyResults:
    """Fit the logits of every stream, kind of negatives and seed."""
    records = []
    for name, config in STREAMS.items():
        for seed in range(seeds):
            stream = simulate_stream(config, seed)
            for kind, create in NEGATIVES.items():
                logits = fit_logits(stream, create(stream), seed)
                rows = [
                    {"state": state, "logit": round(logit, 4), "truth": round(truth, 4)}
                    for state, logit, truth in zip(STATES, logits, config.logits, strict=True)
                ]
                records.append(ResultRecord("simulation", name, kind, seed, {}, rows))
    return StudyResults(FILE, COMMAND, tuple(records))


def build_table(folder: Path) -> str:
    """Build the table of errors: learned logit minus true logit, mean over the seeds and its standard error."""
    records = StudyResults.read(folder / f"{FILE}.json").records
    lines = ["| stream | negatives | " + " | ".join(STATES) + " |", "|---" * (2 + len(STATES)) + "|"]
    # "+ 0" below turns -0.0 into 0.0
    for stream, kind in dict.fromkeys((record.data, record.model) for record in records):
        runs = [record.rows for record in records if (record.data, record.model) == (stream, kind)]
        cells = [[run[state]["logit"] - run[state]["truth"] for run in runs] for state in range(len(STATES))]
        shown = [f"{round(mean(cell), 3) + 0:+.3f} ± {stdev(cell) / len(cell) ** 0.5:.3f}" for cell in cells]
        lines.append(f"| {stream} | {kind} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_simulation().write(Path(sys.argv[1]) / f"{FILE}.json")
