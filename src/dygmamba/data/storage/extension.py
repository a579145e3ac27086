"""A stream that goes on: new events, new nodes behind the old ones, and the first instant that sees them all.

Legend: e events, m more of them, n nodes.
"""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from math import inf, nextafter

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.storage.dataset import Dataset


def extend_dataset(dataset: Dataset, events: Dataset) -> Dataset:
    """The stream with more events merged in by time, behind stored ones of the same instant.

    Ids it does not know become new nodes without features. Every old node keeps its number, and a new one's
    depends on earlier events alone: draws are a function of it (decision 022).
    """
    store, more = dataset.store, events.store
    if more.features.edge.shape[1] != store.features.edge.shape[1]:
        raise EventError(
            f"the new events have {more.features.edge.shape[1]} features each, those of '{dataset.name}' have "
            f"{store.features.edge.shape[1]}; give the columns it was trained with"
        )
    src, dst = (events.ids.to_user(column.numpy()) for column in (more.src, more.dst))
    ids = _extend_ids(dataset.ids, src, dst)
    new = torch.zeros(len(ids) - store.num_nodes, store.features.node.shape[1])
    label = torch.zeros(len(more)) if more.label is None else more.label
    merged = EventStore.sorted(
        torch.cat([store.src, torch.from_numpy(ids.to_node(src, "src"))]),
        torch.cat([store.dst, torch.from_numpy(ids.to_node(dst, "dst"))]),
        torch.cat([store.time, more.time]),
        features=FeatureTable(
            torch.cat([store.features.node, new]), torch.cat([store.features.edge, more.features.edge])
        ),
        label=None if store.label is None else torch.cat([store.label, label]),
        num_nodes=len(ids),
        bipartite=store.bipartite,
    )
    return Dataset.of(dataset.name, merged, ids, dataset.origin)


def next_instant(time: Float64[Tensor, "e"], dated: bool) -> float:
    """The first instant that sees all of these times: the next whole number, microsecond or 64-bit number."""
    last = float(time[-1])
    if bool((time == time.floor()).all()) and abs(last) < 2**53:
        return last + 1
    return last + 1e-6 if dated else nextafter(last, inf)


def _extend_ids(ids: NodeIds, src: pa.Array, dst: pa.Array) -> NodeIds:
    """The ids and behind them the unknown ones of these events, in the order of their first event, source first."""
    ends = np.arange(2 * len(src)).reshape(2, -1).T.ravel()  # src, dst, src, dst, ... in [src dst]
    known = np.concatenate([ids.to_node(src, "src"), ids.to_node(dst, "dst")])[ends] >= 0
    ends = ends[~known]
    names = pa.concat_arrays([src, dst]).take(pa.array(ends)).dictionary_encode()
    source = ends < len(src)
    node = 2 * names.indices.to_numpy().astype(np.int64)
    if ids.is_source is not None:
        node += source  # the sides are two name spaces
    first = np.sort(np.unique(node, return_index=True)[1])
    values = _concat_arrays(ids.values, names.dictionary.take(names.indices.take(pa.array(first))))
    if ids.is_source is None:
        return NodeIds(values)
    is_source = pa.concat_arrays([ids.is_source, pa.array(source[first], pa.bool_())])
    return NodeIds(values, is_source.true_count, is_source)


def _concat_arrays(*parts: pa.Array) -> pa.Array:
    """One array; integers become strings where they meet strings."""
    alike = len({part.type for part in parts}) == 1
    return pa.concat_arrays(parts if alike else [part.cast(pa.large_string()) for part in parts])
