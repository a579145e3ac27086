"""Convert datasets to objects of other libraries: Arrow table, data frame, PyG TemporalData, NetworkX graph.

`dygmamba.read` restores the same events from each. Tables hold only events: nodes without events and node features are
lost. The graphs keep both.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import ConfigError
from dygmamba.data.readers.in_memory import ID_ATTRIBUTE, SIDE_ATTRIBUTE
from dygmamba.data.readers.options import METADATA_KEY, TIME_UNITS, TableMetadata
from dygmamba.data.readers.times import ticks_to_seconds

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

EVENT_COLUMNS = ("src", "dst", "time")
LABEL_COLUMN = "label"
CALENDAR_RANGE = (-62_135_596_800, 253_402_300_800)  # the years 1 to 9999
MAX_EXACT_INTEGER = 2**53


def to_arrow(dataset: "Dataset") -> pa.Table:
    """Return a table with a row per event: src, dst, time, label if there is one, and the features by name."""
    store = dataset.store.check_unchanged()
    ends = {name: dataset.ids.to_user(getattr(store, name).numpy()) for name in ("src", "dst")}
    columns: dict[str, Any] = ends | {"time": make_time_column(dataset)}
    if store.label is not None:
        columns[LABEL_COLUMN] = _label_array(dataset)
    edge = store.features.edge.numpy()
    for k, name in enumerate(feature_names(dataset)):
        columns[name] = pa.array(np.ascontiguousarray(edge[:, k]))
    for k, (name, category) in enumerate(zip(type_names(dataset), store.features.categories, strict=True)):
        assert store.features.codes is not None
        columns[name] = pa.array(category.values, pa.large_string()).take(
            pa.array(np.ascontiguousarray(store.features.codes[:, k].numpy()))
        )
    return pa.table(columns).replace_schema_metadata({METADATA_KEY: build_table_metadata(dataset).to_json()})


def _label_array(dataset: "Dataset") -> pa.Array:
    """Return the labels as numbers, or as text if the source had text; null where a label is unknown."""
    assert dataset.store.label is not None
    label = dataset.store.label.numpy()
    unknown = np.isnan(label)
    if not dataset.origin.classes:
        return pa.array(label, mask=unknown if unknown.any() else None)
    number = pa.array(np.nan_to_num(label).astype(np.int64), mask=unknown)
    return pa.array(dataset.origin.classes).take(number)


def to_pandas(dataset: "Dataset") -> Any:
    """Return the table of `to_arrow` as a data frame."""
    require_package("pandas", "pandas")
    frame = to_arrow(dataset).to_pandas()
    frame.attrs[METADATA_KEY] = build_table_metadata(dataset).to_json()
    return frame


def to_pyg(dataset: "Dataset") -> Any:
    """Return a TemporalData with src, dst, t, msg and y; its attribute `ids` maps nodes to the user's ids.

    Whole-number timestamps are integers, as in PyG's own datasets.
    """
    require_package("torch_geometric", "torch_geometric")
    import torch
    from torch_geometric.data import TemporalData

    store = dataset.store.check_unchanged()
    time = store.time.to(torch.int64) if _are_whole(store.time.numpy()) else store.time.clone()
    columns = {} if store.label is None else {"y": store.label.clone()}
    if store.features.edge.shape[1]:
        columns["msg"] = store.features.edge.clone()
    data = TemporalData(src=store.src.clone(), dst=store.dst.clone(), t=time, **columns)
    # Plain attributes, not columns: PyG would slice a column that happens to be as long as the events.
    vars(data).update(
        {"ids": dataset.ids, METADATA_KEY: build_table_metadata(dataset, dates=False).to_json()}
    )
    if store.features.node.shape[1]:
        vars(data)["x"] = store.features.node.clone()
    return data


def to_networkx(dataset: "Dataset") -> Any:
    """Return a MultiDiGraph of the user's ids with an edge per event: key = event id, `time`, `label`, features.

    Node features are the node attribute `x`. In a bipartite stream the node attribute `bipartite` is 0 for sources and
    1 for destinations; if both sides use the same ids, the nodes are (0, id) and (1, id) with the attribute `id`.
    """
    require_package("networkx", "networkx")
    import networkx

    store, ids, table = dataset.store, dataset.ids, to_arrow(dataset)
    names, attributes = ids.values.to_pylist(), [{} for _ in range(len(ids))]
    if ids.is_source is not None:
        side = [0 if source else 1 for source in ids.is_source.to_pylist()]
        attributes = [{SIDE_ATTRIBUTE: number} for number in side]
        if len(set(names)) < len(names):  # an id is used on both sides
            attributes = [{**own, ID_ATTRIBUTE: name} for own, name in zip(attributes, names, strict=True)]
            names = [*zip(side, names, strict=True)]
    if store.features.node.shape[1]:
        for own, row in zip(attributes, store.features.node.tolist(), strict=True):
            own["x"] = row
    graph: Any = networkx.MultiDiGraph(name=dataset.name)
    graph.graph[METADATA_KEY] = build_table_metadata(dataset).to_json()
    graph.add_nodes_from(zip(names, attributes, strict=True))
    events = table.drop_columns(["src", "dst"]).to_pylist()
    ends = zip(store.src.tolist(), store.dst.tolist(), strict=True)
    graph.add_edges_from(
        (names[u], names[v], number, event)
        for number, ((u, v), event) in enumerate(zip(ends, events, strict=True))
    )
    return graph


def build_table_metadata(dataset: "Dataset", dates: bool = True) -> TableMetadata:
    """Return the metadata that a converted table carries; without `dates` its timestamps are numbers."""
    label = None if dataset.store.label is None else LABEL_COLUMN
    unit = "s" if dataset.origin.time_origin else "plain"
    unit = "auto" if dates and _to_microseconds(dataset) is not None else unit
    return TableMetadata(feature_names(dataset), label, dataset.store.bipartite, unit, type_names(dataset))


def feature_names(dataset: "Dataset") -> tuple[str, ...]:
    """Return the names of the edge features in the source; numbered ones if they are unknown or not usable."""
    own, count = dataset.origin.features, dataset.store.features.edge.shape[1]
    return own if _are_usable(own) and len(own) == count else tuple(f"feature_{k}" for k in range(count))


def type_names(dataset: "Dataset") -> tuple[str, ...]:
    """Return the names of the categorical columns; numbered ones if they are not usable beside the features."""
    own = tuple(category.name for category in dataset.store.features.categories)
    usable = _are_usable((*own, *feature_names(dataset)))
    return own if usable else tuple(f"type_{k}" for k in range(len(own)))


def _are_usable(names: tuple[str, ...]) -> bool:
    """Return whether these names are distinct, can be given in a list, and are none of the other columns."""
    taken = (*EVENT_COLUMNS, LABEL_COLUMN)
    return len(set(names)) == len(names) and all(
        name and "," not in name and name not in taken for name in names
    )


def require_package(package: str, name: str) -> None:
    """Raise ConfigError if an optional package is not installed."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise ConfigError(
            f"this needs the package {name}, which is not installed; pip install {name}",
            code="package-missing",
        )


def _are_whole(time: np.ndarray) -> bool:
    """Return whether all timestamps are exact as integers: whole, below 2^53, and no negative zero."""
    return not len(time) or bool(
        (time == np.floor(time)).all()
        and np.abs(time).max() < MAX_EXACT_INTEGER
        and not np.signbit(time[time == 0]).any()
    )


def make_time_column(dataset: "Dataset") -> pa.Array:
    """Return dates if the source had dates and microseconds represent them exactly, otherwise numbers."""
    ticks = _to_microseconds(dataset)
    if ticks is None:
        return pa.array(dataset.store.time.numpy())
    return pa.array(ticks).cast(pa.timestamp("us", "UTC"))


def _to_microseconds(dataset: "Dataset") -> np.ndarray | None:
    """Return microseconds since 1970 if the timestamps are dates and the conversion is exact for all of them."""
    time = dataset.store.time.numpy()
    if (
        not dataset.origin.time_origin
        or not len(time)
        or not CALENDAR_RANGE[0] <= time[0] <= time[-1] < CALENDAR_RANGE[1]
    ):
        return None
    whole = np.floor(time)
    ticks = whole.astype(np.int64) * TIME_UNITS["us"] + np.rint((time - whole) * TIME_UNITS["us"]).astype(
        np.int64
    )
    same = ticks_to_seconds(pa.array(ticks), TIME_UNITS["us"]).tobytes() == time.tobytes()
    return ticks if same else None
