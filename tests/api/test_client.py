"""The client and servers that are busy, or are not servers of a run: it waits as it is told, or says what is wrong."""

import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dygmamba.api.client import MAX_RETRY_SECONDS, Client, ServerError
from raising import raises


@pytest.fixture
def serve():
    """Start a server of recorded answers (status, headers, body), one after the other; returns its address."""
    servers = []

    def start(*answers):
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status, headers, body = left.pop(0)
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("after", "least", "most"),
    [
        (lambda: "0.3", 0.3, 0.3),
        (lambda: formatdate(time.time() + 5, usegmt=True), 4, 5),
        (lambda: formatdate(time.time() - 600, usegmt=True), 0.1, 0.1),
        (lambda: formatdate(time.time() + 600, usegmt=True), MAX_RETRY_SECONDS, MAX_RETRY_SECONDS),
        (lambda: "soon", 1, 1),
        (lambda: "nan", 0.1, 0.1),
        (lambda: "-7", 0.1, 0.1),
        (lambda: "Mon, 99 Foo 99999999999999999999 99:99:99 GMT", 1, 1),
    ],
    ids=["seconds", "date", "past date", "far date", "text", "nan", "negative", "no date"],
)
def test_a_busy_server_is_asked_again_when_it_says(serve, monkeypatch, after, least, most):
    """For all headers Retry-After, also those that are none: a pause of at most ten seconds, then the result."""
    pauses = []
    monkeypatch.setattr("dygmamba.api.client.time.sleep", pauses.append)
    url = serve((503, {"Retry-After": after()}, b""), (200, {}, b'{"run": "mail"}'))
    with Client(url) as client:
        assert client.status() == {"run": "mail"}
    assert least <= pauses[0] <= most


def test_a_page_of_another_server_is_no_result(serve):
    """A proxy or another program at the address answers with HTML."""
    with Client(serve((200, {}, b"<html>hello</html>"))) as client, raises("unexpected-answer", ServerError):
        client.status()
