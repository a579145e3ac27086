"""Simulation of known sampling odds: the exact odds make the true logits optimal, the mean odds of a period do not."""

import pytest
import torch

from dygmamba.lab import known_odds
from dygmamba.lab.known_odds import (
    NEGATIVES,
    STATES,
    STREAMS,
    build_table,
    fit_logit_table,
    run_simulation,
    simulate_stream,
)
from dygmamba.tasks.link import LinkTask

EXACT, FITTED = "earlier pairs", "earlier pairs, fitted shares (`mixed-odds`)"


@pytest.fixture(scope="module", params=STREAMS)
def stream(request):
    return simulate_stream(STREAMS[request.param], 0)


def compute_slopes(stream, kind, epochs=8):
    """Slope of the training loss at the true logits, negated, in standard deviations; by state."""
    task = LinkTask(NEGATIVES[kind](stream), None)
    rows = torch.arange(stream.config.sources, len(stream.store))
    total = torch.zeros(len(rows), len(STATES), dtype=torch.float64)
    truth = torch.tensor(stream.config.logits)
    for epoch in range(epochs):
        pairs = task.build_queries(stream.store.select(rows), task.draw_negatives(0, epoch)[rows])
        state, offset = stream.find_states(pairs), task.offset(pairs)
        logit = (truth[state] + (0 if offset is None else offset)).requires_grad_()
        (slope,) = torch.autograd.grad(len(logit) * task.loss(logit, pairs.label), logit)
        total.index_put_((pairs.group, state), -slope.double(), accumulate=True)
    # given the events before it, the mean of each event's slope is 0: these are sums of martingale differences
    return total.sum(dim=0) / total.square().sum(dim=0).sqrt()


@pytest.mark.parametrize("kind", ["`random`", EXACT, FITTED])
def test_true_logits_are_optimal_with_exact_odds(stream, kind):
    """For all streams and states: log p(v | u, earlier events) + log m has slope 0, within four deviations."""
    assert float(compute_slopes(stream, kind).abs().max()) < 4


def test_true_logits_are_not_optimal_without_exact_odds():
    """With half repeats: odds that depend on later events overstate new pairs, mean odds repeated ones too."""
    stream = simulate_stream(STREAMS["half repeats"], 0)
    never, _, last = compute_slopes(stream, "`mixed`, mean odds of the period").tolist()
    assert never > 6
    assert last > 10
    never, _, last = compute_slopes(stream, "any training pair").tolist()
    assert never > 6
    assert abs(last) < 4


def test_states_and_shares_are_those_of_the_stream():
    """By hand: the last destination of a source strictly before the event; shares sum to one."""
    stream = simulate_stream(STREAMS["bursty"], 1)
    src, dst = stream.store.src.tolist(), stream.store.dst.tolist()
    last, met, expected = {}, set(), []
    for pair in zip(src, dst, strict=True):
        expected.append((pair in met) + (last.get(pair[0]) == pair[1]))
        last[pair[0]] = pair[1]
        met.add(pair)
    rows = torch.arange(len(src))
    task = LinkTask(NEGATIVES["`random`"](stream), None)
    pairs = task.build_queries(stream.store.select(rows), task.draw_negatives(0, 0))
    first = stream.config.sources  # before, a source may have no last destination
    assert stream.find_states(pairs)[first : len(src)].tolist() == expected[first:]
    share = stream.shares.share.sum(dim=1)
    torch.testing.assert_close(share, torch.ones_like(share))


def test_logit_table_is_that_of_the_counts():
    """Without offsets the logit of each index is that of its mean label; a constant offset is subtracted."""
    index = torch.tensor([0, 0, 0, 1, 1])
    label = torch.tensor([1, 0, 0, 1, 0], dtype=torch.float64)
    offset = torch.full_like(label, 0.7)
    expected = torch.logit(torch.tensor([1 / 3, 1 / 2], dtype=torch.float64)) - 0.7
    torch.testing.assert_close(fit_logit_table(index, label, offset, 2), expected)


def test_a_small_simulation_is_stored_and_tabulated(tmp_path, monkeypatch):
    """One row per stream and kind of negatives, one column per state."""
    monkeypatch.setattr(known_odds, "STREAMS", {"bursty": STREAMS["bursty"]})
    monkeypatch.setattr(known_odds, "EPOCHS", 2)
    results = run_simulation(seeds=2)
    results.write(tmp_path / "known-odds.json")
    lines = build_table(tmp_path).splitlines()
    assert len(lines) == 2 + len(NEGATIVES)
    assert all(line.count("|") == 3 + len(STATES) for line in lines)
    first = [record.rows[2] for record in results.records if record.model == EXACT]
    error = sum(row["logit"] - row["truth"] for row in first) / 2
    assert f"{round(error, 3) + 0:+.3f} ±" in next(line for line in lines if f"| {EXACT} |" in line)
