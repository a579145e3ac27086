"""Batches for a training loop of one's own: what a step asks, and what may be seen for it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.event_store import EventBatch
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.stream import Stream
from dygmamba.runs.opening import build_link_stream, choose_device
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import NeighborRequest, PairBatch, PairView
from dygmamba.tasks.link import LinkTask, build_link_set

SPLIT_NAMES = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class Step:
    """Pairs with what a model may see of their past, each event beside a random negative, and the events themselves."""

    view: PairView
    events: EventBatch

    @property
    def label(self) -> Tensor:
        """1 of an event, 0 of a negative, [pairs]."""
        return self.view.pairs.label


def batches(
    data: Dataset | Stream,
    size: int = 200,
    split: str = "train",
    seed: int = 0,
    *,
    neighbors: int | tuple[NeighborRequest, ...] = 20,
    device: str = "auto",
) -> Iterator[Step]:
    """The events of a period in batches of `size`, each with a negative; everything seen is strictly earlier.

    `neighbors` is how many recent events of each node are looked up, or a model's own requests. In the training period
    only training events are seen, and the seed draws the negatives: give another for each epoch. A model with memory is
    asked about a step first and takes in `step.events` after it.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> step = next(dm.batches(data, size=50, neighbors=8, device="cpu"))
    >>> step.view.neighbors[0][0].node.shape, step.label.sum().item()
    (torch.Size([150, 8]), 50.0)
    """
    if split not in SPLIT_NAMES:
        raise ConfigError(f"`split` takes {', '.join(SPLIT_NAMES)}, got '{split}'")
    if size < 1:
        raise ConfigError(f"`size` must be at least 1, got {size}")
    stream = data if isinstance(data, Stream) else build_link_stream(data, choose_device(device))
    requests = (NeighborRequest((neighbors,)),) if isinstance(neighbors, int) else neighbors
    questions = (
        _iterate_training(stream, size, seed)
        if split == "train"
        else _iterate_evaluation(stream, size, split)
    )
    gather = stream.training_view if split == "train" else stream.view
    draws = Draws.from_seed(seed, device=stream.device)
    return (Step(gather(pairs, requests, draws), events) for pairs, events in questions)


def _iterate_training(stream: Stream, size: int, seed: int) -> Iterator[tuple[PairBatch, EventBatch]]:
    task = LinkTask.create(stream.store, stream.split, stream.device)
    others = task.draw_others(seed, 0)
    for rows in torch.arange(len(stream.train), device=stream.device).split(size):
        events = stream.events.select(stream.train[rows])
        yield task.build_queries(events, others[rows]), events


def _iterate_evaluation(stream: Stream, size: int, split: str) -> Iterator[tuple[PairBatch, EventBatch]]:
    """The published questions of the period: its events and their random negatives."""
    evaluation_set = build_link_set(stream.store, stream.split, split)
    pairs, count = evaluation_set.pairs.to(stream.device), len(evaluation_set.events)
    for rows in torch.arange(count, device=stream.device).split(size):
        both = torch.cat([rows, rows + count])
        asked = pairs.select_shared(both, stream.store.num_nodes)
        yield asked, stream.events.select(evaluation_set.events.to(stream.device)[rows])
