"""Predictions of a run on its test period, stored so that a report can be drawn again without running the model.

The file carries a checksum and names the run and the weights that predicted. It can always be computed again, so a file
that is damaged or belongs to another run or other weights counts as missing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dygmamba.core.errors import FileError
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.data.storage.tensor_file import read_seal, read_sealed_tensors, write_sealed_tensors
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.history.view import PairBatch
from dygmamba.runs.recipes import OpenRun
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import Calibration, NewNodes
from dygmamba.tasks.link import build_link_set

PREDICTIONS_FILE, PREDICTIONS_FORMAT = "answers.safetensors", "dygmamba-answers-1"
MAX_EVENTS = 20_000  # of a longer test period, events at even distances are stored
STORED_SET = {"split": "test", "setting": "transductive", "negatives": "random"}

ScoreCallback = Callable[[EvaluationSet, Tensor], None]  # called with an evaluation set and its scores


@dataclass(frozen=True, slots=True)
class StoredPredictions:
    """One row per scored pair."""

    event: Tensor  # row in the stream of the event that the pair was scored with, int64
    src: Tensor
    dst: Tensor
    label: Tensor  # float32: 1 for the event itself, 0 for a negative sample
    logit: Tensor  # float64
    total: int  # events of the whole test period

    @staticmethod
    def from_scores(evaluation_set: EvaluationSet, score: Tensor) -> "StoredPredictions":
        """Select at most `MAX_EVENTS` events of an evaluation set."""
        rows = _select_evenly(evaluation_set)
        pairs, event = evaluation_set.pairs, evaluation_set.events[evaluation_set.event_index]
        columns = (event, pairs.src, pairs.dst, pairs.label, score.cpu().double())
        return StoredPredictions(*(column[rows] for column in columns), total=len(evaluation_set.events))

    @property
    def events(self) -> int:
        """Number of events with a stored prediction."""
        return len(torch.unique(self.event))

    def score(self, calibration: Calibration | None, new_ends: Tensor | None = None) -> Tensor:
        """Return probabilities, or the sigmoid for a run without a calibration."""
        return (
            torch.sigmoid(self.logit)
            if calibration is None
            else calibration.probability(self.logit, new_ends)
        )

    def build_pairs(self, store: EventStore) -> EvaluationSet:
        """Return the stored pairs as an evaluation set of the stream."""
        events, index = torch.unique(self.event, return_inverse=True)
        pairs = PairBatch.from_pairs(self.src, self.dst, store.time[self.event])
        return EvaluationSet(STORED_SET, events, (), pairs.with_labels(self.label, index), index)

    def find_new_ends(self, store: EventStore, split: Split) -> Tensor:
        """Return which ends of each pair are new, as `NewNodes.find`."""
        new_nodes = NewNodes.from_events(store, split.train)
        return new_nodes.find(self.src, self.dst, store.time[self.event])


def make_prediction_saver(folder: RunDirectory) -> ScoreCallback:
    """Return a callback that stores the scores of the test period with random negatives (or of a classifier)."""

    def save(evaluation_set: EvaluationSet, score: Tensor) -> None:
        if folder.writes and all(
            STORED_SET.get(key, value) == value for key, value in evaluation_set.about.items()
        ):
            save_predictions(folder, StoredPredictions.from_scores(evaluation_set, score))

    return save


def recompute_predictions(run: OpenRun) -> StoredPredictions:
    """Score the pairs that would be stored with the weights of a link run."""
    evaluation_set = build_link_set(run.stream.store, run.stream.split, "test")
    rows, total, pairs = _select_evenly(evaluation_set), len(evaluation_set.events), evaluation_set.pairs
    evaluation_set = replace(
        evaluation_set, pairs=pairs.select(rows), event_index=evaluation_set.event_index[rows]
    )
    score = score_evaluation_set(run.scorer, run.stream, evaluation_set, run.rule, run.seed)
    return replace(StoredPredictions.from_scores(evaluation_set, score), total=total)


def save_predictions(folder: RunDirectory, predictions: StoredPredictions) -> None:
    tensors = {name: getattr(predictions, name) for name in ("event", "src", "dst", "label", "logit")}
    about = {"format": PREDICTIONS_FORMAT, "bond": folder.fingerprint, "weights": read_seal(folder.best)}
    write_sealed_tensors(folder.path / PREDICTIONS_FILE, tensors, about | {"total": str(predictions.total)})


def load_predictions(folder: RunDirectory) -> StoredPredictions | None:
    """Read the stored predictions of the run's best weights; None if there are none or they are unusable."""
    if not (folder.path / PREDICTIONS_FILE).exists():
        return None
    try:
        tensors, about = read_sealed_tensors(folder.path / PREDICTIONS_FILE)
        expected = (PREDICTIONS_FORMAT, folder.fingerprint, read_seal(folder.best))
        if (about.get("format"), about.get("bond"), about.get("weights")) != expected:
            return None
        return StoredPredictions(**tensors, total=int(about["total"]))
    except (FileError, KeyError, TypeError, ValueError):
        return None


def _select_evenly(evaluation_set: EvaluationSet) -> Tensor:
    """Return the rows of all pairs, or of those whose events lie at even distances in a long set."""
    events = len(evaluation_set.events)
    selected = torch.zeros(events, dtype=torch.bool)
    selected[torch.linspace(0, events - 1, min(MAX_EVENTS, events), dtype=torch.float64).long()] = True
    return selected[evaluation_set.event_index].nonzero()[:, 0]
