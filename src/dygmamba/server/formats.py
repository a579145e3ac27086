"""Bodies of requests: JSON and JSON lines, refused before they are parsed if they hold too many values."""

from collections.abc import Callable
from io import BytesIO
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from dygmamba.server.problems import Problem, describe_invalid_body
from dygmamba.server.schemas import Body, Rows, Scalar

Event = dict[str, Any]  # id, src, dst, time and columns by name
Parsed = TypeVar("Parsed", bound=BaseModel)

JSON_TYPE = "application/json"
NDJSON_TYPE = "application/x-ndjson"
MAX_FIELDS = 1_000  # of one event

Row = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=200)], Scalar], Field(max_length=MAX_FIELDS)
]


class EventsBody(Body):
    """Events, each with src, dst, time, optionally an id, and columns by name."""

    events: Rows[Row]


_ROW = TypeAdapter(Row)


def require_few_values(body: bytes, most: int) -> None:
    """Raise Problem if a body may hold more values than that; what stands in a string counts too.

    A parsed value takes up to a hundred times the memory of its text, so that the size of a body does not bound it.
    """
    count = sum(body.count(mark) for mark in (b",", b"[", b"{"))
    if count > most:
        detail = f"the body has {count:,} commas and brackets, and may have {most:,}; send several requests"
        raise Problem(413, "too-many-values", detail)


def parse_json(schema: type[Parsed], body: bytes) -> Parsed:
    """Return a body of JSON; raise Problem if it is none (400) or does not fit its schema (422)."""
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        raise describe_invalid_body(list_errors(error)) from None


def _read_json(body: bytes, most: int) -> list[Event]:
    return parse_json(EventsBody, body).events


def _read_json_lines(body: bytes, most: int) -> list[Event]:
    """Return the events of the first lines, one more than allowed at most."""
    events: list[Event] = []
    for number, line in enumerate(BytesIO(body), 1):
        try:
            if line.strip():
                events.append(_ROW.validate_json(line))
        except ValidationError as error:
            raise describe_invalid_body(list_errors(error), number) from None
        if len(events) > most:
            break
    return events


READERS: dict[str, Callable[[bytes, int], list[Event]]] = {
    JSON_TYPE: _read_json,
    NDJSON_TYPE: _read_json_lines,
}


def read_events(body: bytes, content_type: str, most: int) -> list[Event]:
    """Return the events of a body, of which `most` are allowed.

    Raises:
        Problem: The type is not one of `READERS` (415), the body is not of its type (400, 422), or too long (413).
    """
    kind = parse_content_type(content_type)
    if kind not in READERS:
        raise Problem(415, "unsupported-media-type", f"give events as one of {', '.join(READERS)}")
    events = READERS[kind](body, most)
    require_few_rows(len(events), "events", most)
    return events


def require_few_rows(count: int, what: str, most: int) -> None:
    if count > most:
        raise Problem.too_many_rows(most, what)


def list_errors(error: ValidationError) -> list[Any]:
    return [*error.errors(include_url=False, include_input=False)]


def parse_content_type(text: str) -> str:
    """Return a media type without its parameters."""
    return text.partition(";")[0].strip().lower()


_SCALAR_SCHEMA = {"type": ["string", "number", "boolean", "null"], "maxLength": 10_000}
# an event that lacks one of these is not a wrong request: its verdict is "invalid", and the others are accepted
_ROW_SCHEMA = {
    "type": "object",
    "description": "An event; without src, dst and time its verdict is invalid. Other fields are columns by name.",
    "properties": {
        "id": _SCALAR_SCHEMA | {"description": "The same id twice is one event."},
        "src": _SCALAR_SCHEMA | {"description": "A string or an integer."},
        "dst": _SCALAR_SCHEMA | {"description": "A string or an integer."},
        "time": _SCALAR_SCHEMA | {"description": "A date or a number."},
    },
    "propertyNames": {"minLength": 1, "maxLength": 200},
    "additionalProperties": _SCALAR_SCHEMA,
}
_EXAMPLE = {"id": "m-1", "src": "alice", "dst": "bob", "time": "2024-03-01T10:00"}
EVENTS_BODY_SCHEMA: dict[str, Any] = {
    "required": True,
    "content": {
        JSON_TYPE: {
            "schema": {
                "type": "object",
                "properties": {"events": {"type": "array", "items": _ROW_SCHEMA}},
                "required": ["events"],
                "additionalProperties": False,
            },
            "example": {"events": [_EXAMPLE]},
        },
        NDJSON_TYPE: {
            "schema": {"type": "string"},
            "example": '{"src": "alice", "dst": "bob", "time": 1709287200}\n',
        },
    },
}
