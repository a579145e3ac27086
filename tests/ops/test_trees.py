"""Boosted trees: growth by definition, sums along paths, and Shapley values against all coalitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.ops.trees import (
    GrowthConfig,
    Trees,
    add_leaves,
    bin_columns,
    bin_edges,
    grow_tree,
    shapley_values,
    sum_binned_leaves,
    sum_leaves,
)
from oracles import trees as by_definition


def table(rows, columns, seed, levels=None):
    """Numbers, some columns with few distinct ones."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns))
    if levels:
        x[:, ::2] = np.round(x[:, ::2] * levels) / levels
    return torch.from_numpy(x).float()


def slopes(rows, seed):
    """Multiples of 1/64, whose sums are exact in any order."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.integers(-64, 65, rows) / 64, rng.integers(1, 65, rows) / 64], 1))


def grown(x, seed, growth, count=1, grow_tree=grow_tree):
    edges = bin_edges(x)
    every = torch.arange(len(x)), torch.arange(x.shape[1])
    parts = [
        grow_tree(bin_columns(x, edges), slopes(len(x), seed + k), *every, edges, growth)
        for k in range(count)
    ]
    return Trees(*(torch.cat(column) for column in zip(*(part.columns for part in parts), strict=True)))


@settings(max_examples=15)
@given(
    rows=st.integers(1, 90), columns=st.integers(1, 4), seed=st.integers(0, 99), least=st.sampled_from([1, 7])
)
def test_the_kernel_grows_the_tree_of_the_definition(rows, columns, seed, least):
    """For all tables with exact sums: the same columns, cuts, children, values and covers."""
    x, growth = table(rows, columns, seed, levels=2), GrowthConfig(5, least, 0.5)
    ours = grown(x, seed, growth)
    true = grown(x, seed, growth, grow_tree=by_definition.grow_tree)
    for name in ("feature", "threshold", "left", "right", "cover"):
        assert torch.equal(getattr(ours, name), getattr(true, name)), name
    torch.testing.assert_close(ours.value, true.value, rtol=1e-12, atol=0)


@given(rows=st.integers(1, 600), seed=st.integers(0, 99), levels=st.sampled_from([None, 1, 3]))
def test_bins_keep_the_order(rows, seed, levels):
    """For all tables: a number is in a bin beyond an edge if and only if it exceeds it; equal numbers share a bin."""
    x = table(rows, 3, seed, levels)
    edges = bin_edges(x)
    bins = bin_columns(x, edges).T.long()
    padded = torch.cat([torch.full((3, 1), -torch.inf), edges, torch.full((3, 1), torch.inf)], dim=1)
    low, high = (torch.gather(padded.T, 0, bins + k) for k in (0, 1))
    assert bool(((x > low) & (x <= high)).all())
    for column in range(3):
        if len(torch.unique(x[:, column])) <= 256:
            assert len(torch.unique(bins[:, column])) == len(torch.unique(x[:, column]))


def test_a_leaf_has_its_newton_step_and_its_rows():
    """Every leaf: -G / (H + l2) over the training rows that reach it, at least as many as asked for."""
    x, growth = table(300, 4, 0), GrowthConfig(12, 10, 0.5)
    tree, slope = grown(x, 0, growth), slopes(300, 0)
    reached = sum_leaves(tree, x)
    for value in torch.unique(reached):
        rows = reached == value
        step = -slope[rows, 0].sum() / (slope[rows, 1].sum() + 0.5)
        assert float(value) == pytest.approx(float(step), rel=1e-12)
    leaves = tree.cover[(tree.feature < 0) & (tree.cover > 0)]
    assert len(leaves) == 12
    assert int(leaves.min()) >= 10
    assert int(leaves.sum()) == 300


def test_it_grows_what_scikit_learn_grows():
    """One tree of the same size and regularisation: the same partition of the training rows."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    x = table(400, 5, 1)
    y = (x[:, 0] * x[:, 1] + x[:, 2]).double()
    other = HistGradientBoostingRegressor(
        learning_rate=1.0, max_iter=1, max_leaf_nodes=8, min_samples_leaf=15, l2_regularization=1.0
    ).fit(x.numpy(), y.numpy())
    slope = torch.stack([y.mean() - y, torch.ones_like(y)], dim=1)
    edges = bin_edges(x)
    tree = grow_tree(
        bin_columns(x, edges), slope, torch.arange(400), torch.arange(5), edges, GrowthConfig(8, 15, 1.0)
    )
    ours, theirs = sum_leaves(tree, x).numpy(), other.predict(x.numpy()) - float(y.mean())
    # bins are cut a little differently; the fit must be as good
    assert np.corrcoef(ours, theirs)[0, 1] > 0.98
    assert ((ours - y.numpy()) ** 2).sum() <= 1.03 * ((theirs - y.numpy()) ** 2).sum()


@settings(max_examples=10)
@given(seed=st.integers(0, 99), columns=st.integers(1, 5), leaves=st.integers(2, 9))
def test_contributions_are_shapley_values_of_all_coalitions(seed, columns, leaves):
    """For all small trees, columns split on twice among them: what the mean over all orders of joining says."""
    x = table(80, columns, seed)
    trees = grown(x, seed, GrowthConfig(leaves, 3, 0.5), count=2)
    found, base = shapley_values(trees, x[:3])
    torch.testing.assert_close(found, by_definition.shapley_values(trees, x[:3]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(base, by_definition.expected_value(trees), rtol=1e-9, atol=1e-12)


@given(seed=st.integers(0, 99), rows=st.integers(1, 20))
def test_contributions_add_up(seed, rows):
    """For all trees and rows: what they are counted from and the contributions are the sum of the leaves."""
    x = table(200, 12, seed)
    trees = grown(x, seed, GrowthConfig(31, 2, 0.5), count=3)
    found, base = shapley_values(trees, x[:rows])
    torch.testing.assert_close(base + found.sum(dim=1), sum_leaves(trees, x[:rows]), rtol=1e-10, atol=1e-12)


def test_a_column_that_is_never_split_on_contributes_nothing():
    """Dummies get zero, to the last bit."""
    x = torch.cat([table(200, 3, 0), torch.zeros(200, 1)], dim=1)
    found, _ = shapley_values(grown(x, 0, GrowthConfig(8, 5, 1.0), count=2), x[:9])
    assert not bool(found[:, 3].any())


def test_no_row_and_no_split():
    """A table of one kind of row is one leaf; trees without rows to ask about say nothing."""
    x = torch.zeros(30, 2)
    tree = grown(x, 0, GrowthConfig(8, 1, 1.0))
    assert int(tree.feature.max()) == -1
    found, base = shapley_values(tree, x)
    assert not bool(found.any())
    torch.testing.assert_close(sum_leaves(tree, x), base.expand(30))
    assert sum_leaves(tree, x[:0]).shape == (0,)


@settings(max_examples=15)
@given(rows=st.integers(1, 300), seed=st.integers(0, 99), cut=st.integers(0, 3))
def test_sums_go_on_and_bins_say_the_same(rows, seed, cut):
    """For all tables: later trees on top of earlier ones, and rows by their bins, have the bits of all at once."""
    x = table(rows, 4, seed, levels=3)
    trees, edges = grown(x, seed, GrowthConfig(6, 2, 0.5), count=3), bin_edges(x)
    whole = sum_leaves(trees, x)
    first = sum_leaves(trees.part(0, cut), x)
    assert torch.equal(sum_leaves(trees.part(cut, None), x, first), whole)
    assert torch.equal(sum_binned_leaves(trees, bin_columns(x, edges), edges, torch.zeros_like(whole)), whole)
    assert torch.equal(add_leaves.reference(trees, x, torch.zeros_like(whole)), whole)


def test_threads_change_no_bit(monkeypatch):
    """Columns dealt out to any number of threads: the same tree."""
    from dygmamba.ops.trees import cpu

    x, growth = table(500, 11, 2), GrowthConfig(9, 5, 0.5)
    alone = grown(x, 2, growth)
    monkeypatch.setattr(cpu, "UPDATES_PER_THREAD", 500)
    for threads in (2, 3, 16):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        shared = grown(x, 2, growth)
        assert all(
            torch.equal(ours, theirs) for ours, theirs in zip(shared.columns, alone.columns, strict=True)
        )
