"""The one registry: a model is a file and a line here."""

from dygmamba.errors import NotFoundError
from dygmamba.models import dyg_mamba, edgebank, heuristics
from dygmamba.models.base import ModelSpec

MODELS: dict[str, ModelSpec] = {
    "dyg-mamba": dyg_mamba.SPEC,
    "edgebank": edgebank.SPEC,
    "popularity": heuristics.POPULARITY,
    "recency": heuristics.RECENCY,
}


def find_model(name: str) -> ModelSpec:
    """The registered model of that name."""
    if name not in MODELS:
        raise NotFoundError(f"unknown model '{name}'; choose from {', '.join(MODELS)}")
    return MODELS[name]
