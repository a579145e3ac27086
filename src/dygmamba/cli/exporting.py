"""`dygmamba data export`: a dataset into a file that others read."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dygmamba.cli import early
from dygmamba.cli.console import emit_json, note, tell
from dygmamba.cli.data import DataDir, Json
from dygmamba.cli.words import spoken
from dygmamba.errors import FileError


def export(
    data: Annotated[str, typer.Argument(help="Name of a dataset, or its file.")],
    to: Annotated[
        Path,
        typer.Option(
            help="File to write: .csv, .jsonl, .parquet, .arrow, .feather or .npz.", show_default=False
        ),
    ],
    raw: Annotated[
        bool, typer.Option("--raw", help="CSV cells as they are, even if a spreadsheet would run them.")
    ] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write a dataset's events, in your own ids and times, into a file in the format of its ending."""
    require_place(to, "--to")
    early.require_dataset(data, data_dir)

    from dygmamba.data.export import check_ending, export_dataset
    from dygmamba.data.library import open_dataset

    check_ending(to)
    dataset = open_dataset(data, data_dir)
    done = export_dataset(dataset, to, raw)
    again = f"dygmamba data import {to}{_words(done.options)}"
    for said in done.lost:
        note(f"note: {spoken(said)}")
    if json:
        facts = {"path": str(done.path), "format": done.format, "events": len(dataset)}
        emit_json(facts | {"digest": dataset.digest, "lost": [*map(spoken, done.lost)], "import": again})
    else:
        tell(f"{dataset.name}: {len(dataset):,} events written to {to}")
        tell(f"read it again with: {again}")


def require_place(path: Path, option: str) -> None:
    """Complain about a file that cannot be written before the work, not after it."""
    if path.is_dir():
        raise FileError(f"{path} is a folder; give {option} a file name in it")
    if not path.parent.is_dir():
        raise FileError(f"{path.parent} is no folder; make it, or give {option} another")


def _words(options: dict[str, Any]) -> str:
    """The options of an import, as they are typed."""
    said = ""
    for name, value in options.items():
        if value is True:
            said += f" --{name}"
        else:
            words = value if isinstance(value, str) else ",".join(value)
            said += f" --{name} " + (f'"{words}"' if " " in words else words)
    return said
