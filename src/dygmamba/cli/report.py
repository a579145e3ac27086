"""`dygmamba report`: the page of a run, built again from its folder."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.cli import early
from dygmamba.cli.console import tell


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the page here instead of RUN/report.html.", show_default=False)
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
) -> None:
    """Write a run's results, curves, learned forgetting and settings as one page that opens offline."""
    early.require_run(run)

    from dygmamba.cli.watching import say
    from dygmamba.door.page import full_page

    path = full_page(run, out, data_dir, say)
    tell(f"report: {path}")
