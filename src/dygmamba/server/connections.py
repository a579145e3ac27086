"""Connections: how many there may be, and how long one may take to send the headers of a request."""

import asyncio
import logging
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

try:
    import resource
except ImportError:  # Windows has no limit of files to ask for
    resource = None

log = logging.getLogger("dygmamba.server")

MAX_CONNECTIONS = 512
HEADER_SECONDS = 20.0  # from the start of a connection, or the last response, to the end of the next headers
REPORT_SECONDS = 60.0  # between lines in the log about connections that could not be accepted


class ConnectionState(ServerState):
    """The open connections of a server; those that wait for a request are in the order in which they began to."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[LimitedProtocol, None] = {}
        files = MAX_CONNECTIONS * 2 if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = MAX_CONNECTIONS if files < 0 else min(MAX_CONNECTIONS, files // 2)


class LimitedProtocol(H11Protocol):
    """A connection that is closed if no request arrives in time.

    A new connection beyond the limit takes the place of the one that waits longest for a request, so that connections
    that send nothing keep nobody out.
    """

    server_state: ConnectionState
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_request()
        state = self.server_state
        if len(state.connections) > state.most:
            next(iter(state.waiting))._drop()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the headers are complete
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self.server_state.waiting[self] = None
        self._timer = self.loop.call_later(HEADER_SECONDS, self._drop)

    def _drop(self) -> None:
        """Close the connection; it counts no more from now on, and not only when the event loop has closed it."""
        self._stop_waiting()
        self.server_state.connections.discard(self)
        self.transport.abort()

    def _stop_waiting(self) -> None:
        self.server_state.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class AcceptErrors:
    """Handler of errors of the event loop that logs connections that could not be accepted once in a while.

    asyncio reports one for each attempt, thousands in a second when no file can be opened.
    """

    def __init__(self) -> None:
        self._reported, self._count = float("-inf"), 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "socket.accept()" not in context.get("message", ""):
            return loop.default_exception_handler(context)
        self._count += 1
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            fields = {"attempts": self._count, "error": type(context.get("exception")).__name__}
            log.error("connections cannot be accepted: too many open files", extra={"fields": fields})
            self._reported, self._count = time.monotonic(), 0
        return None
