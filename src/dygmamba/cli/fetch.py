"""`dygmamba data fetch`: public datasets by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli.console import description, emit_json, note, stderr, tell

if TYPE_CHECKING:
    from dygmamba.data.part import Progress

DONE = {
    "present": "{name} is already in {parent}; nothing to do",
    "archive": "{name} is in {folder}, unpacked from {archive}",
    "download": "{name} is in {folder}",
}


def fetch(
    name: Annotated[str, typer.Argument(help="A name of `dygmamba data list`.")],
    data_dir: Annotated[Path | None, typer.Option(help="Where to put it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Download a public dataset, unless it is here already."""
    from dygmamba.data.catalogue import find_entry
    from dygmamba.data.fetch import fetch_dataset, import_line
    from dygmamba.data.library import data_folder

    folder = data_folder(data_dir)
    entry = find_entry(name)
    try:
        with _bar(entry.archive) as progress:
            fetched = fetch_dataset(entry, folder, progress=progress)
    except KeyboardInterrupt:
        if (folder / f"{entry.archive}.part").exists():
            note(f"what arrived of {entry.archive} is kept; the same command goes on from there")
        raise
    warning, line = fetched.warning, import_line(fetched)
    for said in (warning, entry.note, entry.licence and f"licence: {entry.licence}"):
        if said and fetched.how != "present":
            note(said)
    if as_json:
        facts = {"name": entry.name, "folder": str(fetched.folder), "how": fetched.how, "home": entry.home}
        emit_json(facts | {"licence": entry.licence, "warning": warning, "import": line})
        return
    places = {"folder": fetched.folder, "parent": folder, "archive": entry.archive}
    done = DONE[fetched.how].format(name=entry.name, **places)
    tell(done)
    if line:
        tell(f"turn it into a dataset with: {line}")


@contextmanager
def _bar(title: str) -> Iterator["Progress"]:
    """Bytes, speed and time left on stderr; silent when stderr is not a terminal."""
    from rich import progress as rich

    console = stderr()
    columns: list[Any] = [description(), rich.BarColumn(), rich.DownloadColumn()]
    columns += [rich.TransferSpeedColumn(), rich.TimeRemainingColumn()]
    with rich.Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda added, total: bar.update(task, advance=added, total=total)
