"""`dygmamba train --task node`: a link run, given or made, and a classifier on its embeddings."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.cli.console import mean_and_spread, plain_table, progress, stderr
from dygmamba.cli.train import DEFAULT_MODEL, finish_run, interrupts, reporter, write_page
from dygmamba.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from dygmamba.data.store import Dataset

TASKS = ("link", "node")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What the command line says of a classifier; `strategies` evaluate the backbone trained for it."""

    model: str | None
    backbone: Path | None
    finetune: bool
    balance: bool
    strategies: list[str]
    tensorboard: bool


def check_task(task: str, options: NodeOptions, resume: Path | None) -> None:
    """Refuse options that the task would have to ignore."""
    if task not in TASKS:
        raise ConfigError(f"--task takes {' or '.join(TASKS)}, got '{task}'")
    given = {
        "--backbone": options.backbone is not None,
        "--finetune": options.finetune,
        "--balance": options.balance,
    }
    wrong = [name for name, used in given.items() if used]
    if task == "link" and wrong:
        raise ConfigError(f"{wrong[0]} is an option of --task node; add that or leave it out")
    if task == "node" and resume is not None:
        raise ConfigError("--resume is for link runs; give a finished one to --task node as --backbone RUN")


def train_node(
    dataset: "Dataset",
    options: NodeOptions,
    seed: int,
    settings: dict[str, Any],
    device: "torch.device",
    out: Path,
) -> list[dict[str, Any]]:
    """One classifier and its result rows; without a backbone, a link run with the task's presets comes first."""
    from dygmamba.config import build_config
    from dygmamba.engine.classification import NodeTrainConfig
    from dygmamba.engine.embedding import LabelledStream
    from dygmamba.experiment import start_run
    from dygmamba.node_experiment import NodeSettings, check_backbone, node_rows, start_node_run

    data = LabelledStream.of(dataset.store, device)  # first: a stream without labels is not worth a backbone
    if options.backbone is not None:
        check_backbone(options.backbone, dataset, options.model)
        backbone, config = options.backbone, build_config(NodeTrainConfig, settings)
    else:
        model = options.model or DEFAULT_MODEL
        parts = NodeSettings.of(dataset.name, model, settings)
        link, split = start_run(dataset, model, seed, parts.link, device, out)
        finish_run(link, dataset, split, options.strategies, options.tensorboard)
        backbone, config = link.run.path, parts.node
    config = replace(
        config, finetune=options.finetune or config.finetune, balance=options.balance or config.balance
    )
    training = start_node_run(dataset, data, backbone, config, seed, out)
    with progress() as bar, interrupts() as stop:
        name, frozen = f"seed {seed} node", not config.finetune
        embedding = bar.add_task(f"{name} embeddings", total=len(data.store), visible=frozen)
        report = reporter(training, bar, stop, options.tensorboard, name, "auc")
        training.fit(report, lambda count: bar.advance(embedding, count))
    rows = node_rows(training)
    training.run.write_results(rows)
    write_page(training.run)
    stderr().print(f"run: {training.run.path}", soft_wrap=True, highlight=False)
    return rows


def node_table(rows: list[dict[str, Any]]) -> "Table":
    """One line per period; several seeds become mean ± standard deviation."""
    first, groups = rows[0], {}
    for row in rows:
        groups.setdefault(row["split"], []).append(row)
    seeds = len(groups[first["split"]])
    title = f"{first['model']} on {first['dataset']}" + (f", mean ± std of {seeds}" if seeds > 1 else "")
    how = ("fine-tuned" if first["finetune"] else "frozen") + (", balanced" if first["balance"] else "")
    table = plain_table("split", "backbone", title=title, figures=("AUC", "AP", "positives", "events"))
    for name, own in groups.items():
        cells = [mean_and_spread([row[key] for row in own if row[key] is not None]) for key in ("auc", "ap")]
        table.add_row(name, how, *cells, f"{own[0]['positives']:,}", f"{own[0]['n']:,}")
    return table
