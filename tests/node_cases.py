"""A small labelled stream and every trainable model in a small size, for the node task."""

from dataclasses import fields

import torch

from dygmamba.config import build_config, find_node_preset
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts, Encoder

# boosted trees have no encoder
TRAINABLE = [name for name, spec in MODELS.items() if spec.trainable and spec.build != MODELS["trees"].build]
SMALL = {
    "length": 6,
    "width": 4,
    "states": 4,
    "blocks": 1,
    "out": 8,
    "time_dim": 6,
    "neighbors": 4,
    "window": 9,
    "walks": 3,
    "heads": 2,
    "count_dim": 4,
    "patch": 2,
    "dropout": 0.0,
    "filter_dropout": 0.0,
}


def labelled_stream(events: int = 240, sources: int = 10, seed: int = 0) -> EventStore:
    """Half of the sources are of the labelled kind, which the edge features of their events give away.

    There are ties, and the last node never occurs.
    """
    rng = torch.Generator().manual_seed(seed)
    src = torch.randint(sources, (events,), generator=rng)
    dst = sources + torch.randint(5, (events,), generator=rng)
    time = 1.08e9 + torch.randint(0, 3, (events,), generator=rng).cumsum(0).double()
    label = (src % 2).float()
    edge = torch.stack([2 * label - 1, torch.ones(events)], dim=1) + 0.1 * torch.randn(
        events, 2, generator=rng
    )
    nodes = sources + 6
    node = torch.randn(nodes, 3, generator=rng)
    return EventStore.from_columns(
        src, dst, time, num_nodes=nodes, features=FeatureTable(node, edge), label=label
    )


def small_encoder(name: str, store: EventStore, **more: object) -> Encoder:
    """The model with its node-task preset, cut down to a size for tests."""
    spec = MODELS[name]
    own = {field.name for field in fields(spec.config)}
    loop = {field.name for field in fields(NodeFitConfig)}
    published = {key: value for key, value in find_node_preset(name, "any").items() if key not in loop}
    settings = published | {key: value for key, value in SMALL.items() if key in own} | more
    torch.manual_seed(0)
    scorer = spec.build(build_config(spec.config, settings), DatasetFacts.of(store))
    return scorer.encoder
