"""Rotation of a file as logrotate does it: by renaming (`create`), and by copying and emptying (`copytruncate`)."""

import os
import shutil
from pathlib import Path


def rotate_by_renaming(path: Path) -> None:
    path.rename(shift(path))
    path.touch()


def rotate_by_copying(path: Path) -> None:
    shutil.copyfile(path, shift(path))
    os.truncate(path, 0)


def shift(path: Path) -> Path:
    """Make room for the newest rotated file, and return its path; none is deleted."""
    for number in range(sum(1 for _ in path.parent.glob(f"{path.name}.*")), 0, -1):
        Path(f"{path}.{number}").rename(f"{path}.{number + 1}")
    return Path(f"{path}.1")
