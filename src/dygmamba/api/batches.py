"""Batches for your own training loop: queries, and the strictly earlier events that a model may see."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dygmamba.api.datasets import Source, open_data
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.choices import SCOPES, check_choice
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.event_store import EventBatch
from dygmamba.data.events.split_spec import AUTO_PROTOCOL, check_protocol
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.engine.stream import Stream
from dygmamba.history.draws import Draws
from dygmamba.history.negatives import SAMPLERS
from dygmamba.history.view import LabelledPairs, NeighborRequest, PairView
from dygmamba.runs.opening import choose_device
from dygmamba.runs.recipes import build_link_stream
from dygmamba.tasks.link import LinkTask, build_link_set

SPLIT_NAMES = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class Step:
    """One batch: every event and a random negative as queries with their visible past, and the events themselves."""

    view: PairView
    events: EventBatch
    label: Tensor  # 1 for an event, 0 for a negative, one value per pair


@check_arguments
def batches(
    data: "Dataset | Stream | Source",
    size: int = 200,
    split: str = "train",
    seed: int = 0,
    *,
    neighbors: int | tuple[NeighborRequest, ...] = 20,
    device: str = "auto",
    negatives: str = "random",
    setting: str = "transductive",
    protocol: str = AUTO_PROTOCOL,
) -> Iterator[Step]:
    """Iterate over the events of a split in batches, each with a negative; only strictly earlier events are visible.

    In the training split only training events are visible, and the seed draws the negatives: give another one for each
    epoch. A model with node memory scores a step first and then observes `step.events`.

    Args:
        data: A dataset, its name, a stream, or anything that `read` takes.
        size: Events per batch.
        split: "train", "val" or "test".
        seed: Seed of the negatives and of sampled neighbors.
        neighbors: Recent events per node to look up, or the requests of a model.
        device: "auto", "cpu" or "cuda".
        negatives: Negative sampler of validation and test: "random", "historical" or "inductive".
        setting: Events of validation and test: "transductive" (all) or "inductive" (those of new nodes).
        protocol: Which nodes are new and what negatives are drawn from, as in `evaluate`; a stream has its own.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> step = next(dm.batches(data, size=50, neighbors=8, device="cpu"))
    >>> (recent,) = step.view[dm.NeighborRequest((8,))]
    >>> recent.node.shape, step.label.sum().item()
    (torch.Size([150, 8]), 50.0)
    """
    check_choice("split", split, SPLIT_NAMES)
    sampler, kind = check_choice("negatives", negatives, SAMPLERS), check_choice("setting", setting, SCOPES)
    if split == "train" and (sampler, kind) != ("random", "transductive"):
        raise ConfigError(
            "`negatives` and `setting` are for the splits val and test; leave them out for train",
            code="option-of-evaluation",
        )
    if size < 1:
        raise ConfigError(f"`size` must be at least 1, got {size}", code="size-not-positive")
    check_protocol(protocol)
    if isinstance(data, Stream):
        if protocol != AUTO_PROTOCOL:
            raise ConfigError(
                "`protocol` needs a dataset, a stream is split already; leave it out",
                code="protocol-of-a-stream",
            )
        stream = data
    else:
        dataset = open_data(data)
        stream = build_link_stream(dataset, choose_device(device), get_default_split(dataset, protocol))
    requests = (NeighborRequest((neighbors,)),) if isinstance(neighbors, int) else neighbors
    if split == "train":
        queries, build_view = _iterate_training(stream, size, seed), stream.training_view
    else:
        queries, build_view = _iterate_evaluation(stream, size, (split, kind, sampler)), stream.view
    draws = Draws.from_seed(seed, device=stream.device)
    return (Step(build_view(pairs, requests, draws), events, pairs.label) for pairs, events in queries)


def _iterate_training(stream: Stream, size: int, seed: int) -> Iterator[tuple[LabelledPairs, EventBatch]]:
    task = LinkTask.create(stream.store, stream.split, stream.device)
    others = task.draw_negatives(seed, 0)
    for rows in torch.arange(len(stream.train), device=stream.device).split(size):
        events = stream.events.select(stream.train[rows])
        yield task.build_queries(events, others[rows]), events


def _iterate_evaluation(
    stream: Stream, size: int, chosen: tuple[str, str, str]
) -> Iterator[tuple[LabelledPairs, EventBatch]]:
    """Yield the published queries of a split, setting and negative sampler: its events and their negatives."""
    evaluation_set = build_link_set(stream.store, stream.split, *chosen)
    pairs, count = evaluation_set.pairs.to(stream.device), len(evaluation_set.events)
    for rows in torch.arange(count, device=stream.device).split(size):
        both = torch.cat([rows, rows + count])
        queries = pairs.select_shared(both, stream.store.num_nodes)
        yield queries, stream.events.select(evaluation_set.events.to(stream.device)[rows])
