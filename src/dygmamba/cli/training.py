"""Commands that train: `train`, `tune`, `blend` and `demo`."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api import precheck
from dygmamba.api.trusted_code import import_if_trusted, import_model
from dygmamba.cli.console import emit_json, print_document, print_line
from dygmamba.cli.options import (
    DataDir,
    Device,
    Json,
    Overrides,
    Protocol,
    RunsOut,
    TrustCode,
    parse_overrides,
    parse_run,
    parse_run_to_resume,
    parse_seeds,
    run_argument,
)
from dygmamba.cli.progress import show_progress
from dygmamba.core.choices import NEGATIVES
from dygmamba.core.errors import ConfigError
from dygmamba.core.process_settings import is_first_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dygmamba.api.run import Run
    from dygmamba.api.tuning import Tuning

# Options that cannot be changed with --resume. Settings (--set, --epochs ...) are checked against the run later.
FIXED_BY_RUN = (
    "model",
    "budget",
    "start_from",
    "preset",
    "backbone",
    "finetune",
    "balance",
    "seeds",
    "split",
    "protocol",
    "out",
    "task",
)


def train(
    context: typer.Context,
    data: Annotated[
        str | None, typer.Argument(help="Train on this dataset: a name or a file; `generated` is built in.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Train this model (see `dygmamba models`), or one of yours: mine.py or mine.py:NAME."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Train several models within this time (10m, 1h, 90s), the best with further seeds if time is left; "
            "keep the best by validation; with --model, end its training in time."
        ),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            "--from",
            parser=parse_run,
            metavar="RUN",
            help="Continue this finished link run on newer data: start with its weights, ids and settings.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Use the settings of small (CPUs), short (quick on a GPU), paper, or NAME.toml (from `dygmamba tune`)."
        ),
    ] = None,
    task: Annotated[
        str, typer.Option(help="Predict links (link), or labels of sources: states, classes, numbers (node).")
    ] = "link",
    backbone: Annotated[
        Path | None,
        typer.Option(
            parser=parse_run, metavar="RUN", help="Build the node classifier on this finished link run."
        ),
    ] = None,
    finetune: Annotated[
        bool, typer.Option("--finetune", help="Train the backbone of the node classifier too.")
    ] = False,
    balance: Annotated[
        bool, typer.Option("--balance", help="Weigh all classes of a node task the same.")
    ] = False,
    seeds: Annotated[str, typer.Option(help="Train one run for each seed, e.g. 0 or 0-4 or 0,3,7.")] = "0",
    epochs: Annotated[int | None, typer.Option(min=1, help="Train at most this many epochs.")] = None,
    overrides: Overrides = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Split by shares (0.7,0.15,0.15), by the times where validation and test start "
            "(2024-01-01,2024-06-01), or as the "
            "dataset's leaderboard does (board)."
        ),
    ] = None,
    protocol: Protocol = "auto",
    negatives: Annotated[
        str, typer.Option(help=f"Evaluate against these negatives: {', '.join(NEGATIVES)}.")
    ] = "random",
    train_negatives: Annotated[
        str | None,
        typer.Option(
            help="Train against random, historical or mixed negatives, mixed-odds (mixed, with the loss corrected "
            "for how often each kind is drawn), or popular-odds (recently popular destinations, corrected likewise)."
        ),
    ] = None,
    activity: Annotated[
        bool,
        typer.Option(
            "--activity",
            help="Add the source's activity rate to the score (helps with historical and inductive negatives).",
        ),
    ] = False,
    loss: Annotated[
        str | None, typer.Option(help="Train with a pairwise loss, or a ranking loss (for MRR and Hits@k).")
    ] = None,
    train_candidates: Annotated[
        int | None,
        typer.Option(min=1, help="With --loss ranking, rank each event among this many destinations."),
    ] = None,
    visible: Annotated[
        str | None,
        typer.Option(
            help="Let memories and counts see strictly earlier events (strict) or all earlier batches (batch)."
        ),
    ] = None,
    device: Device = "auto",
    deterministic: Annotated[
        bool | None,
        typer.Option(
            help="Fail instead of using operations that are not reproducible; a resumed run keeps its choice.",
            show_default=False,
        ),
    ] = None,
    out: RunsOut = Path("runs"),
    resume: Annotated[
        Path | None,
        typer.Option(
            parser=parse_run_to_resume,
            metavar="RUN",
            help="Continue this run directory, or the newest run of a dataset (a name, or latest); --epochs may give "
            "it more epochs.",
        ),
    ] = None,
    refit: Annotated[
        str | None,
        typer.Option(
            help="Afterwards train once more on all events, for production; the only value is `all`."
        ),
    ] = None,
    log: Annotated[
        str | None, typer.Option(help="Log to tensorboard, mlflow, or both (tensorboard,mlflow).")
    ] = None,
    processes: Annotated[
        int,
        typer.Option(min=1, help="Share every batch among this many processes, one per GPU or core group."),
    ] = 1,
    data_dir: DataDir = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Train a model on a dataset, evaluate it on validation and test, and compare it with simple heuristics."""
    if (data is None) == (resume is None):
        raise ConfigError(
            "give either a dataset to train on or --resume RUN to continue a run",
            code="dataset-or-resume",
        )
    named_settings = {
        "epochs": epochs,
        "visible": visible,
        "train_negatives": train_negatives,
        "activity": activity,
    }
    named_settings |= {"loss": loss, "train_candidates": train_candidates}
    settings = parse_overrides(overrides) | {key: value for key, value in named_settings.items() if value}
    numbers, model = parse_seeds(seeds), import_model(model)
    if resume is not None:
        typed = [name for name in FIXED_BY_RUN if _is_typed(context, name)]
        precheck.check_resume(
            resume, negatives=negatives, device=device, log=log, refit=refit, task=task, given=typed
        )
    else:
        precheck.check_train(
            data=str(data), model=model, settings=settings, task=task, budget=budget, seeds=numbers,
            processes=processes, preset=preset, split=split, protocol=protocol, backbone=backbone,
            finetune=finetune, balance=balance, negatives=negatives, device=device, log=log, refit=refit,
            data_dir=data_dir, start_from=start_from,
        )  # fmt: skip
    import_if_trusted(trust_code, resume, backbone, start_from)

    from dygmamba.api import training

    with show_progress(save_on_interrupt=True) as progress:
        where: dict[str, Any] = {
            "device": device,
            "data_dir": data_dir,
            "progress": progress,
            "processes": processes,
        }
        shared = {**where, "negatives": negatives, "log": log}
        if resume is not None:
            runs = [training.resume(resume, **shared, deterministic=deterministic, overrides=settings)]
        else:
            plan = {
                "data": str(data),
                "model": model,
                "seeds": numbers,
                "task": task,
                "budget": budget,
                "start_from": start_from,
                "out": out,
                "split": split,
                "protocol": protocol,
            }
            plan |= {"backbone": backbone, "finetune": finetune, "balance": balance, "preset": preset}
            runs = training.train(**plan, **shared, deterministic=bool(deterministic), overrides=settings)
        refits = [training.refit(run.path, **where) for run in runs] if refit else []
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
        refitted = {"refits": [str(run.path) for run in refits]} if refits else {}
        tried = {"selections": found.selections} if found.selections else {}
        emit_json({"results": found.rows, **comparison, **refitted, **tried})
    elif found.rows:
        print_document(found.document)


def blend(
    runs: Annotated[list[Path], run_argument("Combine these two to four finished link runs.")],
    negatives: Annotated[
        str, typer.Option(help=f"Evaluate against these negatives: {', '.join(NEGATIVES)}.")
    ] = "random",
    device: Device = "auto",
    out: RunsOut = Path("runs"),
    data_dir: DataDir = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Combine finished runs into one: the weighted sum of their scores that is best on validation.

    Nothing is trained. The new run holds all it needs and is used like any other.
    """
    precheck.check_blend(runs, negatives, device)
    import_if_trusted(trust_code, *runs)

    from dygmamba.api.training import blend as blend_runs

    with show_progress(save_on_interrupt=True) as progress:
        run = blend_runs(
            runs, device=device, out=out, negatives=negatives, data_dir=data_dir, progress=progress
        )
    _print_runs([run], [], as_json)


def tune(
    data: Annotated[
        str, typer.Argument(help="Tune on this dataset: a name or a file; `generated` is built in.")
    ],
    model: Annotated[str | None, typer.Option(help="Tune this model (see `dygmamba models`).")] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many trials of the whole study.")
    ] = None,
    hours: Annotated[float | None, typer.Option(help="Stop after this many hours, e.g. 0.5.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the preset to this file, NAME.toml.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only continue an existing study; fail if there is none.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed the search and every training in it.")] = 0,
    preset: Annotated[
        str | None, typer.Option(help="Start from small, short, paper or a file NAME.toml.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Train at most this many epochs per trial.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Fix a setting, key=value, so that it is not searched.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split by shares (0.7,0.15,0.15) or by the times where validation and test start."),
    ] = None,
    protocol: Protocol = "auto",
    device: Device = "auto",
    studies: Annotated[Path, typer.Option(help="Write studies below this folder.")] = Path("studies"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Search for better settings in short trainings, judged on validation alone, and save them as a preset.

    The same command continues a study. Ctrl-C ends it with the best settings so far.
    """
    settings = parse_overrides(overrides) | ({} if epochs is None else {"epochs": epochs})
    model = import_model(model)
    precheck.check_tune(
        data=data, model=model, settings=settings, preset=preset, split=split, protocol=protocol,
        trials=trials, hours=hours, device=device, data_dir=data_dir,
    )  # fmt: skip

    from dygmamba.api.tuning import tune as search

    with show_progress(save_on_interrupt=True) as progress:
        plan: dict[str, Any] = {"data": data, "model": model, "trials": trials, "hours": hours, "out": out}
        plan |= {"resume": resume, "seed": seed, "preset": preset, "split": split, "device": device}
        plan |= {"protocol": protocol}
        plan |= {"studies": studies, "data_dir": data_dir, "progress": progress}
        plan |= {"train_command": partial(_format_train_command, data)}
        tuning = search(**plan, overrides=settings)
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


def demo(
    out: RunsOut = Path("runs"),
    seed: Annotated[int, typer.Option(min=0, help="Seed the training.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Train this many epochs.")] = 14,
    as_json: Json = False,
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
