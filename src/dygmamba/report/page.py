"""One self-contained page per run, for the person who asks: no script, no request, it opens offline and prints."""

from collections.abc import Sequence
from pathlib import Path

from dygmamba.data.statistics import as_duration
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import ConfigError, FileError
from dygmamba.explain.forgetting import Forgetting, load_forgetting
from dygmamba.files.writing import make_folder, write_text
from dygmamba.report.curves import Rows, forgetting_section, training_section
from dygmamba.report.html import fill
from dygmamba.report.results import TASKS, Card, results_section, rules_section
from dygmamba.report.seeds import seeds_section
from dygmamba.report.sheets import Section

NAME, TEMPLATE = "report.html", "run.html"


def write_report(
    run: RunFolder, out: Path | None = None, found: Sequence[Section] = (), dated: bool = False
) -> Path:
    """Build the page from what the run folder holds, and put it there (or at `out`), whole or not at all.

    `found` is what only the data can tell (findings.py), and `dated` whether their times are dates.
    """
    path = run.path / NAME if out is None else out
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file with `out`")
    page = render(run, found, dated)
    make_folder(path.parent)
    write_text(path, page)
    return path


def render(run: RunFolder, found: Sequence[Section] = (), dated: bool = False) -> str:
    """The page as text."""
    config, forgetting = run.config(), load_forgetting(run)
    try:
        epochs, about, verdict = run.metrics(), config["run"], run.verdict()
        results = [*run.results(), *run.rules()]
        task, own = TASKS[run.task], about["model"]
        sections = [
            results_section(results, own, task),
            rules_section(results, own, verdict.get("sentence", "")),
            *found,
            training_section(epochs, task.watched, task.caption),
            seeds_section(run, task.watched),
            forgetting_section(forgetting, dated),
        ]
        cards = [*task.cards(results, own), *run_cards(epochs, task.watched, forgetting)]
        title, seed = f"{own} on {about['data']}", about["seed"]
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{run.path} holds a damaged file ({error!r}); restore it or train again") from error
    return fill(
        TEMPLATE,
        title=title,
        seed=seed,
        cards=cards,
        sections=[section for section in sections if section is not None],
        settings=config,
        folder=run.path.name,
    )


def run_cards(epochs: Rows, watched: str, forgetting: Forgetting | None) -> list[Card]:
    """What was learned of forgetting, and how long it took."""
    found = []
    if forgetting and forgetting.closeness:
        close = forgetting.closeness
        note = f"correlation with the law; mean gap {close.mean_gap:.3f}"
        found.append(Card("Learned forgetting", f"{close.correlation:.3f}", note))
    if epochs:
        seconds = as_duration(float(f"{sum(entry['seconds'] for entry in epochs):.3g}"))
        best = max(epochs, key=lambda entry: entry[f"val_{watched}"])["epoch"] + 1
        note = f"{seconds} in all; best validation {watched.upper()} in epoch {best}"
        found.append(Card("Epochs", str(len(epochs)), note))
    return found
