"""Compose the repositories of one scheduler."""

from __future__ import annotations

from typing import Final, Literal

import asyncpg

from pg_scheduler.admission.limits import LimitRepository
from pg_scheduler.admission.pauses import PauseRepository
from pg_scheduler.admission.shares import ShareRepository
from pg_scheduler.clock import Clock
from pg_scheduler.database.audit import AuditRepository
from pg_scheduler.database.codecs import check_codecs
from pg_scheduler.database.identity import IdentityRepository
from pg_scheduler.database.migrations.engine import check_engine
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.session import Connection, is_own_session
from pg_scheduler.database.shared import SharedConnection
from pg_scheduler.database.statements import Statements
from pg_scheduler.errors import SchemaForbiddenError, SchemaMissingError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.migrate import migrate, verify
from pg_scheduler.queue.consequences import Consequences
from pg_scheduler.queue.dependencies import DependencyRepository
from pg_scheduler.queue.jobs import JobRepository
from pg_scheduler.queue.kept_results import KeptResultRepository
from pg_scheduler.queue.locks import LockRepository
from pg_scheduler.queue.passed_results import PassedResultRepository
from pg_scheduler.queue.unique_keys import UniqueKeyRepository
from pg_scheduler.schedules.statements import ScheduleRepository
from pg_scheduler.statistics.statements import StatisticsRepository
from pg_scheduler.steps.signals import SignalRepository
from pg_scheduler.steps.statements import StepRepository
from pg_scheduler.worker.claims import ClaimRepository
from pg_scheduler.worker.outcome_statements import ProgressRepository, ResultRepository
from pg_scheduler.worker.retention import RetentionRepository
from pg_scheduler.worker.worker_rows import SERVER_START_GRACE_S, WorkerRepository

_UNCHANGED: Final = "; with migrations='verify' nothing is changed"
_OWNED: Final = "; create or upgrade them with the tool that owns them, or execute pg-scheduler migrate"


class Store:
    """The tables of one scheduler, by aggregate."""

    def __init__(
        self,
        connections: Connections,
        *,
        schema: str | None = None,
        clock: Clock | None = None,
        codec: PayloadCodec | None = None,
        server_start_grace_s: float = SERVER_START_GRACE_S,
    ) -> None:
        self.connections: Final = connections
        self.shared: Final = SharedConnection(connections.options)
        self.statements: Final = Statements(connections, self.shared, schema, clock, codec)
        self.audit: Final = AuditRepository(self.statements)
        self.identity: Final = IdentityRepository(self.statements, self.audit)
        self.consequences: Final = Consequences(self.statements)
        # In this order the results of jobs that end are kept before they are passed to others.
        self.kept_results: Final = KeptResultRepository(self.statements, self.consequences)
        self.passed_results: Final = PassedResultRepository(self.statements)
        self.dependencies: Final = DependencyRepository(
            self.statements, self.consequences, self.passed_results
        )
        self.unique_keys: Final = UniqueKeyRepository(self.statements)
        self.jobs: Final = JobRepository(self.statements, self.consequences, self.unique_keys)
        self.locks: Final = LockRepository(self.statements)
        self.results: Final = ResultRepository(
            self.statements,
            self.consequences,
            self.dependencies,
            self.kept_results,
            self.passed_results,
            self.locks,
        )
        self.claims: Final = ClaimRepository(self.statements, self.results)
        self.workers: Final = WorkerRepository(self.statements, self.results, server_start_grace_s)
        self.schedules: Final = ScheduleRepository(self.statements, self.consequences)
        self.signals: Final = SignalRepository(self.statements)
        self.pauses: Final = PauseRepository(self.statements)
        self.retention: Final = RetentionRepository(self.statements)
        self.progress: Final = ProgressRepository(self.statements)
        self.steps: Final = StepRepository(self.statements)
        self.limits: Final = LimitRepository(self.statements)
        self.shares: Final = ShareRepository(self.statements)
        self.statistics: Final = StatisticsRepository(self.statements)

    async def schema(self, *, on: Connection | None = None) -> str:
        """Return the schema of the tables."""
        return await self.statements.schema(on=on)

    async def migrate(self, mode: Literal["apply", "verify"] = "apply") -> None:
        """Verify the tables; upgrade them to this version unless the mode is "verify"."""
        timeout_s = self.connections.options.call_timeout_s
        async with self.connections.acquire() as connection:
            await check_codecs(connection, timeout_s)
            schema = await self.schema(on=connection)
        async with self.connections.acquire() as connection:
            # Again: a reset= of the pool may have dropped the prepared statements of the first use.
            await check_codecs(connection, timeout_s)
            try:
                await verify(connection, schema=schema)
            except SchemaMissingError as missing:
                if mode == "verify":
                    raise SchemaMissingError(f"{missing.problem}{_UNCHANGED}", _OWNED) from missing
                if self.connections.can_spare_one:
                    async with self.connections.checkout() as other:
                        if await is_own_session(other, timeout_s):  # a pooler may have no second one
                            await check_engine(connection, other)
                try:
                    await migrate(connection, schema=schema)
                except asyncpg.InsufficientPrivilegeError as error:
                    raise SchemaForbiddenError(
                        f"{missing.problem}, and this database role may not create or upgrade them "
                        f"({error}); call initialize_db() as the role that owns the tables before the "
                        "workers start"
                    ) from error
