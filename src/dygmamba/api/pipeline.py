"""Runs from beginning to end: fit, evaluate the best weights, keep the results, write the page.

A run for use: the settings and the epochs that another run found best, trained on every event, the test's too.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dygmamba.api.reports import write_run_page
from dygmamba.api.validation import DEFAULT_NETWORK, check_backbone_conflicts
from dygmamba.api.validation import check_task as check_task
from dygmamba.config import build_config, find_size_preset
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.splits import TRAIN_ON_ALL
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.checkpoint import read_checkpoint
from dygmamba.engine.distributed import current_group
from dygmamba.engine.fit import Interrupted, Reporter, Trainer
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import Advance, unwatched
from dygmamba.models import find_model
from dygmamba.runs.calibration import copy_calibration, evaluate_finished_node_run
from dygmamba.runs.final_evaluation import run_final_evaluation
from dygmamba.runs.link_training import resume_link_run, start_link_run
from dygmamba.runs.node_training import NodeSettings, check_backbone, resume_node_run, start_node_run
from dygmamba.runs.opening import (
    OpenRun,
    SplitSpec,
    describe_training,
    open_link_dataset,
    open_run_dataset,
    parse_split,
    read_split,
    read_task,
)
from dygmamba.runs.provenance import PRESET_KEYS, StartOptions, extend_run, find_restarted_run
from dygmamba.runs.test_predictions import make_prediction_saver
from dygmamba.tasks.link import SETTINGS, SPLITS
from dygmamba.tasks.node import check_labels, split_for_nodes


class Watcher:
    """Who follows a run from outside: nobody, unless a child says otherwise."""

    def fitting(self, fit: Trainer, name: str, metric: str) -> AbstractContextManager[Reporter]:
        """Told of every step and epoch while the run trains; `metric` is what validation watches."""
        return nullcontext(Reporter())

    def stage(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """Told of work beside the training, so many questions: embeddings, exams, the page."""
        return nullcontext(unwatched)

    def say(self, sentence: str) -> None:
        """Told what a user may want to know."""

    def finished(self, run: RunDirectory) -> None:
        """Told that a run is trained and evaluated, and its results are written."""


class Epochs(Watcher):
    """A function is told of every epoch: its number, loss, validation metrics and seconds."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress

    @contextmanager
    def fitting(self, fit: Trainer, name: str, metric: str) -> Iterator[Reporter]:
        """Told of the epochs only."""
        yield Reporter(epoch=lambda entry: self.progress({"seed": fit.seed, **entry}))


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What is to be trained, whatever the seed; `strategies` are the negatives of the final evaluation."""

    settings: dict[str, Any]
    device: torch.device
    out: Path
    model: str | None = None
    strategies: tuple[str, ...] = ("random",)
    backbone: Path | None = None
    finetune: bool = False
    balance: bool = False
    size: str | None = None  # a preset beside the published one
    split: SplitSpec | None = None
    why: dict[str, str] = field(
        default_factory=dict
    )  # of what was chosen for the user: the model, the device


def train_link_run(dataset: Dataset, plan: TrainingPlan, seed: int, watcher: Watcher) -> Trainer:
    """One link run, finished."""
    model = plan.model or DEFAULT_NETWORK
    beginning = StartOptions(parse_split(dataset, plan.split), plan.size, plan.why)
    again = current_group().led(lambda: find_restarted_run(plan.out, dataset.name, model, seed))
    if again is not None:
        fit = resume_link_run(again, plan.device)
        _report_resume(fit, watcher)
        return finish_link_run(fit, dataset, plan.strategies, watcher)
    fit = start_link_run(dataset, model, seed, plan.settings, plan.device, plan.out, beginning)
    _report_start(fit, watcher)
    return finish_link_run(fit, dataset, plan.strategies, watcher)


def finish_link_run(fit: Trainer, dataset: Dataset, strategies: tuple[str, ...], watcher: Watcher) -> Trainer:
    """Train to the end, evaluate the best weights, write results.json, the test's answers and report.html."""
    with watcher.fitting(fit, f"seed {fit.seed}", "ap") as report:
        fit(report)
    about = fit.run.config()["run"]
    if fit.task.validation is None:
        return _finish_untested(fit, about, watcher)
    names = {"dataset": about["data"], "model": about["model"], "seed": fit.seed, "run": str(fit.run.path)}
    names |= describe_training(fit.run)
    chosen = [(strategy, name, setting) for strategy in strategies for name in SPLITS for setting in SETTINGS]
    with _explain_interrupt(fit):
        found = run_final_evaluation(fit, names, chosen, watcher.stage, make_prediction_saver(fit.run))
        fit.run.write_results(found.rows, rules=found.rules, verdict=found.verdict, **found.activity)
        _write_report_page(fit, dataset)
    watcher.finished(fit.run)
    watcher.say(f"finished: {fit.run.path}")
    return fit


def train_node_run(dataset: Dataset, plan: TrainingPlan, seed: int, watcher: Watcher) -> Trainer:
    """One classifier, finished; without a backbone, a link run with the task's presets comes first."""
    by = (
        parse_split(dataset, plan.split) if plan.backbone is None else read_split(RunDirectory(plan.backbone))
    )
    check_labels(
        dataset.store, split_for_nodes(dataset.store, by)
    )  # without labels it is not worth a backbone
    if plan.backbone is not None:
        check_backbone(plan.backbone, dataset, plan.model)
        backbone, config = plan.backbone, build_config(NodeFitConfig, plan.settings)
    else:
        sized = {} if plan.size is None else find_size_preset(plan.size, plan.model or DEFAULT_NETWORK)
        parts = NodeSettings.of(dataset.name, plan.model or DEFAULT_NETWORK, sized | plan.settings)
        backbone = train_link_run(
            dataset, replace(plan, settings=parts.link, size=None), seed, watcher
        ).run.path
        config = parts.node
    config = replace(
        config, finetune=plan.finetune or config.finetune, balance=plan.balance or config.balance
    )
    with watcher.stage(f"seed {seed} node embeddings", len(dataset.store)) as advance:
        fit = start_node_run(dataset, backbone, config, seed, plan.device, plan.out, advance)
    watcher.say(f"run: {fit.run.path}")
    return _finish_node_run(fit, dataset, watcher)


def resume_run(
    path: Path,
    device: torch.device,
    strategies: tuple[str, ...],
    watcher: Watcher,
    data_dir: Path | None,
    changes: dict[str, Any] | None = None,
) -> Trainer:
    """The rest of a run that was stopped, or more of it: `changes` may be epochs and patience, nothing else."""
    folder = RunDirectory(path)
    said = current_group().led(lambda: extend_run(folder, changes)) if changes else None
    if said:
        watcher.say(said)
    if read_task(path) == "link":
        fit = resume_link_run(path, device, data_dir)
        _report_resume(fit, watcher)
        return finish_link_run(fit, open_run_dataset(folder, data_dir), strategies, watcher)
    dataset = open_run_dataset(folder, data_dir)
    with watcher.stage("node embeddings", len(dataset.store)) as advance:
        fit = resume_node_run(path, device, data_dir, advance)
    _report_resume(fit, watcher)
    return _finish_node_run(fit, dataset, watcher)


def check_training_plan(plan: TrainingPlan) -> None:
    """Refuse what a finished backbone has decided already."""
    check_backbone_conflicts(plan.backbone, preset=plan.size, split=plan.split)


def _write_report_page(fit: Trainer, dataset: Dataset) -> None:
    """The page of a run that has just ended; of several processes the first writes it, and the others wait."""
    scorer: Any = fit.scorer
    if fit.run.writes:
        write_run_page(OpenRun(fit.run, dataset, fit.stream.alone(), scorer))
    fit.ranks.wait()


def _finish_node_run(fit: Trainer, dataset: Dataset, watcher: Watcher) -> Trainer:
    with watcher.fitting(fit, f"seed {fit.seed} node", "auc") as report:
        fit(report)
    with _explain_interrupt(fit):
        fit.run.write_results(evaluate_finished_node_run(fit, watcher.stage, make_prediction_saver(fit.run)))
        _write_report_page(fit, dataset)
    watcher.finished(fit.run)
    watcher.say(f"finished: {fit.run.path}")
    return fit


def _finish_untested(fit: Trainer, about: dict[str, Any], watcher: Watcher) -> Trainer:
    """The end of a run on every event: nothing is left to judge it by, and its results say so."""
    of = about.get("refit_of")
    said = f"none: every event was trained on; how good these settings are is in the results of {of}"
    if of is not None and fit.run.writes:
        copy_calibration(fit.run, RunDirectory(Path(of)))
    fit.run.write_results([], test=said, refit_of=of)
    fit.ranks.wait()
    watcher.finished(fit.run)
    watcher.say(f"finished: {fit.run.path} (on every event, so it has no test)")
    return fit


def _report_start(fit: Trainer, watcher: Watcher) -> None:
    """Where the run is, and what was chosen for it."""
    sections = fit.run.config()
    if "model" in sections["chosen"]:
        watcher.say(sections["chosen"]["model"])
    watcher.say(f"run: {fit.run.path}")
    told = ("model", *PRESET_KEYS)
    chosen = "; ".join(f"{name} {why}" for name, why in sections["chosen"].items() if name not in told)
    watcher.say(f"{sections['run']['model']} on {fit.stream.device}: {chosen}")
    for changed in (sections["chosen"][name] for name in PRESET_KEYS if name in sections["chosen"]):
        watcher.say(changed)


def _report_resume(fit: Trainer, watcher: Watcher) -> None:
    done, most = fit.progress.epoch, fit.config.epochs
    where = "trained to its end" if fit.progress.finished else f"epoch {done + 1} of at most {most}"
    watcher.say(f"run: {fit.run.path}, {where}")


@contextmanager
def _explain_interrupt(fit: Trainer) -> Iterator[None]:
    """Whoever stops what comes after the training is told that nothing of it is lost."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped after the training, which is saved; evaluate with: `dygmamba.resume('{fit.run.path}')`"
        ) from None


def refit_link_run(
    path: Path, device: torch.device, watcher: Watcher, data_dir: Path | None = None
) -> Trainer:
    """As many epochs as the best weights of a finished run had, on everything, in a folder beside it."""
    folder = RunDirectory(path)
    dataset = open_link_dataset(folder, data_dir)
    if not read_split(folder).numbers:
        raise ConfigError(f"{path} was trained on every event already; give the run it was made of")
    if not folder.finished:
        raise ConfigError(f"{path} is not finished; go on with: `dygmamba.resume('{path}')`")
    about, settings = folder.config()["run"], _read_settings(folder)
    _, progress = read_checkpoint(folder, folder.best)
    epochs, had = progress.best_epoch + 1, len(folder.metrics())
    find_model(about["model"], about.get("source"))  # one from outside is imported from where the run says
    beginning = StartOptions(
        by=TRAIN_ON_ALL, of=path, why={"epochs": f"{epochs}: the best of the {had} that {path} had"}
    )
    more = {"epochs": epochs, "patience": max(epochs, settings["patience"])}
    root = path.parent.parent.parent
    fit = start_link_run(
        dataset, about["model"], int(about["seed"]), settings | more, device, root, beginning
    )
    watcher.say(f"refit on every event: {fit.run.path}")
    return finish_link_run(fit, dataset, (), watcher)


def _read_settings(folder: RunDirectory) -> dict[str, Any]:
    sections = folder.config()
    return sections["model"] | sections["train"]
