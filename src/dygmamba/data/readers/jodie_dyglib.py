"""The JODIE csv files (Kumar et al., KDD 2019): users, items, and more columns than column names.

The ml_* files of DyGLib and DGB (Yu et al. 2023; Poursafaei et al. 2022): ids from 1, a zero pad row.
"""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import csv

from dygmamba.core.errors import FileError, first_line
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.delimited import read_csv_rows, read_header
from dygmamba.data.readers.numpy_files import (
    DAMAGED_FILE_ERRORS,
    build_numbered_ids,
    describe_load_error,
    read_array_header,
)
from dygmamba.data.readers.options import COLUMN_OPTIONS, FIXED_OPTIONS, ColumnRoles, ReadOptions
from dygmamba.data.readers.table import EventColumns, build_dataset, drop_zero_columns
from dygmamba.data.storage.mapped_file import MappedFile

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

JODIE_COLUMNS = ("user_id", "item_id", "timestamp", "state_label")
JODIE_FEATURES = "comma_separated_list_of_features"


def is_jodie(names: tuple[str, ...]) -> bool:
    """Whether these column names are JODIE's."""
    return names[:4] == JODIE_COLUMNS and names[4:] in ((JODIE_FEATURES,), ())


def read_jodie(path: Path, options: ReadOptions) -> "Dataset":
    """Users are the sources, items the destinations, what follows the label is the edge's features."""
    options.refuse("JODIE", *COLUMN_OPTIONS, "header")
    header = read_header(path, options)
    if header.width < len(JODIE_COLUMNS):
        raise FileError(
            f"{path} has {header.width} columns, a JODIE file at least {len(JODIE_COLUMNS)}; try `format='csv'`"
        )
    features = tuple(f"feature_{k}" for k in range(header.width - len(JODIE_COLUMNS)))
    user, item, time, label = JODIE_COLUMNS
    roles = ColumnRoles(user, item, time, features, label)
    header = replace(header, names=JODIE_COLUMNS + features)
    options = replace(options, bipartite=True)
    columns, ids, origin = read_csv_rows(path, "jodie", header, roles, options)
    columns = drop_zero_columns(columns)
    return build_dataset(path, columns, ids, replace(origin, features=features[: columns.edge.shape[1]]))


DYGLIB_COLUMNS = ("u", "i", "ts", "label", "idx")
COPY_ROWS = 1 << 16  # feature rows copied at a time


def is_dyglib(names: tuple[str, ...]) -> bool:
    """Whether these column names are DyGLib's; most files have a nameless row number in front."""
    return names[-len(DYGLIB_COLUMNS) :] == DYGLIB_COLUMNS and len(names) <= len(DYGLIB_COLUMNS) + 1


def read_dyglib(path: Path, options: ReadOptions) -> "Dataset":
    """ml_NAME.csv with ml_NAME.npy and ml_NAME_node.npy beside it, where they are; node = id - 1.

    Features and labels that are zero throughout are padding and are dropped.
    """
    options.refuse("DyGLib", *COLUMN_OPTIONS, *FIXED_OPTIONS)
    table = _read_dyglib_table(path, options)
    src, dst, row = (_as_positive_integers(path, name, table[name]) for name in ("u", "i", "idx"))
    ids = build_numbered_ids(path, src - 1, dst - 1)
    columns = EventColumns(
        src=src - 1,
        dst=dst - 1,
        time=table["ts"],
        edge=_read_features(path.with_suffix(".npy"), row),
        label=table["label"].astype(np.float32),
        node=_read_features(path.with_name(f"{path.stem}_node.npy"), np.arange(1, len(ids) + 1)),
    )
    columns = drop_zero_columns(columns)
    features = tuple(f"feature_{k}" for k in range(columns.edge.shape[1]))
    origin = Origin(path.name, "dyglib", "u", "i", "ts", "" if columns.label is None else "label", features)
    return build_dataset(path.with_name(path.name.removeprefix("ml_")), columns, ids, origin)


def _read_dyglib_table(path: Path, options: ReadOptions) -> dict[str, np.ndarray]:
    header = read_header(path, options)
    if not is_dyglib(header.names):
        raise FileError(f"{path} has not DyGLib's columns ({', '.join(DYGLIB_COLUMNS)}); try `format='csv'`")
    try:
        table = csv.read_csv(
            path,
            convert_options=csv.ConvertOptions(
                include_columns=DYGLIB_COLUMNS, column_types=dict.fromkeys(DYGLIB_COLUMNS, pa.float64())
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{path} is no DyGLib table ({first_line(error)}); mend the file") from error
    # a copy: torch wants arrays it may write to
    return {name: np.array(table[name].to_numpy()) for name in DYGLIB_COLUMNS}


def _as_positive_integers(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    """The column as integers from 1."""
    wrong = ~((column >= 1) & (column == np.floor(column)) & (column < 2**53))
    if wrong.any():
        row = int(wrong.argmax())
        raise FileError(
            f"{path}: data row {row + 1}, column {name!r} is {column[row]:g}, but DyGLib counts from 1; "
            "renumber it, or read the file with `format='csv'`"
        )
    return column.astype(np.int64)


def _read_features(path: Path, rows: np.ndarray) -> np.ndarray:
    """The named rows of a feature file, without columns where it is missing or zero throughout."""
    if not path.exists():
        return np.zeros((len(rows), 0), np.float32)
    try:
        with path.open("rb") as file:
            shape = read_array_header(file, path.stat().st_size)
        if len(shape.axes) != 2 or shape.dtype.kind not in "fiu":
            raise FileError(f"{path} is {shape}; features are a matrix of numbers")
        if not prod(shape.axes):
            return np.zeros((len(rows), 0), np.float32)
        source = MappedFile.of(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        source.check_name()
    except DAMAGED_FILE_ERRORS as error:
        raise FileError(
            f"{path} is not a whole .npy file ({describe_load_error(error)}); copy it again"
        ) from error
    if not any(
        _take_rows(array, slice(start, start + COPY_ROWS), source).any()
        for start in range(0, len(array), COPY_ROWS)
    ):
        return np.zeros((len(rows), 0), np.float32)
    if len(rows) and rows.max() >= len(array):
        raise FileError(
            f"{path} has {len(array)} rows, but row {rows.max()} is needed; fetch all files again"
        )
    chosen = np.empty((len(rows), array.shape[1]), np.float32)
    for start in range(0, len(rows), COPY_ROWS):
        chosen[start : start + COPY_ROWS] = _take_rows(array, rows[start : start + COPY_ROWS], source)
    source.check()
    return chosen


def _take_rows(array: np.ndarray, rows: slice | np.ndarray, source: MappedFile) -> np.ndarray:
    source.check()
    return array[rows]
