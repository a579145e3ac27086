"""Serve a run over HTTP: `dygmamba serve`."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.api.trusted_code import import_if_trusted
from dygmamba.cli.console import print_note
from dygmamba.cli.options import DataDir, Device, Trust, optional, run_argument
from dygmamba.core.process_settings import collect_garbage_as_usual


def serve(
    run: Annotated[
        Path,
        run_argument("Serve this run; if it is a link, SIGHUP looks again where it leads."),
    ],
    state: Annotated[
        Path, typer.Option(help="Keep the events in this folder; created if it does not exist.")
    ],
    port: Annotated[int, typer.Option(help="Listen on this port; 0 chooses a free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Listen on this address; all but loopback ones need a token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        optional(
            envvar="DYGMAMBA_TOKEN",
            show_envvar=False,
            help="Require this token of every request; better given as $DYGMAMBA_TOKEN, which no process list shows.",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, optional(help="Use TLS with this certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, optional(help="Use TLS with this key (PEM).")] = None,
    late: Annotated[
        str | None,
        optional(
            help="Accept events this much earlier than the latest one, e.g. 10m or 7d.",
            default="that of the state folder, at first 0",
        ),
    ] = None,
    on_late: Annotated[
        str | None,
        optional(
            help="Do this with events that are earlier still: refuse or set-aside.",
            default="that of the state folder, at first refuse",
        ),
    ] = None,
    max_ahead: Annotated[
        str | None,
        optional(
            help="Set aside events dated further ahead of the clock, e.g. 1h, or off.",
            default="that of the state folder, at first 1d; off for times that are numbers",
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        optional(help="Also read events from a growing file (.jsonl, .csv) or kafka://HOST:PORT/TOPIC."),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    trust: Trust = False,
) -> None:
    """Serve a run over HTTP: take events as they happen, and score, rank and explain with all of them."""
    from dygmamba.api.requests.prediction import ServeRequest

    request = ServeRequest.from_arguments(locals(), sources=source or ()).check()
    import_if_trusted(trust, run)

    from dygmamba.api.serving import serve_run

    collect_garbage_as_usual()
    serve_run(request, on_start=lambda url: print_note(f"listening on {url}; stop with Ctrl-C"))
