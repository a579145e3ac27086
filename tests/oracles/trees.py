"""Trees by definition: every split is tried by sums over its rows, every coalition of columns is evaluated."""

from itertools import combinations
from math import factorial

import torch
from torch import Tensor

from dygmamba.ops.trees import GrowthConfig, Trees


def grow_tree(
    bins: Tensor, slopes: Tensor, rows: Tensor, columns: Tensor, edges: Tensor, growth: GrowthConfig
) -> Trees:
    """Split the leaf with the largest gain until no split gains or there are enough leaves."""
    nodes: list[dict] = [_make_leaf(rows, slopes, growth)]
    for count in range(1, growth.leaves):
        options = [
            (_find_best_split(bins, slopes, node["rows"], columns, growth), number)
            for number, node in enumerate(nodes)
            if node["feature"] < 0
        ]
        (gain, column, cut), number = max(options, key=lambda option: (option[0][0], -option[1]))
        if gain <= 0:
            break
        node, lower = nodes[number], bins[column, nodes[number]["rows"]] <= cut
        node |= {"feature": column, "threshold": float(edges[column, cut])}
        node |= {"left": 2 * count - 1, "right": 2 * count}
        nodes += [_make_leaf(node["rows"][side], slopes, growth) for side in (lower, ~lower)]
    most, names = 2 * growth.leaves - 1, ("feature", "threshold", "left", "right", "value", "cover")
    kinds = (torch.int32, torch.float32, torch.int32, torch.int32, torch.float64, torch.float64)
    table = {name: torch.zeros(1, most, dtype=kind) for name, kind in zip(names, kinds, strict=True)}
    table["feature"][:] = -1
    for number, node in enumerate(nodes):
        for name in names:
            table[name][0, number] = node[name]
    return Trees(**table)


def _make_leaf(rows: Tensor, slopes: Tensor, growth: GrowthConfig) -> dict:
    gradient, hessian = slopes[rows].sum(dim=0).tolist()
    value = -gradient / (hessian + growth.l2) if len(rows) else 0.0
    return {
        "rows": rows, "feature": -1, "threshold": 0.0, "left": 0, "right": 0, "value": value, "cover": float(len(rows)),
    }  # fmt: skip


def _find_best_split(
    bins: Tensor, slopes: Tensor, rows: Tensor, columns: Tensor, growth: GrowthConfig
) -> tuple[float, int, int]:
    """Return the largest gain, its column and its last bin on the left; the first of equals."""
    best = (0.0, -1, 0)
    gradient, hessian = slopes[rows].sum(dim=0).tolist()
    for column in columns.tolist():
        for cut in torch.unique(bins[column, rows]).tolist():
            lower = bins[column, rows] <= cut
            count = int(lower.sum())
            if min(count, len(rows) - count) < growth.min_rows:
                continue
            g, h = slopes[rows[lower]].sum(dim=0).tolist()
            gain = g * g / (h + growth.l2) + (gradient - g) ** 2 / (hessian - h + growth.l2)
            gain -= gradient * gradient / (hessian + growth.l2)
            if gain > best[0]:
                best = (gain, column, cut)
    return best


def expected_value(trees: Trees) -> Tensor:
    """Return the output of the trees if all columns are missing."""
    row = torch.zeros(int(trees.feature.max()) + 1 if trees.feature.numel() else 1)
    return sum(
        (_output_given(tree, row, frozenset()) for tree in _list_trees(trees)),
        torch.zeros((), dtype=torch.float64),
    )


def shapley_values(trees: Trees, x: Tensor) -> Tensor:
    """Return each column's mean contribution over all orders in which columns become known; 2^f coalitions."""
    count = x.shape[1]
    found = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(len(x)):
        worth = {
            frozenset(known): sum(
                float(_output_given(tree, x[row], frozenset(known))) for tree in _list_trees(trees)
            )
            for size in range(count + 1)
            for known in combinations(range(count), size)
        }
        for known, value in worth.items():
            for column in set(range(count)) - known:
                share = factorial(len(known)) * factorial(count - len(known) - 1) / factorial(count)
                found[row, column] += share * (worth[known | {column}] - value)
    return found


def _list_trees(trees: Trees) -> list[tuple[Tensor, ...]]:
    return list(zip(*trees.columns, strict=True))


def _output_given(tree: tuple[Tensor, ...], x: Tensor, known: frozenset[int], at: int = 0) -> Tensor:
    """Return a tree's output for some known columns; a missing column follows both branches, weighted by cover."""
    feature, threshold, left, right, value, cover = tree
    column = int(feature[at])
    if column < 0:
        return value[at]
    ways = [int(left[at]), int(right[at])]
    if column in known:
        return _output_given(tree, x, known, ways[0] if bool(x[column] <= threshold[at]) else ways[1])
    return sum(cover[way] / cover[at] * _output_given(tree, x, known, way) for way in ways)  # pyright: ignore
