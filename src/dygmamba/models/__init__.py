"""The one registry: a model is a file and a line here."""

from dygmamba.errors import NotFoundError
from dygmamba.models import edgebank, heuristics
from dygmamba.models.base import ModelSpec

MODELS: dict[str, ModelSpec] = {
    "edgebank": edgebank.SPEC,
    "popularity": heuristics.POPULARITY,
    "recency": heuristics.RECENCY,
}


def find_model(name: str) -> ModelSpec:
    """The registered model of that name."""
    if name not in MODELS:
        raise NotFoundError(f"unknown model '{name}'; choose from {', '.join(MODELS)}")
    return MODELS[name]
