"""Layers around every request: an id, a line in the log, metrics, access, size of the body, security headers."""

import asyncio
import base64
import binascii
import hmac
import logging
import re
import secrets
import time
from collections.abc import Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dygmamba.server.monitoring import Metrics
from dygmamba.server.problems import Problem
from dygmamba.server.settings import ServerSettings, is_loopback

log = logging.getLogger("dygmamba.server")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class RequestLog:
    """Give each request an id, count and time it, log it without its payload, and answer unexpected errors."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope["dygmamba.request_id"] = request_id
        status, started = 0, time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(message, {**SECURITY_HEADERS, "x-request-id": request_id})
            await send(message)

        with self.metrics.in_progress.track_inprogress():
            try:
                await self.app(scope, receive, send_with_headers)
            except Exception as error:
                # the message of the error may hold values of the request, so only its type and place are logged
                log.error(
                    "unexpected error", extra={"request_id": request_id, "error": describe_place(error)}
                )
                if status:
                    raise
                detail = "the server failed; its log has the place of the error under this request id"
                response = Problem(500, "internal-error", detail).to_response(request_id)
                await response(scope, receive, send_with_headers)
        seconds = time.perf_counter() - started
        route = getattr(scope.get("route"), "path", "unmatched")
        self.metrics.count_request(route, scope["method"], status, seconds)
        fields = {"method": scope["method"][:16], "route": route, "status": status}
        log.info("request", extra={"request_id": request_id, **fields, "ms": round(1e3 * seconds, 2)})


def describe_place(error: BaseException) -> list[str]:
    """Return the type of an error and the places in the code that it came through, without any value."""
    places, trace = [type(error).__name__], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return places


def _add_headers(message: Message, headers: MutableMapping[str, str]) -> None:
    present = {name.lower() for name, _ in message.get("headers", ())}
    added = [
        (name.encode(), value.encode()) for name, value in headers.items() if name.encode() not in present
    ]
    message["headers"] = [*message.get("headers", ()), *added]


class AccessControl:
    """Require the token, if there is one, and refuse requests that other websites make a browser send."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.token = None if settings.token is None else settings.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            problem = self._find_problem(Headers(scope=scope))
            if problem is not None:
                return await problem.to_response(scope.get("dygmamba.request_id", ""))(scope, receive, send)
        return await self.app(scope, receive, send)

    def _find_problem(self, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if self.token is None and not is_loopback(_strip_port(host)):
            # a website whose name resolves to this machine (DNS rebinding)
            return Problem(
                403, "unknown-host", "the server answers to localhost only; set a token to use other names"
            )
        if self.token is not None and not any(
            hmac.compare_digest(given, self.token) for given in _read_tokens(headers)
        ):
            return Problem(
                401,
                "token-required",
                "give the token of this server as 'Authorization: Bearer TOKEN', or as the password of basic access",
                headers={
                    "WWW-Authenticate": 'Bearer realm="dygmamba", Basic realm="dygmamba", charset="UTF-8"'
                },
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return Problem(403, "foreign-origin", "requests from pages of other origins are refused")
        return None


def _strip_port(host: str) -> str:
    return re.sub(r":\d*$", "", host).strip("[]").lower()


def _read_tokens(headers: Headers) -> Iterable[bytes]:
    """Yield the tokens of the Authorization header: a bearer token, or the password of basic access."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield value.strip().encode()
    elif scheme.lower() == "basic":
        try:
            yield base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return


class BodyLimit:
    """Refuse bodies that are too long or arrive too slowly, before they are in memory; stop if the client leaves."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app, self.settings = app, settings
        self.buffered = 0  # bytes of the bodies of all requests in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        problem = self._find_problem(Headers(scope=scope))
        if problem is not None:
            return await problem.to_response(scope.get("dygmamba.request_id", ""))(scope, receive, send)
        body = _LimitedBody(self, receive)
        try:
            await self.app(scope, body.receive, send)
        except asyncio.CancelledError:
            if not body.is_client_gone:
                raise
        finally:
            body.release()

    def _find_problem(self, headers: Headers) -> Problem | None:
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.settings.max_body_bytes:
            return self.too_large()
        if headers.get("content-encoding", "identity").lower() != "identity":
            return Problem(415, "unsupported-encoding", "send the body without compression")
        return None

    def too_large(self) -> Problem:
        detail = (
            f"the body is larger than {self.settings.max_body_bytes:,} bytes; send it in several requests"
        )
        return Problem(413, "body-too-large", detail)


class _LimitedBody:
    """The body of one request as it arrives; after it, the task of the request is cancelled if the client leaves."""

    def __init__(self, limit: BodyLimit, receive: Receive) -> None:
        self._limit, self._receive, self._request = limit, receive, asyncio.current_task()
        self._size, self._deadline = 0, time.monotonic() + limit.settings.timeout
        self._leaving: asyncio.Task[None] | None = None
        self.is_client_gone = False

    async def receive(self) -> Message:
        if self._leaving is not None:  # only the end of the connection can follow
            return {"type": "http.disconnect"}
        limit, seconds = self._limit, self._limit.settings.timeout
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            raise Problem(408, "body-too-slow", f"the body did not arrive in {seconds:g} s") from None
        added = len(message.get("body", b""))
        self._size, limit.buffered = self._size + added, limit.buffered + added
        if self._size > limit.settings.max_body_bytes:
            raise limit.too_large()
        if limit.buffered > limit.settings.max_buffered_bytes:
            raise Problem.busy("memory")
        if not message.get("more_body", False):
            self._leaving = asyncio.create_task(self._cancel_when_gone())
        return message

    async def _cancel_when_gone(self) -> None:
        await self._receive()
        self.is_client_gone = True
        if self._request is not None:
            self._request.cancel()

    def release(self) -> None:
        self._limit.buffered -= self._size
        if self._leaving is not None:
            self._leaving.cancel()


def as_log_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what was given as `extra` to a log call."""
    names = ("request_id", "method", "route", "status", "ms", "error", "fields")
    return {name: getattr(record, name) for name in names if hasattr(record, name)}
