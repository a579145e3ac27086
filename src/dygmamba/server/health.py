"""Health and metrics, and the scoring protocol of MLflow."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.responses import JSONResponse, PlainTextResponse, Response

from dygmamba._version import __version__
from dygmamba.server import schemas
from dygmamba.server.formats import JSON_TYPE, Row, list_errors, require_few_rows
from dygmamba.server.problems import Problem, describe_invalid_body
from dygmamba.server.routes import IS_JSON, PROBLEM_RESPONSES, Service, list_queries

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
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
    service.require_ready()
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


@router.get("/v2/models/{name}/ready", summary="Tell whether the model answers queries.")
async def check_model_ready(name: str, service: Service) -> Response:
    service.require_ready()
    known = service.model["name"]
    if name != known:
        raise Problem(404, "unknown-model", f"this server has one model, '{known}'")
    return JSONResponse({"name": known, "ready": True})


@router.post(
    "/invocations",
    summary="Score pairs (MLflow).",
    dependencies=IS_JSON,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                JSON_TYPE: {
                    "schema": FRAME_SCHEMA,
                    "example": {"dataframe_split": {"columns": ["src", "dst"], "data": [["alice", "bob"]]}},
                },
            },
        }
    },
    responses={200: {"content": {JSON_TYPE: {"example": {"predictions": [0.25]}}}}},
)
async def invoke(request: Request, service: Service) -> Response:
    """Take dataframe_split, dataframe_records, instances or inputs."""
    _ = service.live
    most = service.settings.max_rows
    queries = await service.parse(lambda body: _read_queries(body, most), await request.body())
    return JSONResponse({"predictions": (await service.score(queries)).scores})


def _read_queries(body: bytes, most: int) -> list[schemas.PairQuery]:
    try:
        columns = _read_frame(from_json(body))
        missing = [name for name in ("src", "dst") if name not in columns]
        if missing or len(set(map(len, columns.values()))) != 1:
            raise Problem(
                422, "wrong-columns", "give src and dst, optionally time and other columns, of equal length"
            )
        require_few_rows(len(columns["src"]), "pairs", most)
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return list_queries(schemas.ScoreRequest.model_validate({"pairs": rows}))
    except ValidationError as error:
        raise describe_invalid_body(list_errors(error)) from None
    except ValueError:
        raise Problem(400, "malformed-json", "the body is not valid JSON") from None


def _read_frame(body: Any) -> Mapping[str, Sequence[Any]]:
    """Return the columns of one of the forms that MLflow's clients send."""
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
