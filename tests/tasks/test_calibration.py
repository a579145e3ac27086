"""Calibration: what it preserves, what it corrects, and how its error is measured."""

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.core.errors import ScoreError
from dygmamba.data.events.event_store import EventStore
from dygmamba.tasks.calibration import (
    MIN_PAIRS,
    Calibration,
    NewNodes,
    compute_logistic,
    compute_reliability,
    fit_calibration,
    fit_line,
)
from dygmamba.tasks.metrics import average_precision, roc_auc
from raising import raises


def drawn(pairs: int, seed: int = 0, spread: float = 2.0):
    """Logits, and labels drawn with the probability of their logistic function."""
    rng = torch.Generator().manual_seed(seed)
    logit = spread * torch.randn(pairs, generator=rng).double()
    return logit, (torch.rand(pairs, generator=rng) < logit.sigmoid()).float()


@settings(max_examples=30)
@given(
    logit=st.lists(st.integers(-3000, 3000), min_size=2, max_size=60),
    labels=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_calibration_keeps_the_order(logit, labels):
    """For all logits and labels the slope is positive, so AP and AUC do not change."""
    z, y = torch.tensor(logit).double() / 200, torch.tensor(labels[: len(logit)]).float()
    found = fit_calibration(z, y)
    assert found.slope > 0
    said = found.probability(z)
    assert bool(((said >= 0) & (said <= 1)).all())
    order = found.log_odds(z)
    for metric in (average_precision, roc_auc):
        assert metric(order, y) == pytest.approx(metric(z, y), nan_ok=True, abs=1e-12)


def test_calibrated_logits_stay_calibrated():
    """Logits whose logistic function is the probability keep it, up to chance."""
    z, y = drawn(40_000)
    found = fit_calibration(z, y)
    assert found.slope == pytest.approx(1, abs=0.05)
    assert found.bias == pytest.approx(0, abs=0.05)
    assert (found.pairs, found.stretch) == (40_000, 1.0)


@pytest.mark.parametrize(("slope", "bias"), [(0.3, -1.0), (4.0, 2.5)])
def test_a_linear_miscalibration_is_undone(slope, bias):
    """For logits that are off by a line, the fit inverts that line."""
    z, y = drawn(40_000, seed=1)
    raw = (z - bias) / slope
    found = fit_calibration(raw, y)
    assert (found.slope, found.bias) == (pytest.approx(slope, rel=0.05), pytest.approx(bias, abs=0.1))
    other, label = drawn(40_000, seed=2)
    before, after = (
        compute_reliability(said, label)
        for said in (((other - bias) / slope).sigmoid(), found.probability((other - bias) / slope))
    )
    assert before.ece > 0.05
    assert after.ece < 0.01


def test_ece_of_a_known_distribution():
    """Score 0.8 with half positives: 0.3. Exact scores: 0. The mean over bins of equal mass, by hand."""
    half = torch.tensor([1.0, 0.0] * 5_000)
    assert compute_reliability(torch.full((10_000,), 0.8), half).ece == pytest.approx(0.3)
    assert compute_reliability(torch.full((10_000,), 0.5), half).ece == 0
    said = torch.tensor([0.1] * 6 + [0.9] * 6)
    label = torch.tensor([1.0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    curve = compute_reliability(said, label, bins=2)
    assert curve.score == pytest.approx((0.1, 0.9))
    assert curve.share == pytest.approx((1 / 6, 1.0))
    assert curve.count == (6, 6)
    assert curve.ece == pytest.approx((1 / 6 - 0.1 + 0.1) / 2)


def test_reliability_does_not_depend_on_the_order_of_pairs():
    """For ties across bin borders, any order gives the same curve."""
    said = torch.tensor([0.2] * 37 + [0.6] * 40 + [0.7] * 23)
    label = (torch.arange(100) % 3 == 0).float()
    turned = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    first, second = compute_reliability(said, label), compute_reliability(said[turned], label[turned])
    assert first.count == second.count
    assert first.share == pytest.approx(second.share)
    assert first.score == pytest.approx(second.score)


def test_calibrated_scores_show_the_error_of_chance():
    """For scores that are the probabilities, the mean error equals `chance`; more pairs have less."""
    found = [compute_reliability(z.sigmoid(), y) for z, y in (drawn(400, seed=seed) for seed in range(200))]
    assert np.mean([one.ece for one in found]) == pytest.approx(
        np.mean([one.chance for one in found]), rel=0.1
    )
    z, y = drawn(40_000)
    assert compute_reliability(z.sigmoid(), y).chance < 0.2 * found[0].chance


@pytest.mark.parametrize(
    ("z", "y"),
    [
        ([3.0, 3.0, 3.0, 3.0], [1, 0, 0, 0]),
        ([5.0, 4.0, -4.0, -5.0], [0, 0, 1, 1]),
        ([5.0, 4.0, -4.0, -5.0], [1, 1, 0, 0]),
        ([1.0, 2.0], [1, 1]),
        ([0.5], [1]),
    ],
)
def test_a_line_always_exists(z, y):
    """Constant, reversed, separable, one-class or single logits: finite slope and bias, positive slope."""
    slope, bias = fit_line(torch.tensor(z).double(), torch.tensor(y).double())
    assert slope > 0
    assert np.isfinite([slope, bias]).all()
    with raises("not-finite", ScoreError):
        fit_calibration(torch.tensor([float("nan")]), torch.ones(1))


def test_knots_follow_a_curve():
    """For curved logits, knots leave less than a fifth of the line's error; they increase and continue as the line."""
    z, y = drawn(40_000, seed=5, spread=3.0)
    raw = torch.where(z > 0, 0.2 * z, 3 * z)
    found = fit_calibration(raw, y)
    straight = Calibration(*fit_line(raw, y.double()), found.prior, found.pairs, found.stretch)
    bent, level = (compute_reliability(one.probability(raw), y).ece for one in (found, straight))
    assert bent < level / 5
    far = torch.linspace(-40, 40, 4_001)
    assert bool((found.log_odds(far).diff() > 0).all())
    ends = found.log_odds(torch.tensor([-40.0, -41.0, 40.0, 41.0]))
    assert (ends[0] - ends[1], ends[3] - ends[2]) == (pytest.approx(found.slope), pytest.approx(found.slope))
    assert float(found.log_odds(torch.tensor(-torch.inf))) == -torch.inf


def test_raw_logits_are_kept_if_there_are_too_few_pairs_of_a_class():
    """With one class only, or fewer than MIN_PAIRS of one, the identity, raised by log k for k training negatives."""
    z, y = drawn(16_000, seed=3)
    rare = torch.cat([y.nonzero()[: MIN_PAIRS - 1, 0], (y == 0).nonzero()[:500, 0]])
    enough = torch.cat([y.nonzero()[:MIN_PAIRS, 0], (y == 0).nonzero()[:500, 0]])
    assert not fit_calibration(3 * z[rare], y[rare]).is_fitted
    assert not fit_calibration(z, torch.ones_like(y)).is_fitted
    assert fit_calibration(3 * z[enough], y[enough]).is_fitted
    raised = fit_calibration(z[rare], y[rare], negatives=2)
    torch.testing.assert_close(raised.log_odds(z), z.double() + log(2))


def test_a_fit_to_right_logits_changes_them_little():
    """If the logits are right already, a fit moves no probability by more than a few points."""
    z, y = drawn(16_000, seed=3)
    moved = (fit_calibration(z, y).probability(z) - z.double().sigmoid()).abs()
    assert float(moved.mean()) < 0.01
    assert float(moved.max()) < 0.05


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    slope=st.floats(0.2, 5),
    bias=st.floats(-3, 3),
    offsets=st.tuples(*[st.floats(-3, 3)] * 3),
)
def test_calibration_increases_in_the_logit_for_every_context(seed, slope, bias, offsets):
    """For all fits with offsets, the log-odds of pairs with the same new ends are strictly increasing."""
    z, y = drawn(3_000, seed=seed)
    new_ends = torch.rand(len(z), 2, generator=torch.Generator().manual_seed(seed)) < 0.4
    found = fit_calibration(distort(z, new_ends, slope, bias, offsets), y, new_ends)
    grid = torch.linspace(-30, 30, 2_001)
    for context in ([0, 0], [0, 1], [1, 0], [1, 1]):
        odds = found.log_odds(grid, torch.tensor(context).bool().expand(len(grid), 2))
        assert bool((odds.diff() > 0).all())


def distort(z, new_ends, slope, bias, offsets):
    """Return logits that the calibration with this slope, bias and these offsets maps to z."""
    columns = torch.cat([new_ends, new_ends.all(dim=1, keepdim=True)], dim=1).double()
    return (z - columns @ torch.tensor(offsets).double() - bias) / slope


def test_offsets_correct_pairs_with_a_new_end():
    """Without them, pairs with a new destination stay miscalibrated although all pairs together are not."""
    offsets, (z, y) = (1.0, -1.5, 0.5), drawn(40_000, seed=6)
    new_ends = torch.rand(len(z), 2, generator=torch.Generator().manual_seed(0)) < 0.3
    raw = distort(z, new_ends, 1.0, 0.0, offsets)
    found, blind = (fit_calibration(raw, y, ends) for ends in (new_ends, None))
    assert found.new_source > 0 > found.new_destination
    own = new_ends[:, 1]
    before = compute_reliability(blind.probability(raw)[own], y[own]).ece
    after = compute_reliability(found.probability(raw, new_ends)[own], y[own]).ece
    assert after < 0.5 * before
    assert compute_reliability(blind.probability(raw), y).ece < 0.01
    assert not blind.has_offsets


def test_offsets_of_few_pairs_are_near_zero():
    """Two pairs with a new source, both positive: the ridge keeps the offset small. Without any it is 0."""
    z, y = drawn(4_000, seed=7)
    new_ends = torch.zeros(len(z), 2).bool()
    assert not fit_calibration(z + 1, y, new_ends).has_offsets
    new_ends[y.nonzero()[:2, 0], 0] = True
    assert 0 < fit_calibration(z + 1, y, new_ends).new_source < 1


def test_the_order_of_pairs_is_irrelevant():
    """A snapshot whose file lists all events first has the calibration of the same pairs in any order."""
    z, y = drawn(4_000, seed=8)
    by_label = torch.argsort(y, descending=True)
    one, other = fit_calibration(z + 2, y), fit_calibration((z + 2)[by_label], y[by_label])
    assert one.bias == pytest.approx(other.bias) == pytest.approx(-2, abs=0.3)


@settings(max_examples=50)
@given(
    events=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=20
    ),
    later=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), min_size=0, max_size=20
    ),
    query=st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 9)),
)
def test_new_ends_depend_on_strictly_earlier_events_only(events, later, query):
    """For all streams: a node is new without an earlier training event, and events from the query on change nothing."""
    src, dst, time = query
    expected = [all(node not in (u, v) for u, v, t in events if t < time) for node in (src, dst)]
    for rows in (events, [*events, *(row for row in later if row[2] >= time)]):
        store = EventStore.from_unsorted(*torch.tensor(rows).T, num_nodes=6)
        found = NewNodes.from_events(store, torch.arange(len(rows))).find(
            torch.tensor([src]), torch.tensor([dst]), torch.tensor([float(time)]).double()
        )
        assert found.tolist() == [expected]


def test_the_prior_is_the_share_of_positives():
    """The prior is the share of positives, and the mean probability equals it."""
    z, y = drawn(20_000, seed=4)
    kept = torch.cat([torch.nonzero(y == 0)[:, 0], torch.nonzero(y == 1)[::10, 0]]).sort().values
    found = fit_calibration(z[kept], y[kept])
    assert isinstance(found, Calibration)
    assert found.prior == pytest.approx(float(y[kept].mean()))
    assert float(found.probability(z[kept]).mean()) == pytest.approx(found.prior, abs=5e-3)


@given(st.integers(1, 300), st.integers(0, 40))
def test_a_probability_does_not_depend_on_its_place(count, before):
    """For all lengths of a table and of the one before it: every value has the bits that it has alone."""
    odds = drawn(before + count, spread=8.0)[0]
    alone = torch.stack([compute_logistic(value) for value in odds])
    assert torch.equal(compute_logistic(odds), alone)
    assert torch.equal(compute_logistic(odds[before:]), alone[before:])
    assert torch.allclose(alone, odds.sigmoid(), rtol=1e-15, atol=0)
