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

from dygmamba.engine.examine import examine
from dygmamba.engine.fit import Fit, Stage
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.models.base import Scorer
from dygmamba.runs.calibrating import ASKED, Curves, fitted, with_ranks
from dygmamba.runs.factoring import factoring
from dygmamba.runs.link import Choice, Heuristics, link_row
from dygmamba.runs.tested import Told
from dygmamba.sampling.negatives import SEEDS
from dygmamba.tasks.base import Exam
from dygmamba.tasks.link import has_events, link_exam
from dygmamba.tasks.metrics import average_precision, link_metrics

RULES = ("edgebank", "popularity", "recency", "source-recency")
BLOCKS, LEAST = 30, 20  # at most so many blocks, of at least so many events
SURE = 2.0  # standard errors

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Final:
    """What the final evaluation found."""

    rows: list[Row]
    rules: list[Row]
    verdict: Row
    activity: Row  # the rate of sources and its weights, where the run counts that


def final_evaluation(fit: Fit, about: Row, chosen: list[Choice], stage: Stage, told: Told) -> Final:
    """The calibration, then every exam that has events, put to the run and to the rules, then some ranks.

    The verdict is on the first exam of the test.

    `told` is told of each exam and the run's scores.
    """
    assert isinstance(fit.scorer, Scorer)
    assert isinstance(fit.config, LinkFitConfig)
    stream, rule = fit.stream, fit.config.rule
    here = stream if stream.device.type == "cpu" else replace(stream, device=torch.device("cpu"))
    heuristics = Heuristics(about["dataset"], here, rule)
    calibration, known = fitted(fit, stage)
    factored = factoring(fit.config.activity, here)
    curves = Curves(fit.run, calibration)
    rows, rules, verdict = [], [], {}
    for strategy, name, setting in chosen:
        if not has_events(stream.store, stream.split, name, setting):
            continue
        asked = (strategy, name, setting) != ASKED
        exam = link_exam(stream.store, stream.split, name, setting, strategy) if asked else known[0]
        with stage(f"{name} {setting} {strategy}", len(exam.pairs) * (asked + len(RULES))) as advance:
            score = examine(fit.scorer, stream, exam, rule, fit.seed, advance) if asked else known[1]
            score, weighed = factored(exam, score, fit.examine)
            scores = {about["model"]: score}
            for model in RULES:
                scores[model] = heuristics.scores(model, exam, advance)
        told(exam, score)
        curves.see(exam, score)
        simple = [_figures(scores[model], exam) for model in RULES]
        rows.append(own := link_row(exam, score, about | exam.about | rule.about | weighed, calibration))
        named = {"dataset": about["dataset"], "seed": SEEDS[name, setting], **exam.about, **rule.about}
        rules += [{"model": model, **named, **found} for model, found in zip(RULES, simple, strict=True)]
        if name == "test" and not verdict:
            best = max(range(len(RULES)), key=lambda place: simple[place]["ap"])
            pair = (score, scores[RULES[best]])
            verdict = compared(*pair, exam, own["ap"] - simple[best]["ap"], RULES[best])
    curves.save()
    return Final(with_ranks(fit, rows, stage), rules, verdict, factored.about)


def compared(own: Tensor, other: Tensor, exam: Exam, gap: float, rule: str) -> Row:
    """How far a run is above a rule on an exam, whether that is more than chance, and a sentence on it."""
    blocks = min(BLOCKS, len(exam.events) // LEAST)
    about = {"rule": rule, "metric": "ap", "difference": gap, "blocks": blocks, **exam.about}
    if blocks < 2:
        said = (
            f"the test has {len(exam.events)} events, too few to say whether this is above the rule `{rule}`"
        )
        return {**about, "spread": None, "stands": "unknown", "sentence": said}
    label, block = exam.pairs.label, exam.number * blocks // len(exam.events)
    gaps = [
        average_precision(own[block == k], label[block == k])
        - average_precision(other[block == k], label[block == k])
        for k in range(blocks)
    ]
    spread = float(np.std(gaps, ddof=1)) / sqrt(blocks)
    mean = float(np.mean(gaps))
    stands = "above" if mean > SURE * spread else "below" if mean < -SURE * spread else "level"
    return {**about, "spread": spread, "stands": stands, "sentence": _sentence(stands, gap, spread, rule)}


def _sentence(stands: str, gap: float, spread: float, rule: str) -> str:
    points = f"{abs(100 * gap):.1f} points"
    sure = f"(test AP, ± {100 * SURE * spread:.1f})"
    if stands == "above":
        return f"{points} above the best simple rule, {rule} {sure}"
    if stands == "below":
        return f"a simple rule is better: use `{rule}`, {points} above this run {sure}"
    side = "above" if gap >= 0 else "below"
    return f"a simple rule is as good: use `{rule}`; {points} {side} it is within chance {sure}"


def _figures(score: Tensor, exam: Exam) -> Row:
    return asdict(link_metrics(score, exam.pairs.label, exam.pairs.group))
