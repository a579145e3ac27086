"""Serve a run over HTTP, with its log of events on the disk."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from dygmamba.api.live import live as open_live
from dygmamba.core.errors import ConfigError
from dygmamba.live.backup import lock_folder
from dygmamba.live.event_log import LOG_FILE, LogReader
from dygmamba.live.event_sources import EventSource
from dygmamba.live.growing_file import GrowingFile
from dygmamba.live.kafka_source import KafkaTopic
from dygmamba.live.live_run import LiveRun
from dygmamba.live.verdicts import Lateness, parse_lateness, parse_lead
from dygmamba.server.runner import run_server
from dygmamba.server.settings import ServerSettings


def serve_run(
    run: Path,
    state: Path,
    settings: ServerSettings,
    *,
    late: str | None = None,
    on_late: str | None = None,
    max_ahead: str | None = None,
    sources: Sequence[str] = (),
    device: str = "auto",
    data_dir: Path | None = None,
    on_start: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a run until the process is told to stop.

    Args:
        run: The run directory, or a link to one: at SIGHUP the server changes to the run that it then leads to.
        state: Folder of the log and the snapshots.
        settings: Address, access and limits.
        late: How much earlier than the latest event an event may be.
        on_late: What happens to events that are earlier still: "refuse" or "set-aside".
        max_ahead: How far ahead of the clock events may be dated, or "off".
        sources: Where events come from beside requests, see `parse_source`.
        device: cpu, cuda or auto.
        data_dir: Where to look for the dataset of the run first.
        on_start: Called with the URL when the port is open.
    """
    check_state(state, late=late, on_late=on_late, max_ahead=max_ahead)
    followed = [parse_source(text) for text in sources]

    def open_run() -> LiveRun:
        return open_live(
            run.resolve(), state, late=late, on_late=on_late, max_ahead=max_ahead, device=device, data_dir=data_dir
        )  # fmt: skip

    run_server(open_run, settings, followed, on_start, lambda live: live.switch(run.resolve()))


def check_state(state: Path, *, late: str | None, on_late: str | None, max_ahead: str | None) -> None:
    """Raise at once what opening a state folder would raise after the run is loaded, when the port is open already."""
    Lateness(0.0 if late is None else parse_lateness(late), "refuse" if on_late is None else on_late)
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
