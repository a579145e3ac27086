"""Hyperparameter search: short trainings (trials) scored on the validation split, and the preset of the best one.

The study is stored in Optuna's journal, so that Optuna's own tools can read it. The settings of a trial depend only on
the seed and on the trials before it. So a study that was interrupted and continued ends with the same trials.
"""

import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dygmamba._version import __version__
from dygmamba.config import build_config, find_preset, find_size_preset
from dygmamba.core.errors import ConfigError, DygError, FileError, Interrupted, ScoreError, first_line
from dygmamba.core.files.locking import acquire_lock
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.core.memory_budget import describe_shortage, is_out_of_memory
from dygmamba.core.progress import SILENT, ForwardingProgress, LabelledProgress, Progress
from dygmamba.data.events.splits import PUBLISHED_SPLIT, SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.run_directory import to_toml
from dygmamba.models import find_model
from dygmamba.runs.link_training import separate_settings, start_link_run
from dygmamba.runs.provenance import StartOptions
from dygmamba.runs.tuning_trials import SearchSpace, TrialJournal, TrialRow, build_search_space

STARTUP_TRIALS = 4  # number of finished trials before any trial is pruned
TRIAL_SETTINGS = ("epochs", "patience")  # apply to trials only and are not part of the preset
PRESET_FILE, PAGE_NAME = "preset.toml", "tune"


@dataclass(frozen=True, slots=True)
class TuningRequest:
    """Request for a search of settings.

    Attributes:
        fixed: Settings that are not searched.
        size: Preset from which the search starts.
        split: How the events are split.
        train_command: Returns the command that trains with a preset file; None shows the Python call.
    """

    dataset: Dataset
    model: str
    device: torch.device
    seed: int = 0
    fixed: dict[str, Any] = field(default_factory=dict)
    size: str | None = None
    split: SplitRule = PUBLISHED_SPLIT
    train_command: Callable[[Path], str] | None = None

    @property
    def base_settings(self) -> dict[str, Any]:
        """Settings of all trials: those of the preset and the fixed ones."""
        return ({} if self.size is None else find_size_preset(self.size, self.model)) | self.fixed

    @property
    def space(self) -> SearchSpace:
        """Ranges and choices of the settings that trials vary."""
        default = find_preset(self.model, self.dataset.name) | self.base_settings
        space = build_search_space(self.model, default, self.fixed)
        fixed_trial = {name: self.fixed[name] for name in TRIAL_SETTINGS if name in self.fixed}
        return replace(space, trial=space.trial | fixed_trial)

    @property
    def about(self) -> dict[str, Any]:
        """Identity of the study, stored in its journal: a request with the same values continues it."""
        return {
            "data": self.dataset.name,
            "digest": self.dataset.digest,
            "split": self.split.label,
            "model": self.model,
            "seed": self.seed,
            "preset": self.size or "none",
            "settings": {name: list(value) if isinstance(value, tuple) else value for name, value in
                         self.fixed.items()},
            "trial": self.space.trial,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class TuningBudget:
    """Limits of a search: the number of trials of the whole study, and a time of `time.monotonic`."""

    trials: int | None = None
    deadline: float | None = None

    @property
    def is_time_over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def is_used_up(self, done: int) -> bool:
        """Return whether a study with `done` trials is complete."""
        return self.is_time_over or (self.trials is not None and done >= self.trials)


def study_folder(root: Path, data: str, model: str) -> Path:
    """Return the folder of the study of a model on a dataset."""
    return root / f"tune-{data}-{model}"


def run_search(
    request: TuningRequest, folder: Path, budget: TuningBudget, progress: Progress = SILENT
) -> tuple[TrialJournal, str]:
    """Run trials until the budget is used up.

    Returns:
        The journal of the study, and why the search ended: "done", "time" or "stopped".
    """
    spec = find_model(request.model)
    if not spec.trainable:
        raise ConfigError(
            f"model '{request.model}' needs no training, so there is nothing to tune; choose another model",
            code="model-needs-no-training",
        )
    space = request.space
    # Invalid settings must not leave a study behind: a repeated call with corrected ones would be a different study.
    loop_settings, model_settings = separate_settings(request.base_settings | space.trial)
    build_config(LinkFitConfig, loop_settings)
    build_config(spec.config, model_settings)
    make_folder(folder)
    lock = acquire_lock(folder / ".lock")
    try:
        shutil.rmtree(folder / "trials", ignore_errors=True)  # left by a killed process
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="optuna")
            journal = TrialJournal.open(folder, request.about, space, STARTUP_TRIALS)
            while not budget.is_used_up(len(journal.done)):
                stopped = _run_trial(request, journal, space, budget, progress)
                if stopped:
                    return journal, "time" if budget.is_time_over else "stopped"
            return journal, "time" if budget.is_time_over else "done"
    finally:
        lock.release()


def _run_trial(
    request: TuningRequest,
    journal: TrialJournal,
    space: SearchSpace,
    budget: TuningBudget,
    progress: Progress,
) -> bool:
    """Run one trial; return whether the user or the deadline stopped it.

    A trial that diverges or needs too much memory is kept with the reason, the first one too, whose settings are the
    default ones: others may be trained. Settings or data that the first trial refuses end the search.
    """
    from optuna import TrialPruned

    number = len(journal.done)
    name = f"trial {number + 1}"
    # the first trial has the default settings, so that the preset is never worse than no search
    trial = journal.ask(_trial_seed(request.seed, number), {} if number else space.default)
    settings = request.base_settings | space.trial | trial.params
    start, root = time.monotonic(), journal.folder / "trials"
    options, epochs, best, more = StartOptions(split=request.split), 0, None, {}
    try:
        trainer = start_link_run(
            request.dataset, request.model, request.seed, settings, request.device, root, options
        )
        observer = _PrunedProgress(LabelledProgress(progress, trial=name), trainer, trial)
        try:
            trainer(observer, name=f"{name} on {request.device}", stop=lambda: budget.is_time_over)
            best = trainer.state.best_ap
        except TrialPruned:
            pass
        epochs = trainer.state.epoch
    except (Interrupted, KeyboardInterrupt):
        journal.discard(trial)
        return True
    except DygError as error:
        if not number and not isinstance(error, ScoreError):
            journal.discard(trial)
            raise
        more["why"] = first_line(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        more["why"] = describe_shortage(error)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    journal.end(trial, best, epochs=epochs, seconds=time.monotonic() - start, **more)
    return False


class _PrunedProgress(ForwardingProgress):
    """Prune a trial whose validation AP is below the median of the others at the same epoch."""

    def __init__(self, inner: Progress, trainer: Trainer, trial: Any) -> None:
        super().__init__(inner)
        self._trainer, self._trial = trainer, trial

    def epoch(self, entry: dict[str, Any]) -> None:
        from optuna import TrialPruned

        self._inner.epoch(entry)
        self._trial.report(entry["val_ap"], entry["epoch"])
        if self._trial.should_prune() and not self._trainer.state.finished:
            raise TrialPruned


def _trial_seed(seed: int, number: int) -> int:
    """Return the seed with which the settings of a trial are sampled."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


@dataclass(frozen=True, slots=True)
class Tuning:
    """Result of a search. Scores are average precision on the validation split; the test split is never evaluated."""

    data: str
    model: str
    folder: Path  # of the study
    preset: Path  # file with the best settings, for `train`
    best: TrialRow
    trials: list[TrialRow]  # in the order they were run; the first one has the default settings
    importances: dict[str, float]  # share of each setting, adding up to 1; empty if there are too few trials
    ended: str  # "done", "time" or "stopped"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the best trial."""
        return self.best["settings"]

    @property
    def score(self) -> float:
        """Validation AP of the best trial."""
        return self.best["ap"]

    @property
    def page(self) -> Path:
        """HTML page of the study; its tables lie next to it."""
        return self.folder / f"{PAGE_NAME}.html"

    @property
    def cut_off(self) -> int:
        """Number of pruned trials."""
        return sum(row["state"] == "cut off" for row in self.trials)

    @property
    def sentence(self) -> str:
        """One-sentence summary."""
        text, default_ap = f"best validation AP {100 * self.score:.2f}", self.trials[0]["ap"]
        if self.best["trial"] == 1:
            text = f"no trial was better than the default settings of {self.model}, {text}"
        elif default_ap is not None:
            text += f", {100 * default_ap:.2f} with the default settings"
        return f"{text}; the best of many trials is optimistic, so judge it by the test result of a training"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("data", "model", "best", "trials", "importances", "ended")
        values = {name: getattr(self, name) for name in names}
        return values | {"folder": str(self.folder), "preset": str(self.preset), "page": str(self.page)}

    def __repr__(self) -> str:
        text = f"{len(self.trials)} trials of {self.model} on {self.data}, best validation AP {100 * self.score:.2f}"
        return f"<{text}, {self.preset}>"


def write_tuning_result(
    request: TuningRequest, journal: TrialJournal, ended: str, out: Path | None
) -> Tuning | None:
    """Write the preset of the best trial and return the result; None if no trial was finished."""
    best, rows = journal.best, journal.rows
    if best is None:
        return None
    path = out or journal.folder / PRESET_FILE
    base_settings = {
        name: value for name, value in request.base_settings.items() if name not in TRIAL_SETTINGS
    }
    about = {
        "model": request.model,
        "data": request.dataset.name,
        "digest": request.dataset.digest,
        "split": request.split.label,
        "metric": "validation AP",
        "score": best["ap"],
        "without": rows[0]["ap"] if rows[0]["ap"] is not None else "not trained",
        "trials": len(rows),
        "cut_off": sum(row["state"] == "cut off" for row in rows),
        "trial": best["trial"],
        "epochs": best["epochs"],
        "seed": request.seed,
        "dygmamba": __version__,
    }
    write_text(path, to_toml({"preset": about, "settings": base_settings | best["settings"]}))
    return Tuning(
        request.dataset.name, request.model, journal.folder, path, best, rows, journal.importances, ended
    )


def require_preset_path(out: Path | None) -> None:
    """Raise FileError, before the search starts, unless a preset can be written to `out`."""
    if out is not None and (out.suffix != ".toml" or out.is_dir() or not out.parent.is_dir()):
        raise FileError(
            f"`out` must be a file NAME.toml in an existing folder, got {str(out)!r}",
            code="invalid-preset-path",
        )
