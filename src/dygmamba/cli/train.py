"""`dygmamba train`: one loop for every model, resumable, with a table of mean and spread at the end."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli.console import emit_json, progress, stderr, stdout
from dygmamba.errors import ConfigError

if TYPE_CHECKING:
    from dygmamba.data.splits import Split
    from dygmamba.data.store import Dataset
    from dygmamba.engine.classification import NodeTraining
    from dygmamba.engine.runs import RunFolder
    from dygmamba.engine.training import Reporter, Training

DEFAULT_MODEL = "dyg-mamba"


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
    from dygmamba.cli.evaluate import any_table, listed
    from dygmamba.cli.train_node import NodeOptions, check_task, train_node
    from dygmamba.config import parse_overrides
    from dygmamba.data.library import open_dataset
    from dygmamba.experiment import choose_device, reopen_run, start_run
    from dygmamba.sampling.negatives import STRATEGIES

    strategies = listed("--negatives", negatives, STRATEGIES)
    if (data is None) == (resume is None):
        raise ConfigError(
            "give a dataset to train on, or --resume RUN to go on with a run; not both, not neither"
        )
    options = NodeOptions(model, backbone, finetune, balance, strategies, tensorboard)
    check_task(task, options, resume)
    where = choose_device(device)
    _determinism(deterministic)
    rows: list[dict[str, Any]] = []
    if resume is not None:
        training, dataset, split = reopen_run(resume, where, data_dir)
        rows = finish_run(training, dataset, split, strategies, tensorboard)
    else:
        settings = parse_overrides(overrides or []) | ({"epochs": epochs} if epochs else {})
        dataset = open_dataset(str(data), data_dir)
        for seed in parse_seeds(seeds):
            if task == "node":
                rows += train_node(dataset, options, seed, settings, where, out)
            else:
                training, split = start_run(dataset, model or DEFAULT_MODEL, seed, settings, where, out)
                rows += finish_run(training, dataset, split, strategies, tensorboard)
    if as_json:
        emit_json({"results": rows})
    else:
        stdout().print(any_table(rows))


def parse_seeds(text: str) -> list[int]:
    """`0-4`, `0,3,7` or `5` as a list."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        seeds = []
    if not seeds:
        raise ConfigError(f"--seeds takes numbers and ranges such as 0-4 or 0,3,7; got '{text}'")
    return seeds


def finish_run(
    training: "Training", dataset: "Dataset", split: "Split", strategies: list[str], tensorboard: bool
) -> list[dict[str, Any]]:
    """Train to the end, evaluate the best weights, write results.json and, where it can be, report.html."""
    from dygmamba.engine.evaluation import SETTINGS, SPLITS, evaluation_set
    from dygmamba.experiment import final_rows

    validation = evaluation_set(dataset.store, split, "val", "transductive", "random")
    with progress() as bar, interrupts() as stop:
        name = f"seed {training.seed}"
        training.fit(validation, reporter(training, bar, stop, tensorboard, name, "ap"))
    about = {
        "dataset": dataset.name,
        "model": training.run.config()["run"]["model"],
        "seed": training.seed,
        "run": str(training.run.path),
    }
    chosen = [(strategy, name, setting) for strategy in strategies for name in SPLITS for setting in SETTINGS]
    rows = final_rows(dataset, split, training.scorer, training.data, about, chosen)
    training.run.write_results(rows)
    write_page(training.run)
    stderr().print(f"run: {training.run.path}", soft_wrap=True, highlight=False)
    return rows


def write_page(run: "RunFolder") -> Path | None:
    """The run's report.html, or a sentence on what drawing it needs: those packages are optional."""
    from dygmamba.report import write_report

    try:
        return write_report(run)
    except ConfigError as error:
        said = f"no report: {error}, then: dygmamba report {run.path}"
        stderr().print(said, soft_wrap=True, markup=False, highlight=False)
        return None


def reporter(
    training: "Training | NodeTraining", bar: Any, stop: list[bool], tensorboard: bool, name: str, metric: str
) -> "Reporter":
    """Steps move a bar of that name, epochs write their loss and the metric beside it."""
    from dygmamba.engine.training import Reporter

    steps, done = training.steps_per_epoch, training.progress
    task = bar.add_task(name, total=training.config.epochs * steps)
    bar.update(task, completed=done.epoch * steps + done.step)
    writer = tensorboard_writer(training.run.path) if tensorboard else None

    def on_epoch(entry: dict[str, Any]) -> None:
        quality = f"loss {entry['loss']:.4f} val {metric.upper()} {100 * entry[f'val_{metric}']:.2f}"
        bar.update(task, description=f"{name} epoch {entry['epoch']} {quality}")
        if writer is not None:
            for key in ("loss", "val_ap", "val_auc"):
                writer.add_scalar(key, entry[key], entry["epoch"])
            writer.flush()

    def on_step(epoch: int, step: int) -> None:
        bar.update(task, completed=epoch * steps + step + 1)

    return Reporter(step=on_step, epoch=on_epoch, stop=lambda: bool(stop))


class interrupts:
    """Ctrl-C and SIGTERM ask the loop to save and stop at the next step instead of breaking it."""

    def __enter__(self) -> list[bool]:
        self._asked: list[bool] = []
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in self._before:
            signal.signal(number, lambda *_: self._asked.append(True))
        return self._asked

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _determinism(asked: bool) -> None:
    import os

    import torch

    if asked:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def tensorboard_writer(folder: Path) -> Any:
    """TensorBoard's writer into a run folder."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "--tensorboard needs the package tensorboard; pip install 'dyg-mamba[track]'"
        ) from error
    return SummaryWriter(str(folder))
