"""Models of other packages and of notebooks: registered by a call, by an entry point, or by importing their module."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from dygmamba.core.errors import ConfigError, NotFoundError
from dygmamba.known import GROUP
from dygmamba.models.base import DatasetFacts, Encoder, EncoderScorer, ModelSpec, Scorer


def with_link_head_if_encoder(
    build: Callable[[Any, DatasetFacts], Any],
) -> Callable[[Any, DatasetFacts], Scorer]:
    """What builds a scorer: an encoder that is built gets a link head."""

    def scorer(config: Any, facts: DatasetFacts) -> Scorer:
        built = build(config, facts)
        return EncoderScorer(built) if isinstance(built, Encoder) else built

    return scorer


def import_path(thing: Any) -> str:
    """The import path of a class or function, module:attribute."""
    return f"{thing.__module__}:{thing.__qualname__}"


def list_installed() -> dict[str, Any]:
    """The models that installed packages offer, by name; none of them is imported yet."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_installed(name: str, point: Any) -> ModelSpec:
    """The model behind an entry point."""
    try:
        spec = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"model '{name}' is offered as {point.value}, which cannot be imported ({error}); mend that package"
        ) from error
    if not isinstance(spec, ModelSpec):
        raise ConfigError(
            f"model '{name}' is offered as {point.value}, which is no ModelSpec; name one there"
        )
    return spec if spec.source is not None else with_source(spec, point.value)


def with_source(spec: ModelSpec, source: str) -> ModelSpec:
    """The same model, with where it comes from."""
    return ModelSpec(
        spec.config,
        with_link_head_if_encoder(spec.build),
        spec.trainable,
        spec.title,
        spec.looks_at,
        spec.cost,
        source,
    )


def import_source(name: str, source: str) -> None:
    """Import the module that a run says its model comes from, so that it registers it, or say what to do."""
    module = source.partition(":")[0]
    again = f"register '{name}' again with `dygmamba.register`, then open the run"
    if module == "__main__":
        raise NotFoundError(f"model '{name}' was registered in a script or notebook ({source}); {again}")
    try:
        import_module(module)
    except ImportError as error:
        raise NotFoundError(
            f"model '{name}' comes from {source}, which cannot be imported ({error}); install that package or {again}"
        ) from error
