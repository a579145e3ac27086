"""The loops behind `cpu`."""

import numpy as np
from numba import njit

BINS = 256
DEEPEST = 64  # distinct columns on one path


@njit(cache=True, nogil=True)
def histogram(bins, slopes, rows, columns, table):
    """Sums of both derivatives and the number of rows, for each column and bin."""
    count = rows.shape[0]
    slope = np.empty(count, np.float64)
    bend = np.empty(count, np.float64)
    for i in range(count):
        slope[i] = slopes[rows[i], 0]
        bend[i] = slopes[rows[i], 1]
    for j in range(columns.shape[0]):
        own, column = table[j], bins[columns[j]]
        own[:] = 0.0
        for i in range(count):
            place = own[column[rows[i]]]
            place[0] += slope[i]
            place[1] += bend[i]
            place[2] += 1.0


@njit(cache=True, nogil=True)
def best_split(table, least, l2):
    """The largest gain, its place among the columns and its last bin on the left; the first of equals."""
    gain, where, cut = 0.0, -1, 0
    slope, bend, count = 0.0, 0.0, 0.0
    for b in range(BINS):
        slope += table[0, b, 0]
        bend += table[0, b, 1]
        count += table[0, b, 2]
    whole = slope * slope / (bend + l2)
    for j in range(table.shape[0]):
        g, h, below = 0.0, 0.0, 0.0
        for b in range(BINS - 1):
            if table[j, b, 2] == 0.0:
                continue
            g += table[j, b, 0]
            h += table[j, b, 1]
            below += table[j, b, 2]
            if count - below < least:
                break
            if below >= least:
                other, rest = slope - g, bend - h
                found = g * g / (h + l2) + other * other / (rest + l2) - whole
                if found > gain:
                    gain, where, cut = found, j, b
    return gain, where, cut


@njit(cache=True, nogil=True)
def divide(rows, column, cut, spare):
    """Rows of the left side first, both in their order; how many there are."""
    left, right = 0, 0
    for i in range(rows.shape[0]):
        if column[rows[i]] <= cut:
            rows[left] = rows[i]
            left += 1
        else:
            spare[right] = rows[i]
            right += 1
    for i in range(right):
        rows[left + i] = spare[i]
    return left


@njit(cache=True, nogil=True)
def grow(bins, slopes, rows, columns, leaves, least, l2):
    most = 2 * leaves - 1
    feature = np.full(most, -1, np.int32)
    cut = np.zeros(most, np.int64)
    left = np.zeros(most, np.int32)
    right = np.zeros(most, np.int32)
    value = np.zeros(most, np.float64)
    cover = np.zeros(most, np.float64)
    low = np.zeros(most, np.int64)
    high = np.zeros(most, np.int64)
    table = np.empty((leaves, columns.shape[0], BINS, 3), np.float64)
    slot = np.zeros(most, np.int64)
    gain = np.zeros(most, np.float64)
    where = np.full(most, -1, np.int64)
    at = np.zeros(most, np.int64)
    spare = np.empty(rows.shape[0], np.int32)
    rows = rows.copy()
    high[0] = rows.shape[0]
    histogram(bins, slopes, rows, columns, table[0])
    gain[0], where[0], at[0] = best_split(table[0], least, l2)
    nodes = 1
    for count in range(1, leaves):
        node = -1
        for i in range(nodes):
            if feature[i] < 0 and where[i] >= 0 and (node < 0 or gain[i] > gain[node]):
                node = i
        if node < 0:
            break
        feature[node] = columns[where[node]]
        cut[node] = at[node]
        own = rows[low[node] : high[node]]
        border = low[node] + divide(own, bins[feature[node]], cut[node], spare)
        left[node], right[node] = nodes, nodes + 1
        low[nodes], high[nodes], low[nodes + 1], high[nodes + 1] = low[node], border, border, high[node]
        smaller = nodes if border - low[node] <= high[node] - border else nodes + 1
        larger = 2 * nodes + 1 - smaller
        slot[smaller], slot[larger] = count, slot[node]
        fewer, more = table[count], table[slot[node]]
        histogram(bins, slopes, rows[low[smaller] : high[smaller]], columns, fewer)
        more -= fewer
        for child in (smaller, larger):
            gain[child], where[child], at[child] = best_split(table[slot[child]], least, l2)
        nodes += 2
    for node in range(nodes):
        slope, bend = 0.0, 0.0
        for i in range(low[node], high[node]):
            slope += slopes[rows[i], 0]
            bend += slopes[rows[i], 1]
        cover[node] = high[node] - low[node]
        value[node] = -slope / (bend + l2) if cover[node] > 0 else 0.0
    return feature, cut, left, right, value, cover


@njit(cache=True, nogil=True)
def tree_sums(low, high, feature, threshold, left, right, value, x, total):
    for tree in range(feature.shape[0]):
        column, edge, down, other = feature[tree], threshold[tree], left[tree], right[tree]
        for i in range(low, high):
            at = 0
            while column[at] >= 0:
                at = down[at] if x[i, column[at]] <= edge[at] else other[at]
            total[i] += value[tree, at]


@njit(cache=True, nogil=True)
def expected(feature, threshold, left, right, value, cover):
    total = 0.0
    for tree in range(feature.shape[0]):
        if cover[tree, 0] > 0:
            for node in range(feature.shape[1]):
                if feature[tree, node] < 0:
                    total += value[tree, node] * cover[tree, node] / cover[tree, 0]
    return total


@njit(cache=True, nogil=True)
def paths(column, left, right, cover, parent):
    """Each node's parent, -1 for the root and for nodes that are not in use."""
    parent[:] = -1
    for node in range(column.shape[0]):
        if column[node] >= 0:
            parent[left[node]] = node
            parent[right[node]] = node


@njit(cache=True, nogil=True)
def follow(node, column, edge, left, cover, parent, row, names, known, missing):
    """The distinct columns on the way to a leaf: whether the row goes there by each, and the share without it."""
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


@njit(cache=True, nogil=True)
def share_of(own, count, known, missing, weight, coefficients):
    """The mean over the sizes of coalitions of the others of what they let through, before column `own` joins."""
    coefficients[0] = 1.0
    size = 0
    for j in range(count):  # the product over the others of (missing + known z), by the power of z
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


@njit(cache=True, nogil=True)
def coalition_weights():
    """The share of orders, k! (n - k - 1)! / n!, in which k of the other n - 1 come first."""
    weight = np.zeros((DEEPEST + 1, DEEPEST + 1))
    for n in range(1, DEEPEST + 1):
        weight[n, 0] = 1.0 / n
        for k in range(1, n):
            weight[n, k] = weight[n, k - 1] * k / (n - k)
    return weight


@njit(cache=True, nogil=True)
def contributions(low, high, feature, threshold, left, right, value, cover, x, found):
    weight = coalition_weights()
    parent = np.empty(feature.shape[1], np.int64)
    names = np.empty(DEEPEST, np.int64)
    known = np.empty(DEEPEST)
    missing = np.empty(DEEPEST)
    coefficients = np.empty(DEEPEST + 1)
    for tree in range(feature.shape[0]):
        column, edge = feature[tree], threshold[tree]
        paths(column, left[tree], right[tree], cover[tree], parent)
        for node in range(1, column.shape[0]):
            if column[node] >= 0 or parent[node] < 0 or value[tree, node] == 0.0:
                continue
            for i in range(low, high):
                count = follow(
                    node, column, edge, left[tree], cover[tree], parent, x[i], names, known, missing
                )
                for j in range(count):
                    change = known[j] - missing[j]
                    through = share_of(j, count, known, missing, weight, coefficients)
                    found[i, names[j]] += value[tree, node] * change * through
