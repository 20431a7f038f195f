"""Check that the pool's owner set no codec that changes the values of statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Final

import asyncpg

from pg_scheduler.database.faults import is_transient
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import ConfigurationError

VALUES: Final[Mapping[str, object]] = {
    "bool": True,
    "date": date(2000, 2, 29),
    "float8": 0.5,
    "int4": 2**30,
    "int8": 2**62,
    "interval": timedelta(seconds=1.5),
    "text": "é",
    "timestamptz": datetime(2000, 2, 29, 12, tzinfo=UTC),
}
"""A value of each type that statements use. JSON travels as text."""


async def check_codecs(connection: Connection, timeout_s: float) -> None:
    """Send a value of each type and receive it again.

    Raises:
        ConfigurationError: A value changed, or its codec raised an exception.
    """
    # Normally one query for all types is enough. The further ones find out which type has the codec.
    if await _returns_unchanged(connection, VALUES, timeout_s):
        return
    for name, value in VALUES.items():
        if not await _returns_unchanged(connection, {name: value}, timeout_s):
            raise ConfigurationError(
                f"the pool has a codec for {name} that changes the Scheduler's values; pass a pool whose "
                f"init= and setup= do not call set_type_codec({name!r})"
            )


async def _returns_unchanged(connection: Connection, values: Mapping[str, object], timeout_s: float) -> bool:
    """Return whether the server returns values of these types as they were sent."""
    columns = ", ".join(f"${place}::pg_catalog.{name}" for place, name in enumerate(values, 1))
    try:
        row = await connection.fetchrow(f"SELECT {columns}", *values.values(), timeout=timeout_s)
    except asyncpg.InvalidSQLStatementNameError:
        # The cause is no codec, but a pooler that has lost the prepared statement.
        raise
    except Exception as error:  # user code: a codec
        if is_transient(error):
            raise
        return False
    return row is not None and are_unchanged(row, values)


def are_unchanged(received_values: Iterable[object], values: Mapping[str, object]) -> bool:
    """Return whether values that the server has returned are those that were sent."""
    pairs = zip(received_values, values.values(), strict=True)
    # The types are compared too, because 1 == True, for example.
    return all(type(received) is type(sent) and received == sent for received, sent in pairs)
