"""`ModelSpec`, the registry entry of a model, and how entries of other packages are found; imports no torch."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dygmamba.core.errors import ConfigError, NotFoundError, first_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from dygmamba.models.base import DatasetFacts, Encoder, Scorer, TargetFacts

ENTRY_POINT_GROUP = "dygmamba.models"  # the object of each entry point is a ModelSpec


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Config and builder of a model that learns labels of nodes without a backbone."""

    config: type
    target: str  # import path "module:attribute" of its class, which is imported when it is built

    def build(self, config: Any, facts: "DatasetFacts", target: "TargetFacts") -> "Scorer":
        return _import_path(self.target)(config, facts, target)

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings with their defaults."""
        return _list_defaults(self.config)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One entry of the registry: how a model is configured and built, what it looks at and how its cost grows."""

    config: type
    build: "Callable[[Any, DatasetFacts], Scorer]"
    trainable: bool
    title: str
    looks_at: str
    cost: str
    source: str | None = None  # module:attribute of a model from another package
    for_nodes: "NodeSpec | None" = None  # how it learns labels of nodes without a backbone, if it can
    # a heuristic's published form, which observes whole batches; used under `batch` visibility
    build_lagging: "Callable[[Any, DatasetFacts], Scorer] | None" = None

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings with their defaults."""
        return _list_defaults(self.config)


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds a scorer from config and dataset facts; an encoder gets a link head.

    `target` is a class or function, or its import path "module:attribute", which is imported at the first call.
    """

    target: "str | Callable[[Any, DatasetFacts], Encoder | Scorer]"

    def __call__(self, config: Any, facts: "DatasetFacts") -> "Scorer":
        from dygmamba.models.base import build_scorer

        return build_scorer(self.load(), config, facts)

    def load(self) -> "Callable[[Any, DatasetFacts], Encoder | Scorer]":
        """Return the class or function, importing its module if necessary."""
        if not isinstance(self.target, str):
            return self.target
        return _import_path(self.target)


def _list_defaults(config: type) -> dict[str, Any]:
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(config)
    }


def _import_path(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def import_path(target: Any) -> str:
    """Return the import path of a class or function, module:attribute."""
    return f"{target.__module__}:{target.__qualname__}"


def list_installed() -> "dict[str, EntryPoint]":
    """Return the entry points of installed packages that offer a model, by name; imports none of them."""
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def load_installed(name: str, point: "EntryPoint") -> ModelSpec:
    """Import the model behind an entry point."""
    try:
        spec = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"model '{name}' cannot be imported from its entry point {point.value} ({error}); repair or uninstall "
            "that package",
            code="broken-entry-point",
        ) from error
    if not isinstance(spec, ModelSpec):
        raise ConfigError(
            f"the entry point {point.value} of model '{name}' must name a ModelSpec; got {type(spec).__name__}",
            code="entry-point-not-a-model",
        )
    return spec if spec.source is not None else replace(spec, build=Builder(spec.build), source=point.value)


def import_source(name: str, source: str) -> None:
    """Import the module that defines a run's model, so that it registers the model; only for code the user trusts.

    Raises:
        NotFoundError: The module cannot be imported, or raises an error.
    """
    module = source.partition(":")[0]
    if module == "__main__" or not all(part.isidentifier() for part in module.split(".")):
        return  # nothing to import: `find_model` says what to do
    try:
        import_module(module)
    except Exception as error:  # the module may raise anything
        raise NotFoundError(
            f"model {name[:80]!r} comes from {source[:120]!r}, which cannot be imported ({type(error).__name__}: "
            f"{first_line(error)}); install that package, or register the model again with `dygmamba.register`",
            code="unregistered-model",
        ) from error
