"""Where a run's answers are wrong: when in the test, at which nodes, and whether a score means what it says.

Legend: p questions, g events.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.data.store import Dataset
from dygmamba.report.calendar import Calendar
from dygmamba.report.figures import Histogram, Lines
from dygmamba.report.sheets import Cell, Grid, Section
from dygmamba.report.summary import node_names
from dygmamba.runs.tested import Answers
from dygmamba.tasks.metrics import average_precision

SLICES, LEAST = 20, 25  # slices of the test period, and events of one
WORST, SEEN = 10, 5  # nodes in the table, and events that one must have to be in it
BINS = 10
GUESS = float(np.log(2))  # loss of one who always says one half


@dataclass(frozen=True, slots=True)
class Reliable:
    """A group of questions with about the same score: the mean score, the share that was true, how many."""

    score: float
    share: float
    count: int


def over_time(answers: Answers, dataset: Dataset, ranked: bool) -> Section | None:
    """Loss, and where events are ranked against pairs AP, along the test period."""
    calendar, time = Calendar.of(dataset), dataset.store.time[answers.event]
    order = torch.argsort(answers.event, stable=True)
    events, counts = torch.unique_consecutive(answers.event[order], return_counts=True)
    slices = min(SLICES, len(events) // LEAST)
    if slices < 2:
        return None
    loss, quality, said = [], [], []
    for rows in _sliced(order, counts, slices):
        label, logit = answers.label[rows].double(), answers.logit[rows]
        cost, when = float(binary_cross_entropy_with_logits(logit, label)), time[rows]
        middle, share = float(when.median()), 100 * average_precision(logit, label)
        loss.append((middle, cost))
        quality.append((middle, share))
        span = f"{calendar.moment(float(when.min()))} to {calendar.moment(float(when.max()))}"
        said.append(
            f"{span}: {len(torch.unique(answers.event[rows])):,} events, loss {cost:.3f}, AP {share:.1f} %"
        )
    each = f"Each point is about {len(events) // slices:,} events in a row"
    charts = [
        Lines(
            "Loss along the test period", calendar.axis, "loss (binary cross-entropy, nats)", {"loss": loss},
            calendar.kind, level=("always saying one half", GUESS) if ranked else None, about={"loss": said},
            note=f"{each}; lower is better.",
        )
    ]  # fmt: skip
    if ranked:
        charts.append(
            Lines(
                "AP along the test period", calendar.axis, "AP (%)", {"AP": quality}, calendar.kind,
                about={"AP": said},
                note=f"{each}, against as many random pairs; higher is better, a blind guess has 50.",
            )
        )  # fmt: skip
    return Section("Error over time", _drift(loss, calendar), (), tuple(charts))


def by_node(answers: Answers, dataset: Dataset) -> Section | None:
    """The nodes whose events are taken for random pairs most often."""
    real = answers.label > 0
    others, own = np.sort(answers.logit[~real].numpy()), answers.logit[real].numpy()
    if not len(others) or not len(own):
        return None
    below = (np.searchsorted(others, own) + np.searchsorted(others, own, side="right")) / (2 * len(others))
    src, dst = answers.src[real].numpy(), answers.dst[real].numpy()
    ends, rows = np.concatenate([src, dst[src != dst]]), np.arange(len(own))
    rows = np.concatenate([rows, rows[src != dst]])
    nodes, place, count = np.unique(ends, return_inverse=True, return_counts=True)
    mean = np.bincount(place, below[rows]) / count
    score = np.bincount(place, 1 / (1 + np.exp(-own[rows]))) / count
    least = SEEN if (count >= SEEN).any() else 1
    worst = [node for node in np.argsort(mean, kind="stable") if count[node] >= least][:WORST]
    degree = torch.bincount(
        torch.cat([dataset.store.src, dataset.store.dst]), minlength=dataset.store.num_nodes
    )
    rows_ = tuple(
        (
            Cell(name),
            Cell(f"{100 * mean[row]:.1f}"),
            Cell(f"{score[row]:.3f}"),
            Cell(f"{count[row]:,}"),
            Cell(f"{int(degree[nodes[row]]):,}"),
        )
        for row, name in zip(worst, node_names(dataset.ids, nodes[worst]), strict=True)
    )
    text = (
        "Of 100 random pairs, how many score lower than a node's events in the test, on average: 100 is perfect, 50 a "
        f"blind guess. All nodes together have {100 * below.mean():.1f}. Shown are the {len(rows_)} worst nodes with "
        f"at least {least} event{'s' * (least != 1)} in the test."
    )
    columns = ("node", "outranks (%)", "mean score", "events in the test", "events in all")
    return Section("Errors by node", text, (Grid("", "", columns, rows_),))


def reliable(answers: Answers) -> list[Reliable]:
    """Scores in ten equal slices from 0 to 1, those that are empty left out."""
    score, label = torch.sigmoid(answers.logit).numpy(), answers.label.numpy()
    place = np.minimum((score * BINS).astype(np.int64), BINS - 1)
    return [
        Reliable(float(score[own].mean()), float(label[own].mean()), int(own.sum()))
        for own in (place == number for number in range(BINS))
        if own.any()
    ]


def calibration(curves: dict[str, list[Reliable]], among: str) -> Section | None:
    """Whether a score is a probability: how often what got it was true, and how many got it; a curve per kind of score.

    The last kind is what the words and the counts are of.
    """
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return None
    *_, points = curves.values()
    counts, total = [0] * BINS, sum(point.count for point in points)
    for point in points:
        counts[min(int(point.score * BINS), BINS - 1)] += point.count
    gap = sum(point.count * abs(point.score - point.share) for point in points) / total
    charts = (
        Lines(
            "Reliability", "mean score (%)", "were true (%)",
            {name: [(100 * one.score, 100 * one.share) for one in own] for name, own in curves.items()},
            x_range=(0, 100), y_range=(0, 100), diagonal="score = share that was true",
            about={name: [_reliable_words(one) for one in own] for name, own in curves.items()},
            note="A point on the dashed line: of the questions with this score, just so many were true. Below it the "
            "model is too sure, above it too cautious.",
        ),
        Histogram(
            "Scores given", "score (%)", "questions", tuple(float(edge) for edge in range(0, 101, 100 // BINS)),
            {"questions": tuple(counts)}, note="How many questions got which score.",
        ),
    )  # fmt: skip
    text = f"{among} On average a score is {100 * gap:.1f} points from the share that was true."
    return Section("What a score means", text, (), charts)


def _reliable_words(one: Reliable) -> str:
    return f"score {100 * one.score:.1f} %: {100 * one.share:.1f} % true, of {one.count:,} questions"


def _sliced(order: torch.Tensor, counts: torch.Tensor, slices: int) -> list[torch.Tensor]:
    """Questions in runs of about as many events each."""
    ends = torch.cumsum(counts, 0)
    cuts = [int(ends[len(counts) * number // slices - 1]) for number in range(1, slices)]
    return list(torch.tensor_split(order, cuts))


def _drift(loss: list[tuple[float, float]], calendar: Calendar) -> str:
    """The best and the worst slice in words."""
    best, worst = min(loss, key=lambda point: point[1]), max(loss, key=lambda point: point[1])
    return (
        f"The model errs least around {calendar.moment(best[0])} (loss {best[1]:.3f}) and most around "
        f"{calendar.moment(worst[0])} (loss {worst[1]:.3f}). A curve that climbs says that it should be trained again "
        "on newer events."
    )
