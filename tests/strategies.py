"""Hypothesis strategies: small streams with ties, self-loops, isolated nodes and empty histories."""

import torch
from hypothesis import strategies as st

from dygmamba.data.events.event_store import EventStore, FeatureTable


@st.composite
def event_streams(draw, min_events: int = 0, max_events: int = 60, max_nodes: int = 8, edge_dim: int = 0):
    """A stream with few distinct times (so ties are common); node ids may be unused."""
    nodes = draw(st.integers(1, max_nodes))
    count = draw(st.integers(min_events, max_events))
    ids = st.lists(st.integers(0, nodes - 1), min_size=count, max_size=count)
    src, dst = draw(ids), draw(ids)
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, 7.25]), min_size=count, max_size=count))
    origin = draw(st.sampled_from([0.0, -3.0, 1.08e9]))
    time = torch.tensor([origin, *gaps], dtype=torch.float64).cumsum(0)[1:]
    edge = torch.arange(count * edge_dim, dtype=torch.float32).reshape(count, edge_dim)
    return EventStore.from_columns(
        torch.tensor(src, dtype=torch.int64),
        torch.tensor(dst, dtype=torch.int64),
        time,
        num_nodes=nodes,
        features=FeatureTable(torch.zeros(nodes, 0), edge),
    )
