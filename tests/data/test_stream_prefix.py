"""A stream prefix is recognised by all of its events, and files of earlier versions still open."""

from dataclasses import replace

import pytest
import torch

from dygmamba.data.events import stream_prefix
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.stream_prefix import SAMPLED_EVENTS, StreamPrefix

ROWS, EVENTS = 3 * SAMPLED_EVENTS, 4 * SAMPLED_EVENTS


@pytest.fixture(scope="module")
def store() -> EventStore:
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(50, (2, EVENTS), generator=draw)
    return EventStore.from_columns(src, dst, torch.arange(EVENTS).double(), num_nodes=50)


@pytest.mark.parametrize("column", ["src", "dst", "time"])
@pytest.mark.parametrize("row", [0, 1, 5_001, ROWS - 1])
def test_one_changed_event_is_noticed(store, column, row):
    """Wherever it is in the prefix; a change behind the prefix does not matter."""
    prefix = StreamPrefix.from_store(store, ROWS)
    for place, same in ((row, False), (ROWS, True)):
        values = getattr(store, column).clone()
        values[place] += 0.5 if column == "time" else (1 if values[place] < 49 else -1)
        assert prefix.matches(replace(store, **{column: values})) is same


def test_a_checksum_of_an_earlier_version_is_accepted(store):
    """The value was computed by the version that introduced it; other streams still differ from it."""
    small = EventStore.from_columns(*(torch.arange(6) % n for n in (2, 3)), torch.arange(6).double())
    assert StreamPrefix(4, -4609424218540702527).matches(small)
    assert not StreamPrefix(3, -4609424218540702527).matches(small)
    legacy = StreamPrefix(ROWS, stream_prefix._compute_sampled_checksum(store, ROWS))
    assert legacy.matches(store)
    assert not legacy.matches(store[1:])


def test_the_events_are_hashed_once(store, monkeypatch):
    """Each prediction asks again, so the digest is remembered with the store."""
    calls, real = [], stream_prefix._compute_digest
    monkeypatch.setattr(stream_prefix, "_compute_digest", lambda *args: calls.append(1) or real(*args))
    fresh = replace(store)
    prefix = StreamPrefix.from_store(fresh, ROWS)
    assert all(prefix.matches(fresh) for _ in range(3))
    assert len(calls) == 1
