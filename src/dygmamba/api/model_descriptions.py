"""Descriptions of models by their settings, without torch."""

from typing import Any

from dygmamba.core.setting_descriptions import describe_settings


def describe_model(name: str) -> dict[str, Any]:
    """Return title, cost and settings of a model, and under "training" the settings of its training loop.

    A model of this package is described without importing it.
    """
    from dygmamba.engine.fit_config import LinkFitConfig
    from dygmamba.models import find_model, require_model

    spec = require_model(name) or find_model(name)
    return {
        "name": name,
        "config": spec.config.__name__,
        "title": spec.title,
        "looks_at": spec.looks_at,
        "cost": spec.cost,
        "trainable": spec.trainable,
        "settings": describe_settings(spec.config),
        "training": describe_settings(LinkFitConfig) if spec.trainable else {},
    } | ({} if spec.for_nodes is None else {"node_settings": describe_settings(spec.for_nodes.config)})
