"""Code that a run refers to: modules that define its models, which nothing imports unless the user trusts them.

A run directory may come from anybody, and importing a module runs it. A model of a run is therefore built only if the
package, an installed entry point or this process has registered it; `import_run_code` is the one exception.
"""

import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dygmamba.core.errors import ConfigError, DygWarning, NotFoundError, first_line
from dygmamba.core.files.untrusted import require_regular_file
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import COMPOSED, REGISTERED, find_model, is_known_model
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


def import_model_file(path: Path) -> list[str]:
    """Import a Python file that the user named, and return the models that it registers; a warning says so first.

    The file becomes a module of its own name, and its folder is searched for modules. A run records this module, so it
    is opened as any run of another package: by importing it first, or with the user's consent (`import_run_code`).

    Raises:
        FileError: There is no such file.
        ConfigError: Its name is taken or cannot be one of a module, or it raises an error.
    """
    require_regular_file(path)
    file = path.resolve()
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    found = find_spec(path.stem) if path.stem.isidentifier() else None
    if found is None or found.origin is None or Path(found.origin).resolve() != file:
        raise ConfigError(
            f"{path} cannot be imported as the module '{path.stem}': use letters and digits, and a name that no other "
            "module has",
            code="malformed-model-file",
        )
    warnings.warn(DygWarning(f"importing {path}, which defines a model"), stacklevel=3)
    try:
        import_module(path.stem)
    except Exception as error:  # the file may raise anything
        raise ConfigError(
            f"{path} cannot be imported ({type(error).__name__}: {first_line(error)}); correct it",
            code="broken-model-file",
        ) from error
    return _list_models_of(path.stem)


def _list_models_of(module: str) -> list[str]:
    return [name for name, spec in REGISTERED.items() if (spec.source or "").partition(":")[0] == module]
