"""The ml_* files of DyGLib and DGB (Yu et al. 2023; Poursafaei et al. 2022): ids from 1, a zero pad row."""

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import csv

from dygmamba.data.formats.csv import read_header
from dygmamba.data.formats.npy import BROKEN, read_shape, reason
from dygmamba.data.formats.npz import identity_ids
from dygmamba.data.formats.options import COLUMNS, FIXED, ReadOptions
from dygmamba.data.formats.table import Columns, arranged, without_zeros
from dygmamba.data.mapped import MappedFile
from dygmamba.data.origin import Origin
from dygmamba.errors import FileError, first_line

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

NAMES = ("u", "i", "ts", "label", "idx")
ROWS = 1 << 16  # feature rows copied at a time


def matches(names: tuple[str, ...]) -> bool:
    """Whether these column names are DyGLib's; most files have a nameless row number in front."""
    return names[-len(NAMES) :] == NAMES and len(names) <= len(NAMES) + 1


def read(path: Path, options: ReadOptions) -> "Dataset":
    """ml_NAME.csv with ml_NAME.npy and ml_NAME_node.npy beside it, where they are; node = id - 1.

    Features and labels that are zero throughout are padding and are dropped.
    """
    options.refuse("DyGLib", *COLUMNS, *FIXED)
    table = _table(path, options)
    src, dst, row = (_whole(path, name, table[name]) for name in ("u", "i", "idx"))
    ids = identity_ids(path, src - 1, dst - 1)
    columns = Columns(
        src=src - 1,
        dst=dst - 1,
        time=table["ts"],
        edge=_features(path.with_suffix(".npy"), row),
        label=table["label"].astype(np.float32),
        node=_features(path.with_name(f"{path.stem}_node.npy"), np.arange(1, len(ids) + 1)),
    )
    columns = without_zeros(columns)
    features = tuple(f"feature_{k}" for k in range(columns.edge.shape[1]))
    origin = Origin(path.name, "dyglib", "u", "i", "ts", "" if columns.label is None else "label", features)
    return arranged(path.with_name(path.name.removeprefix("ml_")), columns, ids, origin)


def _table(path: Path, options: ReadOptions) -> dict[str, np.ndarray]:
    header = read_header(path, options)
    if not matches(header.names):
        raise FileError(f"{path} has not DyGLib's columns ({', '.join(NAMES)}); try `format='csv'`")
    try:
        table = csv.read_csv(
            path,
            convert_options=csv.ConvertOptions(
                include_columns=NAMES, column_types=dict.fromkeys(NAMES, pa.float64())
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{path} is no DyGLib table ({first_line(error)}); mend the file") from error
    # a copy: torch wants arrays it may write to
    return {name: np.array(table[name].to_numpy()) for name in NAMES}


def _whole(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    """The column as integers from 1."""
    wrong = ~((column >= 1) & (column == np.floor(column)) & (column < 2**53))
    if wrong.any():
        row = int(wrong.argmax())
        raise FileError(
            f"{path}: data row {row + 1}, column {name!r} is {column[row]:g}, but DyGLib counts from 1; "
            "renumber it, or read the file with `format='csv'`"
        )
    return column.astype(np.int64)


def _features(path: Path, rows: np.ndarray) -> np.ndarray:
    """The named rows of a feature file, without columns where it is missing or zero throughout."""
    if not path.exists():
        return np.zeros((len(rows), 0), np.float32)
    try:
        with path.open("rb") as file:
            shape = read_shape(file, path.stat().st_size)
        if len(shape.axes) != 2 or shape.dtype.kind not in "fiu":
            raise FileError(f"{path} is {shape}; features are a matrix of numbers")
        if not prod(shape.axes):
            return np.zeros((len(rows), 0), np.float32)
        source = MappedFile.of(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        source.check_name()
    except BROKEN as error:
        raise FileError(f"{path} is not a whole .npy file ({reason(error)}); copy it again") from error
    if not any(
        _rows(array, slice(start, start + ROWS), source).any() for start in range(0, len(array), ROWS)
    ):
        return np.zeros((len(rows), 0), np.float32)
    if len(rows) and rows.max() >= len(array):
        raise FileError(
            f"{path} has {len(array)} rows, but row {rows.max()} is needed; fetch all files again"
        )
    chosen = np.empty((len(rows), array.shape[1]), np.float32)
    for start in range(0, len(rows), ROWS):
        chosen[start : start + ROWS] = _rows(array, rows[start : start + ROWS], source)
    source.check()
    return chosen


def _rows(array: np.ndarray, rows: slice | np.ndarray, source: MappedFile) -> np.ndarray:
    source.check()
    return array[rows]
