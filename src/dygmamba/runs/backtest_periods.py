"""Periods of a backtest: which events are trained on at each origin, and the queries of each period.

The origins are evenly spaced in time. At an origin every strictly earlier event is known, or with a window those of the
window; the last share of them is the validation period, the rest is trained on. The events until the next origin are
the period that is evaluated: each with one random destination, and among sampled destinations for its rank. All models
of a period are evaluated on the same pairs and the same candidates.

Legend: b events, c candidates.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split, SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.runs.evaluation import Queries
from dygmamba.tasks.candidates import CandidateSet, SampledCandidates
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metric_names import DEFAULT_CANDIDATES

VALIDATION_SHARE = 0.15  # of the known events, the last ones
MAX_PERIODS = 1_000
MAX_RANKED_EVENTS = 500  # of a period, evenly spread


@dataclass(frozen=True, slots=True)
class Period:
    """Events (rows of the stream) from one origin to the next."""

    number: int  # from 0
    begin: float
    end: float
    first: int
    last: int  # exclusive

    def __len__(self) -> int:
        return self.last - self.first


def list_periods(store: EventStore, start: float, every: float) -> list[Period]:
    """Return the periods from `start` to the end of the stream that have events.

    Raises:
        ConfigError: There is none, or too many.
    """
    last = float(store.time[-1])
    if not start <= last:
        raise ConfigError(
            f"`start` is {start:.12g}, but the last event is at {last:.12g}; choose an earlier one",
            code="backtest-without-period",
        )
    if (last - start) / every > MAX_PERIODS:
        raise ConfigError(
            f"`every` divides the stream into more than {MAX_PERIODS:,} periods; choose a longer time",
            code="too-many-periods",
        )
    borders = [start + number * every for number in range(ceil((last - start) / every) + 2)]
    rows = torch.searchsorted(store.time, torch.tensor(borders, dtype=torch.float64)).tolist()
    spans = zip(borders, borders[1:], rows, rows[1:], strict=False)
    filled = [span for span in spans if span[2] < span[3]]
    return [Period(number, *span) for number, span in enumerate(filled)]


@dataclass(frozen=True, slots=True)
class TrainingSpan:
    """Known events at an origin: the first row, and the times at which validation and the period begin."""

    first: int
    validation: float
    origin: float

    @staticmethod
    def before(store: EventStore, period: Period, window: float | None) -> "TrainingSpan":
        """Return the span of the events before a period, or of those of the window before it.

        Raises:
            EventError: They leave no event to train on or to validate with.
        """
        first = 0
        if window is not None:
            begin = torch.tensor(period.begin - window, dtype=torch.float64)
            first = int(torch.searchsorted(store.time, begin))
        known = store.time[first : period.first]
        begins = float(known[int((1 - VALIDATION_SHARE) * len(known))]) if len(known) else 0.0
        if not len(known) or not begins > float(known[0]):
            raise EventError(
                f"only {len(known):,} events are known at time {period.begin:.12g}, which leave none to train on or to "
                "validate with; choose a later `start` or a longer `window`",
                code="backtest-too-few-events",
            )
        return TrainingSpan(first, begins, period.begin)

    @property
    def rule(self) -> SplitRule:
        """The split of a dataset that begins with the first row and ends with the period."""
        return SplitRule(
            (self.validation, self.origin), f"{self.validation:.12g},{self.origin:.12g}", protocol="time"
        )


def slice_dataset(dataset: Dataset, first: int, last: int) -> Dataset:
    """Return the events `first` to `last - 1`, with all nodes, which keep their numbers."""
    return Dataset.from_events(dataset.name, dataset.store[first:last], dataset.ids, dataset.origin)


@dataclass(frozen=True, slots=True)
class ShiftedCandidates:
    """Candidates of the events of a stream, for a part of it that begins `shift` events later."""

    inner: CandidateSet
    shift: int

    @property
    def width(self) -> int:
        return self.inner.width

    @property
    def about(self) -> dict[str, Any]:
        return self.inner.about

    def for_events(self, events: Int64[Tensor, "b"]) -> tuple[Int64[Tensor, "b c"], Bool[Tensor, "b c"]]:
        return self.inner.for_events(events + self.shift)


def build_period_queries(store: EventStore, period: Period) -> Queries:
    """Build the queries of a period, the same for every model; rows are those of the whole stream.

    Nothing is ranked if the stream has one destination only.
    """
    known, events = store[: period.last], torch.arange(period.first, period.last)
    no_nodes = torch.zeros(store.num_nodes, dtype=torch.bool)
    split = Split(torch.arange(period.first), events[:0], events, no_nodes, protocol="time")
    count = min(MAX_RANKED_EVENTS, len(period))
    ranked = torch.linspace(0, len(period) - 1, count, dtype=torch.float64).long()
    candidates = None
    if len(known.dst.unique()) > 1:
        candidates = SampledCandidates.create(known, DEFAULT_CANDIDATES, seed=0, earlier_than=events)
    return Queries(build_link_set(known, split, "test"), candidates, ranked)


def shift_queries(queries: Queries, first: int, earlier: tuple[Tensor, ...]) -> Queries:
    """Return queries for a part of the stream that begins with the row `first`, after these earlier periods."""
    candidates = None if queries.candidates is None else ShiftedCandidates(queries.candidates, first)
    pairs = replace(queries.pairs, events=queries.pairs.events - first, earlier=earlier)
    return replace(queries, pairs=pairs, candidates=candidates)
