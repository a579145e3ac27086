"""Noise of the robustness study: the same for every model, strictly before the query, and never in the queries."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.history.view import NeighborRequest, PairBatch
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.studies.noise import OverwrittenHistoryStream, insert_noise
from dygmamba.tasks.link import build_link_set
from streams import split_stream

STORE = generate_stream(GeneratorConfig(nodes=30, events=400, communities=3))


@given(st.floats(0, 1), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_inserted_noise_keeps_all_events_and_queries(rate, seed):
    clean = split_stream(STORE)
    noisy, evaluation_set = insert_noise(clean, rate, seed), build_link_set(STORE, clean.split, "test")
    noisy_set = noisy.evaluation_set(evaluation_set)
    store = noisy.stream.store
    assert len(store) == len(STORE) + round(rate * len(STORE))
    assert bool((store.time.diff() >= 0).all())
    for name in ("src", "dst", "time"):
        assert torch.equal(getattr(store, name)[noisy.row], getattr(STORE, name))
    assert torch.equal(noisy_set.pairs.time, evaluation_set.pairs.time)
    periods = torch.cat([noisy.stream.split.train, noisy.stream.split.val, noisy.stream.split.test])
    assert len(periods.unique()) == len(periods)


def test_a_rate_of_zero_changes_no_score_and_noise_reaches_a_memory():
    clean = split_stream(STORE)
    evaluation_set = build_link_set(STORE, clean.split, "test")
    spec = find_model("recency")
    facts = DatasetFacts.of(STORE, clean.split.train)

    def scores(rate):
        noisy = insert_noise(clean, rate, 0)
        return score_evaluation_set(
            spec.build(spec.config(), facts), noisy.stream, noisy.evaluation_set(evaluation_set)
        )

    truth = score_evaluation_set(spec.build(spec.config(), facts), clean, evaluation_set)
    assert torch.equal(scores(0.0), truth)
    assert not torch.equal(scores(0.5), truth)


def test_released_noise_overwrites_a_share_before_the_history_is_cut():
    clean = split_stream(STORE)
    test = clean.split.test
    pairs = PairBatch.from_pairs(STORE.src[test], STORE.dst[test], STORE.time[test])
    full = NeighborRequest((len(STORE),))
    (truth,) = clean.view(pairs, (full,))[full]
    stream = OverwrittenHistoryStream(STORE, clean.split, clean.device, rate=0.3, seed=0)
    (noisy,) = stream.view(pairs, (full,))[full]
    assert torch.equal(noisy.length, truth.length)
    for row in range(0, len(truth.length), 7):
        n = int(truth.length[row])
        before, after = (
            sorted(zip(s.time[row, :n].tolist(), s.node[row, :n].tolist(), strict=True))
            for s in (truth, noisy)
        )
        lost = sum(entry not in after for entry in before)
        assert lost <= int(0.3 * n)
    short = NeighborRequest((4,))
    (cut,) = stream.view(pairs, (short,))[short]
    last = noisy.length.clamp(max=4)
    assert torch.equal(cut.length, last)
    assert bool((cut.time.diff(dim=1) >= 0)[cut.mask[:, 1:]].all())
