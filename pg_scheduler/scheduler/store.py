"""The repositories of one scheduler, and its tables at the start.

``Store`` has a repository for each subject. Its base classes make some of them: ``queue/store.py`` those with
which jobs enter the queue and leave it (``inserts``, ``jobs``, ``locks``, ``dependencies``), and
``worker/store.py`` those of workers (``claims``, ``results``, ``workers``). This module adds the others. So
each room uses the class that has the repositories it needs, and imports nothing from a higher room.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, Final, Literal

from pg_scheduler.admission.limits import LimitRepository
from pg_scheduler.admission.pauses import PauseRepository
from pg_scheduler.admission.sequences import SequenceRepository
from pg_scheduler.admission.shares import ShareRepository
from pg_scheduler.clock import Clock
from pg_scheduler.database.faults import FORBIDDEN_TO_ROLE
from pg_scheduler.database.identity import OnCopy
from pg_scheduler.database.migrations.engine import check_engine
from pg_scheduler.database.migrations.verify import verify_parts
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.server_facts import ServerFacts, read_server
from pg_scheduler.database.session import Connection, is_own_session
from pg_scheduler.errors import SchemaForbiddenError, SchemaMissingError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.migrate import migrate
from pg_scheduler.schedules.statements import ScheduleRepository
from pg_scheduler.statistics.errors import ErrorRepository
from pg_scheduler.statistics.statements import StatisticsRepository
from pg_scheduler.steps.signals import SignalRepository
from pg_scheduler.steps.statements import StepRepository
from pg_scheduler.streams.statements import StreamRepository
from pg_scheduler.worker.store import WorkerStore
from pg_scheduler.worker.worker_rows import SERVER_START_GRACE_S

_UNCHANGED: Final = "; with migrations='verify' nothing is changed"
_OWNED: Final = "create or upgrade them with the tool that owns them, or execute pg-scheduler migrate"

NOT_ALLOWED: Final = (
    "call initialize_db() as the role that owns the tables before the workers start",
    'pass migrations="verify" to the Schedulers of this role, which then only check them',
)
"""The remedies where the role may not create or upgrade the tables."""


class Store(WorkerStore):
    """The tables of one scheduler, with the repositories of all rooms."""

    # The test kits replace these.
    _pauses_class: ClassVar[type[PauseRepository]] = PauseRepository
    _sequences_class: ClassVar[type[SequenceRepository]] = SequenceRepository

    def __init__(
        self,
        connections: Connections,
        *,
        schema: str | None = None,
        clock: Clock | None = None,
        codec: PayloadCodec | None = None,
        server_start_grace_s: float = SERVER_START_GRACE_S,
    ) -> None:
        """Make all repositories. The arguments are those of the base class."""
        super().__init__(
            connections, schema=schema, clock=clock, codec=codec, server_start_grace_s=server_start_grace_s
        )
        self.schedules: Final = ScheduleRepository(self.statements)
        self.sequences: Final = self._sequences_class(self.statements)
        self.consequences.set_handlers(
            schedule=self.schedules.note_ends,
            fixed_delay=self.schedules.note_ends_of_replacements,
            sequence=self.sequences.pass_on,
        )
        self.signals: Final = SignalRepository(self.statements)
        self.pauses: Final = self._pauses_class(self.statements)
        self.steps: Final = StepRepository(self.statements)
        self.streams: Final = StreamRepository(self.statements)
        self.limits: Final = LimitRepository(self.statements)
        self.shares: Final = ShareRepository(self.statements)
        self.statistics: Final = StatisticsRepository(self.statements)
        self.errors: Final = ErrorRepository(self.statements)

    async def migrate(self, mode: Literal["apply", "verify"] = "apply") -> None:
        """Verify the tables; upgrade them to this version unless the mode is "verify"."""
        await self.connections.check_dsns()
        async with self._checked_connection() as (connection, facts):
            await self._migrate_on(connection, facts, mode)

    async def begin(self, mode: Literal["apply", "verify"], on_copy: OnCopy | None) -> None:
        """Do what a worker does before its parts start, on one connection while nothing is missing.

        Verify or upgrade the tables as `migrate()` does, check that no pooler loses prepared statements, and
        look for a copy of another database; see `IdentityRepository.guard()`. ``on_copy`` is None to skip
        the last of these.
        """
        await self.connections.check_dsns()
        identities = None
        async with self._checked_connection() as (connection, facts):
            await self._migrate_on(connection, facts, mode)
            if on_copy is not None:
                # Without the right to read the record, guard() logs that copies are not recognised.
                with suppress(SchemaForbiddenError):
                    identities = await self.identity.read(on=connection, reads_system=facts.reads_system)
        if not facts.has_own_session:
            await self.connections.check_pooler()
        if on_copy is not None:
            await self.identity.guard(on_copy, identities)

    @asynccontextmanager
    async def _checked_connection(self) -> AsyncIterator[tuple[Connection, ServerFacts]]:
        """Yield a connection of the pool whose codecs were checked, with what it has read of the server."""
        timeout_s = self.connections.options.call_timeout_s
        async with self.connections.acquire() as connection:
            facts = await read_server(connection, self.statements.known_schema, timeout_s)
            self.statements.use_schema(facts.schema)
            if self.connections.resets_as_usual:
                yield connection, facts
                return
        async with self.connections.acquire() as connection:
            # The check is repeated on the connection after its release: the pool's reset= may have dropped
            # prepared statements of the first use.
            yield connection, await read_server(connection, facts.schema, timeout_s)

    async def _migrate_on(
        self, connection: Connection, facts: ServerFacts, mode: Literal["apply", "verify"]
    ) -> None:
        """Verify the tables; upgrade them to this version unless the mode is "verify"."""
        schema, timeout_s = facts.schema, self.connections.options.call_timeout_s
        try:
            await verify_parts(connection, schema, has_records=facts.has_records)
        except SchemaMissingError as missing:
            if mode == "verify":
                raise SchemaMissingError(f"{missing.problem}{_UNCHANGED}", _OWNED) from missing
            # Tables are created or upgraded only on a server that behaves like PostgreSQL. The check needs a
            # second session of the server.
            if self.connections.can_spare_one:
                async with self.connections.checkout() as other:
                    # Behind a pooler, two connections may share one session.
                    if await is_own_session(other, timeout_s):
                        await check_engine(connection, other)
            try:
                await migrate(connection, schema=schema)
            except FORBIDDEN_TO_ROLE as error:
                raise SchemaForbiddenError(
                    f"{missing.problem}, and this database role may not create or upgrade them ({error})",
                    *NOT_ALLOWED,
                ) from error
