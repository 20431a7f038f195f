"""Wait for jobs, and read their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar, overload

from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.errors import JobNotFoundError, JobResult
from pg_scheduler.events import Event, JobFailed
from pg_scheduler.jobs.model import Call, JobFunction
from pg_scheduler.jobs.validation import check_delay, check_job_id, check_kind
from pg_scheduler.queue.result_waiters import NOT_ENDED
from pg_scheduler.scheduler.control import ControlMethods
from pg_scheduler.scheduler.jobs import JobMethods

R = TypeVar("R")

RUN_JOB_KEEPS: Final = timedelta(minutes=15)
"""How long ``run_job()`` keeps the result of its job."""


class ResultMethods(JobMethods, ControlMethods):
    """The methods of `Scheduler` that wait for jobs."""

    @overload
    async def get_job_result(
        self,
        job_id: str,
        *,
        wait: Literal[True] = True,
        timeout: float | timedelta | None = None,
        connection: None = None,
    ) -> JobResult: ...

    @overload
    async def get_job_result(
        self,
        job_id: str,
        *,
        wait: bool,
        timeout: float | timedelta | None = None,
        connection: AnyConnection | None = None,
    ) -> JobResult | None: ...

    async def get_job_result(
        self,
        job_id: str,
        *,
        wait: bool = True,
        timeout: float | timedelta | None = None,
        connection: AnyConnection | None = None,
    ) -> JobResult | None:
        """Return how a job ended, and its value if it was kept.

        Reading does not remove the result: any number of readers may read it until it expires. A started
        Scheduler receives the end by a notification. Other processes query, at intervals of 50 ms up to
        ``max_interval`` of the polling.

        Args:
            job_id: The job.
            wait: Whether to wait for the end of the job.
            timeout: The maximum wait in seconds or as a timedelta, 0 for one query; None for no limit. The
                job runs on.
            connection: A connection of yours, as in ``schedule()``; requires ``wait=False``.

        Returns:
            The result; None only if ``wait`` is False and the job has not ended.

        Raises:
            JobNotFoundError: There is no such job; a LookupError.
            TimeoutError: The job did not end in time. It runs on.
            ValueError: ``connection`` is given, and ``wait`` is true.
            SchemaError: A table is missing, or the database role may not read results.

        Example:
            >>> job_id = await scheduler.enqueue(report, keep_result=timedelta(hours=1))  # doctest: +SKIP
            >>> (await scheduler.get_job_result(job_id, timeout=60)).unwrap()  # doctest: +SKIP
            'https://example.org/report.pdf'
        """
        check_job_id(job_id)
        if not isinstance(wait, bool):  # a number of seconds would wait without a limit
            raise TypeError(f"wait must be a bool, not {wait!r}; pass timeout= for the maximum wait")
        checked = await self._parts.store.connections.check_call(connection)
        if wait and connection is not None:
            raise ValueError("get_job_result() cannot wait on a connection of the caller; pass wait=False")
        seconds = None if timeout is None else check_delay("timeout", timeout)
        if wait and seconds != 0:
            return await self._parts.waiters.wait(job_id, seconds)
        found = await self._parts.store.kept_results.get([job_id], checked)
        if job_id not in found:
            raise JobNotFoundError(job_id)
        if wait and found[job_id] is None:
            raise TimeoutError(NOT_ENDED.format(job_id, seconds))
        return found[job_id]

    @overload
    async def run_job(
        self,
        func: Call[R],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        wait_timeout: float | timedelta | None = None,
        cancel_on_timeout: bool = False,
        **options: Any,
    ) -> R: ...
    @overload
    async def run_job(
        self,
        func: JobFunction | str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        wait_timeout: float | timedelta | None = None,
        cancel_on_timeout: bool = False,
        **options: Any,
    ) -> Any: ...
    async def run_job(
        self,
        func: JobFunction | Call[Any] | str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        wait_timeout: float | timedelta | None = None,
        cancel_on_timeout: bool = False,
        **options: Any,
    ) -> Any:
        """Enqueue a job, wait until it has ended, and return its value.

        The result is kept for 15 minutes, unless ``keep_result=`` is given.

        Args:
            func: The function to run, a `call()` with its arguments, or the name of a task. The type of a
                call is that of the value.
            args: Positional arguments that JSON can represent.
            kwargs: Keyword arguments that JSON can represent.
            wait_timeout: The maximum wait in seconds or as a timedelta; None for no limit.
            cancel_on_timeout: Whether the job is cancelled if it has not ended by then; otherwise it runs on.
            **options: The other arguments of ``enqueue()``, except ``connection``.

        Returns:
            The value that the function returned, after a round trip through JSON.

        Raises:
            JobFailedError: The job failed. If it ran in this process, ``__cause__`` is its exception.
            JobCancelledError: The job was cancelled.
            JobExpiredError: The job expired.
            ResultUnavailableError: The job completed, and its value could not be kept.
            TimeoutError: The job did not end in time.
            ValueError: ``connection`` was given: a job of an open transaction cannot end.

        Example:
            >>> await scheduler.run_job(call(add, 1, 2), wait_timeout=10)  # doctest: +SKIP
            3
        """
        if options.pop("connection", None) is not None:
            raise ValueError(
                "run_job() takes no connection: the job starts when the transaction commits, so waiting "
                "here never ends; call enqueue() and, after the commit, get_job_result()"
            )
        seconds = None if wait_timeout is None else check_delay("wait_timeout", wait_timeout)
        check_kind("cancel_on_timeout", cancel_on_timeout, bool)
        options = {"keep_result": RUN_JOB_KEEPS, **options}
        failures: dict[tuple[str, int], BaseException | None] = {}
        expected: list[str] = []
        unsubscribe = self._record_failures(expected, failures)
        try:
            job_id = await self.enqueue(func, args=args, kwargs=kwargs, **options)
            expected.append(job_id)
            try:
                result = await self._parts.waiters.wait(job_id, seconds)
            except TimeoutError:
                if cancel_on_timeout:
                    await self.cancel_job(job_id)
                raise
            return replace(result, exception=failures.get((job_id, result.attempts))).unwrap()
        finally:
            unsubscribe()

    def _record_failures(
        self, expected: Sequence[str], failures: dict[tuple[str, int], BaseException | None]
    ) -> Callable[[], None]:
        """Record the exceptions of expected jobs by id and attempt; of all jobs until the id is known."""

        def record(event: Event) -> None:
            if isinstance(event, JobFailed) and (not expected or event.job_id in expected):
                failures[event.job_id, event.attempt] = event.exception

        return self._parts.waiters.failures.subscribe(record, JobFailed)
