"""Rotation of a file as logrotate does it: by renaming (`create`), and by copying and emptying (`copytruncate`)."""

import os
import shutil
from pathlib import Path

KEPT = 60  # rotated files


def rotate_by_renaming(path: Path) -> None:
    path.rename(shift(path))
    path.touch()


def rotate_by_copying(path: Path) -> None:
    shutil.copyfile(path, shift(path))
    os.truncate(path, 0)


def shift(path: Path) -> Path:
    """Make room for the newest rotated file, and return its path."""
    for number in range(KEPT, 0, -1):
        old = Path(f"{path}.{number}")
        if old.exists():
            old.rename(f"{path}.{number + 1}")
    return Path(f"{path}.1")
