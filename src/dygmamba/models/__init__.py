"""The one registry: a model is a file and a line here."""

from dygmamba.errors import NotFoundError
from dygmamba.models import (
    cawn,
    dyg_mamba,
    dygformer,
    edgebank,
    freedyg,
    graphmixer,
    heuristics,
    memory_family,
    tcl,
    tgat,
)
from dygmamba.models.base import ModelSpec

MODELS: dict[str, ModelSpec] = {
    "dyg-mamba": dyg_mamba.SPEC,
    "mamba": dyg_mamba.MAMBA,
    "edgebank": edgebank.SPEC,
    "tgat": tgat.SPEC,
    "cawn": cawn.SPEC,
    "graphmixer": graphmixer.SPEC,
    "tcl": tcl.SPEC,
    "dygformer": dygformer.SPEC,
    "freedyg": freedyg.SPEC,
    "jodie": memory_family.JODIE,
    "dyrep": memory_family.DYREP,
    "tgn": memory_family.TGN,
    "popularity": heuristics.POPULARITY,
    "recency": heuristics.RECENCY,
}


def find_model(name: str) -> ModelSpec:
    """The registered model of that name."""
    if name not in MODELS:
        raise NotFoundError(f"unknown model '{name}'; choose from {', '.join(MODELS)}")
    return MODELS[name]
