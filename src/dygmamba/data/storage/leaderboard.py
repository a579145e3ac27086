"""What a public scoreboard says beside its events: their periods, whom each is ranked against, what nodes will do.

It lies beside the dataset, as NAME@VERSION.board, and is of that version's events alone.

Legend: e events of a period, c negatives in all, m labels.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float64, Int32, Int64
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.files.writing import make_folder
from dygmamba.data.catalogue.leaderboard_folders import LEADERBOARD_FORMATS
from dygmamba.data.events.splits import PUBLISHED_SPLIT, SplitRule
from dygmamba.data.storage.dataset import SUFFIX as DATASET
from dygmamba.data.storage.dataset import VERSION_SEPARATOR, Dataset
from dygmamba.data.storage.tensor_file import read_sealed_tensors, write_sealed_tensors

LEADERBOARD_SUFFIX, LEADERBOARD_FORMAT = ".board", "dygmamba-board-1"
Period = Literal["val", "test"]
PERIODS: tuple[Period, Period] = ("val", "test")


@dataclass(frozen=True, slots=True)
class LeaderboardNegatives:
    """For each event of a period the nodes it is ranked against: those from `start` to the next one's."""

    start: Int64[Tensor, "e1"]
    node: Int32[Tensor, "c"]

    def __len__(self) -> int:
        return len(self.start) - 1


@dataclass(frozen=True, slots=True)
class LeaderboardLabels:
    """What is to be foreseen of nodes: at a time, how much of a node goes to which other; sorted by time and node."""

    time: Float64[Tensor, "m"]
    node: Int64[Tensor, "m"]
    kind: Int64[Tensor, "m"]  # a node: a genre, a token, a trading nation
    weight: Float64[Tensor, "m"]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """A scoreboard's own split, its negatives by period, and its labels where it has such."""

    name: str  # whose it is
    sizes: tuple[int, int, int]  # events of training, validation and test, in time order
    negatives: dict[Period, LeaderboardNegatives] = field(default_factory=dict)
    labels: LeaderboardLabels | None = None

    @property
    def split(self) -> SplitRule:
        """The split: no node is held out of training."""
        return make_counted_split(self.name, self.sizes)

    def first(self, period: Period) -> int:
        """The first event of a period."""
        return sum(self.sizes[: 1 + PERIODS.index(period)])


def make_counted_split(name: str, sizes: tuple[int, ...]) -> SplitRule:
    """A scoreboard's split: so many events each."""
    return SplitRule(tuple(map(float, sizes)), f"board {name}", counted=True)


def save_leaderboard(board: Leaderboard, dataset: Dataset, folder: Path) -> Path:
    """Write it beside its dataset."""
    path = folder / f"{dataset.name}{VERSION_SEPARATOR}{dataset.version}{LEADERBOARD_SUFFIX}"
    tensors = {
        f"{period}_{part}": getattr(found, part)
        for period, found in board.negatives.items()
        for part in ("start", "node")
    }
    if board.labels is not None:
        tensors |= {
            f"label_{part}": getattr(board.labels, part) for part in ("time", "node", "kind", "weight")
        }
    about = {
        "format": LEADERBOARD_FORMAT,
        "digest": dataset.digest,
        "name": board.name,
        "sizes": json.dumps(board.sizes),
    }
    make_folder(folder)
    write_sealed_tensors(path, tensors or {"none": torch.zeros(0)}, about)
    return path


def find_leaderboard_file(dataset: Dataset) -> Path | None:
    """Where the board of a dataset is, if it has one; other names may lead to the same version."""
    if dataset.path is None or dataset.origin.format not in LEADERBOARD_FORMATS:
        return None
    return next(
        iter(sorted(dataset.path.parent.glob(f"*{VERSION_SEPARATOR}{dataset.version}{LEADERBOARD_SUFFIX}"))),
        None,
    )


def load_leaderboard_file(path: Path, dataset: Dataset) -> Leaderboard:
    """What save_board wrote, of these events."""
    tensors, about = read_sealed_tensors(path)
    name, sizes = _parse_heading(path, about, dataset)
    negatives: dict[Period, LeaderboardNegatives] = {
        period: LeaderboardNegatives(tensors[f"{period}_start"], tensors[f"{period}_node"])
        for period in PERIODS
        if f"{period}_start" in tensors
    }
    parts = [tensors.get(f"label_{part}") for part in ("time", "node", "kind", "weight")]
    labels = (
        None
        if any(part is None for part in parts)
        else LeaderboardLabels(*(part for part in parts if part is not None))
    )
    return Leaderboard(name, sizes, negatives, labels)


def read_published_leaderboard(dataset: Dataset) -> Leaderboard | None:
    """The board of a dataset that was read from a scoreboard's own files and not saved yet; None of any other."""
    from dygmamba.data.readers.leaderboards import read_leaderboard

    if (
        dataset.path is None
        or dataset.path.suffix == DATASET
        or dataset.origin.format not in LEADERBOARD_FORMATS
    ):
        return None
    return read_leaderboard(dataset.path, dataset.origin.format, dataset)


def load_leaderboard_split(dataset: Dataset) -> SplitRule | None:
    """The split of a dataset's scoreboard, read off the beginning of its file; None where it has none."""
    if (board := read_published_leaderboard(dataset)) is not None:
        return board.split
    path = find_leaderboard_file(dataset)
    if path is None:
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} is damaged; delete it, or import the dataset again") from error
    return make_counted_split(*_parse_heading(path, about, dataset))


def get_default_split(dataset: Dataset) -> SplitRule:
    """How a dataset is cut unless its user says otherwise: as its scoreboard does, or as published."""
    return load_leaderboard_split(dataset) or PUBLISHED_SPLIT


def load_leaderboard(dataset: Dataset) -> Leaderboard:
    """The scoreboard of a dataset, or a sentence."""
    if (board := read_published_leaderboard(dataset)) is not None:
        return board
    path = find_leaderboard_file(dataset)
    if path is None:
        raise ConfigError(
            f"dataset '{dataset.name}' has no scoreboard of its own; import a folder of TGB, TGB-Seq or RelBench"
        )
    return load_leaderboard_file(path, dataset)


def _parse_heading(path: Path, about: dict[str, str], dataset: Dataset) -> tuple[str, tuple[int, int, int]]:
    try:
        train, val, test = (int(size) for size in json.loads(about["sizes"]))
        whole = (
            about["format"] == LEADERBOARD_FORMAT
            and train + val + test == len(dataset)
            and min(train, val, test) >= 0
        )
        if not whole or about["digest"] != dataset.digest:
            raise ValueError("it is of other events")
        return about["name"], (train, val, test)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{path} is no scoreboard of '{dataset.name}' ({error}); import the dataset again"
        ) from error
