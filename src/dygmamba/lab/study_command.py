"""Parts that the studies with a command of their own share: options, first events, and the files of records."""

import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dygmamba.core.files.writing import make_folder
from dygmamba.data.storage.dataset import Dataset
from dygmamba.report.result_records import ResultRecord, StudyResults

PATH_OPTIONS = ("--out", "--data-dir")  # folders of the machine that runs a command


def make_study_parser(command: str, description: str, file: str, models: list[str] | None) -> ArgumentParser:
    """Create a parser with the options of every study that trains runs.

    Args:
        command: The command line before the options.
        description: What the study does, for the help.
        file: Name of the study: its records are `file`.json, its runs below runs/`file`.
        models: Models that are trained by default; None if they must be given.
    """
    parser = ArgumentParser(prog=command, description=description)
    parser.add_argument(
        "--streams", type=_split_names, required=True, help="Train on these datasets, separated by commas."
    )
    parser.add_argument(
        "--models",
        type=_split_names,
        required=models is None,
        default=models,
        help="Train these models, separated by commas.",
    )
    parser.add_argument(
        "--seeds", type=_split_names, default=["0"], help="Train with these seeds, separated by commas."
    )
    parser.add_argument("--data", type=Path, help="Look for datasets in this folder.")
    parser.add_argument("--runs", type=Path, default=Path("runs", file), help="Keep run directories here.")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/research/results"), help=f"Write {file}.json here."
    )
    parser.add_argument("--jobs", type=int, default=1, help="Train this many runs at the same time.")
    parser.add_argument("--threads", type=int, default=1, help="Give each run this many threads.")
    parser.add_argument("--device", default="auto", help="Run on auto, cpu or cuda.")
    parser.add_argument("--epochs", type=int, help="Train at most this many epochs.")
    return parser


def _split_names(text: str) -> list[str]:
    return text.split(",")


def format_study_command(command: str, options: Namespace) -> str:
    """Return the command line that trains the same runs again, for the file of the records."""
    named = (f"--{name} {','.join(getattr(options, name))}" for name in ("streams", "models", "seeds"))
    return " ".join([command, *named])


def drop_path_options(command: str) -> str:
    """Return a command without the options that name folders."""
    kept, words = [], iter(shlex.split(command))
    for word in words:
        if word in PATH_OPTIONS:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in PATH_OPTIONS)):
            kept.append(word)
    return shlex.join(kept)


def take_first_events(dataset: Dataset, events: int | None) -> Dataset:
    """Return the dataset, or its first events as a dataset of their own if it has more."""
    if events is None or len(dataset) <= events:
        return dataset
    return Dataset.from_events(dataset.name, dataset.store[:events], dataset.ids, dataset.origin)


def merge_records(
    path: Path, command: str, records: Iterable[ResultRecord], key: Callable[[ResultRecord], Any]
) -> None:
    """Add records to a file of a study, sorted by their key; a stored record with the same key is replaced."""
    make_folder(path.parent)
    stored = StudyResults.read(path).records if path.exists() else ()
    merged = {key(one): one for one in (*stored, *records)}
    StudyResults(path.stem, command, tuple(merged[one] for one in sorted(merged))).write(path)
