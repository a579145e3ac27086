"""Bodies of requests and responses, with examples; they are the schemas of /openapi.json."""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

MAX_SEQUENCE = 2**53 - 1  # the largest integer that every reader of JSON keeps
BIGGEST_INTEGER = 2**63
MAX_ROWS = 10_000  # of one request

Integer = Annotated[StrictInt, Field(ge=-BIGGEST_INTEGER, lt=BIGGEST_INTEGER)]
Number = Annotated[StrictFloat, Field(allow_inf_nan=False)]
Text = Annotated[StrictStr, Field(max_length=1_000)]
Id = Text | Integer
Time = Text | Integer | Number
Scalar = Annotated[StrictStr, Field(max_length=10_000)] | Integer | Number | StrictBool | None
MinSequence = Annotated[
    int | None,
    Field(
        strict=True, ge=0, le=MAX_SEQUENCE, description="Wait until events up to this sequence are visible."
    ),
]
Item = TypeVar("Item")
# parsing ends with the first wrong row, and with the first one too many
Rows = Annotated[list[Item], Field(fail_fast=True, max_length=MAX_ROWS)]
AT_TEXT = "Time of all queries without one of their own; by default just after the last event."


class Body(BaseModel):
    """A request. Unknown fields are refused, so that a misspelt one is noticed."""

    model_config = ConfigDict(extra="forbid")


class Pair(BaseModel):
    """A source and a destination; other fields are columns of the event in question, by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Scalar] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    src: Id
    dst: Id
    time: Time | None = None


@dataclass(frozen=True, slots=True)
class PairQuery:
    """A pair to score; ids as text, the time as it was given, other columns of the event in question by name."""

    src: str
    dst: str
    time: str | int | float | None = None
    columns: tuple[tuple[str, Any], ...] = ()


class ScoreRequest(Body):
    pairs: Rows[Pair] = Field(min_length=1)
    at: Time | None = Field(None, description=AT_TEXT)
    min_sequence: MinSequence = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"pairs": [{"src": "alice", "dst": "bob", "time": "2024-03-01T10:00"}]},
                {"pairs": [{"src": "alice", "dst": "bob"}], "min_sequence": 12},
            ]
        }
    )


class Score(BaseModel):
    """A pair as it was given, and its probability; runs without a calibration have `uncalibrated_score` instead."""

    src: Any
    dst: Any
    time: Any
    score: float | None = None
    uncalibrated_score: float | None = None


class ScoreResponse(BaseModel):
    scores: list[Score]
    sequence: int = Field(description="Events up to this sequence were visible.")


class RankRequest(Body):
    sources: Rows[Id] | None = Field(None, min_length=1, description="Rank the destinations of these.")
    destinations: Rows[Id] | None = Field(None, min_length=1, description="Rank the sources of these.")
    k: int = Field(10, strict=True, ge=1, le=10_000)
    at: Time | None = Field(None, description=AT_TEXT)
    candidates: Rows[Id] | None = Field(None, min_length=1, description="By default all known nodes.")
    only_new: bool = Field(
        False, strict=True, description="Leave out destinations that the source met before."
    )
    min_sequence: MinSequence = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"sources": ["alice", "bob"], "k": 3}]})


class RankResponse(BaseModel):
    ranking: list[dict[str, Any]]
    sequence: int
    notes: list[str] = Field(
        [], description="Sources without any event, or only with events as a destination."
    )


class ClassifyRequest(Body):
    nodes: Rows[Id] | None = Field(
        None, min_length=1, description="By default all nodes that were a source before."
    )
    k: int | None = Field(None, strict=True, ge=1, le=10_000)
    at: Time | None = Field(None, description=AT_TEXT)
    min_sequence: MinSequence = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"nodes": ["alice"]}]})


class ClassifyResponse(BaseModel):
    nodes: list[dict[str, Any]]
    sequence: int


class ExplainRequest(Body):
    src: Id = Field(description="The source, or the node in a run of the node task.")
    dst: Id | None = None
    at: Time | None = Field(None, description=AT_TEXT)
    orders: int = Field(4, strict=True, ge=1, le=100, description="More orders are slower and more exact.")
    top: int = Field(20, strict=True, ge=1, le=1_000, description="Number of events in the answer.")
    columns: dict[str, Scalar] | None = Field(None, description="Columns of the event in question.")
    min_sequence: MinSequence = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"src": "alice", "dst": "bob"}]})


class Verdict(BaseModel):
    """Verdict on an event: accepted, duplicate, late, ahead or invalid."""

    index: int
    status: str
    sequence: int | None = None
    message: str = ""


class EventsResponse(BaseModel):
    sequence: int = Field(description="Sequence of the last event on disk.")
    accepted: int
    verdicts: list[Verdict] = Field(description="Of the events that were not accepted, or of all.")


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str | None = None
    errors: list[dict[str, Any]] | None = None
