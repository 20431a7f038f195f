"""The log records of the library. Those of other loggers may depend on the load: asyncio's on slow tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pg_scheduler.jobs.history import kept_log
from pg_scheduler.telemetry.logging import JobLogHandler

__all__ = ["keeping_lines", "records_of", "warnings_of"]


def records_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records of the library."""
    return [record for record in caplog.records if record.name == "pg_scheduler"]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of its warnings."""
    return [record.getMessage() for record in records_of(caplog) if record.levelname == "WARNING"]


@contextmanager
def keeping_lines(logger: logging.Logger) -> Iterator[None]:
    """Keep what jobs log by this logger through the block, and nothing afterwards."""
    handler = JobLogHandler()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    kept_log.is_used = False
