"""Costs of a false alarm and of a miss, and the threshold that follows from them."""

from dataclasses import dataclass

from dygmamba.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of an alert that is false, and of an event without an alert."""

    false_alarm: float
    miss: float

    @property
    def threshold(self) -> float:
        """Return the calibrated score from which an alert costs less than no alert, on average."""
        return self.false_alarm / (self.false_alarm + self.miss)


def parse_costs(text: str) -> Costs:
    """Parse "FALSE_ALARM,MISS", such as "1,20"."""
    try:
        false_alarm, miss = (float(part) for part in text.split(","))
    except ValueError:
        false_alarm = miss = float("nan")
    if not (0 < false_alarm < float("inf") and 0 < miss < float("inf")):
        raise ConfigError(
            f"`costs` takes two positive numbers, the cost of a false alarm and of a miss, such as 1,20; got '{text}'",
            code="malformed-costs",
        )
    return Costs(false_alarm, miss)


def choose_threshold(threshold: float | None, costs: str | None) -> float | None:
    """Return the threshold that is given, or that follows from the costs; None if neither is given."""
    if threshold is not None and costs is not None:
        raise ConfigError(
            "give `threshold` or `costs`, which choose one, not both", code="threshold-and-costs"
        )
    return threshold if costs is None else parse_costs(costs).threshold
