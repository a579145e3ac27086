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

from dygmamba.data.folders import BOARDS
from dygmamba.data.splits import PUBLISHED, SplitBy
from dygmamba.data.store import OLDER, Dataset
from dygmamba.data.store import SUFFIX as DATASET
from dygmamba.data.tensor_file import read_sealed, write_sealed
from dygmamba.errors import ConfigError, FileError
from dygmamba.files.writing import make_folder

SUFFIX, FORMAT = ".board", "dygmamba-board-1"
Period = Literal["val", "test"]
PERIODS: tuple[Period, Period] = ("val", "test")


@dataclass(frozen=True, slots=True)
class Negatives:
    """For each event of a period the nodes it is ranked against: those from `start` to the next one's."""

    start: Int64[Tensor, "e1"]
    node: Int32[Tensor, "c"]

    def __len__(self) -> int:
        return len(self.start) - 1


@dataclass(frozen=True, slots=True)
class Labels:
    """What is to be foreseen of nodes: at a time, how much of a node goes to which other; sorted by time and node."""

    time: Float64[Tensor, "m"]
    node: Int64[Tensor, "m"]
    kind: Int64[Tensor, "m"]  # a node: a genre, a token, a trading nation
    weight: Float64[Tensor, "m"]


@dataclass(frozen=True, slots=True)
class Board:
    """A scoreboard's own split, its negatives by period, and its labels where it has such."""

    name: str  # whose it is
    sizes: tuple[int, int, int]  # events of training, validation and test, in time order
    negatives: dict[Period, Negatives] = field(default_factory=dict)
    labels: Labels | None = None

    @property
    def split(self) -> SplitBy:
        """The split: no node is held out of training."""
        return counted(self.name, self.sizes)

    def first(self, period: Period) -> int:
        """The first event of a period."""
        return sum(self.sizes[: 1 + PERIODS.index(period)])


def counted(name: str, sizes: tuple[int, ...]) -> SplitBy:
    """A scoreboard's split: so many events each."""
    return SplitBy(tuple(map(float, sizes)), f"board {name}", counted=True)


def save_board(board: Board, dataset: Dataset, folder: Path) -> Path:
    """Write it beside its dataset."""
    path = folder / f"{dataset.name}{OLDER}{dataset.version}{SUFFIX}"
    tensors = {
        f"{period}_{part}": getattr(found, part)
        for period, found in board.negatives.items()
        for part in ("start", "node")
    }
    if board.labels is not None:
        tensors |= {
            f"label_{part}": getattr(board.labels, part) for part in ("time", "node", "kind", "weight")
        }
    about = {"format": FORMAT, "digest": dataset.digest, "name": board.name, "sizes": json.dumps(board.sizes)}
    make_folder(folder)
    write_sealed(path, tensors or {"none": torch.zeros(0)}, about)
    return path


def board_file(dataset: Dataset) -> Path | None:
    """Where the board of a dataset is, if it has one; other names may lead to the same version."""
    if dataset.path is None or dataset.origin.format not in BOARDS:
        return None
    return next(iter(sorted(dataset.path.parent.glob(f"*{OLDER}{dataset.version}{SUFFIX}"))), None)


def load_board(path: Path, dataset: Dataset) -> Board:
    """What save_board wrote, of these events."""
    tensors, about = read_sealed(path)
    name, sizes = _heading(path, about, dataset)
    negatives: dict[Period, Negatives] = {
        period: Negatives(tensors[f"{period}_start"], tensors[f"{period}_node"])
        for period in PERIODS
        if f"{period}_start" in tensors
    }
    parts = [tensors.get(f"label_{part}") for part in ("time", "node", "kind", "weight")]
    labels = (
        None if any(part is None for part in parts) else Labels(*(part for part in parts if part is not None))
    )
    return Board(name, sizes, negatives, labels)


def as_published(dataset: Dataset) -> Board | None:
    """The board of a dataset that was read from a scoreboard's own files and not saved yet; None of any other."""
    from dygmamba.data.formats.boards import read_board

    if dataset.path is None or dataset.path.suffix == DATASET or dataset.origin.format not in BOARDS:
        return None
    return read_board(dataset.path, dataset.origin.format, dataset)


def own_split(dataset: Dataset) -> SplitBy | None:
    """The split of a dataset's scoreboard, read off the beginning of its file; None where it has none."""
    if (board := as_published(dataset)) is not None:
        return board.split
    path = board_file(dataset)
    if path is None:
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} is damaged; delete it, or import the dataset again") from error
    return counted(*_heading(path, about, dataset))


def usual_split(dataset: Dataset) -> SplitBy:
    """How a dataset is cut unless its user says otherwise: as its scoreboard does, or as published."""
    return own_split(dataset) or PUBLISHED


def board_of(dataset: Dataset) -> Board:
    """The scoreboard of a dataset, or a sentence."""
    if (board := as_published(dataset)) is not None:
        return board
    path = board_file(dataset)
    if path is None:
        raise ConfigError(
            f"dataset '{dataset.name}' has no scoreboard of its own; import a folder of TGB, TGB-Seq or RelBench"
        )
    return load_board(path, dataset)


def _heading(path: Path, about: dict[str, str], dataset: Dataset) -> tuple[str, tuple[int, int, int]]:
    try:
        train, val, test = (int(size) for size in json.loads(about["sizes"]))
        whole = (
            about["format"] == FORMAT and train + val + test == len(dataset) and min(train, val, test) >= 0
        )
        if not whole or about["digest"] != dataset.digest:
            raise ValueError("it is of other events")
        return about["name"], (train, val, test)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{path} is no scoreboard of '{dataset.name}' ({error}); import the dataset again"
        ) from error
