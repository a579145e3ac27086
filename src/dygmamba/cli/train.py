"""`dygmamba train`: one loop for every model, resumable, with a table of mean and spread at the end."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.cli.console import emit_json, stdout
from dygmamba.cli.tables import tables_of
from dygmamba.cli.words import parse_overrides, parse_seeds
from dygmamba.errors import ConfigError


def train(
    data: Annotated[str | None, typer.Argument(help="Dataset name or file; `generated` is built in.")] = None,
    model: Annotated[str | None, typer.Option(help="Registered model; dyg-mamba unless told.")] = None,
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
    negatives: Annotated[
        str, typer.Option(help="Final evaluation: random, historical, inductive.")
    ] = "random",
    train_negatives: Annotated[
        str | None, typer.Option(help="Train against random (default), historical or mixed pairs.")
    ] = None,
    visible: Annotated[
        str | None, typer.Option(help="What a memory may see: strict (strictly earlier; default) or batch.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    deterministic: Annotated[bool, typer.Option(help="Refuse operations that are not reproducible.")] = False,
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder.")] = None,
    tensorboard: Annotated[
        bool, typer.Option(help="Also write TensorBoard events into the run folder.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Train a model on a dataset and evaluate its best weights on validation and test."""
    from dygmamba.cli.watching import Bars
    from dygmamba.data.library import open_dataset
    from dygmamba.door.evaluation import chosen_names
    from dygmamba.door.training import Plan, check_task, resume_any, train_link, train_node
    from dygmamba.process_wide import repeat_every_bit
    from dygmamba.runs.opening import choose_device
    from dygmamba.sampling.negatives import SAMPLERS

    strategies, bars = chosen_names("negatives", negatives, SAMPLERS), Bars(tensorboard)
    if (data is None) == (resume is None):
        raise ConfigError(
            "give a dataset to train on, or --resume RUN to go on with a run; not both, not neither"
        )
    given = {"backbone": backbone is not None, "finetune": finetune, "balance": balance}
    own = {"epochs": epochs, "visible": visible, "train_negatives": train_negatives}
    settings = parse_overrides(overrides or []) | {key: value for key, value in own.items() if value}
    _check_resume(resume, given)
    check_task(task, given)
    where = choose_device(device)
    if deterministic:
        repeat_every_bit()
    if resume is not None:
        if settings:
            raise ConfigError(
                f"a resumed run keeps its settings, but {', '.join(settings)} was given; leave it out, or start anew"
            )
        fits = [resume_any(resume, where, strategies, bars, data_dir)]
    else:
        dataset, work = open_dataset(str(data), data_dir), train_node if task == "node" else train_link
        plan = Plan(settings, where, out, model, strategies, backbone, finetune, balance)
        fits = [work(dataset, plan, seed, bars) for seed in parse_seeds(seeds)]
    rows = [row for fit in fits for row in fit.run.results()]
    if as_json:
        emit_json({"results": rows})
    else:
        for table in tables_of(rows):
            stdout().print(table)


def _check_resume(resume: Path | None, given: dict[str, bool]) -> None:
    """Refuse what a resumed run would have to ignore."""
    wrong = [name for name, used in given.items() if used]
    if resume is not None and wrong:
        raise ConfigError(f"a resumed run is what it is; leave out `{wrong[0]}`")
