"""The repositories of one scheduler, and its tables at the start.

``Store`` has a repository for each subject. Its base classes make some of them: ``queue/store.py`` those with
which jobs enter the queue and leave it (``inserts``, ``jobs``, ``locks``, ``dependencies``), and
``worker/store.py`` those of workers (``claims``, ``results``, ``workers``). This module adds the others. So
each room uses the class that has the repositories it needs, and imports nothing from a higher room.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pg_scheduler.admission.limits import LimitRepository
from pg_scheduler.admission.pauses import PauseRepository
from pg_scheduler.admission.sequences import SequenceRepository
from pg_scheduler.admission.shares import ShareRepository
from pg_scheduler.clock import Clock
from pg_scheduler.database.codecs import check_codecs
from pg_scheduler.database.faults import FORBIDDEN_TO_ROLE
from pg_scheduler.database.migrations.engine import check_engine
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.session import is_own_session
from pg_scheduler.errors import SchemaForbiddenError, SchemaMissingError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.migrate import migrate, verify
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
        timeout_s = self.connections.options.call_timeout_s
        await self.connections.check_dsns()
        async with self.connections.acquire() as connection:
            await check_codecs(connection, timeout_s)
            schema = await self.schema(on=connection)
        async with self.connections.acquire() as connection:
            # The check is repeated on the connection after its release: the pool's reset= may have dropped
            # prepared statements of the first use.
            await check_codecs(connection, timeout_s)
            try:
                await verify(connection, schema=schema)
            except SchemaMissingError as missing:
                if mode == "verify":
                    raise SchemaMissingError(f"{missing.problem}{_UNCHANGED}", _OWNED) from missing
                # Tables are created or upgraded only on a server that behaves like PostgreSQL.
                # The check needs a second session of the server.
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
