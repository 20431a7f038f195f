"""The repositories of a worker: those of the queue, and what it needs to claim jobs and to settle them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.clock import Clock
from pg_scheduler.database.pool import Connections
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.queue.store import QueueStore

if TYPE_CHECKING:
    from pg_scheduler.database import identity
    from pg_scheduler.database.identity import IdentityRepository
    from pg_scheduler.worker import claims, outcome_statements, retention, worker_rows
    from pg_scheduler.worker.claims import ClaimRepository
    from pg_scheduler.worker.outcome_statements import ProgressRepository, ResultRepository
    from pg_scheduler.worker.retention import RetentionRepository
    from pg_scheduler.worker.worker_rows import WorkerRepository
else:
    identity = LazyModule("pg_scheduler.database.identity")
    claims = LazyModule("pg_scheduler.worker.claims")
    outcome_statements = LazyModule("pg_scheduler.worker.outcome_statements")
    retention = LazyModule("pg_scheduler.worker.retention")
    worker_rows = LazyModule("pg_scheduler.worker.worker_rows")


class WorkerStore(QueueStore):
    """The repositories that a worker needs for plain jobs, without those of steps, schedules and limits."""

    def __init__(
        self,
        connections: Connections,
        *,
        schema: str | None = None,
        clock: Clock | None = None,
        codec: PayloadCodec | None = None,
        server_start_grace_s: float | None = None,
    ) -> None:
        super().__init__(connections, schema=schema, clock=clock, codec=codec)
        self._server_start_grace_s = server_start_grace_s

    # A repository is made at its first use, because a process that only enqueues jobs needs none of them.

    @cached_property
    def identity(self) -> IdentityRepository:
        """The identity of the database."""
        return identity.IdentityRepository(self.statements, self.audit)

    @cached_property
    def results(self) -> ResultRepository:
        """The outcomes of attempts."""
        return outcome_statements.ResultRepository(
            self.statements,
            self.consequences,
            self.dependencies,
            self.kept_results,
            self.passed_results,
            self.locks,
            self.uncounted,
        )

    @cached_property
    def claims(self) -> ClaimRepository:
        """The claims of jobs."""
        return claims.ClaimRepository(self.statements, self.results, self.uncounted)

    @cached_property
    def workers(self) -> WorkerRepository:
        """The rows of workers."""
        grace_s = self._server_start_grace_s
        if grace_s is None:
            grace_s = worker_rows.SERVER_START_GRACE_S
        return worker_rows.WorkerRepository(self.statements, self.results, grace_s)

    @cached_property
    def retention(self) -> RetentionRepository:
        """The deletion of finished jobs."""
        return retention.RetentionRepository(self.statements)

    @cached_property
    def progress(self) -> ProgressRepository:
        """The progress of running jobs."""
        return outcome_statements.ProgressRepository(self.statements)
