"""What a model's score depends on, asked of the model itself: on the stream, and on a small one made for it."""

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
from dygmamba.models.base import DatasetFacts, Scorer
from dygmamba.runs.contract import CheckCase, run_check, sample_pairs, sample_stream
from dygmamba.runs.link_training import separate_settings
from dygmamba.runs.opening import OpenRun
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import link_metrics

INVARIANCES = {
    "future": "causal",
    "batch": "batch",
    "order": "order",
    "padding": "padding",
}  # ours: the contract's
WINDOW, PAIRS = 500, 24  # events before and after the moment that is asked about, and pairs asked


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """Whether a score keeps away from what it must not depend on; `value` is by how much it does not."""

    name: str
    passed: bool
    value: float | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AuditedModel:
    """A model that is audited: how it is built on a stream, and what its figures on the protocol's questions are."""

    name: str
    benches: tuple[CheckCase, ...]
    figures: Callable[[Iterable[EvaluationSet]], list[dict[str, Any]]]
    sees_own_time: bool = False


def audit_named_model(name: str, settings: dict[str, Any], stream: Stream, dataset: str) -> AuditedModel:
    """A model with untrained weights; one that needs no training also has figures."""
    spec = find_model(name)
    _, own = separate_settings(find_preset(name, dataset) | settings)
    config = build_config(spec.config, own)

    def builder(facts: DatasetFacts) -> Callable[[], Scorer]:
        def build() -> Scorer:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                scorer = spec.build(config, facts)
            return scorer.eval() if isinstance(scorer, nn.Module) else scorer

        return build

    def figures(evaluation_sets: Iterable[EvaluationSet]) -> list[dict[str, Any]]:
        if spec.trainable:
            return []
        return [
            evaluation_set.about | {"ap": _compute_ap(build(), stream, evaluation_set)}
            for evaluation_set in evaluation_sets
        ]

    build = builder(DatasetFacts.of(stream.store, stream.split.train))
    small = sample_stream()
    made = CheckCase(builder(DatasetFacts.of(small)), small, sample_pairs(small))
    return AuditedModel(name, (made, _window_around_test(build, stream)), figures)


def audit_run(run: OpenRun, path: Path) -> AuditedModel:
    """A trained run; its figures are those its folder holds."""
    stateful = run.scorer.stateful

    def figures(evaluation_sets: Iterable[EvaluationSet]) -> list[dict[str, Any]]:
        return [row for row in run.folder.results() if row.get("model") == run.about["model"]]

    bench = _window_around_test(lambda: deepcopy(run.scorer), run.stream)
    name = f"{run.about['model']} ({path.name})"
    return AuditedModel(name, (bench,), figures, stateful and run.rule.visible == "batch")


def _compute_ap(scorer: Scorer, stream: Stream, evaluation_set: EvaluationSet) -> float:
    return link_metrics(
        score_evaluation_set(scorer, stream, evaluation_set),
        evaluation_set.pairs.label,
        evaluation_set.pairs.group,
    ).ap


def _window_around_test(build: Callable[[], Scorer], stream: Stream) -> CheckCase:
    """The stream around the middle of its test, as many events before a moment as from it on, and pairs that meet."""
    store, test = stream.store, stream.split.test
    if not len(test):
        raise EventError("the test period has no events; use a longer stream")
    moment = int(torch.searchsorted(store.time, store.time[test[len(test) // 2]]))
    half = min(WINDOW, moment, len(store) - moment)
    window = store[moment - half : moment + half]
    return CheckCase(build, window, _sample_window_pairs(window))


def _sample_window_pairs(window: EventStore) -> PairBatch:
    """Events of the second half, and their sources with the destinations of others; nodes that have a past."""
    rng = torch.Generator().manual_seed(1)
    half = len(window) // 2
    at, other = (half + torch.randint(max(len(window) - half, 1), (PAIRS,), generator=rng) for _ in range(2))
    real = torch.arange(PAIRS) % 2 == 0
    return PairBatch.of(window.src[at], window.dst[torch.where(real, at, other)], window.time[at])


def check_invariances(subject: AuditedModel) -> list[AuditCheck]:
    """Future, batch, order and padding: what moves a score that none of them may move."""
    checks = []
    for name, contract in INVARIANCES.items():
        found = [run_check(contract, bench) for bench in subject.benches]
        broken = [one.broken for one in found if one.broken is not None]
        moved = [one.moved for one in found if one.moved is not None]
        checks.append(
            AuditCheck(name, not broken, max(moved, default=None), "; ".join(dict.fromkeys(broken)))
        )
    return checks


def check_same_time_visibility(subject: AuditedModel, visible: float) -> AuditCheck:
    """Whether its memory was told of events of the question's own time, and of how many questions that holds."""
    share = visible if subject.sees_own_time else 0.0
    detail = f"its memory is told of earlier batches of the same time in {100 * share:.1f} % of the questions"
    return AuditCheck("own time", share == 0, share, detail if share else "")


def check_ceiling(
    subject: AuditedModel, evaluation_sets: Iterable[EvaluationSet], ceilings: list[Ceiling]
) -> list[AuditCheck]:
    """Whether its figures are such as a score of pair, time and past can have; none where it has no figures.

    One figure may be above what is expected by chance: by 1 / sqrt(n), n the events of the test.
    """
    by_question = {(one.split, one.setting, one.negatives): one for one in ceilings}
    worst, detail = None, ""
    for row in subject.figures(evaluation_sets):
        one = by_question.get((row["split"], row["setting"], row["negatives"]))
        if one is None:
            continue
        excess = row["ap"] - one.edge_oracle_ap_untied
        worst = excess if worst is None else max(worst, excess)
        if excess > 1 / sqrt(one.events):
            detail = (
                f"{row['split']}, {row['setting']}, {row['negatives']}: AP {100 * row['ap']:.2f}, "
                f"where {100 * one.edge_oracle_ap_untied:.2f} is the most that pair, time and past allow"
            )
    return [] if worst is None else [AuditCheck("ceiling", not detail, worst, detail)]
