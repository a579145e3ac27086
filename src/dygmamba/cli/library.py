"""`dygmamba data list` and `dygmamba data remove`: what is here, who uses it, what may go."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dygmamba.cli.console import emit_json, plain_table, stdout, tell

DataDir = Annotated[Path | None, typer.Option(help="Where datasets are.")]
RunsDir = Annotated[Path, typer.Option(help="Where runs are, to see which datasets they use.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def list_datasets(data_dir: DataDir = None, runs: RunsDir = Path("runs"), as_json: Json = False) -> None:
    """Your datasets in all their versions with the runs that use them, and the public ones that can be fetched."""
    from rich.table import Table

    from dygmamba.data.catalogue import catalogue
    from dygmamba.data.fetch import on_disk
    from dygmamba.data.library import data_folders
    from dygmamba.door.library import datasets

    own = datasets(data_dir=data_dir, runs=runs).to_pylist()
    folders = data_folders(data_dir)
    here = {name: any(on_disk(entry, folder) for folder in folders) for name, entry in catalogue().items()}
    if as_json:
        public = [asdict(entry) | {"on_disk": here[name]} for name, entry in catalogue().items()]
        emit_json({"imported": own, "datasets": public})
        return
    if own:
        _show_own(own)
    table = Table("name", "task", box=None)
    for heading in ("nodes", "events", "features"):
        table.add_column(heading, justify="right")
    table.add_column("on disk")
    for name, entry in catalogue().items():
        counts = entry.counts[0]
        figures = (counts.nodes, counts.events, counts.edge_features)
        shown = ("?" if figure is None else f"{figure:,}" for figure in figures)
        table.add_row(name, ", ".join(entry.tasks), *shown, "yes" if here[name] else "no")
    stdout().print(table)


def remove(
    name: Annotated[
        str, typer.Argument(help="NAME@VERSION of `dygmamba data list`, or NAME: all its versions.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Although runs need it.")] = False,
    data_dir: DataDir = None,
    runs: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Delete an imported dataset that no run needs."""
    from dygmamba.door.library import remove as delete

    gone = delete(name, data_dir=data_dir, runs=runs, force=force)
    if as_json:
        emit_json({"removed": gone})
    else:
        tell(f"removed {', '.join(gone)}")


def _show_own(own: list[dict[str, Any]]) -> None:
    table = plain_table("yours", "version", figures=("nodes", "events"))
    table.add_column("used by")
    for row in own:
        users = row["runs"]
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        called = row["name"] if row["newest"] else f"{row['name']}@{row['version']}"
        table.add_row(
            called,
            row["version"] + (", newest" if row["newest"] else ""),
            f"{row['nodes']:,}",
            f"{row['events']:,}",
            f"{users[0]}{more}" if users else "no run",
        )
    stdout().print(table)
    stdout().print("")
