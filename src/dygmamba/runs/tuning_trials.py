"""What a search may change: ranges by the name of a setting, as data, held to the bounds of the model's own config.

The trials of a search, in Optuna's journal: one line per fact, whole or not there; its own tools read it too.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dygmamba.config import load_presets
from dygmamba.core.errors import ConfigError, FileError, first_line
from dygmamba.core.settings import check_value, get_setting_hints
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.models import find_model


@dataclass(frozen=True, slots=True)
class Range:
    """Where a number may lie; whole numbers where both ends are."""

    low: float
    high: float
    log: bool = False

    def holding(self, value: Any) -> "Range":
        """The range, widened to hold the value."""
        return Range(min(self.low, value), max(self.high, value), self.log and value > 0)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that must be legal for all others to be."""
        return (self.low, self.high)


@dataclass(frozen=True, slots=True)
class Choices:
    """Single values."""

    ends: tuple[Any, ...]

    def holding(self, value: Any) -> "Choices":
        """The choices, the value among them."""
        return self if value in self.ends else Choices((value, *self.ends))


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Ranges and choices by setting, what each is without a search, and how long a trial trains."""

    parts: dict[str, Range | Choices]
    usual: dict[str, Any]
    trial: dict[str, Any]


def build_search_space(model: str, settings: dict[str, Any], fixed: dict[str, Any]) -> SearchSpace:
    """What is searched for a model: all that the table knows of its settings, but for those that are `fixed`.

    `settings` are what the model would be trained with otherwise; every one of them lies in the space.
    """
    table, config = load_presets("spaces.toml"), find_model(model).config
    own = table["model"].get(model, {})
    hints = get_setting_hints(LinkFitConfig) | get_setting_hints(config)
    usual = _defaults(LinkFitConfig) | _defaults(config) | settings
    parts = {}
    for name, words in (table["setting"] | own.get("setting", {})).items():
        if name in hints and name not in fixed and name not in own.get("leave", ()):
            part = _validate_part(name, _parse_part(words), usual[name], hints[name])
            parts |= {} if part is None else {name: part}
    if not parts:
        raise ConfigError(
            f"nothing is left to search for '{model}'; fix fewer settings, or choose another model"
        )
    return SearchSpace(parts, {name: usual[name] for name in parts}, table["trial"] | own.get("trial", {}))


def _validate_part(name: str, part: Range | Choices, usual: Any, hint: Any) -> Range | Choices | None:
    """The part with what is usual in it; None where this model means something else by that name."""
    try:
        check_value(name, usual, hint)
        for end in part.ends:
            check_value(name, end, hint)
        return part.holding(usual)
    except (ConfigError, TypeError):
        return None


def _parse_part(words: dict[str, Any]) -> Range | Choices:
    return Choices(tuple(words["choices"])) if "choices" in words else Range(**words)


def _defaults(config: type) -> dict[str, Any]:
    return {name: part.default for name, part in config.__dataclass_fields__.items()}


JOURNAL_FILE, STUDY_NAME = "journal.log", "tune"
TrialRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """One set of settings under way."""

    study: Any
    trial: Any

    @property
    def settings(self) -> dict[str, Any]:
        """What it tries."""
        return dict(self.trial.params)

    def lags(self, value: float, epoch: int) -> bool:
        """Note an epoch's validation; whether the trial is behind the median of those before it."""
        self.trial.report(value, epoch)
        return bool(self.trial.should_prune())

    def finish(self, value: float | None, epochs: int, seconds: float) -> None:
        """It is done, or cut off where it has no value."""
        self._note(epochs=epochs, seconds=seconds)
        self._tell("PRUNED" if value is None else "COMPLETE", value)

    def refuse(self, why: str, seconds: float) -> None:
        """Such settings cannot be trained; no further trial is made of them."""
        self._note(epochs=0, seconds=seconds, why=why)
        self._tell("PRUNED")

    def forget(self) -> None:
        """It was stopped: as if it had never begun."""
        self._tell("FAIL")

    def _note(self, **facts: Any) -> None:
        for name, value in facts.items():
            self.trial.set_user_attr(name, value)

    def _tell(self, state: str, value: float | None = None) -> None:
        from optuna.trial import TrialState

        self.study.tell(self.trial, value, state=TrialState[state])


class TrialJournal:
    """A study on disk."""

    def __init__(self, folder: Path, study: Any, distributions: dict[str, Any]) -> None:
        self.folder, self._study, self._distributions = folder, study, distributions

    @staticmethod
    def open(folder: Path, about: dict[str, Any], space: SearchSpace, startup: int) -> "TrialJournal":
        """The study of a folder, begun where there is none; one that is about something else is refused."""
        optuna = _import_optuna()
        warm = max(1, space.trial["epochs"] // 4)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=warm)
        path = folder / JOURNAL_FILE
        _truncate_partial_line(path)
        try:
            storage = optuna.storages.JournalStorage(_open_backend(path))
            study = optuna.create_study(
                storage=storage,
                study_name=STUDY_NAME,
                direction="maximize",
                pruner=pruner,
                load_if_exists=True,
            )
            begun = study.user_attrs.get("about")
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(
                f"{path} is damaged ({first_line(error)}); remove {folder} to begin anew"
            ) from error
        _require_same_study(folder, begun, about)
        if begun is None:
            study.set_user_attr("about", about)
        for left in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            study.tell(left.number, state=optuna.trial.TrialState.FAIL)
        return TrialJournal(
            folder, study, {name: _to_distribution(part) for name, part in space.parts.items()}
        )

    @property
    def done(self) -> list[Any]:
        """The trials that count: finished or cut off, in the order they were made."""
        from optuna.trial import TrialState

        return self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))

    def ask(self, seed: int, given: dict[str, Any]) -> Trial:
        """The next trial; `given` are the settings of the first one."""
        import optuna

        # constant_liar is for several processes at once
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=False)
        waiting = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,))
        if given and not waiting:
            self._study.enqueue_trial(given)
        return Trial(self._study, self._study.ask(self._distributions))

    @property
    def rows(self) -> list[TrialRow]:
        """One per trial: number, state, validation AP (of a trial that was cut off, the best so far), settings."""
        return [
            {
                "trial": number,
                "state": "cut off" if trial.state.name == "PRUNED" else "done",
                "ap": trial.value
                if trial.state.name == "COMPLETE"
                else max(trial.intermediate_values.values(), default=None),
                "epochs": trial.user_attrs.get("epochs", 0),
                "seconds": trial.user_attrs.get("seconds", 0.0),
                "why": trial.user_attrs.get("why"),
                "settings": dict(trial.params),
            }
            for number, trial in enumerate(self.done, 1)
        ]

    @property
    def best(self) -> TrialRow | None:
        """The finished trial of the highest validation AP, the first of several."""
        done = [row for row in self.rows if row["state"] == "done"]
        return max(done, key=lambda row: row["ap"], default=None)

    @property
    def importances(self) -> dict[str, float]:
        """What mattered, adding up to 1 (PED-ANOVA); empty where too few trials were finished to say."""
        import optuna

        complete = [trial for trial in self.done if trial.state.name == "COMPLETE"]
        if len(complete) < 8 or len({trial.value for trial in complete}) < 2:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return dict(optuna.importance.get_param_importances(self._study, evaluator=evaluator))


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "a search needs the package optuna; install it with: pip install 'dyg-mamba[tune]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _open_backend(path: Path) -> Any:
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    class Locked(JournalFileOpenLock):
        """The folder is locked by this process already; a lock file would outlive a killed one."""

        def acquire(self) -> bool:
            return True

        def release(self) -> None:
            return

    return JournalFileBackend(str(path), lock_obj=Locked(str(path)))


def _truncate_partial_line(path: Path) -> None:
    """Cut off a last line that was not written whole: what it said did not happen."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        os.truncate(path, whole)


def _require_same_study(folder: Path, begun: dict[str, Any] | None, about: dict[str, Any]) -> None:
    about = json.loads(json.dumps(about))
    other = [] if begun is None else [key for key in about if begun.get(key) != about[key]]
    if begun is not None and other:
        key = other[0]
        was, now = (str(side.get(key))[:80] for side in (begun, about))
        raise ConfigError(
            f"{folder} is a study with {key} {was}, not {now}; give that again, or keep this one in another `studies` "
            "folder"
        )


def _to_distribution(part: Range | Choices) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(part, Choices):
        return CategoricalDistribution(part.ends)
    if isinstance(part.low, int) and isinstance(part.high, int):
        return IntDistribution(part.low, part.high, log=part.log)
    return FloatDistribution(part.low, part.high, log=part.log)
