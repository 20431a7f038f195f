"""Compose the repositories of one Inspector."""

from __future__ import annotations

from typing import Final

from pg_scheduler.inspect.store.audit import AuditReadRepository
from pg_scheduler.inspect.store.bulk import BulkRepository
from pg_scheduler.inspect.store.bulk_runs import BulkRunRepository
from pg_scheduler.inspect.store.cluster import ClusterRepository
from pg_scheduler.inspect.store.deploy import DeployRepository
from pg_scheduler.inspect.store.doctor import DoctorRepository
from pg_scheduler.inspect.store.errors import ErrorReadRepository
from pg_scheduler.inspect.store.inspections import InspectionRepository
from pg_scheduler.inspect.store.limits import LimitReadRepository
from pg_scheduler.inspect.store.schedules import ScheduleListRepository
from pg_scheduler.inspect.store.searches import SearchRepository
from pg_scheduler.inspect.store.server import ServerRepository
from pg_scheduler.inspect.store.statistics import StatisticsReadRepository
from pg_scheduler.inspect.store.workers import WorkerReadRepository
from pg_scheduler.inspect.store.workflows import WorkflowRepository
from pg_scheduler.scheduler.store import Store


class InspectionStore:
    """The repositories for people, and the repositories of the scheduler that people use too."""

    def __init__(self, store: Store) -> None:
        self.statements: Final = store.statements
        self.audit: Final = store.audit
        self.jobs: Final = store.jobs
        self.kept_results: Final = store.kept_results
        self.pauses: Final = store.pauses
        self.identity: Final = store.identity
        self.locks: Final = store.locks
        self.schedules: Final = store.schedules
        self.sequences: Final = store.sequences
        self.shares: Final = store.shares
        self.workers: Final = store.workers
        self.audit_records: Final = AuditReadRepository(self.statements)
        self.cluster: Final = ClusterRepository(self.statements)
        self.deploy: Final = DeployRepository(self.statements)
        self.doctor: Final = DoctorRepository(self.statements)
        self.errors: Final = ErrorReadRepository(self.statements)
        self.inspections: Final = InspectionRepository(self.statements)
        self.schedule_lists: Final = ScheduleListRepository(self.statements)
        self.limits: Final = LimitReadRepository(self.statements)
        self.searches: Final = SearchRepository(self.statements)
        self.server: Final = ServerRepository(self.statements)
        self.statistics: Final = StatisticsReadRepository(self.statements)
        self.worker_reads: Final = WorkerReadRepository(self.statements)
        self.workflows: Final = WorkflowRepository(self.statements)
        self.bulk: Final = BulkRepository(
            self.statements,
            store.consequences,
            self.searches,
            store.locks,
            self.audit,
            dependencies=store.dependencies,
            families=store.families,
        )
        self.bulk_runs: Final = BulkRunRepository(self.statements, self.audit)

    async def schema(self) -> str:
        """Return the schema of the tables."""
        return await self.statements.schema()
