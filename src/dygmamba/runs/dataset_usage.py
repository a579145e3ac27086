"""Which runs refer to which data: a look through the folders of runs, by their configurations alone."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dygmamba.data.storage.library import DatasetVersion

CONFIG_PATTERNS = (
    "config.toml",
    "*/config.toml",
    "*/*/config.toml",
    "*/*/*/config.toml",
)  # runs/<data>/<model>/<run>


@dataclass(frozen=True, slots=True)
class DatasetUse:
    """A run and the data it was trained on; runs of before there were versions have none."""

    run: Path
    data: str
    digest: str
    version: str

    def is_of(self, version: DatasetVersion) -> bool:
        """Whether the run needs this dataset."""
        same = self.version == version.version if self.version else self.digest == version.digest
        return self.data == version.name and same


def find_dataset_uses(root: Path) -> list[DatasetUse]:
    """The runs under a folder; what is damaged, or no run, refers to nothing."""
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
