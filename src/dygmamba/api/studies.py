"""The studies of the paper from Python.

A search for settings, from Python and for the command line.

What a stream's test allows, what was published above it, and what a model's score depends on.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dygmamba.api.validation import choose_model
from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.fit import Interrupted, Reporter, Trainer
from dygmamba.lab.audit import Audit, audit_stream
from dygmamba.lab.audit_model import audit_named_model, audit_run
from dygmamba.lab.pool import JobEvent, raise_if_failed
from dygmamba.lab.reproduction import (
    ExecutionOptions,
    find_missing_dataset,
    prepare_jobs,
    run,
    write_study_page,
)
from dygmamba.lab.studies import StudyRequest
from dygmamba.report.comparison import compare_runs
from dygmamba.report.document import Document
from dygmamba.report.html import write_document
from dygmamba.report.result_records import StudyResults
from dygmamba.report.tuning_page import build_tuning_sheet
from dygmamba.runs.opening import SplitSpec, build_link_stream, choose_device, open_run, parse_split
from dygmamba.runs.tuning import (
    PAGE_NAME,
    TrialObserver,
    Tuning,
    TuningBudget,
    TuningRequest,
    require_file_name,
    search,
    study_folder,
    write_tuning_result,
)
from dygmamba.runs.tuning_trials import JOURNAL_FILE


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
    progress: Callable[[JobEvent], None] | None = None,
    **settings: Any,
) -> StudyResults:
    """Run a study of the paper again and write its page; runs that are done already are taken as they are.

    Studies: link, node, ablation, length, efficiency, convergence, robustness, sensitivity, case-study, large. The page
    and the tables are in `out`/STUDY. Killed at any point, the same call goes on.

    >>> import dygmamba as dm
    >>> book = dm.reproduce("link", datasets=["generated"], models=["recency"], out="studies")
    >>> len(book.records)
    1
    """
    ask = StudyRequest(
        datasets, models, tuple(seeds), variants, settings, None if data_dir is None else Path(data_dir)
    )
    place = ExecutionOptions(Path(out), device, workers)
    if (made := find_missing_dataset(study, ask)) is not None:
        made.make(ask.data_dir)
    jobs, _ = prepare_jobs(study, ask, place)
    book, failed = run(study, ask, place, f"dygmamba.reproduce({study!r})", progress or (lambda event: None))
    write_study_page(book, place.out)
    raise_if_failed(failed, jobs)
    return book


def compare(runs: Sequence[Path | str], *, out: Path | str | None = None) -> Document:
    """Finished runs beside one another: mean and spread over seeds, rank, paired test, published values, curves.

    Runs that differ by their seed alone are one line. With `out`, a folder, a page and its tables are written there.

    >>> import dygmamba as dm
    >>> runs = dm.train(dm.generate(nodes=40, events=600, communities=4), "graphmixer", epochs=1, neighbors=4)
    >>> dm.compare([run.path for run in runs]).sections[0].grids[0].columns[:2]
    ('model', 'AP')
    """
    sheet = compare_runs([Path(run) for run in runs])
    if out is not None:
        write_document(sheet, Path(out), "compare")
    return sheet


DEFAULT_TRIALS = 30  # where nothing bounds a search


def tune(
    data: Dataset | str,
    model: str | None = None,
    *,
    trials: int | None = None,
    hours: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    seed: int = 0,
    preset: str | None = None,
    split: SplitSpec | None = None,
    device: str = "auto",
    studies: Path | str = "studies",
    data_dir: Path | str | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Tuning:
    """Search for better settings: short trainings, judged on validation alone, the best of them kept as a preset.

    `trials` are counted over the whole study, 30 unless `hours` bound it; the first is the model as it is. The study is
    the folder `studies`/tune-DATA-MODEL: killed, stopped or to be made longer, the same call goes on, and with `resume`
    it is an error if there is nothing to go on with. `settings` are fixed and not searched; epochs and patience are
    those of a trial. `train(data, preset=tuning.preset)` takes what was found, and is the first to see the test;
    `tuning.page` shows all trials.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> found = dm.tune(data, "trees", trials=2, epochs=1, rounds=2, neighbors=0, scales=4)
    >>> len(found.trials), found.preset.name
    (2, 'preset.toml')
    """
    folder = None if data_dir is None else Path(data_dir)
    dataset = open_dataset(data, folder) if isinstance(data, str) else data
    where = choose_device(device)
    chosen = (model, preset)
    if model is None:
        pick = choose_model(where, "link", settings, preset)
        chosen = (pick.model, pick.size)
    what = TuningRequest(
        dataset, str(chosen[0]), where, seed, settings, chosen[1], parse_split(dataset, split)
    )
    watching = _ignore_trial if progress is None else _TrialEpochs(progress)
    return watched_tune(
        what, Path(studies), watching, trials, hours, None if out is None else Path(out), resume
    )


def watched_tune(
    what: TuningRequest,
    studies: Path,
    watching: TrialObserver,
    trials: int | None = None,
    hours: float | None = None,
    out: Path | None = None,
    resume: bool = False,
) -> Tuning:
    """The search, followed by `watching`; stopped before the first trial was done, an Interrupted."""
    check_search_limits(trials, hours)
    require_file_name(out)
    folder = study_folder(studies, what.dataset.name, what.model)
    if resume and not (folder / JOURNAL_FILE).exists():
        raise ConfigError(f"there is no study in {folder} to go on with; leave out `resume` to begin one")
    most = DEFAULT_TRIALS if trials is None and hours is None else trials
    until = None if hours is None else time.monotonic() + 3600 * hours
    journal, ended = search(what, folder, TuningBudget(most, until), watching)
    found = write_tuning_result(what, journal, ended, out)
    if found is None:
        raise Interrupted(
            f"stopped before a trial was finished, so there is no preset yet; the same call goes on in {folder}"
        )
    write_document(build_tuning_sheet(what, found), folder, PAGE_NAME)
    return found


def check_search_limits(trials: int | None, hours: float | None) -> None:
    """Refuse a bound that leaves no time for a trial."""
    if trials is not None and trials < 1:
        raise ConfigError(f"`trials` must be at least 1, got {trials}")
    if hours is not None and not 0 < hours <= 24 * 365:
        raise ConfigError(f"`hours` must be above 0 and at most a year's, got {hours:g}")


def _ignore_trial(fit: Trainer, name: str) -> AbstractContextManager[Reporter]:
    return nullcontext(Reporter())


class _TrialEpochs:
    """A function is told of every epoch of every trial."""

    def __init__(self, progress: Callable[[dict[str, Any]], None]) -> None:
        self.progress = progress

    def __call__(self, fit: Trainer, name: str) -> AbstractContextManager[Reporter]:
        """The trial's name beside each epoch's entry."""
        return nullcontext(Reporter(epoch=lambda entry: self.progress({"trial": name, **entry})))


if TYPE_CHECKING:
    from dygmamba.api.run import Run
else:
    Run = Any


def audit(
    data: "Dataset | str | Path",
    model: str | None = None,
    *,
    run: "Run | Path | str | None" = None,
    data_dir: Path | str | None = None,
    **settings: Any,
) -> Audit:
    """Hold a stream's test against oracles and simple rules, and a model or a trained run to what it may depend on.

    `data` is a dataset, its name, a file, or a run folder, which brings its own. The answer has `ceilings`, `checks`,
    `sound`, `to_dict()` and `page(out)`.

    >>> import dygmamba as dm
    >>> found = dm.audit(dm.generate(nodes=40, events=800, communities=4), "edgebank")
    >>> found.sound, [check.name for check in found.checks][:4]
    (True, ['future', 'batch', 'order', 'padding'])
    """
    return watched_audit(data, model, run=run, data_dir=data_dir, settings=settings)


def watched_audit(
    data: "Dataset | str | Path",
    model: str | None,
    *,
    run: "Run | Path | str | None",
    data_dir: Path | str | None,
    settings: dict[str, Any],
    watch: Any = lambda doing: None,
) -> Audit:
    """The same, with somebody told what is being done."""
    folder, cpu = None if data_dir is None else Path(data_dir), torch.device("cpu")
    if run is None and isinstance(data, str | Path) and (Path(data) / "config.toml").is_file():
        data, run = "", data
    if model is not None and run is not None:
        raise ConfigError("give a model by name or a run, not both; a run brings its own model")
    if model is None and settings:
        raise ConfigError(f"settings ({', '.join(settings)}) are of a model; name it with `model`")
    if run is not None:
        path = run if isinstance(run, str | Path) else run.path
        opened = open_run(Path(path), cpu, folder, None if data == "" else _open_dataset(data, folder))
        return audit_stream(opened.stream, opened.dataset.name, audit_run(opened, Path(path)), watch=watch)
    dataset = _open_dataset(data, folder)
    stream = build_link_stream(dataset, cpu)
    subject = None if model is None else audit_named_model(model, settings, stream, dataset.name)
    return audit_stream(stream, dataset.name, subject, watch=watch)


def _open_dataset(data: "Dataset | str | Path", folder: Path | None) -> Dataset:
    """A dataset, by name or in a file."""
    return data if isinstance(data, Dataset) else open_dataset(str(data), folder)
