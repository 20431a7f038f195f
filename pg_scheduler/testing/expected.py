"""Compare jobs with those that an assertion describes; find jobs, and the names of a function's jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self

from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.model import Job, JobFunction
from pg_scheduler.jobs.payload import decode, encode
from pg_scheduler.jobs.validation import check_delay, check_execution_time
from pg_scheduler.scheduler import Scheduler

PAGE_LENGTH: Final = 1000


class NamingScheduler(Scheduler):
    """A Scheduler that returns jobs, and the names that the jobs of a function have, to a test."""

    def name_of(self, func: JobFunction | str) -> str:
        """Return the name of the jobs of a function."""
        if isinstance(func, str):
            return func
        return self._parts.tasks.adopt(func).name

    def check_registered(self, func: JobFunction | str) -> None:
        """Raise LookupError if ``func`` is a name without a function."""
        if isinstance(func, str) and self._parts.tasks.resolve(func) is None:
            raise LookupError(
                f"no function is registered as {func!r}; pass the function, or import the module that "
                "registers it"
            )

    def job_names_of(self, func: JobFunction | str) -> set[str]:
        """Return the names that jobs of a function may have: aliases, and the job names of periodic ones."""
        tasks = self._parts.tasks
        names = {func} if isinstance(func, str) else tasks.names_of(tasks.adopt(func))
        # The jobs of a periodic function may have another name than the function.
        periodic_jobs = self.get_periodic_jobs().values()
        return names | {job.job_name for job in periodic_jobs if job.function in names}

    async def every_job(self, **filters: Any) -> list[Job]:
        """Return all jobs that pass the filters of ``list_jobs()``, in the order of their due time."""
        jobs: list[Job] = []
        cursor = None
        while True:
            page = await self.list_jobs(**filters, after=cursor, limit=PAGE_LENGTH)
            jobs += page
            cursor = page.next
            if cursor is None:
                return sorted(jobs, key=lambda job: (job.execution_time, job.job_id))


@dataclass(frozen=True, slots=True)
class ExpectedJob:
    """The job that an assertion describes.

    Attributes:
        names: The names that it may have; None for any.
        args: The positional arguments; None for any.
        kwargs: Some of the keyword arguments; None for any.
        due: When it is due; None for any time.
        tolerance: By how much the due time may differ.
    """

    names: Collection[str] | None
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    due: datetime | None
    tolerance: timedelta

    @classmethod
    def of(
        cls,
        names: Collection[str] | None,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        after: timedelta | float | None,
        at: datetime | None,
        *,
        now: datetime,
        tolerance: timedelta | float = 0,
    ) -> Self:
        """Return the job that the arguments of an assertion describe.

        Raises:
            TypeError: Both ``after`` and ``at`` are given, or the arguments cannot be those of a job.
            ValueError: A duration is negative, or ``at`` has no time zone.
        """
        # With a value that no job can have, an assertion that no job is scheduled would always pass.
        if args is not None and not isinstance(args, list | tuple):
            raise TypeError(
                f"args must be a tuple or a list, not {type(args).__name__}; "
                "pass one argument as args=(value,)"
            )
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise TypeError(
                f"kwargs must be a dict, not {type(kwargs).__name__}; pass kwargs={{'name': value}}"
            )
        due = None if at is None else check_execution_time(at, name="at")
        if after is not None:
            if due is not None:
                raise TypeError("after= and at= exclude each other; pass one of them")
            due = now + timedelta(seconds=check_delay("after", after))
        return cls(names, args, kwargs, due, timedelta(seconds=check_delay("tolerance", tolerance)))

    def matches(self, job: Job) -> bool:
        """Return whether a job fits the description."""
        if self.names is not None and job.job_name not in self.names:
            return False
        if self.args is not None and not _equal(self.args, job.args):
            return False
        if self.kwargs is not None and not _includes(self.kwargs, job.kwargs):
            return False
        return self.due is None or abs(job.execution_time - self.due) <= self.tolerance


def _equal(expected: Sequence[Any], values: Sequence[Any]) -> bool:
    """Return whether positional arguments are the expected ones, which are compared as JSON carries them."""
    if len(expected) != len(values):
        return False
    pairs = zip(expected, values, strict=True)
    return all(_stored(expected_value) == value for expected_value, value in pairs)


def _includes(expected: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether keyword arguments have the expected ones among them."""
    return all(name in values and _stored(value) == values[name] for name, value in expected.items())


def _stored(value: Any) -> Any:
    """Return an expected value as JSON carries it; a matcher, such as ``mock.ANY``, as it is."""
    try:
        args, _ = decode(encode((value,), None))
    except PayloadError:
        return value
    return args[0]


def listed(jobs: Sequence[Job]) -> str:
    """Return a line for each job, for error messages; " none" without jobs."""
    lines = [
        f"\n  {job.job_name} (id {job.job_id}), {job.status} and due at {job.execution_time}: "
        f"{job.args}, {dict(job.kwargs)}"
        for job in jobs
    ]
    return "".join(lines) or " none"
