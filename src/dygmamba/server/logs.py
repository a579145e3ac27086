"""The log of the server: one JSON object per line on stderr, without payloads."""

import json
import logging
import sys
from datetime import UTC, datetime

from dygmamba.server.middleware import as_log_fields

LOGGERS = ("dygmamba.server", "dygmamba.live", "uvicorn.error")


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
