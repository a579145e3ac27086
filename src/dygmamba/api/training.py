"""Train, resume, refit and blend runs: one run directory per seed, and a summary over the seeds."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, overload

import pyarrow as pa
import torch

from dygmamba.api.datasets import Source, open_data, resolve_data
from dygmamba.api.evaluation import rows_to_table
from dygmamba.api.processes import process_group, run_in_processes
from dygmamba.api.reports import write_run_page
from dygmamba.api.requests.base import Names
from dygmamba.api.requests.training import BlendRequest, RefitRequest, ResumeRequest, TrainRequest
from dygmamba.api.run import SHOWN_RESULTS, Run
from dygmamba.api.trusted_code import import_if_trusted
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.deadline import Deadline
from dygmamba.core.errors import DygWarning
from dygmamba.core.notebook_html import format_facts, format_table
from dygmamba.core.process_settings import enable_determinism
from dygmamba.core.progress import EpochFunction, Progress, as_progress
from dygmamba.data.events.split_spec import AUTO_PROTOCOL, SplitSpec
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import align_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.document import Document
from dygmamba.report.results import PAIR_KEYS, build_results_document
from dygmamba.report.selection_section import build_selection_section
from dygmamba.runs.blending import blend_runs
from dygmamba.runs.budgeted_training import (
    count_spent_seconds,
    find_unfinished_selection,
    resume_selection,
    train_within_budget,
)
from dygmamba.runs.default_model import choose_model
from dygmamba.runs.opening import choose_device, store_for_training
from dygmamba.runs.pipeline import (
    FinishOptions,
    TrainingPlan,
    finish_run,
    refit_link_run,
    resume_run,
    train_link_run,
    train_node_run,
)
from dygmamba.runs.provenance import is_deterministic
from dygmamba.runs.run_names import find_run
from dygmamba.runs.trusted_code import require_known_models
from dygmamba.runs.warm_start import WarmStart, open_warm_start
from dygmamba.tasks.metric_names import METRICS, SCOPE_LABELS, format_metric, get_metric_title, list_metrics


class Runs(Sequence[Run]):
    """The runs of one training, one per seed."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> "Runs": ...
    def __getitem__(self, place: int | slice) -> "Run | Runs":
        return Runs(self._runs[place]) if isinstance(place, slice) else self._runs[place]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        text = f"<{len(self)} run{'s' * (len(self) != 1)}"
        for row in self.summary.to_pylist():
            about = " ".join(
                SCOPE_LABELS.get(str(row[key]), str(row[key])) if key == "setting" else str(row[key])
                for key in PAIR_KEYS
                if key in row
            )
            figures = (
                f"{get_metric_title(key)} {format_metric(key, row[key], row[f'{key}_std'])}"
                for key in list_metrics(shown="line")
                if key in row
            )
            text += f"; {about}: {', '.join(figures)}"
        return f"{text}>"

    def _repr_html_(self) -> str:
        summary = self.summary
        kept = [name for name in summary.column_names if name.removesuffix("_std") in SHOWN_RESULTS]
        rows = [[row[name] for name in kept] for row in summary.to_pylist()]
        paths = format_facts("", {f"run {place}": run.path for place, run in enumerate(self)})
        return format_table(kept, rows, f"{len(self)} run{'s' * (len(self) != 1)}") + paths

    @property
    def metrics(self) -> pa.Table:
        """One row per seed and epoch."""
        rows = [{"seed": run.config["run"]["seed"], **row} for run in self for row in run.metrics.to_pylist()]
        return pa.Table.from_pylist(rows)

    @property
    def results(self) -> pa.Table:
        """The final evaluations of all seeds, one row each."""
        return rows_to_table([row for run in self for row in run.results.to_pylist()])

    @property
    def summary(self) -> pa.Table:
        """Mean and standard deviation (null with one seed) of each metric over the seeds."""
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in self.results.to_pylist():
            groups.setdefault(tuple(row.get(key) for key in PAIR_KEYS), []).append(row)
        rows = []
        for about, own in groups.items():
            row = {key: value for key, value in zip(PAIR_KEYS, about, strict=True) if value is not None}
            row["seeds"] = len(own)
            for key in (key for key in METRICS if key in own[0]):
                values = [one[key] for one in own if one[key] is not None]
                row[key] = mean(values) if values else None
                row[f"{key}_std"] = stdev(values) if len(values) > 1 else None
            rows.append(row)
        return pa.Table.from_pylist(rows)


@check_arguments
def train(
    data: "Dataset | Source",
    model: str | None = None,
    *,
    seeds: int | Sequence[int] = (0,),
    task: str = "link",
    budget: str | float | None = None,
    start_from: "Run | Path | str | None" = None,
    device: str = "auto",
    out: Path | str = "runs",
    negatives: Names = "random",
    backbone: Path | str | None = None,
    finetune: bool = False,
    balance: bool = False,
    preset: str | None = None,
    split: SplitSpec | None = None,
    protocol: str = AUTO_PROTOCOL,
    data_dir: Path | str | None = None,
    progress: Progress | EpochFunction | None = None,
    log: Names | None = None,
    processes: int = 1,
    deterministic: bool = False,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Runs:
    """Train a model, one run directory per seed under `out`, and compare its best weights with simple heuristics.

    Args:
        data: A dataset, its name, or anything that `read` takes. A dataset that has no name on disk is stored beside
            the runs.
        model: A registered model. By default "dyg-mamba-counts" with a GPU (for labels of nodes "dyg-mamba"); without
            one "dyg-mamba" if a setting is one of its own, else "trees", which need no GPU; a warning says so.
        seeds: One run for each.
        task: "link" (prediction) or "node" (labels of sources: two states, classes or numbers).
        budget: How long this may take, such as "10m", "1h" or 90 (seconds). Without a model, several are trained, the
            quick ones first, then the best network with further seeds if time is left. The best run by validation is
            returned, or a blend of the best ones if it is better by more than chance; `run.selection` lists them. With
            a model, its training ends in time. Several seeds need a model and share the time.
        start_from: A finished link run to continue on newer data: the new run starts with its weights, ids and
            settings, and `settings` given here replace them. Networks get a new optimizer, trees are added to its
            trees. Nodes are matched by their ids. Its training period must end before the validation of the new run.
        device: "auto", "cpu" or "cuda".
        out: Where run directories go.
        negatives: Negative samplers of the final evaluation: random, historical, inductive.
        backbone: With task="node", a finished link run to build on; by default one is trained first.
        finetune: With task="node", train the backbone too.
        balance: With task="node", weigh all classes the same.
        preset: "small" for a DyG-Mamba that suits a CPU, "short" for minutes on a GPU, "paper", or a file that `tune`
            wrote.
        split: Three shares, (0.7, 0.15, 0.15), or the times at which validation and test start,
            ("2024-01-01", "2024-06-01").
        protocol: "time" (every event of the training period is trained on), "benchmark" (the events of a sample of the
            nodes are removed from it, as DyGLib does), or "auto": "benchmark" for the datasets of DyGLib, else "time".
        data_dir: Where datasets are.
        progress: Called with every epoch's entry, or a `dygmamba.core.progress.Progress`.
        log: "tensorboard", "mlflow" or both.
        processes: Processes of this machine that share every batch, one per GPU or on the same cores; the results are
            those of one process. A script started by torchrun does the same without it.
        deterministic: Raise an error instead of using a GPU operation that is not reproducible.
        overrides: Further settings, for those whose names are arguments here, such as the model's `out`.
        **settings: Settings of the training loop and of the model, such as epochs, lr, batch or length. The published
            ones are used where the dataset has them.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> runs = dm.train(data, "graphmixer", seeds=range(2), epochs=1, neighbors=4, out="runs")
    >>> len(runs), runs.summary.column_names[:4]
    (2, ['split', 'setting', 'negatives', 'seeds'])
    """
    request = TrainRequest.from_arguments(
        locals(),
        data=resolve_data(data),
        seeds=(seeds,) if isinstance(seeds, int) else tuple(seeds),
        settings=settings | dict(overrides or {}),
    )
    return run_training(request.check(), as_progress(progress), is_told=isinstance(progress, Progress))


def run_training(request: TrainRequest, progress: Progress, *, is_told: bool = True) -> Runs:
    """Train what a request asks for; without `is_told` a surprising choice is a warning, as nobody sees messages."""
    deadline = None if request.seconds is None else Deadline.after(request.seconds)
    data, data_dir = request.data, request.data_dir
    dataset = open_data(data, data_dir)
    start, given = None, dataset
    if request.start_from is not None:  # the nodes are numbered as in the run that it starts from
        start = open_warm_start(request.start_from, data_dir)
        dataset = align_dataset(dataset, start.dataset)
    is_stored = given is not data and dataset is given  # under its name, as it is
    request = replace(request, model=request.model if start is None else start.model)
    device = choose_device(request.device)
    why = {"device": f"{device.type}: torch sees {'a' if device.type == 'cuda' else 'no'} GPU"}
    why = why if request.device == "auto" else {}
    # a backbone brings its own model, a budget tries several
    if deadline is None and request.model is None and request.backbone is None:
        settings = dict(request.settings)
        choice = choose_model(device.type, request.task, settings, request.preset, request.finetune)
        request = replace(request, model=choice.model, preset=choice.preset)
        why["model"] = choice.sentence
        if choice.surprising and not is_told:
            warnings.warn(DygWarning(choice.sentence), stacklevel=4)
    storing = nullcontext() if is_stored else store_for_training(dataset, request.out, data_dir)
    if request.processes != 1:
        with storing as stored:
            job = replace(request, data=data if is_stored else dataset.name)
            more = {} if stored is None else {"stored": str(stored)}
            other = request.start_from or request.backbone
            more |= {} if other is None else _share_trust(other)
            paths = run_in_processes("train", job, progress, more)
        return Runs([Run(path, request.device, data_dir) for path in paths])
    if request.deterministic:
        enable_determinism()
    with process_group(device) as group:
        request.check_budget(group.size)  # torchrun may have started several
        plan = _make_plan(request, device, why, start, request.loggers if group.is_first else ())
        with storing:
            paths = [
                _train_seed(dataset, plan, request, seed, deadline, len(request.seeds) - place, progress)
                for place, seed in enumerate(request.seeds)
            ]
    return Runs([Run(path, request.device, data_dir) for path in paths])


def _make_plan(
    request: TrainRequest,
    device: torch.device,
    why: dict[str, str],
    start: WarmStart | None,
    log: tuple[str, ...],
) -> TrainingPlan:
    names = ("out", "model", "backbone", "finetune", "balance", "preset", "split", "protocol")
    return TrainingPlan(
        settings=dict(request.settings),
        device=device,
        why=why,
        start=start,
        finish=FinishOptions(request.strategies, log, write_run_page),
        **{name: getattr(request, name) for name in names},
    )


def _train_seed(
    dataset: Dataset,
    plan: TrainingPlan,
    request: TrainRequest,
    seed: int,
    deadline: Deadline | None,
    seeds_left: int,
    progress: Progress,
) -> Path:
    """Train with one seed, in its share of the time that is left, and return the run directory."""
    if deadline is not None:
        share = Deadline.after(max(deadline.left, 0.0) / seeds_left, deadline.clock)
        return train_within_budget(dataset, plan, seed, share, progress).run.path
    train_run = train_node_run if request.task == "node" else train_link_run
    return train_run(dataset, plan, seed, progress).run.path


@check_arguments
def resume(
    folder: Path | str,
    *,
    device: str = "auto",
    negatives: Names = "random",
    data_dir: Path | str | None = None,
    progress: Progress | EpochFunction | None = None,
    log: Names | None = None,
    processes: int = 1,
    deterministic: bool | None = None,
    trust: bool = False,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Continue a run that was stopped, exactly as it would have continued, and evaluate it; a finished one is kept.

    `epochs=50` turns it, finished or not, into the run that would have been started with 50; `patience` can grow too.
    Any other setting is an error. `processes` may differ from the first time; then the last bits of the results differ.
    `deterministic` is as when the run was started, unless it is given. `trust` imports the module that defines the
    model, as in `dygmamba.open`.

    A run that was trained within a `budget` continues the choice among models in the time that is left, and the chosen
    run is returned. With `epochs`, or if the choice is complete, only the given run continues.

    >>> import dygmamba as dm
    >>> small = {"length": 4, "width": 4, "blocks": 1}
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "dyg-mamba", epochs=1, **small)
    >>> dm.resume(run.path).results == run.results
    True
    >>> dm.resume(run.path, epochs=2).metrics.num_rows
    2
    """
    path = find_run(folder, prefer_finished=False)
    import_if_trusted(trust, path)
    settings = settings | dict(overrides or {})
    request = ResumeRequest.from_arguments(locals(), folder=path, settings=settings)
    return run_resume(request.check(), as_progress(progress))


def run_resume(request: ResumeRequest, progress: Progress) -> Run:
    """Continue the run of a request, or the choice among models that it is part of."""
    path, settings, data_dir = request.folder, dict(request.settings), request.data_dir
    require_known_models(RunDirectory(path))  # before the run is extended
    if request.processes != 1:
        run_in_processes("resume", request, progress, _share_trust(path))
        return Run(path, request.device, data_dir)
    if request.deterministic or (request.deterministic is None and is_deterministic(RunDirectory(path))):
        enable_determinism()
    device = choose_device(request.device)
    selection = None if settings else find_unfinished_selection(path)
    if selection is not None:
        options = FinishOptions(request.strategies, request.loggers, write_run_page)
        plan = TrainingPlan({}, device, path, finish=options)
        left = Deadline.after(max(selection.budget - count_spent_seconds(selection), 0.0))
        fit = resume_selection(path, selection, plan, data_dir, left, progress)
        return Run(fit.run.path, request.device, data_dir)
    with process_group(device) as group:
        log = request.loggers if group.is_first else ()
        options = FinishOptions(request.strategies, log, write_run_page)
        resume_run(path, device, options, progress, data_dir, settings)
    return Run(path, request.device, data_dir)


@check_arguments
def refit(
    folder: Path | str,
    *,
    device: str = "auto",
    data_dir: Path | str | None = None,
    progress: Progress | EpochFunction | None = None,
    processes: int = 1,
    trust: bool = False,
) -> Run:
    """Train a finished run's settings on every event, the test period too, for as many epochs as were best.

    The new run, for use in production, lies beside the old one. It has no test results: how good its settings are is in
    the results of the old one. `trust` imports the module that defines the model, as in `dygmamba.open`.

    >>> import dygmamba as dm
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "trees", epochs=1)
    >>> everything = dm.refit(run.path)
    >>> everything.finished, everything.results.num_rows, everything.rank([3], k=2).num_rows
    (True, 0, 2)
    """
    path = find_run(folder)
    import_if_trusted(trust, path)
    request = RefitRequest.from_arguments(locals(), folder=path)
    return run_refit(request.check(), as_progress(progress))


def run_refit(request: RefitRequest, progress: Progress) -> Run:
    """Train the settings of a finished run on every event."""
    path, data_dir = request.folder, request.data_dir
    if request.processes != 1:
        (refitted,) = run_in_processes("refit", request, progress, _share_trust(path))
        return Run(refitted, request.device, data_dir)
    with process_group(device := choose_device(request.device)):
        fit = refit_link_run(path, device, progress, data_dir)
    return Run(fit.run.path, request.device, data_dir)


@check_arguments
def blend(
    runs: Sequence[Path | str],
    *,
    device: str = "auto",
    out: Path | str = "runs",
    negatives: Names = "random",
    data_dir: Path | str | None = None,
    progress: Progress | EpochFunction | None = None,
    trust: bool = False,
) -> Run:
    """Combine finished link runs of one dataset: the weighted sum of their logits that is best on validation.

    Nothing is trained. The new run is evaluated, holds all it needs and is used like any other. It takes two to four
    runs, of different models or of different seeds. `trust` imports the modules that define their models, as in
    `dygmamba.open`.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> parts = [dm.train(data, name, epochs=1)[0] for name in ("trees", "tgn")]
    >>> both = dm.blend([part.path for part in parts])
    >>> both.config["run"]["model"], sum(both.config["model"]["weights"])
    ('blend', 1.0)
    """
    request = BlendRequest.from_arguments(locals(), runs=list(map(find_run, runs)))
    import_if_trusted(trust, *request.runs)
    return run_blend(request.check(), as_progress(progress))


def run_blend(request: BlendRequest, progress: Progress) -> Run:
    """Blend the runs of a request, and evaluate the blend."""
    device = choose_device(request.device)
    fit, dataset = blend_runs(list(request.runs), device, request.out, request.data_dir, progress)
    progress.message(f"run: {fit.run.path}")
    progress.message(fit.run.config()["chosen"]["weights"])
    finish_run(fit, dataset, FinishOptions(request.strategies, write_page=write_run_page), progress)
    return Run(fit.run.path, request.device, request.data_dir)


def _share_trust(path: Path) -> dict[str, str]:
    """Let workers import the modules of a run's models, if this process knows these models itself."""
    if not (path / "config.toml").is_file():
        return {}  # the workers say what is wrong
    require_known_models(RunDirectory(path))
    return {"trusted": str(path)}


@dataclass(frozen=True, slots=True)
class CollectedResults:
    """Result rows of several runs and of the heuristics, a verdict per run, and what was tried within a budget."""

    seeds: list[int]
    rows: list[dict[str, Any]]
    rules: list[dict[str, Any]]
    verdicts: list[dict[str, Any]]
    selections: list[dict[str, Any]]
    ranking: list[dict[str, Any]]
    ranking_verdicts: list[dict[str, Any]]

    @property
    def document(self) -> Document:
        """The results with the best baselines, the verdict on each run, and what was tried."""
        sentences = [
            f"seed {seed}: {verdict['sentence']}" if len(self.seeds) > 1 else verdict["sentence"]
            for verdicts in (self.verdicts, self.ranking_verdicts)
            for seed, verdict in zip(self.seeds, verdicts, strict=False)
        ]
        tried = [section for one in self.selections if (section := build_selection_section(one)) is not None]
        return build_results_document(self.rows, self.rules, sentences, tried, self.ranking)


def collect_results(runs: Sequence[Run]) -> CollectedResults:
    """Read the results of runs that differ in their seed."""
    folders = [RunDirectory(run.path) for run in runs]
    return CollectedResults(
        [folder.config()["run"]["seed"] for folder in folders],
        [row for folder in folders for row in folder.results()],
        folders[0].rules(),
        [verdict for folder in folders if (verdict := folder.verdict())],
        [selection for folder in folders if (selection := folder.selection())],
        [*(row for folder in folders for row in folder.ranking()[:1]), *folders[0].ranking()[1:]],
        [verdict for folder in folders if (verdict := folder.ranking_verdict())],
    )
