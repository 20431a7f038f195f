"""Write log records of a worker to stderr, as text or as one JSON object per line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from pg_scheduler.base.text.values import json_text
from pg_scheduler.telemetry.logging import FIELDS, JobContextFilter

_RECORD_ATTRIBUTES: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Attributes of every record, which are no fields of their own."""

_TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Format a record as one line of JSON: time, level, logger, message, then the fields that it has."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. Values that JSON does not have are written as text."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        # The fields are those that the caller of the logger has added to the record.
        line |= {
            key: value
            for key, value in record.__dict__.items()
            if key not in _RECORD_ATTRIBUTES and key not in line and value is not None
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json_text({key: _plain(value) for key, value in line.items()})


def _plain(value: Any) -> Any:
    """Return a value of JSON: a text for what JSON does not have, such as NaN, and for a circular list."""
    if isinstance(value, str | int):
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=str))
    except (TypeError, ValueError, RecursionError):
        return str(value)


class _TextFormatter(logging.Formatter):
    """Format a record as a line, which names the job that wrote it."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        # The first field is the id of the job.
        job_id = getattr(record, FIELDS[0], None)
        # The messages of the library name their job already.
        if job_id is None or not record.name or record.name.startswith("pg_scheduler"):
            return text
        # A traceback follows below the first line.
        first_line, newline, trace = text.partition("\n")
        return f"{first_line} [job {job_id}]{newline}{trace}"


def configure_logging(log_format: str | None) -> None:
    """Write records of INFO and above to stderr.

    Args:
        log_format: ``text`` or ``json``; None for text unless the application has configured logging itself.
    """
    root = logging.getLogger()
    # A root logger with handlers was configured by the application.
    if log_format is None and root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else _TextFormatter(_TEXT))
    handler.addFilter(JobContextFilter())
    root.handlers[:] = [handler]
    # Another level is one that the application has set.
    if root.level == logging.WARNING:  # the default
        root.setLevel(logging.INFO)
