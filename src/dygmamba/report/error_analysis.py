"""Where a run's answers are wrong: when in the test, at which nodes, and whether a score means what it says.

Legend: p questions, g events.

Some answers of a run one by one, with reasons where the model has them: values that a page shows as they are.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.core.files.writing import write_text
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.tensor_file import read_seal
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.dataset_summary import TimeFormatter, format_node_names
from dygmamba.report.document import Cell, Histogram, LineChart, ReportTable, Section
from dygmamba.runs.test_predictions import StoredPredictions, logits_to_scores
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.calibration import Calibration
from dygmamba.tasks.metrics import average_precision

TIME_SLICES, MIN_EVENTS_PER_SLICE = 20, 25  # slices of the test period, and events of one
WORST_NODE_COUNT, MIN_EVENTS_PER_NODE = 10, 5  # nodes in the table, and events that one must have to be in it
RELIABILITY_BINS = 10
CHANCE_LOSS = float(np.log(2))  # loss of one who always says one half


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """A group of questions with about the same score: the mean score, the share that was true, how many."""

    score: float
    share: float
    count: int


def build_error_over_time_section(
    answers: StoredPredictions, dataset: Dataset, ranked: bool
) -> Section | None:
    """Loss, and where events are ranked against pairs AP, along the test period."""
    calendar, time = TimeFormatter.of(dataset), dataset.store.time[answers.event]
    order = torch.argsort(answers.event, stable=True)
    events, counts = torch.unique_consecutive(answers.event[order], return_counts=True)
    slices = min(TIME_SLICES, len(events) // MIN_EVENTS_PER_SLICE)
    if slices < 2:
        return None
    loss, quality, said = [], [], []
    for rows in _split_by_events(order, counts, slices):
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
        LineChart(
            "Loss along the test period", calendar.axis, "loss (binary cross-entropy, nats)", {"loss": loss},
            calendar.kind, level=("always saying one half", CHANCE_LOSS) if ranked else None, about={"loss": said},
            note=f"{each}; lower is better.",
        )
    ]  # fmt: skip
    if ranked:
        charts.append(
            LineChart(
                "AP along the test period", calendar.axis, "AP (%)", {"AP": quality}, calendar.kind,
                about={"AP": said},
                note=f"{each}, against as many random pairs; higher is better, a blind guess has 50.",
            )
        )  # fmt: skip
    return Section("Error over time", _describe_drift(loss, calendar), (), tuple(charts))


def build_node_errors_section(
    answers: StoredPredictions, dataset: Dataset, known: Calibration | None = None
) -> Section | None:
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
    score = np.bincount(place, logits_to_scores(answers.logit[real], known).numpy()[rows]) / count
    least = MIN_EVENTS_PER_NODE if (count >= MIN_EVENTS_PER_NODE).any() else 1
    worst = [node for node in np.argsort(mean, kind="stable") if count[node] >= least][:WORST_NODE_COUNT]
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
        for row, name in zip(worst, format_node_names(dataset.ids, nodes[worst]), strict=True)
    )
    text = (
        "Of 100 random pairs, how many score lower than a node's events in the test, on average: 100 is perfect, 50 a "
        f"blind guess. All nodes together have {100 * below.mean():.1f}. Shown are the {len(rows_)} worst nodes with "
        f"at least {least} event{'s' * (least != 1)} in the test."
    )
    columns = ("node", "outranks (%)", "mean score", "events in the test", "events in all")
    return Section("Errors by node", text, (ReportTable("", "", columns, rows_),))


def bin_by_score(answers: StoredPredictions, scores: Tensor) -> list[ReliabilityBin]:
    """Scores in ten equal slices from 0 to 1, those that are empty left out."""
    score, label = scores.numpy(), answers.label.numpy()
    place = np.minimum((score * RELIABILITY_BINS).astype(np.int64), RELIABILITY_BINS - 1)
    return [
        ReliabilityBin(float(score[own].mean()), float(label[own].mean()), int(own.sum()))
        for own in (place == number for number in range(RELIABILITY_BINS))
        if own.any()
    ]


def build_calibration_section(curves: dict[str, list[ReliabilityBin]], among: str) -> Section | None:
    """Whether a score is a probability: how often what got it was true, and how many got it; a curve per kind of score.

    The last kind is what the words and the counts are of.
    """
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return None
    *_, points = curves.values()
    counts, total = [0] * RELIABILITY_BINS, sum(point.count for point in points)
    for point in points:
        counts[min(int(point.score * RELIABILITY_BINS), RELIABILITY_BINS - 1)] += point.count
    gap = sum(point.count * abs(point.score - point.share) for point in points) / total
    charts = (
        LineChart(
            "Reliability", "mean score (%)", "were true (%)",
            {name: [(100 * one.score, 100 * one.share) for one in own] for name, own in curves.items()},
            x_range=(0, 100), y_range=(0, 100), diagonal="score = share that was true",
            about={name: [_describe_bin(one) for one in own] for name, own in curves.items()},
            note="A point on the dashed line: of the questions with this score, just so many were true. Below it the "
            "model is too sure, above it too cautious.",
        ),
        Histogram(
            "Scores given", "score (%)", "questions", tuple(float(edge) for edge in range(0, 101, 100 // RELIABILITY_BINS)),
            {"questions": tuple(counts)}, note="How many questions got which score.",
        ),
    )  # fmt: skip
    text = f"{among} On average a score is {100 * gap:.1f} points from the share that was true."
    return Section("What a score means", text, (), charts)


def _describe_bin(one: ReliabilityBin) -> str:
    return f"score {100 * one.score:.1f} %: {100 * one.share:.1f} % true, of {one.count:,} questions"


def _split_by_events(order: torch.Tensor, counts: torch.Tensor, slices: int) -> list[torch.Tensor]:
    """Questions in runs of about as many events each."""
    ends = torch.cumsum(counts, 0)
    cuts = [int(ends[len(counts) * number // slices - 1]) for number in range(1, slices)]
    return list(torch.tensor_split(order, cuts))


def _describe_drift(loss: list[tuple[float, float]], calendar: TimeFormatter) -> str:
    """The best and the worst slice in words."""
    best, worst = min(loss, key=lambda point: point[1]), max(loss, key=lambda point: point[1])
    return (
        f"The model errs least around {calendar.moment(best[0])} (loss {best[1]:.3f}) and most around "
        f"{calendar.moment(worst[0])} (loss {worst[1]:.3f}). A curve that climbs says that it should be trained again "
        "on newer events."
    )


EXAMPLES_FILE, EXAMPLES_VERSION = "examples.json", 2  # another version's are made again
TYPICAL_COUNT, MISSED_COUNT, FALSE_ALARM_COUNT = 4, 3, 3
REASONS_PER_EXAMPLE = 3  # of each

ExampleReason = tuple[str, float]  # in words, and by how much it moves the logit
ExplainPairs = Callable[[PairBatch], list[list[ExampleReason]]]


@dataclass(frozen=True, slots=True)
class Example:
    """A question, the score it got, the truth, and why; ids and time as the user writes them."""

    kind: str
    src: str
    dst: str
    time: str
    score: float
    true: bool
    reasons: tuple[ExampleReason, ...] = ()


def select_examples(
    answers: StoredPredictions,
    dataset: Dataset,
    why: ExplainPairs | None = None,
    known: Calibration | None = None,
) -> list[Example]:
    """Usual events evenly along the test, the real events that scored lowest, the random pairs that scored highest."""
    chosen = _select_rows(answers)
    rows = torch.tensor([row for _, row in chosen], dtype=torch.int64)
    src, dst, when = answers.src[rows], answers.dst[rows], dataset.store.time[answers.event[rows]]
    said = why(PairBatch.of(src, dst, when)) if why and len(rows) else [[] for _ in chosen]
    calendar, score = TimeFormatter.of(dataset), logits_to_scores(answers.logit[rows], known)
    names = (format_node_names(dataset.ids, nodes.numpy()) for nodes in (src, dst))
    return [
        Example(
            kind,
            a,
            b,
            calendar.moment(float(when[at])),
            float(score[at]),
            bool(answers.label[row] > 0),
            tuple(said[at]),
        )
        for at, ((kind, row), a, b) in enumerate(zip(chosen, *names, strict=True))
    ]


def _select_rows(answers: StoredPredictions) -> list[tuple[str, int]]:
    real = (answers.label > 0).nonzero()[:, 0]
    other = (answers.label <= 0).nonzero()[:, 0]
    missed = real[torch.argsort(answers.logit[real], stable=True)][:MISSED_COUNT].tolist()
    alarms = other[torch.argsort(-answers.logit[other], stable=True)][:FALSE_ALARM_COUNT].tolist()
    rest = [row for row in real.tolist() if row not in missed]
    places = (
        torch.linspace(0, len(rest) - 1, TYPICAL_COUNT + 2).long()[1:-1].tolist()
        if len(rest) > TYPICAL_COUNT + 2
        else []
    )
    return (
        [("an event like others", rest[place]) for place in places]
        + [("missed: real, but a low score", row) for row in missed]
        + [("false alarm: not real, but a high score", row) for row in alarms]
    )


def build_examples_section(shown: Sequence[Example]) -> Section | None:
    """Ten answers of the test, in the user's own ids."""
    if not shown:
        return None
    explained = any(one.reasons for one in shown)
    columns = ("pair", "time", "score", "was it real", "what it shows", *(("why",) if explained else ()))
    rows = []
    for one in shown:
        right = one.true == (one.score >= 0.5)
        row = (
            Cell(f"{one.src} → {one.dst}"),
            Cell(one.time),
            Cell(f"{one.score:.3f}", "good" if right else "bad"),
            Cell("yes" if one.true else "no"),
            Cell(one.kind, "words"),
        )
        why = "; ".join(f"{said} ({by:+.2f})" for said, by in one.reasons[:REASONS_PER_EXAMPLE])
        rows.append((*row, Cell(why, "words")) if explained else row)
    text = "Single answers of the test: some usual ones, and its worst mistakes of both kinds."
    if explained:
        text += " Behind a reason stands by how much it moves the logit of the score: above 0 speaks for the pair."
    return Section("Examples", text, (ReportTable("", "", columns, tuple(rows)),))


def save_examples(run: RunDirectory, shown: Sequence[Example]) -> None:
    """Keep them in the run folder; they name the weights that answered."""
    values = {
        "version": EXAMPLES_VERSION,
        "weights": read_seal(run.best),
        "examples": [asdict(one) for one in shown],
    }
    write_text(run.path / EXAMPLES_FILE, json.dumps(values, indent=1) + "\n")


def load_examples(run: RunDirectory) -> list[Example] | None:
    """What save_examples wrote, unless the run has other weights since; what cannot be read is made again."""
    try:
        values = json.loads((run.path / EXAMPLES_FILE).read_text("utf-8"))
        if (values["version"], values["weights"]) != (EXAMPLES_VERSION, read_seal(run.best)):
            return None
        pairs = [
            tuple((str(said), float(by)) for said, by in one.pop("reasons")) for one in values["examples"]
        ]
        return [Example(**one, reasons=why) for one, why in zip(values["examples"], pairs, strict=True)]
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
