"""What the evaluation of published programs reveals without a model: padding, the order of rows, small batches.

    python -m research.evaluation_leaks DATA_DIR

The command prints the figures of docs/explanation/leaks.md as JSON lines. Nothing is trained.

Legend: p pairs, k events.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dygmamba.config import find_preset
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.stream import Stream
from dygmamba.runs.baselines import Baselines
from dygmamba.runs.evaluation import Queries
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metrics import PUBLISHED_BATCH, link_metrics, roc_auc

DATASETS = ("uci", "wikipedia", "enron", "CanParl", "USLegis")
LENGTHS, CALL_SIZES = (32, 256, 1024, 2048), (20, 30, 200)  # lengths and batch sizes of published programs
BATCH_SIZES = (20, 30, PUBLISHED_BATCH)
SAMPLED_PAIRS = 20_000  # pairs of events with equal timestamps from which the row order is estimated
BIAS_RULE = "destination-recency"  # the baseline whose scores show the effect of the batch size


@dataclass(frozen=True, slots=True)
class PaddingLeak:
    """ROC-AUC of the padded length alone if positives and negatives are padded in separate calls."""

    length: int
    batch: int
    auc: float


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Information in the row order among events with equal timestamps; None if there are none.

    `source` and `destination` are ROC-AUCs: how often the later of two rows has the larger node id (0.5: no order).
    `neighbors` is how often two adjacent rows have the same source, `chance` how often two random rows have.
    """

    source: float | None
    destination: float | None
    neighbors: float | None
    chance: float | None


@dataclass(frozen=True, slots=True)
class BatchSizeBias:
    """AP of the same scores, averaged over batches of several sizes (`ap`, by size) and pooled over all pairs."""

    scores: str
    ap: dict[str, float]
    ap_pooled: float


def measure_padding_leak(stream: Stream, evaluation_set: EvaluationSet, dataset: str) -> list[PaddingLeak]:
    """Measure how well the padded length predicts the label in published programs.

    They score positives and negatives in separate calls and pad each call to its own longest history.
    """
    pairs, half = evaluation_set.pairs, len(evaluation_set.events)
    history_length = stream.index.past(pairs.dst, pairs.time)[1]
    lengths = sorted({*LENGTHS, int(find_preset("dyg-mamba", dataset).get("length", LENGTHS[0]))})
    leaks = []
    for length in lengths:
        read = history_length.clamp(max=length)
        for batch in CALL_SIZES:
            padded = [part.max().expand(len(part)) for side in read.split(half) for part in side.split(batch)]
            leaks.append(PaddingLeak(length, batch, roc_auc(torch.cat(padded).double(), pairs.label)))
    return leaks


def measure_row_order(store: EventStore, events: Int64[Tensor, "k"]) -> RowOrder:
    """Measure whether rows with equal timestamps are sorted, on pairs of events drawn with a fixed seed."""
    rng, time = np.random.default_rng(0), store.time[events].numpy()
    low, high = np.searchsorted(time, time), np.searchsorted(time, time, side="right")
    tied = np.flatnonzero(high - low > 1)
    if not len(tied):
        return RowOrder(None, None, None, None)
    left = rng.choice(tied, SAMPLED_PAIRS)
    right = rng.integers(low[left], high[left])
    first, later = np.minimum(left, right), np.maximum(left, right)
    src, dst = store.src[events].numpy(), store.dst[events].numpy()
    is_distinct, is_adjacent = left != right, time[1:] == time[:-1]
    return RowOrder(
        source=_share_larger(src[later], src[first]),
        destination=_share_larger(dst[later], dst[first]),
        neighbors=float((src[1:] == src[:-1])[is_adjacent].mean()),
        chance=float((src[left] == src[right])[is_distinct].mean()) if is_distinct.any() else None,
    )


def _share_larger(later: np.ndarray, first: np.ndarray) -> float | None:
    differ = later != first
    return float((later > first)[differ].mean()) if differ.any() else None


def measure_batch_bias(
    evaluation_set: EvaluationSet, scores: dict[str, Float[Tensor, "p"]]
) -> list[BatchSizeBias]:
    """Compute the AP of given scores by batch size: the fewer pairs are ranked together, the higher it is."""
    pairs, biases = evaluation_set.pairs, []
    for name, score in scores.items():
        metrics = {size: link_metrics(score, pairs.label, pairs.group, size) for size in BATCH_SIZES}
        ap = {str(size): value["ap"] for size, value in metrics.items()}
        biases.append(BatchSizeBias(name, ap, metrics[PUBLISHED_BATCH]["ap_pooled"]))
    return biases


def measure_leaks(dataset: str, data_dir: Path) -> dict[str, object]:
    """Return what the test period of a dataset reveals, with random negatives."""
    store = open_dataset(dataset, data_dir).store
    stream = Stream(store, chronological_split(store), torch.device("cpu"))
    evaluation_set = build_link_set(store, stream.split, "test")
    baseline = Baselines(dataset, stream).score(Queries(evaluation_set))[BIAS_RULE].score
    chance = torch.rand(len(evaluation_set.pairs), generator=torch.Generator().manual_seed(0))
    biases = measure_batch_bias(evaluation_set, {BIAS_RULE: baseline, "chance": chance})
    return {
        "dataset": dataset,
        "padding": [asdict(leak) for leak in measure_padding_leak(stream, evaluation_set, dataset)],
        "order": asdict(measure_row_order(store, stream.split.test)),
        "bias": [asdict(bias) for bias in biases],
    }


if __name__ == "__main__":
    for name in DATASETS:
        sys.stdout.write(json.dumps(measure_leaks(name, Path(sys.argv[1]))) + "\n")
