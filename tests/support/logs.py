"""The log records of the library. Those of other loggers may depend on the load: asyncio's on slow tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pg_scheduler import tools
from pg_scheduler.jobs.history import kept_log
from pg_scheduler.telemetry.logging import JobLogHandler
from tests.support.patience import PATIENCE

__all__ = ["join_log_threads", "keeping_lines", "records_of", "warnings_of"]


def records_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records of the library, also those that threads are about to write."""
    join_log_threads()
    return [record for record in caplog.records if record.name == "pg_scheduler"]


def join_log_threads() -> None:
    """Wait for the threads of the library that log a message each."""
    tools.join_log_threads(PATIENCE)


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
