"""Convert datasets to tables of other libraries: Arrow table, data frame.

`dygmamba.read` restores the same events from each. Tables hold only events: nodes without events and node features are
lost.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dygmamba.core.choices import TIME_UNITS
from dygmamba.core.errors import make_package_error
from dygmamba.data.readers.options import METADATA_KEY, Layout, format_metadata
from dygmamba.data.readers.times import ticks_to_seconds

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

EVENT_COLUMNS = ("src", "dst", "time")
LABEL_COLUMN = "label"
CALENDAR_RANGE = (-62_135_596_800, 253_402_300_800)  # the years 1 to 9999


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
        codes = pa.array(np.ascontiguousarray(store.features.codes[:, k].numpy()))
        columns[name] = pa.array(category.values, pa.large_string()).take(codes)
    metadata = {METADATA_KEY: format_metadata(describe_layout(dataset))}
    return pa.table(columns).replace_schema_metadata(metadata)


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
    frame.attrs[METADATA_KEY] = format_metadata(describe_layout(dataset))
    return frame


def describe_layout(dataset: "Dataset") -> Layout:
    """Return the layout that a converted table carries."""
    label = None if dataset.store.label is None else LABEL_COLUMN
    unit = "s" if dataset.origin.time_origin else "plain"
    unit = "auto" if _to_microseconds(dataset) is not None else unit
    names = {"features": feature_names(dataset), "types": type_names(dataset), "label": label}
    return Layout(**names, bipartite=dataset.store.bipartite, time_unit=unit)


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
        raise make_package_error("this", name, name)


def make_time_column(dataset: "Dataset") -> pa.Array:
    """Return dates if the source had dates and microseconds represent them exactly, otherwise numbers."""
    ticks = _to_microseconds(dataset)
    if ticks is None:
        return pa.array(dataset.store.time.numpy())
    return pa.array(ticks).cast(pa.timestamp("us", "UTC"))


def _to_microseconds(dataset: "Dataset") -> np.ndarray | None:
    """Return microseconds since 1970 if the timestamps are dates and the conversion is exact for all of them."""
    time = dataset.store.time.numpy()
    if not dataset.origin.time_origin or not len(time):
        return None
    if not CALENDAR_RANGE[0] <= time[0] <= time[-1] < CALENDAR_RANGE[1]:
        return None
    whole, second = np.floor(time), TIME_UNITS["us"]
    ticks = whole.astype(np.int64) * second + np.rint((time - whole) * second).astype(np.int64)
    return ticks if ticks_to_seconds(pa.array(ticks), second).tobytes() == time.tobytes() else None
