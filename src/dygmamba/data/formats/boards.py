"""Scoreboards out of the files they come in: splits, negatives and labels, matched with the events of a dataset."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.folders import edges_of, splits_of
from dygmamba.data.formats.options import ReadOptions
from dygmamba.data.formats.pickles import entries
from dygmamba.data.formats.tgb_layouts import text_columns
from dygmamba.data.formats.tgb_seq import beside, matrix, table_of
from dygmamba.data.ids import Side
from dygmamba.errors import FileError, first_line
from dygmamba.room import require_room

if TYPE_CHECKING:
    from dygmamba.data.boards import Board, Labels, Negatives
    from dygmamba.data.store import Dataset

SHARES = (0.7, 0.15, 0.15)  # of time quantiles, in TGB
GROWTH = 6  # bytes of memory that a byte of a pickle takes at most, counted on files of twenty negatives each


def read_board(path: Path, format: str, dataset: "Dataset") -> "Board":
    """What a folder says beside the events, which were read from it before."""
    return BOARDS[format](path, dataset)


def _of_tgb(path: Path, dataset: "Dataset") -> "Board":
    from dygmamba.data.boards import Board

    table, name, version = edges_of(path)
    files = {period: table.with_name(f"{name}_{period}_ns{version}.pkl") for period in ("val", "test")}
    board = Board("tgb", _quantiles(dataset), {})
    labels = table.with_name(f"{name}_node_labels{version}.csv")
    board = replace(board, labels=read_labels(labels, dataset) if labels.is_file() else None)
    return replace(board, negatives=_pickled(files, board, dataset))


def _of_relbench(path: Path, dataset: "Dataset") -> "Board":
    from dygmamba.data.boards import Board

    board = Board("relbench", _quantiles(dataset))
    files = {period: path / "negatives" / f"{period}_ns.pkl" for period in ("val", "test")}
    return replace(board, negatives=_pickled(files, board, dataset))


def _quantiles(dataset: "Dataset") -> tuple[int, int, int]:
    """TGB's split: by quantiles of the times, an event at a quantile belonging to the earlier period."""
    time = dataset.store.time.numpy()
    ends = np.quantile(time, [1 - SHARES[1] - SHARES[2], 1 - SHARES[2]])
    train, both = (int(np.searchsorted(time, end, side="right")) for end in ends)
    return train, both - train, len(time) - both


def _pickled(files: dict[Any, Path], board: "Board", dataset: "Dataset") -> "dict[Any, Negatives]":
    found = {}
    for period, file in files.items():
        if file.is_file():
            require_room(GROWTH * file.stat().st_size, f"reading {file.name}")
            found[period] = _matched(file, board, period, dataset)
    return found


def _matched(file: Path, board: "Board", period: Any, dataset: "Dataset") -> "Negatives":
    """The negatives of each event of a period, found by source, destination and time."""
    store, start = dataset.store, board.first(period)
    stop = start + (board.sizes[1] if period == "val" else board.sizes[2])
    known = dict(entries(file))
    columns = (column[start:stop].long().tolist() for column in (store.src, store.dst, store.time))
    lists = []
    for number, key in enumerate(zip(*columns, strict=True)):
        if key not in known:
            raise FileError(
                f"{file} has no negatives of event {start + number}, source {key[0]}, destination {key[1]}, "
                f"time {key[2]}: it is of other events; fetch both again"
            )
        lists.append(known[key])
    return listed(file, lists, store.num_nodes)


def listed(file: Path, lists: list[np.ndarray], num_nodes: int) -> "Negatives":
    """Lists of nodes one behind the other, each node one of the stream's."""
    import torch

    from dygmamba.data.boards import Negatives

    node = np.concatenate([np.zeros(0, np.int64), *lists])
    wrong = (node < 0) | (node >= num_nodes)
    if wrong.any():
        raise FileError(
            f"{file} names node {int(node[wrong][0])} among {num_nodes:,}; it is of other events, fetch both again"
        )
    ends = np.cumsum([0, *map(len, lists)])
    return Negatives(torch.from_numpy(ends.astype(np.int64)), torch.from_numpy(node.astype(np.int32)))


def _of_tgb_seq(path: Path, dataset: "Dataset") -> "Board":
    from dygmamba.data.boards import Board

    table = splits_of(path)
    columns, _ = table_of(table, ReadOptions())
    if dataset.origin.out_of_order:
        raise FileError(
            f"{table} is not in the order of time, so its negatives cannot be told apart; fetch it again"
        )
    period = columns.label
    if period is None or not np.isin(period, (0, 1, 2)).all() or (np.diff(period) < 0).any():
        raise FileError(f"{table}: 'split' must be 0, then 1, then 2; fetch it again")
    sizes = tuple(int((period == number).sum()) for number in range(3))
    board = Board("tgb-seq", (sizes[0], sizes[1], sizes[2]))
    file = beside(table, "test_ns")
    drawn = matrix(file, "iu", np.int64)
    if drawn is None:
        return board
    if len(drawn) != sizes[2]:
        raise FileError(
            f"{file} has {len(drawn):,} rows for {sizes[2]:,} events of the test; fetch both again"
        )
    return replace(board, negatives={"test": listed(file, list(drawn), dataset.store.num_nodes)})


def read_labels(file: Path, dataset: "Dataset") -> "Labels":
    """TGB's node labels: time, node, the other node, and how much."""
    import torch

    from dygmamba.data.boards import Labels

    when, node, kind, weight = text_columns(file, (0, 1, 2, 3))
    ends = []
    sides: tuple[tuple[pa.ChunkedArray, Side], ...] = ((node, "src"), (kind, "dst"))
    for column, side in sides:
        found = dataset.ids.to_node(pc.utf8_trim_whitespace(column).combine_chunks(), side)
        if (found < 0).any():
            row = int((found < 0).argmax())
            raise FileError(
                f"{file}: data row {row + 1} names {column[row].as_py()[:40]!r}, which has no event; fetch both again"
            )
        ends.append(found)
    try:
        numbers = [pc.cast(column, pa.float64()).to_numpy() for column in (when, weight)]
    except pa.ArrowInvalid as error:
        raise FileError(
            f"{file} has a time or weight that is no number ({first_line(error)}); copy it again"
        ) from error
    if not all(np.isfinite(values).all() for values in numbers) or (numbers[1] < 0).any():
        raise FileError(f"{file} has a time or weight that is none; copy it again")
    order = np.lexsort((ends[0], numbers[0]))
    columns = (numbers[0], *ends, numbers[1])
    return Labels(*(torch.from_numpy(np.ascontiguousarray(column[order])) for column in columns))


BOARDS: dict[str, Callable[[Path, "Dataset"], "Board"]] = {
    "tgb": _of_tgb,
    "tgb-seq": _of_tgb_seq,
    "relbench": _of_relbench,
}
__all__ = ["BOARDS", "read_board"]
