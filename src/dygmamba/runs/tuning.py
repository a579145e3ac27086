"""A search for settings: short trainings, judged on the validation period alone, those that lag behind cut off.

The study is Optuna's, kept in its journal, so that its own tools read it too. Which settings a trial tries is a
function of the seed and of the trials before it, so a study that was killed goes on to what it would have become.

What a search found: its trials, its best settings, and the preset file that a training takes.
"""

import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dygmamba._version import __version__
from dygmamba.config import find_preset, find_size_preset
from dygmamba.core.errors import ConfigError, DygError, FileError, first_line
from dygmamba.core.files.locking import FileLock
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.core.memory_budget import describe_shortage, is_out_of_memory
from dygmamba.data.events.splits import PUBLISHED_SPLIT, SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.fit import Interrupted, Reporter, Trainer
from dygmamba.engine.run_directory import to_toml
from dygmamba.models import find_model
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.provenance import StartOptions
from dygmamba.runs.tuning_trials import SearchSpace, Trial, TrialJournal, TrialRow, build_search_space

TrialObserver = Callable[
    [Trainer, str], AbstractContextManager[Reporter]
]  # a trial's fit, and what it is called
STARTUP_TRIALS = 4  # finished trials before any is cut off
TRIAL_SETTINGS = ("epochs", "patience")  # of a trial; a training goes by its own


@dataclass(frozen=True, slots=True)
class TuningRequest:
    """What is searched: a model's settings on a dataset; `fixed` are not, and `size` is a preset they begin from."""

    dataset: Dataset
    model: str
    device: torch.device
    seed: int = 0
    fixed: dict[str, Any] = field(default_factory=dict)
    size: str | None = None
    by: SplitRule = PUBLISHED_SPLIT
    training: Callable[[Path], str] | None = None  # how to train with a preset, in the words of who asks

    @property
    def begun(self) -> dict[str, Any]:
        """The settings beneath all trials: the preset asked for, and what was fixed."""
        return ({} if self.size is None else find_size_preset(self.size, self.model)) | self.fixed

    @property
    def space(self) -> SearchSpace:
        """What trials may change."""
        usual = find_preset(self.model, self.dataset.name) | self.begun
        found = build_search_space(self.model, usual, self.fixed)
        return replace(
            found, trial=found.trial | {key: self.fixed[key] for key in TRIAL_SETTINGS if key in self.fixed}
        )

    @property
    def about(self) -> dict[str, Any]:
        """What makes two searches the same study; given again, it goes on."""
        return {
            "data": self.dataset.name,
            "digest": self.dataset.digest,
            "split": self.by.said,
            "model": self.model,
            "seed": self.seed,
            "preset": self.size or "none",
            "settings": {name: list(value) if isinstance(value, tuple) else value for name, value in
                         self.fixed.items()},
            "trial": self.space.trial,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class TuningBudget:
    """When a search ends: after so many trials in all, or at a moment of the monotonic clock."""

    trials: int | None = None
    until: float | None = None

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.until is not None and time.monotonic() >= self.until

    def reached(self, done: int) -> bool:
        """Whether no further trial begins."""
        return self.over or (self.trials is not None and done >= self.trials)


def study_folder(root: Path, data: str, model: str) -> Path:
    """Where the study of a model on a dataset is."""
    return root / f"tune-{data}-{model}"


def search(
    what: TuningRequest, folder: Path, bound: TuningBudget, watching: TrialObserver
) -> tuple[TrialJournal, str]:
    """Make trials until the bound; the study, and why it ended: done, time or stopped."""
    if not find_model(what.model).trainable:
        raise ConfigError(
            f"model '{what.model}' needs no training, so there is nothing to tune; choose another"
        )
    space = what.space  # a mistake in the settings is told before a folder is made
    make_folder(folder)
    lock = FileLock(folder / ".lock")
    try:
        shutil.rmtree(folder / "trials", ignore_errors=True)  # what a killed process left of its trial
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="optuna")
            journal = TrialJournal.open(folder, what.about, space, STARTUP_TRIALS)
            while not bound.reached(len(journal.done)):
                stopped = _run_trial(what, journal, space, bound, watching)
                if stopped:
                    return journal, "time" if bound.over else "stopped"
            return journal, "time" if bound.over else "done"
    finally:
        lock.release()


def _run_trial(
    what: TuningRequest,
    journal: TrialJournal,
    space: SearchSpace,
    bound: TuningBudget,
    watching: TrialObserver,
) -> bool:
    """One trial; whether someone, or the clock, stopped it."""
    number = len(journal.done)
    trial = journal.ask(_trial_seed(what.seed, number), {} if number else space.usual)
    began, root = time.monotonic(), journal.folder / "trials"
    try:
        value, epochs = _train_trial(what, trial, space, bound, watching, f"trial {number + 1}", root)
        trial.finish(value, epochs, time.monotonic() - began)
    except (Interrupted, KeyboardInterrupt):
        trial.forget()
        return True
    except DygError as error:
        trial.refuse(first_line(error), time.monotonic() - began)
        if not number:  # not even what the model is without a search
            raise
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        trial.refuse(describe_shortage(error), time.monotonic() - began)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return False


def _train_trial(
    what: TuningRequest,
    trial: Trial,
    space: SearchSpace,
    bound: TuningBudget,
    watching: TrialObserver,
    name: str,
    root: Path,
) -> tuple[float | None, int]:
    """The best validation AP, or None where the trial was cut off, and after how many epochs."""
    settings = what.begun | space.trial | trial.settings
    fit = start_link_run(
        what.dataset, what.model, what.seed, settings, what.device, root, StartOptions(by=what.by)
    )

    class CutOff(Exception):
        """Others did better by then."""

    with watching(fit, name) as report:

        def told(entry: dict[str, Any]) -> None:
            report.epoch(entry)
            if trial.lags(entry["val_ap"], entry["epoch"]) and not fit.progress.finished:
                raise CutOff

        try:
            fit(replace(report, epoch=told, stop=lambda: report.stop() or bound.over))
        except CutOff:
            return None, fit.progress.epoch
    return fit.progress.best_ap, fit.progress.epoch


def _trial_seed(seed: int, number: int) -> int:
    """The seed of what a trial tries: a function of the study's and the trial's number."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


PRESET_FILE, PAGE_NAME = "preset.toml", "tune"


@dataclass(frozen=True, slots=True)
class Tuning:
    """A search as it stands; scores are average precision on validation, and the test was never asked."""

    data: str
    model: str
    folder: Path  # the study
    preset: Path  # the best settings, for `train`
    best: TrialRow  # the best trial
    trials: list[
        TrialRow
    ]  # all of them, in the order they were made; the first is the model without a search
    importances: dict[str, float]  # what mattered, adding up to 1; empty where there are too few trials
    ended: str  # done, time or stopped

    @property
    def settings(self) -> dict[str, Any]:
        """The best trial's settings."""
        return self.best["settings"]

    @property
    def score(self) -> float:
        """Its validation AP."""
        return self.best["ap"]

    @property
    def page(self) -> Path:
        """All of it as a page that opens offline, and its tables beside it."""
        return self.folder / f"{PAGE_NAME}.html"

    @property
    def cut_off(self) -> int:
        """How many trials were not finished."""
        return sum(row["state"] == "cut off" for row in self.trials)

    @property
    def sentence(self) -> str:
        """What it came to."""
        said, first = f"validation AP {100 * self.score:.2f}", self.trials[0]["ap"]
        if self.best["trial"] == 1:
            said = f"nothing was better than {self.model} as it is, {said}"
        elif first is not None:
            said += f", without a search {100 * first:.2f}"
        return f"{said}; the best of many looks better than it is, and the test was not looked at"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        names = ("data", "model", "best", "trials", "importances", "ended")
        plain = {name: getattr(self, name) for name in names}
        return plain | {"folder": str(self.folder), "preset": str(self.preset), "page": str(self.page)}

    def __repr__(self) -> str:
        said = f"{len(self.trials)} trials of {self.model} on {self.data}, best validation AP {100 * self.score:.2f}"
        return f"<{said}, {self.preset}>"


def write_tuning_result(
    what: TuningRequest, journal: TrialJournal, ended: str, out: Path | None
) -> Tuning | None:
    """Write the preset of the best trial; None where none was finished."""
    best, rows = journal.best, journal.rows
    if best is None:
        return None
    path = out or journal.folder / PRESET_FILE
    beneath = {name: value for name, value in what.begun.items() if name not in TRIAL_SETTINGS}
    about = {
        "model": what.model,
        "data": what.dataset.name,
        "digest": what.dataset.digest,
        "split": what.by.said,
        "metric": "validation AP",
        "score": best["ap"],
        "without": rows[0]["ap"] if rows[0]["ap"] is not None else "not trained",
        "trials": len(rows),
        "cut_off": sum(row["state"] == "cut off" for row in rows),
        "trial": best["trial"],
        "epochs": best["epochs"],
        "seed": what.seed,
        "dygmamba": __version__,
    }
    write_text(path, to_toml({"preset": about, "settings": beneath | best["settings"]}))
    return Tuning(what.dataset.name, what.model, journal.folder, path, best, rows, journal.importances, ended)


def require_file_name(out: Path | None) -> None:
    """Refuse a place for the preset that a training would not take, before the search and not after it."""
    if out is not None and (out.suffix != ".toml" or out.is_dir() or not out.parent.is_dir()):
        raise FileError(
            f"the preset is a file NAME.toml in a folder that is there, got `out='{out}'`; choose another"
        )
