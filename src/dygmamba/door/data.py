"""Events in: from a file, a table in memory, the data folder, or a generator."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.config import build_config
from dygmamba.data.formats import ReadOptions, read_dataset
from dygmamba.data.formats.memory import read_held
from dygmamba.data.generate import GeneratorConfig
from dygmamba.data.library import GENERATED, generated_as, open_dataset
from dygmamba.data.store import Dataset, checked_name
from dygmamba.room import BUDGET, bytes_of

if TYPE_CHECKING:
    import networkx
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
        | networkx.Graph
        | Mapping[str, Any]
        | Sequence[tuple[Any, ...]]
    )
else:
    Source = Any


def read(
    source: "Source",
    *,
    src: str | int | None = None,
    dst: str | int | None = None,
    time: str | int | None = None,
    features: str | int | Sequence[str | int] = (),
    label: str | int | None = None,
    name: str | None = None,
    bipartite: bool | None = None,
    time_unit: str = "auto",
    time_format: str | None = None,
    fill: float | None = None,
    format: str = "auto",
    header: bool | None = None,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    skip_bad: bool = False,
    memory: float = BUDGET / 1e9,
    scratch: Path | str | None = None,
) -> Dataset:
    """The events of a file, a data frame, an Arrow table, a dict of columns, a TemporalData, a graph or rows.

    Ids may be strings, times dates. A file is read as it lies: delimiter, column names, spelling and unit of the times
    are found out, and `origin` of the dataset says how it was understood. Columns that are not named are looked for
    under their usual names, and may be given by their places from 0. Of a NetworkX graph they are the attributes of its
    edges. `bipartite`: source 7 is not destination 7.
    `time_unit` of numbers: auto (by their size), s, ms, us, ns since 1970, or plain; `time_format` of dates, such as
    "%d.%m.%Y %H:%M"; without a zone they are UTC. `header=False`: the first line is an event. `skip_bad`: go on
    without rows that cannot be read. `memory`: GB that the rows of a file may take; more of them are sorted on
    the disk, in `scratch` or the system's temporary folder, and lie there, without a name, as long as they are used.

    >>> import dygmamba as dm
    >>> dm.read([("ann", "bob", "2024-05-01"), ("bob", "cid", "2024-05-02")], name="mail")
    <Dataset 'mail': 3 nodes, 2 events>
    """
    options = ReadOptions(
        src=_column(src),
        dst=_column(dst),
        time=_column(time),
        features=tuple(map(str, (features,) if isinstance(features, str | int) else features)),
        label=_column(label),
        bipartite=bool(bipartite),
        time_unit=time_unit,
        fill=fill,
        delimiter=delimiter,
        encoding=encoding,
        header=header,
        time_format=time_format,
        skip_bad=skip_bad,
        memory=bytes_of(memory),
        scratch=None if scratch is None else Path(scratch),
    )
    if isinstance(source, str | Path):
        return read_dataset(Path(source), options, format=format, name=name)
    dataset = read_held(source, options, bipartite)
    return dataset if name is None else replace(dataset, name=checked_name(name))


def _column(name: str | int | None) -> str | None:
    return None if name is None else str(name)


def load(name: str, data_dir: Path | str | None = None) -> Dataset:
    """The dataset of this name, in `data_dir`, $DYGMAMBA_DATA or the user's cache; `generated` is built in.

    >>> import dygmamba as dm
    >>> dm.load("generated")
    <Dataset 'generated': 240 nodes, 12,000 events>
    """
    return open_dataset(str(name), None if data_dir is None else Path(data_dir))


def generate(*, name: str = GENERATED, scratch: Path | str | None = None, **settings: Any) -> Dataset:
    """A stream whose forgetting law is known; docs/generated-stream.md explains the settings.

    One that is too large for memory is made on the disk, in `scratch` or the system's temporary folder.

    >>> import dygmamba as dm
    >>> dm.generate(nodes=30, events=200, communities=3, law="power").describe().events
    200
    """
    config = build_config(GeneratorConfig, settings)
    return generated_as(name, config, None if scratch is None else Path(scratch))
