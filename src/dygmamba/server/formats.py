"""Events in the body of a request: JSON, JSON lines, an Arrow stream, or CloudEvents."""

from collections.abc import Callable
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, StrictStr, TypeAdapter, ValidationError

from dygmamba.server.problems import Problem, describe_invalid_body
from dygmamba.server.schemas import Scalar

Event = dict[str, Any]  # id, src, dst, time and columns by name

JSON_TYPE = "application/json"
NDJSON_TYPE = "application/x-ndjson"
ARROW_TYPE = "application/vnd.apache.arrow.stream"
CLOUDEVENTS_TYPE = "application/cloudevents-batch+json"

Row = dict[Annotated[str, Field(min_length=1, max_length=200)], Scalar]
Name = Annotated[StrictStr, Field(min_length=1, max_length=1_000)]


class EventsBody(BaseModel):
    """Events, each with src, dst, time, optionally an id, and columns by name."""

    model_config = ConfigDict(extra="forbid")
    events: list[Row]


class CloudEvent(BaseModel):
    """An event in the envelope of CloudEvents 1.0; other attributes of the envelope are ignored."""

    specversion: Annotated[str, Field(pattern=r"^1\.")]
    id: Name
    source: Name
    type: Name
    time: Name | None = None
    data: Row


_ROW = TypeAdapter(Row)
_CLOUD_EVENTS = TypeAdapter(list[CloudEvent])


def read_json(body: bytes) -> list[Event]:
    return EventsBody.model_validate_json(body).events


def read_json_lines(body: bytes) -> list[Event]:
    events = []
    for number, line in enumerate(body.splitlines(), 1):
        try:
            if line.strip():
                events.append(_ROW.validate_json(line))
        except ValidationError as error:
            raise describe_invalid_body(_list_errors(error), number) from None
    return events


def read_cloud_events(body: bytes) -> list[Event]:
    """Return the data of CloudEvents. An event is identified by the source and the id of its envelope."""
    return [
        {"time": event.time, **event.data, "id": f"{event.source} {event.id}"}
        for event in _CLOUD_EVENTS.validate_json(body)
    ]


def read_arrow(body: bytes) -> list[Event]:
    """Return the rows of an Arrow stream; dates become ISO dates, which keep every digit."""
    try:
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
        table.validate(full=True)
        columns = {name: _to_plain(table.column(name)) for name in table.column_names}
    except (pa.ArrowException, ValueError, TypeError, KeyError, OSError, UnicodeDecodeError) as error:
        raise Problem(
            400, "malformed-arrow", "the body is not a valid Arrow stream with plain columns"
        ) from error
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return TypeAdapter(list[Row]).validate_python(rows)


def _to_plain(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    return column.to_pylist()


READERS: dict[str, Callable[[bytes], list[Event]]] = {
    JSON_TYPE: read_json,
    NDJSON_TYPE: read_json_lines,
    ARROW_TYPE: read_arrow,
    CLOUDEVENTS_TYPE: read_cloud_events,
}


def read_events(body: bytes, content_type: str) -> list[Event]:
    """Return the events of a body.

    Raises:
        Problem: The type is not one of `READERS` (415), or the body is not of its type (400, 422).
    """
    kind = parse_content_type(content_type)
    if kind not in READERS:
        raise Problem(415, "unsupported-media-type", f"give events as one of {', '.join(READERS)}")
    try:
        return READERS[kind](body)
    except ValidationError as error:
        raise describe_invalid_body(_list_errors(error)) from None


def _list_errors(error: ValidationError) -> list[Any]:
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
        ARROW_TYPE: {"schema": {"type": "string", "format": "binary"}},
        CLOUDEVENTS_TYPE: {
            "schema": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "specversion": {"const": "1.0"},
                        "id": {"type": "string", "minLength": 1},
                        "source": {"type": "string", "minLength": 1},
                        "type": {"type": "string", "minLength": 1},
                        "data": _ROW_SCHEMA,
                    },
                    "required": ["specversion", "id", "source", "type", "data"],
                },
            },
            "example": [
                {"specversion": "1.0", "id": "1", "source": "/mail", "type": "sent", "data": _EXAMPLE}
            ],
        },
    },
}
