"""`dygmamba train`: one loop for every model, resumable, with a table of mean and spread at the end.

`dygmamba blend`: several finished runs as one.

`dygmamba tune`: settings that suit a dataset, found on its validation period, kept as a preset for `train`.
"""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api import precheck
from dygmamba.cli.console import emit_json, make_result_tables, plain_table, print_line, stdout
from dygmamba.cli.messages import escape_text, parse_overrides, parse_seeds, translate_message
from dygmamba.core.errors import ConfigError
from dygmamba.engine.launcher import ProcessesFailed, is_worker, launch_command
from dygmamba.engine.run_directory import RunDirectory

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.runs.tuning import Tuning

# what a run is: given with --resume, these are refused; settings are compared with the run's own
FIXED_BY_RUN = ("model", "preset", "backbone", "finetune", "balance", "seeds", "split", "out")


def train(
    context: typer.Context,
    data: Annotated[str | None, typer.Argument(help="Dataset name or file; `generated` is built in.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Registered model; dyg-mamba on a GPU, trees without one, unless told.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="small: a dyg-mamba for CPUs; paper: the published size; NAME.toml: of `dygmamba tune`."
        ),
    ] = None,
    task: Annotated[
        str, typer.Option(help="link, or node: classify sources by their events' labels.")
    ] = "link",
    backbone: Annotated[
        Path | None, typer.Option(help="With --task node: the finished link run to build on.")
    ] = None,
    finetune: Annotated[
        bool, typer.Option("--finetune", help="With --task node: train the backbone too.")
    ] = False,
    balance: Annotated[
        bool, typer.Option("--balance", help="With --task node: weigh both classes the same.")
    ] = False,
    seeds: Annotated[str, typer.Option(help="Seeds, e.g. 0 or 0-4 or 0,3,7.")] = "0",
    epochs: Annotated[int | None, typer.Option(min=1, help="At most this many epochs.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Setting, key=value, e.g. length=32.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Shares, or when validation and test begin: 2024-01-01,2024-06-01; board: its scoreboard's, if any.",
            show_default=False,
        ),
    ] = None,
    negatives: Annotated[
        str, typer.Option(help="Final evaluation: random, historical, inductive.")
    ] = "random",
    train_negatives: Annotated[
        str | None,
        typer.Option(
            help="Train against random (default), historical or mixed pairs; mixed-odds: mixed, their odds known."
        ),
    ] = None,
    activity: Annotated[
        bool,
        typer.Option(
            "--activity", help="Add the source's rate to the score where negatives replace the source."
        ),
    ] = False,
    loss: Annotated[
        str | None, typer.Option(help="pairwise (default), or ranking: each event among --train-candidates.")
    ] = None,
    train_candidates: Annotated[
        int | None, typer.Option(min=1, help="Destinations of the same source, for --loss ranking.")
    ] = None,
    visible: Annotated[
        str | None,
        typer.Option(help="What a memory or a table may know: strict (strictly earlier; default) or batch."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    deterministic: Annotated[bool, typer.Option(help="Refuse operations that are not reproducible.")] = False,
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this run folder; --epochs may give it more.")
    ] = None,
    refit: Annotated[
        str | None, typer.Option(help="all: then train the same on every event, as a run for use.")
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(help="Also write it down with tensorboard, mlflow, or both.", show_default=False),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(min=1, help="Processes of this machine that share every batch; one per GPU, or cores."),
    ] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Train a model on a dataset and evaluate its best weights, and simple rules, on validation and test."""
    if (data is None) == (resume is None):
        raise ConfigError(
            "give a dataset to train on, or --resume RUN to go on with a run; not both, not neither"
        )
    own = {"epochs": epochs, "visible": visible, "train_negatives": train_negatives, "activity": activity}
    own |= {"loss": loss, "train_candidates": train_candidates}
    settings = parse_overrides(overrides or []) | {key: value for key, value in own.items() if value}
    numbers = parse_seeds(seeds)
    precheck.check_names("negatives", negatives)
    precheck.check_device(device)
    logs = precheck.parse_loggers(log)
    _check_refit_option(refit, task)
    precheck.check_task(task, {"backbone": backbone is not None, "finetune": finetune, "balance": balance})
    if resume is not None:
        precheck.require_run(resume)
        _refuse_fixed_options(context, resume, task)
    elif backbone is not None:
        precheck.check_backbone_conflicts(backbone, preset=preset, split=split)
        precheck.require_run(backbone)
    else:
        precheck.check_split(split)
        precheck.check_trainable(model, settings, task, preset, device)
    if data is not None:
        precheck.require_dataset(data, data_dir)
    if processes > 1:
        return train_in_processes(processes)

    from dygmamba.api.evaluation import parse_names
    from dygmamba.api.loggers import LoggedProgress
    from dygmamba.api.pipeline import TrainingPlan, refit_link_run, resume_run, train_link_run, train_node_run
    from dygmamba.api.processes import process_group
    from dygmamba.api.validation import choose_model
    from dygmamba.cli.progress import Bars, Unseen
    from dygmamba.core.process_settings import enable_determinism
    from dygmamba.data.storage.library import open_dataset
    from dygmamba.runs.opening import choose_device
    from dygmamba.sampling.negatives import SAMPLERS

    strategies = parse_names("negatives", negatives, SAMPLERS)
    where = choose_device(device)
    if deterministic:
        enable_determinism()
    with process_group(where) as ranks, Bars() if ranks.leads else Unseen() as shown:
        bars = LoggedProgress(shown, logs) if logs and ranks.leads else shown
        if resume is not None:
            fits = [resume_run(resume, where, strategies, bars, data_dir, settings)]
        else:
            why = {"device": f"{where.type}: torch sees {'a' if where.type == 'cuda' else 'no'} GPU"}
            if model is None and backbone is None:
                pick = choose_model(where, task, settings, preset)
                model, preset, why["model"] = pick.model, pick.size, pick.sentence
            plan = TrainingPlan(
                settings, where, out, model, strategies, backbone, finetune, balance, preset, split,
                why if device == "auto" else {key: said for key, said in why.items() if key != "device"},
            )  # fmt: skip
            dataset, work = (
                open_dataset(str(data), data_dir),
                train_node_run if task == "node" else train_link_run,
            )
            fits = [work(dataset, plan, seed, bars) for seed in numbers]
        refits = [refit_link_run(fit.run.path, where, bars, data_dir) for fit in fits if refit]
    if ranks.leads:
        print_runs([fit.run for fit in fits], [fit.run.path for fit in refits], as_json)


def train_in_processes(count: int) -> None:
    """The same command line in so many processes, of which the first one speaks."""
    if is_worker():
        raise ConfigError("this is one of several processes already; leave out --processes")
    words, skip = [], False
    for word in sys.argv[1:]:
        if not skip and word != "--processes" and not word.startswith("--processes="):
            words.append(word)
        skip = word == "--processes"
    try:
        launch_command(words, count)
    except ProcessesFailed as ended:
        if ended.said:
            raise typer.Exit(ended.exit_code) from None
        raise


def print_runs(runs: "list[RunDirectory]", refits: list[Path], as_json: bool) -> None:
    """The table of all seeds, the rules beside them; of one run, how it stands against the best of these."""
    rows = [row for run in runs for row in run.results()]
    rules = runs[0].rules()
    verdicts = [verdict for run in runs if (verdict := run.verdict())]
    if as_json:
        beside = {"rules": rules, "verdicts": verdicts} if rules else {}
        emit_json(
            {"results": rows, **beside, **({"refits": [str(path) for path in refits]} if refits else {})}
        )
    elif rows:
        for table in make_result_tables(rows, rules):
            stdout().print(table)
        for run, verdict in zip(runs, verdicts, strict=False):
            seed = f"seed {run.config()['run']['seed']}: " if len(runs) > 1 else ""
            print_line(f"{seed}{translate_message(verdict['sentence'])}")


def _check_refit_option(refit: str | None, task: str) -> None:
    if refit not in (None, "all"):
        raise ConfigError(f"--refit takes all, got '{refit}'")
    if refit and task == "node":
        raise ConfigError("--refit is for link runs; leave it out, or leave out --task node")


def _refuse_fixed_options(context: typer.Context, resume: Path, task: str) -> None:
    """Refuse what a resumed run would have to ignore."""
    other = ("task",) if RunDirectory(resume).task != task else ()
    for name in (*FIXED_BY_RUN, *other):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"a resumed run is what it is; leave out `{name}`, or start anew")


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
    precheck.check_names("negatives", negatives)
    precheck.check_device(device)
    for run in runs:
        precheck.require_run(run)

    from dygmamba.api.training import watched_blend
    from dygmamba.api.validation import parse_names
    from dygmamba.cli.progress import Bars
    from dygmamba.runs.opening import choose_device
    from dygmamba.sampling.negatives import SAMPLERS

    strategies = parse_names("negatives", negatives, SAMPLERS)
    with Bars() as bars:
        fit = watched_blend(runs, choose_device(device), out, strategies, bars, data_dir)
    print_runs([fit.run], [], as_json)


HOURS_PER_YEAR = 24 * 365  # hours
SHOWN_TRIALS = 8  # of the best trials


def tune(
    data: Annotated[str, typer.Argument(help="Dataset name or file; `generated` is built in.")],
    model: Annotated[
        str | None, typer.Option(help="Registered model; dyg-mamba on a GPU, trees without one, unless told.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials of the whole study; 30 unless --hours is given.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="Stop after so many hours, e.g. 0.5; what was found is kept.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The preset file, NAME.toml; else preset.toml in the study's folder.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a study; an error where there is none.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the search and of every training in it.")] = 0,
    preset: Annotated[str | None, typer.Option(help="Begin from small, paper or a file NAME.toml.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most so many epochs a trial.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Setting, key=value, that is fixed and not searched.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Shares 0.7,0.15,0.15, or when validation and test begin.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    studies: Annotated[Path, typer.Option(help="Where studies go.")] = Path("studies"),
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Search for better settings in short trainings, judged on validation alone; the same command goes on.

    Ctrl-C ends it with what was found.
    """
    settings = parse_overrides(overrides or []) | ({} if epochs is None else {"epochs": epochs})
    if hours is not None and not 0 < hours <= HOURS_PER_YEAR:
        raise ConfigError(f"--hours must be above 0 and at most a year's, got {hours:g}")
    precheck.check_device(device)
    precheck.check_split(split)
    precheck.check_trainable(model, settings, "link", preset, device)
    precheck.require_dataset(data, data_dir)

    from dygmamba.api.studies import watched_tune
    from dygmamba.api.validation import choose_model
    from dygmamba.cli.progress import Trials, print_message
    from dygmamba.data.storage.library import open_dataset
    from dygmamba.runs.opening import choose_device, parse_split
    from dygmamba.runs.tuning import TuningRequest

    where, dataset = choose_device(device), open_dataset(data, data_dir)
    if model is None:
        pick = choose_model(where, "link", settings, preset)
        model, preset = pick.model, pick.size
        print_message(pick.sentence)
    what = TuningRequest(
        dataset,
        model,
        where,
        seed,
        settings,
        preset,
        parse_split(dataset, split),
        partial(_format_train_command, data),
    )
    with Trials() as bars:
        found = watched_tune(what, studies, bars.trial, trials, hours, out, resume)
    if as_json:
        emit_json(found.to_dict())
    else:
        _print_tuning(found, data)
    if found.ended == "stopped":
        raise typer.Exit(130)


def _format_train_command(data: str, preset: Path) -> str:
    return shlex.join(["dygmamba", "train", data, "--preset", str(preset)])


def _print_tuning(found: "Tuning", data: str) -> None:
    stdout().print(_make_trial_table(found))
    mattered = sorted(found.importances.items(), key=lambda one: -one[1])
    if mattered:
        print_line("what mattered: " + ", ".join(f"{name} {share:.0%}" for name, share in mattered[:6]))
    print_line(found.sentence)
    if found.ended != "done":
        why = "the time is up" if found.ended == "time" else "stopped"
        print_line(f"{why}; the same command goes on in {found.folder}")
    print_line(f"page: {found.page}")
    print_line(f"preset: {found.preset}")
    print_line(f"next: {_format_train_command(data, found.preset)}")


def _make_trial_table(found: "Tuning") -> "Table":
    """The best trials, the model as it is among them, and what each changed."""
    title = f"{escape_text(found.model)} on {escape_text(found.data)}: {len(found.trials)} trials, {found.cut_off} cut off"
    table = plain_table(title=title, figures=("trial", "val AP", "epochs", "time"))
    table.add_column("settings")
    done = sorted((row for row in found.trials if row["state"] == "done"), key=lambda row: -row["ap"])
    first = [row for row in done[SHOWN_TRIALS:] if row["trial"] == 1]
    for row in done[:SHOWN_TRIALS] + first:
        table.add_row(
            str(row["trial"]), f"{100 * row['ap']:.2f}", str(row["epochs"]), f"{row['seconds']:.0f} s",
            "as it is" if row["trial"] == 1 else _format_settings(row["settings"]),
        )  # fmt: skip
    return table


def _format_settings(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in values.items())  # fmt: skip
