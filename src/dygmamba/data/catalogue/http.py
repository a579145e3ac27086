"""HTTP requests with credentials kept apart from the URL, and responses with a deadline.

`urllib.request.urlopen` alone is not enough. Its timeout covers single reads, so a server that sends a byte of the
header now and then holds it for ever, and it follows redirects to FTP.
"""

import base64
import re
import socket
import threading
import time
import urllib.request as http
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import unquote, urlsplit

from dygmamba.core.errors import ConfigError


def strip_credentials(url: str) -> str:
    """Return the URL without user name and password, safe to log and store."""
    return re.sub(r"^(\w[\w+.-]*:)?(//)?[^/?#]*@", r"\1\2", url)


@dataclass(frozen=True, slots=True)
class RequestUrl:
    """A URL with its credentials removed, and the credentials as an Authorization header."""

    url: str
    authorization: str | None = field(default=None, repr=False)

    @staticmethod
    def parse(url: str) -> "RequestUrl":
        """Separate `http://name:password@host/file` into URL and credentials; raise ConfigError unless HTTP."""
        public = strip_credentials(url)
        if urlsplit(public).scheme not in ("http", "https"):
            raise ConfigError(
                f"cannot download {public!r}: the URL must start with http:// or https://", code="invalid-url"
            )
        credentials, at, _ = urlsplit(url).netloc.rpartition("@")
        if not at:
            return RequestUrl(url)
        name, _, password = credentials.partition(":")
        pair = f"{unquote(name)}:{unquote(password)}".encode()
        return RequestUrl(public, f"Basic {base64.b64encode(pair).decode()}")

    def make_request(self, headers: dict[str, str]) -> http.Request:
        """Create a request; after a redirect to another host the credentials are not sent."""
        request = http.Request(self.url, headers=headers)
        if self.authorization is not None:
            request.add_unredirected_header("Authorization", self.authorization)
        return request


class _TrackingHandler(http.AbstractHTTPHandler):
    """Records every connection, so that another thread can close it."""

    def __init__(self, connections: list[HTTPConnection]) -> None:
        super().__init__()
        self._connections = connections

    def do_open(self, http_class: Any, req: http.Request, **options: Any) -> HTTPResponse:
        return super().do_open(partial(self._connect, http_class), req, **options)

    def _connect(self, http_class: Any, *args: Any, **options: Any) -> HTTPConnection:
        self._connections.append(http_class(*args, **options))
        return self._connections[-1]


class _TrackingHttpHandler(_TrackingHandler, http.HTTPHandler):
    pass


class _TrackingHttpsHandler(_TrackingHandler, http.HTTPSHandler):
    pass


@contextmanager
def open_response(request: http.Request, timeout: float, deadline: float) -> Iterator[HTTPResponse]:
    """Open a request over HTTP or HTTPS and nothing else.

    Args:
        request: What to get.
        timeout: Seconds that a single read may take.
        deadline: When the whole header must have arrived, by `time.monotonic`.
    """
    connections: list[HTTPConnection] = []
    # An opener without the handlers for ftp:, file: and data:, which a redirect must not reach.
    opener = http.OpenerDirector()
    kinds = (http.ProxyHandler, http.HTTPDefaultErrorHandler, http.HTTPRedirectHandler)
    for handler in (*(kind() for kind in kinds), http.HTTPErrorProcessor(), http.UnknownHandler()):
        opener.add_handler(handler)
    for handler in (_TrackingHttpHandler(connections), _TrackingHttpsHandler(connections)):
        opener.add_handler(handler)
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), _close_connections, (connections,))
    timer.daemon = True
    timer.start()
    try:
        response = opener.open(request, timeout=timeout)
    finally:
        timer.cancel()
    with response:
        yield response


def _close_connections(connections: list[HTTPConnection]) -> None:
    for connection in connections:
        if connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
