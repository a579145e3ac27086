"""The generated process follows the law, the communities and the hidden states that its page describes."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from dygmamba.data.generate.process import FRESH, LAWS, NOISE, RETURN
from dygmamba.data.generate.stream import GeneratorConfig, forgetting_law, simulate, simulate_in_blocks

# nothing but returns and uniform fresh partners, so that every probability is a line of arithmetic
PLAIN = GeneratorConfig(
    nodes=60, events=12_000, communities=1, noise=0.0, roam_share=0.0, drift=0.0, popularity=0.0, memory=32
)


class Memory(NamedTuple):
    """What each source remembered when it chose, newest last; padding has an infinite span."""

    span: np.ndarray  # [e m]
    same: np.ndarray  # [e m], the remembered partner is the one chosen
    alone: np.ndarray  # [e m], no other remembered event has this partner


def replay(config, run):
    """Every source's memory at every event, from the visible stream alone."""
    span = np.full((config.events, config.memory), np.inf)
    same, alone = np.zeros(span.shape, bool), np.zeros(span.shape, bool)
    past = [[] for _ in range(config.nodes)]
    for e, (u, v, t) in enumerate(zip(run.src.tolist(), run.dst.tolist(), run.time.tolist(), strict=True)):
        known = [(w, s) for w, s in past[u][-config.memory :] if s < t]
        if known:
            partner, when = np.array([w for w, _ in known]), np.array([s for _, s in known])
            span[e, : len(known)], same[e, : len(known)] = t - when, partner == v
            alone[e, : len(known)] = (partner[:, None] == partner).sum(1) == 1
        past[u].append((v, t))
        past[v].append((u, t))
    return Memory(span, same, alone)


def log_likelihood(config, memory):
    """The sum of log P(v | u, t) under the config's law, for streams without noise and communities."""
    left = forgetting_law(config)(memory.span)
    chance = (left * memory.same).sum(1) + config.novelty / (config.nodes - 1)
    return float(np.log(chance / (config.novelty + left.sum(1))).sum())


@pytest.mark.parametrize("law", sorted(LAWS))
def test_a_law_starts_at_one_and_never_rises(law):
    """R(0) = 1, 0 < R <= 1, R does not rise, and R(half_life) = 1/2 unless nothing is forgotten."""
    config = GeneratorConfig(law=law, half_life=50.0)
    span = np.linspace(0.0, 500.0, 101)
    left = forgetting_law(config)(span)
    assert left[0] == 1.0
    assert ((left > 0) & (left <= 1)).all()
    assert (np.diff(left) <= 0).all()
    assert left[10] == pytest.approx(1.0 if law == "never" else 0.5)


@pytest.mark.parametrize("law", ["exponential", "power"])
def test_returns_follow_the_law(law):
    """Per bin of spans: returns = sum of R(s) / (novelty + sum R), to five standard deviations.

    Only partners remembered once count, so each return has one span. A law of half the half-life fails.
    """
    config = replace(PLAIN, law=law)
    run = simulate(config)
    memory = replay(config, run)
    returned = memory.same & memory.alone & (run.choice == RETURN)[:, None]

    def deviation(claim):
        left = forgetting_law(claim)(memory.span)
        expected = np.where(memory.alone, left / (config.novelty + left.sum(1, keepdims=True)), 0.0)
        bins = np.digitize(memory.span / config.half_life, [0.25, 0.5, 1.0, 1.5, 2.0, 3.0])
        counts = np.bincount(bins[returned], minlength=7)
        means = np.bincount(bins.ravel(), weights=expected.ravel(), minlength=7)
        return np.abs(counts - means) / np.sqrt(means)

    assert deviation(config).max() < 5
    assert deviation(replace(config, half_life=config.half_life / 2)).max() > 10


def test_labels_change_and_show_in_behaviour():
    """Nodes change their label, and a label's events meet strangers at that label's own rate."""
    config = GeneratorConfig()
    run = simulate(config)
    by_node = np.argsort(run.src, kind="stable")
    flips = (np.diff(run.label[by_node]) != 0) & (np.diff(run.src[by_node]) == 0)
    assert 50 < flips.sum() < 0.1 * config.events
    assert abs(run.label.mean() - config.roam_share) < 0.07
    for label, rate in ((0.0, config.noise), (1.0, config.roam_noise)):
        assert abs((run.choice[run.label == label] == NOISE).mean() - rate) < 0.04


def test_fresh_partners_come_from_home_and_popular_seats():
    """Without drift a fresh partner is of the source's community, and few are chosen much more often."""
    config = GeneratorConfig(drift=0.0, popularity=1.0)
    run = simulate(config)
    home = np.full(config.nodes, -1)
    home[run.src] = run.home
    fresh = run.choice == FRESH
    known = fresh & (home[run.dst] >= 0)
    assert (home[run.dst[known]] == run.home[known]).all()
    chosen = np.sort(np.bincount(run.dst[fresh], minlength=config.nodes))[::-1]
    assert chosen[:24].sum() > 3 * fresh.sum() * 24 / config.nodes


def test_drift_moves_nodes_between_communities():
    """Without drift every node keeps its community; with it most leave the one they began in."""

    def moved(drift):
        run = simulate(GeneratorConfig(drift=drift))
        homes = [run.home[run.src == node] for node in np.unique(run.src)]
        return np.mean([len(set(home.tolist())) > 1 for home in homes])

    assert moved(0.0) == 0.0
    assert moved(5e-6) > 0.7


def test_gaps_are_irregular_and_keep_their_mean():
    """Gaps have the mean pace / n and a standard deviation above it; bursts shorten a source's gaps."""
    config = GeneratorConfig(events=50_000, tail=2.5, ties=0.0)
    gaps = np.diff(simulate(config).time)
    assert gaps.mean() == pytest.approx(60.0, rel=0.05)
    assert gaps.std() > 1.3 * gaps.mean()

    def median_gap_of_a_source(burst):
        run = simulate(replace(config, burst=burst))
        order = np.argsort(run.src, kind="stable")
        own = np.diff(run.time[order])[np.diff(run.src[order]) == 0]
        return np.median(own)

    assert median_gap_of_a_source(0.6) < 0.5 * median_gap_of_a_source(0.0)


def test_the_law_changes_at_a_share_of_the_events():
    """Before it the stream is the unchanged one, after it the second law is likelier; blocks change nothing."""
    config = replace(PLAIN, events=6_000, change_at=0.5)
    plain, run = simulate(replace(config, change_at=0.0)), simulate(config)
    half = config.events_before_change
    assert all(np.array_equal(a[:half], b[:half]) for a, b in zip(plain, run, strict=True))
    assert not np.array_equal(plain.dst, run.dst)
    memory = replay(config, run)
    second = replace(config, half_life=config.changed_half_life, novelty=config.changed_novelty)
    for rows, true, false in ((slice(half), config, second), (slice(half, None), second, config)):
        part = Memory(*(column[rows] for column in memory))
        assert log_likelihood(true, part) > log_likelihood(false, part) + 100
    blocks = zip(*simulate_in_blocks(config, 700), strict=True)
    assert all(np.array_equal(np.concatenate(a), b) for a, b in zip(blocks, run, strict=True))
