"""A run's page: what its folder holds, what its data tell, and the forgetting that its weights learned."""

from collections.abc import Callable
from pathlib import Path

import torch

from dygmamba.data.splits import Split
from dygmamba.data.store import Dataset
from dygmamba.door.states import require_test, tell_unfinished
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import ConfigError, DygError
from dygmamba.explain.forgetting import known_law, load_forgetting, measure_forgetting, save_forgetting
from dygmamba.explain.reasons import reasons
from dygmamba.report.calendar import Calendar
from dygmamba.report.examples import REASONS, Reason, examples, load_examples, save_examples
from dygmamba.report.findings import findings
from dygmamba.report.page import write_report
from dygmamba.report.results import TASKS
from dygmamba.runs.opening import OpenRun, open_data, open_run, split_of
from dygmamba.runs.tested import ask_again, load_answers, save_answers
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.node import node_split

Say = Callable[[str], None]


def silent(sentence: str) -> None:
    """Nobody listens."""


def page_of(run: OpenRun) -> Path:
    """The page of a run that has just ended, its data and weights at hand."""
    choose_examples(run)
    return written(run.folder, run.dataset, run.stream.split)


def full_page(path: Path, out: Path | None = None, data_dir: Path | None = None, say: Say = silent) -> Path:
    """A run's results, data, errors, curves, learned forgetting and settings as one page that opens offline."""
    require_test(path, "a page is written of")
    tell_unfinished(path)
    folder = RunFolder(path)
    folder.config()  # a folder that is no run is said now
    try:
        dataset = open_data(folder, data_dir)
    except DygError as error:
        say(f"the page says nothing of the data: {error}")
        return write_report(folder, out)
    if folder.task == "link":
        _complete(folder, dataset, say)
    by = split_of(folder)
    split = by.split(dataset.store) if folder.task == "link" else node_split(dataset.store, by)
    return written(folder, dataset, split, out)


def written(folder: RunFolder, dataset: Dataset, split: Split, out: Path | None = None) -> Path:
    """The page out of what is kept in the folder, and what the data tell."""
    found = findings(dataset, split, TASKS[folder.task], load_answers(folder), load_examples(folder) or ())
    return write_report(folder, out, found, Calendar.of(dataset).dated)


def choose_examples(run: OpenRun) -> None:
    """Keep some answers of a link run, with reasons where the model has exact ones, if none are kept yet."""
    answers = load_answers(run.folder) if run.folder.task == "link" else None
    if answers is None or load_examples(run.folder) is not None:
        return

    def why(pairs: PairBatch) -> list[list[Reason]]:
        return reasons(run.scorer, run.stream, pairs.to(run.stream.device)).strongest(REASONS)

    try:
        chosen = examples(answers, run.dataset, why)
    except ConfigError:  # a model without exact reasons
        chosen = examples(answers, run.dataset)
    save_examples(run.folder, chosen)


def _complete(folder: RunFolder, dataset: Dataset, say: Say) -> None:
    """Measure what the folder lacks: answers, examples, forgetting; what cannot be measured is said."""
    kept = (load_answers(folder), load_examples(folder), load_forgetting(folder))
    if None not in kept:
        return
    try:
        run = open_run(folder.path, torch.device("cpu"), dataset=dataset)
        if kept[0] is None:
            say("asking the test's questions again, for the page")
            save_answers(folder, ask_again(run))
        choose_examples(run)
        if kept[2] is None:
            save_forgetting(folder, measure_forgetting(run.scorer, run.stream, known_law(run.dataset)))
    except DygError as error:
        say(f"no forgetting curve: {error}")
