"""The evaluation data of a public leaderboard: its split, its negatives, and its node labels.

They are read from a folder of TGB or TGB-Seq, and saved next to the dataset as NAME@VERSION.board; they belong to
exactly this version.

Shapes: e1 events of a period plus one, c negatives of all events, m labels.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int32, Int64
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.files.writing import make_folder
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.catalogue.leaderboard_folders import (
    LEADERBOARD_FORMATS,
    find_tgb_edge_list,
    find_tgb_seq_table,
)
from dygmamba.data.events.split_spec import AUTO_PROTOCOL, choose_protocol
from dygmamba.data.events.splits import PUBLISHED_SPLIT, SplitRule
from dygmamba.data.readers.numpy_files import load_matrix
from dygmamba.data.readers.options import TGB_FORMAT, ReadOptions
from dygmamba.data.readers.pickles import iter_negatives
from dygmamba.data.readers.tgb import TGB_SEQ_FORMAT, find_companion, read_split_table
from dygmamba.data.storage.dataset import VERSION_SEPARATOR, Dataset
from dygmamba.data.storage.locations import DATASET_SUFFIX
from dygmamba.data.storage.tensor_file import read_sealed_tensors, write_sealed_tensors

STORED_FORMATS = (*LEADERBOARD_FORMATS, "relbench")  # of datasets; RelBench folders are no longer read
LEADERBOARD_SUFFIX, LEADERBOARD_FORMAT = ".board", "dygmamba-board-1"
Period = Literal["val", "test"]
PERIODS: tuple[Period, Period] = ("val", "test")
SPLIT_SHARES = (0.7, 0.15, 0.15)  # of TGB, as quantiles of time
# bytes of memory per byte of a pickle at most, measured with twenty negatives per event
PICKLE_MEMORY_FACTOR = 6


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
    if dataset.path is None or dataset.path.suffix == DATASET_SUFFIX:
        return None
    if dataset.origin.format == TGB_FORMAT:
        return _read_tgb(dataset.path, dataset)
    return _read_tgb_seq(dataset.path, dataset) if dataset.origin.format == TGB_SEQ_FORMAT else None


def _read_tgb(path: Path, dataset: Dataset) -> Leaderboard:
    """Split at quantiles of time, where an event at a quantile belongs to the earlier period; negatives in pickles."""
    table, name, version = find_tgb_edge_list(path)
    time = dataset.store.time.numpy()
    ends = np.quantile(time, [1 - SPLIT_SHARES[1] - SPLIT_SHARES[2], 1 - SPLIT_SHARES[2]])
    train, train_and_val = (int(np.searchsorted(time, end, side="right")) for end in ends)
    board = Leaderboard("tgb", (train, train_and_val - train, len(time) - train_and_val))
    negatives: dict[Period, LeaderboardNegatives] = {}
    for period in PERIODS:
        if (file := table.with_name(f"{name}_{period}_ns{version}.pkl")).is_file():
            negatives[period] = _match_negatives(file, board, period, dataset)
    return replace(board, negatives=negatives)


def _match_negatives(
    file: Path, board: Leaderboard, period: Period, dataset: Dataset
) -> LeaderboardNegatives:
    """Find the negatives of each event of a period, by source, destination and time."""
    require_memory(PICKLE_MEMORY_FACTOR * file.stat().st_size, f"reading {file.name}")
    store, start = dataset.store, board.first(period)
    stop = start + board.sizes[1 + PERIODS.index(period)]
    negatives = dict(iter_negatives(file))
    columns = (column[start:stop].long().tolist() for column in (store.src, store.dst, store.time))
    lists = []
    for row, key in enumerate(zip(*columns, strict=True)):
        if key not in negatives:
            raise FileError(
                f"{file} has no negatives for event {start + row} (source {key[0]}, destination {key[1]}, "
                f"time {key[2]}), so it belongs to other events; fetch both again",
                code="negatives-do-not-match",
            )
        lists.append(negatives[key])
    return _pack_negatives(file, lists, store.num_nodes)


def _pack_negatives(file: Path, lists: list[np.ndarray], num_nodes: int) -> LeaderboardNegatives:
    """Concatenate lists of nodes; raise FileError if a node is not in the dataset."""
    node = np.concatenate([np.zeros(0, np.int64), *lists])
    wrong = (node < 0) | (node >= num_nodes)
    if wrong.any():
        raise FileError(
            f"{file} has negative {int(node[wrong][0])}, but the dataset has {num_nodes:,} nodes, so it belongs to "
            "other events; fetch both again",
            code="negatives-do-not-match",
        )
    ends = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return LeaderboardNegatives(torch.from_numpy(ends), torch.from_numpy(node.astype(np.int32)))


def _read_tgb_seq(path: Path, dataset: Dataset) -> Leaderboard:
    """Split by the column of the table; negatives in an array for each period, with a row per event."""
    table = find_tgb_seq_table(path)
    columns, _ = read_split_table(table, ReadOptions())
    # negatives are given by row: sorting would separate them from their events
    if dataset.origin.out_of_order:
        raise FileError(
            f"{table} is not sorted by time, so its negatives cannot be matched with the events; fetch it again",
            code="unsorted-events",
        )
    if len(columns.time) != len(dataset):
        raise FileError(
            f"{table} has {len(columns.time):,} rows for {len(dataset):,} events, but split and negatives are given "
            "by row; import all of them, without `drop_duplicates`",
            code="row-count-differs",
        )
    period = columns.label
    if period is None or not np.isin(period, (0, 1, 2)).all() or (np.diff(period) < 0).any():
        raise FileError(
            f"{table}: column 'split' must be 0, then 1, then 2; fetch it again", code="bad-split-column"
        )
    train, val, test = np.bincount(period.astype(np.int64), minlength=3).tolist()
    negatives: dict[Period, LeaderboardNegatives] = {}
    for name, events in zip(PERIODS, (val, test), strict=True):
        file = find_companion(table, f"{name}_ns")  # TGB-Seq publishes those of the test period only
        if (rows := load_matrix(file, "iu", np.int64)) is None:
            continue
        if len(rows) != events:
            raise FileError(
                f"{file} has {len(rows):,} rows for {events:,} {name} events; fetch both again",
                code="row-count-differs",
            )
        negatives[name] = _pack_negatives(file, list(rows), dataset.store.num_nodes)
    return Leaderboard("tgb-seq", (train, val, test), negatives)


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
