"""Numbers over seeds: mean, spread, rank, and whether a difference is more than chance."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean, stdev


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity, by seed; a model without training has one value, of seed None. Shares of 1."""

    by_seed: dict[int | None, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return mean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """The sample's standard deviation; nothing of one seed."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {100 * self.std:.2f}"
        return f"{100 * self.mean:.2f}{spread}" if self.by_seed else "-"


def ranks(figures: Mapping[str, Figure]) -> dict[str, float]:
    """1 for the highest mean; equal means share their mean rank."""
    means = {name: figure.mean for name, figure in figures.items() if figure.by_seed}
    return {
        name: 1
        + sum(other > own for other in means.values())
        + (sum(other == own for other in means.values()) - 1) / 2
        for name, own in means.items()
    }


def paired_p(a: Figure, b: Figure) -> float | None:
    """Two-sided p of a paired t-test over the seeds both have; nothing where there are fewer than two or no spread."""
    shared = [seed for seed in a.by_seed if seed is not None and seed in b.by_seed]
    gaps = [a.by_seed[seed] - b.by_seed[seed] for seed in shared]
    if len(gaps) < 2 or stdev(gaps) == 0:
        return None
    t = mean(gaps) / (stdev(gaps) / math.sqrt(len(gaps)))
    return student_two_sided(abs(t), len(gaps) - 1)


def student_two_sided(t: float, freedom: int) -> float:
    """P(|T| > t) of Student's distribution: a finite sum for whole degrees of freedom (Abramowitz 26.7.3 and 4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    if freedom % 2:
        term, total = cosine, cosine if freedom > 1 else 0.0
        for k in range(3, freedom - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = 2 / math.pi * (angle + sine * total)
    else:
        term = total = 1.0
        for k in range(2, freedom - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = sine * total
    return max(0.0, 1.0 - inside)
