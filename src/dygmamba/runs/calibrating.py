"""What turns a run's logits into probabilities, fitted on its validation period and kept in its folder.

`calibration.json` names the weights it was fitted to and vouches for itself: a run that went on since, or one that was
trained before there was such a file, has no calibration, and says so.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from dygmamba.data.tensor_file import seal_of
from dygmamba.engine.fit import Fit, Stage, unfollowed
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import FileError
from dygmamba.files.writing import write_text
from dygmamba.models.base import RoundLearner
from dygmamba.runs.node import node_row
from dygmamba.runs.ranking import Ranking
from dygmamba.runs.tested import Told
from dygmamba.tasks.asked import SOME
from dygmamba.tasks.base import Exam
from dygmamba.tasks.calibration import Calibration, Reliability, calibrate, reliability
from dygmamba.tasks.link import SETTINGS, SPLITS, has_events, link_exam
from dygmamba.tasks.node import NodeTask

NAME = "calibration.json"
ASKED = ("random", "val", "transductive")  # what is fitted: real events against random pairs, as many of each
SHARE = 0.08  # of what training asked, that ranking may ask
PASSES = 3  # questions without gradients that cost as much as one with
LEAST, MOST = 100, 2_000  # events of a setting that are ranked
RANKS = ("mrr", "hits@10")
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Kept:
    """A calibration, and what it does to the test period's scores: the points of both curves, for a page to draw."""

    calibration: Calibration
    before: Reliability | None
    after: Reliability | None


def finished_node_rows(fit: Fit, stage: Stage, told: Told) -> Rows:
    """The final evaluation of a classifier, its scores probabilities as of the validation period's share of 1s.

    `told` is told of each exam and its scores.
    """
    assert isinstance(fit.task, NodeTask)
    exams, scores = {name: fit.task.exam(name) for name in SPLITS}, {}
    for name, exam in exams.items():
        with stage(name, len(exam.pairs)) as advance:
            scores[name] = fit.examine(exam, advance)
        told(exam, scores[name])
    calibration = calibrate(scores["val"], exams["val"].pairs.label, exams["val"].number)
    curves = Curves(fit.run, calibration)
    if len(exams["test"].events):
        curves.see(exams["test"], scores["test"])
    curves.save()
    return [node_row(fit, exam, scores[name], calibration) for name, exam in exams.items()]


def calibrate_link_run(fit: Fit) -> None:
    """Fit and keep the calibration of a trained link run, and nothing else."""
    Curves(fit.run, fitted(fit, unfollowed)[0]).save()


def inherit_calibration(run: RunFolder, of: RunFolder) -> None:
    """A run on every event has nothing to be calibrated on: it takes that of the run whose settings it has."""
    kept = load_kept(of)
    if kept is not None:
        save_calibration(run, Kept(kept.calibration, None, None))


def save_calibration(run: RunFolder, kept: Kept) -> None:
    """A file that vouches for itself and names the weights it belongs to."""
    content = {"weights": seal_of(run.best), **asdict(kept)}
    text = json.dumps(content | {"sha256": _digest(content)}, indent=1)
    write_text(run.path / NAME, text + "\n")


def load_kept(run: RunFolder) -> Kept | None:
    """What save_calibration wrote; None where there is none, or where the run has other weights since."""
    path = run.path / NAME
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
        if content.pop("sha256") != _digest(content):
            raise ValueError("it was changed since it was written")
        curves = [
            None if content[name] is None else Reliability(**{k: tuple(v) for k, v in content[name].items()})
            for name in ("before", "after")
        ]
        fitted = content["calibration"]
        bends = tuple((float(x), float(odds)) for x, odds in fitted["knots"])
        found = Kept(Calibration(**fitted | {"knots": bends}), *curves)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        mend = f"delete it, and `dygmamba.resume('{run.path}')` writes it anew"
        raise FileError(f"{path} is damaged ({type(error).__name__}); {mend}") from error
    return found if content["weights"] == seal_of(run.best) else None


def load_calibration(run: RunFolder) -> Calibration | None:
    """What makes probabilities of a run's logits, if it has that."""
    kept = load_kept(run)
    return None if kept is None else kept.calibration


class Curves:
    """Sees the scores of a run's exams, keeps the curves of the one that counts, and saves them."""

    def __init__(self, run: RunFolder, calibration: Calibration) -> None:
        self.run, self.kept = run, Kept(calibration, None, None)

    def see(self, exam: Exam, score: Tensor) -> None:
        """Of the test period: of all nodes, against random pairs where there are any."""
        about = exam.about
        rest = (about.get("negatives", "random"), about["split"], about.get("setting", "transductive"))
        if rest == ("random", "test", "transductive"):
            said = self.kept.calibration.probability(score)
            curves = (reliability(values, exam.pairs.label) for values in (score.double().sigmoid(), said))
            self.kept = Kept(self.kept.calibration, *curves)

    def save(self) -> None:
        """Into the run's folder."""
        if self.run.writes:
            save_calibration(self.run, self.kept)


def fitted(fit: Fit, stage: Stage) -> tuple[Calibration, tuple[Exam, Tensor]]:
    """The calibration of a link run, and the exam it was fitted on with its logits."""
    exam = link_exam(fit.stream.store, fit.stream.split, "val")
    with stage("calibration", len(exam.pairs)) as advance:
        score = fit.examine(exam, advance)
    return calibrate(score, exam.pairs.label, exam.number), (exam, score)


def with_ranks(fit: Fit, rows: Rows, stage: Stage) -> Rows:
    """Each row with the ranks of its split and setting: of the test period, none of the validation period."""
    store, split = fit.stream.store, fit.stream.split
    ranking = Ranking(RANKS, most=affordable(fit))
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for setting in SETTINGS:
        if has_events(store, split, "test", setting) and len(store.dst.unique()) > 1:
            exam = link_exam(store, split, "test", setting)
            asked = (_scorer(fit), fit.stream, exam, fit.config.rule, fit.seed)
            with stage(f"ranks, test {setting}", ranking.questions(exam)) as advance:
                found["test", setting] = ranking.row(*asked, advance)
    return [row | _ranks(found.get((row["split"], row["setting"]), {})) for row in rows]


def _ranks(found: dict[str, Any]) -> dict[str, Any]:
    names = (*RANKS, "candidates", "candidate_seed")
    return {name: found.get(name) for name in names} | {"ranked": found.get("n")}


def affordable(fit: Fit) -> int:
    """Events of a setting to rank: as many as add up to about a tenth to what training took, whatever the machine.

    A function of the run, not of a clock, so that the same run always has the same figures.
    """
    split, asked = fit.stream.split, len(fit.progress.entries) * 2 * len(fit.stream.split.val)
    if isinstance(fit.scorer, RoundLearner):  # looks its questions up once
        asked += PASSES * (1 + fit.scorer.negatives) * len(split.train)
    else:
        asked += PASSES * len(fit.progress.entries) * 2 * len(split.train)
    events = SHARE * asked / (len(SETTINGS) * SOME)
    return int(min(max(events, LEAST), MOST))


def _scorer(fit: Fit) -> Any:
    return fit.scorer


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
