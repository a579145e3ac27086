"""The user's consent to import modules that runs refer to; imports no torch by itself."""

from pathlib import Path


def import_if_trusted(trust: bool, *runs: Path | str | None) -> None:
    """Import the modules that define the models of these runs, if `trust`; what is not a run directory is skipped."""
    folders = [Path(run) for run in runs if run is not None] if trust else []
    if not folders:
        return
    from dygmamba.engine.run_directory import RunDirectory
    from dygmamba.runs.trusted_code import import_run_code

    for folder in folders:
        if (folder / "config.toml").is_file():
            import_run_code(RunDirectory(folder))
