"""Training negatives: sampled from the training period, outside of the event's window."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract_cases import sample_store
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.splits import Split
from dygmamba.tasks.link import LinkTask, build_link_set
from dygmamba.tasks.training_negatives import TRAINING_NEGATIVES, WINDOW_EVENTS
from raising import raises
from strategies import event_streams

CPU = torch.device("cpu")


def trained_on(store, count=None):
    ids = torch.arange(len(store))
    count = len(store) if count is None else count
    nobody = torch.zeros(store.num_nodes, dtype=torch.bool)
    return Split(ids[:count], ids[count:], ids[:0], nobody)


def asked(kind, store, split, seed=0, epoch=0):
    """Source and destination of the negative of each training event."""
    negatives = TRAINING_NEGATIVES[kind].create(store, split, CPU)
    pairs = negatives.build_queries(store.select(split.train), negatives.draw_negatives(seed, epoch))
    k = len(split.train)
    assert torch.equal(pairs.src[:k], store.src[split.train])
    assert torch.equal(pairs.dst[:k], store.dst[split.train])
    assert torch.equal(pairs.time, store.time[split.train].repeat(2))
    assert pairs.label.tolist() == [1.0] * k + [0.0] * k
    assert pairs.group.tolist() == [*range(k), *range(k)]
    return pairs.src[k:], pairs.dst[k:]


@settings(max_examples=40)
@given(store=event_streams(min_events=2), seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_a_negative_is_a_training_pair_or_keeps_its_source(store, seed, epoch):
    """For all streams: the pair of a training event, or the event's source with a training destination."""
    split = trained_on(store)
    known = set(zip(store.src.tolist(), store.dst.tolist(), strict=True))
    src, dst = asked("historical", store, split, seed, epoch)
    for k, (u, v) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        assert (u, v) in known or (u == int(store.src[k]) and v in store.dst.tolist())


def long_store():
    return sample_store(3 * WINDOW_EVENTS, nodes=30)


def test_a_negative_does_not_occur_in_the_events_window():
    """With enough pairs: none that occurs in the same window of 200 training events."""
    store = long_store()
    src, dst = asked("historical", store, trained_on(store))
    for cell in torch.arange(len(store)).split(WINDOW_EVENTS):
        here = set(zip(store.src[cell].tolist(), store.dst[cell].tolist(), strict=True))
        drawn = zip(src[cell].tolist(), dst[cell].tolist(), store.src[cell].tolist(), strict=True)
        other = [(u, v) for u, v, own in drawn if u != own]
        assert len(other) > WINDOW_EVENTS / 2
        assert not here & set(other)


def test_mixed_has_one_of_each_kind_in_two_epochs():
    """Every event gets a random destination in one epoch and another pair in the other."""
    store = long_store()
    split = trained_on(store)
    for epoch in (0, 5):
        sources = torch.stack([asked("mixed", store, split, 0, epoch + k)[0] for k in (0, 1)])
        own = sources == store.src
        assert bool(own[0].logical_or(own[1]).all())
        turn = (torch.arange(len(store)) + epoch) % 2 == 0
        assert bool(own[0][turn].all())
        assert bool(own[1][~turn].all())
        assert float(own.float().mean()) < 0.6


@pytest.mark.parametrize("kind", TRAINING_NEGATIVES)
def test_negatives_are_a_function_of_seed_and_epoch_of_every_kind(kind):
    """Equal for equal arguments, different for another seed or epoch, and only training nodes."""
    store = long_store()
    split = trained_on(store, 2 * WINDOW_EVENTS)
    negatives = TRAINING_NEGATIVES[kind].create(store, split, CPU)
    first = negatives.draw_negatives(0, 0)
    assert torch.equal(first, TRAINING_NEGATIVES[kind].create(store, split, CPU).draw_negatives(0, 0))
    assert not torch.equal(first, negatives.draw_negatives(0, 1))
    assert not torch.equal(first, negatives.draw_negatives(1, 0))
    src, dst = asked(kind, store, split)
    assert set(src.tolist()) <= set(store.src[split.train].tolist())
    assert set(dst.tolist()) <= set(store.dst[split.train].tolist())


def test_unknown_train_negatives_are_an_error():
    """The message lists the kinds there are."""
    from dygmamba.config import build_config
    from dygmamba.engine.fit_config import LinkFitConfig

    with raises("setting-of-wrong-type", ConfigError):
        build_config(LinkFitConfig, {"train_negatives": "hard"})


def test_validation_matches_the_training_negatives():
    """Random negatives as published, historical ones, or both with each event once."""
    store = long_store()
    split = trained_on(store, 2 * WINDOW_EVENTS)
    evaluation_sets = {
        kind: LinkTask.create(store, split, CPU, kind).validation for kind in TRAINING_NEGATIVES
    }
    for kind in ("random", "historical"):
        assert torch.equal(
            evaluation_sets[kind].pairs.node, build_link_set(store, split, "val", strategy=kind).pairs.node
        )
    k, mixed = len(split.val), evaluation_sets["mixed"]
    parts = [mixed.pairs.src[a : a + k] for a in (0, k, 2 * k)]
    assert torch.equal(parts[0], store.src[split.val])
    assert torch.equal(parts[1], evaluation_sets["random"].pairs.src[k:])
    assert torch.equal(parts[2], evaluation_sets["historical"].pairs.src[k:])
    assert mixed.pairs.label.tolist() == [1.0] * k + [0.0] * (2 * k)
    assert torch.equal(mixed.event_index, torch.arange(k).repeat(3))
    assert torch.equal(mixed.pairs.time, store.time[split.val].repeat(3))
