"""Measured forgetting of scorers whose forgetting is known exactly."""

import json
import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from dygmamba.core.errors import ConfigError, EventError, FileError
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.generate.process import LAWS
from dygmamba.data.generate.stream import GeneratorConfig, forgetting_law, generate_stream
from dygmamba.data.storage.dataset import Dataset, Origin
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.forgetting import (
    compute_half_life,
    compute_retention,
    erase_meetings,
    find_known_law,
    find_meetings,
    load_forgetting,
    measure_forgetting,
    move_meetings,
    save_forgetting,
)
from dygmamba.history.view import NeighborRequest
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, Heuristic
from dygmamba.models.configs import DyGMambaConfig
from raising import raises
from streams import split_stream

CONFIG = GeneratorConfig(events=6_000)


@pytest.fixture(scope="module")
def store():
    return generate_stream(CONFIG)


@pytest.fixture(scope="module")
def stream(store):
    return split_stream(store)


class LawScorer(Heuristic):
    """The logit of a perfect classifier: log of n P(v | u, t), P as the generator defines it."""

    requests = (NeighborRequest((23,)),)
    stateful = elastic = False

    def __init__(self, law, novelty=0.5, noise=0.05, factor=240.0):
        self.law, self.novelty, self.noise, self.factor = law, novelty, noise, factor

    def observe(self, events):
        pass

    def reset(self):
        pass

    def __call__(self, view):
        (recent,) = view[self.requests[0]]
        past = recent[view.pairs.src_row]
        left = torch.from_numpy(self.law(past.age.double().numpy())) * past.mask
        own = (left * (past.node == view.pairs.dst[:, None])).sum(dim=1)
        popular = 0.01 + 0.03 * (view.pairs.dst % 7 == 0)
        chosen = (own + self.novelty * popular) / (self.novelty + left.sum(dim=1))
        return torch.log(self.factor * (self.noise / 239 + (1 - self.noise) * chosen))


@pytest.fixture(scope="module")
def measured(stream):
    """What is measured of a perfect classifier, by the name of the law; each law once."""

    @cache
    def measure(name):
        law = forgetting_law(replace(CONFIG, law=name))
        return measure_forgetting(LawScorer(law), stream, (name, law))

    return measure


@pytest.mark.parametrize("name", sorted(LAWS))
def test_the_probe_recovers_the_law_of_a_perfect_classifier(measured, name):
    """For all laws R: if the logit is log n P(v | u, t), the fitted return weight is R, scaled at the first span."""
    found = measured(name)
    assert found.closeness is not None
    assert found.closeness.max_gap < 0.015
    assert found.retention is None
    if name == "never":
        assert np.ptp(found.learned) < 1e-4  # a scorer that ignores time yields a flat curve
        assert found.closeness.half_life is None
    else:
        assert found.closeness.correlation > 0.999
        assert found.closeness.half_life == pytest.approx(found.closeness.true_half_life, rel=0.03)


def test_the_probe_needs_no_knowledge_of_the_negatives(stream, measured):
    """For all factors k: logits shifted by log k (more negatives, a smaller pool) give the same curve."""
    other = measure_forgetting(LawScorer(forgetting_law(CONFIG), factor=3.0), stream)
    assert measured(CONFIG.law).learned == pytest.approx(other.learned, abs=2e-3)
    assert other.closeness is None


@pytest.fixture(scope="module")
def meetings(stream):
    store, split = stream.store, stream.split
    node, time = store.src[split.test], store.time[split.test]
    return find_meetings(stream.index, node, time, ~split.new_nodes, 23)


def test_moving_a_meeting_swaps_two_neighbors_and_nothing_else(meetings):
    """For all histories and slots: u keeps times and neighbors, v is in the slot, and the history of v is sorted."""
    past = torch.arange(len(meetings)).repeat(2)
    length = meetings.src.length[past]
    slot = torch.cat([torch.zeros(len(meetings), dtype=torch.int64), length[: len(meetings)] - 1])
    src, dst = move_meetings(meetings, past, slot)
    before = meetings.src[past]
    assert torch.equal(src.time, before.time)
    assert torch.equal(src.node.sort(dim=1).values, before.node.sort(dim=1).values)
    row = torch.arange(len(past))
    assert torch.equal(src.node[row, slot].long(), dst.query_node)
    assert bool(((dst.time.diff(dim=1) >= 0) | ~dst.mask[:, 1:]).all())
    met = dst.mask & (dst.node == src.query_node[:, None])
    assert torch.equal(met.sum(dim=1), torch.ones_like(slot))
    assert torch.equal(dst.time[met], src.time[row, slot])
    same, _ = move_meetings(meetings, past[: len(meetings)], meetings.src_slot)
    assert torch.equal(same.node, meetings.src.node)


def test_erasing_a_meeting_leaves_no_event_of_the_pair(meetings):
    """For all histories: v is not in that of u, u is not in that of v, and the times are the same."""
    src, dst = erase_meetings(meetings)
    for seq, other, before in ((src, dst, meetings.src), (dst, src, meetings.dst)):
        assert not bool((seq.mask & (seq.node == other.query_node[:, None])).any())
        assert torch.equal(seq.time, before.time)
        assert int((seq.node != before.node).sum()) == len(meetings)


def scorer_with(step):
    torch.manual_seed(0)
    config = DyGMambaConfig(length=8, width=4, time_dim=8, blocks=2, states=3, out=8, step=step)
    return find_model("dyg-mamba").build(config, DatasetFacts(10, 0, 0, gap_mean=60.0))


@pytest.mark.parametrize("step", ["timespan", "absolute", "linear"])
def test_retention_is_the_exponential_of_the_step(step):
    """exp(Delta(s) A) lies in (0, 1], falls with the span, and its median is that of the blocks' own formula."""
    scorer, spans = scorer_with(step), torch.logspace(1, 4, 6, dtype=torch.float64)
    kept = compute_retention(scorer, spans, reach=5_000.0, length=8)
    assert kept is not None
    for curve in kept.values():
        assert (np.diff(curve) <= 0).all()
        assert curve[-1] < curve[0]
        assert 0 <= min(curve) <= max(curve) <= 1
    share = spans / 60 if step == "absolute" else spans / 5_000
    values = []
    for block in scorer.encoder.encoders.stack.blocks:
        path = block.paths[0]
        w1, w2 = path.step.log_w1.exp().double(), path.step.log_w2.exp().double()
        s = (share + 1 / 8)[:, None]
        delta = w1 * w2 * s if step == "linear" else w1 * (1 - torch.exp(-w2 * s))
        values.append(torch.exp(-delta[:, :, None] * path.log_A.exp()).flatten(1))
    expected = torch.cat(values, dim=1).quantile(0.5, dim=1)
    assert kept["0.5"] == pytest.approx(expected.tolist(), rel=1e-4)


def test_a_step_without_time_gaps_has_no_retention_curve():
    """The step of the original Mamba depends on the token, so it has no curve over spans."""
    assert compute_retention(scorer_with("content"), torch.ones(2, dtype=torch.float64), 1.0, 8) is None


def test_half_life_is_exact_for_an_exponential():
    """For R = 2^(-s/h): h, whatever the spans; None for a curve that never halves."""
    span = np.geomspace(100, 40_000, 6)
    assert compute_half_life(span, np.exp2(-span / 7_200)) == pytest.approx(7_200)
    assert compute_half_life(span, np.full(6, 0.7)) is None


def test_the_law_is_known_for_the_default_generated_stream_only():
    """Another generated stream, or any other dataset, has none."""
    law = find_known_law(open_dataset("generated"))
    assert law is not None
    assert law[0] == GeneratorConfig().law
    assert law[1](np.array([0.0, 7_200.0])) == pytest.approx([1.0, 0.5])
    for seed, kind in ((1, "generated"), (0, "csv")):
        store = generate_stream(GeneratorConfig(seed=seed))
        assert (
            find_known_law(Dataset.from_events("x", store, NodeIds.identity(240), Origin(format=kind)))
            is None
        )


def test_a_stream_that_is_too_short_is_refused(store):
    """Without repeated pairs there is nothing to measure; nor for a model without a sequence of neighbors."""
    short = store[:40]
    with raises("too-few-events", EventError):
        measure_forgetting(LawScorer(forgetting_law(CONFIG)), split_stream(short))
    spec = find_model("popularity")
    scorer = spec.build(spec.config(), DatasetFacts.of(store))
    with raises("model-without-window", ConfigError):
        measure_forgetting(scorer, split_stream(store))


def test_curves_are_kept_until_the_weights_change(measured, tmp_path):
    """Saved curves are loaded unless there is a newer checkpoint; a damaged file is an error."""
    run, found = RunDirectory(tmp_path), measured("exponential")
    assert load_forgetting(run) is None
    save_forgetting(run, found)
    assert load_forgetting(run) == found
    run.best.parent.mkdir()
    run.best.touch()
    later = (tmp_path / "forgetting.json").stat().st_mtime + 1
    os.utime(run.best, (later, later))
    assert load_forgetting(run) is None
    run.best.unlink()
    for damaged in (json.dumps({"span": []}), "[" * 100_000):
        (tmp_path / "forgetting.json").write_text(damaged)
        with raises("damaged-forgetting", FileError):
            load_forgetting(run)
