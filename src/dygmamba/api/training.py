"""Train, resume, refit and blend runs: one run directory per seed, and a summary over the seeds."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, overload

import pyarrow as pa

from dygmamba.api.argument_types import check_arguments
from dygmamba.api.datasets import Source, resolve_data
from dygmamba.api.evaluation import rows_to_table
from dygmamba.api.pipeline import (
    TrainingPlan,
    check_training_plan,
    finish_run,
    refit_link_run,
    resume_run,
    train_link_run,
    train_node_run,
)
from dygmamba.api.processes import process_group, run_in_processes
from dygmamba.api.run import SHOWN_RESULTS, Run
from dygmamba.api.selection import (
    count_spent_seconds,
    find_unfinished_selection,
    resume_selection,
    train_within_budget,
)
from dygmamba.api.trusted_code import import_if_trusted
from dygmamba.api.validation import (
    Names,
    check_budget,
    check_one_seed,
    check_start,
    check_task,
    choose_model,
    parse_budget,
    parse_loggers,
    parse_names,
)
from dygmamba.core.deadline import Deadline
from dygmamba.core.errors import DygWarning
from dygmamba.core.notebook_html import format_facts, format_table
from dygmamba.core.process_settings import enable_determinism
from dygmamba.core.progress import EpochFunction, Progress, as_progress
from dygmamba.data.events.split_spec import AUTO_PROTOCOL
from dygmamba.data.storage.alignment import align_dataset
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.history.negatives import SAMPLERS
from dygmamba.report.document import Document
from dygmamba.report.results import build_results_document
from dygmamba.report.selection_section import build_selection_section
from dygmamba.runs.blending import blend_runs
from dygmamba.runs.opening import SplitSpec, choose_device, store_for_training
from dygmamba.runs.provenance import is_deterministic
from dygmamba.runs.run_names import find_run
from dygmamba.runs.trusted_code import require_known_models
from dygmamba.runs.warm_start import WarmStart, open_warm_start
from dygmamba.tasks.metric_names import (
    METRICS,
    SETTING_LABELS,
    format_metric,
    get_metric_title,
    list_metrics,
)

GROUP_KEYS = ("split", "setting", "negatives")


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
                SETTING_LABELS.get(str(row[key]), str(row[key])) if key == "setting" else str(row[key])
                for key in GROUP_KEYS
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
            groups.setdefault(tuple(row.get(key) for key in GROUP_KEYS), []).append(row)
        rows = []
        for about, own in groups.items():
            row = {key: value for key, value in zip(GROUP_KEYS, about, strict=True) if value is not None}
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
    deadline = None if budget is None else Deadline.after(parse_budget(budget))
    check_budget(task, processes, is_given=budget is not None)
    check_task(task, {"backbone": backbone is not None, "finetune": finetune, "balance": balance})
    settings |= overrides or {}
    strategies, loggers = parse_names("negatives", negatives, SAMPLERS), parse_loggers(log)
    observer, numbers = as_progress(progress), (seeds,) if isinstance(seeds, int) else tuple(seeds)
    folder, root, data = _path(data_dir), Path(out), resolve_data(data)
    dataset = open_dataset(data, folder) if isinstance(data, str) else data
    origin = start_from.path if isinstance(start_from, Run) else _path(start_from)
    check_start(origin, task=task, model=model, preset=preset)
    given, (start, dataset) = dataset, _open_start(origin, dataset, folder)
    model = model if start is None else start.model
    is_stored = isinstance(data, str) and dataset is given  # under its name, as it is
    where = choose_device(device)
    why = {"device": f"{where.type}: torch sees {'a' if where.type == 'cuda' else 'no'} GPU"}
    why = why if device == "auto" else {}
    if deadline is not None:
        check_one_seed(model, numbers)
    elif model is None and backbone is None:  # a backbone brings its own model
        choice = choose_model(where, task, settings, preset, finetune)
        model, preset, why["model"] = choice.model, choice.size, choice.sentence
        if choice.surprising and not isinstance(progress, Progress):  # which gets it as a message
            warnings.warn(DygWarning(choice.sentence), stacklevel=3)
    plan = TrainingPlan(
        settings=settings,
        device=where,
        out=root,
        model=model,
        strategies=strategies,
        backbone=_path(backbone),
        finetune=finetune,
        balance=balance,
        size=preset,
        split=split,
        protocol=protocol,
        why=why,
        log=loggers,
        start=start,
    )
    check_training_plan(plan)
    storing = nullcontext() if is_stored else store_for_training(dataset, root, folder)
    if processes != 1:
        with storing as stored:
            job: dict[str, Any] = {"data": data if is_stored else dataset.name}
            job |= {} if stored is None else {"stored": str(stored)}
            job |= {"model": model, "seeds": numbers, "task": task, "device": device, "out": str(root)}
            job |= {"negatives": strategies, "finetune": finetune, "balance": balance, "preset": preset}
            job |= {"backbone": None if backbone is None else str(backbone), "split": split, "log": log}
            job |= {"protocol": protocol, "start_from": None if origin is None else str(origin)}
            job |= {"data_dir": None if folder is None else str(folder), "deterministic": deterministic}
            other = origin or _path(backbone)
            job |= {"overrides": settings} | ({} if other is None else _share_trust(other))
            paths = run_in_processes("train", processes, observer, job)
        return Runs([Run(path, device, folder) for path in paths])
    if deterministic:
        enable_determinism()
    train_run = train_node_run if task == "node" else train_link_run
    with process_group(where) as group:
        check_budget(task, group.size, is_given=budget is not None)  # torchrun may have started several
        plan = plan if group.is_first else replace(plan, log=())
        paths = []
        with storing:
            for place, seed in enumerate(numbers):
                if deadline is None:
                    fit = train_run(dataset, plan, seed, observer)
                else:
                    share = Deadline.after(max(deadline.left, 0.0) / (len(numbers) - place), deadline.clock)
                    fit = train_within_budget(dataset, plan, seed, share, observer)
                paths.append(fit.run.path)
    return Runs([Run(path, device, folder) for path in paths])


def _open_start(
    path: Path | None, dataset: Dataset, data_dir: Path | None
) -> tuple[WarmStart | None, Dataset]:
    """Open the run that a training starts from, and number the nodes of the dataset as that run does."""
    if path is None:
        return None, dataset
    start = open_warm_start(path, data_dir)
    return start, align_dataset(dataset, start.dataset)


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
    path, data = find_run(folder, prefer_finished=False), _path(data_dir)
    import_if_trusted(trust, path)
    require_known_models(RunDirectory(path))  # before the run is extended
    settings |= overrides or {}
    strategies, loggers = parse_names("negatives", negatives, SAMPLERS), parse_loggers(log)
    observer = as_progress(progress)
    if processes != 1:
        job = {
            "folder": str(path),
            "device": device,
            "negatives": strategies,
            "log": log,
            "overrides": settings,
        }
        job |= {"data_dir": None if data is None else str(data), "deterministic": deterministic}
        run_in_processes("resume", processes, observer, job | _share_trust(path))
        return Run(path, device, data)
    if deterministic or (deterministic is None and is_deterministic(RunDirectory(path))):
        enable_determinism()
    where = choose_device(device)
    selection = None if settings else find_unfinished_selection(path)
    if selection is not None:
        plan = TrainingPlan({}, where, path, strategies=strategies, log=loggers)
        left = Deadline.after(max(selection.budget - count_spent_seconds(selection), 0.0))
        fit = resume_selection(path, selection, plan, data, left, observer)
        return Run(fit.run.path, device, data)
    with process_group(where) as group:
        resume_run(path, where, strategies, observer, data, settings, loggers if group.is_first else ())
    return Run(path, device, data)


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
    path, data = find_run(folder), _path(data_dir)
    import_if_trusted(trust, path)
    if processes != 1:
        job = {"folder": str(path), "device": device, "data_dir": None if data is None else str(data)}
        (refitted,) = run_in_processes("refit", processes, as_progress(progress), job | _share_trust(path))
        return Run(refitted, device, data)
    with process_group(where := choose_device(device)):
        fit = refit_link_run(path, where, as_progress(progress), data)
    return Run(fit.run.path, device, data)


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
    folders = list(map(find_run, runs))
    import_if_trusted(trust, *folders)
    strategies = parse_names("negatives", negatives, SAMPLERS)
    where, folder, observer = choose_device(device), _path(data_dir), as_progress(progress)
    fit, dataset = blend_runs(folders, where, Path(out), folder, observer)
    observer.message(f"run: {fit.run.path}")
    observer.message(fit.run.config()["chosen"]["weights"])
    finish_run(fit, dataset, strategies, observer)
    return Run(fit.run.path, device, folder)


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

    @property
    def document(self) -> Document:
        """The results with the best baselines, the verdict on each run, and what was tried."""
        sentences = [
            f"seed {seed}: {verdict['sentence']}" if len(self.seeds) > 1 else verdict["sentence"]
            for seed, verdict in zip(self.seeds, self.verdicts, strict=False)
        ]
        tried = [section for one in self.selections if (section := build_selection_section(one)) is not None]
        return build_results_document(self.rows, self.rules, sentences, tried)


def collect_results(runs: Sequence[Run]) -> CollectedResults:
    """Read the results of runs that differ in their seed."""
    folders = [RunDirectory(run.path) for run in runs]
    return CollectedResults(
        [folder.config()["run"]["seed"] for folder in folders],
        [row for folder in folders for row in folder.results()],
        folders[0].rules(),
        [verdict for folder in folders if (verdict := folder.verdict())],
        [selection for folder in folders if (selection := folder.selection())],
    )


def _path(given: Path | str | None) -> Path | None:
    return None if given is None else Path(given)
