"""Serve a run over HTTP: `dygmamba serve`."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.api import precheck
from dygmamba.api.trusted_code import import_if_trusted
from dygmamba.cli.console import print_note
from dygmamba.cli.options import DataDir, Device, TrustCode, run_argument
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
        typer.Option(
            envvar="DYGMAMBA_TOKEN",
            show_envvar=False,
            help="Require this token of every request; better given as $DYGMAMBA_TOKEN, which no process list shows.",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Use TLS with this certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Use TLS with this key (PEM).")] = None,
    late: Annotated[
        str | None, typer.Option(help="Accept events this much earlier than the latest one, e.g. 10m or 7d.")
    ] = None,
    on_late: Annotated[
        str | None, typer.Option(help="Do this with events that are earlier still: refuse or set-aside.")
    ] = None,
    max_ahead: Annotated[
        str | None,
        typer.Option(
            help="Set aside events dated further ahead of the clock, e.g. 1h, or off (default: 1d)."
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="Also read events from a growing file (.jsonl, .csv) or kafka://HOST:PORT/TOPIC."),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    trust_code: TrustCode = False,
) -> None:
    """Serve a run over HTTP: take events as they happen, and score, rank and explain with all of them."""
    settings = precheck.check_serve(
        run, device=device, host=host, port=port, token=token, tls_cert=tls_cert, tls_key=tls_key
    )  # fmt: skip
    import_if_trusted(trust_code, run)

    from dygmamba.api.serving import serve_run

    collect_garbage_as_usual()
    serve_run(
        run, state, settings, late=late, on_late=on_late, max_ahead=max_ahead, sources=source or (),
        device=device, data_dir=data_dir,
        on_start=lambda url: print_note(f"listening on {url}; stop with Ctrl-C"),
    )  # fmt: skip
