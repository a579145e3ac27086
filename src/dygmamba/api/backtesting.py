"""Compare a model that was trained once with ones that keep learning, over the periods of a stream."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from dygmamba.api.datasets import Source, open_data, resolve_data
from dygmamba.api.requests.base import Names, parse_names
from dygmamba.api.requests.training import BacktestRequest, parse_period
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.choices import VARIANTS
from dygmamba.core.errors import EventError
from dygmamba.core.progress import EpochFunction, Progress, as_progress
from dygmamba.data.storage.dataset import Dataset
from dygmamba.report.backtest_document import build_backtest_document
from dygmamba.report.backtest_document import summarize_backtest as summarize_backtest
from dygmamba.report.html import write_document
from dygmamba.runs.backtest import BacktestPlan, run_backtest
from dygmamba.runs.backtest_results import PAGE_NAME, Backtest
from dygmamba.runs.default_model import choose_model
from dygmamba.runs.opening import choose_device, parse_times

DEFAULT_START = 0.5  # share of the events before the first origin
START_HELP = "`start` takes a time of the stream, or a share of its events such as 0.5"


@check_arguments
def backtest(
    data: "Dataset | Source",
    model: str | None = None,
    *,
    every: str | float,
    window: str | float | None = None,
    start: str | float | None = None,
    variants: Names = VARIANTS,
    seed: int = 0,
    preset: str | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    progress: Progress | EpochFunction | None = None,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Backtest:
    """Evaluate a model period after period, frozen, warm-started and refitted, to know when to retrain.

    At each origin (the beginning of a period) the model may learn from the events before it; the events until the next
    origin are evaluated with AP, AUC, log loss and MRR, and the baselines beside it. The results are in the folder
    `out`: a page, a table, and backtest.json. The same call continues a backtest that was stopped there.

    Args:
        data: A dataset, its name, or anything that `read` takes.
        model: A registered model; chosen as in `train` by default.
        every: Length of a period, such as "7d", "2w" or "12h", or a number in the unit of the stream.
        window: Only events of this time before an origin are known to a training; by default all.
        start: The first origin: a time, or a share of the events, by default 0.5.
        variants: "frozen" (trained at the first origin only), "warm" (started at each origin from its weights of the
            origin before) and "refit" (trained anew at each origin).
        seed: Seed of every training.
        preset: As in `train`.
        device: "auto", "cpu" or "cuda".
        out: Where the results go; by default backtests/DATA-MODEL.
        data_dir: Where datasets are.
        progress: Called with every epoch's entry, or a `dygmamba.core.progress.Progress`.
        overrides: Further settings, for those whose names are arguments here.
        **settings: Settings of the training loop and of the model.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> found = dm.backtest(data, "trees", every="1d", epochs=1, rounds=2, neighbors=0, transitions=0)
    >>> found.table.column_names[:5], len(found.sentences)
    (['period', 'begin', 'end', 'date', 'events'], 3)
    """
    request = BacktestRequest.from_arguments(
        locals(), data=resolve_data(data), settings=settings | dict(overrides or {})
    )
    return run_backtesting(request.check(), as_progress(progress))


def run_backtesting(request: BacktestRequest, progress: Progress) -> Backtest:
    """Do a backtest as a request says, and write its page."""
    dataset, device = open_data(request.data, request.data_dir), choose_device(request.device)
    settings, model, preset = dict(request.settings), request.model, request.preset
    if model is None:
        choice = choose_model(device.type, "link", settings, preset)
        model, preset = choice.model, choice.preset
        progress.message(choice.sentence)
    chosen = parse_names("variants", request.variants, VARIANTS)
    plan = BacktestPlan(
        dataset,
        model,
        device,
        _parse_start(dataset, request.start),
        parse_period("every", request.every),
        None if request.window is None else parse_period("window", request.window),
        tuple(name for name in VARIANTS if name in chosen),
        request.seed,
        settings,
        preset,
    )
    folder = request.out or Path("backtests") / f"{dataset.name}-{model}"
    result = run_backtest(plan, folder, progress)
    write_document(build_backtest_document(plan, result), folder, PAGE_NAME)
    return result


def _parse_start(dataset: Dataset, given: str | float | None) -> float:
    """Return the time of the first origin."""
    times = dataset.store.time
    if not len(times):
        raise EventError(
            "the stream has no events; a backtest needs some before each origin", code="no-events"
        )
    try:
        share = DEFAULT_START if given is None else float(given)
    except ValueError:  # a date
        share = inf
    if 0 < share < 1:
        return float(times[int(share * len(times))])
    (time,) = parse_times(dataset, "start", [str(given)], START_HELP)
    return time
