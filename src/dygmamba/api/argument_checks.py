"""Checks of single arguments without torch: run directories, files, names, splits, and whether a model can be trained.

`precheck.py` combines them into one check per command.
"""

from pathlib import Path
from typing import Any, NamedTuple

from dygmamba.api.validation import choose_model, parse_names
from dygmamba.config import check_settings, find_size_preset, is_preset_file, read_preset_file
from dygmamba.core.choices import FORMATS, NEGATIVES, SETTINGS, SPLITS, TIME_UNITS
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.events.split_spec import LEADERBOARD_SPLIT, parse_parts, parse_shares
from dygmamba.engine.run_directory import RunDirectory

# names that options accept
OPTION_NAMES = {
    "negatives": NEGATIVES,
    "split": SPLITS,
    "setting": SETTINGS,
    "format": FORMATS,
    "time_unit": tuple(TIME_UNITS),
}


class DeviceKind(NamedTuple):
    """A device as far as it is known without torch."""

    type: str


def is_run_directory(path: str | Path) -> bool:
    """Return whether a folder is a run directory."""
    return (Path(path) / "config.toml").is_file()


def require_run(path: str | Path) -> None:
    """Raise an error unless the path is a run directory with an undamaged configuration."""
    RunDirectory(Path(path)).config()


def require_file(path: Path | None, option: str) -> None:
    """Raise FileError if a file is given and does not exist; `option` names it in the message, "" if it is alone."""
    if path is None or path.expanduser().is_file():
        return
    if path.is_dir():
        hint = f"give `{option}` a file in it" if option else "give a file in it"
        raise FileError(f"{path} is a folder; {hint}", code="is-a-folder")
    if not path.exists():
        raise FileError(f"{path} does not exist; check the name and the folder", code="file-missing")


def require_writable(path: Path, option: str) -> None:
    """Raise FileError if a file cannot be written, before the work and not after it."""
    if path.is_dir():
        raise FileError(f"{path} is a folder; give `{option}` a file name in it", code="is-a-folder")
    if not path.parent.is_dir():
        raise FileError(
            f"the folder {path.parent} does not exist; create it, or give `{option}` another",
            code="folder-not-found",
        )


def check_names(option: str, given: str | None) -> None:
    """Raise ConfigError unless every name of a comma-separated list is one that the option takes."""
    if given is not None:
        parse_names(option, given, OPTION_NAMES[option])


def check_choice(option: str, given: str) -> None:
    """Raise ConfigError unless the option takes this value."""
    values = OPTION_NAMES[option]
    if given not in values:
        raise ConfigError(
            f"`{option}` takes {', '.join(values[:-1])} or {values[-1]}, got '{given}'",
            code=f"unknown-{option.replace('_', '-')}",
        )


def check_split(given: str | None) -> None:
    """Raise ConfigError for malformed shares; whether two times lie within the events is checked with the dataset."""
    if given not in (None, LEADERBOARD_SPLIT):
        parse_shares(parse_parts(given))


def check_trainable(
    model: str | None,
    settings: dict[str, Any],
    task: str,
    preset: str | None,
    device: str,
    finetune: bool = False,
) -> None:
    """Raise an error if the model, or the one that would be chosen, cannot be trained with these settings."""
    if preset is not None and is_preset_file(preset):
        read_preset_file(Path(preset))
    if model is not None:
        _check_model_choice(model, settings, task, preset)
        return
    kinds = {"cpu": ("cpu",), "cuda": ("cuda",)}.get(device, ("cpu", "cuda"))
    errors = []
    for kind in kinds:
        choice = choose_model(DeviceKind(kind), task, settings, preset, finetune)
        try:
            _check_model_choice(choice.model, settings, task, choice.size)
        except ConfigError as error:
            errors.append(error)
    if len(errors) == len(kinds):  # wrong on any machine; whether there is a GPU is not known without torch
        raise errors[0]


def _check_model_choice(model: str, settings: dict[str, Any], task: str, preset: str | None) -> None:
    from dygmamba.models import require_model

    spec = require_model(model)
    if spec is not None and not spec.trainable:
        raise ConfigError(
            f"model '{model}' needs no training; use: `dygmamba.evaluate('DATA', {model!r})`",
            code="model-needs-no-training",
        )
    sized = {} if preset is None else find_size_preset(preset, model)
    check_settings(model, sized | settings, task)


def check_untrained_model(model: str, data: str, settings: dict[str, Any]) -> None:
    """Raise an error if the model must be trained first, or has no such settings."""
    from dygmamba.models import require_model

    spec = require_model(model)
    if spec is not None and spec.trainable:
        raise ConfigError(
            f"model '{model}' must be trained first: `dygmamba.train({data!r}, {model!r})`",
            code="model-needs-training",
        )
    check_settings(model, settings, None)
