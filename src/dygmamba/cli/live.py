"""Live runs: `serve`, and commands on their state folders (`live check`, `accept`, `backup` and `restore`)."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.api.formatting import format_date, format_duration, looks_like_epoch_seconds
from dygmamba.api.trusted_code import import_if_trusted
from dygmamba.cli import options as cli
from dygmamba.cli.console import emit_json, print_line, print_note
from dygmamba.core.process_settings import collect_garbage_as_usual

if TYPE_CHECKING:
    from dygmamba.api.live import FolderCheck

STATE_FOLDER = cli.argument("Use this state folder.", show_default=False)


def serve(
    run: Path = cli.run_argument("Serve this run; if it is a link, SIGHUP looks again where it leads."),
    state: Path = cli.option(..., "Keep the events in this folder; created if it does not exist."),
    port: int = cli.option(8000, "Listen on this port; 0 chooses a free one."),
    host: str = cli.option("127.0.0.1", "Listen on this address; all but loopback ones need a token."),
    token: str | None = cli.optional(
        "Require this token of every request; better given as $DYGMAMBA_TOKEN, which no process list shows.",
        envvar="DYGMAMBA_TOKEN",
        show_envvar=False,
    ),
    tls_cert: Path | None = cli.optional("Use TLS with this certificate (PEM)."),
    tls_key: Path | None = cli.optional("Use TLS with this key (PEM)."),
    late: str | None = cli.optional(
        "Accept events this much earlier than the latest one, e.g. 10m or 7d.",
        default="that of the state folder, at first 0",
    ),
    on_late: str | None = cli.optional(
        "Do this with events that are earlier still: refuse or set-aside.",
        default="that of the state folder, at first refuse",
    ),
    max_ahead: str | None = cli.optional(
        "Set aside events dated further ahead of the clock, e.g. 1h, or off.",
        default="that of the state folder, at first 1d; off for times that are numbers",
    ),
    source: list[str] | None = cli.optional(
        "Also read events from a growing file (.jsonl, .csv) or kafka://HOST:PORT/TOPIC."
    ),
    device: str = cli.DEVICE,
    data_dir: Path | None = cli.DATA_DIR,
    trust: bool = cli.TRUST,
) -> None:
    """Serve a run over HTTP: take events as they happen, and score, rank and explain with all of them."""
    from dygmamba.api.requests.prediction import ServeRequest

    request = ServeRequest.from_arguments(locals(), sources=source or ()).check()
    import_if_trusted(trust, run)

    from dygmamba.api.serving import serve_run

    collect_garbage_as_usual()
    serve_run(request, on_start=lambda url: print_note(f"listening on {url}; stop with Ctrl-C"))


def check(state: Path = STATE_FOLDER, as_json: bool = cli.AS_JSON) -> None:
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
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {item}" for key, item in value.items())
        print_line(f"{name.replace('_', ' '):<10} {'-' if value in (None, '') else value}")


def _describe(found: "FolderCheck") -> dict[str, Any]:
    facts = asdict(found)
    return facts | {"snapshots": {str(sequence): state for sequence, state in found.snapshots.items()}}


def accept(
    state: Path = STATE_FOLDER,
    late: str | None = cli.optional("Accept events this much earlier than the latest one, e.g. 30d."),
    max_ahead: str | None = cli.optional(
        "Accept events dated this far ahead of the clock, e.g. 30d, or off."
    ),
    run: Path | None = cli.optional("Use this run directory.", default="the one last used"),
    data_dir: Path | None = cli.DATA_DIR,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Judge the events that a live run set aside again, and take those that are accepted into its log."""
    from dygmamba.api.live import accept_set_aside

    answer, left = accept_set_aside(state, late=late, max_ahead=max_ahead, run=run, data_dir=data_dir)
    if as_json:
        facts = {"accepted": answer.accepted, "set_aside": left, "sequence": answer.sequence}
        emit_json(facts | {"verdicts": [asdict(verdict) for verdict in answer.verdicts]})
        return
    print_line(f"events accepted: {answer.accepted:,}; still set aside: {left:,}")


def backup(
    state: Path = STATE_FOLDER,
    file: Path = cli.argument("Write the backup to this file.", show_default=False),
    as_json: bool = cli.AS_JSON,
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
    file: Path = cli.argument("Restore this backup.", show_default=False),
    state: Path = cli.argument("Write to this new folder.", show_default=False),
    as_json: bool = cli.AS_JSON,
) -> None:
    """Restore a backup into a new state folder, after checking it."""
    from dygmamba.api.live import check_folder
    from dygmamba.api.live import restore as restore_live

    found = check_folder(restore_live(file, state))
    if as_json:
        emit_json({"state": str(state), **_describe(found)})
    else:
        print_line(f"{found.sequence:,} events are in {state}; the run is not part of a backup: {found.run}")
