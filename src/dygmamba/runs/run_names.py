"""Runs by name: `latest`, a dataset, a folder of runs or a run directory. Imports neither torch nor pyarrow."""

from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

from dygmamba.core.argument_types import ArgumentTypeError

LATEST, RUNS_FOLDER = "latest", Path("runs")
CONFIG_NAME, SELECTION_NAME = "config.toml", "selection.json"
# a run is at <root>/<dataset>/<model>/<run>; the user may have given any of these folders as root
CONFIG_PATTERNS = (CONFIG_NAME, f"*/{CONFIG_NAME}", f"*/*/{CONFIG_NAME}", f"*/*/*/{CONFIG_NAME}")
STAMP_LENGTH = 15  # of the date and time at the beginning of a run directory's name


def find_run(name: str | Path, runs: Path = RUNS_FOLDER, *, prefer_finished: bool = True) -> Path:
    """Return the run directory of this path or name.

    `latest` is the newest run below the folder of runs; the name of a dataset is the newest run on it, and a folder of
    runs the newest run in it. Finished runs come first. The path is absolute, as the folders above a run are used too;
    a name that matches nothing is returned as a path.
    """
    path = Path(name)
    if (path / CONFIG_NAME).is_file():
        return path.resolve()
    found = find_runs(name, runs)
    if prefer_finished:
        found = [run for run in found if is_finished(run)] or found
    return found[0].resolve() if found else path


def get_run_path(run: Any) -> Path:
    """Return the directory of a run that is given as a `Run`, a path or a name, see `find_run`."""
    path = run if isinstance(run, str) else getattr(run, "path", run)
    if not isinstance(path, str | Path):
        raise ArgumentTypeError(f"`run` takes a Run or a path; got {short_repr(run)} ({type(run).__name__})")
    return find_run(path)


def find_runs(name: str | Path = LATEST, runs: Path = RUNS_FOLDER) -> list[Path]:
    """Return all runs that a name stands for, the newest first: those of a dataset or folder, or all (`latest`)."""
    path = Path(name)
    if not str(name) or "\0" in str(name):  # no file has such a name, and none can be looked for
        return []
    # a name with a separator is a path and not the name of a dataset
    is_name = len(path.parts) == 1 and path.name not in ("", "..")
    root = runs if str(name) == LATEST else path if path.is_dir() or not is_name else runs / path
    return sorted(iterate_runs(root), key=_get_age_key, reverse=True)


def is_finished(run: Path) -> bool:
    """Return whether the final evaluation of a run was written."""
    return (run / "results.json").is_file()


def iterate_runs(root: Path) -> Iterator[Path]:
    """Iterate over the run directories below a folder, which may be one itself."""
    for pattern in CONFIG_PATTERNS:
        for config in root.glob(pattern):
            if config.is_file():
                yield config.parent


def _get_age_key(run: Path) -> tuple[str, int]:
    """Sort by the stamp in the name, then by the time of the file."""
    return run.name[:STAMP_LENGTH], (run / CONFIG_NAME).stat().st_mtime_ns
