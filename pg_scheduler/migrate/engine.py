"""Check that the server is PostgreSQL, and not an engine that only speaks its protocol.

Some engines accept advisory locks and ignore them: each worker would take the others for dead, and their jobs
would run twice. Others have no LISTEN, or no ``ctid``. An engine does not change under its tables, so this is
checked once, before they are created.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import asyncpg

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.sqlbuiltins import qualify_builtins

from .verify import QUERY_TIMEOUT_S

if TYPE_CHECKING:
    from .records import AnyConnection


_LOCK: Final = qualify_builtins("SELECT pg_advisory_xact_lock($1::bigint)")
_TRY: Final = qualify_builtins(
    "SELECT pg_try_advisory_xact_lock($1::bigint), (SELECT ctid FROM pg_catalog.pg_class LIMIT 1)"
)
_LISTEN: Final = "LISTEN pg_scheduler_check; UNLISTEN pg_scheduler_check"
"""One transaction, which leaves nothing in a session that a pooler shares."""

_VERSION: Final = "SELECT pg_catalog.version()"
_LACKS: Final = (
    asyncpg.FeatureNotSupportedError,
    asyncpg.PostgresSyntaxError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
)


async def check_engine(connection: AnyConnection, other: AnyConnection) -> None:
    """Check that advisory locks of one session exclude another one, and that LISTEN and ``ctid`` exist.

    Args:
        connection: A connection that is not in a transaction.
        other: Another one, to the same database.

    Raises:
        ConfigurationError: They do not; with what the server calls itself.
    """
    key = secrets.randbits(63)
    try:
        async with connection.transaction():
            await connection.fetchval(_LOCK, key, timeout=QUERY_TIMEOUT_S)
            has_both = await other.fetchval(_TRY, key, timeout=QUERY_TIMEOUT_S)
        await other.execute(_LISTEN, timeout=QUERY_TIMEOUT_S)
    except _LACKS as error:
        raise await _unsupported(connection, f"it lacks a feature that jobs need ({error})") from error
    if has_both:
        raise await _unsupported(connection, "two sessions got the same advisory lock: jobs would run twice")


async def _unsupported(connection: AnyConnection, reason: str) -> ConfigurationError:
    engine = await connection.fetchval(_VERSION, timeout=QUERY_TIMEOUT_S)
    return ConfigurationError(
        f"the server is {engine!r}, and {reason}; connect to PostgreSQL 14 or newer: CockroachDB, Aurora "
        "DSQL and YugabyteDB speak its protocol, but are not supported"
    )
