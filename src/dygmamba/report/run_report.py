"""The report of a run: one self-contained HTML page without script, readable offline and on paper."""

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch import Tensor

from dygmamba.core.costs import Costs
from dygmamba.core.errors import FileError
from dygmamba.data.events.splits import Split
from dygmamba.data.events.times import format_duration, format_rough_duration
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.feature_use import load_feature_use
from dygmamba.explain.forgetting import Forgetting, load_forgetting
from dygmamba.report.dataset_summary import build_dataset_section
from dygmamba.report.decisions import NODE_WORDS, PAIR_WORDS, build_decisions_section
from dygmamba.report.document import Card, Cell, Document, ReportTable, Section
from dygmamba.report.error_analysis import (
    Example,
    ReliabilityBin,
    bin_by_score,
    build_calibration_section,
    build_error_over_time_section,
    build_examples_section,
    build_node_errors_section,
    list_reliability_bins,
)
from dygmamba.report.html import write_page
from dygmamba.report.node_sections import find_report_task
from dygmamba.report.results import find_best_value
from dygmamba.report.run_sections import (
    Records,
    ReportTask,
    build_baselines_section,
    build_feature_section,
    build_forgetting_section,
    build_query_type_section,
    build_ranking_section,
    build_results_section,
    build_training_section,
    describe_start,
)
from dygmamba.report.selection_section import CANDIDATE_KEYS, build_selection_section
from dygmamba.runs.calibration import SavedCalibration
from dygmamba.runs.stored_predictions import StoredPredictions
from dygmamba.tasks.calibration import compute_reliability
from dygmamba.tasks.metric_names import get_metric_title

REPORT_FILE = "report.html"


def write_report(
    run: RunDirectory, out: Path | None = None, data_sections: Sequence[Section] = (), is_dated: bool = False
) -> Path:
    """Write the report of a run, atomically.

    Args:
        run: The run directory.
        out: File to write; by default report.html in the run directory.
        data_sections: What `build_data_sections` returned; without the dataset the report has no such sections.
        is_dated: Whether the times of the dataset are dates.
    """
    path = run.path / REPORT_FILE if out is None else out
    return write_page(build_report_document(run, data_sections, is_dated), path, follow_links=out is not None)


def build_report_document(
    run: RunDirectory, data_sections: Sequence[Section] = (), is_dated: bool = False
) -> Document:
    """Build the report of a run; see `write_report`."""
    config, forgetting, task = run.config(), load_forgetting(run), find_report_task(run)
    epochs, verdict, selection = run.metrics(), run.verdict(), run.selection()
    results, ranking = [*run.results(), *run.rules()], run.ranking()
    _check_stored(run, task, results, ranking)
    about = config["run"]
    own = about["model"]
    sections = [
        build_results_section(results, own, task),
        build_query_type_section(results, own),
        build_ranking_section(ranking, own, run.ranking_verdict()),
        build_baselines_section(results, own, verdict),
        build_selection_section(selection),
        *data_sections,
        build_feature_section(load_feature_use(run), own, about["data"]),
        build_training_section(epochs, task, describe_start(config)),
        build_forgetting_section(forgetting, is_dated),
    ]
    return Document(
        f"{own} on {about['data']}",
        f"Run {run.path.name}, seed {about['seed']}",
        tuple(section for section in (*sections, _build_settings_section(config)) if section is not None),
        (*task.build_cards(results, own), *build_run_cards(epochs, task.watched, forgetting)),
    )


def _build_settings_section(config: dict[str, dict[str, Any]]) -> Section:
    """Show everything that is needed to repeat the run."""
    tables = (
        ReportTable.of_rows(name.replace("_", " "), "", ("", ""), map(_format_setting, values.items()))
        for name, values in config.items()
    )
    text = (
        "The page can be built again with the command `report` and the run directory; it also measures the learned "
        "decay."
    )
    return Section("Settings and environment", text, tuple(tables))


def _format_setting(setting: tuple[str, Any]) -> tuple[str, Cell]:
    name, value = setting
    return name, Cell(", ".join(map(str, value)) if isinstance(value, list) else str(value), "words")


def _check_stored(run: RunDirectory, task: ReportTask, results: Records, ranking: Records) -> None:
    """Raise FileError unless the files of a run have every entry that the sections read.

    The sections are built outside of this, so that their own errors are not taken for damage.
    """
    try:
        itemgetter("model", "data", "seed")(run.config()["run"])
        for epoch in run.metrics():
            sum(itemgetter("epoch", "loss", "seconds", f"val_{task.watched}")(epoch))
        for row in results:
            itemgetter("model", "split", "n", *(("negatives",) if "setting" in row else ()))(row)
        for row in ranking:
            itemgetter("model", "split", "setting", "candidates", "filtered", "ties", "mrr", "n", "by_type")(
                row
            )
        if selection := run.selection():
            itemgetter("reason", "run")(selection)
            format_rough_duration(selection["budget"])
            for candidate in selection["candidates"]:
                itemgetter(*CANDIDATE_KEYS)(candidate)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"the run directory {run.path} contains a damaged file ({error!r}); restore it or train again",
            code="damaged-results",
        ) from error


def build_run_cards(epochs: Records, watched: str, forgetting: Forgetting | None) -> list[Card]:
    """Show the learned decay, and the number and duration of the epochs."""
    cards = []
    if forgetting and forgetting.closeness:
        close = forgetting.closeness
        note = f"correlation with the true law; mean difference {close.mean_gap:.3f}"
        cards.append(Card("Learned decay", f"{close.correlation:.3f}", note))
    if epochs:
        duration = format_duration(float(f"{sum(entry['seconds'] for entry in epochs):.3g}"))
        values = [entry[f"val_{watched}"] for entry in epochs]
        best = epochs[values.index(find_best_value(watched, values))]["epoch"] + 1
        note = f"{duration} of training; best validation {get_metric_title(watched)} in epoch {best}"
        cards.append(Card("Epochs", str(len(epochs)), note))
    return cards


def build_data_sections(
    dataset: Dataset,
    split: Split,
    task: ReportTask,
    predictions: StoredPredictions | None = None,
    examples: Sequence[Example] = (),
    calibration: SavedCalibration | None = None,
    costs: Costs | None = None,
) -> tuple[Section, ...]:
    """Build the sections that need the dataset: the data itself, and the errors if there are predictions.

    `costs` of a false alarm and of a miss choose a threshold in the section on decisions.
    """
    if predictions is None:
        return (build_dataset_section(dataset, split),)
    others = " and as many random pairs at the same times" if task.ranked else ""
    intro = f"Scores of {predictions.events:,} test events{others}."
    if task.ranked:
        intro += " Half of these pairs are real events; if they are rarer among the pairs you score, fewer come true."
    if predictions.events < predictions.total:
        intro += f" The test has {predictions.total:,} events; those shown are spread evenly over it."
    scores = predictions.score(None)
    if calibration is not None:
        new_ends = predictions.find_new_ends(dataset.store, split)
        scores = predictions.score(calibration.calibration, new_ends)
    sections = (
        build_dataset_section(dataset, split),
        build_error_over_time_section(predictions, dataset, task.ranked),
        build_node_errors_section(predictions, dataset, scores) if task.ranked else None,
        build_calibration_section(
            _bin_scores(predictions, None if calibration is None else scores),
            intro,
            _list_new_node_bins(calibration),
            # in bins of equal mass, as in the results; the chart has bins of equal width
            compute_reliability(scores, predictions.label).ece if scores.numel() else None,
        ),
        build_decisions_section(
            predictions, dataset, scores, costs, PAIR_WORDS if task.ranked else NODE_WORDS
        ),
        build_examples_section(examples),
    )
    return tuple(section for section in sections if section is not None)


def _bin_scores(predictions: StoredPredictions, calibrated: Tensor | None) -> dict[str, list[ReliabilityBin]]:
    """Bin the raw scores; for a calibrated run also its calibrated scores."""
    raw = bin_by_score(predictions, predictions.score(None))
    if calibrated is None:
        return {"this run": raw}
    return {"before calibration": raw, "after calibration": bin_by_score(predictions, calibrated)}


def _list_new_node_bins(calibration: SavedCalibration | None) -> dict[str, list[ReliabilityBin]]:
    if calibration is None or calibration.new_nodes_before is None or calibration.new_nodes_after is None:
        return {}
    return {
        "before calibration": list_reliability_bins(calibration.new_nodes_before),
        "after calibration": list_reliability_bins(calibration.new_nodes_after),
    }
