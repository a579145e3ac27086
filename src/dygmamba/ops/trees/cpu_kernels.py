"""Numba loops of `cpu`: histograms, splits, evaluation and Shapley values. Nothing here needs torch."""

import numpy as np

from dygmamba.ops.numba_kernels import inlined, kernel
from dygmamba.ops.threads import run_in_threads

BINS = 256
DEEPEST = 64  # most distinct columns on one path
EFFORT = 2  # a row's way down a tree counts as this many updates when work is distributed to threads
ROWS_IN_CACHE = 128  # rows whose features stay in the processor's cache while all trees are evaluated


@inlined()
def add(table, bin, gradient, hessian):
    """Add a row to a bin; unsigned indices spare the check of their sign, which would be half of the work here."""
    at = np.uint64(bin) * np.uint64(3)
    table[at] += gradient
    table[at + np.uint64(1)] += hessian
    table[at + np.uint64(2)] += 1.0


@kernel()
def pack_bins(low, high, bins, rows, columns, packed):
    """Write the bins of some rows and columns, those of four columns side by side, for groups `low` to `high - 1`."""
    for j in range(low, high):
        a, b = bins[columns[4 * j]], bins[columns[4 * j + 1]]
        c, d = bins[columns[4 * j + 2]], bins[columns[4 * j + 3]]
        own = packed[j]
        for i in range(rows.shape[0]):
            row = np.uint32(rows[i])
            own[i, 0], own[i, 1], own[i, 2], own[i, 3] = a[row], b[row], c[row], d[row]


@kernel()
def histogram(low, high, packed, slopes, rows, table):
    """Sum both derivatives and count the rows, for groups `low` to `high - 1` of four columns and each bin."""
    ordered = np.empty((rows.shape[0], 2))  # gathered once for all columns
    for i in range(rows.shape[0]):
        ordered[i, 0] = slopes[rows[i], 0]
        ordered[i, 1] = slopes[rows[i], 1]
    table[4 * low : 4 * high] = 0.0
    for j in range(low, high):
        own = packed[j]
        of_a, of_b = table[4 * j].ravel(), table[4 * j + 1].ravel()
        of_c, of_d = table[4 * j + 2].ravel(), table[4 * j + 3].ravel()
        for i in range(rows.shape[0]):  # four columns at once, so that no addition waits for the previous one
            row, gradient, hessian = np.uint32(rows[i]), ordered[i, 0], ordered[i, 1]
            add(of_a, own[row, 0], gradient, hessian)
            add(of_b, own[row, 1], gradient, hessian)
            add(of_c, own[row, 2], gradient, hessian)
            add(of_d, own[row, 3], gradient, hessian)


@kernel()
def best_splits(low, high, table, min_rows, l2, gain, cut):
    """Write the largest gain of columns `low` to `high - 1` and its last bin on the left; the first of equals."""
    gradient, hessian, count = 0.0, 0.0, 0.0
    for b in range(BINS):
        gradient += table[0, b, 0]
        hessian += table[0, b, 1]
        count += table[0, b, 2]
    whole = gradient * gradient / (hessian + l2)
    for j in range(low, high):
        gain[j], cut[j] = 0.0, 0
        g, h, below = 0.0, 0.0, 0.0
        for b in range(BINS - 1):
            if table[j, b, 2] == 0.0:
                continue
            g += table[j, b, 0]
            h += table[j, b, 1]
            below += table[j, b, 2]
            if count - below < min_rows:
                break
            if below >= min_rows:
                other, rest = gradient - g, hessian - h
                found = g * g / (h + l2) + other * other / (rest + l2) - whole
                if found > gain[j]:
                    gain[j], cut[j] = found, b


@kernel()
def divide(rows, column, cut, spare):
    """Partition the rows in place, left side first, both sides in order; return the size of the left side.

    Every row is written to both sides and one of the two positions advances: no branch to mispredict.
    """
    left, right = 0, 0
    for i in range(rows.shape[0]):
        row = rows[i]
        goes = column[np.uint32(row)] <= cut
        rows[left] = row
        spare[right] = row
        left += goes
        right += not goes
    for i in range(right):
        rows[left + i] = spare[i]
    return left


@kernel()
def sums(slopes, rows):
    """Sum both derivatives over some rows."""
    gradient, hessian = 0.0, 0.0
    for i in range(rows.shape[0]):
        gradient += slopes[rows[i], 0]
        hessian += slopes[rows[i], 1]
    return gradient, hessian


def add_leaves(
    feature: np.ndarray,
    threshold: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    value: np.ndarray,
    x: np.ndarray,
    total: np.ndarray,
) -> None:
    """Add the leaf values of each row to its total, tree after tree; `x` has the columns of all rows [f r]."""
    rows = x.shape[1]
    trees = [np.ascontiguousarray(column) for column in (feature, threshold, left, right, value)]
    run_in_threads(sum_leaves, rows, EFFORT * rows * len(feature), *trees, x, total)


@inlined()
def move_down(at, node, column, edge, left, right):
    """Move the rows that are at a node to its children; no branch to mispredict, so several rows go at once."""
    for i in range(column.shape[0]):
        side = left if column[i] <= edge else right
        at[i] = side if at[i] == node else at[i]


@kernel()
def sum_leaves(low, high, feature, threshold, left, right, value, x, total):
    """Send blocks of rows through all trees; each row's sum still runs in the order of the trees.

    All nodes of a tree are visited in order, as children come after their parent.
    """
    at = np.empty(ROWS_IN_CACHE, np.int16)
    for first in range(low, high, ROWS_IN_CACHE):
        last = min(first + ROWS_IN_CACHE, high)
        for tree in range(feature.shape[0]):
            at[:] = 0
            for node in range(feature.shape[1]):
                name = feature[tree, node]
                if name >= 0:
                    children = np.int16(left[tree, node]), np.int16(right[tree, node])
                    move_down(at, np.int16(node), x[name, first:last], threshold[tree, node], *children)
            for i in range(last - first):
                total[first + i] += value[tree, at[i]]


@kernel()
def expected_value(feature, threshold, left, right, value, cover):
    total = 0.0
    for tree in range(feature.shape[0]):
        if cover[tree, 0] > 0:
            for node in range(feature.shape[1]):
                if feature[tree, node] < 0:
                    total += value[tree, node] * cover[tree, node] / cover[tree, 0]
    return total


@inlined()
def find_parents(column, left, right, cover, parent):
    """Write each node's parent, -1 for the root and for unused nodes."""
    parent[:] = -1
    for node in range(column.shape[0]):
        if column[node] >= 0:
            parent[left[node]] = node
            parent[right[node]] = node


@inlined()
def trace_path(node, column, edge, left, cover, parent, row, names, known, missing):
    """List the distinct columns on the path to a leaf; return their number.

    `known` is whether the row's value of the column leads there, `missing` the share of training rows that go there.
    """
    count = 0
    while parent[node] >= 0:
        above = parent[node]
        name = column[above]
        goes = 1.0 if (row[name] <= edge[above]) == (left[above] == node) else 0.0
        share = cover[node] / cover[above]
        place = 0
        while place < count and names[place] != name:
            place += 1
        if place == count:
            names[place], known[place], missing[place] = name, goes, share
            count += 1
        else:
            known[place] *= goes
            missing[place] *= share
        node = above
    return count


@inlined()
def coalition_mean(own, count, known, missing, weight, coefficients):
    """Return the mean over coalition sizes of what the other columns let through before column `own` joins."""
    coefficients[0] = 1.0
    size = 0
    for j in range(count):  # coefficients of the product over the others of (missing + known z)
        if j != own:
            coefficients[size + 1] = coefficients[size] * known[j]
            for k in range(size, 0, -1):
                coefficients[k] = coefficients[k] * missing[j] + coefficients[k - 1] * known[j]
            coefficients[0] *= missing[j]
            size += 1
    total = 0.0
    for k in range(count):
        total += weight[count, k] * coefficients[k]
    return total


@inlined()
def coalition_weights():
    """Return the share of orders, k! (n - k - 1)! / n!, in which k of the other n - 1 come first."""
    weight = np.zeros((DEEPEST + 1, DEEPEST + 1))
    for n in range(1, DEEPEST + 1):
        weight[n, 0] = 1.0 / n
        for k in range(1, n):
            weight[n, k] = weight[n, k - 1] * k / (n - k)
    return weight


@kernel()
def shapley_values(low, high, feature, threshold, left, right, value, cover, x, found):
    weight = coalition_weights()
    parent = np.empty(feature.shape[1], np.int64)
    names = np.empty(DEEPEST, np.int64)
    known = np.empty(DEEPEST)
    missing = np.empty(DEEPEST)
    coefficients = np.empty(DEEPEST + 1)
    for tree in range(feature.shape[0]):
        column, edge = feature[tree], threshold[tree]
        find_parents(column, left[tree], right[tree], cover[tree], parent)
        for node in range(1, column.shape[0]):
            if column[node] >= 0 or parent[node] < 0 or value[tree, node] == 0.0:
                continue
            for i in range(low, high):
                count = trace_path(
                    node, column, edge, left[tree], cover[tree], parent, x[i], names, known, missing
                )
                for j in range(count):
                    change = known[j] - missing[j]
                    through = coalition_mean(j, count, known, missing, weight, coefficients)
                    found[i, names[j]] += value[tree, node] * change * through
