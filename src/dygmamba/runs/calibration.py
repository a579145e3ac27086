"""Calibration of a run: the function from logits to probabilities, fitted on the validation period.

It is stored in the run directory as `calibration.json`, with a checksum of its own and the checksum of the weights it
was fitted to. A run that was trained further since, or trained before this file existed, counts as uncalibrated.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from dygmamba.core.errors import FileError
from dygmamba.core.files.writing import write_text
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.storage.tensor_file import read_seal
from dygmamba.engine.fit import Trainer
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import Calibration, Reliability, compute_reliability, fit_calibration
from dygmamba.tasks.link import build_link_set

CALIBRATION_FILE = "calibration.json"
FITTED_ON = ("random", "val", "transductive")  # negatives, split, setting: as many random pairs as events


@dataclass(frozen=True, slots=True)
class SavedCalibration:
    """A calibration and the reliability diagrams of the test period before and after it (the fields are JSON keys)."""

    calibration: Calibration
    before: Reliability | None
    after: Reliability | None


def fit_link_calibration(
    fit: Trainer, progress: Progress
) -> tuple[Calibration, tuple[EvaluationSet, Tensor]]:
    """Fit the calibration of a link run.

    Returns:
        The calibration, and the evaluation set it was fitted on with its logits.
    """
    evaluation_set = build_link_set(fit.stream.store, fit.stream.split, "val")
    with progress.stage("calibration", len(evaluation_set.pairs)) as stage:
        score = fit.score(evaluation_set, stage.advance)
    calibration = fit_calibration(score, evaluation_set.pairs.label, evaluation_set.event_index)
    return calibration, (evaluation_set, score)


def calibrate_link_run(fit: Trainer) -> None:
    """Fit and save the calibration of a trained link run without evaluating it."""
    ReliabilityRecorder(fit.run, fit_link_calibration(fit, SILENT)[0]).save()


def copy_calibration(run: RunDirectory, origin: RunDirectory) -> None:
    """Give a run trained on all events, which has no validation period, the calibration of the run it repeats."""
    saved = load_saved_calibration(origin)
    if saved is not None:
        save_calibration(run, SavedCalibration(saved.calibration, None, None))


def save_calibration(run: RunDirectory, saved: SavedCalibration) -> None:
    """Write calibration.json with the checksum of the run's best weights and its own."""
    content = {"weights": read_seal(run.best), **asdict(saved)}
    text = json.dumps(content | {"sha256": _compute_digest(content)}, indent=1)
    write_text(run.path / CALIBRATION_FILE, text + "\n")


def load_saved_calibration(run: RunDirectory) -> SavedCalibration | None:
    """Read calibration.json; None if there is none or if it belongs to other weights."""
    path = run.path / CALIBRATION_FILE
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
        if content.pop("sha256") != _compute_digest(content):
            raise ValueError("its checksum differs")
        diagrams = [
            None if content[name] is None else Reliability(**{k: tuple(v) for k, v in content[name].items()})
            for name in ("before", "after")
        ]
        values = content["calibration"]
        knots = tuple((float(x), float(odds)) for x, odds in values["knots"])
        saved = SavedCalibration(Calibration(**values | {"knots": knots}), *diagrams)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{path} is damaged ({type(error).__name__}); delete it, then `dygmamba.resume({str(run.path)!r})` "
            "writes it again",
            code="damaged-calibration",
        ) from error
    return saved if content["weights"] == read_seal(run.best) else None


def load_calibration(run: RunDirectory) -> Calibration | None:
    saved = load_saved_calibration(run)
    return None if saved is None else saved.calibration


class ReliabilityRecorder:
    """Collects the reliability diagrams of a run during its final evaluation and saves them with the calibration."""

    def __init__(self, run: RunDirectory, calibration: Calibration) -> None:
        self.run, self.saved = run, SavedCalibration(calibration, None, None)

    def record(self, evaluation_set: EvaluationSet, score: Tensor) -> None:
        """Compute both diagrams if this is the test period with random negatives (or with none, of a classifier)."""
        about = evaluation_set.about
        key = (about.get("negatives", "random"), about["split"], about.get("setting", "transductive"))
        if key == ("random", "test", "transductive"):
            calibration, label = self.saved.calibration, evaluation_set.pairs.label
            before = compute_reliability(score.double().sigmoid(), label)
            after = compute_reliability(calibration.probability(score), label)
            self.saved = SavedCalibration(calibration, before, after)

    def save(self) -> None:
        if self.run.writes:
            save_calibration(self.run, self.saved)


def _compute_digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
