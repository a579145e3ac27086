"""What only a run's data can tell its page: the data themselves, and where, when and how the model errs on them."""

from collections.abc import Sequence

from dygmamba.data.splits import Split
from dygmamba.data.store import Dataset
from dygmamba.report.examples import Example, examples_section
from dygmamba.report.mistakes import by_node, calibration, over_time, reliable
from dygmamba.report.results import Task
from dygmamba.report.sheets import Section
from dygmamba.report.summary import data_section
from dygmamba.runs.tested import Answers


def findings(
    dataset: Dataset,
    split: Split,
    task: Task,
    answers: Answers | None = None,
    shown: Sequence[Example] = (),
) -> tuple[Section, ...]:
    """The sections in the order of a page; of the answers none where there are none."""
    if answers is None:
        return (data_section(dataset, split),)
    asked, others = answers.events, " and as many random pairs of the same moments" if task.ranked else ""
    among = f"Scores of {asked:,} events of the test{others}."
    if task.ranked:
        among += " Half of these questions are real; where real ones are rarer, so is the share that is true."
    if asked < answers.total:
        among += f" (The test has {answers.total:,} events; those asked about lie evenly among them.)"
    sections = (
        data_section(dataset, split),
        over_time(answers, dataset, task.ranked),
        by_node(answers, dataset) if task.ranked else None,
        calibration({"this run": reliable(answers)}, among),
        examples_section(shown),
    )
    return tuple(section for section in sections if section is not None)
