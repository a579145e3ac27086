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
from dygmamba.server.settings import ServerSettings

log = logging.getLogger("dygmamba.server")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}
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
        if self.token is None and _strip_port(host) not in LOOPBACK_NAMES:
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
    """Refuse bodies that are too long or arrive too slowly, before they are in memory."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app, self.most, self.seconds = app, settings.max_body_bytes, settings.timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        problem = None
        if (
            headers.get("content-length", "0").isdigit()
            and int(headers.get("content-length", "0")) > self.most
        ):
            problem = self._too_large()
        elif headers.get("content-encoding", "identity").lower() != "identity":
            problem = Problem(415, "unsupported-encoding", "send the body without compression")
        if problem is not None:
            return await problem.to_response(scope.get("dygmamba.request_id", ""))(scope, receive, send)
        size, deadline, is_complete = 0, time.monotonic() + self.seconds, False

        async def limited() -> Message:
            nonlocal size, is_complete
            if is_complete:  # only the end of the connection can follow
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise Problem(
                    408, "body-too-slow", f"the body did not arrive in {self.seconds:g} s"
                ) from None
            size += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if size > self.most:
                raise self._too_large()
            return message

        return await self.app(scope, limited, send)

    def _too_large(self) -> Problem:
        detail = f"the body is larger than {self.most:,} bytes; send it in several requests"
        return Problem(413, "body-too-large", detail)


def as_log_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what was given as `extra` to a log call."""
    names = ("request_id", "method", "route", "status", "ms", "error", "fields")
    return {name: getattr(record, name) for name in names if hasattr(record, name)}
