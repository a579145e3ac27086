"""The last word on a link run: its best weights and simple rules on the same exams, and which of them is to be used.

Whether the run is above the best rule is decided by the spread of the test: its events are cut into consecutive blocks,
in each the average precision of both is taken, and the mean of the differences counts as more than chance beyond two of
its standard errors. Blocks are consecutive, so that what is special about a week is in few of them.
"""

from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.fit import Stage, Trainer
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.models.base import Scorer
from dygmamba.runs.calibration import FITTED_ON, ReliabilityRecorder, add_rank_metrics, fit_link_calibration
from dygmamba.runs.evaluation import build_score_factor
from dygmamba.runs.link_training import Choice, HeuristicEvaluator, build_link_row
from dygmamba.runs.test_predictions import ScoreCallback
from dygmamba.sampling.negatives import PUBLISHED_SEEDS
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.link import build_link_set, has_events
from dygmamba.tasks.metrics import average_precision, link_metrics

HEURISTICS = ("edgebank", "popularity", "recency", "source-recency")
MAX_BLOCKS, MIN_BLOCK_EVENTS = 30, 20  # at most so many blocks, of at least so many events
SIGNIFICANT_ERRORS = 2.0  # standard errors

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FinalEvaluation:
    """What the final evaluation found."""

    rows: list[Row]
    rules: list[Row]
    verdict: Row
    activity: Row  # the rate of sources and its weights, where the run counts that


def run_final_evaluation(
    fit: Trainer, about: Row, chosen: list[Choice], stage: Stage, told: ScoreCallback
) -> FinalEvaluation:
    """The calibration, then every exam that has events, put to the run and to the rules, then some ranks.

    The verdict is on the first exam of the test.

    `told` is told of each exam and the run's scores.
    """
    assert isinstance(fit.scorer, Scorer)
    assert isinstance(fit.config, LinkFitConfig)
    stream, rule = fit.stream, fit.config.rule
    here = stream if stream.device.type == "cpu" else replace(stream, device=torch.device("cpu"))
    heuristics = HeuristicEvaluator(about["dataset"], here, rule)
    calibration, known = fit_link_calibration(fit, stage)
    factored = build_score_factor(fit.config.activity, here)
    curves = ReliabilityRecorder(fit.run, calibration)
    rows, rules, verdict = [], [], {}
    for strategy, name, setting in chosen:
        if not has_events(stream.store, stream.split, name, setting):
            continue
        asked = (strategy, name, setting) != FITTED_ON
        evaluation_set = (
            build_link_set(stream.store, stream.split, name, setting, strategy) if asked else known[0]
        )
        with stage(
            f"{name} {setting} {strategy}", len(evaluation_set.pairs) * (asked + len(HEURISTICS))
        ) as advance:
            score = (
                score_evaluation_set(fit.scorer, stream, evaluation_set, rule, fit.seed, advance)
                if asked
                else known[1]
            )
            score, weighed = factored(evaluation_set, score, fit.examine)
            scores = {about["model"]: score}
            for model in HEURISTICS:
                scores[model] = heuristics.scores(model, evaluation_set, advance)
        told(evaluation_set, score)
        curves.see(evaluation_set, score)
        simple = [_compute_metrics(scores[model], evaluation_set) for model in HEURISTICS]
        rows.append(
            own := build_link_row(
                evaluation_set, score, about | evaluation_set.about | rule.about | weighed, calibration
            )
        )
        named = {
            "dataset": about["dataset"],
            "seed": PUBLISHED_SEEDS[name, setting],
            **evaluation_set.about,
            **rule.about,
        }
        rules += [{"model": model, **named, **found} for model, found in zip(HEURISTICS, simple, strict=True)]
        if name == "test" and not verdict:
            best = max(range(len(HEURISTICS)), key=lambda place: simple[place]["ap"])
            pair = (score, scores[HEURISTICS[best]])
            verdict = compare_with_heuristic(
                *pair, evaluation_set, own["ap"] - simple[best]["ap"], HEURISTICS[best]
            )
    curves.save()
    return FinalEvaluation(add_rank_metrics(fit, rows, stage), rules, verdict, factored.about)


def compare_with_heuristic(
    own: Tensor, other: Tensor, evaluation_set: EvaluationSet, gap: float, rule: str
) -> Row:
    """How far a run is above a rule on an exam, whether that is more than chance, and a sentence on it."""
    blocks = min(MAX_BLOCKS, len(evaluation_set.events) // MIN_BLOCK_EVENTS)
    about = {"rule": rule, "metric": "ap", "difference": gap, "blocks": blocks, **evaluation_set.about}
    if blocks < 2:
        said = f"the test has {len(evaluation_set.events)} events, too few to say whether this is above the rule `{rule}`"
        return {**about, "spread": None, "stands": "unknown", "sentence": said}
    label, block = evaluation_set.pairs.label, evaluation_set.number * blocks // len(evaluation_set.events)
    gaps = [
        average_precision(own[block == k], label[block == k])
        - average_precision(other[block == k], label[block == k])
        for k in range(blocks)
    ]
    spread = float(np.std(gaps, ddof=1)) / sqrt(blocks)
    mean = float(np.mean(gaps))
    stands = (
        "above"
        if mean > SIGNIFICANT_ERRORS * spread
        else "below"
        if mean < -SIGNIFICANT_ERRORS * spread
        else "level"
    )
    return {
        **about,
        "spread": spread,
        "stands": stands,
        "sentence": _describe_verdict(stands, gap, spread, rule),
    }


def _describe_verdict(stands: str, gap: float, spread: float, rule: str) -> str:
    points = f"{abs(100 * gap):.1f} points"
    sure = f"(test AP, ± {100 * SIGNIFICANT_ERRORS * spread:.1f})"
    if stands == "above":
        return f"{points} above the best simple rule, {rule} {sure}"
    if stands == "below":
        return f"a simple rule is better: use `{rule}`, {points} above this run {sure}"
    side = "above" if gap >= 0 else "below"
    return f"a simple rule is as good: use `{rule}`; {points} {side} it is within chance {sure}"


def _compute_metrics(score: Tensor, evaluation_set: EvaluationSet) -> Row:
    return asdict(link_metrics(score, evaluation_set.pairs.label, evaluation_set.pairs.group))
