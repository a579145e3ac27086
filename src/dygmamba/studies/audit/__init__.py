"""What a number on a stream can say and what it cannot, and whether a model's score keeps away from the rest."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dygmamba.engine.stream import Stream
from dygmamba.errors import EventError
from dygmamba.sampling.negatives import SAMPLERS
from dygmamba.studies.audit.model import Check, Subject, below_ceiling, depends, own_time
from dygmamba.studies.audit.rules import Reached, reached, rule_scores
from dygmamba.studies.audit.stream import Bias, Order, Padding, Period, bias, order, padding, period
from dygmamba.studies.ceilings import Ceiling, Moments, ceiling
from dygmamba.studies.published import printed
from dygmamba.tasks.base import Exam
from dygmamba.tasks.link import SETTINGS, SPLITS, has_events, link_exam

Question = tuple[str, str, str]  # split, setting, negatives
SHOWN = "recency of the destination"  # the rule whose scores show what the size of a batch is worth


@dataclass(frozen=True, slots=True)
class Above:
    """A published figure above the ceiling of its question; `value` in per cent, as printed."""

    model: str
    metric: str
    value: float
    source: str
    ceiling: float


@dataclass(frozen=True, slots=True)
class Audit:
    """Everything that was found about a stream, and about a model where one was given."""

    dataset: str
    nodes: int
    events: int
    periods: tuple[Period, ...]
    ceilings: tuple[tuple[Ceiling, tuple[Above, ...]], ...]
    padding: tuple[Padding, ...]
    order: Order
    bias: tuple[Bias, ...]
    rules: tuple[Reached, ...]
    model: str | None
    checks: tuple[Check, ...]

    @property
    def sound(self) -> bool:
        """Whether no score was found to depend on what it must not."""
        return all(check.passed for check in self.checks)

    @property
    def above(self) -> int:
        """Published cells above their ceiling."""
        return sum(len(cells) for _, cells in self.ceilings)

    def page(self, out: Path | str) -> Path:
        """Write it as a page for readers; where it is."""
        from dygmamba.studies.audit.page import write_page

        return write_page(self, Path(out))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines; metrics and shares between 0 and 1, published values as printed."""
        found = asdict(self) | {"sound": self.sound, "above": self.above}
        return found | {
            "ceilings": [
                asdict(one) | {"published_above": [asdict(cell) for cell in cells]}
                for one, cells in self.ceilings
            ]
        }


def audit_stream(
    stream: Stream,
    dataset: str,
    subject: Subject | None = None,
    splits: Sequence[str] = SPLITS,
    watch: Callable[[str], None] = lambda doing: None,
) -> Audit:
    """Audit a stream by the protocol's own questions, and a model if there is one."""
    store, split = stream.store, stream.split
    if not len(split.test):
        raise EventError("the test period has no events; use a longer stream")
    exams = {}
    for question in _questions(stream, splits):
        watch(f"drawing {' '.join(question)}")
        exams[question] = link_exam(store, split, *question)
    moments, tests = Moments(store), [exam for (name, *_), exam in exams.items() if name == "test"]
    watch("asking the oracles")
    ceilings = [ceiling(moments, exam) for exam in exams.values()]
    rules, biases = [], []
    for exam in tests:
        watch("asking simple rules")
        scores = rule_scores(stream, exam, dataset)
        rules += reached(exam, scores)
        biases = biases or bias(exam, {SHOWN: scores[SHOWN], "chance": _chance(exam)})
    asked = link_exam(store, split, "test")
    periods = tuple(period(store, split, name) for name in splits if len(getattr(split, name)))
    checks: list[Check] = []
    if subject is not None:
        watch(f"checking {subject.name}")
        visible = period(store, split, "test").visible
        checks = [
            *depends(subject),
            own_time(subject, visible),
            *below_ceiling(subject, exams.values(), ceilings),
        ]
    return Audit(
        dataset=dataset,
        nodes=store.num_nodes,
        events=len(store),
        periods=periods,
        ceilings=tuple((one, _above(dataset, one)) for one in ceilings),
        padding=tuple(padding(stream, asked, dataset)),
        order=order(store, split.test),
        bias=tuple(biases),
        rules=tuple(rules),
        model=None if subject is None else subject.name,
        checks=tuple(checks),
    )


def _questions(stream: Stream, splits: Sequence[str]) -> list[Question]:
    """Every split, setting and kind of negatives that has events, the test and what is usually reported first."""
    return [
        (name, setting, negatives)
        for name in sorted(splits, key=lambda name: name != "test")
        for setting in SETTINGS
        if has_events(stream.store, stream.split, name, setting)
        for negatives in SAMPLERS
    ]


def _above(dataset: str, one: Ceiling) -> tuple[Above, ...]:
    """Published figures are of the test; each metric is held against the oracle's own."""
    if one.split != "test":
        return ()
    limits = {"ap": 100 * one.edge_oracle_ap, "auc": 100 * one.edge_oracle_auc}
    return tuple(
        Above(model, metric, cell.mean, cell.source, limits[metric] / 100)
        for model, metric, cell in printed(dataset, one.setting, one.negatives)
        if cell.mean > limits[metric]
    )


def _chance(exam: Exam) -> torch.Tensor:
    return torch.rand(len(exam.pairs), generator=torch.Generator().manual_seed(0))
