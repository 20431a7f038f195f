"""The methods of `TestScheduler` that look at jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pg_scheduler.base.status import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.errors import NotRunningError
from pg_scheduler.jobs.model import Job, JobFunction
from pg_scheduler.testing.expected import ExpectedJob, listed
from pg_scheduler.testing.inspector import Inspector
from pg_scheduler.testing.worker import ManualScheduler


class JobAssertions:
    """The methods of `TestScheduler` that look at jobs. None of them is a coroutine."""

    _clock: FakeClock
    _runs: Counter[str]
    _scheduler: ManualScheduler | None
    _inspector: Inspector | None

    @property
    def now(self) -> datetime:
        """The current time of the clock."""
        return self._clock.now

    def ran(self, func: JobFunction | str) -> int:
        """Return the number of attempts of a function so far, failed ones included.

        Args:
            func: The function, or the name of its jobs.
        """
        return self._runs[self._scheduler_since_entry().name_of(func)]

    def jobs(
        self,
        func: JobFunction | str | None = None,
        *,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
    ) -> list[Job]:
        """Return the jobs that are in the table, in the order of their due time.

        It waits for the database and reads what is committed.

        Args:
            func: Only jobs of this function, or with this name; None for all.
            status: One status or several; None for all.
        """
        scheduler = self._scheduler_in_block()
        jobs = self._inspector_in_block().jobs(status=status)
        if func is not None:
            names = scheduler.job_names_of(func)
            jobs = [job for job in jobs if job.job_name in names]
        return jobs

    def assert_scheduled(
        self,
        func: JobFunction | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        after: timedelta | float | None = None,
        at: datetime | None = None,
    ) -> Job:
        """Assert that a job is pending, and return it; if there are several, the one that is due first.

        Args:
            func: The function, or the name of its jobs.
            args: The positional arguments; None for any. Values may be matchers, such as ``mock.ANY``.
            kwargs: Some of the keyword arguments; None for any.
            after: The time from now to the due time, a timedelta or seconds; None for any.
            at: The due time; None for any.

        Raises:
            AssertionError: No such job is pending; the message lists the pending jobs of the function.
        """
        jobs, matches = self._find_pending(func, args, kwargs, after, at)
        if not matches:
            raise AssertionError(
                f"no such job of {self._scheduler_since_entry().name_of(func)} is pending at {self.now}; "
                f"pending are:{listed(jobs)}"
            )
        return matches[0]

    def assert_not_scheduled(
        self,
        func: JobFunction | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        after: timedelta | float | None = None,
        at: datetime | None = None,
    ) -> None:
        """Assert that no such job is pending; see ``assert_scheduled()``.

        Args:
            func: The function, or the name of its jobs.
            args: The positional arguments; None for any.
            kwargs: Some of the keyword arguments; None for any.
            after: The time from now to the due time, a timedelta or seconds; None for any.
            at: The due time; None for any.

        Raises:
            AssertionError: Such jobs are pending; the message lists them.
        """
        _, matches = self._find_pending(func, args, kwargs, after, at)
        if matches:
            name = self._scheduler_since_entry().name_of(func)
            raise AssertionError(f"jobs of {name} are pending at {self.now}:{listed(matches)}")

    def _scheduler_since_entry(self) -> ManualScheduler:
        """Return the Scheduler, within its block and after it; raise NotRunningError before it."""
        if self._scheduler is None:
            raise NotRunningError("TestScheduler has not started: use async with TestScheduler(pool) as t")
        return self._scheduler

    def _scheduler_in_block(self) -> ManualScheduler:
        """Return the Scheduler; raise NotRunningError outside of its block, where it runs no jobs."""
        scheduler = self._scheduler_since_entry()
        self._inspector_in_block()  # only for its check
        return scheduler

    def _inspector_in_block(self) -> Inspector:
        """Return the inspector, which reads jobs; raise NotRunningError outside of the block."""
        if self._inspector is None:
            raise NotRunningError("TestScheduler has ended: do this within its async with block")
        return self._inspector

    def _find_pending(
        self,
        func: JobFunction | str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        after: timedelta | float | None,
        at: datetime | None,
    ) -> tuple[list[Job], list[Job]]:
        """Return the pending jobs of a function, and those of them that match."""
        names = self._scheduler_in_block().job_names_of(func)
        expected = ExpectedJob.of(names, args, kwargs, after, at, now=self.now)
        jobs = self.jobs(func, status=JobStatus.PENDING)
        return jobs, [job for job in jobs if expected.matches(job)]
