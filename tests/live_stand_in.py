"""A live run that a test can hold back or let fail."""

import threading
from contextlib import contextmanager
from typing import Any

from dygmamba.live.live_run import LiveRun


class GatedLive:
    """Passes everything on to a live run; `gate` holds scores back, `failure` is raised by appends."""

    def __init__(self, live: LiveRun) -> None:
        self.live, self.gate, self.failure = live, threading.Event(), None
        self.is_closed = False
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.live, name)

    @contextmanager
    def read(self):
        if threading.current_thread().name.startswith("score"):
            assert self.gate.wait(10)
        with self.live.read() as view:
            yield view

    def append(self, events, **how):
        if self.failure is not None:
            raise self.failure
        return self.live.append(events, **how)

    def close(self) -> None:
        self.is_closed = True
        self.live.close()
