"""Requests of trainings: `train`, `resume`, `tune`, `backtest` and `blend`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, Self

from dygmamba.api.requests.base import Names, Request, check_data, parse_names, require_run
from dygmamba.config import check_device, check_settings, find_size_preset, is_preset_file, read_preset_file
from dygmamba.core.choices import NEGATIVES, VARIANTS, check_choice
from dygmamba.core.errors import ConfigError, make_package_error
from dygmamba.data.events.split_spec import (
    AUTO_PROTOCOL,
    LEADERBOARD_SPLIT,
    SplitSpec,
    check_protocol,
    parse_parts,
    parse_shares,
)
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.candidates import CANDIDATES, find_refused, list_candidates
from dygmamba.runs.default_model import choose_model

MAX_HOURS = 24 * 365
SECONDS_PER_UNIT = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
TASKS = ("link", "node")
LOGGER_PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny"}  # logger: the package to install


@dataclass(frozen=True, kw_only=True)
class _RunRequest(Request):
    """Arguments that a new and a resumed training share."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    negatives: Names = "random"
    device: str = "auto"
    log: Names | None = None
    refit: str | None = None  # of the command line: train again on all events afterwards
    processes: int = 1
    deterministic: bool | None = None

    @property
    def strategies(self) -> tuple[str, ...]:
        """The negative samplers of the final evaluation."""
        return parse_names("negatives", self.negatives, NEGATIVES)

    @property
    def loggers(self) -> tuple[str, ...]:
        """The loggers; one whose package is missing is an error."""
        if not self.log:
            return ()
        names = tuple(dict.fromkeys(parse_names("log", self.log, LOGGER_PACKAGES)))
        for name in names:
            if find_spec(name) is None:
                raise make_package_error(f"`log='{name}'`", name, LOGGER_PACKAGES[name])
        return names

    def _check_run(self, task: str) -> None:
        _ = self.strategies, self.loggers  # raise for unknown names
        check_device(self.device)
        if self.refit not in (None, "all"):
            raise ConfigError(f"`refit` must be 'all' or left out, got '{self.refit}'", code="unknown-refit")
        if self.refit and task == "node":
            raise ConfigError(
                "`refit` is for link runs; leave it out, or leave out `task='node'`",
                code="refit-of-node-task",
            )


@dataclass(frozen=True, kw_only=True)
class TrainRequest(_RunRequest):
    """Arguments of `dygmamba.train`."""

    data: Any
    model: str | None = None
    seeds: Sequence[int] = (0,)
    task: str = "link"
    budget: str | float | None = None
    start_from: Path | None = None
    out: Path = Path("runs")
    backbone: Path | None = None
    finetune: bool = False
    balance: bool = False
    preset: str | None = None
    split: SplitSpec | None = None
    protocol: str = AUTO_PROTOCOL

    def check(self) -> Self:
        self._check_run(self.task)
        model = self.model if self.start_from is None else self._check_start(self.start_from)
        self._check_task()
        self.check_budget(self.processes)
        check_protocol(self.protocol)
        if self.backbone is not None:
            self._check_backbone(self.backbone)
        else:
            _check_split(self.split)
            if self.budget is None or model is not None:
                check_trainable(model, self.settings, self.task, self.preset, self.device, self.finetune)
        if self.budget is not None:
            self._check_candidates(model)
        check_data(self.data, self.data_dir)
        return self

    @property
    def seconds(self) -> float | None:
        """The time budget."""
        return None if self.budget is None else parse_budget(self.budget)

    def check_budget(self, processes: int) -> None:
        """Raise ConfigError where a training cannot have a time budget; torchrun may have started several processes."""
        if self.budget is None:
            return
        if self.task != "link":
            raise ConfigError(
                "`budget` is for link prediction; leave it out, or leave out `task='node'`",
                code="budget-of-node-task",
            )
        if processes != 1:
            raise ConfigError(
                f"`budget` is for one process; leave it out, or leave out `processes={processes}`",
                code="budget-of-processes",
            )

    def _check_candidates(self, model: str | None) -> None:
        """Raise ConfigError if the budget is wrong, or no model that would be tried can be trained."""
        _ = self.seconds
        if model is None and len(self.seeds) != 1:
            raise ConfigError(
                f"`budget` chooses a model with one seed, got {len(self.seeds)}; leave out `seeds`, or name the "
                "`model`, and the seeds share the time",
                code="budget-of-seeds",
            )
        # whether there is a GPU is not known without torch: a setting of any candidate passes
        kinds = (self.device,) if self.device in CANDIDATES else tuple(CANDIDATES)
        tried = dict.fromkeys(one for kind in kinds for one in list_candidates(kind, model, self.preset))
        find_refused(tuple(tried), dict(self.settings))

    def _check_task(self) -> None:
        """Raise ConfigError for an unknown task, and for options that only node classification has."""
        check_choice("task", self.task, TASKS)
        options = {"backbone": self.backbone is not None, "finetune": self.finetune, "balance": self.balance}
        wrong = [name for name, is_given in options.items() if is_given]
        if self.task == "link" and wrong:
            raise ConfigError(
                f"`{wrong[0]}` is an option of `task='node'`; add that or leave it out",
                code="option-of-node-task",
            )

    def _check_start(self, start: Path) -> str:
        """Return the model of the run to start from; raise ConfigError for options that the run has decided."""
        if self.task != "link":
            raise ConfigError(
                "`start_from` is for link prediction; leave it out, or leave out `task='node'`",
                code="start-of-node-task",
            )
        if self.preset is not None:
            raise ConfigError(
                f"a run that starts from another one has its settings; leave out `preset={self.preset!r}`, or "
                "`start_from`",
                code="start-and-preset",
            )
        own = RunDirectory(start).config().get("run", {}).get("model")
        if self.model is not None and self.model != own:
            raise ConfigError(
                f"{start} is a run of '{own}', and its weights are of no use to `model={self.model!r}`; "
                "leave out `model`",
                code="start-other-model",
            )
        return str(own)

    def _check_backbone(self, backbone: Path) -> None:
        """Raise ConfigError for options that a finished backbone has decided already."""
        protocol = None if self.protocol == AUTO_PROTOCOL else self.protocol
        for name, value in (("preset", self.preset), ("split", self.split), ("protocol", protocol)):
            if value is not None:
                raise ConfigError(
                    f"`{name}` is fixed by the backbone; leave it out, or leave out `backbone` to train one",
                    code="decided-by-backbone",
                )
        require_run(backbone)


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(_RunRequest):
    """Arguments of `dygmamba.resume`; `given` are options of a new training that were given, with their values."""

    folder: Path
    given: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> Self:
        self._check_run(str(self.given.get("task", "link")))
        folder = require_run(self.folder)
        for name, value in self.given.items():
            if name != "task" or value != folder.task:
                raise ConfigError(
                    f"a resumed run keeps its own settings; leave out `{name}`, or start a new run",
                    code="fixed-by-run",
                )
        return self


@dataclass(frozen=True, kw_only=True)
class RefitRequest(Request):
    """Arguments of `dygmamba.refit`."""

    folder: Path
    device: str = "auto"
    processes: int = 1

    def check(self) -> Self:
        check_device(self.device)
        require_run(self.folder)
        return self


@dataclass(frozen=True, kw_only=True)
class BlendRequest(Request):
    """Arguments of `dygmamba.blend`."""

    runs: Sequence[Path]
    negatives: Names = "random"
    device: str = "auto"
    out: Path = Path("runs")

    @property
    def strategies(self) -> tuple[str, ...]:
        """The negative samplers of the evaluation."""
        return parse_names("negatives", self.negatives, NEGATIVES)

    def check(self) -> Self:
        _ = self.strategies  # raises for unknown names
        check_device(self.device)
        for run in self.runs:
            require_run(run)
        return self


@dataclass(frozen=True, kw_only=True)
class TuneRequest(Request):
    """Arguments of `dygmamba.tune`."""

    data: Any
    model: str | None = None
    trials: int | None = None
    hours: float | None = None
    out: Path | None = None
    resume: bool = False
    seed: int = 0
    preset: str | None = None
    split: SplitSpec | None = None
    protocol: str = AUTO_PROTOCOL
    device: str = "auto"
    studies: Path = Path("studies")
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> Self:
        if self.trials is not None and self.trials < 1:
            raise ConfigError(f"`trials` must be at least 1, got {self.trials}", code="trials-not-positive")
        if self.hours is not None and not 0 < self.hours <= MAX_HOURS:
            raise ConfigError(
                f"`hours` must be above 0 and at most {MAX_HOURS:,} (a year), got {self.hours:g}",
                code="hours-out-of-range",
            )
        check_device(self.device)
        _check_split(self.split)
        check_protocol(self.protocol)
        check_trainable(self.model, self.settings, "link", self.preset, self.device)
        check_data(self.data, self.data_dir)
        return self


@dataclass(frozen=True, kw_only=True)
class BacktestRequest(Request):
    """Arguments of `dygmamba.backtest`."""

    data: Any
    model: str | None = None
    every: str | float
    window: str | float | None = None
    start: str | float | None = None
    variants: Names = VARIANTS
    seed: int = 0
    preset: str | None = None
    device: str = "auto"
    out: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> Self:
        parse_period("every", self.every)
        if self.window is not None:
            parse_period("window", self.window)
        parse_names("variants", self.variants, VARIANTS)
        check_device(self.device)
        check_trainable(self.model, self.settings, "link", self.preset, self.device)
        check_data(self.data, self.data_dir)
        return self


def check_trainable(
    model: str | None,
    settings: Mapping[str, Any],
    task: str,
    preset: str | None,
    device: str,
    finetune: bool = False,
) -> None:
    """Raise an error if the model, or the one that would be chosen, cannot be trained with these settings."""
    if preset is not None and is_preset_file(preset):
        read_preset_file(Path(preset))
    if model is not None:
        _check_model(model, settings, task, preset)
        return
    kinds = (device,) if device in CANDIDATES else tuple(CANDIDATES)
    errors = []
    for kind in kinds:
        choice = choose_model(kind, task, dict(settings), preset, finetune)
        try:
            _check_model(choice.model, settings, task, choice.preset)
        except ConfigError as error:
            errors.append(error)
    if len(errors) == len(kinds):  # wrong on any machine; whether there is a GPU is not known without torch
        raise errors[0]


def _check_model(model: str, settings: Mapping[str, Any], task: str, preset: str | None) -> None:
    from dygmamba.models import require_model

    spec = require_model(model)
    if spec is not None and not spec.trainable:
        raise ConfigError(
            f"model '{model}' needs no training; use: `dygmamba.evaluate('DATA', {model!r})`",
            code="model-needs-no-training",
        )
    sized = {} if preset is None else find_size_preset(preset, model)
    check_settings(model, sized | dict(settings), task)


def _check_split(given: SplitSpec | None) -> None:
    """Raise ConfigError for malformed shares; whether two times lie within the events is checked with the dataset."""
    if given not in (None, LEADERBOARD_SPLIT):
        parse_shares(parse_parts(given))


def parse_duration(given: str | float) -> float | None:
    """Return a time in seconds, given as "10m", "1.5h", "90s", "7d", "2w", or as a number of seconds; else None."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", str(given).strip().lower())
    unit = SECONDS_PER_UNIT.get(match[2] or "s") if match else None
    return float(match[1]) * unit if match and unit else None


def parse_period(name: str, given: str | float) -> float:
    """Return the length of a part of a stream in seconds, or in the unit of its times if they are plain numbers."""
    seconds = parse_duration(given)
    if seconds is None or not 0 < seconds < inf:
        raise ConfigError(
            f"`{name}` takes a time such as 7d, 2w or 12h, or a number in the unit of the stream; got '{given}'",
            code=f"invalid-{name}",
        )
    return seconds


def parse_budget(given: str | float) -> float:
    """Return a time budget in seconds, as `parse_duration` takes it."""
    seconds = parse_duration(given) or 0.0
    if not 0 < seconds <= MAX_HOURS * 3600:
        raise ConfigError(
            f"`budget` takes a time such as 10m, 1h or 90s, at most a year; got '{given}'",
            code="invalid-budget",
        )
    return seconds
