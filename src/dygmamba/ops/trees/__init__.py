"""Gradient-boosted decision trees: grown from histograms, evaluated, and explained by exact Shapley values.

Values are put into at most 256 bins per column, once. A tree is grown leaf by leaf, the largest gain first
(Ke et al., LightGBM, NeurIPS 2017); the gain of a split is G_l^2 / (H_l + l2) + G_r^2 / (H_r + l2) - G^2 / (H + l2)
with the sums G, H of first and second derivatives. All sums run in row order, in float64 and on one thread, so a fit
gives the same bits each time. Trees are grown and explained on the CPU, by Numba kernels, and evaluated on any device.

Legend: r rows, f columns (features), t trees, n nodes of a tree, b bins.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int32, Int64, UInt8
from torch import Tensor

from dygmamba.ops.dispatch import dispatched

BINS = 256


@dataclass(frozen=True, slots=True)
class Trees:
    """Nodes of several trees, the root first.

    A node has a column (`feature`), the largest value that goes left (`threshold`), its children and a value. A leaf
    has column -1. `cover` is the number of training rows that reached the node; Shapley values need it.
    """

    feature: Int32[Tensor, "t n"]
    threshold: Float32[Tensor, "t n"]
    left: Int32[Tensor, "t n"]
    right: Int32[Tensor, "t n"]
    value: Float64[Tensor, "t n"]
    cover: Float64[Tensor, "t n"]

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """The fields in order."""
        return self.feature, self.threshold, self.left, self.right, self.value, self.cover

    def part(self, first: int, last: int | None) -> "Trees":
        """Return the trees `first` to `last - 1`."""
        return Trees(*(column[first:last] for column in self.columns))

    def check(self, features: int) -> None:
        """Raise ValueError unless each node leads on to later nodes of its tree, and all numbers are finite."""
        nodes, split = self.feature.shape[1], self.feature >= 0
        if not all(
            bool(column.isfinite().all()) for column in (self.value, self.cover, self.threshold[split])
        ):
            raise ValueError("its trees have numbers that are not finite")
        place = torch.arange(nodes, device=self.feature.device)
        for child in (self.left, self.right):
            if not bool((((child > place) & (child < nodes)) | ~split).all()):
                raise ValueError("its trees have branches that lead nowhere")
        if not bool(((self.feature >= -1) & (self.feature < features)).all()):
            raise ValueError("its trees use features that do not exist")

    def clone(self) -> "Trees":
        return Trees(*(column.clone() for column in self.columns))


@dataclass(frozen=True, slots=True)
class GrowthConfig:
    """Limits of the growth of a tree: most leaves, fewest rows per leaf; `l2` is added to second derivatives."""

    leaves: int = 31
    min_rows: int = 20
    l2: float = 1.0


def bin_edges(x: Float32[Tensor, "r f"]) -> Float32[Tensor, "f b"]:
    """Return at most 255 bin edges per column, by quantiles; unused edges are infinite.

    The bin of a value is the number of edges below it: a value goes left of an edge that it does not exceed.
    """
    edges = torch.full((x.shape[1], BINS - 1), torch.inf)
    share = torch.arange(1, BINS) / BINS
    for column in range(x.shape[1]):
        ordered = torch.from_numpy(np.sort(x[:, column].numpy()))
        values = torch.unique_consecutive(ordered)
        if len(values) >= BINS:
            values = torch.unique(ordered[(share * (len(ordered) - 1)).long()])
            values = values[:-1] if values[-1] == ordered[-1] else values
        else:
            values = values[:-1]
        edges[column, : len(values)] = values
    return edges


def bin_columns(x: Float32[Tensor, "r f"], edges: Float32[Tensor, "f b"]) -> UInt8[Tensor, "f r"]:
    """Return the bin of every value."""
    bins = torch.empty(x.shape[1], x.shape[0], dtype=torch.uint8)
    # one column at a time: 64-bit positions of all columns would take more memory than the table itself
    for column in range(x.shape[1]):
        bins[column] = torch.searchsorted(edges[column], x[:, column].contiguous(), out_int32=True)
    return bins


def grow_tree(
    bins: UInt8[Tensor, "f r"],
    slopes: Float64[Tensor, "r 2"],
    rows: Int64[Tensor, "_"],
    columns: Int64[Tensor, "_"],
    edges: Float32[Tensor, "f b"],
    growth: GrowthConfig,
) -> Trees:
    """Grow one tree on the given rows (ascending) and columns.

    `slopes` are the first and second derivatives of the loss for each row.
    """
    from dygmamba.ops.trees import cpu

    return cpu.grow_tree(bins, slopes, rows, columns, edges, growth)


def sum_leaves(
    trees: Trees, x: Float32[Tensor, "r f"], before: Float64[Tensor, "r"] | None = None
) -> Float64[Tensor, "r"]:
    """Sum the leaf values of each row, tree after tree; starts from `before`, the sums of earlier trees."""
    start = torch.zeros(len(x), dtype=torch.float64, device=x.device) if before is None else before
    return add_leaves.pick(x.device.type)(trees, x, start)


@dispatched(cpu=("cpu:add_leaves",))
def add_leaves(trees: Trees, x: Tensor, before: Tensor) -> Tensor:
    """Return `before` plus the leaf values of each row: send every row down every tree."""
    total = before.clone()
    rows = torch.arange(len(x), device=x.device)
    for feature, threshold, left, right, value, _ in zip(*trees.columns, strict=True):
        at = torch.zeros_like(rows)
        while bool((feature[at] >= 0).any()):
            inner = feature[at] >= 0
            lower = x[rows, feature[at].clamp(min=0).long()] <= threshold[at]
            at = torch.where(inner, torch.where(lower, left[at], right[at]).long(), at)
        total += value[at]
    return total


def sum_binned_leaves(
    trees: Trees, bins: UInt8[Tensor, "f r"], edges: Float32[Tensor, "f b"], before: Float64[Tensor, "r"]
) -> Float64[Tensor, "r"]:
    """`sum_leaves` for rows whose bins are known and trees grown from these edges: the same bits, faster."""
    cut = torch.searchsorted(edges[trees.feature.clamp(min=0).long()], trees.threshold[..., None])[..., 0]
    from dygmamba.ops.trees import cpu

    return cpu.add_binned_leaves(trees, bins, cut, before)


def shapley_values(
    trees: Trees, x: Float32[Tensor, "r f"]
) -> tuple[Float64[Tensor, "r f"], Float64[Tensor, ""]]:
    """Return the exact Shapley value of each column for each row, and the expected value they are added to.

    Their total is `sum_leaves`. The game is that of Lundberg et al. (Nature Machine Intelligence 2020): a missing
    column follows both branches at each of its splits, weighted by the shares of the training rows.
    """
    from dygmamba.ops.trees import cpu

    return cpu.shapley_values(trees, x), cpu.expected_value(trees)
