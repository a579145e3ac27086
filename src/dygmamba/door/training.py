"""Runs from beginning to end: fit, evaluate the best weights, keep the results, write the page."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dygmamba.config import build_config
from dygmamba.data.store import Dataset
from dygmamba.door.page import page_if_possible
from dygmamba.engine.fit import Fit, Reporter
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.engine.walk import Advance, unwatched
from dygmamba.errors import ConfigError
from dygmamba.runs.calibrating import finished_link_rows, finished_node_rows
from dygmamba.runs.link import resume_link_run, start_link_run
from dygmamba.runs.node import NodeSettings, check_backbone, resume_node_run, start_node_run
from dygmamba.runs.opening import task_of, trained_against
from dygmamba.tasks.node import check_labels, node_split

DEFAULT_MODEL = "dyg-mamba"
TASKS = ("link", "node")
Rows = list[dict[str, Any]]


class Watcher:
    """Who follows a run from outside: nobody, unless a child says otherwise."""

    def fitting(self, fit: Fit, name: str, metric: str) -> AbstractContextManager[Reporter]:
        """Told of every step and epoch while the run trains; `metric` is what validation watches."""
        return nullcontext(Reporter())

    def embedding(self, name: str, total: int | None) -> AbstractContextManager[Advance]:
        """Told of a frozen backbone's embeddings as they are made."""
        return nullcontext(unwatched)

    def say(self, sentence: str) -> None:
        """Told what a user may want to know."""


class Epochs(Watcher):
    """A function is told of every epoch: its number, loss, validation metrics and seconds."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress

    @contextmanager
    def fitting(self, fit: Fit, name: str, metric: str) -> Iterator[Reporter]:
        """Told of the epochs only."""
        yield Reporter(epoch=lambda entry: self.progress({"seed": fit.seed, **entry}))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be trained, whatever the seed; `strategies` are the negatives of the final evaluation."""

    settings: dict[str, Any]
    device: torch.device
    out: Path
    model: str | None = None
    strategies: tuple[str, ...] = ("random",)
    backbone: Path | None = None
    finetune: bool = False
    balance: bool = False


def train_link(dataset: Dataset, plan: Plan, seed: int, watcher: Watcher) -> Fit:
    """One link run, finished."""
    model = plan.model or DEFAULT_MODEL
    fit = start_link_run(dataset, model, seed, plan.settings, plan.device, plan.out)
    return finish_link(fit, plan.strategies, watcher)


def finish_link(fit: Fit, strategies: tuple[str, ...], watcher: Watcher) -> Fit:
    """Train to the end, evaluate the best weights, write results.json and, where it can be, report.html."""
    with watcher.fitting(fit, f"seed {fit.seed}", "ap") as report:
        fit(report)
    about = fit.run.config()["run"]
    names = {"dataset": about["data"], "model": about["model"], "seed": fit.seed, "run": str(fit.run.path)}
    names |= trained_against(fit.run)
    return _keep(fit, finished_link_rows(fit, names, strategies), watcher)


def train_node(dataset: Dataset, plan: Plan, seed: int, watcher: Watcher) -> Fit:
    """One classifier, finished; without a backbone, a link run with the task's presets comes first."""
    check_labels(dataset.store, node_split(dataset.store))  # a stream without labels is not worth a backbone
    if plan.backbone is not None:
        check_backbone(plan.backbone, dataset, plan.model)
        backbone, config = plan.backbone, build_config(NodeFitConfig, plan.settings)
    else:
        parts = NodeSettings.of(dataset.name, plan.model or DEFAULT_MODEL, plan.settings)
        backbone = train_link(dataset, replace(plan, settings=parts.link), seed, watcher).run.path
        config = parts.node
    config = replace(
        config, finetune=plan.finetune or config.finetune, balance=plan.balance or config.balance
    )
    with watcher.embedding(f"seed {seed} node embeddings", len(dataset.store)) as advance:
        fit = start_node_run(dataset, backbone, config, seed, plan.device, plan.out, advance)
    return _finish_node(fit, watcher)


def resume_any(
    path: Path, device: torch.device, strategies: tuple[str, ...], watcher: Watcher, data_dir: Path | None
) -> Fit:
    """The rest of a run that was stopped."""
    if task_of(path) == "link":
        return finish_link(resume_link_run(path, device, data_dir), strategies, watcher)
    with watcher.embedding("embeddings", None) as advance:
        fit = resume_node_run(path, device, data_dir, advance)
    return _finish_node(fit, watcher)


def check_task(task: str, given: dict[str, bool]) -> None:
    """Refuse a task that is none, and choices that a link run would have to ignore."""
    if task not in TASKS:
        raise ConfigError(f"`task` takes {' or '.join(TASKS)}, got '{task}'")
    wrong = [name for name, used in given.items() if used]
    if task == "link" and wrong:
        raise ConfigError(f"`{wrong[0]}` is an option of `task='node'`; add that or leave it out")


def _finish_node(fit: Fit, watcher: Watcher) -> Fit:
    with watcher.fitting(fit, f"seed {fit.seed} node", "auc") as report:
        fit(report)
    return _keep(fit, finished_node_rows(fit), watcher)


def _keep(fit: Fit, rows: Rows, watcher: Watcher) -> Fit:
    fit.run.write_results(rows)
    page_if_possible(fit.run, watcher.say)
    watcher.say(f"run: {fit.run.path}")
    return fit
