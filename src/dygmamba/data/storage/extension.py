"""Append new events to a dataset; unknown ids become new nodes behind the existing ones."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from dataclasses import replace
from math import inf, nextafter

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float32, Int32
from torch import Tensor

from dygmamba.core.errors import EventError, FileError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.times import MAX_EPOCH_SECONDS, looks_like_epoch_seconds
from dygmamba.data.storage.dataset import Dataset


def extend_dataset(dataset: Dataset, events: Dataset, missing_label: float = 0.0) -> Dataset:
    """Merge new events into a dataset by time, behind existing events of the same time.

    Unknown ids become new nodes without features. Existing nodes keep their numbers, and the number of a new node
    depends only on earlier events, because random draws are a function of it (decision 022). `missing_label` is the
    label of new events if they have none and the dataset has labels.

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
    src = dataset.ids.normalize(events.ids.to_user(more.src.numpy()), "src")
    dst = dataset.ids.normalize(events.ids.to_user(more.dst.numpy()), "dst")
    ids = _extend_ids(dataset.ids, src, dst)
    new = torch.zeros(len(ids) - store.num_nodes, store.features.node.shape[1])
    label = torch.full((len(more),), missing_label) if more.label is None else more.label
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
    categories, codes = recode_categories(old, new)
    if old.codes is None or codes is None:
        return replace(old, node=node, edge=edge)
    return replace(old, node=node, edge=edge, codes=torch.cat([old.codes, codes]), categories=categories)


def recode_categories(
    old: FeatureTable, new: FeatureTable
) -> tuple[tuple[Category, ...], Int32[Tensor, "e dc"] | None]:
    """Return the values of both, those of `old` first, and the codes of the events of `new` among them."""
    if old.codes is None or new.codes is None:
        return old.categories, None
    categories, codes = [], []
    for k, (known, given) in enumerate(zip(old.categories, new.categories, strict=True)):
        values = dict.fromkeys((*known.values, *given.values))
        number = {value: code for code, value in enumerate(values)}
        code = torch.tensor([number[value] for value in given.values], dtype=torch.int32)
        categories.append(Category(known.name, tuple(values)))
        codes.append(code[new.codes[:, k].long()])
    return tuple(categories), torch.stack(codes, dim=1)


def find_duplicates(dataset: Dataset) -> Bool[Tensor, "e"]:
    """Return which events repeat an earlier one: the same source, destination, time, columns and label."""
    store, features = dataset.store, dataset.store.features
    src, dst, time = (column.numpy() for column in (store.src, store.dst, store.time))
    order = np.lexsort((dst, src, time))  # stable: of equal events the earlier row comes first
    same = np.ones(max(0, len(order) - 1), dtype=bool)
    for column in (time, src, dst):
        same &= column[order[1:]] == column[order[:-1]]
    # only events between the same nodes at the same time are compared in their columns
    suspects = torch.from_numpy(np.sort(order[np.r_[same, False] | np.r_[False, same]]))
    columns = [store.src, store.dst, store.time, *features.edge.T]
    columns += [] if features.codes is None else [*features.codes.T]
    columns += [] if store.label is None else [store.label]
    repeated = torch.zeros(len(store), dtype=torch.bool)
    if len(suspects):
        rows = torch.stack([column[suspects].double() for column in columns], dim=1).numpy()
        _, first = np.unique(rows, axis=0, return_index=True)
        repeated[suspects] = True
        repeated[suspects[torch.from_numpy(first)]] = False
    return repeated


def drop_events(dataset: Dataset, dropped: Bool[Tensor, "e"]) -> Dataset:
    """Return the dataset without these events, with the same nodes."""
    store, kept = dataset.store, (~dropped).nonzero().squeeze(1)
    remaining = store.derive(
        src=store.src[kept],
        dst=store.dst[kept],
        time=store.time[kept],
        features=store.features.select_events(kept),
        label=None if store.label is None else store.label[kept],
        source=None,
    )
    return replace(
        Dataset.from_events(dataset.name, remaining, dataset.ids, dataset.origin), path=dataset.path
    )


def check_time_scale(dataset: Dataset, where: str, epoch: bool, time: np.ndarray) -> None:
    """Raise FileError for times that cannot be on the time scale of the stream.

    Args:
        dataset: The dataset of the stream.
        where: What has the times, for the message.
        epoch: Whether they were dates, that is, are seconds since 1970.
        time: The times.
    """
    stream = dataset.store.time
    is_dated = bool(dataset.origin.time_origin) or looks_like_epoch_seconds(
        float(stream[0]), float(stream[-1])
    )
    if epoch and not is_dated:
        raise FileError(
            f"{where} has dates, but the times of '{dataset.name}' are plain numbers up to "
            f"{float(stream[-1]):.12g}; give numbers on that scale",
            code="dates-for-plain-times",
        )
    if is_dated and not epoch and np.abs(time).max(initial=0) > MAX_EPOCH_SECONDS:
        raise FileError(
            f"{where} has the time {time[np.abs(time).argmax()]:.12g}, too large for seconds since 1970; "
            "give `time_unit='ms'`, 'us' or 'ns'",
            code="time-out-of-range",
        )


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
    whole = (ids.has_whole_ids("src"), ids.has_whole_ids("dst"))
    ends = np.arange(2 * len(src)).reshape(2, -1).T.ravel()  # src, dst, src, dst, ... in [src dst]
    known = np.concatenate([ids.to_node(src, "src"), ids.to_node(dst, "dst")])[ends] >= 0
    ends = ends[~known]
    names = pa.concat_arrays([src, dst]).take(pa.array(ends)).dictionary_encode()
    source = ends < len(src)
    node = 2 * names.indices.to_numpy().astype(np.int64)
    if ids.is_source is not None:
        node += source  # source 7 and destination 7 are different nodes
    first = np.sort(np.unique(node, return_index=True)[1])
    values = concat_arrays(ids.values, names.dictionary.take(names.indices.take(pa.array(first))))
    if ids.is_source is None:
        return NodeIds(values, whole=whole)
    is_source = pa.concat_arrays([ids.is_source, pa.array(source[first], pa.bool_())])
    return NodeIds(values, is_source.true_count, is_source, whole)


def concat_arrays(*parts: pa.Array) -> pa.Array:
    """Concatenate arrays; integers become strings if they meet strings."""
    same_type = len({part.type for part in parts}) == 1
    return pa.concat_arrays(parts if same_type else [part.cast(pa.large_string()) for part in parts])
