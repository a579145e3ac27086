"""`dygmamba compare`: run folders beside one another."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.cli import early


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Finished run folders.")],
    out: Annotated[
        Path | None, typer.Option(help="A folder for the page and its tables as CSV, Markdown and LaTeX.")
    ] = None,
) -> None:
    """Put finished runs beside one another: mean and spread over seeds, rank, paired test, published values, curves."""
    for run in runs:
        early.require_run(run)

    from dygmamba.cli.study_view import show_sheet
    from dygmamba.cli.watching import say
    from dygmamba.report.sheet_page import write_sheet
    from dygmamba.studies.compare import compare_runs

    sheet = compare_runs(runs)
    show_sheet(sheet)
    if out is not None:
        say(f"page: {write_sheet(sheet, out, 'compare')[0]}")
