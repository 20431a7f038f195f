"""The log records of the library. Those of other loggers may depend on the load: asyncio's on slow tasks."""

from __future__ import annotations

import logging

import pytest

__all__ = ["records_of", "warnings_of"]


def records_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records of the library."""
    return [record for record in caplog.records if record.name == "pg_scheduler"]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of its warnings."""
    return [record.getMessage() for record in records_of(caplog) if record.levelname == "WARNING"]
