"""The search space of a model and the journal of trials (Optuna's journal file, which Optuna's own tools can read).

The ranges are data, `presets/spaces.toml`, by the name of a setting. They apply to every model that has a setting of
this name, and they must respect the bounds of the model's own config.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dygmamba.config import get_default_settings, load_presets
from dygmamba.core.errors import ConfigError, FileError, first_line, make_package_error
from dygmamba.core.settings import check_value, get_setting_hints
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.models import find_model

JOURNAL_FILE, STUDY_NAME = "journal.log", "tune"
MIN_TRIALS_FOR_IMPORTANCE = 8

TrialRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Optuna's distribution of each setting, the default of each, and the epochs and patience of a trial."""

    parts: dict[str, Any]
    default: dict[str, Any]
    trial: dict[str, Any]


def build_search_space(model: str, settings: dict[str, Any], fixed: dict[str, Any]) -> SearchSpace:
    """Build the search space of a model.

    Args:
        model: Name of the model.
        settings: Settings with which the model is trained without a search; the space contains all of them.
        fixed: Settings that are not searched.
    """
    table, config = load_presets("spaces.toml"), find_model(model).config
    overrides = table["model"].get(model, {})
    hints = get_setting_hints(LinkFitConfig) | get_setting_hints(config)
    default = get_default_settings(LinkFitConfig) | get_default_settings(config) | settings
    searched = {
        name: entry
        for name, entry in (table["setting"] | overrides.get("setting", {})).items()
        if name in hints and name not in fixed and name not in overrides.get("leave", ())
    }
    parts = {
        name: _build_distribution(entry, default[name])
        for name, entry in searched.items()
        if _is_of_setting(name, entry, default[name], hints[name])
    }
    if not parts:
        raise ConfigError(
            f"model '{model}' has no setting left to search; fix fewer settings or choose another model",
            code="empty-search-space",
        )
    trial = table["trial"] | overrides.get("trial", {})
    return SearchSpace(parts, {name: default[name] for name in parts}, trial)


def _is_of_setting(name: str, entry: dict[str, Any], default: Any, hint: Any) -> bool:
    """Return whether an entry of the table is one of this setting, which may have another meaning in this model."""
    if "choices" not in entry and not isinstance(default, int | float):
        return False
    # if both ends of a range are valid, all values between them are
    ends = entry.get("choices") or (entry["low"], entry["high"])
    try:
        for value in (default, *ends):
            check_value(name, value, hint)
    except ConfigError:
        return False
    return True


def _build_distribution(entry: dict[str, Any], default: Any) -> Any:
    """Return the distribution of a setting, widened to contain the default."""
    distributions = _import_optuna().distributions
    if choices := entry.get("choices"):
        return distributions.CategoricalDistribution(choices if default in choices else (default, *choices))
    ends = min(entry["low"], default), max(entry["high"], default)
    is_log = entry.get("log", False) and default > 0
    if all(isinstance(end, int) for end in ends):
        return distributions.IntDistribution(*ends, log=is_log)
    return distributions.FloatDistribution(*ends, log=is_log)


class TrialJournal:
    """A study on disk: the finished trials, and the sampler of the next one."""

    def __init__(self, folder: Path, study: Any, space: SearchSpace) -> None:
        self.folder, self._study, self._space = folder, study, space

    @staticmethod
    def open(folder: Path, about: dict[str, Any], space: SearchSpace, startup: int) -> "TrialJournal":
        """Open the study of a folder, or start one; raise ConfigError if it is a study of something else.

        `about` identifies the study; `startup` is the number of trials before any is pruned.
        """
        optuna = _import_optuna()
        warmup = max(1, space.trial["epochs"] // 4)  # no trial is pruned in its first quarter
        pruner = optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=warmup)
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
            stored = study.user_attrs.get("about")
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(
                f"{path} is damaged ({first_line(error)}); delete {folder} to start a new study",
                code="damaged-journal",
            ) from error
        _require_same_study(folder, stored, about)
        if stored is None:
            study.set_user_attr("about", about)
        # trials that were running when a process was killed
        for left in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            study.tell(left.number, state=optuna.trial.TrialState.FAIL)
        return TrialJournal(folder, study, space)

    @property
    def done(self) -> list[Any]:
        """Optuna's finished and pruned trials, in the order they were run."""
        from optuna.trial import TrialState

        return self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))

    def ask(self, seed: int, given: dict[str, Any]) -> Any:
        """Start Optuna's next trial with sampled settings, or with `given` ones."""
        import optuna

        # A new sampler per trial makes the settings a function of (seed, earlier trials), also after a restart.
        # constant_liar is for several processes that search at the same time.
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=False)
        waiting = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,))
        if given and not waiting:
            self._study.enqueue_trial(given)
        return self._study.ask(self._space.parts)

    def end(self, trial: Any, value: float | None, **attributes: Any) -> None:
        """End a trial with its validation AP; without one it was pruned, or refused, so that it is not repeated."""
        from optuna.trial import TrialState

        for name, attribute in attributes.items():
            trial.set_user_attr(name, attribute)
        self._study.tell(trial, value, state=TrialState.PRUNED if value is None else TrialState.COMPLETE)

    def discard(self, trial: Any) -> None:
        """End an interrupted trial; it does not count and is run again."""
        from optuna.trial import TrialState

        self._study.tell(trial, state=TrialState.FAIL)

    @property
    def rows(self) -> list[TrialRow]:
        """One row per trial. `ap` is the validation AP; of a pruned trial, the best one until then."""
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
        """Row of the finished trial with the highest validation AP; the first one of equals."""
        done = [row for row in self.rows if row["state"] == "done"]
        return max(done, key=lambda row: row["ap"], default=None)

    @property
    def importances(self) -> dict[str, float]:
        """Importance of each setting (PED-ANOVA), adding up to 1; empty if too few trials were finished."""
        import optuna

        complete = [trial for trial in self.done if trial.state.name == "COMPLETE"]
        if len(complete) < MIN_TRIALS_FOR_IMPORTANCE or len({trial.value for trial in complete}) < 2:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return dict(optuna.importance.get_param_importances(self._study, evaluator=evaluator))


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise make_package_error("tuning", "optuna", "'dyg-mamba[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _open_backend(path: Path) -> Any:
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    class NoLock(JournalFileOpenLock):
        """Does not lock: the folder is locked already, and Optuna's lock file would outlive a killed process."""

        def acquire(self) -> bool:
            return True

        def release(self) -> None:
            return

    return JournalFileBackend(str(path), lock_obj=NoLock(str(path)))


def _truncate_partial_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed process left."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    complete = text.rfind(b"\n") + 1
    if complete < len(text):
        os.truncate(path, complete)


def _require_same_study(folder: Path, stored: dict[str, Any] | None, about: dict[str, Any]) -> None:
    if stored is None:
        return
    about = json.loads(json.dumps(about))  # as it is stored: tuples become lists
    for name, value in about.items():
        if stored.get(name) != value:
            before, now = str(stored.get(name))[:80], str(value)[:80]
            raise ConfigError(
                f"{folder} is a study with {name} {before}, not {now}; repeat the search with the same {name}, or set "
                "`studies` to another folder",
                code="different-study",
            )
