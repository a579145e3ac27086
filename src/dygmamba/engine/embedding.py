"""Where a node classifier's input comes from: what is strictly earlier than an event, and never a label.

A frozen backbone's embeddings are computed once for all events, a fine-tuned one's in every batch.

Legend: e events of the stream, k of them, b of a batch, d width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dygmamba.data.events import EventBatch, EventStore
from dygmamba.data.splits import Split
from dygmamba.engine.buckets import pairs_per_pass
from dygmamba.engine.evaluation import SAMPLING_SEED, observe_earlier
from dygmamba.models.base import Encoder
from dygmamba.sampling.index import NeighborIndex, gather_view
from dygmamba.tasks.node import check_labels, node_queries, node_split

Advance = Callable[[int], None]  # told how many events are done
Batches = Iterator[tuple[Int64[Tensor, "b"], Float32[Tensor, "b d"]]]  # event ids and their embeddings


@dataclass(frozen=True, slots=True)
class LabelledStream:
    """A stream on one device, its labels apart: what the backbone is shown holds none."""

    store: EventStore
    index: NeighborIndex
    label: Float32[Tensor, "e"]
    split: Split

    @staticmethod
    def of(store: EventStore, device: torch.device) -> "LabelledStream":
        """The stream with all its nodes in training; refused where there is nothing to learn."""
        split = node_split(store)
        label = check_labels(store, split).to(device)
        bare = replace(store, label=None)
        return LabelledStream(bare.to(device), NeighborIndex.build(bare).to(device), label, split.to(device))

    def period(self, name: str) -> Int64[Tensor, "k"]:
        """The events of `val` or `test`."""
        return {"val": self.split.val, "test": self.split.test}[name]

    def encode(
        self, encoder: Encoder, events: EventBatch, rng: torch.Generator | None = None
    ) -> Float32[Tensor, "b d"]:
        """The source embedding of each event, from what is strictly earlier."""
        view = gather_view(self.index, self.store.features, node_queries(events), encoder.requests, rng)
        return encoder(view)[0]

    def walk(self, encoder: Encoder, events: Int64[Tensor, "k"], size: int) -> Iterator[EventBatch]:
        """Consecutive events in batches; a memory holds what is strictly earlier than each batch."""
        encoder.reset()
        waiting: list[EventBatch] = []
        first = int(events[0]) if encoder.stateful and len(events) else 0
        earlier = torch.arange(first, device=events.device)
        for part in (earlier, events):
            for batch in self.store.batches(part, size):
                if encoder.stateful:
                    waiting = [*observe_earlier(encoder, waiting, float(batch.time[0])), batch]
                if part is events:
                    yield batch


@torch.no_grad()
def embed(
    encoder: Encoder,
    data: LabelledStream,
    events: Int64[Tensor, "k"],
    batch: int,
    advance: Advance = lambda count: None,
) -> Float32[Tensor, "k d"]:
    """Source embeddings of consecutive events under fixed weights, a memory told of everything before them.

    A memory takes in `batch` events at a time; other backbones are asked in larger batches.
    """
    encoder.eval()
    rng = torch.Generator(data.label.device).manual_seed(SAMPLING_SEED)
    many = 0 if encoder.stateful else pairs_per_pass(encoder.requests, data.label.device)
    parts = [data.label.new_zeros(0, encoder.out_dim)]
    for rows in data.walk(encoder, events, max(batch, many)):
        parts.append(data.encode(encoder, rows, rng).float())
        advance(len(rows))
    return torch.cat(parts)


@runtime_checkable
class Embeddings(Protocol):
    """Where the head's input comes from."""

    def train(self, size: int) -> Batches:
        """The training events in time order, batch by batch, with their embeddings."""
        ...

    def of(self, events: Int64[Tensor, "k"]) -> Float32[Tensor, "k d"]:
        """The embeddings of consecutive events, without gradients."""
        ...


class Frozen:
    """Every event's embedding, computed once: the weights do not change any more."""

    def __init__(self, encoder: Encoder, data: LabelledStream, batch: int, advance: Advance) -> None:
        everything = torch.arange(len(data.store), device=data.label.device)
        self.events, self.table = data.split.train, embed(encoder, data, everything, batch, advance)

    def train(self, size: int) -> Batches:
        """Rows of the table."""
        for events in self.events.split(size):
            yield events, self.table[events]

    def of(self, events: Int64[Tensor, "k"]) -> Float32[Tensor, "k d"]:
        """Rows of the table."""
        return self.table[events]


class FineTuned:
    """Embeddings of the backbone as it stands, with gradients; a memory starts each epoch empty."""

    def __init__(self, encoder: Encoder, data: LabelledStream, batch: int) -> None:
        self.encoder, self.data, self.batch = encoder, data, batch

    def train(self, size: int) -> Batches:
        """One forward pass per batch."""
        self.encoder.train()
        for rows in self.data.walk(self.encoder, self.data.split.train, size):
            yield rows.event, self.data.encode(self.encoder, rows)

    def of(self, events: Int64[Tensor, "k"]) -> Float32[Tensor, "k d"]:
        """Computed anew under the current weights."""
        return embed(self.encoder, self.data, events, self.batch)
