"""Boosted decision trees on tables of numbers: grown from histograms, summed up, and explained exactly.

Numbers are sorted into at most 256 bins per column, once. A tree is grown leaf by leaf, the largest gain first
(Ke et al., LightGBM, NeurIPS 2017); the gain of a split is G_l^2 / (H_l + l2) + G_r^2 / (H_r + l2) - G^2 / (H + l2)
with the sums G, H of first and second derivatives. All sums run in the order of the rows, in 64 bits and on one
thread, so a fit has the same bits each time. On the CPU Numba kernels; sums of trees on a GPU by the reference.

Legend: r rows, f columns (features), t trees, n nodes of a tree, b bins.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int32, Int64, UInt8
from torch import Tensor

from dygmamba.ops.dispatch import Dispatch

TREES = Dispatch(__name__, {"cpu": ("cpu",)})
BINS = 256


@dataclass(frozen=True, slots=True)
class Trees:
    """Nodes of several trees, the root first: a column, the last value that goes left, both children, and a value.

    A leaf has column -1. `cover` is how many training rows came by, from which a missing column's share is taken.
    """

    feature: Int32[Tensor, "t n"]
    threshold: Float32[Tensor, "t n"]
    left: Int32[Tensor, "t n"]
    right: Int32[Tensor, "t n"]
    value: Float64[Tensor, "t n"]
    cover: Float64[Tensor, "t n"]

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """All that is known, in the order of the fields."""
        return self.feature, self.threshold, self.left, self.right, self.value, self.cover

    def part(self, first: int, last: int | None) -> "Trees":
        """Some of them, one after another."""
        return Trees(*(column[first:last] for column in self.columns))

    def clone(self) -> "Trees":
        """The same, which nobody changes."""
        return Trees(*(column.clone() for column in self.columns))


@dataclass(frozen=True, slots=True)
class GrowthConfig:
    """When a tree stops: its leaves, the fewest rows of one, and what is added to second derivatives."""

    leaves: int = 31
    least: int = 20
    l2: float = 1.0


def bin_edges(x: Float32[Tensor, "r f"]) -> Float32[Tensor, "f b"]:
    """For each column at most 255 values between its bins, by quantiles; the rest is infinite.

    The bin of a number is how many edges are below it: a number goes left of an edge that it does not exceed.
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
    """The bin of every number, column by column."""
    return torch.searchsorted(edges, x.T.contiguous()).to(torch.uint8)


def grow_tree(
    bins: UInt8[Tensor, "f r"],
    slopes: Float64[Tensor, "r 2"],
    rows: Int64[Tensor, "_"],
    columns: Int64[Tensor, "_"],
    edges: Float32[Tensor, "f b"],
    growth: GrowthConfig,
) -> Trees:
    """One tree that follows the slopes (first and second derivatives) of these rows, on these columns; rows ascend."""
    return TREES["cpu"].grow(bins, slopes, rows, columns, edges, growth)


def sum_leaves(
    trees: Trees, x: Float32[Tensor, "r f"], before: Float64[Tensor, "r"] | None = None
) -> Float64[Tensor, "r"]:
    """The sum of each row's leaves, tree after tree; `before` is what earlier trees said, to be gone on from."""
    start = torch.zeros(len(x), dtype=torch.float64, device=x.device) if before is None else before
    return TREES[x.device.type].tree_sums(trees, x, start)


def sum_binned_leaves(
    trees: Trees, bins: UInt8[Tensor, "f r"], edges: Float32[Tensor, "f b"], before: Float64[Tensor, "r"]
) -> Float64[Tensor, "r"]:
    """The same of rows whose bins are known, for trees that were grown from these edges: the same bits, sooner."""
    cut = torch.searchsorted(edges[trees.feature.clamp(min=0).long()], trees.threshold[..., None])[..., 0]
    return TREES["cpu"].binned_sums(trees, bins, cut, before)


def shapley_values(
    trees: Trees, x: Float32[Tensor, "r f"]
) -> tuple[Float64[Tensor, "r f"], Float64[Tensor, ""]]:
    """The exact Shapley value of each column for each row, and what they are counted from: their sum is `tree_sums`.

    The game of Lundberg et al. (Nature Machine Intelligence 2020): a column that is left out goes both ways at each of
    its splits, in the shares of the training rows.
    """
    found = TREES["cpu"].contributions(trees, x)
    return found, TREES["cpu"].expected(trees)
