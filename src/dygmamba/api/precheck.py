"""What a command line can be told at once: every check here runs before torch, pyarrow or numba are imported.

They are the library's own checks where those need nothing heavy, and known.json where they would.
"""

from pathlib import Path
from typing import Any, NamedTuple

from dygmamba.api.validation import (
    check_backbone_conflicts,
    check_forecast,
    check_task,
    check_visible,
    choose_model,
    is_property_evaluation,
    parse_loggers,
    parse_metrics,
    parse_names,
)
from dygmamba.config import (
    check_device,
    check_settings,
    find_size_preset,
    is_preset_file,
    read_preset_file,
    validate_settings,
)
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.catalogue.leaderboard_folders import detect_folder_format
from dygmamba.data.events.split_spec import LEADERBOARD_SPLIT, parse_parts, parse_shares
from dygmamba.data.storage.locations import check_dataset_name, require_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.known import hints_of, known, require_model

__all__ = [
    "check_backbone_conflicts",
    "check_choice",
    "check_dataset_name",
    "check_device",
    "check_forecast",
    "check_generator",
    "check_names",
    "check_split",
    "check_task",
    "check_trainable",
    "check_untrained_model",
    "check_visible",
    "is_property_evaluation",
    "is_run_directory",
    "parse_loggers",
    "parse_metrics",
    "require_dataset",
    "require_file",
    "require_model",
    "require_run",
    "require_source",
]


class DeviceKind(NamedTuple):
    """A device, as far as it is known before torch is."""

    type: str


def is_run_directory(path: str | Path) -> bool:
    """Whether a folder is a run's."""
    return (Path(path) / "config.toml").is_file()


def require_run(path: str | Path) -> None:
    """Refuse what is no run, and one whose configuration is damaged."""
    RunDirectory(Path(path)).config()


def require_file(path: Path | None, option: str) -> None:
    """Refuse a file that is not there."""
    if path is None or path.expanduser().is_file():
        return
    if path.is_dir():
        raise FileError(f"{path} is a folder; give {option} a file in it")
    if not path.exists():
        raise FileError(f"{path} does not exist; check the name and the folder, or give {option} another")


def require_source(path: Path) -> None:
    """Refuse a file that is not there, and a folder that is no scoreboard's."""
    if detect_folder_format(path.expanduser()) is None:
        require_file(path, "the command")


def check_names(option: str, given: str | None) -> None:
    """Refuse names that an option does not take."""
    if given is not None:
        parse_names(option, given, known()["names"][option])


def check_choice(option: str, given: str) -> None:
    """Refuse a value that an option does not take."""
    values = known()["names"][option]
    if given not in values:
        raise ConfigError(f"`{option}` takes {', '.join(values[:-1])} or {values[-1]}, got '{given}'")


def check_split(given: str | None) -> None:
    """Refuse shares that are none; whether two times are any, the stream says."""
    if given not in (None, LEADERBOARD_SPLIT):
        parse_shares(parse_parts(given))


def check_trainable(
    model: str | None, settings: dict[str, Any], task: str, preset: str | None, device: str
) -> None:
    """Refuse a model that cannot be trained, and settings that the model it will be does not have."""
    if preset is not None and is_preset_file(preset):
        read_preset_file(Path(preset))
    if model is not None:
        _check_model_choice(model, settings, task, preset)
        return
    kinds = {"cpu": ("cpu",), "cuda": ("cuda",)}.get(device, ("cpu", "cuda"))
    errors = []
    for kind in kinds:
        pick = choose_model(DeviceKind(kind), task, settings, preset)
        try:
            _check_model_choice(pick.model, settings, task, pick.size)
        except ConfigError as error:
            errors.append(error)
    if len(errors) == len(kinds):  # whatever this machine has
        raise errors[0]


def _check_model_choice(model: str, settings: dict[str, Any], task: str, preset: str | None) -> None:
    about = require_model(model)
    if about is not None and not about["trainable"]:
        raise ConfigError(f"model '{model}' needs no training; use: `dygmamba.evaluate('DATA', '{model}')`")
    beneath = {} if preset is None else find_size_preset(preset, model)
    check_settings(model, beneath | settings, task)


def check_untrained_model(model: str, data: str, settings: dict[str, Any]) -> None:
    """Refuse a model that must be trained first, and settings it does not have."""
    about = require_model(model)
    if about is not None and about["trainable"]:
        raise ConfigError(f"model '{model}' must be trained first: `dygmamba.train('{data}', '{model}')`")
    check_settings(model, settings, None)


def check_generator(settings: dict[str, Any]) -> None:
    """Refuse what a generated stream cannot be."""
    about = known()["generator"]
    validate_settings(about["config"], hints_of(about["settings"]), settings)
    if settings.get("law", "never") not in known()["names"]["law"]:
        laws = ", ".join(known()["names"]["law"])
        raise ConfigError(f"law is {settings['law']!r}; choose one of {laws}")
