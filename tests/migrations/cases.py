"""Checks of many cases in one database: migrating one for each takes longer than the checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import asyncpg
import pytest


async def check_each(
    connection: asyncpg.Connection, check: Callable[..., Awaitable[None]], cases: Iterable[tuple[Any, ...]]
) -> None:
    """Call ``check(connection, *case)`` for each case; raise the errors of all.

    A check that succeeds leaves a schema that the next one can begin with.
    """
    errors: list[BaseException] = []
    for case in cases:
        try:
            await check(connection, *case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - reported below
            error.add_note(f"case: {case}")
            errors.append(error)
            await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    if errors:
        raise BaseExceptionGroup("cases failed", errors)
