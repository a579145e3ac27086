"""The application, routes and layers around a live run; uvicorn runs it until a signal stops it.

Its log is one JSON object per line, without payloads.
"""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.exceptions import HTTPException

from dygmamba._version import __version__
from dygmamba.core.errors import ConfigError, DygError, first_line
from dygmamba.live.event_sources import EventSource
from dygmamba.server import health, routes
from dygmamba.server.connections import HEADER_SECONDS, AcceptErrors, ConnectionState, LimitedProtocol
from dygmamba.server.middleware import AccessControl, BodyLimit, RequestLog, as_log_fields, describe_place
from dygmamba.server.monitoring import Metrics
from dygmamba.server.problems import respond_to_error, respond_to_http_exception, respond_to_invalid_body
from dygmamba.server.schemas import ProblemDocument
from dygmamba.server.service import LiveService
from dygmamba.server.settings import ServerSettings

if TYPE_CHECKING:
    from dygmamba.live.live_run import LiveRun

log = logging.getLogger("dygmamba.server")
LOGGERS = ("dygmamba.server", "dygmamba.live", "uvicorn.error")
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


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        return json.dumps(line | as_log_fields(record))  # ASCII: no control character reaches a terminal


def configure_logs() -> None:
    """Send the log to stderr; warnings and errors of uvicorn too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == LOGGERS[0] else logging.WARNING)


class LiveServer(uvicorn.Server):
    """A server that stops accepting at the first SIGTERM or SIGINT, finishes what has begun, and then exits with 0."""

    def __init__(
        self,
        open_live: "Callable[[], LiveRun]",
        settings: ServerSettings,
        sources: Sequence[EventSource] = (),
        on_start: Callable[[str], None] = lambda url: None,
    ) -> None:
        app = create_app(open_live, settings, sources, self._fail)
        self.service, self.on_start, self.failure = app.state.service, on_start, None
        self.reload: Callable[[LiveRun], None] | None = None  # called at SIGHUP
        self._reloading: set[asyncio.Task[None]] = set()
        state = ConnectionState()
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                http=LimitedProtocol,
                backlog=state.most // 4,  # as many are accepted at once, before any is closed
                timeout_keep_alive=round(HEADER_SECONDS),
                timeout_graceful_shutdown=round(settings.drain_seconds),
            )
        )
        self.settings, self.server_state = settings, state

    async def startup(self, sockets: list | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(AcceptErrors())
        port = self.servers[0].sockets[0].getsockname()[1]
        self.on_start(self.settings.url.rpartition(":")[0] + f":{port}")
        hangup = getattr(signal, "SIGHUP", None)  # Windows has none
        if self.reload is not None and hangup is not None:
            with suppress(NotImplementedError, RuntimeError):  # not in the main thread
                self.loop.add_signal_handler(hangup, self._start_reload)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; at the second signal at once. Not raised again after the end, unlike uvicorn's own."""
        self.service.is_draining = True
        self.force_exit = self.should_exit
        self.should_exit = True

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.should_exit = True

    def _start_reload(self) -> None:
        task = self.loop.create_task(self._reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _reload(self) -> None:
        """Change to another run; if that fails, the old one goes on."""
        try:
            assert self.reload is not None
            live = self.service.live
            await asyncio.to_thread(self.reload, live)
            await asyncio.to_thread(self.service.note_run, live)
            log.info("run switched")
        except DygError as error:
            log.error(str(error))
        except Exception as error:
            log.error("the run was not switched", extra={"error": describe_place(error)})


def run_server(
    open_live: "Callable[[], LiveRun]",
    settings: ServerSettings,
    sources: Sequence[EventSource] = (),
    on_start: Callable[[str], None] = lambda url: None,
    reload: "Callable[[LiveRun], None] | None" = None,
) -> None:
    """Serve a live run until SIGTERM or SIGINT.

    Args:
        open_live: Opens the live run, in the background.
        settings: Address, access and limits.
        sources: Where events come from beside requests.
        on_start: Called with the URL when the port is open.
        reload: Called with the live run at SIGHUP.
    """
    configure_logs()
    server = LiveServer(open_live, settings, sources, on_start)
    server.reload = reload
    try:
        server.run()
    except SystemExit:  # uvicorn's, for a port that cannot be opened; it was logged
        raise ConfigError(
            f"{settings.url} cannot be opened; give another `port` or `host`", code="port-unavailable"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{settings.url} cannot be opened ({first_line(error)}); check the address, certificate and key",
            code="port-unavailable",
        ) from error
    if server.failure is not None:
        raise server.failure
