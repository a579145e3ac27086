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

from dygmamba.core.errors import FileError, first_line
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.catalogue.leaderboard_folders import find_tgb_edge_list, find_tgb_seq_table
from dygmamba.data.events.ids import Side
from dygmamba.data.readers.options import ReadOptions
from dygmamba.data.readers.pickles import iter_negatives
from dygmamba.data.readers.tgb import find_companion, read_matrix, read_split_table, read_text_columns

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset
    from dygmamba.data.storage.leaderboard import Leaderboard, LeaderboardLabels, LeaderboardNegatives

SPLIT_SHARES = (0.7, 0.15, 0.15)  # of time quantiles, in TGB
PICKLE_MEMORY_FACTOR = (
    6  # bytes of memory that a byte of a pickle takes at most, counted on files of twenty negatives each
)


def read_leaderboard(path: Path, format: str, dataset: "Dataset") -> "Leaderboard":
    """What a folder says beside the events, which were read from it before."""
    return LEADERBOARD_READERS[format](path, dataset)


def _read_tgb(path: Path, dataset: "Dataset") -> "Leaderboard":
    from dygmamba.data.storage.leaderboard import Leaderboard

    table, name, version = find_tgb_edge_list(path)
    files = {period: table.with_name(f"{name}_{period}_ns{version}.pkl") for period in ("val", "test")}
    board = Leaderboard("tgb", _split_by_quantiles(dataset), {})
    labels = table.with_name(f"{name}_node_labels{version}.csv")
    board = replace(board, labels=read_labels(labels, dataset) if labels.is_file() else None)
    return replace(board, negatives=_read_pickled_negatives(files, board, dataset))


def _read_relbench(path: Path, dataset: "Dataset") -> "Leaderboard":
    from dygmamba.data.storage.leaderboard import Leaderboard

    board = Leaderboard("relbench", _split_by_quantiles(dataset))
    files = {period: path / "negatives" / f"{period}_ns.pkl" for period in ("val", "test")}
    return replace(board, negatives=_read_pickled_negatives(files, board, dataset))


def _split_by_quantiles(dataset: "Dataset") -> tuple[int, int, int]:
    """TGB's split: by quantiles of the times, an event at a quantile belonging to the earlier period."""
    time = dataset.store.time.numpy()
    ends = np.quantile(time, [1 - SPLIT_SHARES[1] - SPLIT_SHARES[2], 1 - SPLIT_SHARES[2]])
    train, both = (int(np.searchsorted(time, end, side="right")) for end in ends)
    return train, both - train, len(time) - both


def _read_pickled_negatives(
    files: dict[Any, Path], board: "Leaderboard", dataset: "Dataset"
) -> "dict[Any, LeaderboardNegatives]":
    found = {}
    for period, file in files.items():
        if file.is_file():
            require_memory(PICKLE_MEMORY_FACTOR * file.stat().st_size, f"reading {file.name}")
            found[period] = _match_negatives(file, board, period, dataset)
    return found


def _match_negatives(
    file: Path, board: "Leaderboard", period: Any, dataset: "Dataset"
) -> "LeaderboardNegatives":
    """The negatives of each event of a period, found by source, destination and time."""
    store, start = dataset.store, board.first(period)
    stop = start + (board.sizes[1] if period == "val" else board.sizes[2])
    known = dict(iter_negatives(file))
    columns = (column[start:stop].long().tolist() for column in (store.src, store.dst, store.time))
    lists = []
    for number, key in enumerate(zip(*columns, strict=True)):
        if key not in known:
            raise FileError(
                f"{file} has no negatives of event {start + number}, source {key[0]}, destination {key[1]}, "
                f"time {key[2]}: it is of other events; fetch both again"
            )
        lists.append(known[key])
    return pack_negatives(file, lists, store.num_nodes)


def pack_negatives(file: Path, lists: list[np.ndarray], num_nodes: int) -> "LeaderboardNegatives":
    """Lists of nodes one behind the other, each node one of the stream's."""
    import torch

    from dygmamba.data.storage.leaderboard import LeaderboardNegatives

    node = np.concatenate([np.zeros(0, np.int64), *lists])
    wrong = (node < 0) | (node >= num_nodes)
    if wrong.any():
        raise FileError(
            f"{file} names node {int(node[wrong][0])} among {num_nodes:,}; it is of other events, fetch both again"
        )
    ends = np.cumsum([0, *map(len, lists)])
    return LeaderboardNegatives(
        torch.from_numpy(ends.astype(np.int64)), torch.from_numpy(node.astype(np.int32))
    )


def _read_tgb_seq(path: Path, dataset: "Dataset") -> "Leaderboard":
    from dygmamba.data.storage.leaderboard import Leaderboard

    table = find_tgb_seq_table(path)
    columns, _ = read_split_table(table, ReadOptions())
    if dataset.origin.out_of_order:
        raise FileError(
            f"{table} is not in the order of time, so its negatives cannot be told apart; fetch it again"
        )
    period = columns.label
    if period is None or not np.isin(period, (0, 1, 2)).all() or (np.diff(period) < 0).any():
        raise FileError(f"{table}: 'split' must be 0, then 1, then 2; fetch it again")
    sizes = tuple(int((period == number).sum()) for number in range(3))
    board = Leaderboard("tgb-seq", (sizes[0], sizes[1], sizes[2]))
    file = find_companion(table, "test_ns")
    drawn = read_matrix(file, "iu", np.int64)
    if drawn is None:
        return board
    if len(drawn) != sizes[2]:
        raise FileError(
            f"{file} has {len(drawn):,} rows for {sizes[2]:,} events of the test; fetch both again"
        )
    return replace(board, negatives={"test": pack_negatives(file, list(drawn), dataset.store.num_nodes)})


def read_labels(file: Path, dataset: "Dataset") -> "LeaderboardLabels":
    """TGB's node labels: time, node, the other node, and how much."""
    import torch

    from dygmamba.data.storage.leaderboard import LeaderboardLabels

    when, node, kind, weight = read_text_columns(file, (0, 1, 2, 3))
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
    return LeaderboardLabels(*(torch.from_numpy(np.ascontiguousarray(column[order])) for column in columns))


LEADERBOARD_READERS: dict[str, Callable[[Path, "Dataset"], "Leaderboard"]] = {
    "tgb": _read_tgb,
    "tgb-seq": _read_tgb_seq,
    "relbench": _read_relbench,
}
