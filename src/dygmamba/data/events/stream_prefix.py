"""Recognise a stream that begins with known events.

A saved node memory belongs to the first events of one stream. It may be used on any stream that begins with exactly
these events, such as the same stream with new events appended.
"""

import hashlib
from typing import NamedTuple

import torch

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.mapped_columns import iterate_slices, release_pages

SAMPLED_EVENTS = 4096  # events in a checksum of the earlier kind


class StreamPrefix(NamedTuple):
    """The first `rows` events of a stream and a digest of their sources, destinations and times.

    The digest is the first 64 bits of a SHA-256. Files written by earlier versions hold a checksum of at most 4,096
    sampled events instead, which `matches` still accepts.
    """

    rows: int
    seal: int

    @staticmethod
    def from_store(store: EventStore, rows: int) -> "StreamPrefix":
        return StreamPrefix(rows, _get_digest(store, rows))

    def matches(self, store: EventStore) -> bool:
        """Return whether the stream begins with the same events."""
        if self.rows > len(store):
            return False
        return self.seal == _get_digest(store, self.rows) or self.seal == _compute_sampled_checksum(
            store, self.rows
        )


def _get_digest(store: EventStore, rows: int) -> int:
    """Return the digest of the first events; computed once per store, because each prediction needs it."""
    if rows not in store.prefix_digests:
        store.prefix_digests[rows] = _compute_digest(store, rows)
    return store.prefix_digests[rows]


def _compute_digest(store: EventStore, rows: int) -> int:
    sha = hashlib.sha256()
    for column in (store.src, store.dst, store.time):
        for part in iterate_slices(rows, column.element_size()):
            sha.update(column[part].cpu().contiguous().numpy().data)
            release_pages(column[part])
    return int.from_bytes(sha.digest()[:8], "little", signed=True)


def _compute_sampled_checksum(store: EventStore, rows: int) -> int:
    """Return the checksum of earlier versions: a sum over up to 4,096 evenly spaced events, modulo 2^64."""
    sample = torch.linspace(0, rows - 1, min(rows, SAMPLED_EVENTS), dtype=torch.float64).long()
    weight = 2 * torch.arange(len(sample)) + 1
    checksum = torch.zeros((), dtype=torch.int64)
    for column in (store.src[sample], store.dst[sample], store.time[sample].double().view(torch.int64)):
        checksum = checksum * 1_000_003 + (column * weight).sum()  # wraps around on purpose
    return int(checksum)
