"""The errors of asyncpg that a fault of the server causes, at any statement of the harness."""

from __future__ import annotations

from typing import Final

import asyncpg

BROKEN_CONNECTION: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the session ended during a COPY, or between two statements
)
