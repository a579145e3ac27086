"""The studies of the paper from Python."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dygmamba.report.sheet_page import write_sheet
from dygmamba.report.sheets import Sheet
from dygmamba.studies.compare import compare_runs
from dygmamba.studies.jobs import Ask
from dygmamba.studies.pool import Event, require_done
from dygmamba.studies.records import Book
from dygmamba.studies.reproduce import Place, lacking, prepare, publish, run


def reproduce(
    study: str,
    *,
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    seeds: Sequence[int] = (0,),
    variants: Sequence[str] | None = None,
    out: Path | str = "studies",
    device: str = "auto",
    workers: int | None = None,
    data_dir: Path | str | None = None,
    progress: Callable[[Event], None] | None = None,
    **settings: Any,
) -> Book:
    """Run a study of the paper again and write its page; runs that are done already are taken as they are.

    Studies: link, node, ablation, length, efficiency, convergence, robustness, sensitivity, case-study, large. The page
    and the tables are in `out`/STUDY. Killed at any point, the same call goes on.

    >>> import dygmamba as dm
    >>> book = dm.reproduce("link", datasets=["generated"], models=["recency"], out="studies")
    >>> len(book.records)
    1
    """
    ask = Ask(
        datasets, models, tuple(seeds), variants, settings, None if data_dir is None else Path(data_dir)
    )
    place = Place(Path(out), device, workers)
    if (made := lacking(study, ask)) is not None:
        made.make(ask.data_dir)
    jobs, _ = prepare(study, ask, place)
    book, failed = run(study, ask, place, f"dygmamba.reproduce({study!r})", progress or (lambda event: None))
    publish(book, place.out)
    require_done(failed, jobs)
    return book


def compare(runs: Sequence[Path | str], *, out: Path | str | None = None) -> Sheet:
    """Finished runs beside one another: mean and spread over seeds, rank, paired test, published values, curves.

    Runs that differ by their seed alone are one line. With `out`, a folder, a page and its tables are written there.

    >>> import dygmamba as dm
    >>> runs = dm.train(dm.generate(nodes=40, events=600, communities=4), "graphmixer", epochs=1, neighbors=4)
    >>> dm.compare([run.path for run in runs]).sections[0].grids[0].columns[:2]
    ('model', 'AP')
    """
    sheet = compare_runs([Path(run) for run in runs])
    if out is not None:
        write_sheet(sheet, Path(out), "compare")
    return sheet
