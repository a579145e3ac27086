"""The command `backtest`."""

from pathlib import Path

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
    argument,
    flag,
    option,
    optional,
    parse_settings,
)
from dygmamba.cli.progress import show_progress
from dygmamba.core.choices import VARIANTS


def backtest(
    data: str = argument("Backtest on this dataset: a name or a file; `generated` is built in."),
    every: str = option(..., "Retrain and evaluate after this time: 7d, 2w, 12h, or a number in its unit."),
    window: str | None = optional("Train on the events of this time only, e.g. 90d.", default="all events"),
    start: str = option("0.5", "Begin at this time (a date), or after this share of the events."),
    frozen: bool = flag("--frozen", "Evaluate a model that is trained once."),
    warm: bool = flag("--warm", "Evaluate one that continues with its last weights each time."),
    refit: bool = flag("--refit", "Evaluate one that is trained anew each time."),
    model: Model = None,
    preset: Preset = None,
    seed: int = option(0, "Seed every training.", min=0),
    epochs: Epochs = None,
    overrides: Overrides = None,
    device: Device = "auto",
    out: Path | None = optional("Write results into this folder.", default="backtests/DATA-MODEL"),
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
