"""Serve a run over HTTP, with its log of events on the disk."""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from dygmamba.api.live import live as open_live
from dygmamba.api.requests.prediction import ServeRequest
from dygmamba.core.errors import ConfigError
from dygmamba.live.backup import lock_folder
from dygmamba.live.event_log import LOG_FILE, LogReader
from dygmamba.live.event_sources import EventSource
from dygmamba.live.growing_file import GrowingFile
from dygmamba.live.kafka_source import KafkaTopic
from dygmamba.live.live_run import LiveRun
from dygmamba.live.verdicts import TimeRules, parse_lateness, parse_lead
from dygmamba.server.app import run_server


def serve_run(request: ServeRequest, on_start: Callable[[str], None] = lambda url: None) -> None:
    """Serve a run until the process is told to stop; `on_start` is called with the URL when the port is open."""
    rules = {"late": request.late, "on_late": request.on_late, "max_ahead": request.max_ahead}
    check_state(request.state, **rules)
    followed = [parse_source(text) for text in request.sources]

    def open_run() -> LiveRun:
        where = {"device": request.device, "data_dir": request.data_dir}
        return open_live(request.run.resolve(), request.state, **rules, **where)

    run_server(
        open_run, request.settings, followed, on_start, lambda live: live.switch(request.run.resolve())
    )


def check_state(state: Path, *, late: str | None, on_late: str | None, max_ahead: str | None) -> None:
    """Raise at once what opening a state folder would raise after the run is loaded, when the port is open already."""
    TimeRules(0.0 if late is None else parse_lateness(late), "refuse" if on_late is None else on_late)
    if max_ahead is not None:
        parse_lead(max_ahead)
    lock_folder(state).release()
    if (state / LOG_FILE).exists():
        with LogReader(state):
            pass


def parse_source(text: str) -> EventSource:
    """Return the source of events that a text names: a path of a file, or kafka://HOST:PORT/TOPIC."""
    if not re.match(r"[a-z]+://", text):
        return GrowingFile(Path(text))
    parts = urlsplit(text)
    topic = parts.path.strip("/")
    if parts.scheme != "kafka" or not parts.netloc or not topic or "/" in topic:
        raise ConfigError(
            f"a source is the path of a file or kafka://HOST:PORT/TOPIC; got '{text}'", code="unknown-source"
        )
    return KafkaTopic(parts.netloc, topic)
