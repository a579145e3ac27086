"""A study from plan to page: what is missing is computed, everything is kept, the page is written."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dygmamba.data.library import open_dataset
from dygmamba.data.splits import chronological_split
from dygmamba.errors import ConfigError
from dygmamba.report.sheet_page import write_sheet
from dygmamba.runs.opening import choose_device
from dygmamba.studies.ceilings import Moments, ceiling
from dygmamba.studies.estimate import costliest_first
from dygmamba.studies.job import Job, Results
from dygmamba.studies.jobs import Ask
from dygmamba.studies.made import Made
from dygmamba.studies.plan import find_study, plan
from dygmamba.studies.pool import Event, Pool, worker_count
from dygmamba.studies.records import Book, Record
from dygmamba.studies.sheets import sheet
from dygmamba.tasks.link import link_exam

OUT = Path("studies")
RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a study runs and writes."""

    out: Path = OUT
    device: str = "auto"
    workers: int | None = None


def lacking(study: str, ask: Ask) -> Made | None:
    """The stream that the study would have to make first."""
    made = find_study(study).made
    return None if made is None or ask.datasets or made.there(ask.data_dir) else made


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
    book = gather(study, jobs, Results(place.out), command)
    return replace(book, ceilings=ceilings(book, ask)), failed


def gather(study: str, jobs: list[Job], results: Results, command: str) -> Book:
    """What is done so far."""
    records = []
    for job in jobs:
        if (found := results.find(job.key)) is not None:
            records.append(Record.of(job, found))
    return Book(study, command, tuple(records))


def ceilings(book: Book, ask: Ask) -> dict[str, float]:
    """AP of the edge oracle of every exam whose rows are in the book."""
    found = {}
    for data in dict.fromkeys(record.data for record in book.records):
        store = open_dataset(data, ask.data_dir).store
        split, moments = chronological_split(store), Moments(store)
        own = [row for record in book.records if record.data == data for row in record.rows]
        asked = {
            (row["setting"], row["negatives"])
            for row in own
            if "setting" in row and row.get("split") == "test"
        }
        for setting, negatives in sorted(asked):
            exam = link_exam(store, split, "test", setting, negatives)
            found[f"{data} {setting} {negatives}"] = round(ceiling(moments, exam).edge_oracle_ap, 4)
    return found


def publish(book: Book, folder: Path) -> list[Path]:
    """The page, its tables in three forms, and the results they are made of."""
    book.write(folder / book.study / RESULTS)
    return [*write_sheet(sheet(book), folder / book.study, book.study), folder / book.study / RESULTS]
