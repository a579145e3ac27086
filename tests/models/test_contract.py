"""What every trainable model must keep, over the registry and every named variant of DyG-Mamba, asked view by view.

The same through evaluation, prediction and training is `test_contract_walk.py` and `test_contract_memory.py`.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract_cases import BLENDED, COLUMNED, DRAWN, TRAINABLE, TYPED, sample_store
from contract_cases import build as fresh
from dygmamba.config import load_ablations
from dygmamba.data.events.event_store import EventStore
from dygmamba.models.base import RoundLearner
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.index import NeighborIndex, gather_view
from dygmamba.sampling.view import PairBatch
from padding_cases import widen_hops
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
        return model(gather_view(NeighborIndex.build(store), store.features, pairs, model.requests, DRAWS))


def test_scores_are_finite_and_one_per_pair(variant):
    """Every pair gets one finite logit, whatever its past: none, ties, self-loops, an unknown node."""
    store = sample_store()
    scores = score(build(variant, store), store, queries(store))
    assert scores.shape == (12,)
    assert bool(torch.isfinite(scores).all())


def test_later_events_change_no_score(variant):
    """Causal: events at or after the query time, appended, do not exist for the score."""
    store = sample_store()
    model = build(variant, store)
    cut = 30
    pairs = PairBatch.from_pairs(
        *(queries(store).src, queries(store).dst), store.time[cut].expand(12).contiguous()
    )
    past = store[: int(torch.searchsorted(store.time, store.time[cut]))]
    torch.testing.assert_close(score(model, store, pairs), score(model, past, pairs), rtol=0, atol=1e-6)


def test_a_score_does_not_depend_on_the_batch(variant):
    """Alone, reordered, or among other rows: the same score to 1e-6."""
    store = sample_store()
    model, pairs = build(variant, store), queries(store)
    together = score(model, store, pairs)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    turned = PairBatch.from_pairs(pairs.src[order], pairs.dst[order], pairs.time[order])
    torch.testing.assert_close(score(model, store, turned), together[order], rtol=0, atol=1e-6)
    for row in range(3):
        alone = PairBatch.from_pairs(
            pairs.src[row : row + 1], pairs.dst[row : row + 1], pairs.time[row : row + 1]
        )
        torch.testing.assert_close(score(model, store, alone), together[row : row + 1], rtol=0, atol=1e-6)


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


def test_padding_is_invisible(variant):
    """Wider padding, whatever it holds, changes no score."""
    store = sample_store()
    model, pairs = build(variant, store), queries(store)
    view = gather_view(NeighborIndex.build(store), store.features, pairs, model.requests, DRAWS)
    padded = replace(view, neighbors=tuple(widen_hops(hops) for hops in view.neighbors))
    with torch.no_grad():
        torch.testing.assert_close(model(padded), model(view), rtol=0, atol=1e-6)


def test_an_elastic_model_may_be_asked_for_less(variant):
    """Where a model says so, a look-up just as long as the longest history gives the same scores."""
    store = sample_store(events=8)
    model, pairs = build(variant, store), queries(store, 8)
    if not model.elastic:
        pytest.skip("reads sequences of one length")
    index = NeighborIndex.build(store)
    longest = int(index.past(pairs.node, pairs.when)[1].max())
    short = tuple(request.cut(longest) for request in model.requests)
    assert short != model.requests
    with torch.no_grad():
        cut = model(gather_view(index, store.features, pairs, short))
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
        index = NeighborIndex.build(store).to("cuda")
        draws = Draws.from_seed(5, device="cuda")
        scores = there(gather_view(index, on.features, asked, there.requests, draws)).cpu()
    torch.testing.assert_close(scores, here, rtol=1e-4, atol=1e-4)


def test_gradient_reaches_every_parameter(variant):
    """No dead weight: each trainable parameter gets a gradient that is not all zero."""
    store = sample_store()
    model = build(variant, store).train()
    if isinstance(model, RoundLearner):
        pytest.skip("learns in rounds, not along a gradient")
    view = gather_view(NeighborIndex.build(store), store.features, queries(store, 40), model.requests, DRAWS)
    weight = torch.linspace(0.5, 1.5, 40)
    (model(view) * weight).sum().backward()
    dead = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and not (p.grad is not None and p.grad.any())
    ]
    assert dead == []


def reseeded(variant, store):
    """The same model with other weights and an empty memory."""
    model = fresh(variant, store)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    return model


def test_state_dict_round_trips(variant):
    """A second model with the first one's state dict gives the same scores."""
    store = sample_store()
    first = build(variant, store)
    second = reseeded(variant, store)
    second.load_state_dict(first.state_dict())
    pairs = queries(store)
    assert torch.equal(score(first, store, pairs), score(second, store, pairs))


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
