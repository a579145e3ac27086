"""The application: routes and layers around a live run."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.exceptions import HTTPException

from dygmamba._version import __version__
from dygmamba.core.errors import DygError
from dygmamba.live.event_sources import EventSource
from dygmamba.server import health, routes
from dygmamba.server.middleware import AccessControl, BodyLimit, RequestLog, describe_place
from dygmamba.server.monitoring import Metrics
from dygmamba.server.problems import respond_to_error, respond_to_http_exception, respond_to_invalid_body
from dygmamba.server.schemas import ProblemDocument
from dygmamba.server.service import LiveService
from dygmamba.server.settings import ServerSettings

if TYPE_CHECKING:
    from dygmamba.live.live_run import LiveRun

log = logging.getLogger("dygmamba.server")
DESCRIPTION = (
    "Append events and score pairs in your own ids and times. Errors are problem documents (RFC 9457)."
)


def create_app(
    open_live: "Callable[[], LiveRun]",
    settings: ServerSettings,
    sources: Sequence[EventSource] = (),
    on_failure: Callable[[Exception], None] = lambda error: None,
) -> FastAPI:
    """Return an application that opens its live run in the background, and answers 503 until it is open.

    Args:
        open_live: Opens the live run; the application closes it at its end.
        settings: Access and limits.
        sources: Where events come from beside requests.
        on_failure: Called with the error if the run cannot be opened.
    """
    metrics = Metrics()
    service = LiveService(settings, metrics)

    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        loading = asyncio.create_task(_open(service, open_live, sources, on_failure))
        try:
            yield
        finally:
            await service.stop()
            live = await loading
            if live is not None:
                await asyncio.to_thread(live.close)

    app = FastAPI(
        title="dygmamba",
        version=__version__,
        description=DESCRIPTION,
        lifespan=run,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service, app.state.metrics, app.state.settings = service, metrics, settings
    app.add_exception_handler(HTTPException, respond_to_http_exception)
    app.add_exception_handler(RequestValidationError, respond_to_invalid_body)
    app.add_exception_handler(DygError, respond_to_error)
    # the last one is the outermost
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(AccessControl, settings=settings)
    app.add_middleware(RequestLog, metrics=metrics)
    for part in (routes, health):
        app.include_router(part.router)
    _describe_schemas(app)
    return app


async def _open(
    service: LiveService,
    open_live: "Callable[[], LiveRun]",
    sources: Sequence[EventSource],
    on_failure: Callable[[Exception], None],
) -> "LiveRun | None":
    try:
        live = await asyncio.to_thread(open_live)
        await asyncio.to_thread(service.attach, live)
    except Exception as error:
        if not isinstance(error, DygError):  # whose message is written for users, and ends the process
            log.error("the run cannot be opened", extra={"error": describe_place(error)})
        on_failure(error)
        return None
    service.follow(sources)
    level = logging.INFO if live.recovery.is_writable else logging.WARNING
    log.log(level, "ready", extra={"fields": {"sequence": live.sequence, "log": live.recovery.describe()}})
    return live


def _describe_schemas(app: FastAPI) -> None:
    """Add the schemas of bodies, which FastAPI does not parse, and of problem documents to /openapi.json."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
            (model, "validation") for model in (*routes.BODIES, ProblemDocument)
        ]
        _, found = models_json_schema(models, ref_template=routes.SCHEMA_PATH)
        document.setdefault("components", {}).setdefault("schemas", {}).update(found["$defs"])
        return document

    app.openapi = openapi
