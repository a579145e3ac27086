"""Former names of models and of setting values, which work until version 0.2, and settings that old runs lack.

A run directory keeps the names it was written with; `find_model` and `update_stored_settings` understand them. Settings
that a run lacks because they did not exist yet have the values of `STORED_DEFAULTS`.
"""

import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any, overload

from dygmamba.core.errors import DygWarning

ALIASES: dict[str, dict[str, str]] = {
    "model": {"fading-mamba": "dyg-mamba-counts"},
    "channels": {"fading-cooccurrence": "decayed-cooccurrence", "fading-counts": "decayed-counts"},
    "beside": {"fading-pair": "decayed-pair"},
}

FIRST_TREES: dict[str, Any] = {
    "transitions": 0,
    "max_rows": 1_000_000_000,
    "numeric_columns": 0,
    "event_types": 0,
    "node_columns": 0,
}
NETWORKS = (
    *("dyg-mamba", "mamba", "dygformer", "freedyg", "cawn", "tcl", "graphmixer", "tgat"),
    *("jodie", "dyrep", "tgn", "tpnet"),
)
# Settings of models whose defaults are not how the model worked before the setting existed.
STORED_DEFAULTS: dict[str, dict[str, Any]] = {
    "dyg-mamba-counts": {
        "channels": [
            "node",
            "edge",
            "time",
            "cooccurrence",
            "decayed-cooccurrence",
            "decayed-counts",
            "walks",
        ],
        "beside": ["decayed-pair", "walks"],
        "walk_dim": 120,
        "walk_decays": 1,
        "relation": "separate",
        "relation_dropout": 0.0,
        "tables": "concat",
        "edge_units": "raw",
    },
    "trees": FIRST_TREES,
    "walk-trees": FIRST_TREES,
} | {name: {"edge_units": "raw"} for name in NETWORKS}


@overload
def current_model_name(name: str) -> str: ...
@overload
def current_model_name(name: None) -> None: ...
def current_model_name(name: str | None) -> str | None:
    """Return the current name of a model; warn once per process about a former one."""
    return None if name is None else _resolve("model", name)


def current_values(setting: str, values: Iterable[str]) -> tuple[str, ...]:
    """Return the values of a setting under their current names; warn once per process about each former one."""
    return tuple(_resolve(setting, value) for value in values)


def update_stored_settings(model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a stored run of a model with current names, and the former values of newer settings.

    There are no warnings, because a stored run should not be edited.
    """
    former = STORED_DEFAULTS.get(ALIASES["model"].get(model, model), {})
    return former | {name: _replace(ALIASES.get(name, {}), value) for name, value in settings.items()}


def _replace(names: dict[str, str], value: Any) -> Any:
    if not names or not isinstance(value, list):
        return value
    return [names.get(item, item) if isinstance(item, str) else item for item in value]


def _resolve(kind: str, name: str) -> str:
    current = ALIASES[kind].get(name)
    if current is None:
        return name
    _warn_renamed("model" if kind == "model" else f"value of {kind}", name, current)
    return current


@cache
def _warn_renamed(what: str, old: str, new: str) -> None:
    text = f"{what} '{old}' is now called '{new}'; the old name works until 0.2"
    warnings.warn(DygWarning(text), stacklevel=4)
