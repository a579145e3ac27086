"""What a run answered in its test, question by question: kept once, so that a page is drawn again without the model.

The file vouches for itself and names the weights that answered. It can be made again from them, so one that is damaged,
of another run or of other weights counts as none.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dygmamba.core.errors import FileError
from dygmamba.data.storage.tensor_file import read_seal, read_sealed_tensors, write_sealed_tensors
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.opening import OpenRun
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import Calibration
from dygmamba.tasks.link import build_link_set

PREDICTIONS_FILE, PREDICTIONS_FORMAT = "answers.safetensors", "dygmamba-answers-1"
MAX_EVENTS = 20_000  # events; those of a longer test lie evenly among it
STORED_EXAM = {"split": "test", "setting": "transductive", "negatives": "random"}

ScoreCallback = Callable[[EvaluationSet, Tensor], None]  # told of an exam and its scores


@dataclass(frozen=True, slots=True)
class StoredPredictions:
    """A row per question: beside which event it was asked, about which pair, the truth, and the logit."""

    event: Tensor  # row of the stream, int64
    src: Tensor
    dst: Tensor
    label: Tensor  # float32: 1 where it was so
    logit: Tensor  # float64
    total: int  # events of the whole test

    @staticmethod
    def of(evaluation_set: EvaluationSet, score: Tensor) -> "StoredPredictions":
        """Of an exam, or of a part of it where it is long."""
        kept = _select_evenly(evaluation_set)
        pairs, event = evaluation_set.pairs, evaluation_set.events[evaluation_set.number]
        columns = (event, pairs.src, pairs.dst, pairs.label, score.cpu().double())
        return StoredPredictions(*(column[kept] for column in columns), total=len(evaluation_set.events))

    @property
    def events(self) -> int:
        """How many events were asked about."""
        return len(torch.unique(self.event))


def logits_to_scores(logit: Tensor, known: Calibration | None) -> Tensor:
    """Logits as scores: probabilities, or of a run without a calibration logistic values."""
    return torch.sigmoid(logit) if known is None else known.probability(logit)


def make_prediction_saver(folder: RunDirectory) -> ScoreCallback:
    """Keeps the answers to the test against random pairs, or to a test that knows no pairs."""

    def told(evaluation_set: EvaluationSet, score: Tensor) -> None:
        if folder.writes and all(STORED_EXAM[key] == value for key, value in evaluation_set.about.items()):
            save_predictions(folder, StoredPredictions.of(evaluation_set, score))

    return told


def recompute_predictions(run: OpenRun) -> StoredPredictions:
    """The answers of a link run's weights, at most so many."""
    evaluation_set = build_link_set(run.stream.store, run.stream.split, "test")
    kept, whole = _select_evenly(evaluation_set), len(evaluation_set.events)
    columns = (
        evaluation_set.pairs.src,
        evaluation_set.pairs.dst,
        evaluation_set.pairs.time,
        evaluation_set.pairs.label,
        evaluation_set.pairs.group,
    )
    pairs = PairBatch.of(*(column[kept] for column in columns))
    evaluation_set = replace(evaluation_set, pairs=pairs, number=evaluation_set.number[kept])
    return replace(
        StoredPredictions.of(
            evaluation_set, score_evaluation_set(run.scorer, run.stream, evaluation_set, run.rule, run.seed)
        ),
        total=whole,
    )


def save_predictions(folder: RunDirectory, answers: StoredPredictions) -> None:
    """One sealed file in the run folder."""
    tensors = {name: getattr(answers, name) for name in ("event", "src", "dst", "label", "logit")}
    about = {"format": PREDICTIONS_FORMAT, "bond": folder.fingerprint, "weights": read_seal(folder.best)}
    write_sealed_tensors(folder.path / PREDICTIONS_FILE, tensors, about | {"total": str(answers.total)})


def load_predictions(folder: RunDirectory) -> StoredPredictions | None:
    """What save_answers wrote, if this run's best weights gave these answers."""
    if not (folder.path / PREDICTIONS_FILE).exists():
        return None
    try:
        tensors, about = read_sealed_tensors(folder.path / PREDICTIONS_FILE)
        named = (PREDICTIONS_FORMAT, folder.fingerprint, read_seal(folder.best))
        if (about.get("format"), about.get("bond"), about.get("weights")) != named:
            return None
        return StoredPredictions(**tensors, total=int(about["total"]))
    except (FileError, KeyError, TypeError, ValueError):
        return None


def _select_evenly(evaluation_set: EvaluationSet) -> Tensor:
    """Which questions are kept: all, or those about events that lie evenly among a long exam's."""
    chosen = torch.zeros(len(evaluation_set.events), dtype=torch.bool)
    chosen[
        torch.linspace(
            0,
            len(evaluation_set.events) - 1,
            min(MAX_EVENTS, len(evaluation_set.events)),
            dtype=torch.float64,
        ).long()
    ] = True
    return chosen[evaluation_set.number].nonzero()[:, 0]
