"""The repositories with which jobs enter the queue and leave it."""

from __future__ import annotations

from typing import Final

from pg_scheduler.clock import Clock
from pg_scheduler.database.audit import AuditRepository
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.session import Connection
from pg_scheduler.database.shared import SharedConnection
from pg_scheduler.database.statements import Statements
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.queue.consequences import Consequences
from pg_scheduler.queue.dependencies import DependencyRepository
from pg_scheduler.queue.families import FamilyRepository
from pg_scheduler.queue.inserts import InsertRepository
from pg_scheduler.queue.jobs import JobRepository
from pg_scheduler.queue.kept_results import KeptResultRepository
from pg_scheduler.queue.locks import LockRepository
from pg_scheduler.queue.passed_results import PassedResultRepository
from pg_scheduler.queue.uncounted import UncountedJobs
from pg_scheduler.queue.unique_keys import UniqueKeyRepository


class QueueStore:
    """The repositories that calls need to enqueue, read and change jobs."""

    def __init__(
        self,
        connections: Connections,
        *,
        schema: str | None = None,
        clock: Clock | None = None,
        codec: PayloadCodec | None = None,
    ) -> None:
        self.connections: Final = connections
        self.shared: Final[SharedConnection] = connections.share.shared
        self.statements: Final = Statements(connections, self.shared, schema, clock, codec)
        self.audit: Final = AuditRepository(self.statements)
        self.consequences: Final = Consequences(self.statements)
        self.kept_results: Final = KeptResultRepository(self.statements)
        self.passed_results: Final = PassedResultRepository(self.statements)
        self.dependencies: Final = DependencyRepository(
            self.statements, self.consequences, self.passed_results
        )
        self.consequences.set_handlers(
            result=self.kept_results.keep_ended, child=self.dependencies.release_children
        )
        self.families: Final = FamilyRepository(self.statements, self.dependencies)
        self.unique_keys: Final = UniqueKeyRepository(self.statements)
        self.inserts: Final = InsertRepository(self.statements, self.consequences)
        self.uncounted: Final = UncountedJobs(self.statements)
        self.jobs: Final = JobRepository(
            self.statements,
            self.consequences,
            self.dependencies,
            self.unique_keys,
            self.uncounted,
            families=self.families,
        )
        self.locks: Final = LockRepository(self.statements)

    async def schema(self, *, on: Connection | None = None) -> str:
        """Return the schema of the tables."""
        return await self.statements.schema(on=on)
