"""Streams for tests of what is asked of them, where no period is trained on, and streams with equal timestamps."""

import torch

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split, chronological_split
from dygmamba.engine.stream import Stream


def unsplit(store, device="cpu"):
    """A stream all of whose events are the test period."""
    ids = torch.arange(len(store))
    nobody = torch.zeros(store.num_nodes, dtype=torch.bool)
    return Stream(store, Split(ids[:0], ids[:0], ids, nobody), torch.device(device))


def split_stream(store, device="cpu"):
    """A stream split as link prediction is."""
    return Stream(store, chronological_split(store), torch.device(device))


def tied_stream():
    """600 events among 12 nodes at 30 timestamps."""
    rng = torch.Generator().manual_seed(3)
    src, dst = (torch.randint(12, (600,), generator=rng) for _ in range(2))
    time = torch.arange(600).div(20, rounding_mode="floor").double()
    return EventStore.from_columns(src, dst, time, num_nodes=12)


def make_snapshots(nodes=30, events=6000, sort_by_source=True):
    """Events at ten timestamps, sorted by source within each."""
    rng = torch.Generator().manual_seed(3)
    src, dst = ((nodes * torch.rand(events, generator=rng) ** 2).long() for _ in range(2))
    time = torch.arange(events).div(events // 10, rounding_mode="floor").double()
    order = torch.argsort(time * nodes + src, stable=True) if sort_by_source else torch.arange(events)
    return EventStore.from_columns(src[order], dst[order], time, num_nodes=nodes)
