"""The contract over the registry and every named variant of DyG-Mamba, and what else trainable models keep.

The same through evaluation, prediction and training is `test_contract_walk.py` and `test_contract_memory.py`.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract_cases import (
    BLENDED,
    COLUMNED,
    DRAWN,
    TINY,
    TRAINABLE,
    TYPED,
    UNTRAINED,
    label_of,
    sample_store,
)
from contract_cases import build as fresh
from dygmamba.config import build_config, load_ablations
from dygmamba.data.events.event_store import EventStore
from dygmamba.history.draws import Draws
from dygmamba.history.index import Index, gather_view
from dygmamba.history.transitions import TransitionFeatures
from dygmamba.history.view import PairBatch
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, Scorer
from dygmamba.testing import CHECKS, CheckCase, build_case, list_checks, sample_queries, sample_stream
from strategies import event_streams

VARIANTS = [*((name, {}) for name in TRAINABLE), BLENDED, TYPED, COLUMNED, *DRAWN]
for ablation in load_ablations().values():
    changed = {"model": "dyg-mamba"} | ablation
    VARIANTS.append((changed.pop("model"), changed))
NAMES = [
    *TRAINABLE,
    "blend",
    "event-types",
    "columns",
    *(f"{name}-{more['sampling']}" for name, more in DRAWN),
    *load_ablations(),
]
DRAWS = Draws.from_seed(5)


@pytest.fixture(params=VARIANTS, ids=NAMES)
def variant(request):
    """A model's name and settings."""
    return request.param


def build(variant, store):
    model = fresh(variant, store)
    if model.stateful:  # a memory of three batches, so that its parts are at work in every test
        for events in store.batches(torch.arange(min(len(store), 18)), 6):
            model.observe(events)
        score(model, store, PairBatch.from_pairs(store.src[:1], store.dst[:1], store.time[:1]))
    return model


def queries(store, count=12, seed=1):
    rng = torch.Generator().manual_seed(seed)
    src, dst = (torch.randint(store.num_nodes, (count,), generator=rng) for _ in range(2))
    at = torch.randint(len(store), (count,), generator=rng)
    return PairBatch.from_pairs(src, dst, store.time[at])


def score(model, store, pairs):
    with torch.no_grad():
        return model(gather_view(Index(store), store.features, pairs, model.requests, DRAWS))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_variant_keeps_the_contract(variant, check):
    """Scores that must be equal are so to 1e-6."""
    result = check.run([build_check_case(variant)])
    assert result.passed, result.detail
    assert (result.value or 0) <= 1e-6


@pytest.mark.parametrize("case", UNTRAINED, ids=label_of)
@pytest.mark.parametrize("check", list_checks(trainable=False), ids=lambda check: check.name)
def test_every_heuristic_keeps_the_contract(case, check):
    result = check.run([build_check_case(case)])
    assert result.passed, result.detail


@dataclass(frozen=True, slots=True)
class TransitionsUntilNow(TransitionFeatures):
    """Leaks: events of the query's own time are counted too."""

    def compute(self, index, pairs, src, dst, time):
        return TransitionFeatures.compute(self, index, pairs, src, dst, np.nextafter(time, np.inf))


class UnreadFeatures(Scorer):
    """Requests features and reads none, as trees that split on others."""

    def __init__(self, request):
        self.requests = (request,)

    def __call__(self, view):
        return torch.zeros(len(view.pairs))


@pytest.mark.parametrize("kind", [TransitionFeatures, TransitionsUntilNow])
def test_a_leak_is_found_in_a_feature_that_no_tree_splits_on(kind):
    """For a feature that the score does not depend on yet: it must be causal all the same."""
    store = sample_stream()
    case = CheckCase(lambda: UnreadFeatures(kind((1.0,))), store, sample_queries(store))
    holds = {check.name: check.run([case]).passed for check in list_checks(trainable=False)}
    assert holds == dict.fromkeys(holds, True) | {"causal": kind is TransitionFeatures}


def build_check_case(variant):
    (name, more), store = variant, sample_stream()
    spec = find_model(name)
    config = build_config(spec.config, TINY.get(name, {}) | more)
    return build_case(spec, config, store, DatasetFacts.of(store))


def test_shared_rows_give_the_score_of_separate_rows(variant):
    """Pairs that point at one row for their common source score as if each had its own."""
    store = sample_store()
    model = build(variant, store)
    time = store.time[-1:].expand(4)
    separate = PairBatch.from_pairs(torch.tensor([1, 1, 1, 1]), torch.tensor([2, 3, 4, 6]), time)
    rows = torch.tensor([0, 0, 0, 0])
    shared = replace(
        separate,
        node=torch.tensor([1, 2, 3, 4, 6]),
        when=store.time[-1:].expand(5),
        src_row=rows,
        dst_row=torch.arange(1, 5),
    )
    torch.testing.assert_close(score(model, store, shared), score(model, store, separate), rtol=0, atol=1e-6)


def test_an_elastic_model_may_be_asked_for_less(variant):
    """Where a model says so, a look-up just as long as the longest history gives the same scores."""
    store = sample_store(events=8)
    model, pairs = build(variant, store), queries(store, 8)
    if not model.elastic:
        pytest.skip("reads sequences of one length")
    index = Index(store)
    longest = int(index.past(pairs.node, pairs.when)[1].max())
    assert any(request.cut(longest) != request for request in model.requests)
    with torch.no_grad():
        cut = model(gather_view(index, store.features, pairs, model.requests, length=longest))
    torch.testing.assert_close(cut, score(model, store, pairs), rtol=1e-5, atol=1e-5)


def test_features_of_unseen_events_do_not_leak(variant):
    """NaN in the features of all events and of all other nodes, and unknown types, never reach a node without past."""
    store = sample_store()
    model = build(variant, store)
    first = PairBatch.from_pairs(torch.tensor([6]), torch.tensor([6]), store.time[:1])
    node = store.features.node.clone()
    node[:6] = torch.nan
    edge, codes = (
        torch.full_like(store.features.edge, torch.nan),
        torch.full_like(store.features.codes, 10**6),
    )
    poisoned = replace(store, features=replace(store.features, node=node, edge=edge, codes=codes))
    torch.testing.assert_close(score(model, poisoned, first), score(model, store, first))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_scores_as_a_cpu_does(variant):
    """The same weights and memory give the same scores on both devices to 1e-4."""
    store = sample_store()
    model, pairs = build(variant, store), queries(store)
    here = score(model, store, pairs)
    there, on = model.cuda(), store.to("cuda")
    asked = PairBatch.from_pairs(pairs.src.cuda(), pairs.dst.cuda(), pairs.time.cuda())
    with torch.no_grad():
        index = Index(store).to("cuda")
        draws = Draws.from_seed(5, device="cuda")
        scores = there(gather_view(index, on.features, asked, there.requests, draws)).cpu()
    torch.testing.assert_close(scores, here, rtol=1e-4, atol=1e-4)


@settings(max_examples=25)
@given(store=event_streams(min_events=1, edge_dim=2), length=st.sampled_from([1, 2, 5]))
def test_any_stream_gets_finite_scores(store, length):
    """For all streams (one event, all-equal times, self-loops) and lengths down to 1: finite scores."""
    model = build(("dyg-mamba", {"length": length}), store)
    pairs = PairBatch.from_pairs(store.src, store.dst, store.time)
    assert bool(torch.isfinite(score(model, store, pairs)).all())


@pytest.mark.parametrize("step", ["timespan", "linear", "logarithmic", "sigmoid", "cosine"])
def test_the_unit_of_time_does_not_matter_where_the_step_is_relative(step):
    """Without the absolute time channel, seconds or minutes give the same scores."""
    store = sample_store()
    variant = ("dyg-mamba", {"step": step, "channels": ["node", "edge", "cooccurrence"]})
    model = build(variant, store)
    minutes = EventStore.from_columns(
        store.src, store.dst, store.time / 64, num_nodes=store.num_nodes, features=store.features
    )
    pairs = queries(store)
    scaled = PairBatch.from_pairs(pairs.src, pairs.dst, pairs.time / 64)
    torch.testing.assert_close(score(model, minutes, scaled), score(model, store, pairs), rtol=0, atol=1e-6)
