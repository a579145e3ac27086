"""Final evaluation of a trained run: the best weights and simple heuristics on the same evaluation sets.

The verdict says whether the run beats the best heuristic. The test events are cut into consecutive blocks, the average
precision of both is computed in each block, and a difference of the reported AP beyond two standard errors over the
blocks counts as significant.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dygmamba.core.progress import Advance, Progress, no_advance
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.models.base import Scorer
from dygmamba.runs.calibration import ReliabilityRecorder, fit_link_calibration
from dygmamba.runs.evaluation import (
    EvaluationKey,
    HeuristicEvaluator,
    Ranking,
    Row,
    build_link_row,
    build_score_factor,
    compute_link_metrics,
    describe_queries,
)
from dygmamba.runs.node_training import build_node_row
from dygmamba.runs.stored_predictions import ScoreCallback
from dygmamba.sampling.negatives import PUBLISHED_SEEDS
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import fit_calibration
from dygmamba.tasks.link import SETTINGS, SPLITS, build_link_set, has_events
from dygmamba.tasks.metric_names import DEFAULT_CANDIDATES
from dygmamba.tasks.metrics import average_precision, get_error_name
from dygmamba.tasks.node import NodeTask
from dygmamba.tasks.query_types import merge_by_type
from dygmamba.tasks.statistics import SIGNIFICANT_ERRORS, Difference, compute_by_block, standard_error

HEURISTICS = (
    "edgebank",
    "popularity",
    "decayed-popularity",
    "recency",
    "destination-recency",
    "source-recency",
    "pair-recency",
    "recency-regression",
)
RANK_METRICS = ("mrr", "hits@10")
MIN_RANKED_EVENTS = 1_000  # per setting
RANKING_SECONDS = 2.0  # per setting, more for models that rank fewer than MIN_RANKED_EVENTS in this time
# Of one pair and token on one core, measured for boosted trees, which are the fastest (docs/research/log.md).
TOKEN_SECONDS = 8e-6


@dataclass(frozen=True, slots=True)
class FinalEvaluation:
    """Result rows of the run and of the heuristics, the comparison of both, and the fitted source activity."""

    rows: list[Row]
    rules: list[Row]  # of the heuristics
    verdict: Row
    activity: Row  # empty without `activity`


def run_final_evaluation(
    fit: Trainer, about: Row, keys: list[EvaluationKey], progress: Progress, on_scores: ScoreCallback
) -> FinalEvaluation:
    """Calibrate a link run, evaluate it and the heuristics on each key that has events, and add rank metrics.

    Args:
        fit: The run, with its best weights.
        about: Columns that all rows share.
        keys: Negatives, split and setting of each row; the verdict is about the first one of the test period.
        progress: One stage per evaluation set.
        on_scores: Called with each evaluation set and the run's scores.
    """
    assert isinstance(fit.scorer, Scorer)
    assert isinstance(fit.config, LinkFitConfig)
    stream, rule = fit.stream, fit.config.rule
    # heuristics are look-ups, which are fast enough on the CPU
    cpu_stream = stream if stream.device.type == "cpu" else replace(stream, device=torch.device("cpu"))
    heuristics = HeuristicEvaluator(about["dataset"], cpu_stream, rule)
    calibration, scored = fit_link_calibration(fit, progress)
    score_factor = build_score_factor(fit.config.activity, cpu_stream)
    recorder = ReliabilityRecorder.for_links(fit.run, calibration)
    rows, heuristic_rows, verdict = [], [], {}
    for key in keys:
        strategy, name, setting = key
        if not has_events(stream.store, stream.split, name, setting):
            continue
        is_new = key not in scored  # the calibration has scored its sets already
        evaluation_set = (
            build_link_set(stream.store, stream.split, name, setting, strategy) if is_new else scored[key][0]
        )
        total = len(evaluation_set.pairs) * (is_new + len(HEURISTICS))
        with progress.stage(f"{name} {setting} {strategy}", total) as stage:
            score = (
                score_evaluation_set(fit.scorer, stream, evaluation_set, rule, fit.seed, stage.advance)
                if is_new
                else scored[key][1]
            )
            score, columns = score_factor(evaluation_set, score, fit.score)
            heuristic_scores = score_heuristics(heuristics, evaluation_set, stage.advance)
        on_scores(evaluation_set, score)
        recorder.record(evaluation_set, score, calibration.probability(score, evaluation_set))
        columns = about | evaluation_set.about | rule.about | describe_queries(fit.scorer) | columns
        row = build_link_row(stream, evaluation_set, score, columns, calibration)
        rows.append(row)
        shared = {
            "dataset": about["dataset"],
            "seed": PUBLISHED_SEEDS[name, setting],
            **evaluation_set.about,
            **rule.about,
        }
        metrics = {
            model: compute_link_metrics(stream, evaluation_set, scores)
            for model, scores in heuristic_scores.items()
        }
        heuristic_rows += [{"model": model, **shared, **values} for model, values in metrics.items()]
        if name == "test" and not verdict:
            best = max(metrics, key=lambda model: metrics[model]["ap"])
            gap = row["ap"] - metrics[best]["ap"]
            verdict = compare_with_heuristic(score, heuristic_scores[best], evaluation_set, gap, best)
    recorder.save()
    return FinalEvaluation(add_rank_metrics(fit, rows, progress), heuristic_rows, verdict, score_factor.about)


def score_heuristics(
    evaluator: HeuristicEvaluator, evaluation_set: EvaluationSet, advance: Advance = no_advance
) -> dict[str, Tensor]:
    """Score an evaluation set with every heuristic that can tell positives from negatives in it.

    A rule that looks at the source alone cannot where negatives keep the source: its AP would be 50 by definition.
    """
    scores = {model: evaluator.score(model, evaluation_set, advance) for model in HEURISTICS}
    told_apart = {model: score for model, score in scores.items() if tells_pairs_apart(score, evaluation_set)}
    return told_apart or scores


def tells_pairs_apart(score: Tensor, evaluation_set: EvaluationSet) -> bool:
    """Return whether any positive and its negative have different scores."""
    pairs = evaluation_set.pairs
    by_event = torch.zeros(2, int(pairs.group.max()) + 1, dtype=score.dtype)
    by_event[pairs.label.long(), pairs.group] = score
    return not torch.equal(by_event[0], by_event[1])


def run_final_node_evaluation(fit: Trainer, progress: Progress, on_scores: ScoreCallback) -> list[Row]:
    """Evaluate a node run on every split; one with two states is first calibrated on the validation period.

    `on_scores` is called with each evaluation set and its scores if the target has two states.
    """
    assert isinstance(fit.task, NodeTask)
    is_binary = fit.task.target.kind == "binary"
    sets, scores = {name: fit.task.evaluation_set(name) for name in SPLITS}, {}
    for name, evaluation_set in sets.items():
        with progress.stage(name, len(evaluation_set.pairs)) as stage:
            scores[name] = fit.score(evaluation_set, stage.advance)
        if is_binary:
            on_scores(evaluation_set, scores[name])
    if not is_binary:
        return [build_node_row(fit, one, scores[name], None) for name, one in sets.items()]
    calibration = fit_calibration(scores["val"], sets["val"].pairs.label)
    recorder = ReliabilityRecorder(fit.run, calibration)
    if len(sets["test"].events):
        recorder.record(sets["test"], scores["test"], calibration.probability(scores["test"]))
    recorder.save()
    return [
        build_node_row(fit, evaluation_set, scores[name], calibration)
        for name, evaluation_set in sets.items()
    ]


def compare_with_heuristic(
    own: Tensor, other: Tensor, evaluation_set: EvaluationSet, gap: float, rule: str
) -> Row:
    """Test whether a run is significantly above a heuristic on an evaluation set.

    Args:
        own: Scores of the run.
        other: Scores of the heuristic.
        evaluation_set: The pairs that both score.
        gap: AP of the run minus AP of the heuristic, over the whole set.
        rule: Name of the heuristic.

    Returns:
        The figures, `stands` ("above", "level", "below" or "unknown") and a `sentence` for people.
    """
    events = len(evaluation_set.events)
    values = [np.array(compute_by_block(average_precision, score, evaluation_set)) for score in (own, other)]
    about = {
        "rule": rule,
        "metric": "ap",
        "difference": gap,
        "blocks": len(values[0]),
        **evaluation_set.about,
    }
    if len(values[0]) < 2:
        sentence = f"the test has {events} events, too few to say whether this is above the rule `{rule}`"
        return {**about, "spread": None, "stands": "unknown", "sentence": sentence}
    spread = standard_error(values[0] - values[1])
    assert spread is not None
    stands = Difference(gap, spread).stands
    sentence = _describe_verdict(stands, gap, spread, rule)
    return {**about, "spread": spread, "stands": stands, "sentence": sentence}


def _describe_verdict(stands: str, gap: float, spread: float, rule: str) -> str:
    points = f"{abs(100 * gap):.1f} points"
    error = f"(test AP, ± {100 * SIGNIFICANT_ERRORS * spread:.1f})"
    if stands == "above":
        return f"{points} above the best simple rule, {rule} {error}"
    if stands == "below":
        return f"a simple rule is better: use `{rule}`, {points} above this run {error}"
    side = "above" if gap >= 0 else "below"
    return f"a simple rule is as good: use `{rule}`; {points} {side} it is within chance {error}"


def add_rank_metrics(
    fit: Trainer, rows: list[Row], progress: Progress, settings: Sequence[str] = SETTINGS
) -> list[Row]:
    """Add MRR and Hits@10 with their standard errors to the rows of these settings' test; None in the other rows."""
    store, split = fit.stream.store, fit.stream.split
    scorer: Any = fit.scorer
    ranking = Ranking(RANK_METRICS, max_events=count_affordable_events(scorer))
    ranks: dict[tuple[str, str], Row] = {}
    for setting in settings:
        # with a single destination there is no candidate to rank against
        if has_events(store, split, "test", setting) and len(store.dst.unique()) > 1:
            evaluation_set = build_link_set(store, split, "test", setting)
            with progress.stage(f"ranks, test {setting}", ranking.count_pairs(evaluation_set)) as stage:
                ranks["test", setting] = ranking.evaluate(
                    scorer, fit.stream, evaluation_set, fit.config.rule, fit.seed, stage.advance
                )
    return [add_rank_columns(row, ranks.get((row["split"], row["setting"]), {})) for row in rows]


def add_rank_columns(row: Row, ranks: Row) -> Row:
    """Return a result row with the rank metrics of the same events; None if they were not ranked."""
    names = (*RANK_METRICS, *map(get_error_name, RANK_METRICS), "candidates", "candidate_seed")
    by_type = merge_by_type(row["by_type"], ranks.get("by_type", {}))
    return row | {name: ranks.get(name) for name in names} | {"ranked": ranks.get("n"), "by_type": by_type}


def count_affordable_events(scorer: Scorer) -> int:
    """Return how many events per setting to rank: what takes about two seconds, but at least 1,000.

    Computed from the entries that the model looks up for a pair instead of measured, so that the same run always has
    the same figures.
    """
    tokens = max(1, sum(request.tokens for request in scorer.requests))
    events = RANKING_SECONDS / (TOKEN_SECONDS * tokens * (1 + DEFAULT_CANDIDATES))
    return max(MIN_RANKED_EVENTS, int(events))
