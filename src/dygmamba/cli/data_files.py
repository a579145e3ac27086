"""Commands of `dygmamba data` on files: import a file of events, export a dataset."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.api.formatting import format_date
from dygmamba.cli import options as cli
from dygmamba.cli.console import emit_json, print_line, print_note
from dygmamba.cli.messages import translate_message
from dygmamba.cli.progress import show_progress
from dygmamba.cli.reading_options import with_reading_options
from dygmamba.core.choices import FORMATS
from dygmamba.core.memory_budget import DEFAULT_BUDGET

if TYPE_CHECKING:
    from dygmamba.api.data_files import Dataset, ImportResult

DELIMITER_TITLES = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks", "": ""}
DATE_ORDERS = {"ymd": "year, month, day", "dmy": "day, month, year", "mdy": "month, day, year"}
TIME_ZONES = {
    "none": "without a time zone, read as UTC",
    "given": "with time zones, converted to UTC",
    "mixed": "those without a time zone read as UTC, the others converted to UTC",
}
SHOWN_FEATURES = 8


@with_reading_options
def import_dataset(
    file: list[Path] = cli.argument(
        "Import this file (CSV, SNAP, KONECT, JSONL, Parquet, Arrow, SQLite, DuckDB, JODIE, DyGLib, npz) or "
        "folder (TGB, TGB-Seq); several files with the same columns become one dataset."
    ),
    *,
    reading: dict[str, Any],
    no_columns: bool = cli.flag(
        "--no-columns", "Leave out all columns but source, destination, time and label."
    ),
    label: str | None = cli.optional("Read labels from this column."),
    bipartite: bool = cli.flag("--bipartite", "Keep sources and destinations with the same id apart."),
    append: str | None = cli.optional("Add the events to this dataset, as a new version of it."),
    node_features: Path | None = cli.optional(
        "Read node features from this table: a column of nodes, one of times if they change, and others."
    ),
    node_time: str | None = cli.optional(
        "Read the times of node features from this column; a row counts for later events."
    ),
    drop_duplicates: bool = cli.flag(
        "--drop-duplicates", "Leave out events that repeat another in every column."
    ),
    format: str = cli.option("auto", f"Read this format: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}."),
    query: str | None = cli.optional(
        "Read the rows of this query of a database file, e.g. 'SELECT a, b, sent FROM mail'."
    ),
    memory: float = cli.option(
        DEFAULT_BUDGET / 1e9, "Keep rows up to this many GB in memory; sort more of them on disk."
    ),
    name: str | None = cli.optional("Name the dataset.", "--out", default="the file's name"),
    data_dir: Path | None = cli.DATA_DIR,
    json: bool = cli.AS_JSON,
) -> None:
    """Import a file of events as a dataset, and show how it was read and what looks suspicious."""
    from dygmamba.api.requests.data import ImportRequest

    reading |= {"columns": not no_columns, "label": label, "bipartite": bipartite, "query": query}
    request = ImportRequest.from_arguments(locals(), files=file).check()

    from dygmamba.api.data_files import import_file

    with show_progress() as progress:
        result = import_file(request, progress)
    _print_import_notes(result.dataset)
    _print_node_notes(result)
    if json:
        _print_import_json(result)
    else:
        _print_import(result, data_dir)


def _print_import_notes(dataset: "Dataset") -> None:
    """Print on stderr what was done to the rows."""
    origin = dataset.origin
    if not origin.header:
        columns = f"{origin.src} is the source, {origin.dst} the destination, {origin.time} the time"
        print_note(
            f"note: the first line is an event, so columns have numbers: {columns} (use --header if not)"
        )
    if origin.skipped:
        more = origin.skipped - len(origin.skipped_first)
        examples = "; ".join([*origin.skipped_first, *([f"and {more:,} more"] if more else [])])
        print_note(f"note: {origin.skipped:,} bad rows were left out: {examples}")
    if origin.out_of_order:
        print_note(
            f"note: {origin.out_of_order:,} rows were out of order; sorted by time, ties in the order of the file"
        )
    if origin.unused_columns:
        print_note(f"note: {_describe_unused(origin.unused_columns, origin.unused_reasons)}")


def _print_node_notes(result: "ImportResult") -> None:
    """Print on stderr what was not used of the table of node features."""
    table = result.node_table
    if table is not None and table.unknown:
        print_note(f"note: {table.unknown:,} rows of node features were left out: their nodes have no event")
    if table is not None and table.unused:
        shown = ", ".join(
            f"{column} ({translate_message(reason)})" for column, reason in table.unused.items()
        )
        print_note(f"note: unused columns of node features: {shown}")


def _describe_unused(columns: tuple[str, ...], reasons: tuple[str, ...], most: int = 12) -> str:
    """Name the columns that were not read with the reasons, and the options that add them."""
    more = f" and {len(columns) - most:,} more" if len(columns) > most else ""
    shown = ", ".join(
        f"{column} ({translate_message(reason)})"
        for column, reason in zip(columns[:most], reasons, strict=False)
    )
    return f"unused columns: {shown}{more}; add them with --features (numbers) or --types (categories)"


def _print_import_json(result: "ImportResult") -> None:
    dataset, saved = result.dataset, result.saved
    store, origin = dataset.store, dataset.origin
    start, end = float(store.time[0]), float(store.time[-1])
    facts: dict[str, Any] = {"name": dataset.name, "version": dataset.version, "path": str(saved.path)}
    facts |= {"saved": saved.how, "kept": None if saved.kept is None else saved.kept.stem}
    facts |= {"nodes": store.num_nodes, "events": len(store), "start": start, "end": end}
    if dataset.is_dated:
        facts |= {"from": format_date(start), "to": format_date(end)}
    facts |= {"bipartite": store.bipartite, "labels": store.label is not None}
    facts |= {"features": store.features.edge.shape[1], "out_of_order": origin.out_of_order}
    facts |= {"types": {category.name: len(category.values) for category in store.features.categories}}
    if store.features.node_rows is not None:
        facts |= {"node_features": list(store.features.node_rows.column_names)}
    facts |= {"duplicates": result.duplicates, "dropped_duplicates": result.dropped}
    facts |= {"digest": dataset.digest, "understood": asdict(origin)}
    odd = [{"kind": anomaly.kind, "said": translate_message(anomaly.message)} for anomaly in result.anomalies]
    emit_json(facts | {"odd": odd})


def _print_import(result: "ImportResult", data_dir: Path | None) -> None:
    from dygmamba.api.data_files import describe_nodes, describe_period

    dataset, saved = result.dataset, result.saved
    events = len(dataset.store)
    count = f"{events:,} event{'s' * (events != 1)}"
    print_line(f"{dataset.name}: {describe_nodes(dataset)}, {count}, {describe_period(dataset)}")
    for title, text in _describe_origin(dataset).items():
        print_line(f"  {title:<9}{text}")
    if result.duplicates:
        is_one = result.duplicates == 1
        left_out, repeat = ("was left out", "repeats") if is_one else ("were left out", "repeat")
        done = left_out if result.dropped else f"{repeat} another in every column (--drop-duplicates)"
        print_line(f"  {'repeats':<9}{result.duplicates:,} duplicate event{'s' * (not is_one)} {done}")
    for anomaly in result.anomalies:
        print_line(f"  warning: {translate_message(anomaly.message)}")
    if not result.anomalies:
        print_line("  nothing looks suspicious")
    if saved.kept is not None:
        print_line(f"the previous dataset of this name is kept as {saved.kept.stem}")
    print_line(f"{'unchanged, it is already in' if saved.how == 'same' else 'written to'} {saved.path}")
    where = [] if data_dir is None else ["--data-dir", str(data_dir)]
    print_line(f"next: {shlex.join(['dygmamba', 'data', 'describe', dataset.name, *where])}")


def _describe_origin(dataset: "Dataset") -> dict[str, str]:
    """Describe how the file was read."""
    from dygmamba.api.data_files import describe_categories, describe_node_columns

    origin, store = dataset.origin, dataset.store
    number = "" if origin.header else "number "
    lines = {"columns": f"{number}{origin.src} -> {number}{origin.dst} at {number}{origin.time}"}
    lines["predicts"] = f"given a source ({number}{origin.src}), which destination ({number}{origin.dst})"
    if origin.delimiter:
        comments = ""
        if origin.comments:
            comments = f", {origin.comments} comment line{'s' * (origin.comments != 1)} on top"
        lines["text"] = f"split at {DELIMITER_TITLES.get(origin.delimiter, origin.delimiter)}{comments}"
    if origin.clock == "dates":
        order = origin.time_format or DATE_ORDERS.get(origin.order, "")
        lines["times"] = f"dates ({order}), {TIME_ZONES[origin.zone]}"
    elif origin.clock:
        guessed = ", by their size (use --time-unit if not)" if origin.guessed else ""
        lines["times"] = f"{origin.clock}{guessed}"
    lines["nodes"] = "bipartite: sources and destinations" if store.bipartite else "of one kind"
    more = " ..." * (len(origin.features) > SHOWN_FEATURES)
    lines["features"] = ", ".join(origin.features[:SHOWN_FEATURES]) + more or "none"
    if store.features.categories:
        lines["types"] = ", ".join(describe_categories(dataset))
    if store.features.node_rows is not None:
        lines["of nodes"] = describe_node_columns(dataset)
    lines["labels"] = origin.label or "none"
    return lines


def export_dataset(
    data: str = cli.argument("Export this dataset: a name or a file."),
    to: Path = cli.option(
        ..., "Write to this file: .csv, .jsonl, .parquet, .arrow, .feather or .npz.", show_default=False
    ),
    raw: bool = cli.RAW,
    data_dir: Path | None = cli.DATA_DIR,
    json: bool = cli.AS_JSON,
) -> None:
    """Export a dataset's events, in your own ids and times, to a file in the format of its ending."""
    from dygmamba.api.requests.data import DataExportRequest

    request = DataExportRequest.from_arguments(locals()).check()

    from dygmamba.api.data_files import export_file

    dataset, result = export_file(request)
    command = _format_import_command(to, result.options)
    losses = [translate_message(text) for text in result.lost]
    for text in losses:
        print_note(f"note: {text}")
    if json:
        facts = {"path": str(result.path), "format": result.format, "events": len(dataset)}
        emit_json(facts | {"digest": dataset.digest, "lost": losses, "import": command})
    else:
        print_line(f"{dataset.name}: {len(dataset):,} events written to {to}")
        print_line(f"read it again with: {command}")


def _format_import_command(file: Path, options: dict[str, Any]) -> str:
    """Format the command that imports an exported file."""
    words = ["dygmamba", "data", "import", str(file)]
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(value if isinstance(value, str) else ",".join(value))
    return shlex.join(words)
