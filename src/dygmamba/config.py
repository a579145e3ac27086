"""Settings: a model's own dataclass, filled from presets, then from the user, nothing else."""

import dataclasses
import difflib
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from dygmamba.errors import ConfigError
from dygmamba.settings import checked, declared

T = TypeVar("T")


@cache
def presets(file: str = "paper.toml") -> dict[str, Any]:
    """A table of settings, by default the published ones: [model], [model.dataset], [model.dataset.negatives]."""
    return tomllib.loads(files("dygmamba.presets").joinpath(file).read_text("utf-8"))


def ablations() -> dict[str, dict[str, Any]]:
    """Named variants of DyG-Mamba: the settings each one replaces."""
    return presets("ablations.toml")


def preset(model: str, dataset: str, negatives: str | None = None) -> dict[str, Any]:
    """The settings of a model on a dataset; the more specific table wins."""
    table = presets().get(model, {})
    levels = [table, table.get(dataset, {})]
    if negatives is not None:
        levels.append(levels[-1].get(negatives, {}))
    return _merged(levels)


def node_preset(model: str, dataset: str) -> dict[str, Any]:
    """The settings of a backbone for node classification; the task's table wins over the link one."""
    table = presets("node.toml").get(model, {})
    return preset(model, dataset) | _merged([table, table.get(dataset, {})])


def size_preset(name: str, model: str) -> dict[str, Any]:
    """The settings of a model at another size than the published one: `small`, for CPUs; `paper` changes nothing."""
    if name == "paper":
        return {}
    if name != "small":
        raise ConfigError(f"`preset` takes small or paper, got '{name[:60]}'")
    table = presets("small.toml")
    if model not in table:
        known = " or ".join(table)
        raise ConfigError(
            f"`preset='small'` is of {known}, not of '{model}'; leave it out or choose one of them"
        )
    return dict(table[model])


def _merged(levels: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for level in levels for key, value in level.items() if not isinstance(value, dict)}


def build_config(kind: type[T], settings: dict[str, Any]) -> T:
    """A config dataclass from plain values; unknown keys, wrong types and values out of bounds are errors."""
    hints = declared(kind)
    for key in settings:
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(hints) or 'no settings'}"
            raise ConfigError(f"unknown setting '{key}' of {kind.__name__}; {hint}")
    return kind(**{key: checked(key, value, hints[key]) for key, value in settings.items()})


def to_settings(config: Any) -> dict[str, Any]:
    """The plain values of a config dataclass, ready for TOML or JSON."""
    return {
        field.name: list(value) if isinstance(value := getattr(config, field.name), tuple) else value
        for field in dataclasses.fields(config)
    }
