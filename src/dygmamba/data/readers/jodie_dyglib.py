"""CSV files of two published collections: JODIE and DyGLib.

JODIE (Kumar et al., KDD 2019): users, items, and more columns than column names. DyGLib and DGB (Yu et al., NeurIPS
2023; Poursafaei et al., NeurIPS 2022): ml_* files with ids from 1 and feature arrays whose row 0 is padding.
"""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import csv

from dygmamba.core.errors import FileError, first_line
from dygmamba.core.files.untrusted import require_regular_file
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.collect import EventColumns
from dygmamba.data.readers.delimited import read_csv_rows
from dygmamba.data.readers.header import read_header
from dygmamba.data.readers.numpy_files import (
    DAMAGED_FILE_ERRORS,
    build_numbered_ids,
    damaged_npy_error,
    read_array_header,
)
from dygmamba.data.readers.options import COLUMN_OPTIONS, FIXED_OPTIONS, ColumnRoles, ReadOptions
from dygmamba.data.readers.table import build_dataset, drop_zero_columns
from dygmamba.data.storage.mapped_file import MappedFile

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

JODIE_COLUMNS = ("user_id", "item_id", "timestamp", "state_label")
JODIE_FEATURES = "comma_separated_list_of_features"


def is_jodie(names: tuple[str, ...]) -> bool:
    return names[:4] == JODIE_COLUMNS and names[4:] in ((JODIE_FEATURES,), ())


def read_jodie(path: Path, options: ReadOptions) -> "Dataset":
    """Read a JODIE file: users are sources, items destinations, columns after the label edge features."""
    options.reject("JODIE", *COLUMN_OPTIONS, "header")
    header = read_header(path, options)
    if header.width < len(JODIE_COLUMNS):
        raise FileError(
            f"{path} has {header.width} columns, a JODIE file at least {len(JODIE_COLUMNS)}; try `format='csv'`",
            code="too-few-columns",
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
    """Return whether these are DyGLib's column names; most files start with an unnamed row number."""
    return names[-len(DYGLIB_COLUMNS) :] == DYGLIB_COLUMNS and len(names) <= len(DYGLIB_COLUMNS) + 1


def read_dyglib(path: Path, options: ReadOptions) -> "Dataset":
    """Read ml_NAME.csv, and ml_NAME.npy and ml_NAME_node.npy next to it if they exist; node = id - 1.

    Features and labels that are zero throughout are padding and are dropped.
    """
    options.reject("DyGLib", *COLUMN_OPTIONS, *FIXED_OPTIONS)
    table = _read_dyglib_table(path, options)
    src, dst, feature_row = (_as_positive_integers(path, name, table[name]) for name in ("u", "i", "idx"))
    ids = build_numbered_ids(path, src - 1, dst - 1)
    columns = EventColumns(
        src=src - 1,
        dst=dst - 1,
        time=table["ts"],
        edge=_read_features(path.with_suffix(".npy"), feature_row),
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
        raise FileError(
            f"{path} does not have DyGLib's columns ({', '.join(DYGLIB_COLUMNS)}); try `format='csv'`",
            code="wrong-columns",
        )
    try:
        table = csv.read_csv(
            path,
            convert_options=csv.ConvertOptions(
                include_columns=DYGLIB_COLUMNS, column_types=dict.fromkeys(DYGLIB_COLUMNS, pa.float64())
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise FileError(
            f"{path} is not a valid DyGLib table ({first_line(error)}); correct or copy it again",
            code="file-damaged",
        ) from error
    # copied because torch needs writable arrays
    return {name: np.array(table[name].to_numpy()) for name in DYGLIB_COLUMNS}


def _as_positive_integers(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    wrong = ~((column >= 1) & (column == np.floor(column)) & (column < 2**53))
    if wrong.any():
        row = int(wrong.argmax())
        raise FileError(
            f"{path}: data row {row + 1}, column {name!r} is {column[row]:g}, but DyGLib counts from 1; "
            "renumber it, or read the file with `format='csv'`",
            code="bad-node-number",
        )
    return column.astype(np.int64)


def _read_features(path: Path, rows: np.ndarray) -> np.ndarray:
    """Read these rows of a feature file; without columns if it is missing or zero throughout."""
    if not path.exists():
        return np.zeros((len(rows), 0), np.float32)
    require_regular_file(path)
    try:
        with path.open("rb") as file:
            header = read_array_header(file, path.stat().st_size)
        if len(header.shape) != 2 or header.dtype.kind not in "fiu":
            raise FileError(f"{path} is {header}; features are a matrix of numbers", code="wrong-array-type")
        if not prod(header.shape):
            return np.zeros((len(rows), 0), np.float32)
        source = MappedFile.open(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        source.check_name()
    except DAMAGED_FILE_ERRORS as error:
        raise damaged_npy_error(path, error) from error
    if not any(
        _take_rows(array, slice(start, start + COPY_ROWS), source).any()
        for start in range(0, len(array), COPY_ROWS)
    ):
        return np.zeros((len(rows), 0), np.float32)
    if len(rows) and rows.max() >= len(array):
        raise FileError(
            f"{path} has {len(array)} rows, but the events need {rows.max() + 1}; fetch all files again",
            code="row-count-differs",
        )
    chosen = np.empty((len(rows), array.shape[1]), np.float32)
    for start in range(0, len(rows), COPY_ROWS):
        chosen[start : start + COPY_ROWS] = _take_rows(array, rows[start : start + COPY_ROWS], source)
    source.check()
    return chosen


def _take_rows(array: np.ndarray, rows: slice | np.ndarray, source: MappedFile) -> np.ndarray:
    # reading a mapped file that was truncated meanwhile would kill the process
    source.check()
    return array[rows]
