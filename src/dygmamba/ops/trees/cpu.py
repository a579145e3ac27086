"""Trees on a CPU: growth and threads; the loops are in `cpu_kernels`."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.threads import run_in_threads
from dygmamba.ops.trees import cpu_kernels as kernels

if TYPE_CHECKING:
    from dygmamba.ops.trees import GrowthConfig, Trees

UPDATES_PER_THREAD = 150_000  # fewer histogram updates are not worth another thread


def grow_tree(
    bins: Tensor, slopes: Tensor, rows: Tensor, columns: Tensor, edges: Tensor, growth: "GrowthConfig"
) -> "Trees":
    """Grow one tree, leaf by leaf; histograms of many rows are computed by several threads, each for some columns."""
    from dygmamba.ops.trees import Trees

    with ThreadPoolExecutor(max(1, torch.get_num_threads() - 1)) as others:
        tree = TreeBuilder(bins.numpy(), slopes.numpy(), rows.numpy(), columns.numpy(), growth, others)
        while tree.leaves < growth.leaves and tree.split_best_leaf():
            pass
    feature, cut = tree.feature, tree.cut
    threshold = np.where(feature >= 0, edges.numpy()[np.maximum(feature, 0), cut], 0).astype(np.float32)
    found = (feature, threshold, tree.left, tree.right, *tree.values())
    return Trees(*(torch.from_numpy(column)[None] for column in found))


class TreeBuilder:
    """A growing tree: its nodes, the range of rows in each, and the best split of every leaf."""

    def __init__(
        self,
        bins: np.ndarray,
        slopes: np.ndarray,
        rows: np.ndarray,
        columns: np.ndarray,
        growth: "GrowthConfig",
        others: Executor,
    ) -> None:
        self.slopes, self.growth, self.others = slopes[rows], growth, others
        self.rows = np.arange(len(rows), dtype=np.int32)  # of those that the tree is grown from
        # four columns are packed and counted at once, the last one again where others are missing
        self.columns = np.pad(columns, (0, -len(columns) % 4), mode="edge")
        self.packed = np.empty((len(self.columns) // 4, len(rows), 4), np.uint8)
        self._run_for_columns(kernels.pack_bins, len(rows), bins, rows, self.columns, self.packed)
        most = 2 * growth.leaves - 1
        self.feature = np.full(most, -1, np.int32)
        self.left, self.right = np.zeros(most, np.int32), np.zeros(most, np.int32)
        self.cut = np.zeros(most, np.int64)
        self.table = np.empty((growth.leaves, len(self.columns), kernels.BINS, 3))
        self.spare = np.empty(len(rows), np.int32)
        self.bounds: list[tuple[int, int]] = [(0, len(rows))]
        self.slot = [0]
        self.best: dict[
            int, tuple[float, int, int]
        ] = {}  # gain, column and bin for each leaf that can be split
        self.leaves = 1
        self._fill_histograms(0)
        self._find_split(0)

    def split_best_leaf(self) -> bool:
        """Split the leaf with the largest gain, the first of equals; return False if no split gains."""
        if not self.best:
            return False
        node = min(self.best, key=lambda leaf: (-self.best[leaf][0], leaf))
        _, column, cut = self.best.pop(node)
        low, high = self.bounds[node]
        self.feature[node], self.cut[node] = self.columns[column], cut
        own = self.packed[column // 4, :, column % 4]
        border = low + kernels.divide(self.rows[low:high], own, cut, self.spare)
        first = len(self.bounds)
        self.left[node], self.right[node] = first, first + 1
        self.bounds += [(low, border), (border, high)]
        smaller = first if border - low <= high - border else first + 1
        larger = 2 * first + 1 - smaller
        self.slot += [0, 0]
        self.slot[smaller], self.slot[larger] = self.leaves, self.slot[node]
        # only the smaller child is counted; the larger one's histogram is the parent's minus that
        self._fill_histograms(smaller)
        self.table[self.slot[larger]] -= self.table[self.slot[smaller]]
        for child in (smaller, larger):
            self._find_split(child)
        self.leaves += 1
        return True

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the value and the number of rows of each node."""
        value, cover = np.zeros(len(self.feature)), np.zeros(len(self.feature))
        for node, (low, high) in enumerate(self.bounds):
            gradient, hessian = kernels.sums(self.slopes, self.rows[low:high])
            cover[node] = high - low
            value[node] = -gradient / (hessian + self.growth.l2) if high > low else 0.0
        return value, cover

    def _fill_histograms(self, node: int) -> None:
        """Compute the node's histograms."""
        rows = self.rows[slice(*self.bounds[node])]
        given = (self.packed, self.slopes, rows, self.table[self.slot[node]])
        self._run_for_columns(kernels.histogram, len(rows), *given)

    def _run_for_columns(self, kernel: Callable[..., None], rows: int, *given: np.ndarray) -> None:
        """Run a kernel on so many rows of all columns, by several threads, each for some columns."""
        threads, groups = _count_threads(rows * len(self.columns)), len(self.packed)
        cuts = [groups * piece // threads for piece in range(threads + 1)]
        started = [self.others.submit(kernel, low, high, *given) for low, high in pairwise(cuts[1:])]
        kernel(cuts[0], cuts[1], *given)
        for piece in started:
            piece.result()

    def _find_split(self, node: int) -> None:
        """Find the node's best split, if there is one."""
        gain, cut = np.zeros(len(self.columns)), np.zeros(len(self.columns), np.int64)
        given = (self.table[self.slot[node]], self.growth.min_rows, self.growth.l2, gain, cut)
        kernels.best_splits(0, len(self.columns), *given)
        if len(gain) and gain.max() > 0:
            column = int(gain.argmax())
            self.best[node] = (float(gain[column]), column, int(cut[column]))


def _count_threads(updates: int) -> int:
    """Return the number of threads for a histogram; one thread per column, so the sums have the same bits."""
    return max(1, min(torch.get_num_threads(), updates // UPDATES_PER_THREAD))


def add_leaves(trees: "Trees", x: Tensor, before: Tensor) -> Tensor:
    """Return `before` plus the leaf values of each row."""
    return _add_leaves(trees, trees.threshold, x.T, before)


def add_binned_leaves(trees: "Trees", bins: Tensor, cut: Tensor, before: Tensor) -> Tensor:
    """Return `before` plus the leaf values of each row, given its bins; a cut is the last bin that goes left."""
    return _add_leaves(trees, cut.to(torch.uint8), bins, before)


def _add_leaves(trees: "Trees", threshold: Tensor, x: Tensor, before: Tensor) -> Tensor:
    total = before.clone()
    given = (trees.feature, threshold, trees.left, trees.right, trees.value, x.contiguous(), total)
    kernels.add_leaves(*(column.numpy() for column in given))
    return total


def expected_value(trees: "Trees") -> Tensor:
    arrays = [column.contiguous().numpy() for column in trees.columns]
    return torch.tensor(kernels.expected_value(*arrays), dtype=torch.float64)


def shapley_values(trees: "Trees", x: Tensor) -> Tensor:
    found = torch.zeros(x.shape, dtype=torch.float64)
    arrays = [column.contiguous().numpy() for column in (*trees.columns, x, found)]
    run_in_threads(kernels.shapley_values, len(x), 1000 * len(x) * len(trees.feature), *arrays)
    return found
