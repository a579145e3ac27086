"""A dataset as others hold events: an Arrow table, a data frame, PyG's TemporalData, a NetworkX graph.

`read` of each gives the same events back. Tables hold events, hence no node that has none, and no node's features; the
graphs hold those too.
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
    """One row per event: src, dst, time, label where there is one, and the features under their own names."""
    store = dataset.store.check_unchanged()
    ends = {name: dataset.ids.to_user(getattr(store, name).numpy()) for name in ("src", "dst")}
    columns: dict[str, Any] = ends | {"time": _make_time_column(dataset)}
    if store.label is not None:
        columns[LABEL_COLUMN] = pa.array(store.label.numpy())
    edge = store.features.edge.numpy()
    for k, name in enumerate(feature_names(dataset)):
        columns[name] = pa.array(np.ascontiguousarray(edge[:, k]))
    return pa.table(columns).replace_schema_metadata({METADATA_KEY: build_table_metadata(dataset).note()})


def to_pandas(dataset: "Dataset") -> Any:
    """The same table as a data frame."""
    require_package("pandas", "pandas")
    frame = to_arrow(dataset).to_pandas()
    frame.attrs[METADATA_KEY] = build_table_metadata(dataset).note()
    return frame


def to_pyg(dataset: "Dataset") -> Any:
    """A TemporalData: src and dst as numbers, t, msg and y; `ids` beside them says whose node a number is.

    Times that are whole numbers are integers, as PyG's own data have them. `ids` and the nodes' features `x` are
    attributes but no columns: PyG would cut columns that happen to be as long as the events.
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
    vars(data).update({"ids": dataset.ids, METADATA_KEY: build_table_metadata(dataset, dates=False).note()})
    if store.features.node.shape[1]:
        vars(data)["x"] = store.features.node.clone()
    return data


def to_networkx(dataset: "Dataset") -> Any:
    """A MultiDiGraph of the users' ids: an edge per event, its number the key, with `time`, `label` and the features.

    A node's features are its attribute `x`. In a stream of two sides, `bipartite` of a source is 0 and of a destination
    1; where both sides use an id, its nodes are (0, id) and (1, id), and their attribute `id` is the id alone.
    """
    require_package("networkx", "networkx")
    import networkx

    store, ids, table = dataset.store, dataset.ids, to_arrow(dataset)
    names, marks = ids.values.to_pylist(), [{} for _ in range(len(ids))]
    if ids.is_source is not None:
        side = [0 if source else 1 for source in ids.is_source.to_pylist()]
        marks = [{SIDE_ATTRIBUTE: number} for number in side]
        if len(set(names)) < len(names):
            marks = [{**mark, ID_ATTRIBUTE: name} for mark, name in zip(marks, names, strict=True)]
            names = [*zip(side, names, strict=True)]
    if store.features.node.shape[1]:
        for mark, row in zip(marks, store.features.node.tolist(), strict=True):
            mark["x"] = row
    graph: Any = networkx.MultiDiGraph(name=dataset.name)
    graph.graph[METADATA_KEY] = build_table_metadata(dataset).note()
    graph.add_nodes_from(zip(names, marks, strict=True))
    facts = table.drop_columns(["src", "dst"]).to_pylist()
    ends = zip(store.src.tolist(), store.dst.tolist(), strict=True)
    graph.add_edges_from(
        (names[u], names[v], number, fact)
        for number, ((u, v), fact) in enumerate(zip(ends, facts, strict=True))
    )
    return graph


def build_table_metadata(dataset: "Dataset", dates: bool = True) -> TableMetadata:
    """What a table of this dataset says of itself; where it has no `dates`, its times are numbers."""
    label = None if dataset.store.label is None else LABEL_COLUMN
    unit = "s" if dataset.origin.time_origin else "plain"
    unit = "auto" if dates and _to_microseconds(dataset) is not None else unit
    return TableMetadata(feature_names(dataset), label, dataset.store.bipartite, unit)


def feature_names(dataset: "Dataset") -> tuple[str, ...]:
    """What its source called them; by number where that is not known, or would not do for columns beside the others."""
    own, count = dataset.origin.features, dataset.store.features.edge.shape[1]
    plain = all(name and "," not in name and name not in (*EVENT_COLUMNS, LABEL_COLUMN) for name in own)
    if plain and len(own) == len(set(own)) == count:
        return own
    return tuple(f"feature_{k}" for k in range(count))


def require_package(package: str, name: str) -> None:
    """Refuse where a package is missing that is none of this one's own."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise ConfigError(f"this needs the package {name}, which is not installed; pip install {name}")


def _are_whole(time: np.ndarray) -> bool:
    """Whether integers hold the times: all are whole, none is too large, and none is the zero below zero."""
    return not len(time) or bool(
        (time == np.floor(time)).all()
        and np.abs(time).max() < MAX_EXACT_INTEGER
        and not np.signbit(time[time == 0]).any()
    )


def _make_time_column(dataset: "Dataset") -> pa.Array:
    """Dates where the source had dates and microseconds hold them, otherwise the numbers."""
    ticks = _to_microseconds(dataset)
    if ticks is None:
        return pa.array(dataset.store.time.numpy())
    return pa.array(ticks).cast(pa.timestamp("us", "UTC"))


def _to_microseconds(dataset: "Dataset") -> np.ndarray | None:
    """Microseconds since 1970, if the times are dates and not one of them is changed by that."""
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
