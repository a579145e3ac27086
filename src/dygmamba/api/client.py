"""Client of a server that `dygmamba serve` runs; it needs nothing but Python's own HTTP client."""

import json
import ssl
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dygmamba.core.argument_types import check_arguments
from dygmamba.core.errors import ConfigError, DygError, first_line

RETRIED = (429, 503, 504)  # without an effect, or an append that may be written: its events have ids
CHUNK_BYTES = 1 << 16
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 10.0

Pairs = Iterable[Sequence[Any] | Mapping[str, Any]]


class ServerError(DygError):
    """An answer of a server that is not a result; `code` is that of its problem document."""

    def __init__(self, message: str, *, code: str, status: int | None = None) -> None:
        super().__init__(message, code=code)
        self.status = status


class Client:
    """Appends events to a server and asks it for scores, rankings, classes and explanations.

    A client may be used from several threads; each has a connection of its own, which is closed when the thread ends.
    Requests that the server is too busy for are sent again. A query sees every event that this client appended before,
    unless its `min_sequence` says otherwise.

    Args:
        url: Address of the server, such as "http://127.0.0.1:8000".
        token: Its token, if it has one.
        timeout: Most seconds that a call takes, with all that it waits and sends again.
        cafile: Certificate of the authority that signed the server's, if it is not a public one.
    """

    @check_arguments
    def __init__(
        self, url: str, token: str | None = None, *, timeout: float = 30.0, cafile: Path | str | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"`url` takes an address like http://127.0.0.1:8000; got '{url}'", code="invalid-url"
            )
        self.url, self.timeout = url.rstrip("/"), timeout
        self._parts, self._cafile, self._local = parts, cafile, threading.local()
        self._appended = 0  # the sequence of the last event that was acknowledged
        self._lock = threading.Lock()
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def append(self, events: Iterable[Mapping[str, Any] | Sequence[Any]]) -> dict[str, Any]:
        """Append events: dicts with src, dst, time, optionally an id and columns, or tuples (src, dst, time).

        An event without an id gets a random one, so that a request whose answer was lost can be sent again.

        Returns:
            `sequence`, `accepted`, and `verdicts` of the events that were not accepted.
        """
        rows = [dict(row) if isinstance(row, Mapping) else _name_values(row, 3) for row in events]
        group = uuid.uuid4().hex
        body = {"events": [{"id": f"{group}-{k}", **row} for k, row in enumerate(rows)]}
        answer = self._request("POST", "/v1/events", body)
        with self._lock:
            self._appended = max(self._appended, answer["sequence"])
        return answer

    def score(
        self, pairs: Pairs, at: str | float | None = None, *, min_sequence: int | None = None
    ) -> list[dict[str, Any]]:
        """Score pairs: dicts, or tuples (src, dst) or (src, dst, time); returns a dict for each, in order.

        `min_sequence`, as `append` returns it, waits until those events are visible; 0 waits for none.
        """
        rows = [dict(row) if isinstance(row, Mapping) else _name_values(row, 2) for row in pairs]
        return self._ask("/v1/score", {"pairs": rows, "at": at}, min_sequence)["scores"]

    def rank(
        self,
        sources: Iterable[str | int] | None = None,
        k: int = 10,
        at: str | float | None = None,
        *,
        candidates: Iterable[str | int] | None = None,
        only_new: bool = False,
        destinations: Iterable[str | int] | None = None,
        min_sequence: int | None = None,
    ) -> list[dict[str, Any]]:
        """Rank the k likeliest destinations of each source, or sources of each of the given `destinations`."""
        among = None if candidates is None else list(candidates)
        ask: dict[str, Any] = {"k": k, "at": at, "candidates": among, "only_new": only_new}
        given = {"sources": sources, "destinations": destinations}
        ask |= {name: _list_ids(ids) for name, ids in given.items() if ids is not None}
        return self._ask("/v1/rank", ask, min_sequence)["ranking"]

    def classify(
        self,
        nodes: Iterable[str | int] | None = None,
        at: str | float | None = None,
        k: int | None = None,
        *,
        min_sequence: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the probability that each node is in state 1, from a run of the node task."""
        ask = {"nodes": None if nodes is None else _list_ids(nodes), "at": at, "k": k}
        return self._ask("/v1/classify", ask, min_sequence)["nodes"]

    def explain(
        self,
        src: str | int,
        dst: str | int | None = None,
        at: str | float | None = None,
        *,
        orders: int = 4,
        top: int = 20,
        columns: Mapping[str, Any] | None = None,
        min_sequence: int | None = None,
    ) -> dict[str, Any]:
        """Explain which past events moved the score of a pair, or of a node in a run of the node task."""
        ask = {"src": src, "dst": dst, "at": at, "orders": orders, "top": top}
        ask["columns"] = None if columns is None else dict(columns)
        return self._ask("/v1/explain", ask, min_sequence)["explanation"]

    def status(self) -> dict[str, Any]:
        """Return facts about the run, rates of events, and the quality of scores over time."""
        return self._request("GET", "/v1/status")

    def health(self) -> bool:
        """Return whether the server answers queries; False also if there is none."""
        try:
            self._request("GET", "/v2/health/ready", retry=False)
        except ServerError as error:
            if error.status in (None, 503):
                return False
            raise
        return True

    def close(self) -> None:
        """Close the connections of all threads; a later call opens a new one."""
        self._local = threading.local()  # which holds the only reference to each

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, path: str, body: dict[str, Any], min_sequence: int | None) -> dict[str, Any]:
        """Send a query that sees what this client appended."""
        body["min_sequence"] = (self._appended or None) if min_sequence is None else min_sequence
        return self._request("POST", path, {key: value for key, value in body.items() if value is not None})

    def _request(self, method: str, path: str, body: Any = None, retry: bool = True) -> dict[str, Any]:
        data = None if body is None else _encode(body)
        headers = self._headers | ({} if data is None else {"Content-Type": "application/json"})
        deadline = time.monotonic() + self.timeout
        while True:
            response, content = self._send(method, path, data, headers, deadline)
            if response.status == 200:
                return _decode(response, content)
            pause = _parse_pause(response.headers.get("Retry-After", "1"))
            if not retry or response.status not in RETRIED or time.monotonic() + pause > deadline:
                raise _read_problem(response, content)
            time.sleep(pause)

    def _send(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], deadline: float
    ) -> tuple[HTTPResponse, bytes]:
        """Send a request; a connection that the server closed since the last one is opened again."""
        for is_last in (getattr(self._local, "connection", None) is None, True):
            connection = self._connect()
            try:
                connection.timeout = _count_seconds_to(deadline)  # of a connection that is opened now
                if connection.sock is not None:
                    connection.sock.settimeout(connection.timeout)
                connection.request(method, self._parts.path.rstrip("/") + path, data, headers)
                return _receive(connection, deadline)
            except (OSError, HTTPException) as error:
                connection.close()
                self._local.connection = None
                is_stale = isinstance(error, ConnectionError | HTTPException)
                if is_last or not is_stale:
                    raise ServerError(
                        f"{self.url} does not answer ({first_line(error)}); check that the server runs there",
                        code="server-unreachable",
                    ) from error
        raise AssertionError  # the last attempt returns or raises

    def _connect(self) -> "_Connection | _EncryptedConnection":
        connection = getattr(self._local, "connection", None)
        if connection is None:
            host, port = str(self._parts.hostname), self._parts.port
            if self._parts.scheme == "https":
                context = ssl.create_default_context(
                    cafile=None if self._cafile is None else str(self._cafile)
                )
                connection = _EncryptedConnection(host, port, context=context)
            else:
                connection = _Connection(host, port)
            self._local.connection = connection
        return connection


class _Connection(HTTPConnection):
    """A connection that is closed with the last reference to it: that of its thread."""

    def __del__(self) -> None:
        self.close()


class _EncryptedConnection(HTTPSConnection):
    """The same with TLS."""

    def __del__(self) -> None:
        self.close()


def _receive(connection: HTTPConnection, deadline: float) -> tuple[HTTPResponse, bytes]:
    """Return the answer; raise TimeoutError if it is not here in time, also where it comes in small parts."""
    sock = connection.sock  # the connection forgets it at the end of an answer that closes it
    response, parts = connection.getresponse(), []
    with response:  # `read1` does not end it, and then the connection would not take another request
        while part := response.read1(CHUNK_BYTES):
            parts.append(part)
            sock.settimeout(_count_seconds_to(deadline))
    if response.length:
        raise IncompleteRead(b"".join(parts), response.length)
    return response, b"".join(parts)


def _count_seconds_to(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _list_ids(ids: Iterable[str | int]) -> list[str | int]:
    return [ids] if isinstance(ids, str | int) else list(ids)


def _name_values(row: Sequence[Any], least: int) -> dict[str, Any]:
    if isinstance(row, str) or not least <= len(row) <= 3:
        form = "(src, dst, time)" if least == 3 else "(src, dst) or (src, dst, time)"
        raise ConfigError(f"give rows as {form} or as dicts; got {row!r:.80}", code="malformed-row")
    return dict(zip(("src", "dst", "time"), row, strict=False))


def _encode(body: Any) -> bytes:
    """Return JSON; dates and numbers of numpy, pandas and Arrow become text and plain numbers."""

    def convert(value: Any) -> Any:
        for name in ("isoformat", "item", "as_py"):
            if hasattr(value, name):
                return getattr(value, name)()
        raise ConfigError(f"JSON has no form for {value!r:.80}; give a string or a number", code="not-json")

    try:
        return json.dumps(body, default=convert, allow_nan=False).encode()
    except ValueError as error:
        raise ConfigError(f"JSON has no form for a value ({error}); leave it out", code="not-json") from error


def _decode(response: HTTPResponse, content: bytes) -> dict[str, Any]:
    try:
        return json.loads(content)
    except ValueError as error:  # the page of a proxy between, or of another server
        raise _read_problem(response, content) from error


def _parse_pause(text: str) -> float:
    """Return the seconds to wait for a header Retry-After: a number or an HTTP date; one second if it is neither."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            seconds = 1.0
    return min(max(MIN_RETRY_SECONDS, seconds), MAX_RETRY_SECONDS)


def _read_problem(response: HTTPResponse, content: bytes) -> ServerError:
    try:
        problem = json.loads(content)
        message, code = str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError):  # of a proxy between
        message, code = f"the server answered {response.status} {response.reason}", "unexpected-answer"
    return ServerError(message.replace("\n", " "), code=code, status=response.status)
