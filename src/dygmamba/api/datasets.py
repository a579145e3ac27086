"""Datasets: read events from files and tables, generate them, and keep them in the data folder."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dygmamba.config import build_config
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.errors import FileError, NotFoundError
from dygmamba.core.memory_budget import DEFAULT_BUDGET, parse_gigabytes
from dygmamba.core.progress import LOGGER
from dygmamba.data.generate.config import GeneratorConfig
from dygmamba.data.readers import ReadOptions, read_files, read_in_memory
from dygmamba.data.readers.node_tables import add_node_features, require_node_table
from dygmamba.data.storage.dataset import VERSION_SEPARATOR, Dataset
from dygmamba.data.storage.extension import drop_events, find_duplicates
from dygmamba.data.storage.library import (
    DatasetVersion,
    generate_dataset,
    list_versions,
    open_dataset,
    remove_version,
    save_dataset_version,
)
from dygmamba.data.storage.locations import GENERATED, check_dataset_name, data_folder, data_folders
from dygmamba.data.storage.mapped_file import is_in_use
from dygmamba.runs.dataset_usage import DatasetUse, find_dataset_uses

if TYPE_CHECKING:
    import networkx
    import pandas
    import polars
    import pyarrow
    import torch_geometric.data

    Source = (
        str
        | Path
        | Sequence[str | Path]
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


@check_arguments
def read(
    source: "Source",
    *,
    src: str | int | None = None,
    dst: str | int | None = None,
    time: str | int | None = None,
    features: str | int | Sequence[str | int] = (),
    types: str | int | Sequence[str | int] = (),
    columns: bool = True,
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
    query: str | None = None,
    skip_bad: bool = False,
    memory: float = DEFAULT_BUDGET / 1e9,
    scratch: Path | str | None = None,
    decimal: str | None = None,
    drop_duplicates: bool = False,
    node_features: "Source | None" = None,
    node_time: str | None = None,
) -> Dataset:
    """Read events from a file, a data frame, an Arrow table, a dict of columns, a TemporalData, a graph or rows.

    Ids may be strings, times may be dates. The delimiter, column names and the format and unit of times are detected;
    `origin` of the dataset says how the source was read, and `origin.unused_columns` which columns were not.

    Args:
        source: A file, several files with the same columns, or a table in memory. The columns of a NetworkX graph are
            the attributes of its edges.
        src: Column of source ids, a name or a position from 0; by default searched under its usual names.
        dst: Column of destination ids.
        time: Column of times, numbers or dates.
        features: Numeric columns to use as edge features; without `features` and `types`, all usable columns are.
        types: Categorical columns, such as the type of an event.
        columns: Whether to use other columns than source, destination and time if none are named.
        label: Column of labels.
        name: Name of the dataset; by default that of the file.
        bipartite: Keep sources and destinations with the same id apart.
        time_unit: Unit of numeric times: "auto" (by their size), "s", "ms", "us", "ns" since 1970, or "plain".
        time_format: Format of dates, such as "%d.%m.%Y %H:%M". Dates without a time zone are UTC.
        fill: Replaces missing features and labels.
        format: "auto", or the name of a file format.
        header: Whether the first line names the columns.
        delimiter: Delimiter of a text file.
        encoding: Encoding of a text file.
        query: Rows of a database file (SQLite, DuckDB), such as "SELECT sender, receiver, sent FROM mail".
        skip_bad: Leave out rows that cannot be read.
        memory: GB that the rows of a file may take; more are sorted on disk.
        scratch: Folder for sorting on disk; by default the system's temporary folder.
        decimal: Decimal mark of features that are text, "." or ","; by default detected.
        drop_duplicates: Leave out events that repeat another one in every column.
        node_features: A file or table of node features: a column of nodes, one of times if they change, and others.
            For a query, the last row of a node strictly before the query time counts.
        node_time: Column of times of the node features; by default one with a usual name, such as time.

    >>> import dygmamba as dm
    >>> dm.read([("ann", "bob", "2024-05-01"), ("bob", "cid", "2024-05-02")], name="mail")
    <Dataset 'mail': 3 nodes, 2 events>
    """
    given = {name: value for name, value in locals().items() if name in ReadOptions.__dataclass_fields__}
    columns_by_role = {"src": src, "dst": dst, "time": time, "label": label}
    given |= {role: None if name is None else str(name) for role, name in columns_by_role.items()}
    given |= {
        "features": _name_columns(features),
        "types": _name_columns(types),
        "bipartite": bool(bipartite),
    }
    given |= {"memory": parse_gigabytes(memory), "scratch": None if scratch is None else Path(scratch)}
    options = ReadOptions(**given)
    files = _list_files(source)
    if files:
        dataset = read_files(files, options, format=format, name=name)
    else:
        dataset = read_in_memory(source, options, bipartite)
        dataset = dataset if name is None else replace(dataset, name=check_dataset_name(name))
    dataset = drop_events(dataset, find_duplicates(dataset)) if drop_duplicates else dataset
    if node_features is None:
        require_node_table(node_time)
        return dataset
    result = add_node_features(dataset, node_features, node_time, options)
    if result.warning is not None:
        LOGGER.warning("%s", result.warning)
    return result.dataset


def _list_files(source: "Source") -> list[Path]:
    """Return the files that are given, one or several; none for a table."""
    parts = [source] if isinstance(source, str | Path) else source if isinstance(source, list | tuple) else []
    files = [Path(part) for part in parts if isinstance(part, str | Path)]
    return files if len(files) == len(parts) else []


def _name_columns(names: str | int | Sequence[str | int]) -> tuple[str, ...]:
    return tuple(map(str, (names,) if isinstance(names, str | int) else names))


def resolve_data(data: "Dataset | Source") -> Dataset | str:
    """Return a dataset as it is and a name or path as a string; any other table is read with the defaults."""
    if isinstance(data, Dataset):
        return data
    return str(data) if isinstance(data, str | Path) else read(data)


def open_data(data: "Dataset | Source", data_dir: Path | None = None) -> Dataset:
    """Return a dataset as it is, open the one of a name or path, or read a table with the defaults."""
    data = resolve_data(data)
    return open_dataset(data, data_dir) if isinstance(data, str) else data


@check_arguments
def load(name: str, data_dir: Path | str | None = None) -> Dataset:
    """Load a dataset by name from `data_dir`, $DYGMAMBA_DATA or the user's data folder; "generated" is built in.

    >>> import dygmamba as dm
    >>> dm.load("generated")
    <Dataset 'generated': 240 nodes, 12,000 events>
    """
    return open_dataset(str(name), None if data_dir is None else Path(data_dir))


@check_arguments
def generate(*, name: str = GENERATED, scratch: Path | str | None = None, **settings: Any) -> Dataset:
    """Generate a dataset whose decay law is known.

    The documentation of the generated stream explains the settings. A dataset that is too large for memory is written
    to `scratch`, by default the system's temporary folder.

    >>> import dygmamba as dm
    >>> dm.generate(nodes=30, events=200, communities=3, law="power").describe().events
    200
    """
    config = build_config(GeneratorConfig, settings)
    return generate_dataset(name, config, None if scratch is None else Path(scratch))


DATASET_COLUMNS = {
    "name": pa.string(),
    "version": pa.string(),
    "newest": pa.bool_(),
    "nodes": pa.int64(),
    "events": pa.int64(),
}
DATASET_COLUMNS |= {"runs": pa.list_(pa.string()), "path": pa.string()}


@check_arguments
def save(dataset: Dataset, *, data_dir: Path | str | None = None) -> Path:
    """Save a dataset in the data folder under its name; another one of that name is kept as NAME@VERSION.

    >>> import dygmamba as dm
    >>> path = dm.save(dm.read([("ann", "bob", 1), ("bob", "cid", 2)], name="mail"), data_dir="data")
    >>> dm.load("mail", "data")
    <Dataset 'mail': 3 nodes, 2 events>
    """
    return save_dataset_version(dataset, data_folder(None if data_dir is None else Path(data_dir))).path


@check_arguments
def datasets(*, data_dir: Path | str | None = None, runs: Path | str = "runs") -> pa.Table:
    """List the imported datasets in all versions, with the runs under `runs` that were trained on each.

    >>> import dygmamba as dm
    >>> path = dm.save(dm.read([("ann", "bob", 1)], name="mail"), data_dir="data")
    >>> dm.datasets(data_dir="data").select(["name", "newest", "events", "runs"]).to_pylist()
    [{'name': 'mail', 'newest': True, 'events': 1, 'runs': []}]
    """
    known = find_dataset_uses(Path(runs))
    rows = [
        {
            **{key: getattr(version, key) for key in ("name", "version", "newest", "nodes", "events")},
            "runs": [str(use.run) for use in known if use.is_of(version)],
            "path": str(version.path),
        }
        for version in _list_versions(None if data_dir is None else Path(data_dir))
    ]
    return pa.Table.from_pylist(rows, pa.schema(DATASET_COLUMNS))


@check_arguments
def remove(
    name: str, *, data_dir: Path | str | None = None, runs: Path | str = "runs", force: bool = False
) -> list[str]:
    """Delete NAME@VERSION, or all versions of NAME, unless a run under `runs` needs one; returns their names.

    Runs in other folders are not known, except while they are being trained.

    >>> import dygmamba as dm
    >>> path = dm.save(dm.read([("ann", "bob", 1)], name="mail"), data_dir="data")
    >>> len(dm.remove("mail", data_dir="data"))
    1
    """
    versions = _find_versions(name, None if data_dir is None else Path(data_dir))
    uses = find_dataset_uses(Path(runs))
    for version in versions:
        users = [use for use in uses if use.is_of(version)]
        if users and not force:
            raise FileError(
                f"{_name_version(version)} is the data of {_describe_users(users)}; remove the runs first, or give "
                "`force=True`",
                code="dataset-in-use",
            )
        if not force and is_in_use(version.path):
            raise FileError(
                f"{_name_version(version)} is the data of a training that is running; wait until it is done, or give "
                "`force=True`",
                code="dataset-in-use",
            )
    for version in reversed(versions):  # the newest last, so that no older one takes its name in between
        remove_version(version)
    return [_name_version(version) for version in versions]


def _list_versions(data_dir: Path | None) -> list[DatasetVersion]:
    folders = dict.fromkeys(folder.absolute() for folder in data_folders(data_dir))
    return [version for folder in folders for version in list_versions(folder)]


def _find_versions(name: str, data_dir: Path | None) -> list[DatasetVersion]:
    base, _, wanted = name.partition(VERSION_SEPARATOR)
    versions = [version for version in _list_versions(data_dir) if version.name == base]
    # of several data folders the first one that has the name counts
    first = [version for version in versions if version.path.parent == versions[0].path.parent]
    matching = [version for version in first if wanted in ("", version.version)]
    matching = matching or [version for version in versions if version.version == wanted][:1]
    if not matching:
        hint = (
            f"there is {', '.join(map(_name_version, versions))}" if versions else "see `dygmamba data list`"
        )
        raise NotFoundError(f"no imported dataset is named {name!r}; {hint}", code="unknown-dataset")
    return matching


def _name_version(version: DatasetVersion) -> str:
    return f"{version.name}{VERSION_SEPARATOR}{version.version}"


def _describe_users(users: list[DatasetUse]) -> str:
    more = f" and {len(users) - 1:,} more run{'s' * (len(users) > 2)}" if len(users) > 1 else ""
    return f"{users[0].run}{more}"
