"""Runs from beginning to end: fit, evaluate the best weights, keep the results, write the page."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dygmamba.config import build_config, size_preset
from dygmamba.data.store import Dataset
from dygmamba.door.asking import check_backbone_decides
from dygmamba.door.asking import check_task as check_task
from dygmamba.door.choosing import NETWORK
from dygmamba.door.page import page_of
from dygmamba.engine.fit import Fit, Interrupted, Reporter
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.engine.folder import RunFolder
from dygmamba.engine.ranks import here
from dygmamba.engine.walk import Advance, unwatched
from dygmamba.runs.calibrating import finished_node_rows, inherit_calibration
from dygmamba.runs.choosing import CHANGED, Beginning
from dygmamba.runs.extending import extend
from dygmamba.runs.final import final_evaluation
from dygmamba.runs.link import resume_link_run, start_link_run
from dygmamba.runs.node import NodeSettings, check_backbone, resume_node_run, start_node_run
from dygmamba.runs.opening import OpenRun, open_data, split_of, task_of, trained_against
from dygmamba.runs.restarting import begun_before
from dygmamba.runs.splitting import Cuts, split_by
from dygmamba.runs.tested import keep_test
from dygmamba.tasks.link import SETTINGS, SPLITS
from dygmamba.tasks.node import check_labels, node_split


class Watcher:
    """Who follows a run from outside: nobody, unless a child says otherwise."""

    def fitting(self, fit: Fit, name: str, metric: str) -> AbstractContextManager[Reporter]:
        """Told of every step and epoch while the run trains; `metric` is what validation watches."""
        return nullcontext(Reporter())

    def stage(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """Told of work beside the training, so many questions: embeddings, exams, the page."""
        return nullcontext(unwatched)

    def say(self, sentence: str) -> None:
        """Told what a user may want to know."""

    def finished(self, run: RunFolder) -> None:
        """Told that a run is trained and evaluated, and its results are written."""


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
    size: str | None = None  # a preset beside the published one
    split: Cuts | None = None
    why: dict[str, str] = field(
        default_factory=dict
    )  # of what was chosen for the user: the model, the device


def train_link(dataset: Dataset, plan: Plan, seed: int, watcher: Watcher) -> Fit:
    """One link run, finished."""
    model = plan.model or NETWORK
    beginning = Beginning(split_by(dataset, plan.split), plan.size, plan.why)
    again = here().led(lambda: begun_before(plan.out, dataset.name, model, seed))
    if again is not None:
        fit = resume_link_run(again, plan.device)
        _tell_resumed(fit, watcher)
        return finish_link(fit, dataset, plan.strategies, watcher)
    fit = start_link_run(dataset, model, seed, plan.settings, plan.device, plan.out, beginning)
    _tell_start(fit, watcher)
    return finish_link(fit, dataset, plan.strategies, watcher)


def finish_link(fit: Fit, dataset: Dataset, strategies: tuple[str, ...], watcher: Watcher) -> Fit:
    """Train to the end, evaluate the best weights, write results.json, the test's answers and report.html."""
    with watcher.fitting(fit, f"seed {fit.seed}", "ap") as report:
        fit(report)
    about = fit.run.config()["run"]
    if fit.task.validation is None:
        return _keep_untested(fit, about, watcher)
    names = {"dataset": about["data"], "model": about["model"], "seed": fit.seed, "run": str(fit.run.path)}
    names |= trained_against(fit.run)
    chosen = [(strategy, name, setting) for strategy in strategies for name in SPLITS for setting in SETTINGS]
    with _stoppable(fit):
        found = final_evaluation(fit, names, chosen, watcher.stage, keep_test(fit.run))
        fit.run.write_results(found.rows, rules=found.rules, verdict=found.verdict, **found.activity)
        _write_page(fit, dataset)
    watcher.finished(fit.run)
    watcher.say(f"finished: {fit.run.path}")
    return fit


def train_node(dataset: Dataset, plan: Plan, seed: int, watcher: Watcher) -> Fit:
    """One classifier, finished; without a backbone, a link run with the task's presets comes first."""
    by = split_by(dataset, plan.split) if plan.backbone is None else split_of(RunFolder(plan.backbone))
    check_labels(dataset.store, node_split(dataset.store, by))  # without labels it is not worth a backbone
    if plan.backbone is not None:
        check_backbone(plan.backbone, dataset, plan.model)
        backbone, config = plan.backbone, build_config(NodeFitConfig, plan.settings)
    else:
        sized = {} if plan.size is None else size_preset(plan.size, plan.model or NETWORK)
        parts = NodeSettings.of(dataset.name, plan.model or NETWORK, sized | plan.settings)
        backbone = train_link(dataset, replace(plan, settings=parts.link, size=None), seed, watcher).run.path
        config = parts.node
    config = replace(
        config, finetune=plan.finetune or config.finetune, balance=plan.balance or config.balance
    )
    with watcher.stage(f"seed {seed} node embeddings", len(dataset.store)) as advance:
        fit = start_node_run(dataset, backbone, config, seed, plan.device, plan.out, advance)
    watcher.say(f"run: {fit.run.path}")
    return _finish_node(fit, dataset, watcher)


def resume_any(
    path: Path,
    device: torch.device,
    strategies: tuple[str, ...],
    watcher: Watcher,
    data_dir: Path | None,
    changes: dict[str, Any] | None = None,
) -> Fit:
    """The rest of a run that was stopped, or more of it: `changes` may be epochs and patience, nothing else."""
    folder = RunFolder(path)
    said = here().led(lambda: extend(folder, changes)) if changes else None
    if said:
        watcher.say(said)
    if task_of(path) == "link":
        fit = resume_link_run(path, device, data_dir)
        _tell_resumed(fit, watcher)
        return finish_link(fit, open_data(folder, data_dir), strategies, watcher)
    dataset = open_data(folder, data_dir)
    with watcher.stage("node embeddings", len(dataset.store)) as advance:
        fit = resume_node_run(path, device, data_dir, advance)
    _tell_resumed(fit, watcher)
    return _finish_node(fit, dataset, watcher)


def check_plan(plan: Plan) -> None:
    """Refuse what a finished backbone has decided already."""
    check_backbone_decides(plan.backbone, preset=plan.size, split=plan.split)


def _write_page(fit: Fit, dataset: Dataset) -> None:
    """The page of a run that has just ended; of several processes the first writes it, and the others wait."""
    scorer: Any = fit.scorer
    if fit.run.writes:
        page_of(OpenRun(fit.run, dataset, fit.stream.alone(), scorer))
    fit.ranks.wait()


def _finish_node(fit: Fit, dataset: Dataset, watcher: Watcher) -> Fit:
    with watcher.fitting(fit, f"seed {fit.seed} node", "auc") as report:
        fit(report)
    with _stoppable(fit):
        fit.run.write_results(finished_node_rows(fit, watcher.stage, keep_test(fit.run)))
        _write_page(fit, dataset)
    watcher.finished(fit.run)
    watcher.say(f"finished: {fit.run.path}")
    return fit


def _keep_untested(fit: Fit, about: dict[str, Any], watcher: Watcher) -> Fit:
    """The end of a run on every event: nothing is left to judge it by, and its results say so."""
    of = about.get("refit_of")
    said = f"none: every event was trained on; how good these settings are is in the results of {of}"
    if of is not None and fit.run.writes:
        inherit_calibration(fit.run, RunFolder(Path(of)))
    fit.run.write_results([], test=said, refit_of=of)
    fit.ranks.wait()
    watcher.finished(fit.run)
    watcher.say(f"finished: {fit.run.path} (on every event, so it has no test)")
    return fit


def _tell_start(fit: Fit, watcher: Watcher) -> None:
    """Where the run is, and what was chosen for it."""
    sections = fit.run.config()
    if "model" in sections["chosen"]:
        watcher.say(sections["chosen"]["model"])
    watcher.say(f"run: {fit.run.path}")
    told = ("model", *CHANGED)
    chosen = "; ".join(f"{name} {why}" for name, why in sections["chosen"].items() if name not in told)
    watcher.say(f"{sections['run']['model']} on {fit.stream.device}: {chosen}")
    for changed in (sections["chosen"][name] for name in CHANGED if name in sections["chosen"]):
        watcher.say(changed)


def _tell_resumed(fit: Fit, watcher: Watcher) -> None:
    done, most = fit.progress.epoch, fit.config.epochs
    where = "trained to its end" if fit.progress.finished else f"epoch {done + 1} of at most {most}"
    watcher.say(f"run: {fit.run.path}, {where}")


@contextmanager
def _stoppable(fit: Fit) -> Iterator[None]:
    """Whoever stops what comes after the training is told that nothing of it is lost."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped after the training, which is saved; evaluate with: `dygmamba.resume('{fit.run.path}')`"
        ) from None
