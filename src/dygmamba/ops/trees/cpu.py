"""Trees in Numba: histograms and splits in `cpu_kernels`."""

from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.scan.cpu import run_in_threads
from dygmamba.ops.trees import cpu_kernels as kernels

if TYPE_CHECKING:
    from dygmamba.ops.trees import GrowthConfig, Trees

EFFORT = 2  # updates that a row's way down a tree counts as, where work is dealt out to threads
ALONE = 150_000  # updates of histograms that are not worth another thread


def grow(
    bins: Tensor, slopes: Tensor, rows: Tensor, columns: Tensor, edges: Tensor, growth: "GrowthConfig"
) -> "Trees":
    """One tree, leaf by leaf; the histograms of many rows are counted by several threads, each some of the columns."""
    from dygmamba.ops.trees import Trees

    own = rows.to(torch.int32).numpy().copy()
    with ThreadPoolExecutor(max(1, torch.get_num_threads() - 1)) as others:
        tree = TreeBuilder(bins.numpy(), slopes.numpy(), own, columns.numpy(), growth, others)
        while tree.leaves < growth.leaves and tree.divide():
            pass
    feature, cut = tree.feature, tree.cut
    threshold = np.where(feature >= 0, edges.numpy()[np.maximum(feature, 0), cut], 0).astype(np.float32)
    found = (feature, threshold, tree.left, tree.right, *tree.values())
    return Trees(*(torch.from_numpy(column)[None] for column in found))


class TreeBuilder:
    """A tree under way: its nodes, the run of rows that each holds, and the best split of every leaf."""

    def __init__(
        self,
        bins: np.ndarray,
        slopes: np.ndarray,
        rows: np.ndarray,
        columns: np.ndarray,
        growth: "GrowthConfig",
        others: Executor,
    ) -> None:
        self.bins, self.slopes, self.rows, self.columns, self.growth = bins, slopes, rows, columns, growth
        self.others = others
        most = 2 * growth.leaves - 1
        self.feature = np.full(most, -1, np.int32)
        self.left, self.right = np.zeros(most, np.int32), np.zeros(most, np.int32)
        self.cut = np.zeros(most, np.int64)
        self.table = np.empty((growth.leaves, len(columns), kernels.BINS, 3))
        self.spare = np.empty(len(rows), np.int32)
        self.room = [np.empty((len(rows), 2)) for _ in range(_threads(len(rows) * len(columns)))]
        self.bounds: list[tuple[int, int]] = [(0, len(rows))]
        self.slot = [0]
        self.best: dict[int, tuple[float, int, int]] = {}  # of each leaf that can be split: gain, column, bin
        self.leaves = 1
        self._count(0)
        self._judge(0)

    def divide(self) -> bool:
        """Split the leaf that gains most, the first of equals; whether there was one."""
        if not self.best:
            return False
        node = min(self.best, key=lambda leaf: (-self.best[leaf][0], leaf))
        _, column, cut = self.best.pop(node)
        low, high = self.bounds[node]
        self.feature[node], self.cut[node] = self.columns[column], cut
        border = low + kernels.divide(self.rows[low:high], self.bins[self.feature[node]], cut, self.spare)
        first = len(self.bounds)
        self.left[node], self.right[node] = first, first + 1
        self.bounds += [(low, border), (border, high)]
        smaller = first if border - low <= high - border else first + 1
        larger = 2 * first + 1 - smaller
        self.slot += [0, 0]
        self.slot[smaller], self.slot[larger] = self.leaves, self.slot[node]
        self._count(smaller)
        self.table[self.slot[larger]] -= self.table[self.slot[smaller]]
        for child in (smaller, larger):
            self._judge(child)
        self.leaves += 1
        return True

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """What each node says, and how many rows it holds."""
        value, cover = np.zeros(len(self.feature)), np.zeros(len(self.feature))
        for node, (low, high) in enumerate(self.bounds):
            slope, bend = kernels.sums(self.slopes, self.rows[low:high])
            cover[node] = high - low
            value[node] = -slope / (bend + self.growth.l2) if high > low else 0.0
        return value, cover

    def _count(self, node: int) -> None:
        """The node's histograms."""
        rows = self.rows[slice(*self.bounds[node])]
        given, table = (self.bins, self.slopes, rows, self.columns), self.table[self.slot[node]]
        threads, many = _threads(len(rows) * len(self.columns)), len(self.columns)
        cuts = [many * piece // threads // 4 * 4 for piece in range(threads)] + [many]  # four columns at once
        started = [
            self.others.submit(kernels.histogram, low, high, *given, room, table)
            for low, high, room in zip(cuts[1:-1], cuts[2:], self.room[1:], strict=False)
        ]
        kernels.histogram(cuts[0], cuts[1], *given, self.room[0], table)
        for piece in started:
            piece.result()

    def _judge(self, node: int) -> None:
        """The node's best split, if it has one."""
        gain, cut = np.zeros(len(self.columns)), np.zeros(len(self.columns), np.int64)
        given = (self.table[self.slot[node]], self.growth.least, self.growth.l2, gain, cut)
        kernels.best_splits(0, len(self.columns), *given)
        if len(gain) and gain.max() > 0:
            column = int(gain.argmax())
            self.best[node] = (float(gain[column]), column, int(cut[column]))


def _threads(updates: int) -> int:
    """How many count histograms of so many updates; each column is counted by one, so the sums have the same bits."""
    return max(1, min(torch.get_num_threads(), updates // ALONE))


def tree_sums(trees: "Trees", x: Tensor, before: Tensor) -> Tensor:
    """Every row walks down every tree."""
    total = before.clone()
    given = (trees.feature, trees.threshold, _children(trees), trees.value, x, total)
    arrays = [column.contiguous().numpy() for column in given]
    run_in_threads(kernels.tree_sums, len(x), EFFORT * len(x) * len(trees.feature), *arrays)
    return total


def binned_sums(trees: "Trees", bins: Tensor, cut: Tensor, before: Tensor) -> Tensor:
    """The same by bins."""
    total = before.clone()
    given = (trees.feature, cut, _children(trees), trees.value, bins, total)
    arrays = [column.contiguous().numpy() for column in given]
    run_in_threads(kernels.binned_sums, len(total), EFFORT * len(total) * len(trees.feature), *arrays)
    return total


def _children(trees: "Trees") -> Tensor:
    """Both children of each node side by side; a leaf is its own."""
    own = torch.arange(trees.feature.shape[1], dtype=torch.int32)
    sides = [torch.where(trees.feature >= 0, side, own) for side in (trees.left, trees.right)]
    return torch.stack(sides, dim=2)


def expected(trees: "Trees") -> Tensor:
    """What the trees say where no column is known."""
    arrays = [column.contiguous().numpy() for column in trees.columns]
    return torch.tensor(kernels.expected(*arrays), dtype=torch.float64)


def contributions(trees: "Trees", x: Tensor) -> Tensor:
    """The Shapley values, leaf by leaf."""
    found = torch.zeros(x.shape, dtype=torch.float64)
    arrays = [column.contiguous().numpy() for column in (*trees.columns, x, found)]
    run_in_threads(kernels.contributions, len(x), 1000 * len(x) * len(trees.feature), *arrays)
    return found
