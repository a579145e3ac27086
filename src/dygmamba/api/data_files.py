"""Datasets on disk: import and export files, fetch public datasets, describe and list what there is.

Modules that need torch are imported where they are used: a file that cannot be read is reported without it.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.core.memory_budget import parse_gigabytes
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.catalogue.known_datasets import CatalogueEntry, find_entry, load_catalogue
from dygmamba.data.catalogue.leaderboard_folders import LEADERBOARD_FORMATS, detect_folder_format
from dygmamba.data.storage.locations import (
    check_dataset_name,
    data_folder,
    data_folders,
    get_former_data_folder,
    get_user_data_folder,
)
from dygmamba.report.dataset_facts import build_dataset_document
from dygmamba.report.dataset_facts import describe_categories as describe_categories
from dygmamba.report.dataset_facts import describe_node_columns as describe_node_columns
from dygmamba.report.dataset_facts import describe_nodes as describe_nodes
from dygmamba.report.dataset_facts import describe_period as describe_period
from dygmamba.report.document import Document

if TYPE_CHECKING:
    from dygmamba.api.requests.data import DataExportRequest, GenerateRequest, ImportRequest
    from dygmamba.data.catalogue.fetch import FetchResult
    from dygmamba.data.events.anomalies import Anomaly
    from dygmamba.data.events.categories import Category
    from dygmamba.data.events.splits import SplitCounts, SplitRule
    from dygmamba.data.events.statistics import Statistics
    from dygmamba.data.generate.config import GeneratorConfig
    from dygmamba.data.readers import ReadOptions
    from dygmamba.data.readers.node_tables import NodeTableResult
    from dygmamba.data.storage.dataset import Dataset
    from dygmamba.data.storage.export import ExportResult
    from dygmamba.data.storage.library import SaveResult

MAX_COUNTED_EVENTS = 2_000_000  # of longer streams, duplicates are counted only if they are to be left out


@dataclass(frozen=True, slots=True)
class DatasetDescription:
    """A dataset, its statistics, and its default split with the counts of it (None without events)."""

    dataset: "Dataset"
    statistics: "Statistics"
    split: "SplitRule"
    counts: "SplitCounts | None"

    def build_document(self, *, unicode: bool = True) -> Document:
        """Return the facts as tables, and lines of blocks that are ASCII without `unicode`."""
        return build_dataset_document(
            self.dataset, self.statistics, self.split.label, self.counts, unicode=unicode
        )

    def to_dict(self) -> dict[str, Any]:
        """Return name, digest, statistics and the counts of the default split as plain values."""
        head = {
            "name": self.dataset.name,
            "digest": self.dataset.digest,
            "duration": self.statistics.duration,
        }
        features = self.dataset.store.features
        head["columns"] = _list_columns(features.edge_names, features.categories)
        rows = features.node_rows
        if rows is not None:
            columns = _list_columns(rows.names, rows.categories)
            head["node_columns"] = columns | {"rows": len(rows), "static": rows.is_static}
        counts = {} if self.counts is None else asdict(self.counts)
        split = {"split_by": self.split.description, "protocol": self.split.protocol, **counts}
        return head | asdict(self.statistics) | {"split": split}


def _list_columns(numeric: Sequence[str], categories: "Sequence[Category]") -> dict[str, Any]:
    return {
        "numeric": list(numeric),
        "categorical": {category.name: list(category.values) for category in categories},
    }


def describe_dataset(data: str, data_dir: Path | None = None) -> DatasetDescription:
    """Open a dataset, compute its statistics and count its default split."""
    from dygmamba.data.events.statistics import compute_statistics
    from dygmamba.data.storage.leaderboard import get_default_split
    from dygmamba.data.storage.library import open_dataset

    dataset = open_dataset(data, data_dir)
    store, rule = dataset.store, get_default_split(dataset)
    counts = rule.split(store).count(store) if len(store) else None
    return DatasetDescription(dataset, compute_statistics(store), rule, counts)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """An imported dataset, where it was saved, and what looks suspicious."""

    dataset: "Dataset"
    saved: "SaveResult"
    anomalies: "list[Anomaly]"
    duplicates: int | None  # events that repeat another in every column; None for streams too large to count
    dropped: bool  # whether they were left out
    node_table: "NodeTableResult | None" = None  # what was not used of the table of node features


def import_file(request: "ImportRequest", progress: Progress = SILENT) -> ImportResult:
    """Read files of events, check them, and save them as one dataset in the data folder."""
    from dygmamba.data.readers import ReadOptions, append_file, read_files

    folder, files, append = data_folder(request.data_dir), request.files, request.append

    def count_batches(batches: Iterator[Any], expected: int) -> Iterator[Any]:
        with progress.stage("reading", expected) as stage:
            for batch in batches:
                yield batch
                stage.advance(1)

    read_options = ReadOptions(
        **request.reading, memory=parse_gigabytes(request.memory), scratch=folder, watch=count_batches
    )
    if append is not None:
        from dygmamba.data.storage.library import lock_dataset, open_dataset

        # locked before it is read, so that what another process appends meanwhile is not lost
        with lock_dataset(open_dataset(append, request.data_dir).name, folder):
            dataset = open_dataset(append, request.data_dir)
            for path in files:
                dataset = append_file(dataset, path, read_options)
            return _save_import(dataset, folder, request, read_options)
    format = request.format
    format = detect_folder_format(files[0]) or format if format == "auto" else format
    own = None if format in LEADERBOARD_FORMATS else files[0].name.split(".")[0].removeprefix("ml_")
    chosen = None if request.name is None and own is None else check_dataset_name(request.name or str(own))
    dataset = read_files(list(files), read_options, format=format, name=chosen)

    from dygmamba.data.storage.library import lock_dataset

    with lock_dataset(dataset.name, folder):
        return _save_import(dataset, folder, request, read_options)


def _save_import(
    dataset: "Dataset", folder: Path, request: "ImportRequest", options: "ReadOptions"
) -> ImportResult:
    """Check imported events and save them, inside `lock_dataset`."""
    from dygmamba.data.events.anomalies import Anomaly, find_anomalies
    from dygmamba.data.readers.node_tables import add_node_features, require_node_table
    from dygmamba.data.storage.extension import drop_events, find_duplicates
    from dygmamba.data.storage.library import save_locked_dataset

    is_counted = request.drop_duplicates or len(dataset.store) <= MAX_COUNTED_EVENTS
    repeated = find_duplicates(dataset) if is_counted else None
    if repeated is not None and request.drop_duplicates:
        dataset = drop_events(dataset, repeated)
    nodes = None
    if request.node_features is None:
        require_node_table(request.node_time)
    else:
        nodes = add_node_features(dataset, request.node_features, request.node_time, options)
        dataset = nodes.dataset
    anomalies, saved = find_anomalies(dataset), save_locked_dataset(dataset, folder)
    if nodes is not None and nodes.warning is not None:
        anomalies.append(Anomaly("repeated nodes", nodes.warning))
    duplicates = None if repeated is None else int(repeated.sum())
    return ImportResult(dataset, saved, anomalies, duplicates, request.drop_duplicates, nodes)


def export_file(request: "DataExportRequest") -> "tuple[Dataset, ExportResult]":
    """Write a dataset's events into a file, in the format of its suffix; formulas in CSV are escaped unless `raw`."""
    from dygmamba.data.storage.export import export_dataset, parse_export_format
    from dygmamba.data.storage.library import open_dataset

    parse_export_format(request.to)
    dataset = open_dataset(request.data, request.data_dir)
    return dataset, export_dataset(dataset, request.to, request.raw)


def fetch(
    name: str, *, data_dir: Path | None = None, progress: Progress = SILENT
) -> "tuple[FetchResult, str | None]":
    """Download a public dataset, unless it is on disk already. An interrupted download continues the next time.

    Returns:
        Where the dataset is and how it got there, and the command that imports it (None if it needs no import).
    """
    from dygmamba.data.catalogue.fetch import fetch_dataset, format_import_command, is_fetched

    entry, folder = find_entry(name), data_folder(data_dir)
    if folder == get_user_data_folder() and is_fetched(entry, get_former_data_folder()):
        folder = get_former_data_folder()
    try:
        with ExitStack() as stack:
            stages: dict[int | None, Progress] = {}

            def report(added: int, total: int | None) -> None:
                if total not in stages:  # the size is known with the first answer
                    stage = progress.stage(entry.archive, total, unit="bytes")
                    stages[total] = stack.enter_context(stage)
                stages[total].advance(added)

            result = fetch_dataset(entry, folder, progress=report)
    except KeyboardInterrupt:
        if (folder / f"{entry.archive}.part").exists():
            progress.message(
                f"the part of {entry.archive} that arrived is kept; the same command continues it"
            )
        raise
    return result, format_import_command(result)


def generate_file(
    request: "GenerateRequest", progress: Progress = SILENT
) -> "tuple[Dataset, Path, GeneratorConfig]":
    """Generate a synthetic dataset, and save it in the data folder; returns it with its path and its settings."""
    from dygmamba.config import build_config
    from dygmamba.data.generate.config import GeneratorConfig
    from dygmamba.data.storage.dataset import save_dataset
    from dygmamba.data.storage.library import generate_dataset

    config, folder = build_config(GeneratorConfig, dict(request.settings)), data_folder(request.data_dir)
    with progress.stage(f"generating {config.events:,} events"):
        dataset = generate_dataset(request.name, config, folder)
        return dataset, save_dataset(dataset, folder), config


def list_datasets(
    data_dir: Path | None = None, runs: Path = Path("runs")
) -> tuple[list[dict[str, Any]], list[tuple[CatalogueEntry, Path | None]]]:
    """List imported datasets with the runs that use them, and public ones with the data folder that they are in."""
    from dygmamba.api.datasets import datasets
    from dygmamba.data.catalogue.fetch import is_fetched

    folders = data_folders(data_dir)
    public = [
        (entry, next((folder for folder in folders if is_fetched(entry, folder)), None))
        for entry in load_catalogue().values()
    ]
    return datasets(data_dir=data_dir, runs=runs).to_pylist(), public
