"""A model or run under audit: the streams it is checked on, what its memory sees, and whether its AP is possible."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch

from dygmamba.auditing.oracles import Ceiling, EventsByTime, measure_tie_luck
from dygmamba.config import build_config, find_preset
from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventStore
from dygmamba.engine.stream import Stream
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.runs.evaluation import Queries, evaluate_queries
from dygmamba.runs.link_training import separate_settings
from dygmamba.runs.recipes import OpenRun
from dygmamba.tasks.base import EvaluationSet
from dygmamba.testing import (
    CheckCase,
    CheckResult,
    build_case,
    list_audit_checks,
    sample_queries,
    sample_stream,
)

WINDOW = 500  # events before and after the query time
ROUNDING = 1e-9  # of an AP that equals its limit
LEVEL = 0.01  # probability with which luck alone may fail the ceiling check of an audit
MIN_EVENTS = 50  # of an evaluation set; on fewer an AP above the oracles is often chance
EVALUATION = ("split", "setting", "negatives")  # what identifies an evaluation set in a result row


@dataclass(frozen=True, slots=True)
class AuditedModel:
    """A model under audit.

    Attributes:
        name: Name in the report.
        cases: Streams on which its invariances are checked.
        compute_rows: Returns its rows of metrics on the evaluation sets; empty if it has none.
        sees_query_time: Whether its memory may have seen events with the timestamp of the query.
    """

    name: str
    cases: tuple[CheckCase, ...]
    compute_rows: Callable[[Iterable[EvaluationSet]], list[dict[str, Any]]]
    sees_query_time: bool = False


def build_audited_model(name: str, settings: dict[str, Any], stream: Stream, dataset: str) -> AuditedModel:
    """Prepare a registered model with untrained weights; it has metrics only if it needs no training."""
    spec = find_model(name)
    _, model_settings = separate_settings(find_preset(name, dataset) | settings)
    config = build_config(spec.config, model_settings)

    def compute_rows(evaluation_sets: Iterable[EvaluationSet]) -> list[dict[str, Any]]:
        if spec.trainable:
            return []
        scored = [
            evaluate_queries(spec.build(config, facts), stream, Queries(one)) for one in evaluation_sets
        ]
        return [one.about | {"ap": one.link["ap"]} for one in scored]

    facts, small = DatasetFacts.of(stream.store, stream.split.train), sample_stream()
    synthetic = build_case(spec, config, small, DatasetFacts.of(small))
    own = build_case(spec, config, _select_window(stream), facts)
    return AuditedModel(name, (synthetic, own), compute_rows)


def build_audited_run(run: OpenRun, path: Path) -> AuditedModel:
    """Prepare a trained run; its metrics are those that its directory contains, if they have the same negatives."""
    stateful = run.scorer.stateful

    def compute_rows(evaluation_sets: Iterable[EvaluationSet]) -> list[dict[str, Any]]:
        stored = [row for row in run.folder.results() if row.get("model") == run.model]
        rows = []
        for one in evaluation_sets:
            # rows from before they said what negatives are drawn from have those of the audit
            found = (
                row
                for row in stored
                if one.about == {name: row.get(name, one.about[name]) for name in one.about}
            )
            row = next(found, None)
            if row is None:
                scored = evaluate_queries(run.scorer, run.stream, Queries(one), run.rule, run.seed)
                row = scored.about | {"ap": scored.link["ap"]}
            rows.append(row)
        return rows

    window = _select_window(run.stream)
    case = CheckCase(lambda: deepcopy(run.scorer), window, sample_queries(window))
    name = f"{run.model} ({path.name})"
    return AuditedModel(name, (case,), compute_rows, stateful and run.rule.visible == "batch")


def _select_window(stream: Stream) -> EventStore:
    """Return the middle of the test period: as many events before a timestamp as from it on."""
    store, test = stream.store, stream.split.test
    if not len(test):
        raise EventError("the test period has no events; use a longer stream", code="empty-split")
    middle = int(torch.searchsorted(store.time, store.time[test[len(test) // 2]]))
    half = min(WINDOW, middle, len(store) - middle)
    return store[middle - half : middle + half]


def check_invariances(model: AuditedModel) -> list[CheckResult]:
    """Check that scores do not change with the future, the batch, the row order, padding, labels or earlier queries."""
    return [check.run(model.cases, name) for name, check in list_audit_checks().items()]


def check_same_time_visibility(model: AuditedModel, visible: float) -> CheckResult:
    """Check that the memory has not seen events with the timestamp of the query.

    `visible` is the share of test events for which an earlier batch contains such events.
    """
    share = visible if model.sees_query_time else 0.0
    detail = (
        f"for {100 * share:.1f} % of the queries its memory has seen events with the timestamp of the query"
    )
    return CheckResult("own time", share == 0, share, detail if share else "")


def check_ceiling(
    model: AuditedModel,
    events_by_time: EventsByTime,
    evaluation_sets: Iterable[EvaluationSet],
    ceilings: list[Ceiling],
) -> list[CheckResult]:
    """Check that no AP exceeds the ceiling of its evaluation set; no check if the model has no metrics.

    The best oracle knows the events of the query time, which a leak-free model has to predict. It is a reference and no
    upper bound: a model that knows as much gives tied pairs some order and may be lucky. Luck is tolerated up to what a
    random order exceeds in one audit of a hundred. Sets with fewer than `MIN_EVENTS` events are not compared.
    """
    by_evaluation = {
        tuple(one.about[name] for name in EVALUATION): (one, ceiling)
        for one, ceiling in zip(evaluation_sets, ceilings, strict=True)
        if ceiling.events >= MIN_EVENTS
    }
    found = model.compute_rows([one for one, _ in by_evaluation.values()])
    rows = [(row, *by_evaluation[tuple(row[name] for name in EVALUATION)]) for row in found]
    largest_excess, detail = None, ""
    for row, evaluation_set, ceiling in rows:
        pairs = evaluation_set.pairs
        luck = NormalDist().inv_cdf(1 - LEVEL / len(rows)) * measure_tie_luck(
            pairs, events_by_time.is_event(pairs)
        )
        limit = max(ceiling.edge_oracle_ap_untied, ceiling.reference_ap) + luck
        excess = row["ap"] - limit
        largest_excess = excess if largest_excess is None else max(largest_excess, excess)
        if excess > ROUNDING:
            detail = (
                f"{row['split']}, {row['setting']}, {row['negatives']} negatives: AP {100 * row['ap']:.2f} is above "
                f"{100 * limit:.2f}, what knowledge of the events of the query time and luck give"
            )
    return [] if largest_excess is None else [CheckResult("ceiling", not detail, largest_excess, detail)]
