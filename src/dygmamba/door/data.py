"""Events in: from a file, a table in memory, the data folder, or a generator."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.config import build_config
from dygmamba.data.formats import ReadOptions, read_dataset
from dygmamba.data.formats.memory import read_held
from dygmamba.data.generate import GeneratorConfig, generate_stream
from dygmamba.data.ids import NodeIds
from dygmamba.data.library import GENERATED, open_dataset
from dygmamba.data.store import Dataset, Origin, checked_name

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    import torch_geometric.data

    Source = (
        str
        | Path
        | pandas.DataFrame
        | polars.DataFrame
        | pyarrow.Table
        | torch_geometric.data.TemporalData
        | Mapping[str, Any]
        | Sequence[tuple[Any, ...]]
    )
else:
    Source = Any


def read(
    source: "Source",
    *,
    src: str | None = None,
    dst: str | None = None,
    time: str | None = None,
    features: str | Sequence[str] = (),
    label: str | None = None,
    name: str | None = None,
    bipartite: bool | None = None,
    time_unit: str = "auto",
    fill: float | None = None,
    format: str = "auto",
    delimiter: str | None = None,
    encoding: str = "utf-8",
) -> Dataset:
    """The events of a file, a data frame, an Arrow table, a dict of columns, a TemporalData or a list of rows.

    Ids may be strings, times dates. Columns that are not named are looked for under their usual names. `bipartite`:
    source 7 is not destination 7. `time_unit` of numbers: auto (as they are), or s, ms, us, ns since 1970.

    >>> import dygmamba as dm
    >>> dm.read([("ann", "bob", "2024-05-01"), ("bob", "cid", "2024-05-02")], name="mail")
    <Dataset 'mail': 3 nodes, 2 events>
    """
    options = ReadOptions(
        src=src,
        dst=dst,
        time=time,
        features=(features,) if isinstance(features, str) else tuple(features),
        label=label,
        bipartite=bool(bipartite),
        time_unit=time_unit,
        fill=fill,
        delimiter=delimiter,
        encoding=encoding,
    )
    if isinstance(source, str | Path):
        return read_dataset(Path(source), options, format=format, name=name)
    dataset = read_held(source, options, bipartite)
    return dataset if name is None else replace(dataset, name=checked_name(name))


def load(name: str, data_dir: Path | str | None = None) -> Dataset:
    """The dataset of this name, in `data_dir`, $DYGMAMBA_DATA or the user's cache; `generated` is built in.

    >>> import dygmamba as dm
    >>> dm.load("generated")
    <Dataset 'generated': 240 nodes, 12,000 events>
    """
    return open_dataset(str(name), None if data_dir is None else Path(data_dir))


def generate(*, name: str = GENERATED, **settings: Any) -> Dataset:
    """A stream whose forgetting law is known; docs/generated-stream.md explains the settings.

    >>> import dygmamba as dm
    >>> dm.generate(nodes=30, events=200, communities=3, law="power").describe().events
    200
    """
    config = build_config(GeneratorConfig, settings)
    ids = NodeIds.identity(config.nodes)
    return Dataset.of(checked_name(name), generate_stream(config), ids, Origin(format=GENERATED))
