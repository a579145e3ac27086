"""`dygmamba bench`: correctness first, then time."""

import math
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli import early
from dygmamba.cli.console import emit_json, note, plain_table, stderr, stdout, tell
from dygmamba.errors import ConfigError, NotFoundError
from dygmamba.files.writing import make_folder

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.benchmarks.verify import Row

BENCHES = ("sampling", "scan", "step", "epoch", "length", "memory", "candidates", "size", "scaling")

SMALLEST = 2_000  # events of 'size'

# heading -> cell of a row; a column in which no row has anything is left out
COLUMNS: dict[str, Callable[["Row"], str]] = {
    "ours": lambda row: _time(row.seconds),
    "reference": lambda row: _time(row.reference_seconds),
    "ratio": lambda row: _number(row.ratio, ",.1f", "x"),
    "extra peak": lambda row: _number(row.peak_mb, ",.0f", " MB"),
    "reference's peak": lambda row: _number(row.reference_mb, ",.0f", " MB"),
    "anchor": lambda row: _time(row.anchor_seconds),
    "anchor ratio": lambda row: _number(row.anchor_ratio, ",.1f", "x"),
    "anchor's peak": lambda row: _number(row.anchor_mb, ",.0f", " MB"),
    "ours / anchor's": lambda row: _number(row.anchor_mb_share, ".2f", ""),
    "growth": lambda row: _number(row.growth, ".2f", "x"),
    "of the peak": lambda row: _number(row.growth_mb, ".2f", "x"),
    "GFLOP/s": lambda row: _number(row.gflops, ",.1f", ""),
    "of a matrix product": lambda row: _number(row.bound_share, ".0%", ""),
}


def bench(
    name: Annotated[str, typer.Argument(help=", ".join(BENCHES) + ".")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the tables and the picture of 'length', 'size' or 'scaling'; default: bench-NAME."
        ),
    ] = None,
    sizes: Annotated[
        str,
        typer.Option(help="Events of 'size', separated by commas; files of the largest lie in the folder."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Time a part of the project against its reference, inside one run.

    Training is timed on UCI where it is found ($DYGMAMBA_DATA), else on a generated stream as large.
    """
    if name not in BENCHES:
        raise NotFoundError(f"unknown benchmark '{name}'; choose from {', '.join(BENCHES)}")
    early.check_device(device)

    from dygmamba.runs.opening import choose_device

    kind = choose_device(device).type
    module = import_module(f"dygmamba.benchmarks.{name}")
    draws, place, more = hasattr(module, "write"), out or Path(f"bench-{name}"), {}
    if draws:  # minutes of work need a place
        make_folder(place)
    if name == "size":
        more = {"sizes": _sizes(sizes) or module.SIZES, "folder": place}
    rows = module.run(kind, stderr().print, **more)
    if draws:
        for path in module.write(rows, place):
            note(f"wrote {path}")
    if as_json:
        emit_json({"bench": name, "device": kind, "rows": [_plain(row) for row in rows]})
        return
    _print_whole(_table(rows))
    for row in rows:
        if row.note:
            tell(f"{row.case.strip()}: {row.note}")


def _sizes(text: str) -> tuple[int, ...]:
    """Numbers of events, smallest first; 1e6 is one too."""
    try:
        found = sorted(int(float(word)) for word in text.split(",") if word.strip())
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"`sizes` is {text!r}; give numbers like 1e6,1e7") from error
    if found and not (found[0] >= SMALLEST and found[-1] < 2**31):
        raise ConfigError(f"`sizes` is {text!r}; give numbers from {SMALLEST:,} to below {2**31:,}")
    return tuple(found)


def _table(rows: list["Row"]) -> "Table":
    cells = {heading: [cell(row) for row in rows] for heading, cell in COLUMNS.items()}
    shown = {heading: column for heading, column in cells.items() if any(column)}
    table = plain_table("case", figures=tuple(shown))
    table.columns[0].no_wrap = True
    for row, *own in zip(rows, *shown.values(), strict=True):
        table.add_row(row.case, *own)
    return table


def _print_whole(table: "Table") -> None:
    """As wide as it is: figures are not worth breaking to fit 80 columns."""
    from rich.measure import Measurement

    console = stdout()
    width = Measurement.get(console, console.options.update(max_width=400), table).maximum
    stdout(max(width, console.width)).print(table)


def _plain(row: "Row") -> dict[str, Any]:
    """The row as JSON has it: what was not measured is null."""
    return {key: value if _is_known(value) else None for key, value in asdict(row).items()}


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _number(value: float | None, form: str, unit: str) -> str:
    return f"{value:{form}}{unit}" if _is_known(value) else ""


def _time(seconds: float | None) -> str:
    long = seconds is not None and seconds >= 1
    return _number(seconds, ",.2f", " s") if long else _number(seconds and 1e3 * seconds, ",.2f", " ms")
