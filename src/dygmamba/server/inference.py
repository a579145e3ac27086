"""Routes of other protocols: the Open Inference Protocol (/v2), MLflow's scoring server, health and metrics."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from fastapi import APIRouter, Request
from pydantic import TypeAdapter, ValidationError
from starlette.responses import JSONResponse, PlainTextResponse, Response

from dygmamba._version import __version__
from dygmamba.server import schemas
from dygmamba.server.formats import JSON_TYPE, Row, parse_content_type
from dygmamba.server.pair_groups import PairQuery
from dygmamba.server.problems import Problem, describe_invalid_body
from dygmamba.server.routes import IS_JSON, PROBLEM_RESPONSES, Service

CSV_TYPE = "text/csv"
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DATATYPES = {"src": "BYTES", "dst": "BYTES", "time": "FP64"}

FRAME_FORMS = ("dataframe_split", "dataframe_records", "instances", "inputs")
_RECORDS_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {"src": {"type": ["string", "integer"]}, "dst": {"type": ["string", "integer"]}},
        "required": ["src", "dst"],
    },
}
_TABLE_SCHEMAS = {
    "dataframe_split": {
        "type": "object",
        "properties": {
            "columns": {"type": "array", "items": {"type": "string"}},
            "data": {"type": "array", "items": {"type": "array"}},
        },
        "required": ["columns", "data"],
    },
    "inputs": {
        "type": "object",
        "properties": {"src": {"type": "array", "minItems": 1}, "dst": {"type": "array", "minItems": 1}},
        "required": ["src", "dst"],
    },
}
FRAME_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {form: _TABLE_SCHEMAS.get(form, _RECORDS_SCHEMA)},
            "required": [form],
        }
        for form in FRAME_FORMS
    ]
}

router = APIRouter(responses=PROBLEM_RESPONSES)
_ROWS = TypeAdapter(list[Row])


@router.get("/v2", summary="Describe the server.")
async def describe_server() -> Response:
    return JSONResponse({"name": "dygmamba", "version": __version__, "extensions": []})


@router.get("/v2/health/live", summary="Tell whether the server runs.")
async def check_live() -> Response:
    return JSONResponse({"live": True})


@router.get("/v2/health/ready", summary="Tell whether the server answers queries.")
async def check_ready(service: Service) -> Response:
    _ = service.live
    return JSONResponse({"ready": True})


@router.get("/ping", summary="Tell whether the server answers queries (MLflow).")
async def ping(service: Service) -> Response:
    return await check_ready(service)


@router.get(
    "/metrics", summary="Return the metrics of the server, for Prometheus.", response_class=PlainTextResponse
)
async def show_metrics(service: Service) -> Response:
    service.refresh_metrics()
    return Response(service.metrics.format(), media_type=PROMETHEUS_TYPE)


@router.get("/v2/models/{name}", summary="Describe the model.")
async def describe_model(name: str, service: Service) -> Response:
    model, version = _find_model(name, service)
    inputs = [{"name": key, "datatype": kind, "shape": [-1]} for key, kind in DATATYPES.items()]
    outputs = [{"name": "score", "datatype": "FP64", "shape": [-1]}]
    return JSONResponse(
        {"name": model, "versions": [version], "platform": "dygmamba", "inputs": inputs, "outputs": outputs}
    )


@router.get("/v2/models/{name}/ready", summary="Tell whether the model answers queries.")
async def check_model_ready(name: str, service: Service) -> Response:
    model, _ = _find_model(name, service)
    return JSONResponse({"name": model, "ready": True})


@router.post(
    "/v2/models/{name}/infer",
    summary="Score pairs (Open Inference Protocol).",
    dependencies=IS_JSON,
    responses={200: {"model": schemas.InferResponse}},
)
async def infer(name: str, body: schemas.InferRequest, service: Service) -> Response:
    """Inputs are tensors of one dimension: src, dst, optionally time and columns of the events in question."""
    model, version = _find_model(name, service)
    columns = {tensor.name: tensor.data for tensor in body.inputs}
    for tensor in body.inputs:
        if tensor.shape not in ([len(tensor.data)], [len(tensor.data), 1]):
            raise Problem(
                422, "wrong-shape", f"a tensor has {len(tensor.data)} values; give it the shape of that"
            )
    scores = await _score_columns(columns, service)
    output = {"name": "score", "shape": [len(scores)], "datatype": "FP64", "data": scores}
    answer = {"model_name": model, "model_version": version, "outputs": [output]}
    return JSONResponse(answer | ({} if body.id is None else {"id": body.id}))


@router.post(
    "/invocations",
    summary="Score pairs (MLflow).",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                JSON_TYPE: {
                    "schema": FRAME_SCHEMA,
                    "example": {"dataframe_split": {"columns": ["src", "dst"], "data": [["alice", "bob"]]}},
                },
                CSV_TYPE: {"schema": {"type": "string"}, "example": "src,dst\nalice,bob\n"},
            },
        }
    },
    responses={200: {"content": {JSON_TYPE: {"example": {"predictions": [0.25]}}}}},
)
async def invoke(request: Request, service: Service) -> Response:
    """Take dataframe_split, dataframe_records, instances or inputs as JSON, or CSV with a header."""
    _ = service.live
    body, kind = await request.body(), parse_content_type(request.headers.get("content-type", ""))
    try:
        columns = _read_csv(body) if kind == CSV_TYPE else _read_frame(kind, await _read_json(request))
    except ValidationError as error:
        raise describe_invalid_body(error.errors(include_url=False, include_input=False)) from None
    return JSONResponse({"predictions": await _score_columns(columns, service)})


def _find_model(name: str, service: Service) -> tuple[str, str]:
    _ = service.live
    known = service.model["name"]
    if name != known:
        raise Problem(404, "unknown-model", f"this server has one model, '{known}'")
    return known, service.model["version"]


async def _read_json(request: Request) -> Any:
    try:
        return await request.json()
    except (ValueError, RecursionError):
        raise Problem(400, "malformed-json", "the body is not valid JSON") from None


def _read_csv(body: bytes) -> Mapping[str, Sequence[Any]]:
    try:
        names, *rows = list(csv.reader(StringIO(body.decode("utf-8-sig")), strict=True))
        return {name: [row[place] for row in rows] for place, name in enumerate(names)}
    except (ValueError, IndexError, csv.Error):
        raise Problem(
            400, "malformed-csv", "the body is not a table with a header and rows of equal length"
        ) from None


def _read_frame(kind: str, body: Any) -> Mapping[str, Sequence[Any]]:
    """Return the columns of one of the forms that MLflow's clients send."""
    if kind != JSON_TYPE:
        raise Problem(415, "unsupported-media-type", f"give the body as {JSON_TYPE} or {CSV_TYPE}")
    form = next((name for name in FRAME_FORMS if isinstance(body, dict) and name in body), None)
    if form is None:
        raise Problem(
            422, "invalid-request", f"give an object with one of {', '.join(FRAME_FORMS)}; see /openapi.json"
        )
    table = body[form]
    if form == "dataframe_split" and isinstance(table, dict):
        names, rows = table.get("columns"), table.get("data")
        if (
            isinstance(names, list)
            and isinstance(rows, list)
            and all(isinstance(row, list) and len(row) == len(names) for row in rows)
        ):
            table = [dict(zip(map(str, names), row, strict=True)) for row in rows]
    if isinstance(table, dict):  # columns
        return {name: values if isinstance(values, list) else [values] for name, values in table.items()}
    rows = _ROWS.validate_python(table if isinstance(table, list) else None)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


async def _score_columns(columns: Mapping[str, Sequence[Any]], service: Service) -> list[float]:
    """Score pairs that are given as columns."""
    missing = [name for name in ("src", "dst") if name not in columns]
    if missing or len(set(map(len, columns.values()))) != 1:
        raise Problem(
            422, "wrong-columns", "give src and dst, optionally time and other columns, of equal length"
        )
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    try:
        pairs = schemas.ScoreRequest.model_validate({"pairs": rows}).pairs
    except ValidationError as error:
        raise describe_invalid_body(error.errors(include_url=False, include_input=False)) from None
    queries = [
        PairQuery(
            str(pair.src), str(pair.dst), pair.time, tuple(sorted((pair.__pydantic_extra__ or {}).items()))
        )
        for pair in pairs
    ]
    return (await service.score(queries)).scores
