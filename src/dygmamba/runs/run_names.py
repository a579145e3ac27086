"""Runs by name: `latest`, a dataset, or a folder of runs or a run directory. Imports neither torch nor pyarrow."""

from pathlib import Path

LATEST, RUNS_FOLDER = "latest", Path("runs")
# a run is at <root>/<dataset>/<model>/<run>; the user may have given any of these folders as root
CONFIG_PATTERNS = ("*/config.toml", "*/*/config.toml", "*/*/*/config.toml")


def find_run(name: str | Path, runs: Path = RUNS_FOLDER) -> Path:
    """Return the run directory of this path or name.

    `latest` is the newest run below the folder of runs; the name of a dataset is the newest run on it, and a folder of
    runs the newest run in it. Finished runs come first. A name that matches nothing is returned as a path.
    """
    path = Path(name)
    if (path / "config.toml").is_file():
        return path
    root = runs if str(name) == LATEST else path if path.is_dir() else runs / path
    found = [config.parent for pattern in CONFIG_PATTERNS for config in root.glob(pattern)]
    return max(found, key=_get_age_key, default=path)


def _get_age_key(run: Path) -> tuple[bool, str, int]:
    """Sort finished runs last, then by the stamp in the name, then by the time of the file."""
    return (run / "results.json").is_file(), run.name[:15], (run / "config.toml").stat().st_mtime_ns
