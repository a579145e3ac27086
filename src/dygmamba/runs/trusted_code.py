"""Code that a run refers to: modules that define its models, which nothing imports unless the user trusts them.

A run directory may come from anybody, and importing a module runs it. A model of a run is therefore built only if the
package, an installed entry point or this process has registered it; `import_run_code` is the one exception.
"""

import warnings
from typing import Any

from dygmamba.core.errors import DygWarning, NotFoundError
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import COMPOSED, find_model, is_known_model
from dygmamba.models.spec import import_source


def list_run_models(sections: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the models in a run's config, those of a blend included, with the module:attribute of each or ""."""
    about, settings = sections.get("run", {}), sections.get("model", {})
    parts, sources = settings.get("parts"), settings.get("sources")
    models = [(about.get("model"), about.get("source", ""))]
    if about.get("model") in COMPOSED and isinstance(parts, list) and isinstance(sources, list):
        models += zip(parts, sources, strict=False)
    return [(str(name), str(source)) for name, source in models]


def require_known_models(folder: RunDirectory) -> None:
    """Raise NotFoundError if a model of the run is defined by a module that was not imported."""
    for name, source in list_run_models(folder.config()):
        find_model(name, source)


def import_run_code(folder: RunDirectory) -> None:
    """Import the modules that define the run's models; a warning names each module before it is imported."""
    for name, source in list_run_models(folder.config()):
        if source and not is_known_model(name):
            warnings.warn(
                DygWarning(
                    f"importing {source.partition(':')[0]}, which defines the model '{name}' of {folder.path}"
                ),
                stacklevel=3,
            )
            import_source(name, source)
            if not is_known_model(name) and not source.startswith("__main__"):
                raise NotFoundError(
                    f"{source:.120} did not register the model {name[:80]!r}; register it with `dygmamba.register`",
                    code="unregistered-model",
                )
            find_model(name, source)
