"""`dygmamba train --task node`: a link run, given or made, and a classifier on its embeddings."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.cli.console import mean_and_spread, plain_table, progress
from dygmamba.cli.train import DEFAULT_MODEL, finish_run, interrupts, keep_results, run_to_end
from dygmamba.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from rich.table import Table

    from dygmamba.data.store import Dataset
    from dygmamba.engine.fit import Fit
    from dygmamba.engine.walk import Advance

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
    """Refuse options that the task, or a resumed run, would have to ignore."""
    if task not in TASKS:
        raise ConfigError(f"--task takes {' or '.join(TASKS)}, got '{task}'")
    given = {
        "--backbone": options.backbone is not None,
        "--finetune": options.finetune,
        "--balance": options.balance,
    }
    wrong = [name for name, used in given.items() if used]
    if resume is not None and wrong:
        raise ConfigError(f"a resumed run is what it is; leave out {wrong[0]}")
    if task == "link" and wrong:
        raise ConfigError(f"{wrong[0]} is an option of --task node; add that or leave it out")


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
    from dygmamba.engine.fit_config import NodeFitConfig
    from dygmamba.runs.link import start_link_run
    from dygmamba.runs.node import NodeSettings, check_backbone, start_node_run
    from dygmamba.tasks.node import check_labels, node_split

    check_labels(dataset.store, node_split(dataset.store))  # a stream without labels is not worth a backbone
    if options.backbone is not None:
        check_backbone(options.backbone, dataset, options.model)
        backbone, config = options.backbone, build_config(NodeFitConfig, settings)
    else:
        model = options.model or DEFAULT_MODEL
        parts = NodeSettings.of(dataset.name, model, settings)
        link = start_link_run(dataset, model, seed, parts.link, device, out)
        finish_run(link, options.strategies, options.tensorboard)
        backbone, config = link.run.path, parts.node
    config = replace(
        config, finetune=options.finetune or config.finetune, balance=options.balance or config.balance
    )
    with _embedding(f"seed {seed} node embeddings", len(dataset.store)) as advance:
        fit = start_node_run(dataset, backbone, config, seed, device, out, advance)
    return _finish(fit, options.tensorboard)


def resume_node(
    path: Path, device: "torch.device", data_dir: Path | None, tensorboard: bool
) -> list[dict[str, Any]]:
    """The rest of a classifier's training, and its result rows."""
    from dygmamba.runs.node import resume_node_run

    with _embedding("embeddings", None) as advance:
        fit = resume_node_run(path, device, data_dir, advance)
    return _finish(fit, tensorboard)


def _finish(fit: "Fit", tensorboard: bool) -> list[dict[str, Any]]:
    from dygmamba.runs.node import node_rows

    run_to_end(fit, tensorboard, f"seed {fit.seed} node", "auc")
    rows = node_rows(fit)
    keep_results(fit, rows)
    return rows


@contextmanager
def _embedding(name: str, total: int | None) -> "Iterator[Advance]":
    """A bar for the embeddings of a frozen backbone; Ctrl-C stops between two passes."""
    from dygmamba.engine.fit import Interrupted

    with progress() as bar, interrupts() as stop:
        task = bar.add_task(name, total=total)

        def advance(count: int) -> None:
            bar.advance(task, count)
            if stop:
                raise Interrupted("stopped while embedding; go on with: dygmamba train --resume RUN")

        yield advance


def node_table(rows: list[dict[str, Any]]) -> "Table":
    """One line per period; several seeds become mean ± standard deviation."""
    first, groups = rows[0], {}
    for row in rows:
        groups.setdefault(row["split"], []).append(row)
    seeds = len(groups[first["split"]])
    title = f"{first['model']} on {first['dataset']}" + (f", mean ± std of {seeds}" if seeds > 1 else "")
    how = ("fine-tuned" if first["finetune"] else "frozen") + (", balanced" if first["balance"] else "")
    title += f", memory sees {first['visible']}"
    table = plain_table("split", "backbone", title=title, figures=("AUC", "AP", "positives", "events"))
    for name, own in groups.items():
        cells = [mean_and_spread([row[key] for row in own if row[key] is not None]) for key in ("auc", "ap")]
        table.add_row(name, how, *cells, f"{own[0]['positives']:,}", f"{own[0]['n']:,}")
    return table
