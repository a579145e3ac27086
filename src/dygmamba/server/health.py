"""Health, metrics, and the page at `/` with its files, which are part of the package."""

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from dygmamba._version import __version__
from dygmamba.server.problems import Problem
from dygmamba.server.routes import PROBLEM_RESPONSES, Service

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE_FILES = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}

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


def _read(name: str) -> bytes:
    return files("dygmamba.server").joinpath("static", name).read_bytes()


@router.get("/", include_in_schema=False)
async def show_page() -> Response:
    return Response(_read("page.html"), media_type="text/html; charset=utf-8")


@router.get("/favicon.ico", include_in_schema=False)
async def send_no_icon() -> Response:
    """Browsers ask for one; without this route each visit would be an error in the log."""
    return Response(status_code=204)


@router.get("/static/{name}", include_in_schema=False)
async def send_file(name: str) -> Response:
    if name not in PAGE_FILES:
        raise Problem(404, "not-found", "there is no such file")
    return Response(_read(name), media_type=PAGE_FILES[name])
