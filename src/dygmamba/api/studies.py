"""Reproduce the studies of the paper; audit a dataset or a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dygmamba.api.argument_types import check_arguments, get_run_path
from dygmamba.api.datasets import Source, resolve_data
from dygmamba.api.validation import check_run_protocol
from dygmamba.auditing.audit import Audit, audit_stream
from dygmamba.auditing.audit import write_page as write_audit_page
from dygmamba.auditing.model_checks import build_audited_model, build_audited_run
from dygmamba.core.errors import ConfigError
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.split_spec import AUTO_PROTOCOL
from dygmamba.data.events.times import format_rough_duration
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.report.document import Document, ReportTable, Section
from dygmamba.report.result_records import StudyResults
from dygmamba.runs.opening import choose_device, open_run
from dygmamba.runs.recipes import build_link_stream
from dygmamba.studies.job import Job
from dygmamba.studies.pool import JobCallback, JobEvent, choose_worker_count, raise_if_failed
from dygmamba.studies.reproduction import (
    CostEstimate,
    ExecutionOptions,
    estimate_cost,
    find_missing_dataset,
    plan_seconds,
    prepare_jobs,
    write_study_page,
)
from dygmamba.studies.reproduction import run_study as run_jobs
from dygmamba.studies.studies import StudyRequest, find_study
from dygmamba.studies.study_report import build_study_document

UNMEASURED = "not measured"

if TYPE_CHECKING:
    from dygmamba.api.run import Run
else:
    Run = Any


@check_arguments
def reproduce(
    study: str,
    *,
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    variants: Sequence[str] | None = None,
    out: Path | str = "studies",
    device: str = "auto",
    workers: int | None = None,
    protocol: str = AUTO_PROTOCOL,
    data_dir: Path | str | None = None,
    progress: Progress | Callable[[JobEvent], None] | None = None,
    **settings: Any,
) -> StudyResults:
    """Reproduce a study of the paper and write its page; finished runs are cached, so a killed study can be restarted.

    Studies: paper, link, node, ablation, length, efficiency, convergence, robustness, sensitivity, case-study, large.
    `paper` is the plan of all trainings behind the paper's claims, in the order of their value; `seeds` selects from
    its seeds. The other studies use seed 0 by default. The page and the tables are in `out`/STUDY. `protocol` is that
    of `train`. `progress` is a `dygmamba.core.progress.Progress`, or a function that is called with every state change
    of a job.

    >>> import dygmamba as dm
    >>> book = dm.reproduce("link", datasets=["generated"], models=["recency"], out="studies")
    >>> len(book.records)
    1
    """
    request = StudyRequest(datasets, models, seeds, variants, settings, _path(data_dir), protocol)
    options = ExecutionOptions(Path(out), device, workers)
    outcome = run_study(study, request, options, f"dygmamba.reproduce({study!r})", progress)
    outcome.raise_if_failed()
    return outcome.results


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """Jobs of a study, and those without a result with their estimated cost, in the order in which they start.

    `dataset` is the synthetic dataset that must be generated first; then the jobs are not known yet. `device` is the
    kind of device of the estimates.
    """

    jobs: list[Job]
    missing: list[tuple[Job, CostEstimate]]
    device: str
    dataset: str | None = None

    @property
    def document(self) -> Document:
        """Every run that is missing, with its cost if it runs alone on this kind of device."""
        total = len({job.key for job in self.jobs})  # a run may be part of several tables
        title = f"{_count_runs(total)}, {total - len(self.missing):,} done, {len(self.missing):,} to do"
        rows = (
            (
                job.title,
                UNMEASURED if cost.seconds is None else format_rough_duration(cost.seconds),
                UNMEASURED if cost.megabytes is None else f"{cost.megabytes:,.0f}",
            )
            for job, cost in self.missing
        )
        known = [cost.seconds for _, cost in self.missing if cost.seconds is not None]
        unknown = len(self.missing) - len(known)
        rest = f", and {_count_runs(unknown)} of models that were not measured" if unknown else ""
        unit = "GPU" if self.device == "cuda" else "CPU"
        text = f"about {format_rough_duration(sum(known))} on the {unit}, one after another{rest}"
        table = ReportTable.of_rows(title, "", ("run", "time", "MB"), rows)
        return Document("Plan", "", (Section("", text, (table,)),))


def _count_runs(number: int) -> str:
    return f"{number:,} run" + "s" * (number != 1)


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """A study that was run: its results, its page, and the reason of every failed job."""

    results: StudyResults
    page: Path
    failed: dict[str, str]
    jobs: list[Job]

    @property
    def document(self) -> Document:
        """The tables of the page."""
        return build_study_document(self.results)

    def raise_if_failed(self) -> None:
        """Raise an error that names the first failed job."""
        raise_if_failed(self.failed, self.jobs)


def plan_study(
    study: str,
    *,
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    variants: Sequence[str] | None = None,
    settings: dict[str, Any] | None = None,
    out: Path = Path("studies"),
    device: str = "auto",
    protocol: str = AUTO_PROTOCOL,
    data_dir: Path | None = None,
) -> StudyPlan:
    """Plan a study without running anything."""
    request = StudyRequest(datasets, models, seeds, variants, settings or {}, data_dir, protocol)
    dataset, kind = find_missing_dataset(study, request), choose_device(device).type
    if dataset is not None:
        return StudyPlan([], [], kind, str(dataset))
    jobs, missing = prepare_jobs(study, request, ExecutionOptions(out, device))
    return StudyPlan(jobs, [(job, estimate_cost(job, kind)) for job in missing], kind)


def reproduce_study(
    study: str,
    *,
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    variants: Sequence[str] | None = None,
    settings: dict[str, Any] | None = None,
    out: Path = Path("studies"),
    device: str = "auto",
    workers: int | None = None,
    protocol: str = AUTO_PROTOCOL,
    data_dir: Path | None = None,
    command: str,
    progress: Progress = SILENT,
) -> StudyOutcome:
    """Reproduce a study and return what was done even if jobs failed; `command` is shown on the page."""
    request = StudyRequest(datasets, models, seeds, variants, settings or {}, data_dir, protocol)
    return run_study(study, request, ExecutionOptions(out, device, workers), command, progress)


def run_study(
    study: str,
    request: StudyRequest,
    options: ExecutionOptions,
    command: str,
    progress: Progress | JobCallback | None,
) -> StudyOutcome:
    """Generate what the study needs, run its missing jobs, and write its page."""
    observer = progress if isinstance(progress, Progress) else SILENT
    if (dataset := find_missing_dataset(study, request)) is not None:
        with observer.stage(f"generating {dataset}"):
            dataset.generate(request.data_dir)
    jobs, missing = prepare_jobs(study, request, options)
    total = len({job.key for job in jobs})
    observer.message(
        f"{total:,} run{'s' * (total != 1)}, {total - len(missing)} of them done already; "
        f"results in {options.out}"
    )
    callback: JobCallback = progress if callable(progress) and not isinstance(progress, Progress) else _ignore
    if isinstance(progress, Progress):
        device = choose_device(options.device).type
        workers = choose_worker_count(device, options.workers, find_study(study).exclusive)
        with _follow_jobs(progress, missing, plan_seconds(missing, device, workers)) as follow:
            results, failed = run_jobs(study, request, options, command, follow)
    else:
        results, failed = run_jobs(study, request, options, command, callback)
    page, *_ = write_study_page(results, options.out)
    return StudyOutcome(results, page, failed, jobs)


def _ignore(event: JobEvent) -> None:
    return None


@contextmanager
def _follow_jobs(progress: Progress, missing: list[Job], seconds: dict[str, int]) -> Iterator[JobCallback]:
    """Yield a callback that opens a stage per running job.

    The stage of all of them counts their planned `seconds`, because jobs differ in cost; without a plan it counts jobs.
    """
    running = dict[str, tuple[AbstractContextManager[Progress], Progress]]()

    def close(key: str) -> None:
        if key in running:
            running.pop(key)[0].__exit__(None, None, None)

    name, unit = (f"{len(missing):,} runs", "seconds") if seconds else ("runs", "")
    with progress.stage(name, sum(seconds.values()) or len(missing), unit=unit) as study:

        def follow(event: JobEvent) -> None:
            key = event.job.key
            if event.what == "started":
                manager = study.stage(event.job.title)
                running[key] = (manager, manager.__enter__())
            elif event.what == "epoch" and key in running:
                # events count from 1
                running[key][1].epoch({**event.more, "epoch": event.more["epoch"] - 1})
            else:  # done, failed, or crowded: it is tried again later
                close(key)
            if event.what in ("done", "failed"):
                study.advance(seconds.get(key, 1))
            if event.what == "failed":
                study.message(f"{event.job.title} failed: {event.more['why']}")

        try:
            yield follow
        finally:
            for key in list(running):
                close(key)


@check_arguments
def audit(
    data: "Dataset | Source",
    model: str | None = None,
    *,
    run: "Run | Path | str | None" = None,
    protocol: str = AUTO_PROTOCOL,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Audit:
    """Compare a dataset's test period with oracles and baselines, and check what a model's score depends on.

    `data` is a dataset, its name, anything that `read` takes, or a run directory, which brings its own dataset.
    `protocol` decides which nodes are new, as in `evaluate`. The result has `ceilings`, `checks`, `sound`, `to_dict()`
    and `page(out)`.

    >>> import dygmamba as dm
    >>> found = dm.audit(dm.generate(nodes=40, events=800, communities=4), "edgebank")
    >>> found.sound, [check.name for check in found.checks][:4]
    (True, ['future', 'batch', 'order', 'padding'])
    """
    folder, cpu, settings = _path(data_dir), torch.device("cpu"), settings | dict(overrides or {})
    observer = progress or SILENT
    data = resolve_data(data)
    given: Dataset | str | None = data
    if run is None and isinstance(data, str) and (Path(data) / "config.toml").is_file():
        given, run = None, data
    if model is not None and run is not None:
        raise ConfigError(
            "give a model by name or a run, not both; a run brings its own model", code="model-and-run"
        )
    if model is None and settings:
        raise ConfigError(
            f"settings ({', '.join(settings)}) need a model; name it with `model`",
            code="settings-without-model",
        )
    dataset = given if given is None or isinstance(given, Dataset) else open_dataset(given, folder)
    if run is not None:
        check_run_protocol(protocol)
        path = get_run_path(run)
        opened = open_run(path, cpu, folder, dataset)
        return audit_stream(
            opened.stream, opened.dataset.name, build_audited_run(opened, path), progress=observer
        )
    assert dataset is not None
    stream = build_link_stream(dataset, cpu, get_default_split(dataset, protocol))
    subject = None if model is None else build_audited_model(model, settings, stream, dataset.name)
    return audit_stream(stream, dataset.name, subject, progress=observer)


def _path(given: Path | str | None) -> Path | None:
    return None if given is None else Path(given)


def write_audit(found: Audit, out: Path) -> Path:
    """Write an audit as a page."""
    return write_audit_page(found, out)
