"""Run a job with a crash at each of its statements in turn, and compare how it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

import asyncpg

from pg_scheduler.base.status import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.opening import create_pool
from pg_scheduler.events import JobCancelled, JobCompleted, JobExpired, JobFailed
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.jobs.validation import check_delay, check_seconds
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.testing.crashing_worker import (
    CrashingWorker,
    Moment,
    NumberedConnection,
    Point,
    StatementPlace,
)
from pg_scheduler.testing.scheduler import TestScheduler
from pg_scheduler.testing.worker import ManualScheduler, step_calls

DEFAULTS: Final = {
    "now": datetime(2030, 1, 1, tzinfo=UTC),
    "role": "worker",
    "shutdown_timeout": 0,
    "vacuum_enabled": False,
}
"""Arguments of TestScheduler. Schedules do not fire, and the job's row stays to be read."""


@dataclass(frozen=True, slots=True)
class EndState:
    """How a job ended.

    Attributes:
        status: The status of its row; None if the row does not exist.
        result: The value that it returned, if that was kept.
        observed: The value of ``observe``.
    """

    status: JobStatus | None
    result: Any
    observed: Any

    def __str__(self) -> str:
        """Return the state on one line, for the message of an error."""
        return f"{self.status or 'deleted'}, result {self.result!r}, observed {self.observed!r}"


class CrashDifference(AssertionError):
    """After a crash, a job ends in another way than without one.

    Attributes:
        statement: The statement at which the worker crashed: its name if it is one of the library, else its
            text.
        moment: ``"before"`` or ``"after"`` the statement.
        expected: How the job ends without a crash: ``status``, ``result`` and ``observed``.
        found: How it ended after the crash.
    """

    def __init__(self, statement: str, moment: Moment, expected: EndState, found: EndState) -> None:
        super().__init__(
            f"a crash {moment} the statement {statement!r} changes how the job ends\n"
            f"  without a crash: {expected}\n"
            f"  after the crash: {found}"
        )
        self.statement = statement
        self.moment: Moment = moment
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The crashes after which a job ended as without a crash.

    Attributes:
        points: The number of crashes, two for each statement. There is none for a statement that fills a
            cache of the process, because later runs do not execute it.
        statements: The statements of the run without a crash, in order: the names of those of the library,
            the texts of others.
    """

    points: int
    statements: Sequence[str]
    _runs: Mapping[object, int] = field(repr=False)
    _name_of: Callable[[JobFunction | str], str] = field(repr=False)

    def most(self, func: JobFunction | str) -> int:
        """Return the largest number of calls of a function in a run with a crash.

        Args:
            func: The function of a step, or that of the job or of one that it schedules, or the name of its
                jobs.
        """
        # The calls of a step are counted by its function, and the attempts of a job by its name.
        if func in self._runs:
            return self._runs[func]
        return self._runs.get(self._name_of(func), 0)


async def crash_everywhere(
    database: Callable[[], AbstractContextManager[str]],
    func: JobFunction | str,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    job_id: str = "crash_everywhere",
    arrange: Callable[[asyncpg.Pool], Awaitable[Any]] | None = None,
    observe: Callable[[asyncpg.Pool], Awaitable[Any]] | None = None,
    until: timedelta = timedelta(days=1),
    at: Mapping[timedelta, Callable[[Scheduler], Awaitable[Any]]] | None = None,
    status: JobStatus | str = JobStatus.COMPLETED,
    **settings: Any,
) -> CrashReport:
    """Run a job with a crash at each of its statements in turn, and compare how it ends.

    A first run lists the statements of the pool from the claim to the end of the job. The list has every
    statement of an attempt, whether your code or the library executes it. Of the other statements of the
    worker, it has those that write. Two more runs for each statement of the list crash, one before the
    statement and one after it: connections close, open transactions roll back, tasks are cancelled, and
    another worker takes over when the lease has expired. Each run has a database of its own and the virtual
    clock of `TestScheduler`. Schedules do not fire, and the vacuum does not run. Statements of cursors, of
    prepared statements and of other libraries are left out.

    Args:
        database: Returns a context manager that creates a database with the tables, yields its DSN, and drops
            it. The pytest fixture passes it.
        func: The function of the job, or the name of a registered one.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        job_id: The id of the job, the same in each run.
        arrange: Prepares a new database; called with the pool.
        observe: Returns the effects of the job as a value that ``==`` compares; called with the pool at the
            end.
        until: The end of each run by the clock. A job continues one lease after a crash, 60 s by default.
        at: What other processes do meanwhile, by the time from the start: coroutine functions that are called
            with the Scheduler. They do not crash.
        status: The status with which the job ends.
        settings: Arguments of `TestScheduler`.

    Returns:
        The number of crashes, the statements, and how often functions were called.

    Raises:
        CrashDifference: After a crash, the status, the kept result or the value of ``observe`` differs from
            that of the first run; an AssertionError. The remaining crashes are not tried.
        LookupError: No function has the name.
        ValueError: Without a crash, the job has not ended with the status, two runs differ, or a time of
            ``at`` is after ``until``.

    Example::

        async def test_transfer_survives_crashes(crash_everywhere) -> None:
            report = await crash_everywhere(transfer, args=(7,), arrange=create_tables, observe=read_tables)
            assert report.most(transfer) == 2
    """
    expected_status = JobStatus.parse(status)
    # What other processes do, by the seconds from the start.
    acts = {check_delay("at", time): act for time, act in (at or {}).items()}
    until_s = check_delay("until", check_seconds("until", until, "a timedelta"))
    if acts and max(acts) > until_s:
        raise ValueError(f"at={max(acts):g} s is after until={until_s:g} s; pass a later until=")
    plan = _Plan(database, func, args, kwargs, job_id, arrange, observe, until_s, acts, settings)
    plain_run = await plan.run()
    if plain_run.end.status != expected_status:
        raise ValueError(
            f"without a crash, job {plain_run.name_of(func)} is {plain_run.end.status or 'deleted'} after "
            f"{until}, not {expected_status}: {plain_run.error or 'no error'}; correct the job, or pass a "
            "later until=, at= with what it waits for, or status="
        )
    runs = plain_run.runs
    points = [Point(place, moment) for place in plain_run.statements for moment in get_args(Moment)]
    crash_count = 0
    # The run without a point shows whether two runs without a crash end alike.
    for point in (None, *points):
        run = await plan.run(point)
        if run.end != plain_run.end:
            # A run does not crash if it does not execute the statement, such as one that fills a cache.
            if point is None or run.crashed_at is None:
                raise ValueError(
                    f"two runs without a crash end in different ways: {plain_run.end}, then {run.end}; "
                    "let observe= leave out what always differs, such as times and random ids"
                )
            raise CrashDifference(run.crashed_at, point.moment, plain_run.end, run.end)
        if run.crashed_at is not None:
            crash_count += 1
        # The union of two Counters has the larger number of each function.
        runs |= run.runs
    statements = tuple(place.name for place in plain_run.statements)
    return CrashReport(crash_count, statements, runs, plain_run.name_of)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the job, at its end.

    Attributes:
        end: How the job ended.
        error: The error message in its row.
        statements: The statements of the worker at which a crash can change anything, in order.
        crashed_at: The statement at which the worker crashed; None if it has not crashed.
        runs: The number of attempts by name, and of calls by the function of steps.
        name_of: Returns the name of the jobs of a function.
    """

    end: EndState
    error: str | None
    statements: Sequence[StatementPlace]
    crashed_at: str | None
    runs: Counter[object]
    name_of: Callable[[JobFunction | str], str]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What happens in every run; see the arguments of `crash_everywhere`."""

    database: Callable[[], AbstractContextManager[str]]
    func: JobFunction | str
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    job_id: str
    arrange: Callable[[asyncpg.Pool], Awaitable[Any]] | None
    observe: Callable[[asyncpg.Pool], Awaitable[Any]] | None
    until_s: float
    at: Mapping[float, Callable[[Scheduler], Awaitable[Any]]]
    settings: Mapping[str, Any]

    async def run(self, point: Point | None = None) -> _Run:
        """Run the job in a new database, with a crash at the point; without one if the point is None."""
        with self.database() as dsn:
            pool = await create_pool(dsn, "the DSN", min_size=1, connection_class=NumberedConnection)
            try:
                return await self._run(pool, point)
            except Exception as error:
                crash = "without a crash" if point is None else f"with a crash {point.moment} a statement"
                error.add_note(f"raised in a run {crash}")
                raise
            finally:
                pool.terminate()  # a task of a worker that crashed may hold a connection

    async def _run(self, pool: asyncpg.Pool, point: Point | None) -> _Run:
        """Run the job in the database of a pool, and return what the run has come to."""
        if self.arrange is not None:
            await self.arrange(pool)
        t = TestScheduler(pool, **{**DEFAULTS, **self.settings})
        began = t.now
        async with t:
            scheduler = t.scheduler
            assert isinstance(scheduler, ManualScheduler)  # noqa: S101 - TestScheduler has made it
            scheduler.check_registered(self.func)
            runs = scheduler.count_runs()
            calls = Counter[object]()
            step_calls.set(calls)
            await scheduler.enqueue(self.func, args=self.args, kwargs=self.kwargs, job_id=self.job_id)
            worker = CrashingWorker(t, await scheduler.statement_names(), point)
            scheduler.subscribe(worker.note_end, JobCompleted, JobFailed, JobCancelled, JobExpired)
            for seconds in sorted(self.at):
                act = self.at[seconds]
                await worker.run_until(began + timedelta(seconds=seconds))
                await act(scheduler)
            await worker.run_until(began + timedelta(seconds=self.until_s))
            job = await scheduler.get_job(self.job_id)
            observed = None if self.observe is None else await self.observe(pool)
            schema, codec = self.settings.get("schema"), self.settings.get("codec")
            # The clock of this Scheduler stands at the beginning, so no result has expired by it.
            reader = Scheduler(pool, schema=schema, codec=codec, clock=FakeClock(began))
            result = None if job is None else await reader.get_job_result(self.job_id, wait=False)
            # The calls of steps are counted by function, and the attempts by name. One Counter has both.
            calls.update(runs)
            end = EndState(
                status=None if job is None else job.status,
                result=None if result is None else result.value,
                observed=observed,
            )
            # What the worker does after the end of the last job changes no job.
            statements = [place for number, place in worker.statements.items() if number < worker.ended_at]
            return _Run(
                end=end,
                error=None if job is None else job.error_message,
                statements=statements,
                crashed_at=worker.crashed_at,
                runs=calls,
                name_of=scheduler.name_of,
            )
