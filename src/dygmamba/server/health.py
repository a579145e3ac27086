"""Health and metrics."""

from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from dygmamba._version import __version__
from dygmamba.server.problems import Problem
from dygmamba.server.routes import PROBLEM_RESPONSES, Service

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(responses=PROBLEM_RESPONSES)


@router.get("/v2", summary="Describe the server.")
async def describe_server() -> Response:
    return JSONResponse({"name": "dygmamba", "version": __version__, "extensions": []})


@router.get("/v2/health/live", summary="Tell whether the server runs.")
async def check_live() -> Response:
    return JSONResponse({"live": True})


@router.get("/ping", summary="Tell whether the server answers queries.")
@router.get("/v2/health/ready", summary="Tell whether the server answers queries.")
async def check_ready(service: Service) -> Response:
    service.require_ready()
    return JSONResponse({"ready": True})


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
