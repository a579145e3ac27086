"""Runs and the datasets that they use, found by reading the config files below a folder; needs no torch."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dygmamba.data.storage.library import DatasetVersion
from dygmamba.runs.run_names import CONFIG_PATTERNS


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
    return list(_scan_configs(root)) if root.is_dir() else []


def _scan_configs(root: Path) -> Iterator[DatasetUse]:
    for pattern in CONFIG_PATTERNS:
        for path in sorted(root.glob(pattern)):
            try:
                about = tomllib.loads(path.read_text(encoding="utf-8")).get("run", {})
                yield DatasetUse(
                    path.parent, str(about["data"]), str(about["digest"]), str(about.get("version", ""))
                )
            except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
                continue
