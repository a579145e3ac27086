"""Sections on the errors of a run: over time, by node, calibration of its scores, and single predictions.

All of them are computed from the predictions that the run stored for its test (`runs.stored_predictions`). A prediction
belongs to an event: link prediction stores the event itself and a random pair at the same time, node classification the
event alone.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.tensor_file import read_seal
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.view import PairBatch
from dygmamba.report.dataset_summary import TimeFormatter, format_node_names
from dygmamba.report.document import Cell, Histogram, LineChart, ReportTable, Section
from dygmamba.report.results import MIN_EVENTS
from dygmamba.runs.stored_predictions import StoredPredictions
from dygmamba.tasks.calibration import Reliability
from dygmamba.tasks.metrics import average_precision

MAX_TIME_SLICES, MIN_EVENTS_PER_SLICE = 20, 25
WORST_NODE_COUNT, MIN_EVENTS_PER_NODE = 10, 5  # a node with fewer test events is not listed
RELIABILITY_BINS = 10
CHANCE_LOSS = float(np.log(2))  # binary cross-entropy of always predicting one half

EXAMPLES_FILE, EXAMPLES_VERSION = "examples.json", 2  # a file of another version is replaced
TYPICAL_COUNT, MISSED_COUNT, FALSE_ALARM_COUNT = 4, 3, 3
REASONS_PER_EXAMPLE = 3

ExampleReason = tuple[str, float]  # description, and its contribution to the logit
ExplainPairs = Callable[[PairBatch], list[list[ExampleReason]]]


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Predictions with similar scores: their mean score, the share that was true, and their number."""

    score: float
    share: float
    count: int


def build_error_over_time_section(
    predictions: StoredPredictions, dataset: Dataset, ranked: bool
) -> Section | None:
    """Plot loss and AP over the test period, in slices of about equally many events.

    AP and the loss of random guessing are shown only if events are `ranked` against random pairs.
    """
    times, time = TimeFormatter(dataset.is_dated), dataset.store.time[predictions.event]
    order = torch.argsort(predictions.event, stable=True)
    events, counts = torch.unique_consecutive(predictions.event[order], return_counts=True)
    slices = min(MAX_TIME_SLICES, len(events) // MIN_EVENTS_PER_SLICE)
    if slices < 2:
        return None
    losses, precisions, tooltips = [], [], []
    for rows in _split_by_events(order, counts, slices):
        label, logit = predictions.label[rows].double(), predictions.logit[rows]
        loss, own_time = float(binary_cross_entropy_with_logits(logit, label)), time[rows]
        middle, precision = float(own_time.median()), 100 * average_precision(logit, label)
        losses.append((middle, loss))
        precisions.append((middle, precision))
        period = f"{times.format_time(float(own_time.min()))} to {times.format_time(float(own_time.max()))}"
        number = len(torch.unique(predictions.event[rows]))
        tooltips.append(f"{period}: {number:,} events, loss {loss:.3f}, AP {precision:.1f} %")
    each = f"Each point covers about {len(events) // slices:,} consecutive events"
    loss_chart = LineChart(
        title="Loss over the test period",
        x=times.axis_name,
        y="loss (binary cross-entropy, nats)",
        series={"loss": losses},
        x_kind=times.axis_kind,
        level=("random guessing", CHANCE_LOSS) if ranked else None,
        tooltips={"loss": tooltips},
        note=f"{each}. Lower is better.",
    )
    ap_chart = replace(
        loss_chart,
        title="AP over the test period",
        y="AP (%)",
        series={"AP": precisions},
        level=None,
        tooltips={"AP": tooltips},
        note=f"{each} and as many random pairs. Higher is better; random guessing has 50.",
    )
    charts = (loss_chart, ap_chart) if ranked else (loss_chart,)
    return Section("Error over time", _describe_drift(losses, times), (), charts)


def build_node_errors_section(
    predictions: StoredPredictions, dataset: Dataset, scores: Tensor | None = None
) -> Section | None:
    """List the nodes whose events are ranked worst against random pairs; `scores` defaults to the raw ones."""
    scores = predictions.score(None) if scores is None else scores
    real = predictions.label > 0
    negatives, positives = np.sort(predictions.logit[~real].numpy()), predictions.logit[real].numpy()
    if not len(negatives) or not len(positives):
        return None
    # share of the negatives below each event; those with an equal score count half, as in AUC
    below = (np.searchsorted(negatives, positives) + np.searchsorted(negatives, positives, side="right")) / (
        2 * len(negatives)
    )
    src, dst = predictions.src[real].numpy(), predictions.dst[real].numpy()
    ends, events = np.concatenate([src, dst[src != dst]]), np.arange(len(positives))
    events = np.concatenate([events, events[src != dst]])
    nodes, index, count = np.unique(ends, return_inverse=True, return_counts=True)
    mean = np.bincount(index, below[events]) / count
    score = np.bincount(index, scores[real].numpy()[events]) / count
    least = MIN_EVENTS_PER_NODE if (count >= MIN_EVENTS_PER_NODE).any() else 1
    worst = [node for node in np.argsort(mean, kind="stable") if count[node] >= least][:WORST_NODE_COUNT]
    degree = torch.bincount(
        torch.cat([dataset.store.src, dataset.store.dst]), minlength=dataset.store.num_nodes
    )
    names = format_node_names(dataset.ids, nodes[worst])
    rows = (
        (name, f"{100 * mean[at]:.1f}", f"{score[at]:.3f}", f"{count[at]:,}", f"{int(degree[nodes[at]]):,}")
        for at, name in zip(worst, names, strict=True)
    )
    text = (
        "Percentage of random pairs that score lower than the test events of a node: 100 is perfect, 50 is random "
        f"guessing. The mean over all test events is {100 * below.mean():.1f}. The table lists the {len(worst)} "
        f"worst nodes with at least {least} test event{'s' * (least != 1)}."
    )
    columns = ("node", "pairs below (%)", "mean score", "test events", "all events")
    return Section("Errors by node", text, (ReportTable.of_rows("", "", columns, rows),))


def bin_by_score(predictions: StoredPredictions, scores: Tensor) -> list[ReliabilityBin]:
    """Group predictions into ten bins of equal width from 0 to 1; empty bins are left out."""
    score, label = scores.numpy(), predictions.label.numpy()
    index = np.minimum((score * RELIABILITY_BINS).astype(np.int64), RELIABILITY_BINS - 1)
    return [
        ReliabilityBin(float(score[own].mean()), float(label[own].mean()), int(own.sum()))
        for own in (index == number for number in range(RELIABILITY_BINS))
        if own.any()
    ]


def list_reliability_bins(diagram: Reliability) -> list[ReliabilityBin]:
    """Return the bins of a stored diagram, which have equal mass."""
    return [
        ReliabilityBin(*values) for values in zip(diagram.score, diagram.share, diagram.count, strict=True)
    ]


def build_calibration_section(
    curves: dict[str, list[ReliabilityBin]],
    intro: str,
    new_node_curves: dict[str, list[ReliabilityBin]] | None = None,
    error: float | None = None,
) -> Section | None:
    """Plot how often predictions with a score were true, and how many predictions got it.

    Args:
        curves: Reliability curves by name. The text and the histogram describe the last one.
        intro: Says which predictions these are.
        new_node_curves: Curves of the setting of new nodes, which get a chart of their own.
        error: Expected calibration error, as in the results; by default that of the bins of the last curve.
    """
    curves = {name: bins for name, bins in curves.items() if bins}
    if not curves:
        return None
    *_, bins = curves.values()
    if (count := _count_predictions(bins)) < MIN_EVENTS:
        return Section(
            "Calibration", f"{intro} {count} predictions are too few to say how far scores can be trusted."
        )
    few = "" if new_node_curves is None else _describe_few(new_node_curves)
    new_node_curves = {} if few else new_node_curves
    counts = [0] * RELIABILITY_BINS
    for own in bins:
        counts[min(int(own.score * RELIABILITY_BINS), RELIABILITY_BINS - 1)] += own.count
    charts = (
        _draw_reliability("Reliability", curves),
        *([_draw_reliability("Reliability, new nodes", new_node_curves)] if new_node_curves else []),
        Histogram(
            title="Score distribution",
            x="score (%)",
            y="predictions",
            edges=tuple(float(edge) for edge in range(0, 101, 100 // RELIABILITY_BINS)),
            counts={"predictions": tuple(counts)},
            note="Number of predictions per score.",
        ),
    )
    error = _compute_error(bins) if error is None else error
    text = (
        f"{intro} On average, a score differs from the share that was true by {100 * error:.1f} points (ECE)."
    )
    text += few
    if new_node_curves:
        errors = [f"{100 * _compute_error(line):.1f} {name}" for name, line in new_node_curves.items()]
        text += (
            " The setting of new nodes, whose random destinations are those of events with a new node, has its own "
            f"calibration; its ECE is {', '.join(errors)}."
        )
    return Section("Calibration", text, (), charts)


def _describe_few(curves: dict[str, list[ReliabilityBin]]) -> str:
    """Say that there are too few events with a new node for a curve; empty if there are enough, or none."""
    count = max(map(_count_predictions, curves.values()), default=MIN_EVENTS)
    few = f" Of new nodes there are {count} predictions only, too few for a curve."
    return few if count < MIN_EVENTS else ""


def _count_predictions(bins: list[ReliabilityBin]) -> int:
    return sum(own.count for own in bins)


def _compute_error(bins: list[ReliabilityBin]) -> float:
    return sum(own.count * abs(own.score - own.share) for own in bins) / _count_predictions(bins)


def _draw_reliability(title: str, curves: dict[str, list[ReliabilityBin]]) -> LineChart:
    return LineChart(
        title=title,
        x="mean score (%)",
        y="true (%)",
        series={name: [(100 * own.score, 100 * own.share) for own in line] for name, line in curves.items()},
        x_range=(0, 100),
        y_range=(0, 100),
        diagonal="perfectly calibrated",
        tooltips={name: [_describe_bin(own) for own in line] for name, line in curves.items()},
        note="On the dashed line, a score is the share of predictions that were true. Below it the scores are too "
        "high, above it too low.",
    )


def _describe_bin(own: ReliabilityBin) -> str:
    return f"score {100 * own.score:.1f} %: {100 * own.share:.1f} % of {own.count:,} predictions were true"


def _split_by_events(order: torch.Tensor, counts: torch.Tensor, slices: int) -> list[torch.Tensor]:
    """Split rows in the order of their events into slices of about equally many events."""
    ends = torch.cumsum(counts, 0)
    cuts = [int(ends[len(counts) * number // slices - 1]) for number in range(1, slices)]
    return list(torch.tensor_split(order, cuts))


def _describe_drift(losses: list[tuple[float, float]], times: TimeFormatter) -> str:
    best, worst = min(losses, key=lambda point: point[1]), max(losses, key=lambda point: point[1])
    return (
        f"The loss is lowest around {times.format_time(best[0])} ({best[1]:.3f}) and highest around "
        f"{times.format_time(worst[0])} ({worst[1]:.3f}). If it rises towards the end, train again on newer events."
    )


@dataclass(frozen=True, slots=True)
class Example:
    """A single prediction with the user's ids and time; the fields are the keys of examples.json."""

    kind: str
    src: str
    dst: str
    time: str
    score: float
    true: bool
    reasons: tuple[ExampleReason, ...] = ()


def select_examples(
    predictions: StoredPredictions,
    dataset: Dataset,
    explain: ExplainPairs | None = None,
    scores: Tensor | None = None,
) -> list[Example]:
    """Select typical events, the events with the lowest scores and the random pairs with the highest.

    Which pairs these are is decided by their logits; `scores` are shown, by default the raw ones.
    """
    scores = predictions.score(None) if scores is None else scores
    selected = _select_rows(predictions)
    rows = torch.tensor([row for _, row in selected], dtype=torch.int64)
    src, dst, time = predictions.src[rows], predictions.dst[rows], dataset.store.time[predictions.event[rows]]
    pairs = PairBatch.from_pairs(src, dst, time)
    pairs = pairs.with_columns(QueryColumns.of_events(dataset.store.features, predictions.event[rows]))
    reasons = explain(pairs) if explain and len(rows) else [[] for _ in selected]
    times, score = TimeFormatter(dataset.is_dated), scores[rows]
    names = (format_node_names(dataset.ids, nodes.numpy()) for nodes in (src, dst))
    return [
        Example(
            kind,
            src_name,
            dst_name,
            times.format_time(float(time[at])),
            float(score[at]),
            bool(predictions.label[row] > 0),
            tuple(reasons[at]),
        )
        for at, ((kind, row), src_name, dst_name) in enumerate(zip(selected, *names, strict=True))
    ]


def _select_rows(predictions: StoredPredictions) -> list[tuple[str, int]]:
    """Return a description and the row of each example."""
    real = (predictions.label > 0).nonzero()[:, 0]
    other = (predictions.label <= 0).nonzero()[:, 0]
    missed = real[torch.argsort(predictions.logit[real], stable=True)][:MISSED_COUNT].tolist()
    alarms = other[torch.argsort(-predictions.logit[other], stable=True)][:FALSE_ALARM_COUNT].tolist()
    rest = [row for row in real.tolist() if row not in missed]
    # typical events at equal distances over the test period
    places = torch.linspace(0, len(rest) - 1, TYPICAL_COUNT + 2).long()[1:-1].tolist()
    places = places if len(rest) > TYPICAL_COUNT + 2 else []
    return (
        [("typical event", rest[place]) for place in places]
        + [("missed event: real, but low score", row) for row in missed]
        + [("false alarm: not real, but high score", row) for row in alarms]
    )


def build_examples_section(examples: Sequence[Example]) -> Section | None:
    if not examples:
        return None
    columns = ("pair", "score", "real event", "time", "kind", "reasons")
    rows = []
    for example in examples:
        correct = example.true == (example.score >= 0.5)
        reasons = "; ".join(f"{text} ({value:+.2f})" for text, value in example.reasons[:REASONS_PER_EXAMPLE])
        rows.append(
            (
                f"{example.src} → {example.dst}",
                Cell(f"{example.score:.3f}", "good" if correct else "bad"),
                "yes" if example.true else "no",
                example.time,
                Cell(example.kind, "words"),
                Cell(reasons, "words"),
            )
        )
    text = "Single predictions of the test: typical events, and the worst errors of both kinds."
    if any(example.reasons for example in examples):
        text += (
            " The number after a reason is its contribution to the logit: a positive one raises the score."
        )
    return Section("Examples", text, (ReportTable.of_rows("", "", columns, rows).drop_empty_columns(),))


def save_examples(run: RunDirectory, examples: Sequence[Example]) -> None:
    """Store the examples in the run directory, together with the checksum of the weights that computed them."""
    values = {"version": EXAMPLES_VERSION, "weights": read_seal(run.best)}
    values |= {"examples": [asdict(example) for example in examples]}
    run.write_file(EXAMPLES_FILE, json.dumps(values, indent=1) + "\n")


def load_examples(run: RunDirectory) -> list[Example] | None:
    """Return the stored examples; None if there are none, or if they are damaged or of other weights."""
    try:
        values = json.loads((run.path / EXAMPLES_FILE).read_text("utf-8"))
        if (values["version"], values["weights"]) != (EXAMPLES_VERSION, read_seal(run.best)):
            return None
        for example in values["examples"]:
            example["reasons"] = tuple((str(text), float(value)) for text, value in example["reasons"])
        return [Example(**example) for example in values["examples"]]
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
