"""Report pages: of a run (results, data, errors, learned decay), and of several runs compared."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from dygmamba.api.evaluation import require_test_split
from dygmamba.api.requests.prediction import ReportRequest
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.costs import Costs
from dygmamba.core.errors import ConfigError, DygError
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.splits import Split
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.feature_use import load_feature_use, measure_feature_use, save_feature_use
from dygmamba.explain.forgetting import find_known_law, load_forgetting, measure_forgetting, save_forgetting
from dygmamba.explain.pairs import find_strongest_events
from dygmamba.explain.shapley import attribute_trees
from dygmamba.history.view import PairBatch
from dygmamba.report.comparison import compare_runs
from dygmamba.report.document import Document as Document
from dygmamba.report.document import ReportTable as ReportTable
from dygmamba.report.error_analysis import (
    REASONS_PER_EXAMPLE,
    ExampleReason,
    load_examples,
    save_examples,
    select_examples,
)
from dygmamba.report.html import write_document
from dygmamba.report.node_sections import find_report_task
from dygmamba.report.run_report import build_data_sections, write_report
from dygmamba.runs.calibration import load_calibration, load_saved_calibration
from dygmamba.runs.opening import open_run, open_run_dataset, warn_if_unfinished
from dygmamba.runs.recipes import OpenRun
from dygmamba.runs.run_config import RunConfig, read_split
from dygmamba.runs.run_list import find_comparable_runs
from dygmamba.runs.stored_predictions import (
    StoredPredictions,
    load_predictions,
    recompute_predictions,
    save_predictions,
)
from dygmamba.tasks.node import split_for_nodes

COMPARE_PAGE = "compare.html"


def write_run_page(run: OpenRun) -> Path:
    """Write the page of a run that has just ended, with its data and weights at hand."""
    _save_explanations(run)
    return assemble_page(run.folder, run.dataset, run.stream.split)


def run_report(request: ReportRequest, progress: Progress = SILENT) -> Path:
    """Write a run's results, data, errors, curves, learned decay and settings as one page that opens offline.

    What the run directory lacks is measured first. Without the dataset the page has no sections about it.
    """
    folder, out = RunDirectory(request.run), request.out
    require_test_split(folder, "write the page of")
    warn_if_unfinished(folder)
    try:
        dataset = open_run_dataset(RunConfig.read(folder), request.data_dir)
    except DygError as error:
        progress.message(f"the page has no section about the data: {error}")
        return write_report(folder, out)
    if folder.task == "link":
        _measure_missing(folder, dataset, progress)
    rule = read_split(folder)
    split = rule.split(dataset.store) if folder.task == "link" else split_for_nodes(dataset.store, rule)
    return assemble_page(folder, dataset, split, out, request.parsed_costs)


def assemble_page(
    folder: RunDirectory, dataset: Dataset, split: Split, out: Path | None = None, costs: Costs | None = None
) -> Path:
    """Write the page from the files of the run directory and from the dataset."""
    saved = (load_predictions(folder), load_examples(folder) or (), load_saved_calibration(folder))
    sections = build_data_sections(dataset, split, find_report_task(folder), *saved, costs)
    return write_report(folder, out, sections, dataset.is_dated)


def _save_explanations(run: OpenRun) -> None:
    """Save examples of the predictions of a link run, and what trees use, unless the run directory has them."""
    predictions = load_predictions(run.folder) if run.folder.task == "link" else None
    if predictions is None:
        return
    if load_examples(run.folder) is None:
        _save_examples(run, predictions)
    if load_feature_use(run.folder) is None and (use := measure_feature_use(run, predictions)) is not None:
        save_feature_use(run.folder, use)


def _save_examples(run: OpenRun, predictions: StoredPredictions) -> None:
    """Save some predictions, explained where that is cheap."""
    new_ends = predictions.find_new_ends(run.dataset.store, run.stream.split)
    scores = predictions.score(load_calibration(run.folder), new_ends)
    for explain in (_explain_by_features, _explain_by_events):
        try:
            examples = select_examples(predictions, run.dataset, partial(explain, run), scores)
        except ConfigError:  # this model cannot be explained this way
            continue
        return save_examples(run.folder, examples)
    save_examples(run.folder, select_examples(predictions, run.dataset, None, scores))


def _explain_by_features(run: OpenRun, pairs: PairBatch) -> list[list[ExampleReason]]:
    return attribute_trees(run.scorer, run.stream, pairs.to(run.stream.device)).strongest(REASONS_PER_EXAMPLE)


def _explain_by_events(run: OpenRun, pairs: PairBatch) -> list[list[ExampleReason]]:
    return find_strongest_events(run, pairs, REASONS_PER_EXAMPLE)


def _measure_missing(folder: RunDirectory, dataset: Dataset, progress: Progress) -> None:
    """Measure what the run directory lacks: test predictions, examples, what trees use, learned decay."""
    predictions, forgetting = load_predictions(folder), load_forgetting(folder)
    # what trees use needs no check of its own: they have no learned decay, so it is always missing
    if None not in (predictions, load_examples(folder), forgetting):
        return
    try:
        run = open_run(folder, torch.device("cpu"), dataset=dataset)
        if predictions is None:
            progress.message("scoring the test period again, for the page")
            save_predictions(folder, recompute_predictions(run))
        _save_explanations(run)
        if forgetting is None:
            save_forgetting(folder, measure_forgetting(run.scorer, run.stream, find_known_law(run.dataset)))
    except DygError as error:
        progress.message(f"no decay curve: {error}")


@check_arguments
def compare(runs: Sequence[Path | str], *, out: Path | str | None = None) -> Document:
    """Compare finished runs: mean and spread over seeds, rank, paired test, published values, curves.

    Runs that differ only in their seed share a line. The name of a dataset stands for all tested runs on its split
    under runs/. With `out`, a folder, a page and its tables are written there.

    >>> import dygmamba as dm
    >>> runs = dm.train(dm.generate(nodes=40, events=600, communities=4), "graphmixer", epochs=1, neighbors=4)
    >>> dm.compare([run.path for run in runs]).sections[0].tables[0].columns[0]
    'model'
    """
    folders = list(dict.fromkeys(path for run in runs for path in find_comparable_runs(run)))
    for run in folders:
        require_test_split(run, "compare")
    document = compare_runs(folders)
    if out is not None:
        write_document(document, Path(out), Path(COMPARE_PAGE).stem)
    return document
