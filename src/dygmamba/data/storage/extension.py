"""Append events to a dataset, or number one as an earlier one: unknown ids become nodes behind the known ones."""

from dataclasses import dataclass, replace
from math import inf, nextafter

import numpy as np
import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dygmamba.core.errors import EventError, FileError
from dygmamba.data.events.categories import Category, recode
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import IdIndex, Key, NodeIds, order_by_first_event
from dygmamba.data.events.times import MAX_EPOCH_SECONDS
from dygmamba.data.storage.dataset import Dataset


@dataclass(frozen=True, slots=True)
class AddedEvents:
    """Events in time order with the user's ids; codes are those of the categories they came with."""

    src: list[Key]
    dst: list[Key]
    time: np.ndarray
    edge: np.ndarray
    codes: np.ndarray
    categories: tuple[Category, ...]
    label: np.ndarray | None = None

    @staticmethod
    def from_dataset(events: Dataset) -> "AddedEvents":
        store, ids = events.store, events.ids.values.to_numpy(zero_copy_only=False).astype(object)
        return AddedEvents(
            ids[store.src.numpy()].tolist(),
            ids[store.dst.numpy()].tolist(),
            store.time.numpy(),
            store.features.edge.numpy(),
            get_codes(store.features),
            store.features.categories,
            None if store.label is None else store.label.numpy(),
        )

    def __len__(self) -> int:
        return len(self.time)

    def join(self, later: "AddedEvents") -> "AddedEvents":
        """Merge with events that arrived later, which are behind these where times are equal; codes must agree.

        Labels are left out.
        """
        both = AddedEvents(
            self.src + later.src,
            self.dst + later.dst,
            np.concatenate([self.time, later.time]),
            np.concatenate([self.edge, later.edge]),
            np.concatenate([self.codes, later.codes]),
            later.categories,
        )
        if not len(self) or not len(later) or self.time[-1] <= later.time[0]:
            return both
        order = np.argsort(both.time, kind="stable")
        src, dst = ([ids[row] for row in order.tolist()] for ids in (both.src, both.dst))
        return AddedEvents(src, dst, both.time[order], both.edge[order], both.codes[order], both.categories)

    def recode(self, known: tuple[Category, ...]) -> "AddedEvents":
        """Return the events with codes of known categories; unknown values get the next codes."""
        codes, categories = recode(self.codes, self.categories, known)
        return replace(self, codes=codes, categories=categories)

    def require_columns_of(self, dataset: Dataset) -> None:
        """Raise EventError if the events have other columns than those of a dataset."""
        own = dataset.store.features
        names = [[category.name for category in table.categories] for table in (own, self)]
        if own.edge.shape[1] != self.edge.shape[1] or names[0] != names[1]:
            raise EventError(
                f"the new events have {self.edge.shape[1]} features and the categorical columns {names[1]}, those of "
                f"'{dataset.name}' have {own.edge.shape[1]} and {names[0]}; give the columns it was trained with",
                code="feature-count",
            )


def get_codes(features: FeatureTable) -> np.ndarray:
    """Return the codes of events, also if there are no categorical columns."""
    return np.zeros((len(features.edge), 0), np.int32) if features.codes is None else features.codes.numpy()


def extend_dataset(dataset: Dataset, events: Dataset | AddedEvents, missing_label: float = 0.0) -> Dataset:
    """Merge new events into a dataset by time, behind existing events of the same time.

    Unknown ids become new nodes without features. Existing nodes keep their numbers, and the number of a new node
    depends only on earlier events, because random draws are a function of it (decision 022). `missing_label` is the
    label of new events if they have none and the dataset has labels.

    Raises:
        EventError: The new events have other columns.
    """
    store, features, index = dataset.store, dataset.store.features, IdIndex(dataset.ids)
    more = AddedEvents.from_dataset(events) if isinstance(events, Dataset) else events
    more.require_columns_of(dataset)
    more = more.recode(features.categories)
    src, dst = index.add_events(more.src, more.dst)
    new_nodes = torch.zeros(len(index) - store.num_nodes, features.node.shape[1])
    label = np.full(len(more), missing_label, np.float32) if more.label is None else more.label
    time = torch.cat([store.time, torch.from_numpy(more.time)])
    order = torch.argsort(time, stable=True)  # stable: old events stay before new ones of the same time

    def merge(old: Tensor | None, new: np.ndarray) -> Tensor | None:
        return None if old is None else torch.cat([old, torch.from_numpy(new)])[order]

    merged = store.derive(  # both streams were checked when they were read
        src=merge(store.src, src),
        dst=merge(store.dst, dst),
        time=time[order],
        features=replace(
            features,
            node=torch.cat([features.node, new_nodes]),
            edge=merge(features.edge, more.edge),
            codes=merge(features.codes, more.codes),
            categories=more.categories,
        ),
        label=merge(store.label, label),
        num_nodes=len(index),
        source=None,
    )
    return Dataset.from_events(dataset.name, merged, index.freeze(), dataset.origin)


def align_dataset(dataset: Dataset, earlier: Dataset) -> Dataset:
    """Return the dataset with the node numbers and type codes of an earlier one.

    Every node of the earlier dataset keeps its number, even if it has no event any more. Unknown ids become new nodes
    behind them, in the order of their first event. A dataset that is numbered like this already is returned as it is.

    Raises:
        EventError: The two differ in their columns, in being bipartite, or in the kind of their timestamps.
    """
    _require_same_columns(dataset, earlier)
    store, features, index = dataset.store, dataset.store.features, IdIndex(earlier.ids)
    node = _add_nodes(index, dataset)
    codes, categories = recode(get_codes(features), features.categories, earlier.store.features.categories)
    num_nodes = len(index)
    is_numbered = num_nodes == store.num_nodes and bool((node == np.arange(len(node))).all())
    rows, known = features.node_rows, earlier.store.features.node_rows
    recoded = rows.recode(known.categories) if rows is not None and known is not None else rows
    has_same_codes = recoded is None or rows is None or recoded.categories == rows.categories
    if is_numbered and categories == features.categories and has_same_codes:
        return dataset
    number = torch.from_numpy(node)
    aligned = store.derive(  # the events were checked when they were read
        src=number[store.src],
        dst=number[store.dst],
        num_nodes=num_nodes,
        features=replace(
            features,
            node=_align_node_features(store, earlier.store, number, num_nodes),
            codes=None if features.codes is None else torch.from_numpy(codes),
            categories=categories,
            node_rows=None if recoded is None else recoded.renumber(number),
        ),
        source=None,
    )
    ids = NodeIds(index.values, index.sources, index.is_source)
    return Dataset.from_events(dataset.name, aligned, ids, dataset.origin)


def _require_same_columns(dataset: Dataset, earlier: Dataset) -> None:
    for (what, own), other in zip(
        _list_columns(dataset).items(), _list_columns(earlier).values(), strict=True
    ):
        if own != other:
            shown = [", ".join(side) if isinstance(side, tuple) else str(side) for side in (own, other)]
            raise EventError(
                f"'{dataset.name}' has the {what} {shown[0] or 'none'}, and '{earlier.name}' has {shown[1] or 'none'}; "
                "import the same columns in the same order",
                code="other-columns",
            )
    if dataset.store.bipartite != earlier.store.bipartite:
        raise EventError(
            f"one of '{dataset.name}' and '{earlier.name}' is bipartite and the other is not; import both with the "
            "same `bipartite`",
            code="other-sides",
        )
    if dataset.is_dated != earlier.is_dated:
        raise EventError(
            f"one of '{dataset.name}' and '{earlier.name}' has dates and the other plain numbers as times; import both "
            "with the same `time_unit`",
            code="other-times",
        )


def _list_columns(dataset: Dataset) -> dict[str, tuple[str, ...] | int]:
    """Return the names of the columns by what they are; of node features without names their number."""
    features, rows = dataset.store.features, dataset.store.features.node_rows
    node_categories = () if rows is None else rows.categories
    return {
        "columns": features.edge_names,
        "categorical columns": tuple(category.name for category in features.categories),
        "node features": features.node.shape[1],
        "named node features": () if rows is None else rows.names,
        "categorical node features": tuple(category.name for category in node_categories),
    }


def _add_nodes(index: IdIndex, dataset: Dataset) -> np.ndarray:
    """Return the number of each node in the index; unknown ones are added in the order of their first event."""
    ids, store = dataset.ids, dataset.store
    values = ids.values.to_pylist()
    is_source = [True] * len(ids) if ids.is_source is None else ids.is_source.to_pylist()
    node = np.empty(len(ids), np.int64)
    for k in order_by_first_event(store.src.numpy(), store.dst.numpy(), len(ids)).tolist():
        node[k] = index.add(values[k], "src" if is_source[k] else "dst")
    return node


def _align_node_features(
    store: EventStore, earlier: EventStore, number: Tensor, num_nodes: int
) -> Float32[Tensor, "n dn"]:
    """Return the features of each node; a node that the dataset lacks keeps its earlier ones."""
    node = earlier.features.node.new_zeros(num_nodes, earlier.features.node.shape[1])
    node[: earlier.num_nodes] = earlier.features.node
    node[number] = store.features.node
    return node


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
    remaining = dataset.store[(~dropped).nonzero().squeeze(1)]
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
    if epoch and not dataset.is_dated:
        raise FileError(
            f"{where} has dates, but the times of '{dataset.name}' are plain numbers up to "
            f"{float(dataset.store.time[-1]):.12g}; give numbers on that scale",
            code="dates-for-plain-times",
        )
    if dataset.is_dated and not epoch and np.abs(time).max(initial=0) > MAX_EPOCH_SECONDS:
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
