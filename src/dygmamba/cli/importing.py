"""`dygmamba data import`: a file of events as it lies becomes a dataset, and is told back in plain words."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli import early
from dygmamba.cli.data import DataDir, Json
from dygmamba.room import BUDGET, bytes_of

if TYPE_CHECKING:  # torch and pyarrow wait until the command needs them
    from dygmamba.data.checkup import Odd
    from dygmamba.data.formats import ReadOptions
    from dygmamba.data.store import Dataset
    from dygmamba.data.versions import Saved

DELIMITERS = {
    "\\t": "\t",
    "tab": "\t",
    "blank": " ",
    "blanks": " ",
    "space": " ",
    "comma": ",",
    "semicolon": ";",
}
CALLED = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks", "": ""}
ORDERS = {"ymd": "year, month, day", "dmy": "day, month, year", "mdy": "month, day, year"}
ZONES = {
    "none": "without a zone, taken as UTC",
    "given": "with zones, turned into UTC",
    "mixed": "those without a zone taken as UTC, the others turned into UTC",
}


def import_(
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
    ] = BUDGET / 1e9,
    out: Annotated[str | None, typer.Option(help="Name of the dataset; default: the file's.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Turn a file of events into a dataset, and say how it was understood and what looks odd."""
    early.require_source(file)
    early.check_choice("format", format)
    early.check_choice("time_unit", time_unit)
    if out is not None:
        early.checked_name(out)

    from dygmamba.data.formats import ReadOptions
    from dygmamba.data.places import data_folder

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
        memory=bytes_of(memory),
        scratch=data_folder(data_dir),
    )
    _import(file, options, format, out, data_dir, json)


def _import(
    file: Path, options: "ReadOptions", format: str, out: str | None, data_dir: Path | None, json: bool
) -> None:
    from dataclasses import replace

    from dygmamba.cli.console import progress
    from dygmamba.data.folders import BOARDS, folder_format
    from dygmamba.data.formats import read_dataset
    from dygmamba.data.places import checked_name, data_folder

    format = folder_format(file) or format if format == "auto" else format
    own = (
        None if format in BOARDS else file.name.split(".")[0].removeprefix("ml_")
    )  # boards have names of their own
    name = None if out is None and own is None else checked_name(out or str(own))
    with progress() as bar:
        options = replace(options, watch=lambda batches, expected: bar.track(batches, expected))
        dataset = read_dataset(file, options, format=format, name=name)

    from dygmamba.data.checkup import check
    from dygmamba.data.versions import save_version

    odd = check(dataset)
    saved = save_version(dataset, data_folder(data_dir))
    _notes(dataset)
    if json:
        _as_json(dataset, saved, odd)
    else:
        _tell(dataset, saved, odd, "" if data_dir is None else f" --data-dir {data_dir}")


def _notes(dataset: "Dataset") -> None:
    """On stderr: what was done to the rows."""
    from dygmamba.cli.console import note

    origin = dataset.origin
    if not origin.header:
        told = f"{origin.src} is the source, {origin.dst} the destination, {origin.time} the time"
        note(
            f"note: the first line is an event, so columns are called by number: {told} (--header if it is none)"
        )
    if origin.skipped:
        note(
            f"note: {origin.skipped:,} bad rows were left out: {_first(origin.skipped, origin.skipped_first)}"
        )
    if origin.out_of_order:
        note(f"note: {origin.out_of_order:,} rows were out of order; sorted by time, ties as in the file")


def _first(count: int, shown: tuple[str, ...]) -> str:
    return "; ".join(shown) + (f"; and {count - len(shown):,} more" if count > len(shown) else "")


def _as_json(dataset: "Dataset", saved: "Saved", odd: list["Odd"]) -> None:
    from dataclasses import asdict

    from dygmamba.cli.console import emit_json
    from dygmamba.cli.data import is_dated
    from dygmamba.cli.words import spoken
    from dygmamba.data.statistics import as_date

    store, origin = dataset.store, dataset.origin
    start, end = float(store.time[0]), float(store.time[-1])
    facts: dict[str, Any] = {"name": dataset.name, "version": dataset.version, "path": str(saved.path)}
    facts |= {"saved": saved.how, "kept": None if saved.kept is None else saved.kept.stem}
    facts |= {"nodes": store.num_nodes, "events": len(store), "start": start, "end": end}
    if is_dated(dataset):
        facts |= {"from": as_date(start), "to": as_date(end)}
    facts |= {"bipartite": store.bipartite, "labels": store.label is not None}
    facts |= {"features": store.features.edge.shape[1], "out_of_order": origin.out_of_order}
    facts |= {"digest": dataset.digest, "understood": asdict(origin)}
    emit_json(facts | {"odd": [{"kind": one.kind, "said": spoken(one.said)} for one in odd]})


def _tell(dataset: "Dataset", saved: "Saved", odd: list["Odd"], where: str) -> None:
    from dygmamba.cli.console import tell
    from dygmamba.cli.data import nodes_of, period_of
    from dygmamba.cli.words import spoken

    events = len(dataset.store)
    tell(f"{dataset.name}: {nodes_of(dataset)}, {events:,} event{'s' * (events != 1)}, {period_of(dataset)}")
    for what, how in _understood(dataset).items():
        tell(f"  {what:<9}{how}")
    for one in odd:
        tell(f"  look at  {spoken(one.said)}")
    if not odd:
        tell("  nothing looks odd")
    if saved.kept is not None:
        tell(f"the dataset that had this name is kept as {saved.kept.stem}")
    tell(f"{'unchanged, it is already in' if saved.how == 'same' else 'written to'} {saved.path}")
    tell(f"next: dygmamba data describe {dataset.name}{where}")


def _understood(dataset: "Dataset") -> dict[str, str]:
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
        told["text"] = f"cut at {CALLED.get(origin.delimiter, origin.delimiter)}{comments}"
    if origin.clock == "dates":
        how = origin.time_format or ORDERS.get(origin.order, "")
        told["times"] = f"dates ({how}), {ZONES[origin.zone]}"
    elif origin.clock:
        guessed = ", by their size (--time-unit if not)" if origin.guessed else ""
        told["times"] = f"{origin.clock}{guessed}"
    told["nodes"] = "two kinds, sources and destinations" if store.bipartite else "of one kind"
    told["features"] = ", ".join(origin.features[:8]) + " ..." * (len(origin.features) > 8) or "none"
    told["labels"] = origin.label or "none"
    return told
