"""Settings of models and training: presets of the package and of files, and validation of what users give."""

import dataclasses
import difflib
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from dygmamba.core.errors import ConfigError, FileError, first_line, make_unreadable_error
from dygmamba.core.files.untrusted import require_regular_file
from dygmamba.core.settings import check_value, get_setting_hints

T = TypeVar("T")

SIZE_PRESETS = ("small", "short")  # one file of settings each; "paper" changes nothing


@cache
def load_presets(file: str = "paper.toml") -> dict[str, Any]:
    """Load a table of settings, by default the published ones: [model], [model.dataset], [model.dataset.negatives]."""
    return tomllib.loads(files("dygmamba.presets").joinpath(file).read_text("utf-8"))


def load_ablations() -> dict[str, dict[str, Any]]:
    """Load the ablations of DyG-Mamba: name -> the settings that it replaces."""
    return load_presets("ablations.toml")


def find_preset(model: str, dataset: str, negatives: str | None = None) -> dict[str, Any]:
    """Return the published settings of a model on a dataset; the more specific table wins."""
    table = load_presets().get(model, {})
    levels = [table, table.get(dataset, {})]
    if negatives is not None:
        levels.append(levels[-1].get(negatives, {}))
    return _merge_levels(levels)


def find_node_preset(model: str, dataset: str) -> dict[str, Any]:
    """Return the settings of a backbone for node classification; they win over those for links."""
    table = load_presets("node.toml").get(model, {})
    return find_preset(model, dataset) | _merge_levels([table, table.get(dataset, {})])


def find_size_preset(name: str, model: str) -> dict[str, Any]:
    """Return the settings of a preset.

    Args:
        name: "small" for CPUs, "short" for minutes on a GPU, "paper" (which changes nothing), or a file NAME.toml.
        model: The model that has them.
    """
    if name == "paper":
        return {}
    if is_preset_file(name):
        preset = read_preset_file(Path(name))
        if preset.model != model:
            raise ConfigError(
                f"{name} is a preset for '{preset.model}', not for '{model}'; choose that model or another preset",
                code="preset-of-other-model",
            )
        return dict(preset.settings)
    if name not in SIZE_PRESETS:
        raise ConfigError(
            f"`preset` takes {', '.join(SIZE_PRESETS)}, paper or a file NAME.toml, got '{name[:60]}'",
            code="unknown-preset",
        )
    table = load_presets(f"{name}.toml")
    if model not in table:
        raise ConfigError(
            f"`preset='{name}'` exists only for {', '.join(table)}; got model '{model}'. Leave it out or choose one "
            "of them",
            code="preset-of-other-model",
        )
    return dict(table[model])


@dataclasses.dataclass(frozen=True, slots=True)
class PresetFile:
    """Settings of a model from a file, and how they were found."""

    model: str
    settings: dict[str, Any]
    about: dict[str, Any]


def is_preset_file(name: str) -> bool:
    """Return whether a preset is a file and not one of the package."""
    return name.endswith(".toml")


def read_preset_file(path: Path) -> PresetFile:
    """Read a preset that a search wrote: [preset] names the model, [settings] are its settings."""
    require_regular_file(path)
    try:
        sections = tomllib.loads(path.read_bytes().decode("utf-8"))
        about, settings = sections["preset"], sections["settings"]
        return PresetFile(str(about["model"]), dict(settings), dict(about))
    except OSError as error:
        raise make_unreadable_error(path, error) from error
    except (ValueError, RecursionError) as error:  # not TOML, or not UTF-8
        raise FileError(
            f"preset {path} is not valid TOML ({first_line(error)}); correct it", code="malformed-preset"
        ) from error
    except (KeyError, TypeError) as error:
        raise FileError(
            f"preset {path} needs the sections [preset], with `model = ...`, and [settings]; add what is missing",
            code="malformed-preset",
        ) from error


def _merge_levels(levels: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for level in levels for key, value in level.items() if not isinstance(value, dict)}


def build_config(kind: type[T], settings: dict[str, Any]) -> T:
    """Build a config dataclass from plain values; unknown keys, wrong types and values out of bounds are errors."""
    return kind(**validate_settings(kind.__name__, get_setting_hints(kind), settings))


def validate_settings(owner: str, hints: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings converted to their declared types; `owner` names what has them in the error message."""
    for key in settings:
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(hints) or 'no settings'}"
            raise ConfigError(f"unknown setting '{key}' of {owner}; {hint}", code="unknown-setting")
    return {key: check_value(key, value, hints[key]) for key, value in settings.items()}


def get_training_hints(task: str | None) -> dict[str, Any]:
    """Return the settings of a task's training loop with their types; none without a task."""
    from dygmamba.engine.fit_config import LinkFitConfig, NodeFitConfig

    configs = {"link": (LinkFitConfig,), "node": (NodeFitConfig, LinkFitConfig)}.get(task or "", ())
    return {name: hint for config in configs for name, hint in get_setting_hints(config).items()}


def check_settings(model: str, settings: dict[str, Any], task: str | None = "link") -> None:
    """Raise ConfigError for settings that neither the model nor the task's training loop accepts.

    Models of other packages are checked when they are built. Without a task only settings of the model are accepted.
    """
    from dygmamba.engine.fit_config import NodeFitConfig
    from dygmamba.models import require_model  # 30 ms that the help need not wait for

    spec = require_model(model)
    if spec is None:
        return
    loop, config = get_training_hints(task), spec.config
    if task == "node" and spec.for_nodes is not None:  # it has no backbone and no settings of link training
        loop, config = get_setting_hints(NodeFitConfig), spec.for_nodes.config
    own = {name: value for name, value in settings.items() if name not in loop}
    validate_settings(f"model '{model}'", get_setting_hints(config), own)
    validate_settings("training", loop, {name: value for name, value in settings.items() if name in loop})


def check_device(name: str) -> None:
    """Raise ConfigError for an unknown device name; whether there is a GPU is torch's question."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"`device` takes auto, cpu or cuda, got '{name}'", code="unknown-device")


def to_settings(config: Any) -> dict[str, Any]:
    """Return the plain values of a config dataclass, ready for TOML or JSON."""
    return {
        field.name: list(value) if isinstance(value := getattr(config, field.name), tuple) else value
        for field in dataclasses.fields(config)
    }


def get_default_settings(config: Any) -> dict[str, Any]:
    """Return the defaults of a config dataclass, given the class or an instance."""
    return {field.name: field.default for field in dataclasses.fields(config)}
