"""Calibration of a run: the functions from logits to probabilities, fitted on the validation period.

A link run has two: one for all nodes, which predictions use, and one for the setting of new nodes. They are stored in
the run directory as `calibration.json`, with a checksum of the file and the checksum of the weights they were fitted
to. A run that was trained further since, or trained before this file existed, counts as uncalibrated.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dygmamba.core.choices import SCOPES
from dygmamba.core.errors import ConfigError, FileError, make_unreadable_error
from dygmamba.core.progress import SILENT, Progress
from dygmamba.core.settings import load
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.data.storage.tensor_file import read_seal
from dygmamba.engine.fit import Trainer
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.runs.evaluation import EvaluationKey, Scored
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import Calibration, LinkCalibration, NewNodes, Reliability, fit_calibration
from dygmamba.tasks.link import build_link_set, has_events

CALIBRATION_FILE = "calibration.json"
CARRIED_FILE = "start_calibration.json"  # of the run that a run started from
ScoredSets = dict[EvaluationKey, tuple[EvaluationSet, Tensor]]


@dataclass(frozen=True, slots=True)
class SavedCalibration:
    """Calibrations and the reliability diagrams of the test period before and after them (the fields are JSON keys).

    Attributes:
        calibration: For all nodes, and for predictions.
        before: Diagram of all nodes with the raw logits.
        after: Diagram of all nodes with the calibration.
        new_nodes: For the setting of new nodes; None for classifiers and in files written before it was fitted.
        new_nodes_before: Diagram of new nodes with the raw logits.
        new_nodes_after: Diagram of new nodes with their calibration.
    """

    calibration: Calibration
    before: Reliability | None = None
    after: Reliability | None = None
    new_nodes: Calibration | None = None
    new_nodes_before: Reliability | None = None
    new_nodes_after: Reliability | None = None

    def __post_init__(self) -> None:
        for one in (self.before, self.after, self.new_nodes_before, self.new_nodes_after):
            if one is None:
                continue
            is_even = len(one.score) == len(one.share) == len(one.count) > 0
            if not is_even or not all(0 <= value <= 1 for value in (*one.score, *one.share)):
                raise ConfigError(
                    "a reliability diagram has numbers that none has", code="damaged-calibration"
                )

    def with_diagrams(self, test: Scored) -> "SavedCalibration":
        """Return it with the diagrams of the test period with random negatives (or with none, of a classifier)."""
        before, after = test.diagrams
        if test.queries.pairs.about.get("setting", "transductive") == "transductive":
            return replace(self, before=before, after=after)
        return replace(self, new_nodes_before=before, new_nodes_after=after)


def fit_link_calibration(fit: Trainer, progress: Progress) -> tuple[LinkCalibration, ScoredSets]:
    """Fit the calibrations of a link run, with as many random pairs as validation events.

    Returns:
        The calibrations, and those of the evaluation sets they were fitted on that are sets of the run's protocol too,
        with their logits.
    """
    store, split = fit.stream.store, fit.stream.split
    new_nodes = NewNodes.from_events(store, split.train)
    fitted: dict[str, Calibration] = {}
    scored: ScoredSets = {}
    negatives = fit.scorer.negatives
    carried = _load_carried_calibrations(fit.run)
    for setting in SCOPES:
        if not has_events(store, split, "val", setting):
            fitted[setting] = carried.get(setting) or Calibration.from_training(negatives)
            continue
        evaluation_set = build_calibration_set(store, split, setting)
        pairs = evaluation_set.pairs
        with progress.stage("calibration", len(pairs)) as stage:
            score = fit.score(evaluation_set, stage.advance)
        new_ends = new_nodes.find(pairs.src, pairs.dst, pairs.time)
        fitted[setting] = fit_calibration(score, pairs.label, new_ends, negatives)
        if setting == "inductive" or split.protocol == "time":  # else result rows have other negatives
            scored["random", "val", setting] = (evaluation_set, score)
    return LinkCalibration(**fitted, new_nodes=new_nodes), scored


def build_calibration_set(store: EventStore, split: Split, setting: str) -> EvaluationSet:
    """Build the validation pairs that the calibration of a setting is fitted to; they do not depend on the test period.

    The calibration of all nodes is that of predictions, so its random destinations are those known at the query under
    every protocol. That of new nodes is for the result rows of this setting and has their negatives, which the
    benchmark protocol draws from the validation period.
    """
    drawn = replace(split, protocol="time") if setting == "transductive" else split
    return build_link_set(store, drawn, "val", setting)


def calibrate_link_run(fit: Trainer) -> None:
    """Fit and save the calibration of a trained link run without evaluating it."""
    calibration, _ = fit_link_calibration(fit, SILENT)
    save_calibration(fit.run, SavedCalibration(calibration.transductive, new_nodes=calibration.inductive))


def copy_calibration(run: RunDirectory, origin: RunDirectory) -> None:
    """Give a run trained on all events, which has no validation period, the calibration of the run it repeats."""
    saved = load_saved_calibration(origin)
    if saved is not None:
        save_calibration(run, SavedCalibration(saved.calibration, new_nodes=saved.new_nodes))


def carry_calibration(run: RunDirectory, origin: RunDirectory) -> None:
    """Store the calibration of the run that a run starts from, for settings without a validation event."""
    saved = load_saved_calibration(origin)
    if saved is not None and run.writes:
        _write_calibration(run, CARRIED_FILE, origin.best, saved)


def _load_carried_calibrations(run: RunDirectory) -> dict[str, Calibration | None]:
    """Return the carried calibrations by setting; empty if the run started anew."""
    found = _read_saved(run, CARRIED_FILE)
    return {} if found is None else dict(zip(SCOPES, (found[0].calibration, found[0].new_nodes), strict=True))


def save_calibration(run: RunDirectory, saved: SavedCalibration) -> None:
    """Write calibration.json with the checksum of the run's best weights and its own; one process of several does."""
    if run.writes:
        _write_calibration(run, CALIBRATION_FILE, run.best, saved)


def _write_calibration(run: RunDirectory, name: str, weights: Path, saved: SavedCalibration) -> None:
    content = {"weights": read_seal(weights), **asdict(saved)}
    text = json.dumps(content | {"sha256": _compute_digest(content)}, indent=1)
    run.write_file(name, text + "\n")


def load_saved_calibration(run: RunDirectory) -> SavedCalibration | None:
    """Read calibration.json; None if there is none or if it belongs to other weights."""
    found = _read_saved(run, CALIBRATION_FILE)
    return found[0] if found is not None and found[1] == read_seal(run.best) else None


def _read_saved(run: RunDirectory, name: str) -> tuple[SavedCalibration, Any] | None:
    """Read a file with calibrations and the checksum of the weights it belongs to; None if there is none."""
    path = run.path / name
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
        if content.pop("sha256") != _compute_digest(content):
            raise ValueError("its checksum differs")
        weights = content.pop("weights")
        # files written before new nodes had a calibration of their own have fewer entries
        return load(SavedCalibration, content), weights
    except FileNotFoundError:
        return None
    except OSError as error:
        raise make_unreadable_error(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        raise FileError(
            f"{path} is damaged ({type(error).__name__}); delete it, then `dygmamba.resume({str(run.path)!r})` "
            "writes it again",
            code="damaged-calibration",
        ) from error


def load_calibration(run: RunDirectory) -> Calibration | None:
    """Load the calibration that predictions use."""
    saved = load_saved_calibration(run)
    return None if saved is None else saved.calibration


def load_link_calibration(run: RunDirectory, stream: Stream) -> LinkCalibration | None:
    """Load the calibrations of both settings of a link run on its stream."""
    saved = load_saved_calibration(run)
    if saved is None:
        return None
    new_nodes = NewNodes.from_events(stream.store, stream.split.train)
    return LinkCalibration(saved.calibration, saved.new_nodes, new_nodes)


def _compute_digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
