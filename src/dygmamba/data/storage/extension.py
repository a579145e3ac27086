"""Append new events to a dataset; unknown ids become new nodes behind the existing ones."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from math import inf, nextafter

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float32
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.storage.dataset import Dataset


def extend_dataset(dataset: Dataset, events: Dataset) -> Dataset:
    """Merge new events into a dataset by time, behind existing events of the same time.

    Unknown ids become new nodes without features. Existing nodes keep their numbers, and the number of a new node
    depends only on earlier events, because random draws are a function of it (decision 022).

    Raises:
        EventError: The new events have another number of edge features.
    """
    store, more = dataset.store, events.store
    if more.features.edge.shape[1] != store.features.edge.shape[1]:
        raise EventError(
            f"the new events have {more.features.edge.shape[1]} features, those of '{dataset.name}' have "
            f"{store.features.edge.shape[1]}; give the columns it was trained with",
            code="feature-count",
        )
    own, other = ([category.name for category in part.features.categories] for part in (store, more))
    if own != other:
        raise EventError(
            f"the new events have the categorical columns {other}, those of '{dataset.name}' have {own}; give the "
            "columns it was trained with",
            code="feature-count",
        )
    src, dst = (events.ids.to_user(column.numpy()) for column in (more.src, more.dst))
    ids = _extend_ids(dataset.ids, src, dst)
    new = torch.zeros(len(ids) - store.num_nodes, store.features.node.shape[1])
    label = torch.zeros(len(more)) if more.label is None else more.label
    time = torch.cat([store.time, more.time])
    order = torch.argsort(time, stable=True)  # stable: old events stay before new ones of the same time
    features = _merge_features(store.features, more.features, torch.cat([store.features.node, new]))
    merged = store.derive(  # both streams were checked when they were read
        src=torch.cat([store.src, torch.from_numpy(ids.to_node(src, "src"))])[order],
        dst=torch.cat([store.dst, torch.from_numpy(ids.to_node(dst, "dst"))])[order],
        time=time[order],
        features=features.select_events(order),
        label=None if store.label is None else torch.cat([store.label, label])[order],
        num_nodes=len(ids),
        source=None,
    )
    return Dataset.from_events(dataset.name, merged, ids, dataset.origin)


def _merge_features(old: FeatureTable, new: FeatureTable, node: Float32[Tensor, "n dn"]) -> FeatureTable:
    """Put the columns of new events behind the others; unknown values get the next codes."""
    edge = torch.cat([old.edge, new.edge])
    if old.codes is None or new.codes is None:
        return FeatureTable(node, edge, old.codes, old.names, old.categories)
    categories, codes = [], []
    for k, (known, given) in enumerate(zip(old.categories, new.categories, strict=True)):
        values = dict.fromkeys((*known.values, *given.values))
        number = {value: code for code, value in enumerate(values)}
        code = torch.tensor([number[value] for value in given.values], dtype=torch.int32)
        categories.append(Category(known.name, tuple(values)))
        codes.append(torch.cat([old.codes[:, k], code[new.codes[:, k].long()]]))
    return FeatureTable(node, edge, torch.stack(codes, dim=1), old.names, tuple(categories))


def next_instant(store: EventStore, dated: bool) -> float:
    """Return the earliest query time after all of these events.

    That is the next whole number if all timestamps are whole, else a microsecond later for dates, else the next
    float64.
    """
    last = float(store.time[-1])
    if store.has_whole_times and abs(last) < 2**53:
        return last + 1
    return last + 1e-6 if dated else nextafter(last, inf)


def _extend_ids(ids: NodeIds, src: pa.Array, dst: pa.Array) -> NodeIds:
    """Append the unknown ids of these events, in order of their first event and sources before destinations."""
    ends = np.arange(2 * len(src)).reshape(2, -1).T.ravel()  # src, dst, src, dst, ... in [src dst]
    known = np.concatenate([ids.to_node(src, "src"), ids.to_node(dst, "dst")])[ends] >= 0
    ends = ends[~known]
    names = pa.concat_arrays([src, dst]).take(pa.array(ends)).dictionary_encode()
    source = ends < len(src)
    node = 2 * names.indices.to_numpy().astype(np.int64)
    if ids.is_source is not None:
        node += source  # source 7 and destination 7 are different nodes
    first = np.sort(np.unique(node, return_index=True)[1])
    values = _concat_arrays(ids.values, names.dictionary.take(names.indices.take(pa.array(first))))
    if ids.is_source is None:
        return NodeIds(values)
    is_source = pa.concat_arrays([ids.is_source, pa.array(source[first], pa.bool_())])
    return NodeIds(values, is_source.true_count, is_source)


def _concat_arrays(*parts: pa.Array) -> pa.Array:
    """Concatenate arrays; integers become strings if they meet strings."""
    same_type = len({part.type for part in parts}) == 1
    return pa.concat_arrays(parts if same_type else [part.cast(pa.large_string()) for part in parts])
