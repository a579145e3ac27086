"""The registry of models: every model by name, with its settings; importing it needs no torch.

A model is a config in `configs.py`, a module that builds it and an entry of `MODELS`. Other packages add models with
`dygmamba.register` or an entry point. The package can be called: `dygmamba.models()` returns all models by name. A
function of that name would hide the package.
"""

import difflib
import sys
from collections.abc import Iterable
from types import ModuleType

from dygmamba.core.errors import ConfigError, NotFoundError
from dygmamba.models import configs
from dygmamba.models.spec import Builder, ModelSpec, NodeSpec, list_installed, load_installed

MODELS: dict[str, ModelSpec] = {
    "dyg-mamba": ModelSpec(
        config=configs.DyGMambaConfig,
        build=Builder("dygmamba.models.dyg_mamba:DyGMamba"),
        trainable=True,
        title="DyG-Mamba (NeurIPS 2025)",
        looks_at="both nodes' recent events, the time gaps between them, and nodes that occur in both",
        cost="linear in the length",
    ),
    "mamba": ModelSpec(
        config=configs.MambaConfig,
        build=Builder("dygmamba.models.dyg_mamba:DyGMamba"),
        trainable=True,
        title="vanilla Mamba (Gu and Dao 2023) on DyG-Mamba's tokens",
        looks_at="both nodes' recent events and nodes that occur in both; time gaps only as a feature",
        cost="linear in the length",
    ),
    "dyg-mamba-counts": ModelSpec(
        config=configs.DyGMambaCountsConfig,
        build=Builder("dygmamba.models.dyg_mamba_counts:DyGMambaCounts"),
        trainable=True,
        title="DyG-Mamba with decayed counts, temporal walks, transitions and columns",
        looks_at="both nodes' recent events, for each its type, its counts with both nodes, walks to them and what "
        "follows it; counts, ages and numeric columns of the pair's whole history; named node features",
        cost="linear in the length, logarithmic in the events",
    ),
    "edgebank": ModelSpec(
        config=configs.EdgeBankConfig,
        build=Builder("dygmamba.models.heuristics:EdgeBank"),
        build_lagging=Builder("dygmamba.models.lagging_heuristics:LaggingEdgeBank"),
        trainable=False,
        title="EdgeBank (Poursafaei et al. 2022)",
        looks_at="whether the directed pair is in memory",
        cost="one look-up of the pair",
    ),
    "tgat": ModelSpec(
        config=configs.TGATConfig,
        build=Builder("dygmamba.models.tgat:TGAT"),
        trainable=True,
        title="TGAT (Xu et al. 2020)",
        looks_at="each node's recent events and those of its neighbors, two hops back",
        cost="quadratic in the neighbors: two hops",
    ),
    "cawn": ModelSpec(
        config=configs.CAWNConfig,
        build=Builder("dygmamba.models.cawn:CAWN"),
        trainable=True,
        title="CAWN (Wang et al. 2021)",
        looks_at="walks drawn from both nodes' histories, and how often each node on them occurs in either's walks",
        cost="quadratic in the number of walks",
    ),
    "graphmixer": ModelSpec(
        config=configs.GraphMixerConfig,
        build=Builder("dygmamba.models.graphmixer:GraphMixer"),
        trainable=True,
        title="GraphMixer (Cong et al. 2023)",
        looks_at="each node's recent events, in fixed slots",
        cost="quadratic in the neighbors",
    ),
    "tcl": ModelSpec(
        config=configs.TCLConfig,
        build=Builder("dygmamba.models.tcl:TCL"),
        trainable=True,
        title="TCL (Wang et al. 2021)",
        looks_at="both nodes' recent events, each attending to its own and the other's",
        cost="quadratic in the neighbors",
    ),
    "dygformer": ModelSpec(
        config=configs.DyGFormerConfig,
        build=Builder("dygmamba.models.dygformer:DyGFormer"),
        trainable=True,
        title="DyGFormer (Yu et al. 2023)",
        looks_at="both nodes' recent events in patches, and nodes that occur in both",
        cost="quadratic in length / patch",
    ),
    "freedyg": ModelSpec(
        config=configs.FreeDyGConfig,
        build=Builder("dygmamba.models.freedyg:FreeDyG"),
        trainable=True,
        title="FreeDyG (Tian et al. 2024)",
        looks_at="the frequencies of both nodes' recent events, and nodes that occur in both",
        cost="quadratic in the length (its token mixing)",
    ),
    "jodie": ModelSpec(
        config=configs.JODIEConfig,
        build=Builder("dygmamba.models.memory_family:build_jodie"),
        trainable=True,
        title="JODIE (Kumar et al. 2019)",
        looks_at="each node's memory, and the time since its last update",
        cost="one memory update per node",
    ),
    "dyrep": ModelSpec(
        config=configs.DyRepConfig,
        build=Builder("dygmamba.models.memory_family:build_dyrep"),
        trainable=True,
        title="DyRep (Trivedi et al. 2019)",
        looks_at="each node's memory, updated with its partners' neighborhoods",
        cost="one memory update per node; linear in the neighbors when observing",
    ),
    "tgn": ModelSpec(
        config=configs.TGNConfig,
        build=Builder("dygmamba.models.memory_family:build_tgn"),
        trainable=True,
        title="TGN (Rossi et al. 2020)",
        looks_at="each node's memory and the memory of its recent neighbors",
        cost="one memory update per node, linear in the neighbors",
    ),
    "tpnet": ModelSpec(
        config=configs.TPNetConfig,
        build=Builder("dygmamba.models.tpnet:TPNet"),
        trainable=True,
        title="TPNet (Lu et al. 2024), exact walks",
        looks_at="how decayed walks to both nodes and to their recent neighbors overlap",
        cost="quadratic in the neighbors, linear in the columns of the walks",
    ),
    "trees": ModelSpec(
        config=configs.TreesConfig,
        build=Builder("dygmamba.models.trees:BoostedTrees"),
        trainable=True,
        title="boosted trees on decayed counts",
        looks_at="decayed counts of both nodes' and their neighbors' events, what follows the source's last ones, and "
        "amounts and types of earlier events",
        cost="linear in the neighbors, logarithmic in the events",
        for_nodes=NodeSpec(configs.NodeTreesConfig, "dygmamba.models.trees:NodeTrees"),
    ),
    "walk-trees": ModelSpec(
        config=configs.WalkTreesConfig,
        build=Builder("dygmamba.models.trees:BoostedTrees"),
        trainable=True,
        title="boosted trees on decayed counts and temporal walks",
        looks_at="the features of trees, and walks of up to three events",
        cost="linear in the neighbors, logarithmic in the events",
    ),
    "popularity": ModelSpec(
        config=configs.NoConfig,
        build=Builder("dygmamba.models.heuristics:Popularity"),
        build_lagging=Builder("dygmamba.models.lagging_heuristics:LaggingPopularity"),
        trainable=False,
        title="popularity",
        looks_at="how many events the destination has received",
        cost="one look-up of the destination",
    ),
    "decayed-popularity": ModelSpec(
        config=configs.NoConfig,
        build=Builder("dygmamba.models.heuristics:DecayedPopularity"),
        trainable=False,
        title="decayed popularity",
        looks_at="how many events the destination has received, old ones weighted less",
        cost="one look-up of the destination",
    ),
    "recency": ModelSpec(
        config=configs.NoConfig,
        build=Builder("dygmamba.models.heuristics:Recency"),
        build_lagging=Builder("dygmamba.models.lagging_heuristics:LaggingRecency"),
        trainable=False,
        title="recency of the directed pair, then of the destination as receiver",
        looks_at="the last event from source to destination, then the last event the destination received",
        cost="one look-up of the pair and one of the destination",
    ),
    "pair-recency": ModelSpec(
        config=configs.NoConfig,
        build=Builder("dygmamba.models.heuristics:PairRecency"),
        trainable=False,
        title="recency of the pair, then of the destination, in any role",
        looks_at="the last event between the two nodes, then the destination's last event, sent or received",
        cost="one look-up of the pair and one of the destination",
    ),
    "destination-recency": ModelSpec(
        config=configs.NoConfig,
        build=Builder("dygmamba.models.heuristics:DestinationRecency"),
        trainable=False,
        title="recency of the destination, in any role",
        looks_at="the destination's last event, sent or received",
        cost="one look-up of the destination",
    ),
    "source-recency": ModelSpec(
        config=configs.NoConfig,
        build=Builder("dygmamba.models.heuristics:SourceRecency"),
        trainable=False,
        title="recency of the source, in any role",
        looks_at="the source's last event, sent or received",
        cost="one look-up of the source",
    ),
    "association": ModelSpec(
        config=configs.NoConfig,
        build=Builder("dygmamba.models.heuristics:Association"),
        trainable=False,
        title="association rules (confidence; Agrawal et al. 1993)",
        looks_at="how often the destination followed the source's last ten destinations, of any source",
        cost="ten look-ups of a pair of destinations",
    ),
    "recency-regression": ModelSpec(
        config=configs.NoConfig,
        build=Builder("dygmamba.models.heuristics:RecencyRegression"),
        trainable=False,
        title="logistic regression on the ages of the pair and of the destination",
        looks_at="the last event between the two nodes and the destination's last event, with two fitted weights",
        cost="one look-up of the pair and one of the destination",
    ),
}
# models that are built from finished runs and never trained by name
COMPOSED: dict[str, ModelSpec] = {
    "blend": ModelSpec(
        config=configs.BlendConfig,
        build=Builder("dygmamba.models.blend:build_blend"),
        trainable=True,
        title="several finished runs as one",
        looks_at="what its models look at",
        cost="the sum of its models' costs",
    )
}
REGISTERED: dict[str, ModelSpec] = {}  # models registered in this process, and entry points that were loaded


def find_model(name: str, source: str | None = None) -> ModelSpec:
    """Return the model of that name, importing an installed entry point if necessary.

    Args:
        name: Name in the registry.
        source: The module:attribute that defines it, as a run records it. It is never imported here: a run may come
            from anybody (`runs/trusted_code.py`).

    Raises:
        NotFoundError: no model has that name.
    """
    for table in (MODELS, COMPOSED):
        if name in table:
            return table[name]
    if name not in REGISTERED and name in (installed := list_installed()):
        REGISTERED[name] = load_installed(name, installed[name])
    if name not in REGISTERED:
        raise _unregistered_model(name, source) if source else _unknown_model(name, list_names())
    return REGISTERED[name]


def is_known_model(name: str) -> bool:
    """Return whether `find_model` finds the model: it is built in, registered, or offered by an installed package."""
    return name in (*COMPOSED, *list_names())


def require_model(name: str) -> ModelSpec | None:
    """Check that a model exists without importing it; return its spec if it is one of this package.

    Raises:
        NotFoundError: no model has that name.
    """
    if name not in MODELS and name not in (names := list_names()):
        raise _unknown_model(name, names)
    return MODELS.get(name)


def list_names() -> list[str]:
    """Return the names of all models: built in, registered, and offered by installed packages; imports none."""
    return list(dict.fromkeys([*MODELS, *REGISTERED, *list_installed()]))


def _unregistered_model(name: str, source: str) -> NotFoundError:
    module = source.partition(":")[0]
    if module == "__main__":
        hint = f"register {name[:80]!r} again with `dygmamba.register`"
        what = f"was registered in a script or notebook ({source:.120}); {hint}"
    else:
        what = (
            f"is defined by {source!r:.120}, which is not imported by itself, because that would run its code; if you "
            "trust it, give `trust=True`, or import that module first"
        )
    return NotFoundError(f"the model {name[:80]!r} of this run {what}", code="unregistered-model")


def _unknown_model(name: str, names: Iterable[str]) -> NotFoundError:
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return NotFoundError(
        f"unknown model {name[:80]!r}; {hint}choose from {', '.join(names)}, or `dygmamba.register` it",
        code="unknown-model",
    )


def add_model(name: str, spec: ModelSpec) -> ModelSpec:
    """Register a model of another package; a registered name may be replaced, a name of this package may not."""
    if name in MODELS or name in COMPOSED:
        raise ConfigError(
            f"'{name}' is a model of dygmamba itself; register yours under another name",
            code="model-name-taken",
        )
    REGISTERED[name] = spec
    return spec


def all_models() -> dict[str, ModelSpec]:
    """Return every model by name: built in, registered, and offered by installed packages."""
    installed = {name: find_model(name) for name in list_installed() if name not in MODELS}
    return {**MODELS, **REGISTERED, **installed}


class _CallablePackage(ModuleType):
    def __call__(self) -> dict[str, ModelSpec]:
        """Return all models by name, each with title, what it looks at, cost and settings.

        >>> import dygmamba as dm
        >>> dm.models()["edgebank"].trainable
        False
        >>> dm.models()["tgat"].settings["neighbors"]
        20
        """
        return all_models()


sys.modules[__name__].__class__ = _CallablePackage
