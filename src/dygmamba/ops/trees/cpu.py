"""Trees in Numba: histograms and splits in `cpu_kernels`."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.scan.cpu import spread
from dygmamba.ops.trees import cpu_kernels as kernels

if TYPE_CHECKING:
    from dygmamba.ops.trees import Growth, Trees


def grow(
    bins: Tensor, slopes: Tensor, rows: Tensor, columns: Tensor, edges: Tensor, growth: "Growth"
) -> "Trees":
    """One tree, leaf by leaf."""
    from dygmamba.ops.trees import Trees

    given = (bins.numpy(), slopes.numpy(), rows.to(torch.int32).numpy(), columns.numpy())
    feature, cut, left, right, value, cover = kernels.grow(*given, growth.leaves, growth.least, growth.l2)
    threshold = np.where(feature >= 0, edges.numpy()[np.maximum(feature, 0), cut], 0).astype(np.float32)
    found = (feature, threshold, left, right, value, cover)
    return Trees(*(torch.from_numpy(column)[None] for column in found))


def tree_sums(trees: "Trees", x: Tensor) -> Tensor:
    """Every row walks down every tree."""
    total = torch.zeros(len(x), dtype=torch.float64)
    arrays = [column.contiguous().numpy() for column in (*trees.columns[:-1], x, total)]
    spread(kernels.tree_sums, len(x), 8 * len(x) * len(trees.feature), *arrays)
    return total


def expected(trees: "Trees") -> Tensor:
    """What the trees say where no column is known."""
    arrays = [column.contiguous().numpy() for column in trees.columns]
    return torch.tensor(kernels.expected(*arrays), dtype=torch.float64)


def contributions(trees: "Trees", x: Tensor) -> Tensor:
    """The Shapley values, leaf by leaf."""
    found = torch.zeros(x.shape, dtype=torch.float64)
    arrays = [column.contiguous().numpy() for column in (*trees.columns, x, found)]
    spread(kernels.contributions, len(x), 1000 * len(x) * len(trees.feature), *arrays)
    return found
