"""Costs of a false alarm and of a miss, and the threshold that follows from them.

The score of a pair is calibrated for even odds: as many real pairs as random ones. If a share pi of the scored pairs is
real, each real one comes with (1 - pi) / pi others that can be false alarms, so a false alarm weighs that much more.
"""

from dataclasses import dataclass

from dygmamba.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of an alert that is false, and of an event without an alert; and the share of real events, if not half."""

    false_alarm: float
    miss: float
    real_share: float | None = None

    @property
    def weighted_false_alarm(self) -> float:
        """Cost of a false alarm, times the pairs that are not real for each one that is."""
        share = self.real_share
        return self.false_alarm if share is None else self.false_alarm * (1 - share) / share

    @property
    def threshold(self) -> float:
        """Return the calibrated score from which an alert costs less than no alert, on average."""
        return self.weighted_false_alarm / (self.weighted_false_alarm + self.miss)


def parse_costs(costs: str | None, real_share: float | None = None) -> Costs | None:
    """Parse "FALSE_ALARM,MISS", such as "1,20"; None if no costs are given.

    `real_share` is that of real events among the scored pairs; it is of no use without costs.
    """
    if costs is None and real_share is not None:
        raise ConfigError(
            "`real_share` chooses a threshold by costs; give `costs` too, or leave it out",
            code="share-without-costs",
        )
    if costs is None:
        return None
    try:
        false_alarm, miss = (float(part) for part in costs.split(","))
    except ValueError:
        false_alarm = miss = float("nan")
    if not (0 < false_alarm < float("inf") and 0 < miss < float("inf")):
        raise ConfigError(
            f"`costs` takes two positive numbers, the cost of a false alarm and of a miss, such as 1,20; got '{costs}'",
            code="malformed-costs",
        )
    if real_share is not None and not 0 < real_share < 1:
        raise ConfigError(
            f"`real_share` takes a share above 0 and below 1, such as 0.01; got {real_share:g}",
            code="share-out-of-range",
        )
    return Costs(false_alarm, miss, real_share)


def choose_threshold(
    threshold: float | None, costs: str | None, real_share: float | None = None
) -> float | None:
    """Return the threshold that is given, or that follows from the costs; None if neither is given."""
    if threshold is not None and costs is not None:
        raise ConfigError(
            "give `threshold` or `costs`, which choose one, not both", code="threshold-and-costs"
        )
    parsed = parse_costs(costs, real_share)
    return threshold if parsed is None else parsed.threshold
