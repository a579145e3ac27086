"""A real server under requests that are too large, too many or never finished: others are answered all the while."""

import asyncio
import http.client
import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import pytest

import dygmamba as dm
from dygmamba.api.client import Client
from dygmamba.runs.predictor import Predictor
from dygmamba.server import connections
from live_server import running, running_server
from raising import raises

MANY = 16 * 2**20 // 3 - 20


@pytest.fixture(scope="module")
def server(mail, tmp_path_factory):
    state = tmp_path_factory.mktemp("load") / "state"
    with running_server(lambda: dm.live(mail, state)) as (url, server):
        yield url, server


def post(url: str, path: str, body: bytes, kind: str = "application/json") -> tuple[int, str | None]:
    """The status and the code of the answer to a body."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request("POST", path, body, {"content-type": kind})
    response = connection.getresponse()
    answer = response.status, json.loads(response.read()).get("code")
    connection.close()
    return answer


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/events", b'{"events": [' + b"[]," * MANY + b"[]]}", "too-many-values"),
        ("/v1/events", b'{"events": [{' + b'"a":1,' * (MANY // 2) + b'"b":1}]}', "too-many-values"),
        ("/v1/score", b'{"pairs": [' + b"{}," * MANY + b"{}]}", "too-many-values"),
        ("/v1/rank", b'{"sources": [' + b"1," * MANY + b"1]}", "too-many-values"),
        ("/v1/rank", b'{"sources": [' + b"1," * 150_000 + b"1]}", "too-many-rows"),
        ("/v1/score", b'{"pairs": [' + b'{"src":1,"dst":2},' * 60_000 + b"{}]}", "too-many-rows"),
        ("/v1/score", b'{"pairs": [' + b"{}," * 90_000 + b"{}]}", "invalid-request"),
        ("/v1/events", b"[" * 150_000, "malformed-json"),
    ],
)
def test_a_body_of_many_values_holds_up_nobody(server, path, body, code):
    """For all bodies below 16 MiB, and whatever they would become in memory: an answer at once."""
    began = time.monotonic()
    assert post(server[0], path, body)[1] == code
    assert time.monotonic() - began < 3


def test_a_long_ranking_gives_way_to_others(server, monkeypatch):
    """While ranking in parts, other rankings are answered and appended events are seen; all parts are in the answer."""
    url, _ = server
    original, parts = Predictor.rank, []

    def find_slowly(predictor, sources, *others):
        parts.append(list(sources))
        time.sleep(0.05 * len(sources))
        return original(predictor, sources, *others)

    sources = [f"n{k}" for k in range(60)] + ["alice", "bob"]
    with Client(url) as client, Client(url) as other:
        expected = client.rank(sources, 2, at="2024-03-01")
        monkeypatch.setattr(Predictor, "rank", find_slowly)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(client.rank(sources, 2, at="2024-03-01")))
        asking.start()
        began, waits = time.monotonic(), []
        while asking.is_alive():
            sequence = other.append([("alice", "bob", "2024-04-01")])["sequence"]
            other.rank(["alice"], 1, min_sequence=sequence)
            waits.append(time.monotonic() - began)
            began = time.monotonic()
    assert answers == [expected]
    assert len(waits) >= 3
    assert max(len(part) for part in parts) < 20
    assert max(waits) < 2


def test_a_ranking_is_limited_and_ids_have_one_type_in_all_parts(server, tmp_path):
    url, _ = server
    with Client(url) as client, raises("too-many-rows"):
        client.rank(range(10_001), 1)
    (run,) = dm.train(
        dm.read([(k % 5, k % 7, k) for k in range(140)]), "trees", rounds=2, device="cpu", out=tmp_path
    )
    limits = {"max_ranked_pairs": 70, "max_answer_rows": 12}
    with running(lambda: dm.live(run, tmp_path / "state"), **limits) as url, Client(url) as client:
        rows = client.rank(["1", "x", "2"], 1)
        assert [row["src"] for row in rows] == ["1", "x", "2"]
        assert [row["src"] for row in client.rank([1, 2, 1], 1)] == [1, 2]
        for sources, k in ((range(11), 1), (range(7), 2)):
            with raises("too-many-rows"):
                client.rank(sources, k)


@pytest.mark.parametrize("how", ["leaves", "times out"])
def test_a_query_that_nobody_waits_for_ends(mail, tmp_path, monkeypatch, how):
    """At the next pass of the model, so that the server can be stopped and the thread answers others."""
    ended = threading.Event()

    def find_for_ever(predictor, sources, destinations, k, at, candidates, only_new, progress):
        try:
            while True:
                progress.advance()
                time.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(Predictor, "rank", find_for_ever)
    timeout = 20.0 if how == "leaves" else 0.3
    with running(lambda: dm.live(mail, tmp_path / "state"), timeout=timeout) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        connection.request(
            "POST", "/v1/rank", b'{"sources": ["alice"]}', {"content-type": "application/json"}
        )
        if how == "leaves":
            time.sleep(0.3)
            assert not ended.is_set()
        else:
            assert connection.getresponse().status == 503
        connection.close()
        assert ended.wait(5)


@contextmanager
def unfinished_requests(url: str, count: int):
    """Connections with the beginning of a request."""
    host, _, port = urlsplit(url).netloc.partition(":")
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=10)))
            opened[-1].sendall(b"GET /ping HTTP/1.1\r\nHost: local")
        yield opened


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection, in ten seconds at most."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_unfinished_requests_keep_nobody_out(mail, tmp_path):
    """Beyond the limit the oldest of them is closed; a connection that sends its request is answered."""
    with running_server(lambda: dm.live(mail, tmp_path / "state")) as (url, server), Client(url) as old:
        server.server_state.most = 20
        assert old.health()
        with unfinished_requests(url, 60) as opened, Client(url) as client:
            assert client.health()
            assert client.status()["facts"]["dataset"] == "mail"
            assert len(server.server_state.connections) <= 21
            assert old.status()["facts"]["dataset"] == "mail"  # over a new connection
            assert is_closed(opened[0])


def test_headers_that_do_not_come_are_given_up(mail, tmp_path, monkeypatch):
    """Also those of a second request, and byte by byte."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    with running(lambda: dm.live(mail, tmp_path / "state")) as url, unfinished_requests(url, 2) as (one, two):
        two.sendall(b"host\r\n\r\nGET /p")
        assert two.recv(10_000).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < 5:
                two.sendall(b"i")
                time.sleep(0.05)
        assert time.monotonic() - began < 2
        assert is_closed(one)


def test_refused_connections_are_logged_once_in_a_while(caplog):
    handle, loop = connections.AcceptErrors(), asyncio.new_event_loop()
    for _ in range(1000):
        handle(loop, {"message": "socket.accept() out of system resource", "exception": OSError()})
    loop.close()
    assert len(caplog.records) == 1
