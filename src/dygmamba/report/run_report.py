"""One self-contained page per run, for the person who asks: no script, no request, it opens offline and prints.

What only a run's data can tell its page: the data themselves, and where, when and how the model errs on them.
"""

from collections.abc import Sequence
from pathlib import Path

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.data.events.splits import Split
from dygmamba.data.events.statistics import format_duration
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.forgetting import Forgetting, load_forgetting
from dygmamba.report.dataset_summary import build_dataset_section
from dygmamba.report.document import Section
from dygmamba.report.error_analysis import (
    Example,
    ReliabilityBin,
    bin_by_score,
    build_calibration_section,
    build_error_over_time_section,
    build_examples_section,
    build_node_errors_section,
)
from dygmamba.report.html import render_template
from dygmamba.report.run_sections import (
    REPORT_TASKS,
    Card,
    Records,
    ReportTask,
    build_baselines_section,
    build_forgetting_section,
    build_results_section,
    build_seeds_section,
    build_training_section,
)
from dygmamba.runs.test_predictions import StoredPredictions, logits_to_scores
from dygmamba.tasks.calibration import Calibration

REPORT_FILE, REPORT_TEMPLATE = "report.html", "run.html"


def write_report(
    run: RunDirectory, out: Path | None = None, found: Sequence[Section] = (), dated: bool = False
) -> Path:
    """Build the page from what the run folder holds, and put it there (or at `out`), whole or not at all.

    `found` is what only the data can tell (findings.py), and `dated` whether their times are dates.
    """
    path = run.path / REPORT_FILE if out is None else out
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file with `out`")
    page = render_report(run, found, dated)
    make_folder(path.parent)
    write_text(path, page)
    return path


def render_report(run: RunDirectory, found: Sequence[Section] = (), dated: bool = False) -> str:
    """The page as text."""
    config, forgetting = run.config(), load_forgetting(run)
    try:
        epochs, about, verdict = run.metrics(), config["run"], run.verdict()
        results = [*run.results(), *run.rules()]
        task, own = REPORT_TASKS[run.task], about["model"]
        sections = [
            build_results_section(results, own, task),
            build_baselines_section(results, own, verdict.get("sentence", "")),
            *found,
            build_training_section(epochs, task.watched, task.caption),
            build_seeds_section(run, task.watched),
            build_forgetting_section(forgetting, dated),
        ]
        cards = [*task.cards(results, own), *build_run_cards(epochs, task.watched, forgetting)]
        title, seed = f"{own} on {about['data']}", about["seed"]
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{run.path} holds a damaged file ({error!r}); restore it or train again") from error
    return render_template(
        REPORT_TEMPLATE,
        title=title,
        seed=seed,
        cards=cards,
        sections=[section for section in sections if section is not None],
        settings=config,
        folder=run.path.name,
    )


def build_run_cards(epochs: Records, watched: str, forgetting: Forgetting | None) -> list[Card]:
    """What was learned of forgetting, and how long it took."""
    found = []
    if forgetting and forgetting.closeness:
        close = forgetting.closeness
        note = f"correlation with the law; mean gap {close.mean_gap:.3f}"
        found.append(Card("Learned forgetting", f"{close.correlation:.3f}", note))
    if epochs:
        seconds = format_duration(float(f"{sum(entry['seconds'] for entry in epochs):.3g}"))
        best = max(epochs, key=lambda entry: entry[f"val_{watched}"])["epoch"] + 1
        note = f"{seconds} in all; best validation {watched.upper()} in epoch {best}"
        found.append(Card("Epochs", str(len(epochs)), note))
    return found


def build_data_sections(
    dataset: Dataset,
    split: Split,
    task: ReportTask,
    answers: StoredPredictions | None = None,
    shown: Sequence[Example] = (),
    known: Calibration | None = None,
) -> tuple[Section, ...]:
    """The sections in the order of a page; of the answers none where there are none.

    `known` makes probabilities of the logits.
    """
    if answers is None:
        return (build_dataset_section(dataset, split),)
    asked, others = answers.events, " and as many random pairs of the same moments" if task.ranked else ""
    among = f"Scores of {asked:,} events of the test{others}."
    if task.ranked:
        among += " Half of these questions are real; where real ones are rarer, so is the share that is true."
    if asked < answers.total:
        among += f" (The test has {answers.total:,} events; those asked about lie evenly among them.)"
    sections = (
        build_dataset_section(dataset, split),
        build_error_over_time_section(answers, dataset, task.ranked),
        build_node_errors_section(answers, dataset, known) if task.ranked else None,
        build_calibration_section(_bin_scores(answers, known), among),
        build_examples_section(shown),
    )
    return tuple(section for section in sections if section is not None)


def _bin_scores(answers: StoredPredictions, known: Calibration | None) -> dict[str, list[ReliabilityBin]]:
    """The scores as they are given; of a calibrated run also what the logits alone would have said."""
    raw = bin_by_score(answers, logits_to_scores(answers.logit, None))
    if known is None:
        return {"this run": raw}
    return {
        "before calibration": raw,
        "scores": bin_by_score(answers, logits_to_scores(answers.logit, known)),
    }
