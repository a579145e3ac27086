"""A stream's times in its user's words: dates where they are dates, else the numbers they came as."""

from dataclasses import dataclass
from typing import Any

from dygmamba.data.statistics import as_duration, looks_like_epoch
from dygmamba.data.store import Dataset
from dygmamba.report.axes import moment, number
from dygmamba.report.figures import Kind


@dataclass(frozen=True, slots=True)
class Calendar:
    """How moments and spans of a stream are written."""

    dated: bool

    @staticmethod
    def of(dataset: Dataset) -> "Calendar":
        """By what is known of the source, and by what the numbers look like."""
        time = dataset.store.time
        known = bool(dataset.origin.time_origin)
        return Calendar(known or (len(time) > 0 and looks_like_epoch(float(time[0]), float(time[-1]))))

    @property
    def kind(self) -> Kind:
        """Of an axis of moments."""
        return "date" if self.dated else "number"

    @property
    def axis(self) -> str:
        """The name and unit of an axis of moments."""
        return "date (UTC)" if self.dated else "time, in the unit of the data"

    def moment(self, time: Any) -> str:
        """A point in time, to the minute."""
        return moment(float(time)) if self.dated else f"{time:,.10g}"

    def span(self, time: Any) -> str:
        """How long something takes, in units of a calendar or in the data's own."""
        return as_duration(float(time)) if self.dated else number(time)

    def length(self, time: Any) -> str:
        """The same, and of numbers whose unit nobody said what they are if in seconds."""
        return (
            self.span(time) if self.dated else f"{self.span(time)} ({as_duration(float(time))} if in seconds)"
        )
