"""Structured logs: one JSON object a line on standard error."""

import json
import logging
import sys
import time
import traceback

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Renders a record and its ``extra`` fields as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        fields.update((k, v) for k, v in vars(record).items() if k not in _STANDARD)
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(fields, default=str)


def configure_logging(level: str) -> None:
    """Send everything of ``level`` (debug, info, warning, error) and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Migrations and drivers speak at info level about what is ordinary for us.
    for name in ("alembic", "sqlalchemy", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_departure)


def _is_no_departure(record: logging.LogRecord) -> bool:
    """gRPC calls it an error when the other side leaves while the answer to a unary call is sent.
    For us it is ordinary (decision 13), and the access log entry tells the end."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core")
