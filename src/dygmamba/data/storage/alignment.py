"""Number the nodes and event types of a dataset as an earlier dataset does, matched by the user's ids and values."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float32
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.times import looks_like_epoch_seconds
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import concat_arrays, recode_categories


def align_dataset(dataset: Dataset, earlier: Dataset) -> Dataset:
    """Return the dataset with the node numbers and type codes of an earlier one.

    Every node of the earlier dataset keeps its number, even if it has no event any more. Unknown ids become new nodes
    behind them, in the order of their first event. A dataset that is numbered like this already is returned as it is.

    Raises:
        EventError: The two differ in their columns, in being bipartite, or in the kind of their timestamps.
    """
    _require_same_columns(dataset, earlier)
    node = _find_nodes(dataset, earlier.ids)
    categories, codes = recode_categories(earlier.store.features, dataset.store.features)
    store, features = dataset.store, dataset.store.features
    num_nodes = max(len(earlier.ids), int(node.max(initial=-1)) + 1)
    is_numbered = num_nodes == store.num_nodes and bool((node == np.arange(len(node))).all())
    rows, known = features.node_rows, earlier.store.features.node_rows
    if rows is not None and known is not None:
        rows = rows.recode(known.categories)
    has_same_codes = rows is None or rows.categories == _list_node_categories(dataset)
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
            codes=codes,
            categories=categories,
            node_rows=rows if rows is None else rows.renumber(number),
        ),
        source=None,
    )
    return Dataset.from_events(
        dataset.name, aligned, _align_ids(dataset.ids, earlier.ids, node), dataset.origin
    )


def _require_same_columns(dataset: Dataset, earlier: Dataset) -> None:
    new, old = dataset.store, earlier.store
    parts = {
        "columns": (new.features.edge_names, old.features.edge_names),
        "categorical columns": tuple(
            tuple(category.name for category in part.features.categories) for part in (new, old)
        ),
        "node features": (new.features.node.shape[1], old.features.node.shape[1]),
        "named node features": (_list_node_names(new), _list_node_names(old)),
        "categorical node features": tuple(
            tuple(category.name for category in _list_node_categories(part)) for part in (dataset, earlier)
        ),
    }
    for what, (own, other) in parts.items():
        if own != other:
            shown = [", ".join(side) if isinstance(side, tuple) else str(side) for side in (own, other)]
            raise EventError(
                f"'{dataset.name}' has the {what} {shown[0] or 'none'}, and '{earlier.name}' has {shown[1] or 'none'}; "
                "import the same columns in the same order",
                code="other-columns",
            )
    if new.bipartite != old.bipartite:
        raise EventError(
            f"one of '{dataset.name}' and '{earlier.name}' is bipartite and the other is not; import both with the "
            "same `bipartite`",
            code="other-sides",
        )
    if _is_dated(dataset) != _is_dated(earlier):
        raise EventError(
            f"one of '{dataset.name}' and '{earlier.name}' has dates and the other plain numbers as times; import both "
            "with the same `time_unit`",
            code="other-times",
        )


def _list_node_names(store: EventStore) -> tuple[str, ...]:
    return () if store.features.node_rows is None else store.features.node_rows.names


def _list_node_categories(dataset: Dataset) -> tuple[Category, ...]:
    rows = dataset.store.features.node_rows
    return () if rows is None else rows.categories


def _is_dated(dataset: Dataset) -> bool:
    """Return whether times are seconds since 1970; numbers in memory may be that without saying so."""
    time = dataset.store.time
    return bool(dataset.origin.time_origin) or (
        len(time) > 0 and looks_like_epoch_seconds(float(time[0]), float(time[-1]))
    )


def _find_nodes(dataset: Dataset, known: NodeIds) -> np.ndarray:
    """Return the new number of each node."""
    ids, store = dataset.ids, dataset.store
    node = np.full(len(ids), -1, dtype=np.int64)
    sides = {"src": np.ones(len(ids), dtype=bool)}
    if ids.is_source is not None:
        is_source = ids.is_source.to_numpy(zero_copy_only=False)
        sides = {"src": is_source, "dst": ~is_source}
    for side, chosen in sides.items():
        node[chosen] = known.to_node(ids.values.filter(pa.array(chosen)), "src" if side == "src" else "dst")
    unknown = np.flatnonzero(node < 0)
    ends = torch.stack([store.src, store.dst], dim=1).flatten().numpy()
    seen, first = np.unique(ends, return_index=True)
    when = np.full(len(ids), len(ends), dtype=np.int64)  # nodes without events come last
    when[seen] = first
    node[unknown[np.argsort(when[unknown], kind="stable")]] = len(known) + np.arange(len(unknown))
    return node


def _align_ids(ids: NodeIds, known: NodeIds, node: np.ndarray) -> NodeIds:
    new = np.flatnonzero(node >= len(known))
    added = pa.array(new[np.argsort(node[new])])
    values = concat_arrays(known.values, ids.values.take(added))
    if known.is_source is None or ids.is_source is None:
        return NodeIds(values)
    is_source = pa.concat_arrays([known.is_source, ids.is_source.take(added)])
    return NodeIds(values, is_source.true_count, is_source)


def _align_node_features(
    store: EventStore, earlier: EventStore, number: Tensor, num_nodes: int
) -> Float32[Tensor, "n dn"]:
    """Return the features of each node; a node that the dataset lacks keeps its earlier ones."""
    node = earlier.features.node.new_zeros(num_nodes, earlier.features.node.shape[1])
    node[: earlier.num_nodes] = earlier.features.node
    node[number] = store.features.node
    return node
