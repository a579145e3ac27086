"""Runs and the datasets that they use, found by reading the config files below a folder; needs no torch."""

import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dygmamba.data.storage.library import DatasetVersion
from dygmamba.runs.run_names import CONFIG_NAME, iterate_runs


@dataclass(frozen=True, slots=True)
class DatasetUse:
    """A run and the dataset it was trained on."""

    run: Path
    data: str
    digest: str
    version: str  # "" for runs trained before datasets had versions

    def is_of(self, version: DatasetVersion) -> bool:
        """Return whether the run was trained on this version of the dataset."""
        is_same = self.version == version.version if self.version else self.digest == version.digest
        return self.data == version.name and is_same


def find_dataset_uses(root: Path) -> list[DatasetUse]:
    """List the runs below a folder with their datasets; directories without a readable config are skipped."""
    uses = []
    for path in sorted(iterate_runs(root)):
        with suppress(OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
            about = tomllib.loads((path / CONFIG_NAME).read_text(encoding="utf-8")).get("run", {})
            names = (str(about["data"]), str(about["digest"]), str(about.get("version", "")))
            uses.append(DatasetUse(path, *names))
    return uses
