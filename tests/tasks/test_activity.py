"""Activity rate of sources: its likelihood, the optimality of its fit, strictly earlier events.

Legend: k kernels.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract_cases import sample_store
from dygmamba.history.source_activity import SourceActivity
from dygmamba.tasks.activity import choose_activity_weight, fit_activity, maximize_likelihood
from dygmamba.tasks.metrics import link_metrics
from strategies import event_streams

SCALES, PERIOD = (0.5, 4.0, 30.0), 10.0


def senders(store, count=None):
    return SourceActivity.build(store.src[:count], store.time[:count], SCALES, PERIOD)


def by_hand(store, u, now):
    past = [t for a, t in zip(store.src.tolist(), store.time.tolist(), strict=True) if a == u and t < now]
    fades = [sum(math.exp(-(now - t) / scale) for t in past) / scale for scale in SCALES]
    return [1 / PERIOD, *fades, len(past) / PERIOD]


@settings(max_examples=25)
@given(store=event_streams(min_events=1), at=st.integers(0, 59), later=st.sampled_from([0.0, 0.5, 40.0]))
def test_a_rate_is_the_sum_over_strictly_earlier_events_of_the_source(store, at, later):
    """For all streams, sources and times: every kernel equals brute force."""
    now = float(store.time[at % len(store)]) + later
    nodes = torch.arange(store.num_nodes + 2)  # two are strangers
    found = senders(store).kernels(nodes, torch.full((len(nodes),), now, dtype=torch.float64))
    expected = torch.tensor([by_hand(store, u, now) for u in nodes.tolist()], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_closed_form_equals_the_numerical_integral():
    """The integral of all rates in closed form equals a sum over small steps."""
    store = sample_store()
    among, start, end = senders(store), float(store.time[0]), float(store.time[-1])
    grid = torch.linspace(start, end, 40_001, dtype=torch.float64)
    middle = (grid[1:] + grid[:-1]) / 2
    sources = store.src.unique()
    summed = (
        sum(among.kernels(u.expand(len(middle)).contiguous(), middle).sum(0) for u in sources)
        * (end - start)
        / len(middle)
    )
    closed = among.integrate_kernels(store.time, start, end, len(sources))
    torch.testing.assert_close(summed, closed, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_fit_satisfies_the_optimality_conditions(seed):
    """The gradient is 0 where a weight is above 0, and at most 0 elsewhere."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(300, 6, generator=rng, dtype=torch.float64) ** 4 + 1e-3
    w = maximize_likelihood(x)
    slope = (x / (x @ w)[:, None]).mean(0) - 1
    assert float(w.min()) >= 0
    assert float(w.sum()) == pytest.approx(1)
    assert float(slope.max()) < 1e-7
    assert float((w * slope).abs().max()) < 1e-7


def test_expected_events_equal_events_in_any_unit_of_time():
    """Expected events = events at the optimum; in minutes instead of seconds every rate is 60 times as high."""
    store = sample_store()
    among = senders(store)
    found = fit_activity(among, store.src, store.time)
    expected = among.integrate_kernels(
        store.time, float(store.time[0]), float(store.time[-1]), len(store.src.unique())
    )
    assert float(expected @ torch.tensor(found.weights, dtype=torch.float64)) == pytest.approx(len(store))
    scales, time = tuple(scale / 60 for scale in SCALES), store.time / 60
    other = SourceActivity.build(store.src, time, scales, PERIOD / 60)
    again = fit_activity(other, store.src, time)
    rates = found.log_rate(among, store.src, store.time), again.log_rate(other, store.src, time)
    torch.testing.assert_close(rates[0] + math.log(60), rates[1], rtol=1e-6, atol=1e-6)


def test_events_of_one_instant_give_a_constant_rate():
    """No division by zero: all sources have the same rate."""
    src, time = torch.tensor([0, 1, 1]), torch.full((3,), 5.0, dtype=torch.float64)
    among = SourceActivity.build(src, time, SCALES, PERIOD)
    assert fit_activity(among, src, time).log_rate(among, src, time).unique().numel() == 1


def test_the_activity_weight_never_hurts_and_scales_with_the_score():
    """0 if the rate does not help, else a better AP; ten times the score gives ten times the weight."""
    rng = torch.Generator().manual_seed(0)
    label = (torch.arange(800) < 400).float()
    group = torch.arange(400).repeat(2)
    score, rate = (torch.randn(800, generator=rng).double() + label for _ in range(2))
    weight = choose_activity_weight(score, rate, label, group)
    assert 0.3 < weight < 3
    assert link_metrics(score + weight * rate, label, group)["ap"] > link_metrics(score, label, group)["ap"]
    assert choose_activity_weight(10 * score, rate, label, group) == pytest.approx(10 * weight)
    assert choose_activity_weight(score, torch.zeros(800).double(), label, group) == 0
    assert choose_activity_weight(score, -rate, label, group) == 0
