"""Audit of a dataset and a model: oracles of its test set, published values above them, baselines, checks.

The result is written as JSON values or as an HTML page without scripts.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dygmamba.auditing.audit_document import build_audit_document
from dygmamba.auditing.model_checks import (
    AuditedModel,
    check_ceiling,
    check_invariances,
    check_same_time_visibility,
)
from dygmamba.auditing.oracles import METRIC_NAMES, Ceiling, EventsByTime, compute_ceiling
from dygmamba.core.choices import PUBLISHED_NEGATIVES, SCOPES, SPLITS
from dygmamba.core.errors import EventError
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.engine.stream import Stream
from dygmamba.report.document import Document
from dygmamba.report.html import write_page
from dygmamba.report.published import METRICS, list_published_values
from dygmamba.runs.baselines import Baselines
from dygmamba.runs.evaluation import Queries, Row
from dygmamba.tasks.link import build_link_set, has_events
from dygmamba.tasks.metrics import PUBLISHED_BATCH
from dygmamba.testing import CheckResult

EvaluationKey = tuple[str, str, str]  # split, setting, negatives


@dataclass(frozen=True, slots=True)
class PeriodStatistics:
    """Statistics of the validation or test period; shares of its events unless noted otherwise."""

    split: str
    events: int
    times: int
    nodes: int
    repeats: float  # the pair had an event at an earlier time
    surprise: float  # share of the period's distinct pairs that do not occur before the period
    new_nodes: float  # one node does not occur in training
    tied: float  # another event has the same timestamp
    visible: float  # an earlier batch of 200 contains events with the same timestamp
    visible_events: float  # mean number of those events


def describe_period(store: EventStore, split: Split, name: str) -> PeriodStatistics:
    """Compute the statistics of the period `name`, "val" or "test"."""
    events = split.val if name == "val" else split.test
    all_times, all_pairs = store.time.numpy(), (store.src * store.num_nodes + store.dst).numpy()
    pair, time = all_pairs[events], all_times[events]
    known_pairs, first_row = np.unique(all_pairs, return_index=True)
    first_time = all_times[first_row[np.searchsorted(known_pairs, pair)]]
    earlier_pairs = np.unique(all_pairs[: int(events[0])])
    distinct_pairs = np.unique(pair)
    distinct_times, time_index, count = np.unique(time, return_inverse=True, return_counts=True)
    first = np.searchsorted(time, time)  # first row of the period with the same timestamp
    batch_start = np.arange(len(pair)) // PUBLISHED_BATCH * PUBLISHED_BATCH
    visible = np.maximum(batch_start - first, 0)
    touching = split.touching_new_nodes(store, events)
    return PeriodStatistics(
        split=name,
        events=len(pair),
        times=len(distinct_times),
        nodes=len(torch.unique(torch.cat([store.src[events], store.dst[events]]))),
        repeats=float((first_time < time).mean()),
        surprise=float((~np.isin(distinct_pairs, earlier_pairs)).mean()),
        new_nodes=len(touching) / len(pair),
        tied=float((count[time_index] > 1).mean()),
        visible=float((visible > 0).mean()),
        visible_events=float(visible.mean()),
    )


@dataclass(frozen=True, slots=True)
class PublishedAboveCeiling:
    """A published value above the edge oracle; `value` is the percentage as printed, the others are between 0 and 1.

    `ceiling` is the metric of the edge oracle, `reference` that of the best one.
    """

    model: str
    metric: str
    value: float
    source: str
    ceiling: float
    reference: float


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of an audit. The field names are those of the JSON output."""

    dataset: str
    nodes: int
    events: int
    periods: tuple[PeriodStatistics, ...]
    ceilings: tuple[tuple[Ceiling, tuple[PublishedAboveCeiling, ...]], ...]
    rules: tuple[Row, ...]  # of baselines
    model: str | None
    checks: tuple[CheckResult, ...]

    @property
    def sound(self) -> bool:
        """Whether all checks of the model passed."""
        return all(check.passed for check in self.checks)

    @property
    def above(self) -> int:
        """Number of published values above the edge oracle."""
        return sum(len(published) for _, published in self.ceilings)

    @property
    def above_reference(self) -> int:
        """Number of published values above the best oracle."""
        values = [value for _, published in self.ceilings for value in published]
        return sum(value.value > 100 * value.reference for value in values)

    @property
    def document(self) -> Document:
        """The audit as tables, texts and a chart."""
        return build_audit_document(self)

    def page(self, out: Path | str) -> Path:
        """Write the audit as an HTML page and return its path."""
        return write_page(self.document, Path(out))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; metrics and shares are between 0 and 1, published values as printed."""
        return asdict(self) | {
            "sound": self.sound,
            "above": self.above,
            "above_reference": self.above_reference,
            "ceilings": [
                asdict(ceiling) | {"published_above": [asdict(value) for value in published]}
                for ceiling, published in self.ceilings
            ],
        }


def audit_stream(
    stream: Stream,
    dataset: str,
    model: AuditedModel | None = None,
    progress: Progress = SILENT,
) -> Audit:
    """Audit a stream, and a model if one is given, with the negatives of DyGLib, whose oracles are known."""
    store, split = stream.store, replace(stream.split, protocol="benchmark")
    if not len(split.test):
        raise EventError("the test period has no events; use a longer stream", code="empty-split")
    evaluation_sets = {}
    for key in _list_evaluations(stream):
        with progress.stage(f"drawing {' '.join(key)}"):
            evaluation_sets[key] = build_link_set(store, split, *key)
    events_by_time = EventsByTime(store)
    with progress.stage("computing oracle ceilings"):
        ceilings = [
            compute_ceiling(events_by_time, evaluation_set) for evaluation_set in evaluation_sets.values()
        ]
    baselines, rules = Baselines(dataset, stream), []
    for (name, *_), evaluation_set in evaluation_sets.items():
        if name == "test":
            with progress.stage("scoring baselines"):
                scored = baselines.score(Queries(evaluation_set))
            about = evaluation_set.about
            rules += [{"rule": rule, **about, **one.row(METRIC_NAMES)} for rule, one in scored.items()]
    checks: list[CheckResult] = []
    if model is not None:
        visible = describe_period(store, split, "test").visible
        with progress.stage(f"checking {model.name}"):
            checks = [
                *check_invariances(model),
                check_same_time_visibility(model, visible),
                *check_ceiling(model, events_by_time, list(evaluation_sets.values()), ceilings),
            ]
    return Audit(
        dataset=dataset,
        nodes=store.num_nodes,
        events=len(store),
        periods=tuple(describe_period(store, split, name) for name in SPLITS if len(getattr(split, name))),
        ceilings=tuple((ceiling, list_published_above(dataset, ceiling)) for ceiling in ceilings),
        rules=tuple(rules),
        model=None if model is None else model.name,
        checks=tuple(checks),
    )


def _list_evaluations(stream: Stream) -> list[EvaluationKey]:
    """Return every split, setting and negative sampler that has events, the test split first."""
    return [
        (name, setting, negatives)
        for name in sorted(SPLITS, key=lambda name: name != "test")
        for setting in SCOPES
        if has_events(stream.store, stream.split, name, setting)
        for negatives in PUBLISHED_NEGATIVES
    ]


def list_published_above(dataset: str, ceiling: Ceiling) -> tuple[PublishedAboveCeiling, ...]:
    """Return the published values above the edge oracle's; all published values are of the test split."""
    if ceiling.split != "test":
        return ()
    limits = {
        metric: (getattr(ceiling, f"edge_oracle_{metric}"), getattr(ceiling, f"reference_{metric}"))
        for metric in METRICS
    }
    return tuple(
        PublishedAboveCeiling(model, metric, value.mean, value.source, *limits[metric])
        for model, metric, value in list_published_values(dataset, ceiling.setting, ceiling.negatives)
        if value.mean > 100 * limits[metric][0]
    )
