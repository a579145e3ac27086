"""The command `backtest`."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.api import precheck
from dygmamba.api.trusted_code import import_model
from dygmamba.cli.console import emit_json, print_document, print_line
from dygmamba.cli.options import DataDir, Device, Json, Overrides, parse_overrides
from dygmamba.cli.progress import show_progress


def backtest(
    data: Annotated[
        str, typer.Argument(help="Backtest on this dataset: a name or a file; `generated` is built in.")
    ],
    every: Annotated[
        str, typer.Option(help="Retrain and evaluate after this time: 7d, 2w, 12h, or a number in its unit.")
    ],
    window: Annotated[
        str | None, typer.Option(help="Train on the events of this time only, e.g. 90d.")
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
    model: Annotated[
        str | None,
        typer.Option(
            help="Train this model (see `dygmamba models`), or one of yours: mine.py or mine.py:NAME."
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Use the settings of small (for CPUs), short, paper, or NAME.toml.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed every training.")] = 0,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Train at most this many epochs each time.")
    ] = None,
    overrides: Overrides = None,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Write results into this folder.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model period after period, frozen, warm-started and refitted, to know when to retrain.

    The same command continues a backtest that was stopped. Without --frozen, --warm and --refit all three are compared.
    """
    settings = parse_overrides(overrides) | ({} if epochs is None else {"epochs": epochs})
    model = import_model(model)
    precheck.check_backtest(
        data=data, model=model, settings=settings, preset=preset, every=every, window=window, device=device,
        data_dir=data_dir,
    )  # fmt: skip

    from dygmamba.api.backtesting import VARIANTS, summarize_backtest
    from dygmamba.api.backtesting import backtest as run

    given = [name for name, is_given in zip(VARIANTS, (frozen, warm, refit), strict=True) if is_given]
    with show_progress(save_on_interrupt=True) as progress:
        result = run(
            data, model, every=every, window=window, start=start, variants=given or VARIANTS, seed=seed,
            preset=preset, device=device, out=out, data_dir=data_dir, progress=progress, overrides=settings,
        )  # fmt: skip
    if as_json:
        emit_json(result.to_dict())
        return
    print_document(summarize_backtest(result))
    print_line(f"page: {result.page}")
