"""Why a pair has its score, as a frozen value in the user's own ids and times."""

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from dygmamba.runs.queries import TimeLike

Id = str | int


@dataclass(frozen=True, slots=True)
class Reason:
    """A past event and what it did to the logit; in a long past also a group of old events (`count` above 1)."""

    event: int  # its row in the data; of a group the newest
    side: str  # whose past it is in: src, dst, or both for a meeting of the pair
    src: Id
    dst: Id
    time: TimeLike
    age: float  # from the event to the question, in the unit of the data's times
    count: int
    contribution: float  # to the logit
    error: float | None  # standard error of the contribution
    score_without: float | None  # the score had just this one not happened; of the strongest only
    left: float | None  # share of what the model's state kept of it, where the model has such a state
    read: float | None  # its share of what the last scan reads at the question's time (Theorem 2)


@dataclass(frozen=True, slots=True)
class Without:
    """The exact score had these events not happened."""

    events: tuple[int, ...]
    logit: float
    score: float


@dataclass(frozen=True, slots=True)
class Number:
    """One number that boosted trees look at, and its exact Shapley value."""

    name: str
    value: float
    contribution: float


@dataclass(frozen=True, slots=True)
class Numbers:
    """All of them, the strongest first: `base` and the contributions are the logit."""

    base: float
    strongest: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """`base` is the logit without the events listed; with their contributions it is `logit`, to `gap`.

    `removal` says what a missing event means: "window", that it is taken out of the lists of recent events that the
    model reads; "stream", that the model is shown the whole stream without it.
    """

    model: str
    task: str
    src: Id
    dst: Id | None  # None: a node was asked about
    time: TimeLike
    time_assumed: bool
    seconds: bool  # whether ages are in seconds
    logit: float
    score: float
    base: float
    base_score: float
    reasons: tuple[Reason, ...]  # the strongest first
    without: tuple[Without, ...]
    flip: Without | None  # the smallest set found, up to ten events, that turns the decision
    numbers: Numbers | None
    removal: str
    orders: int  # pairs of drawn orders of the events
    scored: int  # histories that the model was asked about
    gap: float
    notes: tuple[str, ...]

    @property
    def table(self) -> pa.Table:
        """The reasons as an Arrow table, a row each."""
        return pa.Table.from_pylist([asdict(reason) for reason in self.reasons])

    def rest(self, top: int) -> dict[str, Any]:
        """What is not among the `top` strongest: how many events, and what they add together."""
        others = self.reasons[top:]
        return {
            "count": sum(reason.count for reason in others),
            "contribution": sum(reason.contribution for reason in others),
        }

    def to_json(self, top: int | None = None) -> dict[str, Any]:
        """Plain values; with `top` only so many reasons and numbers, the others summed up under `rest`."""
        found = asdict(self)
        kept = len(self.reasons) if top is None else top
        found["reasons"] = found["reasons"][:kept]
        found["rest"] = self.rest(kept)
        if found["numbers"] is not None:
            found["numbers"]["strongest"] = found["numbers"]["strongest"][:top]
        return found
