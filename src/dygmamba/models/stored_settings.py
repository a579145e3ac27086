"""Settings that stored runs lack or have from before: a run opens as the model that it was trained as.

Settings that a run lacks because they did not exist yet have the values of `STORED_DEFAULTS`.
"""

from collections.abc import Collection, Mapping
from typing import Any

from dygmamba.models.configs import STACK_CHANNELS

# Models that had the settings of dyg-mamba-counts, most of them without effect, until it became a class of its own.
EXTENDED_MODELS = {"dyg-mamba": "dyg-mamba-counts", "mamba": "dyg-mamba-counts"}

FIRST_TREES: dict[str, Any] = {
    "transitions": 0,
    "associations": 0,
    "association_types": False,
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


def update_stored_settings(model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a stored run of a model, with the former values of newer settings."""
    known = _list_setting_names(model)
    former = {name: value for name, value in FIRST_NETWORKS.items() if name in known}
    former |= STORED_DEFAULTS.get(model, {})
    settings = dict(settings)  # raises an error for what a damaged file may hold instead
    if model in EXTENDED_MODELS and find_stored_model(model, settings) == model:
        moved = {*_list_setting_names(EXTENDED_MODELS[model])} - {*known}
        settings = {name: value for name, value in settings.items() if name not in moved}
    return former | settings


def find_stored_model(model: str, settings: Mapping[str, Any]) -> str:
    """Return the model that computes a stored run: dyg-mamba-counts if the run has parts that the paper does not.

    Otherwise settings of these parts, which runs of the paper's model stored as well, had no effect.
    """
    channels = settings.get("channels")
    is_extended = any(settings.get(name) for name in ("pair_features", "query_columns")) or (
        isinstance(channels, list | tuple) and any(name not in STACK_CHANNELS for name in channels)
    )
    return EXTENDED_MODELS.get(model, model) if is_extended else model


def _list_setting_names(model: str) -> Collection[str]:
    """Return the names of a model's settings; none for a model of another package that is not imported yet."""
    from dygmamba.models import MODELS, REGISTERED

    spec = MODELS.get(model) or REGISTERED.get(model)
    return () if spec is None else spec.settings
