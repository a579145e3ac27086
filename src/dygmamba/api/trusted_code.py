"""The user's consent to import code: modules that runs refer to, and files of models; imports no torch by itself."""

import sys
from pathlib import Path

from dygmamba.core.errors import ConfigError


def import_if_trusted(trust: bool, *runs: Path | str | None) -> None:
    """Import the modules that define the models of these runs, if `trust`; what is not a run directory is skipped."""
    folders = [Path(run) for run in runs if run is not None] if trust else []
    if not folders:
        return
    from dygmamba.engine.run_directory import RunDirectory
    from dygmamba.runs.trusted_code import import_run_code

    if "" not in sys.path:
        sys.path.append("")  # a model that lay beside the user, such as mine.py, is found there again
    for folder in folders:
        if (folder / "config.toml").is_file():
            import_run_code(RunDirectory(folder))


def import_model(model: str | None) -> str | None:
    """Return the name of a model; of a file, FILE.py or FILE.py:NAME, that of the model that it registers.

    The file is imported, which runs its code: whoever names a file wants that.
    """
    given = model or ""
    file, _, name = (given, "", "") if given.endswith(".py") else given.rpartition(":")
    if not file.endswith(".py"):
        return model
    from dygmamba.runs.trusted_code import import_model_file

    names = import_model_file(Path(file).expanduser())
    if (name and name not in names) or not names or (not name and len(names) > 1):
        known = f"it registers {', '.join(names)}" if names else "it registers none with `dygmamba.register`"
        raise ConfigError(
            f"{file} has {f'no model {name!r}' if name else 'not exactly one model'}: {known}; give `model` as "
            f"{file}:NAME",
            code="model-not-in-file",
        )
    return name or names[0]
