"""The one registry: a model is a file and a line here, or comes from outside by `register` or an entry point.

The package can be called: `dygmamba.models()` is all models by name. A function of that name would hide the package.
"""

import sys
from types import ModuleType

from dygmamba.core.errors import ConfigError
from dygmamba.known import unknown_model
from dygmamba.models import (
    blend,
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
    tpnet,
    trees,
)
from dygmamba.models.base import ModelSpec
from dygmamba.models.external import import_source, list_installed, load_installed

MODELS: dict[str, ModelSpec] = {
    "dyg-mamba": dyg_mamba.SPEC,
    "mamba": dyg_mamba.MAMBA,
    "fading-mamba": dyg_mamba.COUNTS,
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
    "tpnet": tpnet.SPEC,
    "trees": trees.SPEC,
    "walk-trees": trees.WALK_TREES,
    "popularity": heuristics.POPULARITY,
    "recency": heuristics.RECENCY,
    "source-recency": heuristics.SOURCE_RECENCY,
}
OUTSIDE: dict[str, ModelSpec] = {}  # what was registered since
MADE: dict[str, ModelSpec] = {}  # what is made of finished runs, and never trained by name


def find_model(name: str, source: str | None = None) -> ModelSpec:
    """The model of that name; `source`, where a run says it comes from, is imported if nobody has registered it."""
    if name in MODELS:
        return MODELS[name]
    if name in MADE:
        return MADE[name]
    if name not in OUTSIDE and name in (offered := list_installed()):
        OUTSIDE[name] = load_installed(name, offered[name])
    if name not in OUTSIDE and source is not None:
        import_source(name, source)
    if name not in OUTSIDE:
        came = f" ({source} did not register it)" if source else ""
        raise unknown_model(name, dict.fromkeys([*MODELS, *OUTSIDE, *list_installed()]), came)
    return OUTSIDE[name]


MADE["blend"] = blend.blend_spec(find_model)


def add_model(name: str, spec: ModelSpec) -> ModelSpec:
    """Register a model from outside; the same name again replaces it, but the package's own names are taken."""
    if name in MODELS or name in MADE:
        raise ConfigError(f"'{name}' is a model of dygmamba itself; register yours under another name")
    OUTSIDE[name] = spec
    return spec


def all_models() -> dict[str, ModelSpec]:
    """Every model by name: the package's own, what was registered since, and what installed packages offer."""
    offered = {name: find_model(name) for name in list_installed() if name not in MODELS}
    return {**MODELS, **OUTSIDE, **offered}


class _Called(ModuleType):
    """The package, called."""

    def __call__(self) -> dict[str, ModelSpec]:
        """All models by name, each with title, what it looks at, cost and settings.

        >>> import dygmamba as dm
        >>> dm.models()["edgebank"].trainable
        False
        >>> dm.models()["tgat"].settings["neighbors"]
        20
        """
        return all_models()


sys.modules[__name__].__class__ = _Called
