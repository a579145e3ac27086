"""What turns a run's logits into probabilities, fitted on its validation period and kept in its folder.

`calibration.json` names the weights it was fitted to and vouches for itself: a run that went on since, or one that was
trained before there was such a file, has no calibration, and says so.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from dygmamba.core.errors import FileError
from dygmamba.core.files.writing import write_text
from dygmamba.data.storage.tensor_file import read_seal
from dygmamba.engine.fit import Stage, Trainer, unfollowed
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models.base import RoundLearner
from dygmamba.runs.evaluation import Ranking
from dygmamba.runs.node_training import build_node_row
from dygmamba.runs.test_predictions import ScoreCallback
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import Calibration, Reliability, compute_reliability, fit_calibration
from dygmamba.tasks.link import SETTINGS, SPLITS, build_link_set, has_events
from dygmamba.tasks.metric_names import DEFAULT_CANDIDATES
from dygmamba.tasks.node import NodeTask

CALIBRATION_FILE = "calibration.json"
FITTED_ON = (
    "random",
    "val",
    "transductive",
)  # what is fitted: real events against random pairs, as many of each
RANKING_SHARE = 0.08  # of what training asked, that ranking may ask
FORWARD_PASSES = 3  # questions without gradients that cost as much as one with
MIN_RANKED_EVENTS, MAX_RANKED_EVENTS = 100, 2_000  # events of a setting that are ranked
RANK_METRICS = ("mrr", "hits@10")
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SavedCalibration:
    """A calibration, and what it does to the test period's scores: the points of both curves, for a page to draw."""

    calibration: Calibration
    before: Reliability | None
    after: Reliability | None


def evaluate_finished_node_run(fit: Trainer, stage: Stage, told: ScoreCallback) -> Rows:
    """The final evaluation of a classifier, its scores probabilities as of the validation period's share of 1s.

    `told` is told of each exam and its scores.
    """
    assert isinstance(fit.task, NodeTask)
    evaluation_sets, scores = {name: fit.task.evaluation_set(name) for name in SPLITS}, {}
    for name, evaluation_set in evaluation_sets.items():
        with stage(name, len(evaluation_set.pairs)) as advance:
            scores[name] = fit.examine(evaluation_set, advance)
        told(evaluation_set, scores[name])
    calibration = fit_calibration(
        scores["val"], evaluation_sets["val"].pairs.label, evaluation_sets["val"].number
    )
    curves = ReliabilityRecorder(fit.run, calibration)
    if len(evaluation_sets["test"].events):
        curves.see(evaluation_sets["test"], scores["test"])
    curves.save()
    return [
        build_node_row(fit, evaluation_set, scores[name], calibration)
        for name, evaluation_set in evaluation_sets.items()
    ]


def calibrate_link_run(fit: Trainer) -> None:
    """Fit and keep the calibration of a trained link run, and nothing else."""
    ReliabilityRecorder(fit.run, fit_link_calibration(fit, unfollowed)[0]).save()


def copy_calibration(run: RunDirectory, of: RunDirectory) -> None:
    """A run on every event has nothing to be calibrated on: it takes that of the run whose settings it has."""
    kept = load_saved_calibration(of)
    if kept is not None:
        save_calibration(run, SavedCalibration(kept.calibration, None, None))


def save_calibration(run: RunDirectory, kept: SavedCalibration) -> None:
    """A file that vouches for itself and names the weights it belongs to."""
    content = {"weights": read_seal(run.best), **asdict(kept)}
    text = json.dumps(content | {"sha256": _digest(content)}, indent=1)
    write_text(run.path / CALIBRATION_FILE, text + "\n")


def load_saved_calibration(run: RunDirectory) -> SavedCalibration | None:
    """What save_calibration wrote; None where there is none, or where the run has other weights since."""
    path = run.path / CALIBRATION_FILE
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
        found = SavedCalibration(Calibration(**fitted | {"knots": bends}), *curves)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        mend = f"delete it, and `dygmamba.resume('{run.path}')` writes it anew"
        raise FileError(f"{path} is damaged ({type(error).__name__}); {mend}") from error
    return found if content["weights"] == read_seal(run.best) else None


def load_calibration(run: RunDirectory) -> Calibration | None:
    """What makes probabilities of a run's logits, if it has that."""
    kept = load_saved_calibration(run)
    return None if kept is None else kept.calibration


class ReliabilityRecorder:
    """Sees the scores of a run's exams, keeps the curves of the one that counts, and saves them."""

    def __init__(self, run: RunDirectory, calibration: Calibration) -> None:
        self.run, self.kept = run, SavedCalibration(calibration, None, None)

    def see(self, evaluation_set: EvaluationSet, score: Tensor) -> None:
        """Of the test period: of all nodes, against random pairs where there are any."""
        about = evaluation_set.about
        rest = (about.get("negatives", "random"), about["split"], about.get("setting", "transductive"))
        if rest == ("random", "test", "transductive"):
            said = self.kept.calibration.probability(score)
            curves = (
                compute_reliability(values, evaluation_set.pairs.label)
                for values in (score.double().sigmoid(), said)
            )
            self.kept = SavedCalibration(self.kept.calibration, *curves)

    def save(self) -> None:
        """Into the run's folder."""
        if self.run.writes:
            save_calibration(self.run, self.kept)


def fit_link_calibration(fit: Trainer, stage: Stage) -> tuple[Calibration, tuple[EvaluationSet, Tensor]]:
    """The calibration of a link run, and the exam it was fitted on with its logits."""
    evaluation_set = build_link_set(fit.stream.store, fit.stream.split, "val")
    with stage("calibration", len(evaluation_set.pairs)) as advance:
        score = fit.examine(evaluation_set, advance)
    return fit_calibration(score, evaluation_set.pairs.label, evaluation_set.number), (evaluation_set, score)


def add_rank_metrics(fit: Trainer, rows: Rows, stage: Stage) -> Rows:
    """Each row with the ranks of its split and setting: of the test period, none of the validation period."""
    store, split = fit.stream.store, fit.stream.split
    ranking = Ranking(RANK_METRICS, most=count_affordable_events(fit))
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for setting in SETTINGS:
        if has_events(store, split, "test", setting) and len(store.dst.unique()) > 1:
            evaluation_set = build_link_set(store, split, "test", setting)
            asked = (_scorer(fit), fit.stream, evaluation_set, fit.config.rule, fit.seed)
            with stage(f"ranks, test {setting}", ranking.questions(evaluation_set)) as advance:
                found["test", setting] = ranking.row(*asked, advance)
    return [row | _rank_columns(found.get((row["split"], row["setting"]), {})) for row in rows]


def _rank_columns(found: dict[str, Any]) -> dict[str, Any]:
    names = (*RANK_METRICS, "candidates", "candidate_seed")
    return {name: found.get(name) for name in names} | {"ranked": found.get("n")}


def count_affordable_events(fit: Trainer) -> int:
    """Events of a setting to rank: as many as add up to about a tenth to what training took, whatever the machine.

    A function of the run, not of a clock, so that the same run always has the same figures.
    """
    split, asked = fit.stream.split, len(fit.progress.entries) * 2 * len(fit.stream.split.val)
    if isinstance(fit.scorer, RoundLearner):  # looks its questions up once
        asked += FORWARD_PASSES * (1 + fit.scorer.negatives) * len(split.train)
    else:
        asked += FORWARD_PASSES * len(fit.progress.entries) * 2 * len(split.train)
    events = RANKING_SHARE * asked / (len(SETTINGS) * DEFAULT_CANDIDATES)
    return int(min(max(events, MIN_RANKED_EVENTS), MAX_RANKED_EVENTS))


def _scorer(fit: Trainer) -> Any:
    return fit.scorer


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
