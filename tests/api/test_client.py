"""The client and servers that are busy, or are not servers of a run: it waits as it is told, or says what is wrong."""

import json
import threading
import time
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dygmamba.api.client import MAX_RETRY_SECONDS, Client, ServerError
from raising import raises


@pytest.fixture
def serve():
    """Start a server of recorded answers (status, headers, body), one after the other; returns its address."""
    servers = []

    def start(*answers, version="HTTP/1.0", bodies=None, at_end=lambda: None):
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = version

            def do_GET(self):
                status, headers, body = left.pop(0)
                parts = [body] if isinstance(body, bytes) else body
                self.send_response(status)
                for name, value in ({"Content-Length": str(sum(map(len, parts)))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(ConnectionError):  # the client gave up
                    self.wfile.write(parts[0])
                    for part in parts[1:]:
                        time.sleep(0.1)
                        self.wfile.write(part)

            def do_POST(self):
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.do_GET()

            def finish(self):
                super().finish()
                at_end()

            def log_message(self, *_):
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def wait_until(holds):
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def test_the_connection_of_a_thread_ends_with_it(serve):
    """For all threads that ended, the server sees their connections closed; those of others go on."""
    answer = (200, {}, b'{"run": "mail"}')
    closed = []
    url = serve(*[answer] * 4, version="HTTP/1.1", at_end=lambda: closed.append(threading.get_ident()))
    with Client(url) as client:
        client.status()
        for count in (1, 2):
            thread = threading.Thread(target=client.status)
            thread.start()
            thread.join()
            wait_until(lambda count=count: len(closed) == count)
        client.status()
        assert len(closed) == 2
    wait_until(lambda: len(closed) == 3)


BUSY = (503, {"Retry-After": "0.3"}, b"")
SLOW = (200, {}, [b"{", *[b" "] * 50, b"}"])  # 0.1 s for each part


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([BUSY] * 20, "unexpected-answer"),
        ([SLOW], "server-unreachable"),
        ([BUSY, BUSY, SLOW], "server-unreachable"),
    ],
    ids=["busy", "slow", "both"],
)
def test_the_timeout_is_that_of_the_call(serve, answers, code):
    """A call ends in time: while the server is busy, when it answers slowly, and after both."""
    with Client(serve(*answers), timeout=1.0) as client:
        begin = time.monotonic()
        with raises(code, ServerError):
            client.status()
        assert 0.5 < time.monotonic() - begin < 1.5


def test_a_query_sees_what_the_client_appended(serve):
    """The greatest sequence that was acknowledged is asked for, unless the caller says which."""
    asked = []
    written = [(200, {}, b'{"sequence": %d}' % sequence) for sequence in (7, 5)]
    scored = (200, {}, b'{"scores": []}')
    with Client(serve(scored, *written, scored, scored, scored, bodies=asked)) as client:
        client.score([("a", "b")])
        client.append([("a", "b", 1)])
        client.append([("a", "b", 1)])
        client.score([("a", "b")])
        client.score([("a", "b")], min_sequence=3)
        client.score([("a", "b")], min_sequence=0)
    assert [body.get("min_sequence") for body in asked if "pairs" in body] == [None, 7, 3, 0]
