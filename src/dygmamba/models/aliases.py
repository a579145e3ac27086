"""Former names of models, settings and setting values, which work until version 0.2, and settings that old runs lack.

A run directory keeps the names it was written with; `find_model` and `update_stored_settings` understand them. Settings
that a run lacks because they did not exist yet have the values of `STORED_DEFAULTS`.
"""

import warnings
from collections.abc import Collection, Container, Iterable, Mapping
from functools import cache
from typing import Any, overload

from dygmamba.core.errors import ConfigError, DygWarning

ALIASES: dict[str, dict[str, str]] = {
    "model": {"fading-mamba": "dyg-mamba-counts"},
    "channels": {"fading-cooccurrence": "decayed-cooccurrence", "fading-counts": "decayed-counts"},
    "pair_features": {"fading-pair": "decayed-pair"},
}
SETTING_ALIASES = {"beside": "pair_features"}
# Models that had the settings of dyg-mamba-counts, most of them without effect, until it became a class of its own.
EXTENDED_MODELS = {"dyg-mamba": "dyg-mamba-counts", "mamba": "dyg-mamba-counts"}

FIRST_TREES: dict[str, Any] = {
    "transitions": 0,
    "max_rows": 1_000_000_000,
    "numeric_columns": 0,
    "event_types": 0,
    "node_columns": 0,
}
FIRST_NETWORKS = {"edge_units": "raw"}  # of every network
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
        "pair_features": ["decayed-pair", "walks"],
        "walk_dim": 120,
        "walk_decays": 1,
        "relation": "separate",
        "relation_dropout": 0.0,
        "tables": "concat",
    },
    "trees": FIRST_TREES,
    "walk-trees": FIRST_TREES,
}


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


def current_settings(model: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a user gave for a model under their current names, with a warning as above.

    Settings of several sources are renamed before they are merged, so that the names of one source cannot collide with
    those of another.

    Args:
        model: Name of the model; None if it is yet to be chosen.
        settings: Settings of one source: the user, or a file of the user.

    Raises:
        ConfigError: A setting is given under both names.
    """
    return rename_settings(settings, None if model is None else _list_setting_names(model))


def rename_settings(settings: Mapping[str, Any], known: Container[str] | None) -> dict[str, Any]:
    """Do the same for a model with the settings `known`; None if they are not known yet."""
    aliases = _select_aliases(settings, known)
    for old, new in aliases.items():
        if new in settings:
            raise ConfigError(
                f"setting '{old}' is the former name of '{new}'; give only '{new}'",
                code="setting-given-twice",
            )
        _warn_renamed("setting", old, new)
    return {aliases.get(name, name): value for name, value in settings.items()}


def update_stored_settings(model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a stored run of a model with current names, and the former values of newer settings.

    There are no warnings, because a stored run should not be edited.
    """
    known = _list_setting_names(model)
    former = {name: value for name, value in FIRST_NETWORKS.items() if name in known}
    former |= STORED_DEFAULTS.get(ALIASES["model"].get(model, model), {})
    settings = rename_stored_settings(model, settings)
    if model in EXTENDED_MODELS and find_stored_model(model, settings) == model:
        moved = {*_list_setting_names(EXTENDED_MODELS[model]), *SETTING_ALIASES} - {*known}
        settings = {name: value for name, value in settings.items() if name not in moved}
    return former | settings


def find_stored_model(model: str, settings: Mapping[str, Any]) -> str:
    """Return the model that computes a stored run: dyg-mamba-counts if the run has parts that the paper does not.

    Otherwise settings of these parts, which runs of the paper's model stored as well, had no effect.
    """
    from dygmamba.models.configs import STACK_CHANNELS  # which imports this module

    channels = settings.get("channels")
    parts = ("pair_features", "query_columns", *SETTING_ALIASES)
    is_extended = any(settings.get(name) for name in parts) or (
        isinstance(channels, list | tuple) and any(name not in STACK_CHANNELS for name in channels)
    )
    return EXTENDED_MODELS.get(model, model) if is_extended else model


def rename_stored_settings(model: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings with current names of settings and values, without warnings; None: of no single model."""
    settings = dict(settings)  # raises an error for what a damaged file may hold instead
    aliases = _select_aliases(settings, None if model is None else _list_setting_names(model))
    # with both names the file was edited; the former one stays, and is refused where the config is built
    names = {name: name if (new := aliases.get(name, name)) in settings else new for name in settings}
    return {names[name]: _replace(ALIASES.get(names[name], {}), value) for name, value in settings.items()}


def _select_aliases(settings: Mapping[str, Any], known: Container[str] | None) -> dict[str, str]:
    """Return the former names among the settings; a model of another package may have a setting of that name."""
    return {
        old: new
        for old, new in SETTING_ALIASES.items()
        if old in settings and (known is None or (old not in known and new in known))
    }


def _list_setting_names(model: str) -> Collection[str]:
    """Return the names of a model's settings; none for a model of another package that is not imported yet."""
    from dygmamba.models import MODELS, REGISTERED  # which import this module

    name = ALIASES["model"].get(model, model)
    spec = MODELS.get(name) or REGISTERED.get(name)
    return () if spec is None else spec.settings


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
