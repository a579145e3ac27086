"""The command `backtest`."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.api.trusted_code import import_model
from dygmamba.cli.console import emit_json, print_document, print_line
from dygmamba.cli.options import (
    DataDir,
    Device,
    Epochs,
    Json,
    Model,
    Overrides,
    Preset,
    optional,
    parse_settings,
)
from dygmamba.cli.progress import show_progress
from dygmamba.core.choices import VARIANTS


def backtest(
    data: Annotated[
        str, typer.Argument(help="Backtest on this dataset: a name or a file; `generated` is built in.")
    ],
    every: Annotated[
        str, typer.Option(help="Retrain and evaluate after this time: 7d, 2w, 12h, or a number in its unit.")
    ],
    window: Annotated[
        str | None, optional(help="Train on the events of this time only, e.g. 90d.", default="all events")
    ] = None,
    start: Annotated[
        str, typer.Option(help="Begin at this time (a date), or after this share of the events.")
    ] = "0.5",
    frozen: Annotated[bool, typer.Option("--frozen", help="Evaluate a model that is trained once.")] = False,
    warm: Annotated[
        bool,
        typer.Option("--warm", help="Evaluate one that continues with its last weights each time."),
    ] = False,
    refit: Annotated[
        bool, typer.Option("--refit", help="Evaluate one that is trained anew each time.")
    ] = False,
    model: Model = None,
    preset: Preset = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed every training.")] = 0,
    epochs: Epochs = None,
    overrides: Overrides = None,
    device: Device = "auto",
    out: Annotated[
        Path | None, optional(help="Write results into this folder.", default="backtests/DATA-MODEL")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model period after period, frozen, warm-started and refitted, to know when to retrain.

    The same command continues a backtest that was stopped. Without --frozen, --warm and --refit all three are compared.
    """
    from dygmamba.api.requests.training import BacktestRequest

    given = [name for name, is_given in zip(VARIANTS, (frozen, warm, refit), strict=True) if is_given]
    request = BacktestRequest.from_arguments(
        locals(),
        model=import_model(model),
        variants=given or VARIANTS,
        settings=parse_settings(overrides, epochs=epochs),
    ).check()

    from dygmamba.api.backtesting import run_backtesting, summarize_backtest

    with show_progress(save_on_interrupt=True) as progress:
        result = run_backtesting(request, progress)
    if as_json:
        emit_json(result.to_dict())
        return
    print_document(summarize_backtest(result))
    print_line(f"page: {result.page}")
