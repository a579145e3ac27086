"""The evaluation data of a public leaderboard: its split, its negatives, and its node labels.

They are saved next to the dataset as NAME@VERSION.board and belong to exactly this version.

Shapes: e1 events of a period plus one, c negatives of all events, m labels.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int32, Int64
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.files.writing import make_folder
from dygmamba.data.catalogue.leaderboard_folders import LEADERBOARD_FORMATS
from dygmamba.data.events.split_spec import AUTO_PROTOCOL, choose_protocol
from dygmamba.data.events.splits import PUBLISHED_SPLIT, SplitRule
from dygmamba.data.storage.dataset import VERSION_SEPARATOR, Dataset
from dygmamba.data.storage.locations import DATASET_SUFFIX
from dygmamba.data.storage.tensor_file import read_sealed_tensors, write_sealed_tensors

STORED_FORMATS = (*LEADERBOARD_FORMATS, "relbench")  # of datasets; RelBench folders are no longer read
LEADERBOARD_SUFFIX, LEADERBOARD_FORMAT = ".board", "dygmamba-board-1"
Period = Literal["val", "test"]
PERIODS: tuple[Period, Period] = ("val", "test")


@dataclass(frozen=True, slots=True)
class LeaderboardNegatives:
    """Negative destinations of the events of a period; those of event k are `node[start[k]:start[k + 1]]`."""

    start: Int64[Tensor, "e1"]
    node: Int32[Tensor, "c"]

    def __len__(self) -> int:
        return len(self.start) - 1


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """A leaderboard's split, and negatives by period."""

    name: str
    sizes: tuple[int, int, int]  # events of training, validation and test, in time order
    negatives: dict[Period, LeaderboardNegatives] = field(default_factory=dict)

    @property
    def split(self) -> SplitRule:
        """The leaderboard's split; no node is held out of training."""
        return make_counted_split(self.name, self.sizes)

    def first(self, period: Period) -> int:
        """Return the first event of a period."""
        return sum(self.sizes[: 1 + PERIODS.index(period)])


def make_counted_split(name: str, sizes: tuple[int, ...]) -> SplitRule:
    """Create the split rule of a leaderboard from the numbers of events of its periods."""
    return SplitRule(tuple(map(float, sizes)), f"board {name}", counted=True, protocol="time")


def save_leaderboard(leaderboard: Leaderboard, dataset: Dataset, folder: Path) -> Path:
    """Write a leaderboard's evaluation data next to its dataset and return the path."""
    path = folder / f"{dataset.name}{VERSION_SEPARATOR}{dataset.version}{LEADERBOARD_SUFFIX}"
    tensors = {
        f"{period}_{part}": getattr(negatives, part)
        for period, negatives in leaderboard.negatives.items()
        for part in ("start", "node")
    }
    about = {
        "format": LEADERBOARD_FORMAT,
        "digest": dataset.digest,
        "name": leaderboard.name,
        "sizes": json.dumps(leaderboard.sizes),
    }
    make_folder(folder)
    write_sealed_tensors(path, tensors or {"none": torch.zeros(0)}, about)
    return path


def find_leaderboard_file(dataset: Dataset) -> Path | None:
    """Return the file with the leaderboard of a dataset, if any; the same version may have another name."""
    if dataset.path is None or dataset.origin.format not in STORED_FORMATS:
        return None
    pattern = f"*{VERSION_SEPARATOR}{dataset.version}{LEADERBOARD_SUFFIX}"
    return next(iter(sorted(dataset.path.parent.glob(pattern))), None)


def load_leaderboard_file(path: Path, dataset: Dataset) -> Leaderboard:
    """Load what `save_leaderboard` wrote; raise FileError if it belongs to other events."""
    tensors, about = read_sealed_tensors(path)
    name, sizes = _parse_heading(path, about, dataset)
    negatives: dict[Period, LeaderboardNegatives] = {
        period: LeaderboardNegatives(tensors[f"{period}_start"], tensors[f"{period}_node"])
        for period in PERIODS
        if f"{period}_start" in tensors
    }
    return Leaderboard(name, sizes, negatives)


def read_published_leaderboard(dataset: Dataset) -> Leaderboard | None:
    """Read the leaderboard from the published files that a dataset was just read from; None for other datasets."""
    from dygmamba.data.readers.leaderboards import read_leaderboard

    if (
        dataset.path is None
        or dataset.path.suffix == DATASET_SUFFIX
        or dataset.origin.format not in LEADERBOARD_FORMATS
    ):
        return None
    return read_leaderboard(dataset.path, dataset.origin.format, dataset)


def load_leaderboard_split(dataset: Dataset) -> SplitRule | None:
    """Return the split of a dataset's leaderboard, reading only the header of its file; None without one."""
    if (leaderboard := read_published_leaderboard(dataset)) is not None:
        return leaderboard.split
    path = find_leaderboard_file(dataset)
    if path is None:
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"{path} is damaged; delete it, or import the dataset again", code="file-damaged"
        ) from error
    return make_counted_split(*_parse_heading(path, about, dataset))


def get_default_split(dataset: Dataset, protocol: str = AUTO_PROTOCOL) -> SplitRule:
    """Return the default split of a dataset: that of its leaderboard, else 70, 15 and 15 % of the events.

    Only a dataset of DyGLib (by name and size) has nodes held out of training; `protocol` decides for any dataset.
    """
    if protocol == AUTO_PROTOCOL and (rule := load_leaderboard_split(dataset)) is not None:
        return rule
    return replace(PUBLISHED_SPLIT, protocol=choose_protocol(dataset.name, dataset.store, protocol))


def load_leaderboard(dataset: Dataset) -> Leaderboard:
    """Return the leaderboard of a dataset; raise ConfigError if it has none."""
    if (leaderboard := read_published_leaderboard(dataset)) is not None:
        return leaderboard
    path = find_leaderboard_file(dataset)
    if path is None:
        raise ConfigError(
            f"dataset '{dataset.name}' has no leaderboard; import a folder of TGB or TGB-Seq",
            code="no-leaderboard",
        )
    return load_leaderboard_file(path, dataset)


def _parse_heading(path: Path, about: dict[str, str], dataset: Dataset) -> tuple[str, tuple[int, int, int]]:
    try:
        train, val, test = (int(size) for size in json.loads(about["sizes"]))
        is_valid = (
            about["format"] == LEADERBOARD_FORMAT
            and train + val + test == len(dataset)
            and min(train, val, test) >= 0
        )
        if not is_valid or about["digest"] != dataset.digest:
            raise ValueError("it belongs to other events")
        return about["name"], (train, val, test)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FileError(
            f"{path} is not a leaderboard of '{dataset.name}' ({error}); import the dataset again",
            code="leaderboard-mismatch",
        ) from error
