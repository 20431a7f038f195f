"""Read jobs, workers and tasks for people: bounded queries that state what they read."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import asyncpg

from pg_scheduler.base.text.remedies import POOL_REMEDY
from pg_scheduler.database.pool import Connections
from pg_scheduler.inspect.audit import AuditReads
from pg_scheduler.inspect.base import InspectorBase
from pg_scheduler.inspect.cluster import read_cluster
from pg_scheduler.inspect.doctor.examination import examine
from pg_scheduler.inspect.doctor.findings import Diagnosis, Thresholds
from pg_scheduler.inspect.job_actions import JobActions
from pg_scheduler.inspect.jobs import JobReads
from pg_scheduler.inspect.limits import LimitReads
from pg_scheduler.inspect.pages import DEFAULT_BOUNDS, Bounds
from pg_scheduler.inspect.published import PublishedReads
from pg_scheduler.inspect.schedules import ScheduleReads
from pg_scheduler.inspect.sequences import SequenceMethods
from pg_scheduler.inspect.shares import ShareReads
from pg_scheduler.inspect.statistics import StatisticsReads
from pg_scheduler.inspect.status import PERIOD, STATUS_CODES, Status, describe_status
from pg_scheduler.inspect.steps import StepReads
from pg_scheduler.inspect.store.connections import ReadingConnections, ReadSettings
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.tasks import TaskReads
from pg_scheduler.inspect.workers import WorkerMethods
from pg_scheduler.jobs.validation import check_instance, check_kind, check_text
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.scheduler.parts import parts_of
from pg_scheduler.scheduler.store import Store

DEFAULT_THRESHOLDS: Final = Thresholds()

MAX_MIGRATIONS: Final = 500


class Inspector(
    JobReads,
    SequenceMethods,
    JobActions,
    TaskReads,
    StepReads,
    PublishedReads,
    LimitReads,
    ShareReads,
    WorkerMethods,
    ScheduleReads,
    StatisticsReads,
    AuditReads,
    InspectorBase,
):
    """Reads jobs, workers and tasks, with a bounded number of rows per call, and changes jobs in batches.

    It works without a started Scheduler, in the event loop of the pool.

    Args:
        source: An asyncpg pool on the database, or a Scheduler, whose pool and schema are used.
        schema: The schema of the tables, if ``source`` is a pool; None for the one that the search path leads
            to. Inspecting a Scheduler always uses the schema of the Scheduler.
        read_pool: A pool for the reads, which may lead to a standby; None for the pool of ``source``.
        read_settings: Bounds of the read-only transactions that read; None to read as a Scheduler does.
        actor: The actor in the records of actions; None for ``user@host``.
        bounds: The maximum that a page of a search, or a call of `error_groups()`, examines.

    Raises:
        TypeError: ``source`` is neither a pool nor a Scheduler, or ``bounds`` is no `Bounds`.

    Example::

        inspector = Inspector(scheduler)
        page = await inspector.search_jobs("status:failed name:mail.*")
        print(page.summary)
    """

    def __init__(
        self,
        source: asyncpg.Pool | Scheduler,
        *,
        schema: str | None = None,
        read_pool: asyncpg.Pool | None = None,
        read_settings: ReadSettings | None = None,
        actor: str | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self._bounds = check_kind("bounds", bounds, Bounds)
        self._scheduler = source if isinstance(source, Scheduler) else None
        if isinstance(source, Scheduler):
            parts = parts_of(source)
            store, schema = parts.store, parts.config.schema
        elif isinstance(source, asyncpg.Pool):
            store = Store(Connections(source), schema=schema)
        else:
            # The value itself is not named: a DSN contains a password.
            raise TypeError(
                f"source must be an asyncpg.Pool or a Scheduler, not {type(source).__name__}; {POOL_REMEDY}"
            )
        if read_pool is not None:
            check_instance("read_pool", read_pool, asyncpg.Pool, "an asyncpg.Pool", POOL_REMEDY)
        self._schema = schema
        self._store = InspectionStore(store)
        # Reads may have a pool of their own, such as one to a standby, or transactions that are bounded.
        self._reads = self._store
        if read_pool is not None or read_settings is not None:
            pool = store.connections.pool if read_pool is None else read_pool
            connections = (
                Connections(pool) if read_settings is None else ReadingConnections(pool, read_settings)
            )
            clock, codec = store.statements.clock, store.statements.codec
            self._reads = InspectionStore(Store(connections, schema=schema, clock=clock, codec=codec))
        self.actor = _default_actor() if actor is None else check_text("actor", actor)
        self._is_actor_named = actor is not None

    async def doctor(
        self, *, only: Iterable[str] = (), thresholds: Thresholds = DEFAULT_THRESHOLDS
    ) -> Diagnosis:
        """Check the database, the tables, workers, jobs and schedules, and return findings with remedies.

        Each check reads a bounded number of rows. No row is changed. Checks that the database role may not
        make are listed in the diagnosis.

        Args:
            only: The codes to check, as text or `FindingCode`; empty for all.
            thresholds: The values from which on something is a finding.

        Raises:
            ValueError: A code is unknown.

        Example::

            diagnosis = await inspector.doctor()
            for finding in diagnosis.findings:
                print(finding.severity, finding.code, finding.evidence, finding.remedy)
        """
        return await examine(self._store, only, thresholds)

    async def status(self) -> Status:
        """Return the state of jobs, workers, schedules, tasks, limits and tables.

        The call makes those checks of the doctor that concern this state, and reads a bounded number of rows.
        Like all checks of the doctor, they read the primary and not ``read_pool``: a standby has other
        sessions and other dead rows.

        Example::

            status = await inspector.status()
            print(status.severity, status.sentences)
        """
        figures = await read_cluster(self._reads)
        statistics = await self.statistics_by_time(PERIOD, width=PERIOD)
        return describe_status(figures, statistics, await self.doctor(only=STATUS_CODES))

    async def migrated_at(self) -> list[datetime]:
        """Return when the first 500 migrations of the schema were applied, in the order of their versions."""
        return await self._reads.inspections.migrations(MAX_MIGRATIONS)

    async def standby_lag_s(self) -> float | None:
        """Return for how many seconds a standby has replayed no transaction; None on a primary.

        While the primary is idle, this number grows although the data of the standby is not outdated.
        """
        return (await self._reads.searches.sizes()).standby_lag_s


read_status = Inspector.status
"""`Inspector.status()` as a function."""

read_limits = Inspector.limits
"""`Inspector.limits()` as a function."""

read_limit = Inspector.limit_keys
"""`Inspector.limit_keys()` as a function."""


def _default_actor() -> str:
    """Return ``user@host`` of this process, for the records of actions without a named actor."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container without a user of this number
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
