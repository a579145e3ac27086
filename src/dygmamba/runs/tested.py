"""What a run answered in its test, question by question: kept once, so that a page is drawn again without the model.

The file vouches for itself and names the weights that answered. It can be made again from them, so one that is damaged,
of another run or of other weights counts as none.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dygmamba.data.tensor_file import read_sealed, seal_of, write_sealed
from dygmamba.engine.examine import examine
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import FileError
from dygmamba.runs.opening import OpenRun
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import Exam
from dygmamba.tasks.calibration import Calibration
from dygmamba.tasks.link import link_exam

NAME, FORMAT = "answers.safetensors", "dygmamba-answers-1"
MOST = 20_000  # events; those of a longer test lie evenly among it
KEPT = {"split": "test", "setting": "transductive", "negatives": "random"}

Told = Callable[[Exam, Tensor], None]  # told of an exam and its scores


@dataclass(frozen=True, slots=True)
class Answers:
    """A row per question: beside which event it was asked, about which pair, the truth, and the logit."""

    event: Tensor  # row of the stream, int64
    src: Tensor
    dst: Tensor
    label: Tensor  # float32: 1 where it was so
    logit: Tensor  # float64
    total: int  # events of the whole test

    @staticmethod
    def of(exam: Exam, score: Tensor) -> "Answers":
        """Of an exam, or of a part of it where it is long."""
        kept = _evenly(exam)
        pairs, event = exam.pairs, exam.events[exam.number]
        columns = (event, pairs.src, pairs.dst, pairs.label, score.cpu().double())
        return Answers(*(column[kept] for column in columns), total=len(exam.events))

    @property
    def events(self) -> int:
        """How many events were asked about."""
        return len(torch.unique(self.event))


def scored(logit: Tensor, known: Calibration | None) -> Tensor:
    """Logits as scores: probabilities, or of a run without a calibration logistic values."""
    return torch.sigmoid(logit) if known is None else known.probability(logit)


def keep_test(folder: RunFolder) -> Told:
    """Keeps the answers to the test against random pairs, or to a test that knows no pairs."""

    def told(exam: Exam, score: Tensor) -> None:
        if folder.writes and all(KEPT[key] == value for key, value in exam.about.items()):
            save_answers(folder, Answers.of(exam, score))

    return told


def ask_again(run: OpenRun) -> Answers:
    """The answers of a link run's weights, at most so many."""
    exam = link_exam(run.stream.store, run.stream.split, "test")
    kept, whole = _evenly(exam), len(exam.events)
    columns = (exam.pairs.src, exam.pairs.dst, exam.pairs.time, exam.pairs.label, exam.pairs.group)
    pairs = PairBatch.of(*(column[kept] for column in columns))
    exam = replace(exam, pairs=pairs, number=exam.number[kept])
    return replace(Answers.of(exam, examine(run.scorer, run.stream, exam, run.rule, run.seed)), total=whole)


def save_answers(folder: RunFolder, answers: Answers) -> None:
    """One sealed file in the run folder."""
    tensors = {name: getattr(answers, name) for name in ("event", "src", "dst", "label", "logit")}
    about = {"format": FORMAT, "bond": folder.bond, "weights": seal_of(folder.best)}
    write_sealed(folder.path / NAME, tensors, about | {"total": str(answers.total)})


def load_answers(folder: RunFolder) -> Answers | None:
    """What save_answers wrote, if this run's best weights gave these answers."""
    if not (folder.path / NAME).exists():
        return None
    try:
        tensors, about = read_sealed(folder.path / NAME)
        named = (FORMAT, folder.bond, seal_of(folder.best))
        if (about.get("format"), about.get("bond"), about.get("weights")) != named:
            return None
        return Answers(**tensors, total=int(about["total"]))
    except (FileError, KeyError, TypeError, ValueError):
        return None


def _evenly(exam: Exam) -> Tensor:
    """Which questions are kept: all, or those about events that lie evenly among a long exam's."""
    chosen = torch.zeros(len(exam.events), dtype=torch.bool)
    chosen[
        torch.linspace(0, len(exam.events) - 1, min(MOST, len(exam.events)), dtype=torch.float64).long()
    ] = True
    return chosen[exam.number].nonzero()[:, 0]
