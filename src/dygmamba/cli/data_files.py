"""`dygmamba data import`: a file of events as it lies becomes a dataset, and is told back in plain words.

`dygmamba data export`: a dataset into a file that others read.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api import precheck
from dygmamba.cli.console import emit_json, print_line, print_note
from dygmamba.cli.data import DataDir, Json
from dygmamba.cli.messages import translate_message
from dygmamba.core.errors import FileError
from dygmamba.core.memory_budget import DEFAULT_BUDGET, parse_gigabytes

if TYPE_CHECKING:
    from dygmamba.data.events.anomalies import Anomaly
    from dygmamba.data.readers import ReadOptions
    from dygmamba.data.storage.dataset import Dataset
    from dygmamba.data.storage.library import SaveResult

DELIMITERS = {
    "\\t": "\t",
    "tab": "\t",
    "blank": " ",
    "blanks": " ",
    "space": " ",
    "comma": ",",
    "semicolon": ";",
}
DELIMITER_TITLES = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks", "": ""}
DATE_ORDERS = {"ymd": "year, month, day", "dmy": "day, month, year", "mdy": "month, day, year"}
TIME_ZONES = {
    "none": "without a zone, taken as UTC",
    "given": "with zones, turned into UTC",
    "mixed": "those without a zone taken as UTC, the others turned into UTC",
}


def import_dataset(
    file: Annotated[
        Path,
        typer.Argument(
            help="CSV, SNAP, KONECT, JSONL, Parquet, Arrow, JODIE, DyGLib, npz; folder of TGB, TGB-Seq, RelBench."
        ),
    ],
    src: Annotated[
        str | None, typer.Option(help="Column of the source ids, by name or number from 0.")
    ] = None,
    dst: Annotated[str | None, typer.Option(help="Column of the destination ids.")] = None,
    time: Annotated[str | None, typer.Option(help="Column of the times: numbers or dates.")] = None,
    features: Annotated[str, typer.Option(help="Numeric columns, separated by commas.")] = "",
    label: Annotated[str | None, typer.Option(help="Column of the labels.")] = None,
    bipartite: Annotated[bool, typer.Option("--bipartite", help="Source 7 is not destination 7.")] = False,
    time_unit: Annotated[
        str,
        typer.Option(help="auto (by their size), s, ms, us, ns since 1970, or plain (numbers as they are)."),
    ] = "auto",
    time_format: Annotated[str | None, typer.Option(help='Of dates, like "%d.%m.%Y %H:%M".')] = None,
    fill: Annotated[float | None, typer.Option(help="Stands in for missing features and labels.")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Go on without rows that cannot be read.")
    ] = False,
    format: Annotated[
        str,
        typer.Option(help="auto, csv, jsonl, parquet, arrow, jodie, dyglib, npz, tgb, tgb-seq or relbench."),
    ] = "auto",
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether the first line names the columns.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Found out unless given; also tab, blanks.")] = None,
    encoding: Annotated[str, typer.Option(help="Of a text file.")] = "utf-8",
    memory: Annotated[
        float, typer.Option(help="GB that rows may take; more of them are sorted on the disk.")
    ] = DEFAULT_BUDGET / 1e9,
    out: Annotated[str | None, typer.Option(help="Name of the dataset; default: the file's.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Turn a file of events into a dataset, and say how it was understood and what looks odd."""
    precheck.require_source(file)
    precheck.check_choice("format", format)
    precheck.check_choice("time_unit", time_unit)
    if out is not None:
        precheck.checked_name(out)

    from dygmamba.data.readers import ReadOptions
    from dygmamba.data.storage.locations import data_folder

    options = ReadOptions(
        src=src,
        dst=dst,
        time=time,
        features=tuple(name.strip() for name in features.split(",") if name.strip()),
        label=label,
        bipartite=bipartite,
        time_unit=time_unit,
        time_format=time_format,
        fill=fill,
        skip_bad=skip_bad,
        header=header,
        delimiter=DELIMITERS.get(delimiter or "", delimiter),
        encoding=encoding,
        memory=parse_gigabytes(memory),
        scratch=data_folder(data_dir),
    )
    _import_file(file, options, format, out, data_dir, json)


def _import_file(
    file: Path, options: "ReadOptions", format: str, out: str | None, data_dir: Path | None, json: bool
) -> None:
    from dataclasses import replace

    from dygmamba.cli.console import open_progress
    from dygmamba.data.catalogue.leaderboard_folders import LEADERBOARD_FORMATS, detect_folder_format
    from dygmamba.data.readers import read_dataset
    from dygmamba.data.storage.locations import checked_name, data_folder

    format = detect_folder_format(file) or format if format == "auto" else format
    own = (
        None if format in LEADERBOARD_FORMATS else file.name.split(".")[0].removeprefix("ml_")
    )  # boards have names of their own
    name = None if out is None and own is None else checked_name(out or str(own))
    with open_progress() as bar:
        options = replace(options, watch=lambda batches, expected: bar.track(batches, expected))
        dataset = read_dataset(file, options, format=format, name=name)

    from dygmamba.data.events.anomalies import find_anomalies
    from dygmamba.data.storage.library import save_dataset_version

    odd = find_anomalies(dataset)
    saved = save_dataset_version(dataset, data_folder(data_dir))
    _print_import_notes(dataset)
    if json:
        _print_import_json(dataset, saved, odd)
    else:
        _print_import(dataset, saved, odd, "" if data_dir is None else f" --data-dir {data_dir}")


def _print_import_notes(dataset: "Dataset") -> None:
    """On stderr: what was done to the rows."""
    from dygmamba.cli.console import print_note

    origin = dataset.origin
    if not origin.header:
        told = f"{origin.src} is the source, {origin.dst} the destination, {origin.time} the time"
        print_note(
            f"note: the first line is an event, so columns are called by number: {told} (--header if it is none)"
        )
    if origin.skipped:
        print_note(
            f"note: {origin.skipped:,} bad rows were left out: {_format_first(origin.skipped, origin.skipped_first)}"
        )
    if origin.out_of_order:
        print_note(
            f"note: {origin.out_of_order:,} rows were out of order; sorted by time, ties as in the file"
        )


def _format_first(count: int, shown: tuple[str, ...]) -> str:
    return "; ".join(shown) + (f"; and {count - len(shown):,} more" if count > len(shown) else "")


def _print_import_json(dataset: "Dataset", saved: "SaveResult", odd: list["Anomaly"]) -> None:
    from dataclasses import asdict

    from dygmamba.cli.console import emit_json
    from dygmamba.cli.data import is_dated
    from dygmamba.cli.messages import translate_message
    from dygmamba.data.events.statistics import format_date

    store, origin = dataset.store, dataset.origin
    start, end = float(store.time[0]), float(store.time[-1])
    facts: dict[str, Any] = {"name": dataset.name, "version": dataset.version, "path": str(saved.path)}
    facts |= {"saved": saved.how, "kept": None if saved.kept is None else saved.kept.stem}
    facts |= {"nodes": store.num_nodes, "events": len(store), "start": start, "end": end}
    if is_dated(dataset):
        facts |= {"from": format_date(start), "to": format_date(end)}
    facts |= {"bipartite": store.bipartite, "labels": store.label is not None}
    facts |= {"features": store.features.edge.shape[1], "out_of_order": origin.out_of_order}
    facts |= {"digest": dataset.digest, "understood": asdict(origin)}
    emit_json(facts | {"odd": [{"kind": one.kind, "said": translate_message(one.message)} for one in odd]})


def _print_import(dataset: "Dataset", saved: "SaveResult", odd: list["Anomaly"], where: str) -> None:
    from dygmamba.cli.console import print_line
    from dygmamba.cli.data import nodes_of, period_of
    from dygmamba.cli.messages import translate_message

    events = len(dataset.store)
    print_line(
        f"{dataset.name}: {nodes_of(dataset)}, {events:,} event{'s' * (events != 1)}, {period_of(dataset)}"
    )
    for what, how in _describe_origin(dataset).items():
        print_line(f"  {what:<9}{how}")
    for one in odd:
        print_line(f"  look at  {translate_message(one.message)}")
    if not odd:
        print_line("  nothing looks odd")
    if saved.kept is not None:
        print_line(f"the dataset that had this name is kept as {saved.kept.stem}")
    print_line(f"{'unchanged, it is already in' if saved.how == 'same' else 'written to'} {saved.path}")
    print_line(f"next: dygmamba data describe {dataset.name}{where}")


def _describe_origin(dataset: "Dataset") -> dict[str, str]:
    """How the file was read, in words."""
    origin, store = dataset.origin, dataset.store
    number = "" if origin.header else "number "
    told = {"columns": f"{number}{origin.src} -> {number}{origin.dst} at {number}{origin.time}"}
    if origin.delimiter:
        comments = (
            f", {origin.comments} comment line{'s' * (origin.comments != 1)} on top"
            if origin.comments
            else ""
        )
        told["text"] = f"cut at {DELIMITER_TITLES.get(origin.delimiter, origin.delimiter)}{comments}"
    if origin.clock == "dates":
        how = origin.time_format or DATE_ORDERS.get(origin.order, "")
        told["times"] = f"dates ({how}), {TIME_ZONES[origin.zone]}"
    elif origin.clock:
        guessed = ", by their size (--time-unit if not)" if origin.guessed else ""
        told["times"] = f"{origin.clock}{guessed}"
    told["nodes"] = "two kinds, sources and destinations" if store.bipartite else "of one kind"
    told["features"] = ", ".join(origin.features[:8]) + " ..." * (len(origin.features) > 8) or "none"
    told["labels"] = origin.label or "none"
    return told


def export_dataset_file(
    data: Annotated[str, typer.Argument(help="Name of a dataset, or its file.")],
    to: Annotated[
        Path,
        typer.Option(
            help="File to write: .csv, .jsonl, .parquet, .arrow, .feather or .npz.", show_default=False
        ),
    ],
    raw: Annotated[
        bool, typer.Option("--raw", help="CSV cells as they are, even if a spreadsheet would run them.")
    ] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write a dataset's events, in your own ids and times, into a file in the format of its ending."""
    require_writable(to, "--to")
    precheck.require_dataset(data, data_dir)

    from dygmamba.data.storage.export import export_dataset, parse_export_format
    from dygmamba.data.storage.library import open_dataset

    parse_export_format(to)
    dataset = open_dataset(data, data_dir)
    done = export_dataset(dataset, to, raw)
    again = f"dygmamba data import {to}{_format_options(done.options)}"
    for said in done.lost:
        print_note(f"note: {translate_message(said)}")
    if json:
        facts = {"path": str(done.path), "format": done.format, "events": len(dataset)}
        emit_json(
            facts | {"digest": dataset.digest, "lost": [*map(translate_message, done.lost)], "import": again}
        )
    else:
        print_line(f"{dataset.name}: {len(dataset):,} events written to {to}")
        print_line(f"read it again with: {again}")


def require_writable(path: Path, option: str) -> None:
    """Complain about a file that cannot be written before the work, not after it."""
    if path.is_dir():
        raise FileError(f"{path} is a folder; give {option} a file name in it")
    if not path.parent.is_dir():
        raise FileError(f"{path.parent} is no folder; make it, or give {option} another")


def _format_options(options: dict[str, Any]) -> str:
    """The options of an import, as they are typed."""
    said = ""
    for name, value in options.items():
        if value is True:
            said += f" --{name}"
        else:
            words = value if isinstance(value, str) else ",".join(value)
            said += f" --{name} " + (f'"{words}"' if " " in words else words)
    return said
