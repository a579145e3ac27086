"""`dygmamba report`: the page of a run, built again from its folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dygmamba.cli.console import stderr, stdout
from dygmamba.errors import DygError

if TYPE_CHECKING:
    from dygmamba.engine.folder import RunFolder


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the page here instead of RUN/report.html.", show_default=False)
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
) -> None:
    """Write a run's results, curves, learned forgetting and settings as one page that opens offline."""
    from dygmamba.engine.folder import RunFolder
    from dygmamba.explain.forgetting import load_forgetting
    from dygmamba.report.page import packages, write_report

    packages()  # a missing package is said before anything is computed
    folder = RunFolder(run)
    if folder.task == "link" and load_forgetting(folder) is None:
        probe_run(folder, data_dir)
    path = write_report(folder, out)
    stdout().print(f"report: {path}", soft_wrap=True, markup=False, highlight=False)


def probe_run(folder: "RunFolder", data_dir: Path | None) -> None:
    """Measure the forgetting of a run's best weights; where that cannot be, say why and go on without."""
    import torch

    from dygmamba.explain.forgetting import known_law, measure_forgetting, save_forgetting
    from dygmamba.runs.opening import open_run

    try:
        run = open_run(folder.path, torch.device("cpu"), data_dir)
        found = measure_forgetting(run.scorer, run.stream, known_law(run.dataset))
    except DygError as error:
        stderr().print(f"no forgetting curve: {error}", soft_wrap=True, markup=False, highlight=False)
        return
    save_forgetting(folder, found)
