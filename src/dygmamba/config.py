"""Settings: a model's own dataclass, filled from presets, then from the user, nothing else."""

import dataclasses
import difflib
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from dygmamba.core.errors import ConfigError, FileError, first_line
from dygmamba.core.settings import check_value, get_setting_hints

T = TypeVar("T")


@cache
def load_presets(file: str = "paper.toml") -> dict[str, Any]:
    """A table of settings, by default the published ones: [model], [model.dataset], [model.dataset.negatives]."""
    return tomllib.loads(files("dygmamba.presets").joinpath(file).read_text("utf-8"))


def load_ablations() -> dict[str, dict[str, Any]]:
    """Named variants of DyG-Mamba: the settings each one replaces."""
    return load_presets("ablations.toml")


def find_preset(model: str, dataset: str, negatives: str | None = None) -> dict[str, Any]:
    """The settings of a model on a dataset; the more specific table wins."""
    table = load_presets().get(_current_name(model), {})
    levels = [table, table.get(dataset, {})]
    if negatives is not None:
        levels.append(levels[-1].get(negatives, {}))
    return _merge_levels(levels)


def find_node_preset(model: str, dataset: str) -> dict[str, Any]:
    """The settings of a backbone for node classification; the task's table wins over the link one."""
    table = load_presets("node.toml").get(_current_name(model), {})
    return find_preset(model, dataset) | _merge_levels([table, table.get(dataset, {})])


def find_size_preset(name: str, model: str) -> dict[str, Any]:
    """The settings of a model at another size than the published one: `small`, for CPUs, or those of a file.

    `paper` changes nothing.
    """
    if name == "paper":
        return {}
    if is_preset_file(name):
        found = read_preset_file(Path(name))
        if found.model != _current_name(model):
            raise ConfigError(
                f"{name} is a preset of '{found.model}', not of '{model}'; choose that model or leave it out"
            )
        return dict(found.settings)
    if name != "small":
        raise ConfigError(f"`preset` takes small, paper or a file NAME.toml, got '{name[:60]}'")
    table = load_presets("small.toml")
    if model not in table:
        known = " or ".join(table)
        raise ConfigError(
            f"`preset='small'` is of {known}, not of '{model}'; leave it out or choose one of them"
        )
    return dict(table[model])


@dataclasses.dataclass(frozen=True, slots=True)
class PresetFile:
    """Settings of a model in a file, and what made them."""

    model: str
    settings: dict[str, Any]
    about: dict[str, Any]


def is_preset_file(name: str) -> bool:
    """Whether a preset is a file's and not one of the package."""
    return name.endswith(".toml")


def read_preset_file(path: Path) -> PresetFile:
    """What a search wrote: [preset] names the model and what made it, [settings] are to be trained with."""
    try:
        sections = tomllib.loads(path.read_bytes().decode("utf-8"))
        about, settings = sections["preset"], sections["settings"]
        return PresetFile(_current_name(str(about["model"])), dict(settings), dict(about))
    except OSError as error:
        raise FileError(
            f"preset {path} cannot be read ({error.strerror}); give a file that a search wrote"
        ) from error
    except (ValueError, RecursionError) as error:  # not TOML, or not UTF-8
        raise FileError(f"preset {path} is no TOML ({first_line(error)}); mend it") from error
    except (KeyError, TypeError) as error:
        raise FileError(
            f"preset {path} needs the sections [preset], with `model = ...`, and [settings]; add what is missing"
        ) from error


def _current_name(model: str) -> str:
    from dygmamba.models.aliases import current_model_name

    return current_model_name(model)


def _merge_levels(levels: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for level in levels for key, value in level.items() if not isinstance(value, dict)}


def build_config(kind: type[T], settings: dict[str, Any]) -> T:
    """A config dataclass from plain values; unknown keys, wrong types and values out of bounds are errors."""
    return kind(**validate_settings(kind.__name__, get_setting_hints(kind), settings))


def validate_settings(of: str, hints: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as what each is declared to be; `of` names what has them."""
    for key in settings:
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(hints) or 'no settings'}"
            raise ConfigError(f"unknown setting '{key}' of {of}; {hint}")
    return {key: check_value(key, value, hints[key]) for key, value in settings.items()}


def get_training_hints(task: str | None) -> dict[str, Any]:
    """Return the settings of a task's training loop with their types; none without a task."""
    from dygmamba.engine.fit_config import LinkFitConfig, NodeFitConfig

    configs = {"link": (LinkFitConfig,), "node": (NodeFitConfig, LinkFitConfig)}.get(task or "", ())
    return {name: hint for config in configs for name, hint in get_setting_hints(config).items()}


def check_settings(model: str, settings: dict[str, Any], task: str | None = "link") -> None:
    """Refuse settings that a model, or the loop of a task, does not have or take; nothing is imported for it.

    What a model from outside takes is known where it comes from. Without a task the settings are the model's alone.
    """
    from dygmamba.models import require_model  # 30 ms that the help need not wait for

    spec = require_model(model)
    if spec is None:
        return
    loop = get_training_hints(task)
    own = {name: value for name, value in settings.items() if name not in loop}
    validate_settings(spec.config.__name__, get_setting_hints(spec.config), own)
    validate_settings("training", loop, {name: value for name, value in settings.items() if name in loop})


def check_device(name: str) -> None:
    """Refuse a device that is none; whether there is a GPU, torch knows."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"`device` takes auto, cpu or cuda, got '{name}'")


def to_settings(config: Any) -> dict[str, Any]:
    """The plain values of a config dataclass, ready for TOML or JSON."""
    return {
        field.name: list(value) if isinstance(value := getattr(config, field.name), tuple) else value
        for field in dataclasses.fields(config)
    }
