"""The repositories of one scheduler, and its tables at the start.

``Store`` has a repository for each subject. Its base classes make some of them: ``queue/store.py`` those with
which jobs enter the queue and leave it (``inserts``, ``jobs``, ``locks``, ``dependencies``), and
``worker/store.py`` those of workers (``claims``, ``results``, ``workers``). This module adds the others. So
each room uses the class that has the repositories it needs, and imports nothing from a higher room.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from pg_scheduler.base.lazy_imports import LazyModule, lazy_call
from pg_scheduler.clock import Clock
from pg_scheduler.database.faults import FORBIDDEN_TO_ROLE
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.session import Connection, is_own_session
from pg_scheduler.errors import SchemaForbiddenError, SchemaMissingError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.worker.store import WorkerStore

if TYPE_CHECKING:
    from pg_scheduler import migrate as migrations
    from pg_scheduler.admission import limits, pauses, sequences, shares
    from pg_scheduler.admission.limits import LimitRepository
    from pg_scheduler.admission.pauses import PauseRepository
    from pg_scheduler.admission.sequences import SequenceRepository
    from pg_scheduler.admission.shares import ShareRepository
    from pg_scheduler.database import server_facts
    from pg_scheduler.database.identity import OnCopy
    from pg_scheduler.database.migrations import engine
    from pg_scheduler.database.migrations import verify as verification
    from pg_scheduler.database.server_facts import ServerFacts
    from pg_scheduler.schedules import statements as schedule_statements
    from pg_scheduler.schedules.statements import ScheduleRepository
    from pg_scheduler.statistics import errors as error_statements
    from pg_scheduler.statistics import statements as statistics_statements
    from pg_scheduler.statistics.errors import ErrorRepository
    from pg_scheduler.statistics.statements import StatisticsRepository
    from pg_scheduler.steps import signals as step_signals
    from pg_scheduler.steps import statements as step_statements
    from pg_scheduler.steps.signals import SignalRepository
    from pg_scheduler.steps.statements import StepRepository
    from pg_scheduler.streams import statements as stream_statements
    from pg_scheduler.streams.statements import StreamRepository
else:
    limits = LazyModule("pg_scheduler.admission.limits")
    pauses = LazyModule("pg_scheduler.admission.pauses")
    sequences = LazyModule("pg_scheduler.admission.sequences")
    shares = LazyModule("pg_scheduler.admission.shares")
    schedule_statements = LazyModule("pg_scheduler.schedules.statements")
    error_statements = LazyModule("pg_scheduler.statistics.errors")
    statistics_statements = LazyModule("pg_scheduler.statistics.statements")
    step_signals = LazyModule("pg_scheduler.steps.signals")
    step_statements = LazyModule("pg_scheduler.steps.statements")
    stream_statements = LazyModule("pg_scheduler.streams.statements")
    engine = LazyModule("pg_scheduler.database.migrations.engine")
    server_facts = LazyModule("pg_scheduler.database.server_facts")
    verification = LazyModule("pg_scheduler.database.migrations.verify")
    migrations = LazyModule("pg_scheduler.migrate")

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
    _pauses_class: ClassVar[type[PauseRepository] | None] = None
    _sequences_class: ClassVar[type[SequenceRepository] | None] = None

    def __init__(
        self,
        connections: Connections,
        *,
        schema: str | None = None,
        clock: Clock | None = None,
        codec: PayloadCodec | None = None,
        server_start_grace_s: float | None = None,
    ) -> None:
        """Make all repositories. The arguments are those of the base class."""
        super().__init__(
            connections, schema=schema, clock=clock, codec=codec, server_start_grace_s=server_start_grace_s
        )
        self.consequences.set_handlers(
            schedule=lazy_call(lambda: self.schedules.note_ends),
            fixed_delay=lazy_call(lambda: self.schedules.note_ends_of_replacements),
            sequence=lazy_call(lambda: self.sequences.pass_on),
        )

    # A repository is made at its first use, because most processes need the tables of few features.

    @cached_property
    def schedules(self) -> ScheduleRepository:
        """The table of schedules."""
        return schedule_statements.ScheduleRepository(self.statements)

    @cached_property
    def sequences(self) -> SequenceRepository:
        """The table of sequences."""
        return (self._sequences_class or sequences.SequenceRepository)(self.statements)

    @cached_property
    def signals(self) -> SignalRepository:
        """The signals to jobs."""
        return step_signals.SignalRepository(self.statements)

    @cached_property
    def pauses(self) -> PauseRepository:
        """The paused tasks."""
        return (self._pauses_class or pauses.PauseRepository)(self.statements)

    @cached_property
    def steps(self) -> StepRepository:
        """The stored steps of jobs."""
        return step_statements.StepRepository(self.statements)

    @cached_property
    def streams(self) -> StreamRepository:
        """The published values and streams of jobs."""
        return stream_statements.StreamRepository(self.statements)

    @cached_property
    def limits(self) -> LimitRepository:
        """The limits of tasks."""
        return limits.LimitRepository(self.statements)

    @cached_property
    def shares(self) -> ShareRepository:
        """The shares of tenants."""
        return shares.ShareRepository(self.statements)

    @cached_property
    def statistics(self) -> StatisticsRepository:
        """The tables of statistics."""
        return statistics_statements.StatisticsRepository(self.statements)

    @cached_property
    def errors(self) -> ErrorRepository:
        """The counted errors."""
        return error_statements.ErrorRepository(self.statements)

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
            facts = await server_facts.read_server(connection, self.statements.known_schema, timeout_s)
            self.statements.use_schema(facts.schema)
            if self.connections.resets_as_usual:
                yield connection, facts
                return
        async with self.connections.acquire() as connection:
            # The check is repeated on the connection after its release: the pool's reset= may have dropped
            # prepared statements of the first use.
            yield connection, await server_facts.read_server(connection, facts.schema, timeout_s)

    async def _migrate_on(
        self, connection: Connection, facts: ServerFacts, mode: Literal["apply", "verify"]
    ) -> None:
        """Verify the tables; upgrade them to this version unless the mode is "verify"."""
        schema, timeout_s = facts.schema, self.connections.options.call_timeout_s
        try:
            await verification.verify_parts(connection, schema, has_records=facts.has_records)
        except SchemaMissingError as missing:
            if mode == "verify":
                raise SchemaMissingError(f"{missing.problem}{_UNCHANGED}", _OWNED) from missing
            # Tables are created or upgraded only on a server that behaves like PostgreSQL. The check needs a
            # second session of the server.
            if self.connections.can_spare_one:
                async with self.connections.checkout() as other:
                    # Behind a pooler, two connections may share one session.
                    if await is_own_session(other, timeout_s):
                        await engine.check_engine(connection, other)
            try:
                await migrations.migrate(connection, schema=schema)
            except FORBIDDEN_TO_ROLE as error:
                raise SchemaForbiddenError(
                    f"{missing.problem}, and this database role may not create or upgrade them ({error})",
                    *NOT_ALLOWED,
                ) from error
