"""Commands that train: `train`, `tune`, `blend`, `backtest` and `demo`."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dygmamba.api.trusted_code import import_if_trusted, import_model
from dygmamba.cli import options as cli
from dygmamba.cli.console import emit_json, print_document, print_line
from dygmamba.cli.progress import show_progress
from dygmamba.core.choices import NEGATIVES, VARIANTS
from dygmamba.core.errors import ConfigError
from dygmamba.core.process_settings import is_first_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dygmamba.api.run import Run
    from dygmamba.api.tuning import Tuning


def train(
    context: typer.Context,
    data: str | None = cli.argument(
        "Train on this dataset: a name or a file; `generated` is built in.", None
    ),
    model: str | None = cli.MODEL,
    budget: str | None = cli.optional(
        "Train several models within this time (10m, 1h, 90s), the best with further seeds if time is left; "
        "keep the best by validation; with --model, end its training in time."
    ),
    start_from: Path | None = cli.optional(
        "Continue this finished link run on newer data: start with its weights, ids and settings.",
        "--from",
        parser=cli.parse_run,
        metavar="RUN",
    ),
    preset: str | None = cli.PRESET,
    task: str = cli.option(
        "link", "Predict links (link), or labels of sources: states, classes, numbers (node)."
    ),
    backbone: Path | None = cli.optional(
        "Build the node classifier on this finished link run.", parser=cli.parse_run, metavar="RUN"
    ),
    finetune: bool = cli.flag("--finetune", "Train the backbone of the node classifier too."),
    balance: bool = cli.flag("--balance", "Weigh all classes of a node task the same."),
    seeds: str = cli.option("0", "Train one run for each seed, e.g. 0 or 0-4 or 0,3,7."),
    epochs: int | None = cli.EPOCHS,
    overrides: list[str] | None = cli.OVERRIDES,
    split: str | None = cli.SPLIT,
    protocol: str = cli.PROTOCOL,
    negatives: str = cli.option("random", f"Evaluate against these negatives: {', '.join(NEGATIVES)}."),
    train_negatives: str | None = cli.optional(
        "Train against random, historical or mixed negatives.", default="random"
    ),
    activity: bool = cli.ACTIVITY,
    loss: str | None = cli.optional(
        "Train with a pairwise loss, or a ranking loss (for MRR and Hits@k).", default="pairwise"
    ),
    train_candidates: int | None = cli.optional(
        "With --loss ranking, rank each event among this many destinations.",
        min=1,
        default="20; fewer for trees on long streams",
    ),
    visible: str | None = cli.optional(
        "Let memories and counts see strictly earlier events (strict) or all earlier batches (batch).",
        default="strict",
    ),
    device: str = cli.DEVICE,
    deterministic: bool | None = cli.optional(
        "Fail instead of using operations that are not reproducible.",
        "--deterministic/--no-deterministic",
        default="off; as before for a resumed run",
    ),
    out: Path = cli.RUNS_OUT,
    resume: Path | None = cli.optional(
        "Continue this run directory, or the newest run of a dataset (a name, or latest); --epochs may give "
        "it more epochs.",
        parser=cli.parse_run_to_resume,
        metavar="RUN",
    ),
    refit: str | None = cli.optional(
        "Afterwards train once more on all events, for production; the only value is `all`."
    ),
    log: str | None = cli.optional("Log to tensorboard, mlflow, or both (tensorboard,mlflow)."),
    processes: int = cli.option(
        1, "Share every batch among this many processes, one per GPU or core group.", min=1
    ),
    data_dir: Path | None = cli.DATA_DIR,
    trust: bool = cli.TRUST,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Train a model on a dataset, evaluate it on validation and test, and compare it with simple heuristics."""
    if (data is None) == (resume is None):
        raise ConfigError(
            "give either a dataset to train on or --resume RUN to continue a run", code="dataset-or-resume"
        )
    from dygmamba.api.requests.training import RefitRequest, ResumeRequest, TrainRequest

    settings = cli.parse_settings(
        overrides, epochs=epochs, visible=visible, train_negatives=train_negatives, activity=activity,
        loss=loss, train_candidates=train_candidates,
    )  # fmt: skip
    if resume is None:
        request = TrainRequest.from_arguments(
            locals(), model=import_model(model), seeds=cli.parse_seeds(seeds), settings=settings
        )
    else:
        fixed = TrainRequest.names() - ResumeRequest.names()  # settings are checked against the run later
        given = {name: value for name, value in context.params.items() if _is_typed(context, name)}
        given = {name: value for name, value in given.items() if name in fixed}
        request = ResumeRequest.from_arguments(locals(), folder=resume, given=given, settings=settings)
    request.check()
    import_if_trusted(trust, resume, backbone, start_from)

    from dygmamba.api import training

    with show_progress(save_on_interrupt=True) as progress:
        if isinstance(request, ResumeRequest):
            runs = [training.run_resume(request, progress)]
        else:
            runs = training.run_training(request, progress)
        where = {"device": device, "processes": processes, "data_dir": data_dir}
        again = [RefitRequest(folder=run.path, **where) for run in runs] if refit else []
        refits = [training.run_refit(one, progress) for one in again]
    _print_runs(runs, refits, as_json)


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _print_runs(runs: "Sequence[Run]", refits: "Sequence[Run]", as_json: bool) -> None:
    """Print the results of all seeds and of the heuristics, and the verdict on each run."""
    if not is_first_process():
        return
    from dygmamba.api.training import collect_results

    found = collect_results(runs)
    if as_json:
        comparison = {"rules": found.rules, "verdicts": found.verdicts} if found.rules else {}
        comparison |= {"ranking": found.ranking} if found.ranking else {}
        refitted = {"refits": [str(run.path) for run in refits]} if refits else {}
        tried = {"selections": found.selections} if found.selections else {}
        emit_json({"results": found.rows, **comparison, **refitted, **tried})
    elif found.rows:
        print_document(found.document)


def blend(
    runs: list[Path] = cli.run_argument("Combine these two to four finished link runs."),
    negatives: str = cli.option("random", f"Evaluate against these negatives: {', '.join(NEGATIVES)}."),
    device: str = cli.DEVICE,
    out: Path = cli.RUNS_OUT,
    data_dir: Path | None = cli.DATA_DIR,
    trust: bool = cli.TRUST,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Combine finished runs into one: the weighted sum of their scores that is best on validation.

    Nothing is trained. The new run holds all it needs and is used like any other.
    """
    from dygmamba.api.requests.training import BlendRequest

    request = BlendRequest.from_arguments(locals()).check()
    import_if_trusted(trust, *runs)

    from dygmamba.api.training import run_blend

    with show_progress(save_on_interrupt=True) as progress:
        run = run_blend(request, progress)
    _print_runs([run], [], as_json)


def tune(
    data: str = cli.argument("Tune on this dataset: a name or a file; `generated` is built in."),
    model: str | None = cli.MODEL,
    trials: int | None = cli.optional(
        "Stop after this many trials of the whole study.", min=1, default="30 unless --hours is given"
    ),
    hours: float | None = cli.optional("Stop after this many hours, e.g. 0.5.", default="no limit"),
    out: Path | None = cli.optional(
        "Write the preset to this file, NAME.toml.", default="preset.toml in the study's folder"
    ),
    resume: bool = cli.flag("--resume", "Only continue an existing study; fail if there is none."),
    seed: int = cli.option(0, "Seed the search and every training in it.", min=0),
    preset: str | None = cli.PRESET,
    epochs: int | None = cli.optional(
        "Train at most this many epochs per trial.", min=1, default="10; 40 for trees"
    ),
    overrides: list[str] | None = cli.optional(
        "Fix a setting, key=value, so that it is not searched.", "--set"
    ),
    split: str | None = cli.SPLIT,
    protocol: str = cli.PROTOCOL,
    device: str = cli.DEVICE,
    studies: Path = cli.option(Path("studies"), "Write studies below this folder."),
    data_dir: Path | None = cli.DATA_DIR,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Search for better settings in short trainings, judged on validation alone, and save them as a preset.

    The same command continues a study. Ctrl-C ends it with the best settings so far.
    """
    from dygmamba.api.requests.training import TuneRequest

    settings = cli.parse_settings(overrides, epochs=epochs)
    request = TuneRequest.from_arguments(locals(), model=import_model(model), settings=settings).check()

    from dygmamba.api.tuning import run_tuning

    with show_progress(save_on_interrupt=True) as progress:
        tuning = run_tuning(request, progress, partial(_format_train_command, data))
    if as_json:
        emit_json(tuning.to_dict())
    else:
        _print_tuning(tuning, data)
    if tuning.ended == "stopped":
        raise typer.Exit(130)


def _format_train_command(data: str, preset: Path) -> str:
    return shlex.join(["dygmamba", "train", data, "--preset", str(preset)])


def _print_tuning(tuning: "Tuning", data: str) -> None:
    from dygmamba.api.tuning import summarize_tuning

    print_document(summarize_tuning(tuning, _format_train_command(data, tuning.preset)))
    if tuning.ended != "done":
        reason = "the time is up" if tuning.ended == "time" else "stopped"
        print_line(f"{reason}; the same command continues in {tuning.folder}")
    print_line(f"page: {tuning.page}")
    print_line(f"preset: {tuning.preset}")


def backtest(
    data: str = cli.argument("Backtest on this dataset: a name or a file; `generated` is built in."),
    every: str = cli.option(
        ..., "Retrain and evaluate after this time: 7d, 2w, 12h, or a number in its unit."
    ),
    window: str | None = cli.optional(
        "Train on the events of this time only, e.g. 90d.", default="all events"
    ),
    start: str = cli.option("0.5", "Begin at this time (a date), or after this share of the events."),
    frozen: bool = cli.flag("--frozen", "Evaluate a model that is trained once."),
    warm: bool = cli.flag("--warm", "Evaluate one that continues with its last weights each time."),
    refit: bool = cli.flag("--refit", "Evaluate one that is trained anew each time."),
    model: str | None = cli.MODEL,
    preset: str | None = cli.PRESET,
    seed: int = cli.option(0, "Seed every training.", min=0),
    epochs: int | None = cli.EPOCHS,
    overrides: list[str] | None = cli.OVERRIDES,
    device: str = cli.DEVICE,
    out: Path | None = cli.optional("Write results into this folder.", default="backtests/DATA-MODEL"),
    data_dir: Path | None = cli.DATA_DIR,
    as_json: bool = cli.AS_JSON,
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
        settings=cli.parse_settings(overrides, epochs=epochs),
    ).check()

    from dygmamba.api.backtesting import run_backtesting, summarize_backtest

    with show_progress(save_on_interrupt=True) as progress:
        result = run_backtesting(request, progress)
    if as_json:
        emit_json(result.to_dict())
        return
    print_document(summarize_backtest(result))
    print_line(f"page: {result.page}")


def demo(
    out: Path = cli.RUNS_OUT,
    seed: int = cli.option(0, "Seed the training.", min=0),
    epochs: int = cli.option(14, "Train this many epochs.", min=1),
    as_json: bool = cli.AS_JSON,
) -> None:
    """Train DyG-Mamba on a generated stream on the CPU and show what it learned, within two minutes."""
    from dygmamba.api.demo import run_demo

    with show_progress(save_on_interrupt=True) as progress:
        found = run_demo(out, seed, epochs, progress)
    if as_json:
        paths = {"run": str(found.run), "report": str(found.page)}
        emit_json({"results": found.rows, "forgetting": found.forgetting.to_json(), **paths})
        return
    print_document(found.document)
    print_line(f"report: {found.page}")
