"""Where a file is asked for: an address that can be shown and stored, and apart from it who asks.

What answers a request over HTTP, and nothing else: its header within the time there is, never a local file.

Python's own `urlopen` gives up on a silent server only: one that sends a letter of its header now and then holds it
for ever. It also follows a redirect to FTP.
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
from urllib.request import Request

from dygmamba.core.errors import ConfigError


def strip_credentials(url: str) -> str:
    """The address without the name and the password in it, for all that is printed or written."""
    return re.sub(r"^(\w[\w+.-]*:)?(//)?[^/?#]*@", r"\1\2", url)


@dataclass(frozen=True, slots=True)
class RequestUrl:
    """`http://name:password@host/file` asks for `http://host/file`; the password goes to that host and nowhere else."""

    url: str
    authorization: str | None = field(default=None, repr=False)

    @staticmethod
    def of(url: str) -> "RequestUrl":
        """The address of a file that is fetched over HTTP."""
        if urlsplit(strip_credentials(url)).scheme not in ("http", "https"):
            raise ConfigError(
                f"cannot download {strip_credentials(url)!r}: the address must start with http:// or https://"
            )
        who, at, _ = urlsplit(url).netloc.rpartition("@")
        if not at:
            return RequestUrl(url)
        name, _, password = who.partition(":")
        pair = f"{unquote(name)}:{unquote(password)}".encode()
        return RequestUrl(strip_credentials(url), f"Basic {base64.b64encode(pair).decode()}")

    def request(self, headers: dict[str, str]) -> Request:
        """A request; to another host that the first one names, the password is not sent along."""
        request = Request(self.url, headers=headers)
        if self.authorization is not None:
            request.add_unredirected_header("Authorization", self.authorization)
        return request


class _TrackingHandler(http.AbstractHTTPHandler):
    """Keeps every connection, so that it can be cut from outside."""

    def __init__(self, made: list[HTTPConnection]) -> None:
        super().__init__()
        self._made = made

    def do_open(self, http_class: Any, req: http.Request, **named: Any) -> HTTPResponse:
        """A connection as always, noted."""
        return super().do_open(partial(self._note, http_class), req, **named)

    def _note(self, kind: Any, *words: Any, **named: Any) -> HTTPConnection:
        self._made.append(kind(*words, **named))
        return self._made[-1]


class _TrackingHttpHandler(_TrackingHandler, http.HTTPHandler):
    """Plain."""


class _TrackingHttpsHandler(_TrackingHandler, http.HTTPSHandler):
    """Encrypted."""


@contextmanager
def open_response(request: http.Request, timeout: float, end: float) -> Iterator[HTTPResponse]:
    """The answer to a request, whose header has come before the moment `end` of the monotonic clock."""
    made: list[HTTPConnection] = []
    opener = http.OpenerDirector()
    kinds = (http.ProxyHandler, http.HTTPDefaultErrorHandler, http.HTTPRedirectHandler)
    for handler in (*(kind() for kind in kinds), http.HTTPErrorProcessor(), http.UnknownHandler()):
        opener.add_handler(handler)
    for handler in (_TrackingHttpHandler(made), _TrackingHttpsHandler(made)):
        opener.add_handler(handler)
    cut = threading.Timer(max(0.0, end - time.monotonic()), _close_connections, (made,))
    cut.daemon = True
    cut.start()
    try:
        response = opener.open(request, timeout=timeout)
    finally:
        cut.cancel()
    with response:
        yield response


def _close_connections(made: list[HTTPConnection]) -> None:
    for connection in made:
        if connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
