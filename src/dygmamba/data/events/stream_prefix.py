"""A place in a stream that is known again: so many of its first events, and what they are."""

from typing import NamedTuple

import torch

from dygmamba.data.events.event_store import EventStore

SAMPLED_EVENTS = 4096  # events that a seal is made of, spread over all of them


class StreamPrefix(NamedTuple):
    """The first `rows` events of a stream; the seal is a checksum of who they are of and when, in their order."""

    rows: int
    seal: int

    @staticmethod
    def at(store: EventStore, rows: int) -> "StreamPrefix":
        """Of this stream's first events."""
        place = torch.linspace(0, rows - 1, min(rows, SAMPLED_EVENTS), dtype=torch.float64).long()
        seal = torch.zeros((), dtype=torch.int64)
        for column in (store.src[place], store.dst[place], store.time[place].double().view(torch.int64)):
            seal = seal * 1_000_003 + (column * (2 * torch.arange(len(place)) + 1)).sum()  # wraps around
        return StreamPrefix(rows, int(seal))

    def matches(self, store: EventStore) -> bool:
        """Whether this stream begins with the same events."""
        return self.rows <= len(store) and self == StreamPrefix.at(store, self.rows)
