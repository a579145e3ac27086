"""CSV files of two published collections: JODIE and DyGLib.

JODIE (Kumar et al., KDD 2019): users, items, and more columns than column names. DyGLib and DGB (Yu et al., NeurIPS
2023; Poursafaei et al., NeurIPS 2022): ml_* files with ids from 1 and feature arrays whose row 0 is padding.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import csv

from dygmamba.core.errors import FileError
from dygmamba.core.files.untrusted import report_damage
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.collect import EventColumns
from dygmamba.data.readers.delimited import open_csv
from dygmamba.data.readers.header import read_header
from dygmamba.data.readers.numpy_files import build_numbered_ids, load_matrix
from dygmamba.data.readers.options import COLUMN_OPTIONS, FIXED_OPTIONS, ReadOptions
from dygmamba.data.readers.table import build_dataset, drop_zero_columns, read_table

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

JODIE_COLUMNS = ("user_id", "item_id", "timestamp", "state_label")
JODIE_FEATURES = "comma_separated_list_of_features"


def is_jodie(names: tuple[str, ...]) -> bool:
    return names[:4] == JODIE_COLUMNS and names[4:] in ((JODIE_FEATURES,), ())


def read_jodie(path: Path, options: ReadOptions) -> "Dataset":
    """Read a JODIE file: users are sources, items destinations, columns after the label edge features."""
    options.reject("JODIE", *COLUMN_OPTIONS, "header")
    return build_dataset(
        path, *read_jodie_table(path, "jodie", options, "a JODIE file", "try `format='csv'`")
    )


def read_jodie_table(
    path: Path, format: str, options: ReadOptions, what: str, advice: str
) -> tuple[EventColumns, NodeIds, Origin]:
    """Read a table with JODIE's columns; `what` it is and `advice` are for the error if it has too few."""
    header = read_header(path, options)
    if header.width < len(JODIE_COLUMNS):
        raise FileError(
            f"{path} has {header.width} columns, {what} at least {len(JODIE_COLUMNS)}; {advice}",
            code="too-few-columns",
        )
    features = tuple(f"feature_{k}" for k in range(header.width - len(JODIE_COLUMNS)))
    src, dst, time, label = JODIE_COLUMNS
    header = replace(header, names=JODIE_COLUMNS + features)
    layout = replace(options, src=src, dst=dst, time=time, features=features, label=label, bipartite=True)
    columns, ids, origin = read_table(open_csv(path, options, header, format), layout)
    columns = drop_zero_columns(columns)
    return columns, ids, replace(origin, features=features[: columns.edge.shape[1]])


DYGLIB_COLUMNS = ("u", "i", "ts", "label", "idx")


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
    types = dict.fromkeys(DYGLIB_COLUMNS, pa.float64())
    options = csv.ConvertOptions(include_columns=DYGLIB_COLUMNS, column_types=types)
    with report_damage(
        path, "a valid DyGLib table", (pa.ArrowException, OSError), "correct or copy it again"
    ):
        table = csv.read_csv(path, convert_options=options)
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
    matrix = load_matrix(path)
    if matrix is None or not matrix.any():
        return np.zeros((len(rows), 0), np.float32)
    if len(rows) and rows.max() >= len(matrix):
        raise FileError(
            f"{path} has {len(matrix)} rows, but the events need {rows.max() + 1}; fetch all files again",
            code="row-count-differs",
        )
    return matrix[rows]
