"""What answers a request over HTTP, and nothing else: its header within the time there is, never a local file.

Python's own `urlopen` gives up on a silent server only: one that sends a letter of its header now and then holds it
for ever. It also follows a redirect to FTP.
"""

import socket
import threading
import time
import urllib.request as http
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from typing import Any


class _Noting(http.AbstractHTTPHandler):
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


class _Http(_Noting, http.HTTPHandler):
    """Plain."""


class _Https(_Noting, http.HTTPSHandler):
    """Encrypted."""


@contextmanager
def answered(request: http.Request, timeout: float, end: float) -> Iterator[HTTPResponse]:
    """The answer to a request, whose header has come before the moment `end` of the monotonic clock."""
    made: list[HTTPConnection] = []
    opener = http.OpenerDirector()
    kinds = (http.ProxyHandler, http.HTTPDefaultErrorHandler, http.HTTPRedirectHandler)
    for handler in (*(kind() for kind in kinds), http.HTTPErrorProcessor(), http.UnknownHandler()):
        opener.add_handler(handler)
    for handler in (_Http(made), _Https(made)):
        opener.add_handler(handler)
    cut = threading.Timer(max(0.0, end - time.monotonic()), _hang_up, (made,))
    cut.daemon = True
    cut.start()
    try:
        response = opener.open(request, timeout=timeout)
    finally:
        cut.cancel()
    with response:
        yield response


def _hang_up(made: list[HTTPConnection]) -> None:
    for connection in made:
        if connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
