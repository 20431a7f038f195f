"""Read the state of all workers and tables, for metrics and the status, with a bounded number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pg_scheduler.base.figures import JobFigures
from pg_scheduler.facts.lateness import held_names
from pg_scheduler.inspect.jobs import Totals, totals_of
from pg_scheduler.inspect.paths import UNSUCCESSFUL_INDEX
from pg_scheduler.inspect.store.cluster import TABLES, ScheduleRow
from pg_scheduler.inspect.store.doctor import TableRow
from pg_scheduler.inspect.store.inspections import BacklogRow
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.store.workers import InspectedWorker
from pg_scheduler.inspect.tasks import claimed_names, count_claiming, paused_tasks, tasks_of_aliases

MAX_UNSUCCESSFUL_ROWS: Final = 20_000
"""Unsuccessful jobs among which the quarantined ones are counted."""

MAX_NAMES: Final = 500
"""Job names whose totals are read."""

MAX_SCHEDULES: Final = 500
"""Schedules that are read."""


MAX_RECORDS: Final = 10_000
"""Records of the audit among which the last death of a worker is searched."""


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """The state of all workers and tables at one instant.

    Attributes:
        backlog: Due and running jobs by name. The name of the oldest due job comes first.
        is_capped: Whether counting these jobs stopped after 50,000 unfinished jobs.
        blocked: Blocked jobs by what they wait for: ``after``, or ``limit:`` or ``share:`` with its name.
        quarantined: Quarantined jobs among the newest 20,000 unsuccessful ones; None if their index is
            missing.
        totals: About how many jobs there are.
        workers: The workers that run jobs.
        held: The names in the backlog whose task is paused: their jobs are due, but not late.
        paused: The names of paused tasks.
        schedules: The first 500 schedules by id.
        jobs: The totals of the statistics of the first 500 job names.
        tables: The tables.
        now: The time of the database.
        clock_skew_s: By how many seconds the clock of the database is ahead of the clock of this host.
        oldest_transaction_s: The age of the oldest transaction, in seconds.
        is_blocked_capped: Whether counting blocked jobs stopped, so that there may be more.
        last_death_at: When a worker was last declared dead; None if no worker was within an hour, or if that
            is unknown.
    """

    backlog: Sequence[BacklogRow]
    is_capped: bool
    blocked: Mapping[str, int]
    quarantined: int | None
    totals: Totals
    workers: Sequence[InspectedWorker]
    paused: Sequence[str]
    schedules: Sequence[ScheduleRow]
    jobs: Sequence[tuple[str, JobFigures]]
    tables: Sequence[TableRow]
    now: datetime
    clock_skew_s: float
    oldest_transaction_s: float
    last_death_at: datetime | None
    held: frozenset[str] = frozenset()
    is_blocked_capped: bool = False

    @property
    def waiting(self) -> list[BacklogRow]:
        """The rows of the backlog with due jobs that wait for a slot, and that are not held."""
        return [row for row in self.backlog if row.due and row.name not in self.held]

    @property
    def claimed(self) -> set[str]:
        """The names of the tasks that live workers claim, without aliases."""
        return claimed_names(self.workers)

    def unknown(self) -> Iterator[tuple[str, int]]:
        """Yield each name of the backlog with the number of its due jobs that no live worker will claim.

        The number is 0 if a live worker claims the name, even if that worker drains, or if the name is held.
        Nothing is yielded while no worker is alive, or while a live worker does not report its names.
        """
        if not any(worker.is_alive for worker in self.workers):
            return
        for row in self.backlog:
            claiming = count_claiming(self.workers, row.name, with_draining=True)
            if claiming is not None:
                unclaimed_jobs = 0 if claiming or row.name in self.held else row.due
                yield row.name, unclaimed_jobs


async def read_cluster(store: InspectionStore) -> ClusterFigures:
    """Read the state of the cluster, one statement after the other."""
    inspections, cluster = store.inspections, store.cluster
    sent_at = datetime.now(UTC)
    server = await cluster.server()
    # The server has read its clock about halfway between the request and the response.
    round_trip = datetime.now(UTC) - sent_at
    read_at = sent_at + round_trip / 2
    async with store.searches.transaction() as connection:
        estimates = (await store.searches.sizes(on=connection)).estimates
        quarantined = None
        # Without this index, counting the quarantined jobs would read the whole table.
        if UNSUCCESSFUL_INDEX in estimates:
            quarantined = (await cluster.unsuccessful(MAX_UNSUCCESSFUL_ROWS, on=connection)).quarantined
    backlog = await inspections.backlog()
    blocked: dict[str, int] = {}
    blocked_jobs = await store.limits.blocked()
    for blocked_on, jobs in blocked_jobs.jobs.items():
        # The text is ``after``, limit:<name>:<key> or share:<name>:<tenant>. Keys and tenants are left out,
        # because they can be personal data.
        group = ":".join(blocked_on.split(":", 2)[:2])
        blocked[group] = blocked.get(group, 0) + jobs
    workers = [worker for worker in await store.worker_reads.workers() if worker.claims_jobs]
    pauses = await paused_tasks(store)
    return ClusterFigures(
        backlog=backlog.rows,
        is_capped=backlog.is_capped,
        blocked=blocked,
        quarantined=quarantined,
        totals=totals_of(estimates),
        workers=workers,
        paused=list(pauses),
        schedules=await cluster.schedules(MAX_SCHEDULES),
        jobs=await cluster.totals(MAX_NAMES),
        tables=[table for table in await store.doctor.tables() if table.name in TABLES],
        now=server.now,
        clock_skew_s=(server.now - read_at).total_seconds(),
        oldest_transaction_s=server.oldest_transaction_s,
        last_death_at=await cluster.last_death(MAX_RECORDS),
        held=held_names((row.name for row in backlog.rows), pauses.values(), tasks_of_aliases(workers)),
        is_blocked_capped=blocked_jobs.is_capped,
    )
