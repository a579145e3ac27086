"""Number the nodes and event types of a dataset as an earlier dataset does, matched by the user's ids and values."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.categories import recode
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.ids import IdIndex, NodeIds, order_by_first_event
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import get_codes


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
