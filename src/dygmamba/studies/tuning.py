"""A search for settings: short trainings, judged on the validation period alone, those that lag behind cut off.

The study is Optuna's, kept in its journal, so that its own tools read it too. Which settings a trial tries is a
function of the seed and of the trials before it, so a study that was killed goes on to what it would have become.
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

from dygmamba.config import preset, size_preset
from dygmamba.data.splits import PUBLISHED, SplitBy
from dygmamba.data.store import Dataset
from dygmamba.engine.fit import Fit, Interrupted, Reporter
from dygmamba.errors import ConfigError, DygError, first_line
from dygmamba.files.locking import Lock
from dygmamba.files.writing import make_folder
from dygmamba.models import find_model
from dygmamba.room import ran_out, shortage
from dygmamba.runs.choosing import Beginning
from dygmamba.runs.link import start_link_run
from dygmamba.studies.spaces import Space, space_of
from dygmamba.studies.trials import Journal, Trial

Watching = Callable[[Fit, str], AbstractContextManager[Reporter]]  # a trial's fit, and what it is called
STARTUP = 4  # finished trials before any is cut off
LOOP = ("epochs", "patience")  # of a trial; a training goes by its own


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched: a model's settings on a dataset; `fixed` are not, and `size` is a preset they begin from."""

    dataset: Dataset
    model: str
    device: torch.device
    seed: int = 0
    fixed: dict[str, Any] = field(default_factory=dict)
    size: str | None = None
    by: SplitBy = PUBLISHED
    training: Callable[[Path], str] | None = None  # how to train with a preset, in the words of who asks

    @property
    def begun(self) -> dict[str, Any]:
        """The settings beneath all trials: the preset asked for, and what was fixed."""
        return ({} if self.size is None else size_preset(self.size, self.model)) | self.fixed

    @property
    def space(self) -> Space:
        """What trials may change."""
        usual = preset(self.model, self.dataset.name) | self.begun
        found = space_of(self.model, usual, self.fixed)
        return replace(found, trial=found.trial | {key: self.fixed[key] for key in LOOP if key in self.fixed})

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
class Bound:
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


def search(what: Search, folder: Path, bound: Bound, watching: Watching) -> tuple[Journal, str]:
    """Make trials until the bound; the study, and why it ended: done, time or stopped."""
    if not find_model(what.model).trainable:
        raise ConfigError(
            f"model '{what.model}' needs no training, so there is nothing to tune; choose another"
        )
    space = what.space  # a mistake in the settings is told before a folder is made
    make_folder(folder)
    lock = Lock(folder / ".lock")
    try:
        shutil.rmtree(folder / "trials", ignore_errors=True)  # what a killed process left of its trial
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="optuna")
            journal = Journal.open(folder, what.about, space, STARTUP)
            while not bound.reached(len(journal.done)):
                stopped = _one(what, journal, space, bound, watching)
                if stopped:
                    return journal, "time" if bound.over else "stopped"
            return journal, "time" if bound.over else "done"
    finally:
        lock.release()


def _one(what: Search, journal: Journal, space: Space, bound: Bound, watching: Watching) -> bool:
    """One trial; whether someone, or the clock, stopped it."""
    number = len(journal.done)
    trial = journal.ask(_draw(what.seed, number), {} if number else space.usual)
    began, root = time.monotonic(), journal.folder / "trials"
    try:
        value, epochs = _train(what, trial, space, bound, watching, f"trial {number + 1}", root)
        trial.finish(value, epochs, time.monotonic() - began)
    except (Interrupted, KeyboardInterrupt):
        trial.forget()
        return True
    except DygError as error:
        trial.refuse(first_line(error), time.monotonic() - began)
        if not number:  # not even what the model is without a search
            raise
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        trial.refuse(shortage(error), time.monotonic() - began)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return False


def _train(
    what: Search, trial: Trial, space: Space, bound: Bound, watching: Watching, name: str, root: Path
) -> tuple[float | None, int]:
    """The best validation AP, or None where the trial was cut off, and after how many epochs."""
    settings = what.begun | space.trial | trial.settings
    fit = start_link_run(
        what.dataset, what.model, what.seed, settings, what.device, root, Beginning(by=what.by)
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


def _draw(seed: int, number: int) -> int:
    """The seed of what a trial tries: a function of the study's and the trial's number."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
