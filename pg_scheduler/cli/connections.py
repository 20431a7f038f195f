"""Connect a command to its database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from pg_scheduler import Scheduler
from pg_scheduler.base.dsn import mask_dsn
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.database.faults import is_read_only, is_timeout, translated
from pg_scheduler.errors import ConnectionRejectedError, DatabaseUnavailableError
from pg_scheduler.events.log import is_lock_wait
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.store.connections import (
    MAX_POOL_SIZE,
    VERIFY_LOCK_TIMEOUT_MS,
    open_connection,
    open_pool,
)
from pg_scheduler.migrate import verify

from .errors import CommandError, ExitCode
from .settings import Settings

if TYPE_CHECKING:
    import asyncpg

MAX_IDENTITY_LENGTH: Final = 200
APPLICATION_NAME: Final = "pg_scheduler cli"
NO_DSN: Final = "no DSN is set: pass --dsn postgresql://user@host/database, or set PG_SCHEDULER_DSN"


class CommandScheduler(Scheduler):
    """The Scheduler of a command, which is never started."""

    async def verify(self, schema: str | None) -> None:
        """Raise an error unless the tables in the schema fit this release; wait for locks on them briefly."""
        connections = self._parts.store.connections
        async with connections.transaction(lock_timeout_ms=VERIFY_LOCK_TIMEOUT_MS) as connection:
            with translated():
                await verify(connection, schema=schema)

    async def name_holders(self, fault: DatabaseUnavailableError) -> None:
        """Add the sessions with locks on the tables to an error, if a lock may have caused it.

        They become a note of the error, which a command prints after the message.
        """
        if is_lock_wait(fault) or is_timeout(fault):
            holders = await self._parts.store.locks.find_holders()
            if holders:
                fault.add_note(f"these sessions have locks on the tables: {' and '.join(holders)}")

    async def flush(self) -> None:
        """Send the notifications that are still to be sent."""
        await self._parts.outbox.flush_or_report()


@asynccontextmanager
async def open_server(settings: Settings) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Open a connection to the server itself: ``--direct-dsn``, else the DSN."""
    name = "direct-dsn" if settings["direct-dsn"] else "dsn"
    with naming_dsn(settings, name):
        async with open_connection(settings[name], application_name=APPLICATION_NAME) as connection:
            yield connection


@asynccontextmanager
async def open_scheduler(
    settings: Settings, *, verified: bool, max_size: int = MAX_POOL_SIZE
) -> AsyncIterator[Scheduler]:
    """Open the Scheduler of a command, which is not started, and close its pool at the end.

    If ``verified``, raise an error unless the tables fit this release.
    """
    with naming_dsn(settings, "dsn"):
        async with open_pool(settings["dsn"], application_name=APPLICATION_NAME, max_size=max_size) as pool:
            actor = Inspector(pool).actor[:MAX_IDENTITY_LENGTH]
            schema = settings["schema"]
            scheduler = CommandScheduler(
                pool, schema=schema, direct_dsn=settings["direct-dsn"], identity=actor
            )
            try:
                if verified:
                    await scheduler.verify(schema)
                with acting_as(Author(actor, "cli")):
                    yield scheduler
                # Workers wait for the notifications about what the command has changed.
                await scheduler.flush()
            except DatabaseUnavailableError as error:
                await scheduler.name_holders(error)
                raise


@contextmanager
def naming_dsn(settings: Settings, name: str) -> Iterator[None]:
    """Raise the error of an unavailable database as a `CommandError` that also names the DSN."""
    try:
        yield
    except ConnectionRejectedError:  # the server has answered, and its message names what it rejects
        raise
    except DatabaseUnavailableError as error:
        dsn = settings[name]
        origin = settings.origin(name)
        hint = f"the DSN is {mask_dsn(dsn)}, from {origin}" if dsn else NO_DSN
        # A database that refuses to write, such as a standby, is available.
        code = ExitCode.REFUSED if is_read_only(error) else ExitCode.UNAVAILABLE
        message = "; ".join((str(error), *getattr(error, "__notes__", ()), hint))
        raise CommandError(code, message) from error
