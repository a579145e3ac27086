"""`dygmamba bench`: correctness first, then time."""

from dataclasses import asdict
from importlib import import_module
from typing import Annotated

import typer

from dygmamba.cli.console import emit_json, stderr, stdout
from dygmamba.errors import NotFoundError

BENCHES = ("sampling", "scan")


def bench(
    name: Annotated[str, typer.Argument(help="sampling or scan.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Time a part of the project against its reference, inside one run."""
    if name not in BENCHES:
        raise NotFoundError(f"unknown benchmark '{name}'; choose from {', '.join(BENCHES)}")
    from rich.table import Table

    console = stderr()
    rows = import_module(f"dygmamba.benchmarks.{name}").run(device, console.print)
    if as_json:
        emit_json({"bench": name, "rows": [asdict(row) for row in rows]})
        return
    table = Table("case", "ours", "reference", "ratio", "peak extra memory")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        times = f"{1e3 * row.seconds:,.2f} ms", f"{1e3 * row.reference_seconds:,.2f} ms"
        table.add_row(row.case, *times, f"{row.ratio:,.1f}x", f"{row.peak_mb:,.0f} MB")
    stdout().print(table)
