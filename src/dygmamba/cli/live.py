"""Commands on the state folders of live runs: `live check`, `live accept`, `live backup` and `live restore`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api.formatting import format_date, format_duration, looks_like_epoch_seconds
from dygmamba.cli.console import emit_json, print_line
from dygmamba.cli.options import DataDir, Json, argument, optional

if TYPE_CHECKING:
    from dygmamba.api.live import FolderCheck

StateFolder = Annotated[Path, typer.Argument(help="Use this state folder.", show_default=False)]


def check(state: StateFolder, as_json: Json = False) -> None:
    """Check the state folder of a live run, also while it is in use: log and snapshots."""
    from dygmamba.api.live import check_folder

    found = check_folder(state)
    if as_json:
        emit_json(_describe(found))
        return
    print_line(f"{state}: every event matches its checksum")
    facts = _describe(found)
    if found.latest is not None and looks_like_epoch_seconds(found.latest, found.latest):
        facts |= {"latest": format_date(found.latest), "late": format_duration(found.late)}
    for name, value in facts.items():
        text = (
            ", ".join(f"{key}: {item}" for key, item in value.items()) if isinstance(value, dict) else value
        )
        print_line(f"{name.replace('_', ' '):<10} {'-' if text in (None, '') else text}")


def _describe(found: "FolderCheck") -> dict[str, Any]:
    facts = asdict(found)
    return facts | {"snapshots": {str(sequence): state for sequence, state in found.snapshots.items()}}


def accept(
    state: StateFolder,
    late: str | None = optional("Accept events this much earlier than the latest one, e.g. 30d."),
    max_ahead: str | None = optional("Accept events dated this far ahead of the clock, e.g. 30d, or off."),
    run: Path | None = optional("Use this run directory.", default="the one last used"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Judge the events that a live run set aside again, and take those that are accepted into its log."""
    from dygmamba.api.live import accept_set_aside

    answer, left = accept_set_aside(state, late=late, max_ahead=max_ahead, run=run, data_dir=data_dir)
    if as_json:
        verdicts = [asdict(verdict) for verdict in answer.verdicts]
        emit_json(
            {
                "accepted": answer.accepted,
                "set_aside": left,
                "sequence": answer.sequence,
                "verdicts": verdicts,
            }
        )
        return
    print_line(f"events accepted: {answer.accepted:,}; still set aside: {left:,}")


def backup(
    state: StateFolder,
    file: Path = argument("Write the backup to this file.", show_default=False),
    as_json: Json = False,
) -> None:
    """Back up the state folder of a live run to one file, also while it is in use."""
    from dygmamba.api.live import write_backup

    found = write_backup(state, file)
    if as_json:
        emit_json(
            {"file": str(file), "sequence": found.sequence, "bytes": found.size, "sha256": found.digest}
        )
        return
    print_line(f"{found.sequence:,} events are in {file}")
    print_line(f"sha256 {found.digest}")


def restore(
    file: Path = argument("Restore this backup.", show_default=False),
    state: Path = argument("Write to this new folder.", show_default=False),
    as_json: Json = False,
) -> None:
    """Restore a backup into a new state folder, after checking it."""
    from dygmamba.api.live import check_folder
    from dygmamba.api.live import restore as restore_live

    found = check_folder(restore_live(file, state))
    if as_json:
        emit_json({"state": str(state), **_describe(found)})
    else:
        print_line(f"{found.sequence:,} events are in {state}; the run is not part of a backup: {found.run}")
