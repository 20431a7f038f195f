"""The repositories of a worker: those of the queue, and what it needs to claim jobs and to settle them."""

from __future__ import annotations

from typing import Final

from pg_scheduler.clock import Clock
from pg_scheduler.database.identity import IdentityRepository
from pg_scheduler.database.pool import Connections
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.queue.store import QueueStore
from pg_scheduler.worker.claims import ClaimRepository
from pg_scheduler.worker.outcome_statements import ProgressRepository, ResultRepository
from pg_scheduler.worker.retention import RetentionRepository
from pg_scheduler.worker.worker_rows import SERVER_START_GRACE_S, WorkerRepository


class WorkerStore(QueueStore):
    """The repositories that a worker needs for plain jobs, without those of steps, schedules and limits."""

    def __init__(
        self,
        connections: Connections,
        *,
        schema: str | None = None,
        clock: Clock | None = None,
        codec: PayloadCodec | None = None,
        server_start_grace_s: float = SERVER_START_GRACE_S,
    ) -> None:
        super().__init__(connections, schema=schema, clock=clock, codec=codec)
        self.identity: Final = IdentityRepository(self.statements, self.audit)
        self.results: Final = ResultRepository(
            self.statements,
            self.consequences,
            self.dependencies,
            self.kept_results,
            self.passed_results,
            self.locks,
            self.uncounted,
        )
        self.claims: Final = ClaimRepository(self.statements, self.results, self.uncounted)
        self.workers: Final = WorkerRepository(self.statements, self.results, server_start_grace_s)
        self.retention: Final = RetentionRepository(self.statements)
        self.progress: Final = ProgressRepository(self.statements)
