"""Streams of node tasks: labels are hidden from models, or shown as columns behind the edge features.

A model that may read labels sees those of strictly earlier events only, as it does edge features.
"""

from dataclasses import replace

import torch
from jaxtyping import Float32
from torch import Tensor
from torch.nn.functional import one_hot

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import PUBLISHED_SPLIT, Split, SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.distributed import current_group
from dygmamba.engine.stream import Stream
from dygmamba.tasks.node import split_for_nodes
from dygmamba.tasks.node_targets import NodeTarget, create_target


def choose_target(dataset: Dataset, split: Split, kind: str = "auto", balance: bool = False) -> NodeTarget:
    """Create the target of a dataset (`create_target`); three or more text labels are classes, however many."""
    if kind == "auto" and len(dataset.origin.classes) > 2:
        kind = "classes"
    return create_target(dataset.store, split, kind, balance)


def build_node_stream(
    dataset: Dataset,
    device: torch.device,
    rule: SplitRule = PUBLISHED_SPLIT,
    shown: NodeTarget | None = None,
) -> Stream:
    """Build a stream in which no node is held out of training.

    Args:
        dataset: The events.
        device: Where they are used.
        rule: Split by time.
        shown: Target whose labels the model may read; by default it sees no labels.
    """
    split = split_for_nodes(dataset.store, rule)
    return Stream(hide_labels(dataset.store, shown), split, device, current_group())


def hide_labels(store: EventStore, shown: NodeTarget | None = None) -> EventStore:
    """Return the events without labels; with a target, encoded labels are columns behind the edge features."""
    if shown is None or store.label is None:
        return store.without_labels()
    edge = torch.cat([store.features.edge, encode_label_columns(shown, store.label)], dim=1)
    # the label columns have no names, so the others lose theirs
    return store.derive(label=None, features=replace(store.features, edge=edge, names=()))


def count_label_columns(target: NodeTarget) -> int:
    """Return how many columns encoded labels have: one per output."""
    return target.outputs


def encode_label_columns(target: NodeTarget, label: Float32[Tensor, "e"]) -> Float32[Tensor, "e c"]:
    """Encode labels as numbers, classes as one column each; an unknown label (nan) is 0 in every column."""
    known = torch.isfinite(label)
    encoded = torch.where(known, target.encode(torch.nan_to_num(label)), 0.0)
    if target.outputs == 1:
        return encoded[:, None]
    classes = one_hot(encoded.long(), target.outputs + 1)[:, : target.outputs]
    return classes.float() * known[:, None]
