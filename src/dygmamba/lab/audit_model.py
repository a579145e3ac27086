"""Checks of a model's scores in an audit: what they must not depend on, and the oracles that AP must not exceed."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dygmamba.config import build_config, find_preset
from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventStore
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.stream import Stream
from dygmamba.lab.oracles import Ceiling
from dygmamba.models import find_model
from dygmamba.models.aliases import current_settings
from dygmamba.models.base import DatasetFacts, Scorer
from dygmamba.runs.contract import CheckCase, run_check, sample_pairs, sample_stream
from dygmamba.runs.link_training import separate_settings
from dygmamba.runs.opening import OpenRun
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import link_metrics

# name of a check in the audit -> name of the check in runs.contract
INVARIANCES = {"future": "causal", "batch": "batch", "order": "order", "padding": "padding"}
WINDOW, PAIRS = 500, 24  # events before and after the query time, and number of queries


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """Result of one check; `value` is the size of the violation (0 or close to 0 if there is none)."""

    name: str
    passed: bool
    value: float | None
    detail: str = ""


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
    _, model_settings = separate_settings(find_preset(name, dataset) | current_settings(name, settings))
    config = build_config(spec.config, model_settings)

    def make_builder(facts: DatasetFacts) -> Callable[[], Scorer]:
        def build() -> Scorer:
            # every check builds the model anew and must get the same weights
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                scorer = spec.build(config, facts)
            return scorer.eval() if isinstance(scorer, nn.Module) else scorer

        return build

    def compute_rows(evaluation_sets: Iterable[EvaluationSet]) -> list[dict[str, Any]]:
        if spec.trainable:
            return []
        return [
            evaluation_set.about | {"ap": _compute_ap(build(), stream, evaluation_set)}
            for evaluation_set in evaluation_sets
        ]

    build = make_builder(DatasetFacts.of(stream.store, stream.split.train))
    small = sample_stream()
    synthetic = CheckCase(make_builder(DatasetFacts.of(small)), small, sample_pairs(small))
    return AuditedModel(name, (synthetic, _window_around_test(build, stream)), compute_rows)


def build_audited_run(run: OpenRun, path: Path) -> AuditedModel:
    """Prepare a trained run; its metrics are those that its directory contains."""
    stateful = run.scorer.stateful

    def compute_rows(evaluation_sets: Iterable[EvaluationSet]) -> list[dict[str, Any]]:
        return [row for row in run.folder.results() if row.get("model") == run.about["model"]]

    case = _window_around_test(lambda: deepcopy(run.scorer), run.stream)
    name = f"{run.about['model']} ({path.name})"
    return AuditedModel(name, (case,), compute_rows, stateful and run.rule.visible == "batch")


def _compute_ap(scorer: Scorer, stream: Stream, evaluation_set: EvaluationSet) -> float:
    return link_metrics(
        score_evaluation_set(scorer, stream, evaluation_set),
        evaluation_set.pairs.label,
        evaluation_set.pairs.group,
    ).ap


def _window_around_test(build: Callable[[], Scorer], stream: Stream) -> CheckCase:
    """Return a check case from the middle of the test period: as many events before a timestamp as from it on."""
    store, test = stream.store, stream.split.test
    if not len(test):
        raise EventError("the test period has no events; use a longer stream", code="empty-test-split")
    middle = int(torch.searchsorted(store.time, store.time[test[len(test) // 2]]))
    half = min(WINDOW, middle, len(store) - middle)
    window = store[middle - half : middle + half]
    return CheckCase(build, window, _sample_window_pairs(window))


def _sample_window_pairs(window: EventStore) -> PairBatch:
    """Draw queries from the second half of a window, where nodes have a history.

    Half of them are events, half have the destination of another event.
    """
    rng = torch.Generator().manual_seed(1)
    half = len(window) // 2
    at, other = (half + torch.randint(max(len(window) - half, 1), (PAIRS,), generator=rng) for _ in range(2))
    is_event = torch.arange(PAIRS) % 2 == 0
    return PairBatch.from_pairs(window.src[at], window.dst[torch.where(is_event, at, other)], window.time[at])


def check_invariances(model: AuditedModel) -> list[AuditCheck]:
    """Check that scores do not change with the future, the batch, the row order or padding."""
    checks = []
    for name, contract in INVARIANCES.items():
        results = [run_check(contract, case) for case in model.cases]
        problems = [result.problem for result in results if result.problem is not None]
        differences = [result.difference for result in results if result.difference is not None]
        detail = "; ".join(dict.fromkeys(problems))
        checks.append(AuditCheck(name, not problems, max(differences, default=None), detail))
    return checks


def check_same_time_visibility(model: AuditedModel, visible: float) -> AuditCheck:
    """Check that the memory has not seen events with the timestamp of the query.

    `visible` is the share of test events for which an earlier batch contains such events.
    """
    share = visible if model.sees_query_time else 0.0
    detail = (
        f"for {100 * share:.1f} % of the queries its memory has seen events with the timestamp of the query"
    )
    return AuditCheck("own time", share == 0, share, detail if share else "")


def check_ceiling(
    model: AuditedModel, evaluation_sets: Iterable[EvaluationSet], ceilings: list[Ceiling]
) -> list[AuditCheck]:
    """Check that no AP exceeds the best oracle of its evaluation set; no check if the model has no metrics.

    The oracles know the events of the query time, which a leak-free model has to predict. They are references and not
    upper bounds, and an AP may exceed the expected value by chance: 1 / sqrt(n) is tolerated, with n test events.
    """
    by_evaluation = {(ceiling.split, ceiling.setting, ceiling.negatives): ceiling for ceiling in ceilings}
    largest_excess, detail = None, ""
    for row in model.compute_rows(evaluation_sets):
        ceiling = by_evaluation.get((row["split"], row["setting"], row["negatives"]))
        if ceiling is None:
            continue
        limit = max(ceiling.edge_oracle_ap_untied, ceiling.reference_ap)
        excess = row["ap"] - limit
        largest_excess = excess if largest_excess is None else max(largest_excess, excess)
        if excess > 1 / sqrt(ceiling.events):
            detail = (
                f"{row['split']}, {row['setting']}, {row['negatives']} negatives: AP {100 * row['ap']:.2f} is above "
                f"{100 * limit:.2f}, the best oracle that knows the events of the query time"
            )
    return [] if largest_excess is None else [AuditCheck("ceiling", not detail, largest_excess, detail)]
