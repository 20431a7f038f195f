"""A Scheduler whose statements and jobs run in the transaction of a test.

Jobs are claimed one by one. The executor of a worker runs them and decides their outcomes, which its
completer writes. Nothing runs in the background: the connection is free for the test between calls, and for a
job while the job runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, TypeAlias, cast

from pg_scheduler.base.settings import SchedulerConfig
from pg_scheduler.base.status import JobStatus
from pg_scheduler.clock import PythonClock
from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import JobResult
from pg_scheduler.events import JobEvent, JobExpired, JobLost
from pg_scheduler.events.types import EXPIRED
from pg_scheduler.jobs.call import JobCall, JobExecutor
from pg_scheduler.jobs.context import GetScheduler
from pg_scheduler.jobs.model import Job, JobFunction
from pg_scheduler.jobs.retry import retry_of
from pg_scheduler.jobs.task import JobSpec
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.sync.scheduler import SyncScheduler, closed_pool
from pg_scheduler.testing.attempt_bound import AttemptBound
from pg_scheduler.testing.bench import OUTCOMES, Bench, Tally, claim_of, raise_job_error
from pg_scheduler.testing.calling_thread import NESTED
from pg_scheduler.testing.connections import OwnConnection, isolated
from pg_scheduler.testing.expected import ExpectedJob, NamingScheduler
from pg_scheduler.testing.written import KitPauseWatcher, KitStore, WrittenJobs, WrittenSequences
from pg_scheduler.tools import client_of, options_of, settings_of, tasks_of
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.runners.process import ProcessExecutor
from pg_scheduler.worker.runners.thread import ThreadExecutor


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The numbers of attempts and jobs of a drain, by outcome."""

    completed: int = 0
    """Attempts that completed their job."""
    failed: int = 0
    """Attempts that failed, and whose job is not retried."""
    retried: int = 0
    """Attempts that failed, and whose job is pending again."""
    snoozed: int = 0
    """Attempts that raised ``Snooze``."""
    cancelled: int = 0
    """Attempts that were skipped because another one has the advisory lock."""
    expired: int = 0
    """Jobs past their misfire grace time, which did not run."""
    unregistered: tuple[str, ...] = ()
    """The names of pending jobs that no function is registered for; other workers may have some."""


AnyScheduler: TypeAlias = Scheduler | SyncScheduler

NO_START: Final = (
    "the Scheduler of a test kit cannot start, because the kit runs its jobs; call drain() of the kit, or "
    "use TestScheduler to test a Scheduler that has started"
)


NO_WORKER: Final = (
    "run_job() would never return, because only drain() of the test kit runs jobs; call enqueue() with "
    "keep_result=, drain() and get_job_result()"
)


NOT_SEEN: Final = (
    "\nsuch jobs are committed, and the kit sees only those that its own transaction has written, because "
    "workers may run the others; let the code under test write into the transaction of the test, or use "
    "TestScheduler in a database of its own"
)


class KitClock(PythonClock):
    """The time of this process plus the time by which a test has advanced the clock."""

    def __init__(self) -> None:
        self._ahead = timedelta(0)

    def override(self) -> datetime:
        """Return the time of this clock."""
        return datetime.now(UTC) + self._ahead

    def advance(self, by: timedelta) -> None:
        """Move the clock forward."""
        self._ahead += by


class KitScheduler(NamingScheduler):
    """A client on the connection of a test, which also runs jobs there.

    Args:
        connection: The connection.
        model: The Scheduler whose settings, functions and middleware it has; None for the defaults.
        executor: Runs the jobs of threads and processes.
        get_scheduler: Returns ``current_job().scheduler``; None for that of workers.
    """

    _store_class = KitStore

    def __init__(
        self,
        connection: Connection,
        model: AnyScheduler | None,
        executor: JobExecutor,
        get_scheduler: GetScheduler | None = None,
    ) -> None:
        # The constructor of Scheduler calls _connections_of(), which reads the connection.
        self._connection = connection
        self._executor = executor
        self._get_scheduler = get_scheduler
        self._is_running_jobs = False
        self._clock = KitClock()
        pool = closed_pool()
        if model is None:
            super().__init__(pool, statistics=False, clock=self._clock)
        else:
            source = client_of(model)
            # The constructor of Scheduler reads this attribute.
            self._catalogue = tasks_of(source)
            super().__init__(pool, statistics=False, clock=self._clock, **options_of(source))
            # These are also the settings that options_of() lacks. The kit runs the jobs of all functions.
            self._parts.config = replace(settings_of(source), only=(), skip=(), statistics=False)
            self.state = source.state
        statements = self._parts.store.statements
        self._written = WrittenJobs(statements, self._parts.store.consequences)
        self._sequences = cast("WrittenSequences", self._parts.store.sequences)
        # The outbox sends at once, so it needs no timers.
        self._parts.outbox.gap_s = 0.0

    @property
    def now(self) -> datetime:
        """The current time of the clock."""
        return self._clock.override()

    async def start(self) -> None:
        """Raise RuntimeError: the test kit runs the jobs, and not a worker."""
        raise RuntimeError(NO_START)

    async def shutdown(self) -> None:
        """Do nothing: it has not started."""

    def advance(self, by: timedelta) -> None:
        """Move the clock forward."""
        self._clock.advance(by)

    async def get_job_result(  # type: ignore[override] # it waits for nothing, so one signature suffices
        self,
        job_id: str,
        *,
        wait: bool = True,
        timeout: float | timedelta | None = None,  # noqa: ARG002
        connection: AnyConnection | None = None,
    ) -> JobResult | None:
        """Return how a job ended. It does not wait: no worker runs the job meanwhile."""
        result = await super().get_job_result(job_id, wait=False, connection=connection)
        if result is None and wait:
            raise TimeoutError(f"job {job_id!r} has not ended; call drain() of the test kit first")
        return result

    async def run_job(self, func: Any, **options: Any) -> NoReturn:  # noqa: ARG002
        """Raise RuntimeError: the call would wait for a worker, and there is none."""
        raise RuntimeError(NO_WORKER)

    # -- looking at jobs -------------------------------------------------------------------------------

    async def find(
        self,
        func: JobFunction | str | None,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        after: timedelta | float | None,
        at: datetime | None,
        *,
        tolerance: timedelta | float,
    ) -> list[Job]:
        """Return the pending jobs that fit the arguments of an assertion; None stands for any value."""
        names = None if func is None else self.job_names_of(func)
        expected = ExpectedJob.of(names, args, kwargs, after, at, now=self.now, tolerance=tolerance)
        return [job for job in await self.jobs() if job.status is JobStatus.PENDING and expected.matches(job)]

    async def hint_of_missing(self, func: JobFunction | str) -> str:
        """Return the end of an error about a missing job: why the kit may not see it; "" for no such reason.

        The reason is that pending jobs of the function are committed. Code under test that has another
        connection than the kit commits its jobs, and so does a session that is bound to an engine.
        """
        written_ids = await self.ids()
        for name in self.job_names_of(func):
            jobs = await self.list_jobs(job_name=name, status=JobStatus.PENDING)
            if any(job.job_id not in written_ids for job in jobs):
                return NOT_SEEN
        return ""

    async def jobs(self) -> list[Job]:
        """Return all jobs that the kit sees, in the order of their due time."""
        jobs = await self._parts.store.jobs.get_jobs(await self.ids())
        return sorted(jobs, key=lambda job: (job.execution_time, job.job_id))

    async def new_jobs(self, previous_ids: set[str]) -> list[Job]:
        """Return the jobs whose ids are not among ``previous_ids``."""
        return [job for job in await self.jobs() if job.job_id not in previous_ids]

    async def ids(self, *, due: bool = False) -> set[str]:
        """Return the ids of all jobs that the kit sees, or of those that are due."""
        await self._own_connection.look()
        return await self._written.ids(due_at=self.now if due else None)

    # -- running jobs ----------------------------------------------------------------------------------

    async def run_jobs(
        self, *, only: set[str] | None = None, raises: bool, bound: AttemptBound
    ) -> DrainResult:
        """Run due jobs one after the other, and return the numbers of their outcomes.

        Args:
            only: The ids of jobs to run once; the ids of those that ran are removed. None for all jobs, until
                none is due.
            raises: Whether to raise the error of an attempt.
            bound: What ends the call if jobs are always due or do not end.
        """
        parts, tally = self._parts, Tally()
        bench = Bench(self._node())
        unsubscribe = parts.events.subscribe(tally.record, *OUTCOMES, JobLost)
        try:
            with self._running_jobs():
                await self._own_connection.look()
                pause_watcher = KitPauseWatcher(bench.node)
                # A pass that has more to do now returns 0. Between two passes over the jobs of a pause that
                # has ended, the pause watcher makes a gap.
                while await pause_watcher.run_once() <= 0 or pause_watcher.is_renewing:
                    pass
                while (job_id := await self._run_next(bench, only, bound)) is not None:
                    if only is not None:
                        only.discard(job_id)
                    # The subscriber has noted that the outcome of this attempt was refused.
                    if tally.lost:
                        await self._check_claim(tally.lost.pop())
                    if raises and tally.error is not None:
                        raise_job_error(tally.error)
                unregistered_names = await self._written.ready_names() - set(parts.tasks.lists.names)
        finally:
            unsubscribe()
            await bench.stop()
        return DrainResult(**tally.counts, unregistered=tuple(sorted(unregistered_names)))

    async def run_function(self, func: JobFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a function as a job without a row; return its value, or raise its error."""
        # A job without a row excludes no other job, and no call postpones it.
        spec = JobSpec(func, self.now, args, dict(kwargs), unique=None)
        (job,) = self._parts.preparer.prepare((spec,))
        # The value of the function, or the error that it raised: one of these gets one element.
        returned: list[Any] = []
        raised: list[BaseException] = []

        async def observe(call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ARG001
            """Note what the function returned or raised."""
            try:
                returned.append(await call_next())
            except BaseException as error:  # any error is the result
                raised.append(error)
                raise
            return returned[0]

        # The outermost middleware sees what the caller is to get.
        node = self._node()
        bench = Bench(replace(node, middleware=(observe, *node.middleware)))
        claim = claim_of(job)
        try:
            with self._running_jobs():
                await bench.run(claim)
        finally:
            await bench.stop()
        outcome = bench.take_outcome()
        if outcome is None or outcome.change.status is JobStatus.COMPLETED:
            return returned[0]
        # The event has the exception that failed the attempt, such as that of a timeout.
        error = getattr(outcome.event_of(claim), "exception", None)
        # The event of a `Retry` has its cause, and the caller gets the `Retry` itself.
        is_retry = bool(raised) and retry_of(raised[0]) is not None
        if error is None or is_retry:
            error = raised[0]
        return raise_job_error(error)

    async def _run_next(self, bench: Bench, only: Collection[str] | None, bound: AttemptBound) -> str | None:
        """Run the next due job, or expire it if it is late, and return its id; None if there is none."""
        await self._written.mark_uncommitted()
        await self._sequences.move_waiting()
        claims, names = self._parts.store.claims, bench.node.routing.names()
        next_claim = await self._written.claim_next(self.worker_id, names, only)
        if next_claim is None:
            return None
        claim, has_expired = next_claim
        if has_expired:
            reasons = await claims.explain_expiry(self.worker_id, names, [claim])
            reason = reasons.get(claim.job_id, EXPIRED)
            self._parts.events.publish(JobExpired(claim.job_id, claim.job_name, claim.attempt, reason))
        else:
            bound.count(claim)
            async with isolated(self._connection, self._own_connection.turn):
                await bench.run(claim, bound)
            await bench.settle()
        return claim.job_id

    async def _check_claim(self, lost: JobEvent) -> None:
        """Raise RuntimeError if a job whose outcome was refused is pending: it would run again and again.

        ``lost`` is the event of that attempt.
        """
        statuses = await self._parts.store.jobs.statuses_of([lost.job_id])
        if statuses.get(lost.job_id) is JobStatus.PENDING:
            raise RuntimeError(
                f"job {lost.job_name!r} (id {lost.job_id}) has rolled back its own claim, since it shares a "
                "transaction with the test kit; give jobs a session of their own on the connection of the "
                "test, with join_transaction_mode='create_savepoint' in SQLAlchemy, or commit the session "
                "before drain()"
            )

    @contextmanager
    def _running_jobs(self) -> Iterator[None]:
        """Note that jobs run within the block; raise RuntimeError if they run already."""
        if self._is_running_jobs:
            raise RuntimeError(NESTED)
        self._is_running_jobs = True
        try:
            yield
        finally:
            self._is_running_jobs = False

    def _node(self) -> Node:
        """Return the parts of a worker; the executor of the kit replaces those for threads and processes."""
        node = super()._node()
        executors = dict(node.executors)
        for name, executor in node.executors.items():
            if isinstance(executor, ThreadExecutor | ProcessExecutor):
                executors[name] = self._executor
        get_scheduler = self._get_scheduler or node.get_scheduler
        return replace(node, executors=executors, get_scheduler=get_scheduler)

    def _connections_of(self, config: SchedulerConfig) -> OwnConnection:  # noqa: ARG002
        """Return the connection of the test in place of a pool. The constructor of Scheduler calls this."""
        self._own_connection = OwnConnection(self.db_pool, self._connection)
        return self._own_connection
