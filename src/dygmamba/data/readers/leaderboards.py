"""Read the splits and negatives of a leaderboard folder and match them with the events of its dataset."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dygmamba.core.errors import FileError
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.catalogue.leaderboard_folders import find_tgb_edge_list, find_tgb_seq_table
from dygmamba.data.readers.options import ReadOptions
from dygmamba.data.readers.pickles import iter_negatives
from dygmamba.data.readers.tgb import find_companion, read_matrix, read_split_table

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset
    from dygmamba.data.storage.leaderboard import Leaderboard, LeaderboardNegatives

SPLIT_SHARES = (0.7, 0.15, 0.15)  # of TGB, as quantiles of time
PICKLE_MEMORY_FACTOR = (
    6  # bytes of memory per byte of a pickle at most, measured with twenty negatives per event
)


def read_leaderboard(path: Path, format: str, dataset: "Dataset") -> "Leaderboard":
    """Read what a folder publishes next to the events, which `dataset` holds."""
    return LEADERBOARD_READERS[format](path, dataset)


def _read_tgb(path: Path, dataset: "Dataset") -> "Leaderboard":
    from dygmamba.data.storage.leaderboard import Leaderboard

    table, name, version = find_tgb_edge_list(path)
    files = {period: table.with_name(f"{name}_{period}_ns{version}.pkl") for period in ("val", "test")}
    board = Leaderboard("tgb", _split_by_quantiles(dataset), {})
    return replace(board, negatives=_read_pickled_negatives(files, board, dataset))


def _split_by_quantiles(dataset: "Dataset") -> tuple[int, int, int]:
    """Return the sizes of TGB's splits, at quantiles of time; an event at a quantile belongs to the earlier split."""
    time = dataset.store.time.numpy()
    ends = np.quantile(time, [1 - SPLIT_SHARES[1] - SPLIT_SHARES[2], 1 - SPLIT_SHARES[2]])
    train, train_and_val = (int(np.searchsorted(time, end, side="right")) for end in ends)
    return train, train_and_val - train, len(time) - train_and_val


def _read_pickled_negatives(
    files: dict[Any, Path], board: "Leaderboard", dataset: "Dataset"
) -> "dict[Any, LeaderboardNegatives]":
    negatives = {}
    for period, file in files.items():
        if file.is_file():
            require_memory(PICKLE_MEMORY_FACTOR * file.stat().st_size, f"reading {file.name}")
            negatives[period] = _match_negatives(file, board, period, dataset)
    return negatives


def _match_negatives(
    file: Path, board: "Leaderboard", period: Any, dataset: "Dataset"
) -> "LeaderboardNegatives":
    """Find the negatives of each event of a period, by source, destination and time."""
    store, start = dataset.store, board.first(period)
    stop = start + (board.sizes[1] if period == "val" else board.sizes[2])
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
    return pack_negatives(file, lists, store.num_nodes)


def pack_negatives(file: Path, lists: list[np.ndarray], num_nodes: int) -> "LeaderboardNegatives":
    """Concatenate lists of nodes; raise FileError if a node is not in the dataset."""
    import torch

    from dygmamba.data.storage.leaderboard import LeaderboardNegatives

    node = np.concatenate([np.zeros(0, np.int64), *lists])
    wrong = (node < 0) | (node >= num_nodes)
    if wrong.any():
        raise FileError(
            f"{file} has negative {int(node[wrong][0])}, but the dataset has {num_nodes:,} nodes, so it belongs to "
            "other events; fetch both again",
            code="negatives-do-not-match",
        )
    ends = np.cumsum([0, *map(len, lists)])
    return LeaderboardNegatives(
        torch.from_numpy(ends.astype(np.int64)), torch.from_numpy(node.astype(np.int32))
    )


def _read_tgb_seq(path: Path, dataset: "Dataset") -> "Leaderboard":
    from dygmamba.data.storage.leaderboard import Leaderboard

    table = find_tgb_seq_table(path)
    columns, _ = read_split_table(table, ReadOptions())
    # negatives are given by row: sorting would separate them from their events
    if dataset.origin.out_of_order:
        raise FileError(
            f"{table} is not sorted by time, so its negatives cannot be matched with the events; fetch it again",
            code="unsorted-events",
        )
    period = columns.label
    if period is None or not np.isin(period, (0, 1, 2)).all() or (np.diff(period) < 0).any():
        raise FileError(
            f"{table}: column 'split' must be 0, then 1, then 2; fetch it again", code="bad-split-column"
        )
    sizes = tuple(int((period == number).sum()) for number in range(3))
    board = Leaderboard("tgb-seq", (sizes[0], sizes[1], sizes[2]))
    file = find_companion(table, "test_ns")
    negatives = read_matrix(file, "iu", np.int64)
    if negatives is None:
        return board
    if len(negatives) != sizes[2]:
        raise FileError(
            f"{file} has {len(negatives):,} rows for {sizes[2]:,} test events; fetch both again",
            code="row-count-differs",
        )
    return replace(board, negatives={"test": pack_negatives(file, list(negatives), dataset.store.num_nodes)})


LEADERBOARD_READERS: dict[str, Callable[[Path, "Dataset"], "Leaderboard"]] = {
    "tgb": _read_tgb,
    "tgb-seq": _read_tgb_seq,
}
