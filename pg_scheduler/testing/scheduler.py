"""The real Scheduler with the real SQL and a virtual clock, for tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple, Self

import asyncpg

from pg_scheduler.base.dsn import normalise_dsn
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.opening import open_own_pool
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.validation import check_count, check_delay, check_execution_time
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.testing.assertions import JobAssertions
from pg_scheduler.testing.attempt_bound import MAX_ATTEMPTS, TIMEOUT_S, AttemptBound
from pg_scheduler.testing.calling_thread import NESTED
from pg_scheduler.testing.inspector import Inspector
from pg_scheduler.testing.worker import ManualRuntime, ManualScheduler

OWN_SETTINGS: Final = {
    "clock": "pass now=",
    "max_concurrent_jobs": "pass concurrency=",
    "batch_claim_limit": "jobs are claimed one by one",
}
"""Settings of the Scheduler that the test kit sets, and what to do instead."""


class _Step(NamedTuple):
    """An instant to which the clock moves, because something is due then, and whether this is maintenance."""

    at: datetime
    maintains: bool


class TestScheduler(JobAssertions):
    """A Scheduler that runs jobs only when a test asks, by a clock that only the test moves.

    The Scheduler, its SQL and the rows are real, the time is not. ``run_until()`` moves the clock from one
    due instant to the next, so a year of a daily schedule takes seconds. Jobs run one at a time, in the order
    of priority, due time and id. Inside a job, time is real: ``asyncio.sleep()`` takes as long as ever, the
    timeout of an attempt counts real seconds, and ``datetime.now()`` returns the real time. The methods that
    run jobs are coroutines; those that look at jobs are not.

    Args:
        pool: An asyncpg pool, or a DSN, of which a pool is made for the length of the ``async with`` block.
            No other Scheduler should run on this database: its clock differs.
        now: The first time of the clock, timezone-aware; None for the present, by the clock of this machine.
        concurrency: Jobs that may run at the same time.
        settings: Settings of the `Scheduler`. The delays of retries have no jitter here.

    Raises:
        TypeError: ``pool`` is neither a pool nor a DSN, or the test kit sets a setting itself.
        ValueError: ``now`` has no time zone, or ``concurrency`` is less than 1.

    Example::

        async with TestScheduler(dsn, now=datetime(2030, 1, 1, tzinfo=UTC)) as t:
            await t.scheduler.enqueue(send_mail, args=("ada@example.org",), delay=timedelta(days=1))
            t.assert_scheduled(send_mail, args=("ada@example.org",), after=timedelta(days=1))
            await t.run_until(timedelta(days=30))
            assert t.ran(send_mail) == 1
    """

    __test__: ClassVar[bool] = False
    """pytest does not collect this class."""

    def __init__(
        self,
        pool: asyncpg.Pool | str,
        *,
        now: datetime | None = None,
        concurrency: int = 1,
        **settings: Any,
    ) -> None:
        for name in settings.keys() & OWN_SETTINGS:
            raise TypeError(f"TestScheduler sets {name} itself; {OWN_SETTINGS[name]}")
        if not isinstance(pool, asyncpg.Pool | str):
            raise TypeError(
                f"pool must be an asyncpg.Pool or a DSN, not {type(pool).__name__}; "
                "pass the result of asyncpg.create_pool()"
            )
        check_count("concurrency", concurrency, least=1)
        start = datetime.now(UTC) if now is None else check_execution_time(now, name="now")
        self._clock = FakeClock(start)
        # The pool, or the DSN of which a pool is made.
        self._source = normalise_dsn(pool, "the DSN") if isinstance(pool, str) else pool
        self._settings = {
            **settings,
            "max_concurrent_jobs": concurrency,
            "batch_claim_limit": 1,
        }
        self._pool: asyncpg.Pool | None = None
        self._scheduler: ManualScheduler | None = None
        self._inspector: Inspector | None = None
        self._runs: Counter[str] = Counter()
        self._run_lock = asyncio.Lock()
        """Held by a call that runs jobs: such calls follow one another."""
        self._vacuumed_at = start
        """When the vacuum made its last pass, by the virtual clock."""

    async def __aenter__(self) -> Self:
        """Start the Scheduler; open a pool first if a DSN was given."""
        if self._inspector is not None:
            raise RuntimeError("TestScheduler has already started; use the one of the outer async with block")
        pool_or_dsn = self._source
        if isinstance(pool_or_dsn, str):
            self._pool = await open_own_pool(pool_or_dsn, "the DSN", min_size=1)
        else:
            self._pool = pool_or_dsn
        try:
            self._scheduler = scheduler = ManualScheduler(self._pool, clock=self._clock, **self._settings)
            self._runs = scheduler.count_runs()
            schema, codec = self._settings.get("schema"), self._settings.get("codec")
            self._inspector = Inspector(self._pool, schema=schema, codec=codec, clock=self._clock)
            await scheduler.start()
        except BaseException:  # after any error, __aexit__ is not called
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the Scheduler, and close what was opened for the block."""
        try:
            await self._scheduler_since_entry().shutdown()
        finally:
            await self._close()

    async def _close(self) -> None:
        """Close the inspector, and the pool if it was made for the block."""
        inspector, self._inspector = self._inspector, None
        if inspector is not None:
            inspector.close()
        if isinstance(self._source, str) and self._pool is not None:
            await self._pool.close()

    # -- the Scheduler and its clock -------------------------------------------------------------------

    @property
    def scheduler(self) -> Scheduler:
        """The Scheduler, to pass to the code under test."""
        return self._scheduler_since_entry()

    @property
    def pool(self) -> asyncpg.Pool:
        """The pool of the Scheduler."""
        return self._scheduler_since_entry().db_pool

    def advance(self, by: timedelta | float) -> None:
        """Move the clock forward and do nothing else, as if no worker had run meanwhile.

        Jobs that became due are late then: they may be past their misfire grace time.

        Args:
            by: A timedelta, or seconds.

        Raises:
            ValueError: The duration is negative.
        """
        self._clock.advance(timedelta(seconds=check_delay("by", by)))

    # -- running jobs ----------------------------------------------------------------------------------

    async def run_until(
        self,
        until: datetime | timedelta,
        *,
        max_attempts: int = MAX_ATTEMPTS,
        timeout: float | timedelta | None = TIMEOUT_S,
    ) -> int:
        """Move the clock to a time, and do on the way what is due, at the instant at which it is due.

        Jobs run, schedules fire, retries follow their delays, pauses end, jobs and leases expire, the vacuum
        deletes.

        Args:
            until: The last instant, or the time from now to it. What is due at it runs too.
            max_attempts: The maximum number of attempts within a second of the clock, since a job that
                enqueues itself without a delay never ends.
            timeout: Seconds of real time, or a timedelta, within which one of the attempts that run must end;
                None for no limit.

        Returns:
            The number of attempts that ran.

        Raises:
            ValueError: The time has passed, or a value is out of range.
            RuntimeError: The caller is a job, or more than ``max_attempts`` have run within a second; the
                message names the jobs.
            TimeoutError: No attempt has ended in time; the message names those that run.
        """
        target = self._instant(until)
        if target < self.now:
            raise ValueError(f"until={target} has passed: the clock is at {self.now}; pass a later time")
        bound = AttemptBound(max_attempts, timeout)
        bound.note_time(self.now)
        async with self._lock_for_jobs():
            count = await self._run_all(bound, maintains=True)
            # The clock moves from one instant at which something is due to the next one.
            while (step := await self._next_step(target)) is not None:
                self._clock.now = step.at
                bound.note_time(self.now)
                count += await self._run_all(bound, maintains=step.maintains)
            if self._clock.now < target:
                self._clock.now = target
                bound.note_time(self.now)
                count += await self._run_all(bound, maintains=True)
        return count

    async def drain(
        self, *, max_attempts: int = MAX_ATTEMPTS, timeout: float | timedelta | None = TIMEOUT_S
    ) -> int:
        """Run all jobs that are due now, and those that they make due; the clock stands still.

        Args:
            max_attempts: The maximum number of attempts, as in ``run_until()``.
            timeout: Seconds, or a timedelta, as in ``run_until()``.

        Returns:
            The number of attempts that ran.

        Raises:
            ValueError: A value is out of range.
            RuntimeError: The caller is a job, or more than ``max_attempts`` have run; the message names the
                jobs.
            TimeoutError: No attempt has ended in time; the message names those that run.
        """
        bound = AttemptBound(max_attempts, timeout)
        async with self._lock_for_jobs():
            return await self._run_all(bound, maintains=True)

    async def run_one(self, *, timeout: float | timedelta | None = TIMEOUT_S) -> Job | None:
        """Run the next job that is due now.

        Args:
            timeout: Seconds of real time, or a timedelta, within which the job must end; None for no limit.

        Returns:
            The job as it is after the attempt; None if none is due, or if its row is deleted.

        Raises:
            RuntimeError: The caller is a job.
            TimeoutError: The job has not ended in time; the message names it.
            ValueError: ``timeout`` is negative.
        """
        bound = AttemptBound(timeout=timeout)
        async with self._lock_for_jobs():
            worker = await self._prepared_worker(maintains=True)
            await worker.plan()
            started_count = await worker.run_due(bound, most=1)
            if not started_count or worker.last_started is None:
                return None
            return await self.scheduler.get_job(worker.last_started)

    # -- faults ----------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Let the worker die, as SIGKILL would: the rows of its jobs stay running.

        The next call that runs jobs starts another worker, which reclaims them when the lease has expired.
        Running attempts are cancelled. In a job, this call raises ``asyncio.CancelledError``.

        Raises:
            CancelledError: The caller is a job.
        """
        self._scheduler_since_entry().crash()

    async def block(self, seconds: timedelta | float) -> None:
        """Move the clock as if the event loop had been blocked for so long.

        Up to ``max_loop_block``, the lease keeper's thread keeps the jobs of the worker. After that, another
        worker reclaims those that run: their results are refused, and they run again.

        Args:
            seconds: Seconds, or a timedelta.

        Raises:
            ValueError: The duration is negative.
        """
        scheduler = self._scheduler_in_block()
        blocked_s = check_delay("seconds", seconds)
        self._clock.advance(timedelta(seconds=blocked_s))
        runtime = await scheduler.manual()
        # The lease was not renewed meanwhile. _run_all() reads this too: a job that it runs may call block().
        runtime.renewed_at = None
        # For so long, the thread of the lease keeper would have renewed the lease in place of the event loop.
        if blocked_s > scheduler.max_loop_block:
            await scheduler.reclaim_blocked()
        else:
            await runtime.renew(self.now)

    def lose_connection(self) -> None:
        """Close every connection of the pool, as a failover of the server would.

        Statements that run fail, and open transactions roll back. The Scheduler reconnects.
        """
        self._scheduler_since_entry().close_connections()

    # -- the parts -------------------------------------------------------------------------------------

    def _lock_for_jobs(self) -> asyncio.Lock:
        """Return the lock of the calls that run jobs; raise RuntimeError if a job calls this.

        A job that makes such a call would wait for itself.
        """
        if self._scheduler_in_block().is_called_by_job:
            raise RuntimeError(NESTED)
        return self._run_lock

    def _instant(self, until: datetime | timedelta) -> datetime:
        """Return the instant that ``until=`` means."""
        if isinstance(until, timedelta):
            try:
                return self.now + until
            except OverflowError as error:
                raise ValueError(f"until={until} is out of range; pass a datetime") from error
        return check_execution_time(until, name="until")

    async def _prepared_worker(self, *, maintains: bool) -> ManualRuntime:
        """Renew the lease of the worker, run the vacuum if it is due, and return the worker.

        With ``maintains``, the other services of maintenance run too. The vacuum has an interval of its own.
        """
        scheduler = self._scheduler_since_entry()
        worker = await scheduler.manual()
        await worker.renew(self.now)
        if maintains:
            await worker.maintain()
        interval = scheduler.vacuum_interval
        if interval is not None and self.now >= self._vacuumed_at + interval:
            self._vacuumed_at = self.now
            await scheduler.run_vacuum()
        return worker

    async def _run_all(self, bound: AttemptBound, *, maintains: bool) -> int:
        """Run all that is due, until nothing is, and return the number of attempts."""
        count = 0
        while True:
            worker = await self._prepared_worker(maintains=maintains)
            await worker.plan()
            count += await worker.run_due(bound)
            # A worker that has crashed, or has lost its lease by a blocked loop, leaves jobs to another pass.
            is_lost = worker.is_dead or worker.renewed_at is None
            if is_lost:
                continue
            # Jobs may have added schedules.
            has_planned = await worker.plan()
            if not has_planned:
                return count

    async def _next_step(self, target: datetime) -> _Step | None:
        """Return the next instant at which something is due; None if nothing is due up to the target."""
        worker = await self._scheduler_since_entry().manual()
        due_in_s, expiry_in_s = await self._scheduler_since_entry().next_instants()
        remaining_s = (target - self.now).total_seconds()
        # The seconds until something is due, and whether that is done by the services of maintenance.
        waits = (
            (due_in_s, False),
            (worker.planner.next_fire_in, False),
            (worker.unblocker.next_room_in, False),
            (expiry_in_s, True),
        )
        steps: list[_Step] = []
        for wait_s, maintains in waits:
            # What is due now was done before the clock moves.
            if wait_s is not None and 0 < wait_s <= remaining_s:
                steps.append(_Step(self.now + timedelta(seconds=wait_s), maintains))
        if not steps:
            return None
        # Several steps may be due at the first instant. One with maintenance suffices.
        first_at = min(step.at for step in steps)
        maintains = any(step.maintains for step in steps if step.at == first_at)
        return _Step(first_at, maintains)
