"""Serve a run over HTTP: `dygmamba serve`."""

from pathlib import Path

from dygmamba.api.trusted_code import import_if_trusted
from dygmamba.cli.console import print_note
from dygmamba.cli.options import DataDir, Device, Trust, option, optional, run_argument
from dygmamba.core.process_settings import collect_garbage_as_usual


def serve(
    run: Path = run_argument("Serve this run; if it is a link, SIGHUP looks again where it leads."),
    state: Path = option(..., "Keep the events in this folder; created if it does not exist."),
    port: int = option(8000, "Listen on this port; 0 chooses a free one."),
    host: str = option("127.0.0.1", "Listen on this address; all but loopback ones need a token."),
    token: str | None = optional(
        "Require this token of every request; better given as $DYGMAMBA_TOKEN, which no process list shows.",
        envvar="DYGMAMBA_TOKEN",
        show_envvar=False,
    ),
    tls_cert: Path | None = optional("Use TLS with this certificate (PEM)."),
    tls_key: Path | None = optional("Use TLS with this key (PEM)."),
    late: str | None = optional(
        "Accept events this much earlier than the latest one, e.g. 10m or 7d.",
        default="that of the state folder, at first 0",
    ),
    on_late: str | None = optional(
        "Do this with events that are earlier still: refuse or set-aside.",
        default="that of the state folder, at first refuse",
    ),
    max_ahead: str | None = optional(
        "Set aside events dated further ahead of the clock, e.g. 1h, or off.",
        default="that of the state folder, at first 1d; off for times that are numbers",
    ),
    source: list[str] | None = optional(
        "Also read events from a growing file (.jsonl, .csv) or kafka://HOST:PORT/TOPIC."
    ),
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
