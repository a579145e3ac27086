"""Errors as problem documents (RFC 9457, application/problem+json)."""

import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dygmamba.core.errors import DygError, LockedError, ScoreError, WriteError

log = logging.getLogger("dygmamba.server")

PROBLEM_TYPE = "application/problem+json"
RETRY_SECONDS = 1
DISK_RETRY_SECONDS = 30
MAX_ERRORS = 20  # of the rows of one request

STATUS_OF_CODE = {
    "sequence-not-reached": 503,
    "timeout": 503,
    "append-unconfirmed": 504,
    "live-closed": 503,
    "not-a-node-run": 409,
    "not-a-link-run": 409,
}
STATUS_OF_TYPE: dict[type[DygError], int] = {WriteError: 507, LockedError: 503, ScoreError: 500}


class Problem(HTTPException):
    """A request that gets an error instead of a result."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[dict[str, Any]] = (),
        retry_after: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        retry = {} if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, detail, {**(headers or {}), **retry})
        self.code = code
        self.errors = list(errors)

    @staticmethod
    def from_error(error: DygError) -> "Problem":
        """Return the problem of an error of this package; its message is written for users."""
        if error.code == "live-state-failed":  # its message may hold ids
            return Problem.state_failed()
        by_type = next((status for kind, status in STATUS_OF_TYPE.items() if isinstance(error, kind)), 422)
        status = STATUS_OF_CODE.get(error.code, by_type)
        if status == 507:  # its message names a folder of the server
            log.error(str(error))
            detail = (
                "the server cannot write to its disk, so that no event was accepted; send them again later"
            )
            return Problem(status, error.code, detail, retry_after=DISK_RETRY_SECONDS)
        return Problem(status, error.code, str(error), retry_after=RETRY_SECONDS if status == 503 else None)

    @staticmethod
    def busy(what: str) -> "Problem":
        return Problem(
            429,
            "too-many-requests",
            f"too many requests wait for {what}; try again",
            retry_after=RETRY_SECONDS,
        )

    @staticmethod
    def too_many_rows(most: int, what: str) -> "Problem":
        return Problem(413, "too-many-rows", f"a request may have {most:,} {what}; send several requests")

    @staticmethod
    def state_failed() -> "Problem":
        detail = (
            "the state takes no more events, and all acknowledged ones are in the log; restart the server"
        )
        return Problem(503, "live-state-failed", detail)

    @staticmethod
    def timed_out(seconds: float) -> "Problem":
        detail = f"the request was not finished within {seconds:g} seconds; try again, or ask for less"
        return Problem(503, "timeout", detail, retry_after=RETRY_SECONDS)

    def to_response(self, request_id: str = "") -> Response:
        document: dict[str, Any] = {
            "type": f"urn:dygmamba:problem:{self.code}",
            "title": HTTPStatus(self.status_code).phrase,
            "status": self.status_code,
            "detail": self.detail,
            "code": self.code,
        }
        if request_id:
            document["instance"] = f"urn:dygmamba:request:{request_id}"
        if self.errors:
            document["errors"] = self.errors[:MAX_ERRORS]
        body = json.dumps(document).encode()
        return Response(body, self.status_code, dict(self.headers or {}), media_type=PROBLEM_TYPE)


def respond_to_http_exception(request: Request, error: Exception) -> Response:
    """Answer the framework's own errors, such as an unknown path, with a problem document."""
    if not isinstance(error, HTTPException):
        raise error
    problem = error
    if not isinstance(problem, Problem):
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        problem = Problem(error.status_code, code, str(error.detail), headers=dict(error.headers or {}))
    return problem.to_response(get_request_id(request))


def respond_to_error(request: Request, error: Exception) -> Response:
    """Answer an error of this package with a problem document."""
    if not isinstance(error, DygError):
        raise error
    return Problem.from_error(error).to_response(get_request_id(request))


def respond_to_invalid_body(request: Request, error: Exception) -> Response:
    """Answer a body that does not fit its schema: where it does not, without repeating its values."""
    found = error.errors() if hasattr(error, "errors") else []  # pyright: ignore[reportAttributeAccessIssue]
    return describe_invalid_body(found).to_response(get_request_id(request))


def describe_invalid_body(found: Sequence[Any], line: int | None = None) -> Problem:
    """Return the problem for errors as pydantic lists them; `line` is where they are in a body of JSON lines."""
    where = "the body" if line is None else f"line {line} of the body"
    if any(item["type"] == "json_invalid" for item in found):
        detail = f"{where} is not valid JSON ({found[0].get('ctx', {}).get('error', found[0]['msg'])})"
        if line is not None:
            detail = detail.replace("at line 1 column", "at column")
        return Problem(400, "malformed-json", detail, errors=[{"pointer": "#/", "detail": detail}])
    for item in found:
        if item["type"] == "too_long" and item["ctx"]["field_type"] == "List":
            return Problem.too_many_rows(item["ctx"]["max_length"], "rows")
    errors = [{"pointer": _to_pointer(item["loc"]), "detail": item["msg"]} for item in found]
    first = f" ({errors[0]['pointer']}: {errors[0]['detail']})" if errors else ""
    what = "the request" if line is None else where
    detail = f"{what} does not fit the schema of this route, see /openapi.json{first}"
    return Problem(422, "invalid-request", detail, errors=errors)


def _to_pointer(location: Sequence[Any]) -> str:
    """Return a JSON pointer into the body; pydantic adds the names of the types it tried, which are left out."""
    names = [str(part) for part in location if part not in ("body",) and not _is_type_name(part)]
    return "#/" + "/".join(name.replace("~", "~0").replace("/", "~1") for name in names)


def _is_type_name(part: Any) -> bool:
    return isinstance(part, str) and (
        part in ("str", "int", "float", "bool", "none") or "[" in part or part.startswith("constrained-")
    )


def get_request_id(request: Request) -> str:
    return request.scope.get("dygmamba.request_id", "")
