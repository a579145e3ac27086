"""A run's page: what its folder holds, what its data tell, and the forgetting that its weights learned."""

from collections.abc import Callable
from pathlib import Path

import torch

from dygmamba.api.evaluation import require_test_split, warn_if_unfinished
from dygmamba.core.errors import ConfigError, DygError
from dygmamba.data.events.splits import Split
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.forgetting import find_known_law, load_forgetting, measure_forgetting, save_forgetting
from dygmamba.explain.pairs import find_strongest_events
from dygmamba.explain.shapley import attribute_trees
from dygmamba.report.dataset_summary import TimeFormatter
from dygmamba.report.error_analysis import (
    REASONS_PER_EXAMPLE,
    ExampleReason,
    load_examples,
    save_examples,
    select_examples,
)
from dygmamba.report.run_report import build_data_sections, write_report
from dygmamba.report.run_sections import REPORT_TASKS
from dygmamba.runs.calibration import load_calibration
from dygmamba.runs.opening import OpenRun, open_run, open_run_dataset, read_split
from dygmamba.runs.test_predictions import load_predictions, recompute_predictions, save_predictions
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.node import split_for_nodes

MessageCallback = Callable[[str], None]


def ignore_message(sentence: str) -> None:
    """Nobody listens."""


def write_run_page(run: OpenRun) -> Path:
    """The page of a run that has just ended, its data and weights at hand."""
    save_example_predictions(run)
    return assemble_page(run.folder, run.dataset, run.stream.split)


def write_full_page(
    path: Path, out: Path | None = None, data_dir: Path | None = None, say: MessageCallback = ignore_message
) -> Path:
    """A run's results, data, errors, curves, learned forgetting and settings as one page that opens offline."""
    require_test_split(path, "a page is written of")
    warn_if_unfinished(path)
    folder = RunDirectory(path)
    folder.config()  # a folder that is no run is said now
    try:
        dataset = open_run_dataset(folder, data_dir)
    except DygError as error:
        say(f"the page says nothing of the data: {error}")
        return write_report(folder, out)
    if folder.task == "link":
        _measure_missing(folder, dataset, say)
    by = read_split(folder)
    split = by.split(dataset.store) if folder.task == "link" else split_for_nodes(dataset.store, by)
    return assemble_page(folder, dataset, split, out)


def assemble_page(folder: RunDirectory, dataset: Dataset, split: Split, out: Path | None = None) -> Path:
    """The page out of what is kept in the folder, and what the data tell."""
    kept = (load_predictions(folder), load_examples(folder) or (), load_calibration(folder))
    found = build_data_sections(dataset, split, REPORT_TASKS[folder.task], *kept)
    return write_report(folder, out, found, TimeFormatter.of(dataset).dated)


def save_example_predictions(run: OpenRun) -> None:
    """Keep some answers of a link run, with reasons where they are cheap, if none are kept yet."""
    answers = load_predictions(run.folder) if run.folder.task == "link" else None
    if answers is None or load_examples(run.folder) is not None:
        return
    known = load_calibration(run.folder)
    for why in (_explain_by_features, _explain_by_events):
        try:
            return save_examples(
                run.folder,
                select_examples(answers, run.dataset, lambda pairs, why=why: why(run, pairs), known),
            )
        except ConfigError:  # not of this model
            continue
    save_examples(run.folder, select_examples(answers, run.dataset, None, known))


def _explain_by_features(run: OpenRun, pairs: PairBatch) -> list[list[ExampleReason]]:
    """What trees look at."""
    return attribute_trees(run.scorer, run.stream, pairs.to(run.stream.device)).strongest(REASONS_PER_EXAMPLE)


def _explain_by_events(run: OpenRun, pairs: PairBatch) -> list[list[ExampleReason]]:
    """Which events a model that reads lists of them goes by."""
    return find_strongest_events(run, pairs, REASONS_PER_EXAMPLE)


def _measure_missing(folder: RunDirectory, dataset: Dataset, say: MessageCallback) -> None:
    """Measure what the folder lacks: answers, examples, forgetting; what cannot be measured is said."""
    kept = (load_predictions(folder), load_examples(folder), load_forgetting(folder))
    if None not in kept:
        return
    try:
        run = open_run(folder.path, torch.device("cpu"), dataset=dataset)
        if kept[0] is None:
            say("asking the test's questions again, for the page")
            save_predictions(folder, recompute_predictions(run))
        save_example_predictions(run)
        if kept[2] is None:
            save_forgetting(folder, measure_forgetting(run.scorer, run.stream, find_known_law(run.dataset)))
    except DygError as error:
        say(f"no forgetting curve: {error}")
