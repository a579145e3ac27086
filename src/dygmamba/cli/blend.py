"""`dygmamba blend`: several finished runs as one."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.cli import early
from dygmamba.cli.train import show_runs


def blend(
    runs: Annotated[list[Path], typer.Argument(help="Two to four finished link runs of one stream.")],
    negatives: Annotated[
        str, typer.Option(help="Final evaluation: random, historical, inductive.")
    ] = "random",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Add up the scores of finished runs, each counting what is best on validation, and evaluate the sum.

    Nothing is trained; the new run holds all it needs and is used like any other.
    """
    early.check_names("negatives", negatives)
    early.check_device(device)
    for run in runs:
        early.require_run(run)

    from dygmamba.cli.watching import Bars
    from dygmamba.door.asking import chosen_names
    from dygmamba.door.blending import watched_blend
    from dygmamba.runs.opening import choose_device
    from dygmamba.sampling.negatives import SAMPLERS

    strategies = chosen_names("negatives", negatives, SAMPLERS)
    with Bars() as bars:
        fit = watched_blend(runs, choose_device(device), out, strategies, bars, data_dir)
    show_runs([fit.run], [], as_json)
