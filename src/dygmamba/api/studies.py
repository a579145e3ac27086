"""Reproduce the studies of the paper; audit a dataset or a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dygmamba.api.datasets import Source, open_data, resolve_data
from dygmamba.api.requests.evaluation import AuditRequest, ReproduceRequest
from dygmamba.auditing.audit import Audit, audit_stream
from dygmamba.auditing.model_checks import build_audited_model, build_audited_run
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.split_spec import AUTO_PROTOCOL
from dygmamba.data.events.times import format_rough_duration
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.report.document import Document, ReportTable, Section
from dygmamba.report.result_records import StudyResults
from dygmamba.runs.opening import choose_device, open_run
from dygmamba.runs.recipes import build_link_stream
from dygmamba.runs.run_names import get_run_path
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
    request = ReproduceRequest.from_arguments(locals()).check()
    outcome = run_study(request, f"dygmamba.reproduce({study!r})", progress)
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


def _parse_study(request: ReproduceRequest) -> tuple[StudyRequest, ExecutionOptions]:
    names = ("datasets", "models", "seeds", "variants", "data_dir", "protocol")
    choices = {name: getattr(request, name) for name in names}
    options = ExecutionOptions(request.out, request.device, request.workers)
    return StudyRequest(**choices, settings=dict(request.settings)), options


def plan_study(request: ReproduceRequest) -> StudyPlan:
    """Plan a study without running anything."""
    (choices, options), kind = _parse_study(request), choose_device(request.device).type
    dataset = find_missing_dataset(request.study, choices)
    if dataset is not None:
        return StudyPlan([], [], kind, str(dataset))
    jobs, missing = prepare_jobs(request.study, choices, options)
    return StudyPlan(jobs, [(job, estimate_cost(job, kind)) for job in missing], kind)


def run_study(
    request: ReproduceRequest, command: str, progress: Progress | JobCallback | None
) -> StudyOutcome:
    """Generate what the study needs, run its missing jobs, and write its page; `command` is shown on it.

    The outcome says which jobs failed.
    """
    study, (choices, options) = request.study, _parse_study(request)
    observer = progress if isinstance(progress, Progress) else SILENT
    if (dataset := find_missing_dataset(study, choices)) is not None:
        with observer.stage(f"generating {dataset}"):
            dataset.generate(choices.data_dir)
    jobs, missing = prepare_jobs(study, choices, options)
    total = len({job.key for job in jobs})
    done = f"{_count_runs(total)}, {total - len(missing)} of them done already"
    observer.message(f"{done}; results in {options.out}")
    if isinstance(progress, Progress):
        device = choose_device(options.device).type
        workers = choose_worker_count(device, options.workers, find_study(study).exclusive)
        following = _follow_jobs(progress, missing, plan_seconds(missing, device, workers))
    else:
        following = nullcontext(progress or (lambda event: None))
    with following as follow:
        results, failed = run_jobs(study, choices, options, command, follow)
    page, *_ = write_study_page(results, options.out)
    return StudyOutcome(results, page, failed, jobs)


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
    request = AuditRequest.from_arguments(
        locals(),
        data=resolve_data(data),
        run=None if run is None else get_run_path(run),
        settings=settings | dict(overrides or {}),
    )
    return run_audit(request.check(), progress or SILENT)


def run_audit(request: AuditRequest, progress: Progress = SILENT) -> Audit:
    """Audit a dataset, and a model or the run of the request."""
    cpu = torch.device("cpu")
    dataset = None if request.brings_dataset else open_data(request.data, request.data_dir)
    if request.brings_dataset or request.run is not None:
        path = get_run_path(request.run or Path(request.data))
        opened = open_run(path, cpu, request.data_dir, dataset)
        subject = build_audited_run(opened, path)
        return audit_stream(opened.stream, opened.dataset.name, subject, progress=progress)
    assert dataset is not None
    stream = build_link_stream(dataset, cpu, get_default_split(dataset, request.protocol))
    subject = None
    if request.model is not None:
        subject = build_audited_model(request.model, dict(request.settings), stream, dataset.name)
    return audit_stream(stream, dataset.name, subject, progress=progress)
