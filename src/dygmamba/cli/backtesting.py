"""The command `backtest`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dygmamba.api.trusted_code import import_model
from dygmamba.cli.console import emit_json, plain_table, print_line, stdout
from dygmamba.cli.messages import escape_text, translate_message
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

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.api.backtesting import Backtest


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

    from dygmamba.api.backtesting import run_backtesting

    with show_progress(save_on_interrupt=True) as progress:
        result = run_backtesting(request, progress)
    if as_json:
        emit_json(result.to_dict())
        return
    stdout().print(_make_table(result))
    for sentence in result.sentences:
        print_line(translate_message(sentence))
    print_line(f"page: {result.page}")


def _make_table(result: "Backtest") -> "Table":
    """Make a table of AP by period, the best baseline last."""
    rule = result.best_rule
    names = [*result.variants, *([] if rule is None else [rule])]
    title = f"{escape_text(result.model)} on {escape_text(result.data)}: AP of each period"
    table = plain_table("begin", title=title, figures=("events", *names))
    for number in dict.fromkeys(row["period"] for row in result.rows):
        own = {row["model"]: row for row in result.rows if row["period"] == number}
        first = own[names[0]]
        figures = (f"{100 * own[name]['ap']:.2f}" for name in names)
        table.add_row(result.format_time(first["begin"]), f"{first['events']:,}", *figures)
    return table
