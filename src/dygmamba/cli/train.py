"""`dygmamba train`: one loop for every model, resumable, with a table of mean and spread at the end."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dygmamba.cli import early
from dygmamba.cli.console import emit_json, stdout, tell
from dygmamba.cli.tables import tables_of
from dygmamba.cli.words import parse_overrides, parse_seeds, spoken
from dygmamba.engine.folder import RunFolder
from dygmamba.engine.launching import Ended, is_member, launch
from dygmamba.errors import ConfigError

# what a run is: given with --resume, these are refused; settings are compared with the run's own
DECIDED = ("model", "preset", "backbone", "finetune", "balance", "seeds", "split", "out")


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
    early.check_names("negatives", negatives)
    early.check_device(device)
    logs = early.asked_logs(log)
    _check_refit(refit, task)
    early.check_task(task, {"backbone": backbone is not None, "finetune": finetune, "balance": balance})
    if resume is not None:
        early.require_run(resume)
        _refuse_given(context, resume, task)
    elif backbone is not None:
        early.check_backbone_decides(backbone, preset=preset, split=split)
        early.require_run(backbone)
    else:
        early.check_split(split)
        early.check_trained(model, settings, task, preset, device)
    if data is not None:
        early.require_dataset(data, data_dir)
    if processes > 1:
        return in_processes(processes)

    from dygmamba.cli.watching import Bars, Unseen
    from dygmamba.data.library import open_dataset
    from dygmamba.door.choosing import pick_model
    from dygmamba.door.evaluation import chosen_names
    from dygmamba.door.loggers import Logged
    from dygmamba.door.refitting import refit_link
    from dygmamba.door.together import joined
    from dygmamba.door.training import Plan, resume_any, train_link, train_node
    from dygmamba.process_wide import repeat_every_bit
    from dygmamba.runs.opening import choose_device
    from dygmamba.sampling.negatives import SAMPLERS

    strategies = chosen_names("negatives", negatives, SAMPLERS)
    where = choose_device(device)
    if deterministic:
        repeat_every_bit()
    with joined(where) as ranks, Bars() if ranks.leads else Unseen() as shown:
        bars = Logged(shown, logs) if logs and ranks.leads else shown
        if resume is not None:
            fits = [resume_any(resume, where, strategies, bars, data_dir, settings)]
        else:
            why = {"device": f"{where.type}: torch sees {'a' if where.type == 'cuda' else 'no'} GPU"}
            if model is None and backbone is None:
                pick = pick_model(where, task, settings, preset)
                model, preset, why["model"] = pick.model, pick.size, pick.sentence
            plan = Plan(
                settings, where, out, model, strategies, backbone, finetune, balance, preset, split,
                why if device == "auto" else {key: said for key, said in why.items() if key != "device"},
            )  # fmt: skip
            dataset, work = open_dataset(str(data), data_dir), train_node if task == "node" else train_link
            fits = [work(dataset, plan, seed, bars) for seed in numbers]
        refits = [refit_link(fit.run.path, where, bars, data_dir) for fit in fits if refit]
    if ranks.leads:
        show_runs([fit.run for fit in fits], [fit.run.path for fit in refits], as_json)


def in_processes(count: int) -> None:
    """The same command line in so many processes, of which the first one speaks."""
    if is_member():
        raise ConfigError("this is one of several processes already; leave out --processes")
    words, skip = [], False
    for word in sys.argv[1:]:
        if not skip and word != "--processes" and not word.startswith("--processes="):
            words.append(word)
        skip = word == "--processes"
    try:
        launch(words, count)
    except Ended as ended:
        if ended.said:
            raise typer.Exit(ended.exit_code) from None
        raise


def show_runs(runs: "list[RunFolder]", refits: list[Path], as_json: bool) -> None:
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
        for table in tables_of(rows, rules):
            stdout().print(table)
        for run, verdict in zip(runs, verdicts, strict=False):
            seed = f"seed {run.config()['run']['seed']}: " if len(runs) > 1 else ""
            tell(f"{seed}{spoken(verdict['sentence'])}")


def _check_refit(refit: str | None, task: str) -> None:
    if refit not in (None, "all"):
        raise ConfigError(f"--refit takes all, got '{refit}'")
    if refit and task == "node":
        raise ConfigError("--refit is for link runs; leave it out, or leave out --task node")


def _refuse_given(context: typer.Context, resume: Path, task: str) -> None:
    """Refuse what a resumed run would have to ignore."""
    other = ("task",) if RunFolder(resume).task != task else ()
    for name in (*DECIDED, *other):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"a resumed run is what it is; leave out `{name}`, or start anew")
