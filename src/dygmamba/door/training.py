"""Runs from beginning to end: fit, evaluate the best weights, keep the results, write the page."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dygmamba.config import build_config
from dygmamba.data.store import Dataset
from dygmamba.door.page import page_of
from dygmamba.engine.fit import Fit, Reporter
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.engine.walk import Advance, unwatched
from dygmamba.errors import ConfigError
from dygmamba.runs.link import link_rows, resume_link_run, start_link_run
from dygmamba.runs.node import NodeSettings, check_backbone, node_rows, resume_node_run, start_node_run
from dygmamba.runs.opening import OpenRun, open_data, task_of, trained_against
from dygmamba.runs.tested import keep_test
from dygmamba.tasks.link import SETTINGS, SPLITS
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
    return finish_link(fit, dataset, plan.strategies, watcher)


def finish_link(fit: Fit, dataset: Dataset, strategies: tuple[str, ...], watcher: Watcher) -> Fit:
    """Train to the end, evaluate the best weights, write results.json, the test's answers and report.html."""
    with watcher.fitting(fit, f"seed {fit.seed}", "ap") as report:
        fit(report)
    about = fit.run.config()["run"]
    names = {"dataset": about["data"], "model": about["model"], "seed": fit.seed, "run": str(fit.run.path)}
    names |= trained_against(fit.run)
    chosen = [(strategy, name, setting) for strategy in strategies for name in SPLITS for setting in SETTINGS]
    rows = link_rows(_scorer(fit), fit.stream, names, chosen, fit.config.rule, keep_test(fit.run))
    return _keep(fit, dataset, rows, watcher)


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
    return _finish_node(fit, dataset, watcher)


def resume_any(
    path: Path, device: torch.device, strategies: tuple[str, ...], watcher: Watcher, data_dir: Path | None
) -> Fit:
    """The rest of a run that was stopped."""
    if task_of(path) == "link":
        fit = resume_link_run(path, device, data_dir)
        return finish_link(fit, open_data(fit.run, data_dir), strategies, watcher)
    with watcher.embedding("embeddings", None) as advance:
        fit = resume_node_run(path, device, data_dir, advance)
    return _finish_node(fit, open_data(fit.run, data_dir), watcher)


def check_task(task: str, given: dict[str, bool]) -> None:
    """Refuse a task that is none, and choices that a link run would have to ignore."""
    if task not in TASKS:
        raise ConfigError(f"`task` takes {' or '.join(TASKS)}, got '{task}'")
    wrong = [name for name, used in given.items() if used]
    if task == "link" and wrong:
        raise ConfigError(f"`{wrong[0]}` is an option of `task='node'`; add that or leave it out")


def _finish_node(fit: Fit, dataset: Dataset, watcher: Watcher) -> Fit:
    with watcher.fitting(fit, f"seed {fit.seed} node", "auc") as report:
        fit(report)
    return _keep(fit, dataset, node_rows(fit, told=keep_test(fit.run)), watcher)


def _keep(fit: Fit, dataset: Dataset, rows: Rows, watcher: Watcher) -> Fit:
    fit.run.write_results(rows)
    page_of(OpenRun(fit.run, dataset, fit.stream, _scorer(fit)))
    watcher.say(f"run: {fit.run.path}")
    return fit


def _scorer(fit: Fit) -> Any:
    return fit.scorer
