"""A study from plan to page: what is missing is computed, everything is kept, the page is written."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from dygmamba.errors import ConfigError
from dygmamba.report.sheet_page import write_sheet
from dygmamba.runs.opening import choose_device
from dygmamba.studies.estimate import costliest_first
from dygmamba.studies.job import Job, Results
from dygmamba.studies.plan import Ask, find_study, plan
from dygmamba.studies.pool import Event, Pool, worker_count
from dygmamba.studies.records import Book, Record
from dygmamba.studies.sheets import sheet

OUT = Path("studies")
RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a study runs and writes."""

    out: Path = OUT
    device: str = "auto"
    workers: int | None = None


def prepare(study: str, ask: Ask, place: Place) -> tuple[list[Job], list[Job]]:
    """All jobs of the study, and those that are still to be done, the costliest first."""
    jobs = plan(study, ask)
    device = choose_device(place.device).type
    return jobs, costliest_first(Results(place.out).missing(jobs), device)


def run(
    study: str, ask: Ask, place: Place, command: str, watch: Callable[[Event], None] = lambda event: None
) -> tuple[Book, dict[str, str]]:
    """Do what is missing; the book of all that is done, and what failed."""
    if place.workers is not None and place.workers < 1:
        raise ConfigError(f"`workers` must be at least 1, got {place.workers}")
    jobs, missing = prepare(study, ask, place)
    device = choose_device(place.device).type
    workers = worker_count(device, place.workers, find_study(study).alone)
    failed: dict[str, str] = {}
    if missing:
        failed = Pool(Results(place.out), device, workers, ask.data_dir)(missing, watch)
    return gather(study, jobs, Results(place.out), command), failed


def gather(study: str, jobs: list[Job], results: Results, command: str) -> Book:
    """What is done so far."""
    records = []
    for job in jobs:
        if (found := results.find(job.key)) is not None:
            records.append(Record.of(job, found))
    return Book(study, command, tuple(records))


def publish(book: Book, folder: Path) -> list[Path]:
    """The page, its tables in three forms, and the results they are made of."""
    book.write(folder / book.study / RESULTS)
    return [*write_sheet(sheet(book), folder / book.study, book.study), folder / book.study / RESULTS]


def hardware() -> str:
    """What a plan's estimate is for."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
