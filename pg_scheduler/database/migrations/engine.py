"""Check that jobs can live in a database: its server is PostgreSQL, and its encoding names characters.

Some engines only speak the protocol of PostgreSQL. Some accept advisory locks and ignore them: each worker
would take the others for dead, and their jobs would run twice. Others have no LISTEN, or no ``ctid``. An
engine does not change under its tables, so this is checked once, before they are created.

SQL_ASCII, which ``initdb`` chooses under ``LANG=C``, is no encoding: the server stores bytes without knowing
their characters, and cannot convert them to UTF-8, to JSON or to what another client expects.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import asyncpg

from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.database.migrations.verify import QUERY_TIMEOUT_S
from pg_scheduler.errors import ConfigurationError

if TYPE_CHECKING:
    from pg_scheduler.database.migrations.records import AnyConnection


_LOCK: Final = qualify_builtins("SELECT pg_advisory_xact_lock($1::bigint)")
_TRY: Final = qualify_builtins(
    "SELECT pg_try_advisory_xact_lock($1::bigint), (SELECT ctid FROM pg_catalog.pg_class LIMIT 1)"
)
_LISTEN: Final = "LISTEN pg_scheduler_check; UNLISTEN pg_scheduler_check"
"""One transaction, which leaves nothing in a session that a pooler shares."""

_ENCODING: Final = qualify_builtins(
    "SELECT current_setting('server_encoding') AS encoding, current_database() AS name"
)
_NO_ENCODING: Final = "SQL_ASCII"

_VERSION: Final = "SELECT pg_catalog.version()"
_MISSING_FEATURE_ERRORS: Final = (
    asyncpg.FeatureNotSupportedError,
    asyncpg.PostgresSyntaxError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
)


async def check_engine(connection: AnyConnection, other: AnyConnection) -> None:
    """Check that advisory locks of one session exclude another one, and that LISTEN and ``ctid`` exist.

    That takes two sessions: an engine that accepts such locks and ignores them grants one lock to both.

    Args:
        connection: A connection that is not in a transaction.
        other: Another one, to the same database.

    Raises:
        ConfigurationError: One of these is not the case. The message has what the server calls itself.
    """
    key = secrets.randbits(63)
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.fetchval(_LOCK, key, timeout=QUERY_TIMEOUT_S)
            got_held_lock = await other.fetchval(_TRY, key, timeout=QUERY_TIMEOUT_S)
        await other.execute(_LISTEN, timeout=QUERY_TIMEOUT_S)
    except _MISSING_FEATURE_ERRORS as error:
        raise await _unsupported(connection, f"it lacks a feature that jobs need ({error})") from error
    if got_held_lock:
        raise await _unsupported(connection, "two sessions got the same advisory lock: jobs would run twice")


async def _unsupported(connection: AnyConnection, reason: str) -> ConfigurationError:
    """Return the error about a server that is not PostgreSQL, with what it calls itself and the reason."""
    engine = await connection.fetchval(_VERSION, timeout=QUERY_TIMEOUT_S)
    return ConfigurationError(
        f"the server is {engine!r}, and {reason}; connect to PostgreSQL 14 or newer: CockroachDB, Aurora "
        "DSQL and YugabyteDB speak its protocol, but are not supported"
    )


async def check_encoding(connection: AnyConnection) -> None:
    """Check that the database has an encoding that the server can convert.

    Raises:
        ConfigurationError: It has none, SQL_ASCII.
    """
    row = await connection.fetchrow(_ENCODING, timeout=QUERY_TIMEOUT_S)
    if row is not None and row["encoding"] == _NO_ENCODING:
        raise ConfigurationError(
            f"the database {row['name']!r} has the encoding SQL_ASCII, in which the server cannot tell "
            "characters from bytes; create one with CREATE DATABASE ... TEMPLATE template0 ENCODING 'UTF8', "
            "and migrate that"
        )
