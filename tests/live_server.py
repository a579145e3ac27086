"""A real server on a free port, in a thread of the tests."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dygmamba.server.app import LiveServer
from dygmamba.server.settings import ServerSettings


@contextmanager
def running(open_live, sources=(), **settings) -> Iterator[str]:
    """The URL of a server that is ready; at the end it has drained and closed its live run."""
    with running_server(open_live, sources, **settings) as (url, _):
        yield url


@contextmanager
def running_server(open_live, sources=(), **settings) -> Iterator[tuple[str, LiveServer]]:
    """The same, and the server itself."""
    started, urls = threading.Event(), []

    def note(url: str) -> None:
        urls.append(url)
        started.set()

    server = LiveServer(open_live, ServerSettings(port=0, **settings), sources, note)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(30)
        while not server.service.is_ready:
            assert server.failure is None, server.failure
            time.sleep(0.005)
        yield urls[0], server
    finally:
        if not server.should_exit:  # a second signal would not wait for requests in progress
            server.handle_exit(15, None)
        thread.join(30)
    assert not thread.is_alive()
