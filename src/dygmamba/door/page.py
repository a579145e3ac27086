"""A run's page, with the forgetting that its weights learned."""

from collections.abc import Callable
from pathlib import Path

import torch

from dygmamba.door.states import require_test, tell_unfinished
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import ConfigError, DygError
from dygmamba.explain.forgetting import known_law, load_forgetting, measure_forgetting, save_forgetting
from dygmamba.report.page import packages, write_report
from dygmamba.runs.opening import open_run

Say = Callable[[str], None]


def silent(sentence: str) -> None:
    """Nobody listens."""


def page_if_possible(run: RunFolder, say: Say = silent) -> Path | None:
    """The run's report.html, or a sentence on what drawing it needs: those packages are optional."""
    try:
        return write_report(run)
    except ConfigError as error:
        say(f"no report: {error}, then: `dygmamba.open('{run.path}').report()`")
        return None


def full_page(path: Path, out: Path | None = None, data_dir: Path | None = None, say: Say = silent) -> Path:
    """A run's results, curves, learned forgetting and settings as one page that opens offline."""
    require_test(path, "a page is written of")
    tell_unfinished(path)
    packages()  # a missing package is said before anything is computed
    folder = RunFolder(path)
    if folder.task == "link" and load_forgetting(folder) is None:
        _probe(folder, data_dir, say)
    return write_report(folder, out)


def _probe(folder: RunFolder, data_dir: Path | None, say: Say) -> None:
    """Measure the forgetting of a run's best weights; where that cannot be, say why and go on without."""
    try:
        run = open_run(folder.path, torch.device("cpu"), data_dir)
        found = measure_forgetting(run.scorer, run.stream, known_law(run.dataset))
    except DygError as error:
        say(f"no forgetting curve: {error}")
        return
    save_forgetting(folder, found)
