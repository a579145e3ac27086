"""`dygmamba train`: one loop for every model, resumable, with a table of mean and spread at the end."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli.console import emit_json, progress, stderr, stdout
from dygmamba.errors import ConfigError

if TYPE_CHECKING:
    from dygmamba.engine.fit import Fit, Reporter
    from dygmamba.engine.folder import RunFolder

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
    from dygmamba.cli.evaluate import any_table, listed
    from dygmamba.cli.train_node import NodeOptions, check_task, resume_node, train_node
    from dygmamba.config import parse_overrides
    from dygmamba.data.library import open_dataset
    from dygmamba.engine.folder import RunFolder
    from dygmamba.process_wide import repeat_every_bit
    from dygmamba.runs.link import resume_link_run, start_link_run
    from dygmamba.runs.opening import choose_device
    from dygmamba.sampling.negatives import SAMPLERS

    strategies = listed("--negatives", negatives, SAMPLERS)
    if (data is None) == (resume is None):
        raise ConfigError(
            "give a dataset to train on, or --resume RUN to go on with a run; not both, not neither"
        )
    options = NodeOptions(model, backbone, finetune, balance, strategies, tensorboard)
    check_task(task, options, resume)
    where = choose_device(device)
    if deterministic:
        repeat_every_bit()
    rows: list[dict[str, Any]] = []
    given = {"epochs": epochs, "visible": visible}
    settings = parse_overrides(overrides or []) | {key: value for key, value in given.items() if value}
    if resume is not None:
        if settings:
            raise ConfigError(
                f"a resumed run keeps its settings, but {', '.join(settings)} was given; leave it out, or start anew"
            )
        if RunFolder(resume).task == "node":
            rows = resume_node(resume, where, data_dir, tensorboard)
        else:
            rows = finish_run(resume_link_run(resume, where, data_dir), strategies, tensorboard)
    else:
        dataset = open_dataset(str(data), data_dir)
        for seed in parse_seeds(seeds):
            if task == "node":
                rows += train_node(dataset, options, seed, settings, where, out)
            else:
                fit = start_link_run(dataset, model or DEFAULT_MODEL, seed, settings, where, out)
                rows += finish_run(fit, strategies, tensorboard)
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


def finish_run(fit: "Fit", strategies: list[str], tensorboard: bool) -> list[dict[str, Any]]:
    """Train to the end, evaluate the best weights, write results.json and, where it can be, report.html."""
    from dygmamba.runs.link import link_rows
    from dygmamba.tasks.link import SETTINGS, SPLITS

    run_to_end(fit, tensorboard, f"seed {fit.seed}", "ap")
    about = fit.run.config()["run"]
    names = {"dataset": about["data"], "model": about["model"], "seed": fit.seed, "run": str(fit.run.path)}
    chosen = [(strategy, name, setting) for strategy in strategies for name in SPLITS for setting in SETTINGS]
    rows = link_rows(fit.scorer, fit.stream, names, chosen, fit.config.rule)
    keep_results(fit, rows)
    return rows


def run_to_end(fit: "Fit", tensorboard: bool, name: str, metric: str) -> None:
    """Train with a bar of that name; Ctrl-C saves and stops."""
    with progress() as bar, interrupts() as stop:
        fit(reporter(fit, bar, stop, tensorboard, name, metric))


def keep_results(fit: "Fit", rows: list[dict[str, Any]]) -> None:
    """Write results.json and, where it can be, report.html; say where."""
    fit.run.write_results(rows)
    write_page(fit.run)
    stderr().print(f"run: {fit.run.path}", soft_wrap=True, highlight=False)


def write_page(run: "RunFolder") -> Path | None:
    """The run's report.html, or a sentence on what drawing it needs: those packages are optional."""
    from dygmamba.report.page import write_report

    try:
        return write_report(run)
    except ConfigError as error:
        said = f"no report: {error}, then: dygmamba report {run.path}"
        stderr().print(said, soft_wrap=True, markup=False, highlight=False)
        return None


def reporter(fit: "Fit", bar: Any, stop: list[bool], tensorboard: bool, name: str, metric: str) -> "Reporter":
    """Steps move a bar of that name, epochs write their loss and the metric beside it."""
    from dygmamba.engine.fit import Reporter

    steps, done = fit.steps_per_epoch, fit.progress
    task = bar.add_task(name, total=fit.config.epochs * steps)
    bar.update(task, completed=done.epoch * steps + done.step)
    writer = tensorboard_writer(fit.run.path) if tensorboard else None

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


def tensorboard_writer(folder: Path) -> Any:
    """TensorBoard's writer into a run folder."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "--tensorboard needs the package tensorboard; pip install 'dyg-mamba[track]'"
        ) from error
    return SummaryWriter(str(folder))
