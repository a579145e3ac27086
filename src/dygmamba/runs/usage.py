"""Which runs refer to which data: a look through the folders of runs, by their configurations alone."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dygmamba.data.versions import Version

DEPTHS = ("config.toml", "*/config.toml", "*/*/config.toml", "*/*/*/config.toml")  # runs/<data>/<model>/<run>


@dataclass(frozen=True, slots=True)
class Use:
    """A run and the data it was trained on; runs of before there were versions have none."""

    run: Path
    data: str
    digest: str
    version: str

    def is_of(self, version: Version) -> bool:
        """Whether the run needs this dataset."""
        same = self.version == version.version if self.version else self.digest == version.digest
        return self.data == version.name and same


def uses(root: Path) -> list[Use]:
    """The runs under a folder; what is damaged, or no run, refers to nothing."""
    return list(_found(root)) if root.is_dir() else []


def _found(root: Path) -> Iterator[Use]:
    for pattern in DEPTHS:
        for path in sorted(root.glob(pattern)):
            try:
                about = tomllib.loads(path.read_text(encoding="utf-8")).get("run", {})
                yield Use(
                    path.parent, str(about["data"]), str(about["digest"]), str(about.get("version", ""))
                )
            except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
                continue
