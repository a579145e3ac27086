"""Check a part of the package against its reference, then time both: `python -m benchmarks NAME`.

Training is timed on UCI if it is found ($DYGMAMBA_DATA), else on a generated stream of the same size.
"""

import json
import math
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from benchmarks.harness import BenchmarkRow

NAMES = ("sampling", "scan", "step", "kernels", "epoch", "length", "candidates", "size", "serve")
MIN_EVENTS, MAX_EVENTS = 2_000, 2**31

# Heading -> cell of a row; a column without any value is left out.
COLUMNS: dict[str, Callable[[BenchmarkRow], str]] = {
    "ours": lambda row: format_time(row.seconds),
    "reference": lambda row: format_time(row.reference_seconds),
    "ratio": lambda row: format_number(row.ratio, ",.1f", "x"),
    "extra peak": lambda row: format_number(row.peak_mb, ",.0f", " MB"),
    "reference's peak": lambda row: format_number(row.reference_mb, ",.0f", " MB"),
    "anchor": lambda row: format_time(row.anchor_seconds),
    "anchor ratio": lambda row: format_number(row.anchor_ratio, ",.1f", "x"),
    "anchor's peak": lambda row: format_number(row.anchor_mb, ",.0f", " MB"),
    "ours / anchor's": lambda row: format_number(row.anchor_mb_share, ".2f", ""),
    "growth": lambda row: format_number(row.growth, ".2f", "x"),
    "of the peak": lambda row: format_number(row.growth_mb, ".2f", "x"),
    "GFLOP/s": lambda row: format_number(row.gflops, ",.1f", ""),
    "GB/s": lambda row: format_number(row.gigabytes_per_second, ",.0f", ""),
    "of a matrix product": lambda row: format_number(row.bound_share, ".0%", ""),
}


def main(arguments: list[str] | None = None) -> None:
    """Run a benchmark and print its rows as a table or as JSON; progress goes to stderr."""
    options = parse_options(arguments)
    more: dict[str, Any] = {}
    if options.name in ("size", "serve"):
        more = {"folder": options.folder}
    if options.name == "size" and options.sizes:
        more |= {"sizes": options.sizes}
    if options.name == "serve":
        more |= {"events": options.events}
    rows = import_module(f"benchmarks.{options.name}").run(options.device, **more)
    if options.json:
        found = [
            {name: value if is_measured(value) else None for name, value in asdict(row).items()}
            for row in rows
        ]
        sys.stdout.write(json.dumps({"bench": options.name, "device": options.device, "rows": found}) + "\n")
    else:
        print_rows(rows)


def parse_options(arguments: list[str] | None) -> Namespace:
    parser = ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=NAMES, help="Run this benchmark.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="Run on this device.")
    parser.add_argument(
        "--sizes",
        type=parse_sizes,
        help="Use these numbers of events for 'size', e.g. 1e6,1e7.",
    )
    parser.add_argument(
        "--events", type=parse_events, help="Use a generated stream of this size for 'serve', e.g. 1e6."
    )
    parser.add_argument("--folder", type=Path, help="Keep the files of 'size' and 'serve' here meanwhile.")
    parser.add_argument("--json", action="store_true", help="Print the rows as JSON.")
    return parser.parse_args(arguments)


def parse_events(text: str) -> int:
    """Return a number of events; 1e6 is one too."""
    number = float(text)
    if not MIN_EVENTS <= number < MAX_EVENTS:
        raise ArgumentTypeError(f"give a number from {MIN_EVENTS:,} to below {MAX_EVENTS:,}; got {text}")
    return int(number)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return numbers of events, smallest first."""
    return tuple(sorted(map(parse_events, text.split(","))))


def print_rows(rows: list[BenchmarkRow]) -> None:
    """Print a table in its full width: numbers are not worth breaking to fit 80 columns."""
    cells = {heading: [cell(row) for row in rows] for heading, cell in COLUMNS.items()}
    shown = {heading: column for heading, column in cells.items() if any(column)}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("case", no_wrap=True)
    for heading in shown:
        table.add_column(heading, justify="right")
    for row, *own in zip(rows, *shown.values(), strict=True):
        table.add_row(row.case, *own)
    console = Console(markup=False, highlight=False)
    width = Measurement.get(console, console.options.update(max_width=400), table).maximum
    Console(width=max(width, console.width), markup=False, highlight=False).print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.case.strip()}: {row.note}", soft_wrap=True)


def is_measured(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def format_number(value: float | None, form: str, unit: str) -> str:
    return f"{value:{form}}{unit}" if is_measured(value) else ""


def format_time(seconds: float | None) -> str:
    if seconds is not None and seconds >= 1:
        return format_number(seconds, ",.2f", " s")
    return format_number(seconds and 1e3 * seconds, ",.2f", " ms")


if __name__ == "__main__":
    main()
