"""The explanation of a score, in the user's ids and times. Its fields are the keys of its JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from dygmamba.runs.queries import TimeLike

Id = str | int
SHOWN_COLUMNS = 5  # of an event, in sentences and tables


def describe_columns(columns: Mapping[str, str | float]) -> str:
    """Return the columns of an event as text; with many numbers the first ones."""
    shown = [
        f"{name} {value if isinstance(value, str) else f'{value:.6g}'}" for name, value in columns.items()
    ]
    return ", ".join(shown[:SHOWN_COLUMNS]) + ", ..." * (len(shown) > SHOWN_COLUMNS)


@dataclass(frozen=True, slots=True)
class Reason:
    """A past event and its contribution to the logit; in a long history also a group of old events."""

    event: int  # row in the dataset; of a group, the newest
    side: str  # in whose history it is: src, dst, or both for an event of the pair itself
    src: Id
    dst: Id
    time: TimeLike
    age: float  # query time minus event time, in the unit of the dataset
    count: int  # events of a group, otherwise 1
    contribution: float  # to the logit
    error: float | None  # standard error of the contribution
    score_without: float | None  # score if only this event had not happened; of the strongest events only
    left: float | None  # share of it that is left in the hidden state, if the model has one
    read: float | None  # its share of what the last scan reads at the query (Theorem 2)
    columns: dict[str, str | float] = field(default_factory=dict)  # type and numbers of the event, by name


@dataclass(frozen=True, slots=True)
class Without:
    """The score if these events had not happened, computed by running the model."""

    events: tuple[int, ...]
    logit: float
    score: float


@dataclass(frozen=True, slots=True)
class Number:
    """A feature of boosted trees and its exact Shapley value."""

    name: str
    value: float
    contribution: float


@dataclass(frozen=True, slots=True)
class Numbers:
    """All features of boosted trees, the strongest first; `base` plus the contributions is the logit."""

    base: float
    strongest: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The contributions of past events to a logit: `base` plus the contributions is `logit`, up to `gap`.

    `removal` says how an event is removed: "window", from the sequences of recent neighbors that the model reads;
    "stream", from the whole stream.
    """

    model: str
    task: str
    src: Id
    dst: Id | None  # None for a node
    time: TimeLike
    time_assumed: bool
    seconds: bool  # whether ages are in seconds
    logit: float
    score: float
    base: float  # logit without the events of `reasons`
    base_score: float
    reasons: tuple[Reason, ...]  # the strongest first
    without: tuple[Without, ...]
    flip: Without | None  # smallest set found, of up to ten events, that flips the decision
    numbers: Numbers | None
    removal: str
    orders: int  # antithetic pairs of random orders
    scored: int  # histories that the model scored
    gap: float
    notes: tuple[str, ...]

    @property
    def table(self) -> pa.Table:
        """The reasons as an Arrow table."""
        rows = [asdict(reason) for reason in self.reasons]
        if not any(row["columns"] for row in rows):  # files take no structs without fields
            rows = [{name: value for name, value in row.items() if name != "columns"} for row in rows]
        return pa.Table.from_pylist(rows)

    def rest(self, top: int) -> dict[str, Any]:
        """Return the number of events beyond the `top` strongest reasons, and the sum of their contributions."""
        others = self.reasons[top:]
        return {
            "count": sum(reason.count for reason in others),
            "contribution": sum(reason.contribution for reason in others),
        }

    def to_json(self, top: int | None = None) -> dict[str, Any]:
        """Return plain values; with `top` only that many reasons and features, the other reasons summed as `rest`."""
        values = asdict(self)
        count = len(self.reasons) if top is None else top
        values["reasons"] = values["reasons"][:count]
        values["rest"] = self.rest(count)
        if values["numbers"] is not None:
            values["numbers"]["strongest"] = values["numbers"]["strongest"][:top]
        return values
