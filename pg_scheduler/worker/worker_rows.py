"""Register workers, renew their leases and reclaim the jobs of dead ones."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from pg_scheduler.base.messages import HEARTBEAT_REQUEST
from pg_scheduler.base.status import JobStatus
from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.database.author import release_of, report_refused, with_record
from pg_scheduler.database.faults import RECORD_REFUSALS, REFUSALS, is_lock_timeout, is_refusal
from pg_scheduler.database.options import LOCK_TIMEOUT_MS
from pg_scheduler.database.records import worker_from
from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.session import Connection, Record
from pg_scheduler.database.statements import Statements
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.outcome import RowChange, reclaim_change
from pg_scheduler.worker.outcome_statements import ResultRepository

DRAIN: Final = "drain"
"""The request to claim no more jobs."""

MAX_RECORDED: Final = 20
"""The maximum number of ids of reclaimed jobs in the record of the death of a worker."""

SERVER_START_GRACE_S: Final = 10.0
"""Seconds after a start of the server in which a free liveness lock does not mean a dead worker."""


@dataclass(frozen=True, slots=True)
class RenewResult:
    """The result of renewing the leases of a worker and its jobs.

    Attributes:
        alive: Whether the worker still has its row.
        lost: Ids of jobs that the worker no longer holds.
        now: The server's time.
        late: Whether the lease had expired. Then the row keeps the time of the last heartbeat before that,
            and the next heartbeat is the first one to write its own time.
        subscriptions: The classes of events that other workers want, as they wrote them.
        wanted: The request to the worker: ``drain``; None for no request.
        obstacle: Why the leases of the jobs were not renewed; None if they were.
        is_server_time: Whether ``now`` is the server's time, and not a time that a test has set.
    """

    alive: bool
    lost: list[str]
    now: datetime
    late: bool = False
    subscriptions: Sequence[str | None] = ()
    wanted: str | None = None
    obstacle: Exception | None = None
    is_server_time: bool = False


class Registration(NamedTuple):
    """The result of writing the row of a worker.

    Attributes:
        answer: What a heartbeat at the same time would have returned.
        has_others: Whether other workers have rows.
    """

    answer: RenewResult
    has_others: bool


class WorkerReport(NamedTuple):
    """The report of a worker about itself.

    Attributes:
        state: ``running``, ``draining`` or ``stopping``.
        health: Its connections, the delay of its event loop, and whether it listens and holds its lock.
        names: The names that it claims; None if they are written already.
        declared: The schedules and tasks of its code, as settings of its row; None if they are written
            already.
    """

    state: str
    health: Mapping[str, Any]
    names: Sequence[str] | None = None
    declared: Mapping[str, Any] | None = None


class NextInstants(NamedTuple):
    """Seconds until the next instant at which something happens; None if nothing will."""

    due_in: float | None
    """Until the next pending job is due."""
    expiry_in: float | None
    """Until a pending job expires, the lease of another worker expires, or the pause of a task ends."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """When something expires next, and what else a scan has found.

    Attributes:
        lapse_in: Seconds until the first lease expires; negative if it has expired, None if none will.
        expiry_in: Seconds until the first pending job expires; negative if it should have, None if none will.
        deadline_in: Seconds until the next deadline of a job; None if there is none.
        has_passed: Whether a pending job has passed its deadline, or an entry about one is to be deleted.
        has_overdue: Whether a pending job was due 30 seconds ago.
        has_ended: Whether the consequences of a job that has ended are to be applied.
        has_waiting: Whether jobs wait for other jobs.
        has_blocked: Whether a limit blocks a job.
        has_queued: Whether a job waits in a share.
    """

    lapse_in: float | None
    expiry_in: float | None
    deadline_in: float | None = None
    has_passed: bool = False
    has_overdue: bool = False
    has_ended: bool = False
    has_waiting: bool = False
    has_blocked: bool = False
    has_queued: bool = False


class Quarantined(NamedTuple):
    """A job that failed because too many workers died while they ran it."""

    job_id: str
    job_name: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class RescueResult:
    """The workers and jobs that ``rescue()`` changed.

    Attributes:
        dead_workers: Workers that were declared dead.
        job_ids: Jobs that are pending again.
        quarantined: Jobs that failed instead.
        lost: How many attempts of the pending jobs ended with their dead workers, by the name of the job.
        due: When the first of the pending jobs was due; None if there is none.
    """

    dead_workers: list[str]
    job_ids: list[str]
    quarantined: list[Quarantined] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter, compare=False)
    due: datetime | None = field(default=None, compare=False)


class WorkerRepository:
    """The statements about workers and their leases."""

    def __init__(
        self,
        statements: Statements,
        results: ResultRepository,
        server_start_grace_s: float = SERVER_START_GRACE_S,
    ) -> None:
        self._statements = statements
        self._results = results
        self._server_start_grace_s = server_start_grace_s
        self._refused_restarts = RefusedRows("lease of job {} from a wrong clock not restarted")
        self._refused_leases = RefusedRows("leases of {} from a wrong clock not restarted", are_jobs=False)
        self._refused_workers = RefusedRows("dead worker {} not deleted", are_jobs=False)

    async def register(
        self,
        worker: Worker,
        lease_s: float,
        liveness_key: int | None = None,
        extension_s: float | None = None,
        *,
        report: WorkerReport | None = None,
        wanted: str | None = None,
    ) -> Registration:
        """Insert or update the worker's row, with a new lease; see ``renew()`` for its liveness lock.

        Return what the first heartbeat would.

        Args:
            worker: The worker, with its settings.
            lease_s: The length of the lease in seconds.
            liveness_key: The key of the liveness lock that the worker holds.
            extension_s: Seconds for which the held lock extends an expired lease.
            report: The report of the worker about itself.
            wanted: The request to the worker, such as ``drain``, that a new row takes over from an earlier
                one; None for no request.
        """
        values = (
            worker.worker_id,
            worker.hostname,
            worker.pid,
            worker.version,
            worker.max_concurrent_jobs,
            lease_s,
            self._statements.now,
            liveness_key,
            extension_s,
            worker.role,
            worker.identity,
            json.dumps(dict(worker.metadata)) if worker.metadata else None,
            json.dumps(dict(worker.settings)) if worker.settings else None,
            *_report_columns(report),
            wanted,
            release_of(worker.metadata),
        )

        async def write() -> Registration:
            """Write the row; repeated without the record if that is refused."""
            (row,) = await self._statements.fetch("register_worker", *values)
            answer = RenewResult(
                alive=True,
                lost=[],
                now=row["now"],
                subscriptions=row["subscriptions"] or (),
                wanted=row["wanted"],
                is_server_time=self._statements.now is None,
            )
            return Registration(answer, has_others=row["has_others"])

        # The statement also records the start, which only people read. If the table of records refuses that
        # row, the worker starts without the record.
        return await with_record(f"the record of the start of worker {worker.worker_id}", write)

    async def renew(
        self,
        worker_id: str,
        held: Mapping[str, int],
        lease_s: float,
        *,
        ended: Mapping[str, int] | None = None,
        liveness_key: int | None = None,
        extension_s: float | None = None,
        report: WorkerReport | None = None,
        on: Connection | None = None,
    ) -> RenewResult:
        """Renew the leases of a worker and of its jobs.

        The whole table of jobs may be locked, or a trigger of the application may refuse the change of a job.
        Then the lease of the worker alone is renewed, which keeps its jobs, and the result has an obstacle.
        It lacks the classes of events, and after a lock the lost jobs; a later renewal returns them.

        Args:
            worker_id: The worker.
            held: The attempts of the jobs that run, by id.
            lease_s: The length of the lease in seconds.
            ended: The attempts of jobs whose results are not written yet. The worker still holds them.
            liveness_key: The key of the liveness lock that the worker holds.
            extension_s: Seconds for which the held lock extends an expired lease.
            report: The report of the worker about itself; None to keep the one in its row.
            on: The connection to use; None for the usual one.
        """
        # If a job has two attempts here, the one that runs is later, and is the one that holds the job.
        attempt_numbers = {**(ended or {}), **held}
        now = self._statements.now
        attempts = worker_id, list(attempt_numbers), json.dumps(attempt_numbers)
        lease = lease_s, now, liveness_key, len(held), extension_s
        try:
            (row,) = await self._statements.fetch(
                "renew_lease", *attempts, *lease, *_report_columns(report), on=on
            )
        except (DatabaseUnavailableError, *REFUSALS) as error:
            if not (is_lock_timeout(error) or is_refusal(error)):
                raise
            # Renew the lease of the worker alone, without those in the rows of its jobs.
            rows = await self._statements.fetch(
                "renew_worker", worker_id, *lease, *_report_columns(report), on=on
            )
            # The row of the worker is gone, so no lease was renewed.
            if not rows:
                raise
            (worker_row,) = rows
            lost: list[str] = []
            # After a lock on the whole table, a query would wait for it too. After a refusal the table can be
            # read, so jobs that were cancelled are found, and the caller stops them.
            if is_refusal(error):
                lost_rows = await self._statements.fetch("find_lost", *attempts, on=on)
                lost = [lost_row["job_id"] for lost_row in lost_rows]
            return RenewResult(
                True,
                lost,
                worker_row["now"],
                wanted=worker_row["wanted"],
                obstacle=error,
                is_server_time=now is None,
            )
        return RenewResult(
            row["alive"],
            row["lost"],
            row["now"],
            late=row["late"],
            subscriptions=row["subscriptions"] or (),
            wanted=row["wanted"],
            is_server_time=now is None,
        )

    async def request_state(self, worker_ids: Collection[str], request: str | None) -> list[str]:
        """Ask these workers to drain, which is to claim no more jobs; if ``request`` is None, ask to resume.

        The request is written into the row of each worker, and a heartbeat of the worker is requested, by
        which the worker reads its row and obeys. A record for people is written about requests that change
        something. Return the ids of those workers that have a row.
        """
        action = "resume_worker" if request is None else f"{request}_worker"
        record = self._statements.now, action, *self._statements.author.values()
        rows = await self._statements.fetch(
            "request_state", list(worker_ids), request, HEARTBEAT_REQUEST, *record
        )
        return sorted(row["worker_id"] for row in rows)

    async def announce_subscriptions(self, worker_id: str, kinds: Sequence[str], message: str) -> None:
        """Write the classes of events that a worker wants from others, and send the message to all."""
        await self._statements.fetch("announce_subscriptions", worker_id, kinds or None, message)

    async def mark_stopping(self, worker_id: str) -> None:
        """Mark a worker that has stopped while its threads run on.

        When its process ends, the jobs of these threads do not count as crashed.
        """
        await self._statements.fetch("mark_stopping", worker_id)

    async def deregister(self, worker_id: str) -> None:
        """Delete the worker's row."""
        await self._statements.fetch("deregister_worker", worker_id)

    async def list_workers(self) -> list[Worker]:
        """Return every registered worker, the oldest first."""
        rows = await self._statements.fetch("list_workers", self._statements.now)
        return [worker_from(row) for row in rows]

    async def suspect_workers(self, worker_id: str, *, by_lock: bool = True) -> dict[str, object]:
        """Return the ids of other workers that may be dead, each with its lease and the key of its lock.

        If the worker is alive, its next heartbeat or connection changes this value.

        Args:
            worker_id: The worker that asks.
            by_lock: Whether a free liveness lock makes a worker suspect too. An expired lease always does.
        """
        grace_s, now = self._server_start_grace_s, self._statements.now
        rows = await self._statements.fetch("suspect_workers", worker_id, grace_s, by_lock, now)
        return {row["worker_id"]: (row["liveness_key"], row["lease_until"]) for row in rows}

    async def ended_namesakes(self, worker_id: str, identity: str, hostname: str) -> list[str]:
        """Return the ids of other workers with this identity on this host whose processes have ended.

        The identity is a name that a restarted worker keeps. So these are its earlier processes.
        """
        grace_s = self._server_start_grace_s
        rows = await self._statements.fetch("ended_namesakes", worker_id, identity, hostname, grace_s)
        return [row["worker_id"] for row in rows]

    async def restart_leases(self, limit: int = 1000) -> None:
        """Let leases of workers and jobs begin now that began in the future.

        The server's clock was set back since. Such a lease would last longer by as much as that.
        """
        args = self._statements.now, limit

        async def restart() -> None:
            """Restart the leases, without those of jobs whose rows the table refuses to change."""
            await self._refused_restarts.fetch("restart_leases", *args, statements=self._statements)

        # If the table refuses to change the row of a worker, this logs it and leaves out the statement for
        # some time. So the caller can reclaim the jobs of dead workers nevertheless.
        await self._refused_leases.attempt("workers", restart)

    async def scan_deadlines(
        self, horizon_s: float, heartbeat_threshold_s: float, worker_id: str | None = None
    ) -> Deadlines:
        """Return when the next lease and the next pending job expire, and what else waits for services.

        Only jobs that are due within the next ``horizon_s`` seconds are read. The leases in the rows of jobs
        count for workers without a row, and for the worker ``worker_id`` that asks.
        """
        (row,) = await self._statements.fetch(
            "scan_deadlines", self._statements.now, horizon_s, heartbeat_threshold_s, worker_id
        )
        return Deadlines(
            row["lapse_in"],
            row["expiry_in"],
            row["deadline_in"],
            has_passed=row["passed"],
            has_overdue=row["overdue"],
            has_ended=row["ended"],
            has_waiting=row["waiting"],
            has_blocked=row["blocked"],
            has_queued=row["queued"],
        )

    async def next_instants(self, worker_id: str) -> NextInstants:
        """Return the seconds until the next job is due, and until the next expiry or end of a pause."""
        (row,) = await self._statements.fetch("next_instants", self._statements.now, worker_id)
        return NextInstants(row["due_in"], row["expiry_in"])

    async def rescue(
        self,
        heartbeat_threshold_s: float,
        limit: int = 1000,
        *,
        suspects: Sequence[str] | None = None,
        max_crashes: int | None = None,
        worker_id: str | None = None,
        known_attempts: Callable[[], Mapping[str, int]] = dict,
    ) -> RescueResult:
        """Declare workers dead and reclaim orphaned jobs.

        Args:
            heartbeat_threshold_s: Seconds after its last heartbeat in which a job without a lease counts as
                held.
            limit: The maximum number of jobs.
            suspects: The workers that may be dead; None for every worker whose lease has expired. Those of
                them are declared dead whose lease and its extension have expired, or whose liveness lock is
                free.
            max_crashes: A job fails once so many workers died while they ran it; None for no limit.
            worker_id: The worker that asks. Its own jobs are reclaimed if it does not know them, and their
                leases were not renewed; None to leave the jobs of all live workers alone.
            known_attempts: Returns the attempt numbers of the jobs that this worker knows, by id.
        """
        # These rows were refused a short time ago, and would be refused again.
        left_out = self._refused_workers.keys()
        if suspects is not None and left_out:
            suspects = [suspect for suspect in suspects if suspect not in left_out]
        rescue = partial(
            self._rescue,
            heartbeat_threshold_s,
            limit,
            max_crashes=max_crashes,
            worker_id=worker_id,
            known_attempts=known_attempts,
        )
        try:
            return await rescue(suspects)
        except REFUSALS as error:
            if not is_refusal(error):
                raise
        # The application refuses to delete the row of a worker, or a deferred check refuses the commit.
        if suspects is None:
            return await rescue(None, checks_at_once=True)
        # The first call reclaims the jobs that belong to no suspect. Then each suspect has a call of its own,
        # so that a refused row of one does not keep the jobs of the others.
        results = [await rescue([], checks_at_once=True)]
        for suspect in suspects:
            rescue_one = partial(rescue, [suspect], checks_at_once=True)
            result_of_one = await self._refused_workers.attempt(suspect, rescue_one)
            if result_of_one is not None:
                results.append(result_of_one)
        return RescueResult(
            dead_workers=[worker for result in results for worker in result.dead_workers],
            job_ids=sorted(job_id for result in results for job_id in result.job_ids),
            quarantined=[failed for result in results for failed in result.quarantined],
            lost=sum((result.lost for result in results), Counter()),
            due=min((result.due for result in results if result.due is not None), default=None),
        )

    async def _rescue(
        self,
        heartbeat_threshold_s: float,
        limit: int,
        suspects: Sequence[str] | None,
        *,
        max_crashes: int | None,
        worker_id: str | None,
        known_attempts: Callable[[], Mapping[str, int]],
        checks_at_once: bool = False,
    ) -> RescueResult:
        """Declare workers dead and reclaim orphaned jobs, as ``rescue()`` does, in one transaction.

        It fails if the application refuses to delete the row of a suspect. If ``checks_at_once`` is true,
        checks that the application has deferred to the commit are made at each statement.
        """
        # The change of each job by the id of the job, and the same changes by the worker that holds the job.
        changes: dict[str, RowChange] = {}
        changes_by_worker: dict[str, dict[tuple[str, int], RowChange]] = defaultdict(dict)
        rescued: set[str] = set()
        now = self._statements.now
        async with self._statements.transaction(lock_timeout_ms=LOCK_TIMEOUT_MS) as transaction:
            connection = transaction.connection
            dead_rows = await self._statements.fetch("delete_dead_workers", now, suspects, on=connection)
            if checks_at_once:
                # From now on each statement makes its checks, so a refused job fails with its own savepoint.
                await self._statements.execute("apply_deferred", on=connection)
            dead = [row["worker_id"] for row in dead_rows]
            stopped = {row["worker_id"] for row in dead_rows if row["stopping"]}
            args = dead, now, heartbeat_threshold_s, limit, worker_id, json.dumps(known_attempts())
            orphans = await self._statements.fetch("lock_orphans", *args, on=connection)
            for row in orphans:
                # A worker that was stopping had shut down, and only threads of jobs ran on in its process.
                # The end of that process is no crash of these jobs.
                has_crashed = row["crashed"] and row["worker_id"] not in stopped
                change = reclaim_change(
                    crashed=has_crashed,
                    crashes=row["crash_count"],
                    max_crashes=max_crashes,
                )
                # After an attempt that stored a step, the job has all of its retries again.
                change = replace(change, retries=-row["past_retries"])
                changes[row["job_id"]] = change
                changes_of_holder = changes_by_worker[row["worker_id"]]
                changes_of_holder[row["job_id"], row["attempt"]] = change
            # Each change is fenced by the worker that holds the job, so each worker has a call of its own.
            for holder, changes_of_holder in changes_by_worker.items():
                rescued |= await self._results.settle_divided(changes_of_holder, holder, transaction)
        await self._record(dead_rows, orphans, rescued)
        quarantined = [
            Quarantined(row["job_id"], row["job_name"], row["attempt"], changes[row["job_id"]].error or "")
            for row in orphans
            if row["job_id"] in rescued and changes[row["job_id"]].status is JobStatus.FAILED
        ]
        pending = rescued - {failed.job_id for failed in quarantined}
        due_at = min((row["due"] for row in orphans if row["job_id"] in pending), default=None)
        # How many attempts ended with a dead worker, by the name of the job.
        lost = Counter(
            row["job_name"] for row in orphans if row["has_dead_worker"] and row["job_id"] in pending
        )
        return RescueResult(dead, sorted(pending), quarantined, lost=lost, due=due_at)

    async def _record(
        self,
        workers: Sequence[Record],
        orphans: Sequence[Record],
        rescued: Collection[str],
    ) -> None:
        """Write a record of the workers that were declared dead, with the jobs that were reclaimed from them.

        Workers that had shut down before are left out. The record is written in a transaction of its own. If
        the table of records refuses it, the jobs are reclaimed nevertheless, because only people read it.
        """
        # The ids of the reclaimed jobs, by the worker that held them.
        ids_by_worker: dict[str, list[str]] = defaultdict(list)
        for row in orphans:
            if row["job_id"] in rescued:
                ids_by_worker[row["worker_id"]].append(row["job_id"])
        dead = [
            {
                **load_json(row["described"]),
                "count": len(ids_by_worker[row["worker_id"]]),
                "jobs": sorted(ids_by_worker[row["worker_id"]])[:MAX_RECORDED],
            }
            for row in workers
            if not row["stopping"]
        ]
        if dead:
            record = self._statements.now, json.dumps(dead), *self._statements.author.values("worker")
            try:
                await self._statements.fetch("record_dead_workers", *record)
            except (DatabaseUnavailableError, *RECORD_REFUSALS) as refusal:
                report_refused(
                    f"the record of the dead workers {[worker['worker_id'] for worker in dead]}", refusal
                )


def _report_columns(
    report: WorkerReport | None,
) -> tuple[str | None, str | None, list[str] | None, str | None]:
    """Return the state, health, names and declared schedules of a report, as statements take them.

    None stands for what the row keeps; without a report, that is all of it.
    """
    if report is None:
        return None, None, None, None
    names = None if report.names is None else list(report.names)
    declared = None if report.declared is None else json.dumps(dict(report.declared))
    return report.state, json.dumps(dict(report.health)), names, declared
