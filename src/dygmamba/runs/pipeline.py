"""Runs from start to finish: train, evaluate the best weights, write results."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dygmamba.config import build_config, find_size_preset, load_presets
from dygmamba.core.choices import SCOPES, SPLITS
from dygmamba.core.deadline import NO_DEADLINE, Deadline
from dygmamba.core.errors import ConfigError, Interrupted
from dygmamba.core.memory_budget import format_bytes
from dygmamba.core.progress import ForwardingProgress, Progress, no_advance
from dygmamba.data.events.split_spec import AUTO_PROTOCOL
from dygmamba.data.events.splits import TRAIN_ON_ALL, SplitRule
from dygmamba.data.events.times import format_rough_duration
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.checkpoint import read_checkpoint
from dygmamba.engine.distributed import current_group
from dygmamba.engine.fit import StopCondition, Trainer, never_stop
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import find_model
from dygmamba.runs.blending import BLEND, rebuild_blend
from dygmamba.runs.calibration import copy_calibration
from dygmamba.runs.candidates import SMALL_EPOCHS, SMALL_PER_EVENT, Candidate, estimate_seconds
from dygmamba.runs.default_model import DEFAULT_NETWORK
from dygmamba.runs.final_evaluation import run_final_evaluation, run_final_node_evaluation
from dygmamba.runs.link_training import TableSize, start_link_run
from dygmamba.runs.loggers import RunLoggers, open_loggers
from dygmamba.runs.node_training import (
    check_backbone,
    divide_node_settings,
    start_direct_node_run,
    start_node_run,
)
from dygmamba.runs.opening import SplitSpec, open_link_dataset, open_run_dataset, parse_split, resume_training
from dygmamba.runs.provenance import PRESET_KEYS, StartOptions, extend_run, find_restarted_run
from dygmamba.runs.recipes import OpenRun, choose_target, get_encoder
from dygmamba.runs.run_config import RunConfig, read_split
from dygmamba.runs.selection import describe_selection, get_runs_folder
from dygmamba.runs.stored_predictions import make_prediction_saver
from dygmamba.runs.trusted_code import require_known_models
from dygmamba.runs.warm_start import WarmStart, open_warm_start
from dygmamba.tasks.node import NodeTask, split_for_nodes

MIN_STEPS, MIN_SECONDS = 8, 5.0  # an estimate needs both, or
LATE_STEPS, LATE_SECONDS = 2, 20.0  # two slow steps
FORWARD_SHARE = 1 / 3  # time of a query in validation, in times of a training step
SHORT_SECONDS, LONG_SECONDS = 10.0, 120.0  # below the first no message, below the second no advice
QUICK_PER_EVENT = 3e-4  # seconds of a run of trees on two cores of a server, from docs/how-to/train.md


@dataclass(frozen=True, slots=True)
class FinishOptions:
    """Options of the end of a run: the evaluation, loggers besides the run directory, and the page of a tested run."""

    strategies: tuple[str, ...] = ("random",)  # negatives of the final evaluation of link prediction
    log: tuple[str, ...] = ()
    write_page: Callable[[OpenRun], object] | None = None


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A training as it is done for every seed: the request, with what was chosen for the user."""

    settings: dict[str, Any]
    device: torch.device
    out: Path
    model: str | None = None
    backbone: Path | None = None
    finetune: bool = False
    balance: bool = False
    preset: str | None = None  # other than the published one
    split: SplitSpec | SplitRule | None = None
    protocol: str = AUTO_PROTOCOL
    why: dict[str, str] = field(default_factory=dict)  # reasons of what was chosen for the user
    start: WarmStart | None = None  # the run whose settings and weights it starts with
    finish: FinishOptions = FinishOptions()

    def parse_split(self, dataset: Dataset) -> SplitRule:
        """Return the split as a rule; that of a run that is continued is one already."""
        if self.start is not None and self.start.rule and self.split is None:
            rule = self.start.rule
            return rule if self.protocol == AUTO_PROTOCOL else replace(rule, protocol=self.protocol)
        return (
            self.split
            if isinstance(self.split, SplitRule)
            else parse_split(dataset, self.split, self.protocol)
        )


@dataclass(slots=True)
class TimeEstimate:
    """Observes every step and epoch, and estimates once how long the rest takes."""

    fit: Trainer
    marks: list[float] = field(default_factory=list)  # ends of steps; the first step compiles kernels
    is_announced: bool = False

    def step(self) -> str | None:
        """Observe a step; returns the estimate as a sentence as soon as there is enough to go by."""
        if self.is_announced or self.fit.scorer.rounds_per_epoch:
            return None  # rounds of trees are short compared with the validation after them
        self.marks.append(time.monotonic())
        steps, spent = len(self.marks) - 1, self.marks[-1] - self.marks[0]
        if not (steps >= MIN_STEPS and spent >= MIN_SECONDS) and not (
            steps >= LATE_STEPS and spent >= LATE_SECONDS
        ):
            return None
        each, config = spent / steps, self.fit.config
        validation = len(self.fit.stream.split.val) / config.batch * each * FORWARD_SHARE
        return self._sentence(self.fit.steps_per_epoch * each + validation)

    def epoch(self, seconds: float) -> str | None:
        """Observe an epoch; the same, unless it was the first one, which compiles kernels."""
        self.marks.append(time.monotonic())
        if self.is_announced or self.fit.state.finished or self.fit.state.epoch < 2:
            return None
        return self._sentence(seconds)

    def _sentence(self, epoch: float) -> str | None:
        self.is_announced = True
        left = max(self.fit.config.epochs - self.fit.state.epoch, 1)
        if left * epoch < SHORT_SECONDS:
            return None
        device = "CPU" if self.fit.stream.device.type == "cpu" else "GPU"
        total = format_rough_duration(left * epoch)
        text = f"about {total} on this {device} (one epoch)"
        if left > 1:
            rest = f"{left} more epochs of {format_rough_duration(epoch)}"
            text = f"at most {total} on this {device} ({rest}; fewer if validation stops improving)"
        return text + self._suggest_faster(left * epoch)

    def _suggest_faster(self, seconds: float) -> str:
        if self.fit.stream.device.type != "cpu" or self.fit.scorer.rounds_per_epoch:
            return ""
        sections, events = self.fit.run.config(), len(self.fit.stream.store)
        options = [("`model='trees'`", QUICK_PER_EVENT * events)]
        small = load_presets("small.toml").get(sections["run"]["model"], {})
        settings = sections["train"] | sections["model"]
        if any(settings[name] != value for name, value in small.items()):
            options.append(("`preset='small'`", SMALL_EPOCHS * SMALL_PER_EVENT * events))
        faster = [
            f"{how} in about {format_rough_duration(span)}" for how, span in options if 2 * span < seconds
        ]
        return f"; {', '.join(faster)}" if seconds > LONG_SECONDS and faster else ""


class _TrainingProgress(ForwardingProgress):
    """Add the seed to every epoch, and announce once how long the training will take."""

    def __init__(self, inner: Progress, fit: Trainer, has_deadline: bool = False) -> None:
        super().__init__(inner)
        # a training with a deadline takes no longer than that
        self._seed, self._estimate, self._depth = fit.seed, TimeEstimate(fit, is_announced=has_deadline), 0

    @contextmanager
    def stage(
        self, name: str, total: int | None = None, *, done: int = 0, unit: str = ""
    ) -> Iterator[Progress]:
        with super().stage(name, total, done=done, unit=unit) as child:
            child._depth = self._depth + 1  # pyright: ignore[reportAttributeAccessIssue]
            yield child

    def advance(self, count: int = 1) -> None:
        self._inner.advance(count)
        if self._depth == 1:  # a step of the training, not a query of the validation inside it
            self._announce(self._estimate.step())

    def epoch(self, entry: dict[str, Any]) -> None:
        self._inner.epoch({"seed": self._seed, **entry})
        self._announce(self._estimate.epoch(entry["seconds"]))

    def _announce(self, text: str | None) -> None:
        if text:
            self._inner.message(text)


@contextmanager
def _train(
    fit: Trainer,
    progress: Progress,
    log: Sequence[str],
    name: str,
    deadline: Deadline = NO_DEADLINE,
    stop: StopCondition = never_stop,
) -> Iterator[RunLoggers]:
    """Train a run to its end; inside, its loggers wait for the results."""
    watched = _TrainingProgress(progress, fit, deadline is not NO_DEADLINE)
    with open_loggers(fit.run, log, watched) as loggers:
        fit(loggers, name=f"{name} on {fit.stream.device}", stop=stop, deadline=deadline)
        yield loggers


def train_without_evaluation(
    fit: Trainer, progress: Progress, log: Sequence[str], deadline: Deadline, stop: StopCondition
) -> None:
    """Train a link run until a deadline, interrupted as soon as `stop` returns True; its results are not written."""
    with _train(fit, progress, log, f"{fit.run.config()['run']['model']}, seed {fit.seed}", deadline, stop):
        pass


def start_or_restart(dataset: Dataset, plan: TrainingPlan, seed: int, progress: Progress) -> Trainer:
    """Start one link run, or open the one that a restarted job had begun."""
    model = plan.model or DEFAULT_NETWORK
    options = StartOptions(plan.parse_split(dataset), plan.preset, plan.why, start=plan.start)
    begun = current_group().run_on_first(lambda: find_restarted_run(plan.out, dataset.name, model, seed))
    if begun is not None:
        fit = resume_training(begun, plan.device)
        report_resume(fit, progress)
    else:
        fit = start_link_run(dataset, model, seed, plan.settings, plan.device, plan.out, options)
        _report_start(fit, progress)
    return fit


def train_link_run(dataset: Dataset, plan: TrainingPlan, seed: int, progress: Progress) -> Trainer:
    """Train and evaluate one link run, or finish the one that a restarted job had begun."""
    fit = start_or_restart(dataset, plan, seed, progress)
    return finish_run(fit, dataset, plan.finish, progress)


def finish_run(fit: Trainer, dataset: Dataset, options: FinishOptions, progress: Progress) -> Trainer:
    """Train to the end, evaluate the best weights, write results.json, the test predictions and the page.

    A run on every event has no test period and no page.
    """
    is_node, is_tested = isinstance(fit.task, NodeTask), fit.task.validation is not None
    with _train(fit, progress, options.log, f"seed {fit.seed}{' node' * is_node}") as loggers:
        if not is_tested:
            _finish_untested(fit)
        else:
            with _explain_interrupt(fit):
                if is_node:
                    save = make_prediction_saver(fit.run)
                    fit.run.write_results(run_final_node_evaluation(fit, progress, save))
                else:
                    _evaluate_links(fit, options.strategies, progress)
                _write_page(fit, dataset, options)
        loggers.finish(fit.run.results())
    note = "" if is_tested else " (trained on every event, so it has no test results)"
    progress.message(f"finished: {fit.run.path}{note}")
    return fit


def _evaluate_links(fit: Trainer, strategies: tuple[str, ...], progress: Progress) -> None:
    config = RunConfig.read(fit.run)
    names = {"dataset": config.run.data, "model": config.run.model, "seed": fit.seed}
    names |= {"run": str(fit.run.path), **config.training_columns}
    choices = [(strategy, split, kind) for strategy in strategies for split in SPLITS for kind in SCOPES]
    found = run_final_evaluation(fit, names, choices, progress, make_prediction_saver(fit.run))
    fit.run.write_results(**found, **describe_selection(fit.run))


def train_node_run(dataset: Dataset, plan: TrainingPlan, seed: int, progress: Progress) -> Trainer:
    """Train and evaluate one node run.

    A model that learns labels directly needs no backbone. For others, without one given, a link run with the task's
    presets comes first.
    """
    given = plan.backbone
    split = plan.parse_split(dataset) if given is None else read_split(RunDirectory(given))
    # before a backbone is trained for nothing
    choose_target(
        dataset,
        split_for_nodes(dataset.store, split),
        plan.settings.get("target", "auto"),
        plan.balance or bool(plan.settings.get("balance", False)),
    )
    model = plan.model or DEFAULT_NETWORK
    if given is None and find_model(model).for_nodes is not None:
        if plan.preset is not None:
            find_size_preset(plan.preset, model)  # raises unless it changes nothing
        if plan.finetune:
            raise ConfigError(
                f"model '{model}' has no backbone to train; leave out `finetune`",
                code="model-without-encoder",
            )
        settings = plan.settings | ({"balance": True} if plan.balance else {})
        fit = start_direct_node_run(dataset, model, settings, seed, plan.device, plan.out, split)
        for line in (plan.why.get("model"), f"run: {fit.run.path}", _describe_table(fit)):
            if line:
                progress.message(line)
        return finish_run(fit, dataset, plan.finish, progress)
    if given is not None:
        check_backbone(given, dataset, plan.model)
        backbone, config = given, build_config(NodeFitConfig, plan.settings)
    else:
        sized = {} if plan.preset is None else find_size_preset(plan.preset, model)
        own, config = divide_node_settings(dataset.name, model, sized | plan.settings)
        link_plan = replace(plan, settings=own, preset=None)
        link_fit = start_or_restart(dataset, link_plan, seed, progress)
        # raises before a model without embeddings is trained for nothing
        get_encoder(link_fit.scorer, link_fit.run.path)
        finish_run(link_fit, dataset, plan.finish, progress)
        backbone = link_fit.run.path
    config = replace(
        config, finetune=plan.finetune or config.finetune, balance=plan.balance or config.balance
    )
    with progress.stage(f"seed {seed} node embeddings", len(dataset.store)) as stage:
        fit = start_node_run(dataset, backbone, config, seed, plan.device, plan.out, stage.advance)
    progress.message(f"run: {fit.run.path}")
    return finish_run(fit, dataset, plan.finish, progress)


def resume_run(
    path: Path,
    device: torch.device,
    options: FinishOptions,
    progress: Progress,
    data_dir: Path | None,
    changes: dict[str, Any] | None = None,
) -> Trainer:
    """Finish a run that was stopped, or extend it: `changes` may hold epochs and patience, nothing else."""
    folder = RunDirectory(path)
    extended = current_group().run_on_first(lambda: extend_run(folder, changes)) if changes else None
    if extended:
        progress.message(extended)
    dataset = open_run_dataset(RunConfig.read(folder), data_dir)
    with ExitStack() as stack:
        advance = no_advance
        if folder.task == "node":
            advance = stack.enter_context(progress.stage("node embeddings", len(dataset.store))).advance
        fit = resume_training(path, device, dataset=dataset, advance=advance)
    report_resume(fit, progress)
    return finish_run(fit, dataset, options, progress)


def refit_link_run(
    path: Path,
    device: torch.device,
    progress: Progress,
    data_dir: Path | None = None,
    *,
    root: Path | None = None,
    is_evaluated: bool = True,
) -> Trainer:
    """Train a finished run's settings on every event, for as many epochs as its best weights had.

    The new run directory lies beside the given one, or below `root`. Of a blend, every part is refitted beside the
    blend, and blended with the same weights. With `is_evaluated=False` the run needs to be trained only.
    """
    path = path.resolve()  # the folders above it are used, and it is stored
    folder = RunDirectory(path)
    config = RunConfig.read(folder)
    dataset = open_link_dataset(config, data_dir)
    if not config.rule.numbers:
        raise ConfigError(
            f"{path} was already trained on every event; give the run that it was refitted from",
            code="already-refitted",
        )
    if is_evaluated:
        config.require_finished()
    if config.run.model == BLEND:
        return _refit_blend(folder, device, progress, data_dir)
    # before its settings: a registered model is imported from the module in the config
    find_model(config.run.model, config.run.source)
    _, best = read_checkpoint(folder, folder.best)
    epochs, trained = best.best_epoch + 1, len(folder.metrics())
    options = StartOptions(
        split=TRAIN_ON_ALL,
        refit_of=path,
        start=None
        if config.run.start_from is None
        else open_warm_start(Path(config.run.start_from), data_dir),
        reasons={"epochs": f"{epochs}: the best of the {trained} that {path} had"},
    )
    settings = config.stored_settings | {"epochs": epochs, "patience": max(epochs, config.train.patience)}
    root = root or get_runs_folder(folder)
    fit = start_link_run(dataset, config.run.model, config.seed, settings, device, root, options)
    progress.message(f"refit on every event: {fit.run.path}")
    return finish_run(fit, dataset, FinishOptions(), progress)


def _refit_blend(
    folder: RunDirectory, device: torch.device, progress: Progress, data_dir: Path | None
) -> Trainer:
    require_known_models(folder)
    paths = [Path(part) for part in folder.config()["run"].get("blend_of", ())]
    missing = [path for path in paths if not path.is_dir()]
    if missing or not paths:
        what = missing[0] if missing else "its runs"
        raise ConfigError(
            f"{folder.path} is a blend and {what} cannot be found; refit needs the runs that it blends",
            code="blend-parts-missing",
        )
    # a part may have been chosen from within a budget, and is then not evaluated itself
    options: dict[str, Any] = {"root": get_runs_folder(folder), "is_evaluated": False}
    parts = [refit_link_run(path, device, progress, data_dir, **options).run.path for path in paths]
    fit, dataset = rebuild_blend(parts, folder, device, data_dir)
    progress.message(f"refit on every event: {fit.run.path}")
    return finish_run(fit, dataset, FinishOptions(), progress)


def _write_page(fit: Trainer, dataset: Dataset, options: FinishOptions) -> None:
    scorer: Any = fit.scorer
    if fit.run.writes and options.write_page is not None:
        options.write_page(OpenRun(RunConfig.read(fit.run), dataset, fit.stream.alone(), scorer))
    fit.processes.barrier()  # of several processes the first writes the page


def _finish_untested(fit: Trainer) -> None:
    """Write the results of a run on every event: it has no test period, and its results say so."""
    origin = RunConfig.read(fit.run).run.refit_of
    reason = f"none: every event was trained on; how good these settings are is in the results of {origin}"
    if origin is not None and fit.run.writes:
        copy_calibration(fit.run, RunDirectory(Path(origin)))
    fit.run.write_results([], test=reason, refit_of=origin)
    fit.processes.barrier()


def _report_start(fit: Trainer, progress: Progress) -> None:
    """Report where the run directory is, and which settings were chosen for the user."""
    sections = fit.run.config()
    chosen = sections["chosen"]
    if "model" in chosen:
        progress.message(chosen["model"])
    progress.message(f"run: {fit.run.path}")
    own_lines = ("model", *PRESET_KEYS)
    choices = "; ".join(f"{name}={why}" for name, why in chosen.items() if name not in own_lines)
    progress.message(f"{sections['run']['model']} on {fit.stream.device}: {choices}")
    rule, counts = read_split(fit.run), fit.stream.split.count(fit.stream.store)
    progress.message(f"split by {rule.label}: {counts}" if rule.numbers else f"split: {counts}")
    for name in PRESET_KEYS:
        if name in chosen:
            progress.message(chosen[name])
    if table := _describe_table(fit):
        about, store = sections["run"], fit.stream.store
        size = {"name": about["data"], "events": len(store), "types": bool(store.features.categories)}
        seconds = estimate_seconds(Candidate(about["model"]), "cpu", sections["train"], **size)
        time_needed = "" if seconds is None else f", about {format_rough_duration(seconds)} on this CPU"
        progress.message(f"{table}{time_needed}")


def _describe_table(fit: Trainer) -> str:
    """Describe size and memory of a training from one table, before it is built; empty without a table."""
    if not fit.scorer.names or not fit.executor.pending_queries:
        return ""
    size = TableSize(fit.executor.pending_queries, len(fit.scorer.names))
    return f"training table: {size}; about {format_bytes(size.peak_bytes)} of memory"


def report_resume(fit: Trainer, progress: Progress) -> None:
    done, most = fit.state.epoch, fit.config.epochs
    where = "training finished" if fit.state.finished else f"epoch {done + 1} of at most {most}"
    progress.message(f"run: {fit.run.path}, {where}")


@contextmanager
def _explain_interrupt(fit: Trainer) -> Iterator[None]:
    """Turn a Ctrl-C after the training into an error that says how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped after the training, which is saved; evaluate with: `dygmamba.resume({str(fit.run.path)!r})`"
        ) from None
