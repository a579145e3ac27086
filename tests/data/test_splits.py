"""Splits by time: disjoint, ordered, complete; of own data nothing is removed, of benchmarks what was published."""

import numpy as np
import torch
from hypothesis import given

from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import PUBLISHED_SPLIT, TIME_SPLIT, chronological_split
from dygmamba.data.storage.library import open_dataset
from raising import raises
from strategies import event_streams


@given(store=event_streams(min_events=1))
def test_new_nodes_are_exactly_those_training_never_sees(store):
    """A present node is new if and only if no training event touches it."""
    split = chronological_split(store)
    seen = set(store.src[split.train].tolist()) | set(store.dst[split.train].tolist())
    present = set(store.src.tolist()) | set(store.dst.tolist())
    assert set(split.new_nodes.nonzero()[:, 0].tolist()) == present - seen


@given(store=event_streams(min_events=1))
def test_of_own_data_nothing_is_removed(store):
    """Every event is in one period, cut where the benchmark is, and a node is new if it has no event in training."""
    split, benchmark = TIME_SPLIT.split(store), PUBLISHED_SPLIT.split(store)
    assert torch.equal(torch.cat([split.train, split.val, split.test]), torch.arange(len(store)))
    assert torch.equal(split.val, benchmark.val)
    assert torch.equal(split.test, benchmark.test)
    first = {}
    for event, pair in enumerate(zip(store.src.tolist(), store.dst.tolist(), strict=True)):
        for node in pair:
            first.setdefault(node, event)
    late = {node for node, event in first.items() if event >= len(split.train)}
    assert set(split.new_nodes.nonzero()[:, 0].tolist()) == late


@given(store=event_streams(min_events=1))
def test_counts_are_those_of_the_split(store):
    """For both protocols, against a count event by event; the sentence has the numbers."""
    for rule in (TIME_SPLIT, PUBLISHED_SPLIT):
        split = rule.split(store)
        counts, new = split.count(store), set(split.new_nodes.nonzero()[:, 0].tolist())
        touched = {
            name: sum(
                bool({int(store.src[e]), int(store.dst[e])} & new) for e in getattr(split, name).tolist()
            )
            for name in ("val", "test")
        }
        assert (counts.val_new, counts.test_new, counts.new_nodes) == (*touched.values(), len(new))
        assert counts.train + counts.removed + counts.val + counts.test == len(store)
        assert ("none removed" in str(counts)) == (counts.removed == 0)
        assert rule is PUBLISHED_SPLIT or counts.removed == 0
        assert ("every node has a training event" in str(counts)) == (not new)


@given(store=event_streams(min_events=1))
def test_a_shift_of_all_times_leaves_the_split_alone(store):
    """The split depends on time order and proportions only; a whole-number shift moves nothing."""
    shifted = EventStore.from_columns(store.src, store.dst, store.time + 64.0, num_nodes=store.num_nodes)
    assert chronological_split(store).digest == chronological_split(shifted).digest


def test_a_stream_cut_elsewhere_has_another_digest():
    """Also where no node is held out and the three periods are the same events in the same order."""
    src = torch.arange(8).repeat(30)
    store = EventStore.from_columns(src, (src + 1) % 8, torch.arange(240).double(), num_nodes=8)
    splits = [chronological_split(store, *shares, 0.0) for shares in ((0.15, 0.15), (0.2, 0.2), (0.2, 0.15))]
    assert len({split.digest for split in splits}) == 3


def test_an_empty_stream_cannot_be_split():
    """No events, no split, one clear sentence."""
    nothing = torch.zeros(0, dtype=torch.int64)
    with raises("no-events", EventError):
        chronological_split(EventStore.from_columns(nothing, nothing, nothing))


def test_uci_sizes_are_the_published_ones(real_data):
    """34,352 / 8,975 / 8,976 events, 5,002 / 5,932 with a new node, 529 nodes unseen."""
    store = open_dataset("uci", real_data).store
    split = chronological_split(store)
    assert [len(split.train), len(split.val), len(split.test)] == [34352, 8975, 8976]
    new = [len(split.touching_new_nodes(store, part)) for part in (split.val, split.test)]
    assert new == [5002, 5932]
    assert int(np.count_nonzero(split.new_nodes)) == 529
