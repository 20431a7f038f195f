"""Middleware: code around the attempts of all jobs, and headers for the jobs that are scheduled."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from pg_scheduler.base.annotations import signature_of
from pg_scheduler.base.public import public
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.metadata import metadata_of
from pg_scheduler.jobs.payload import decode

if TYPE_CHECKING:
    from pg_scheduler.jobs.call import JobCall


@public
class Middleware(Protocol):
    """Code around each attempt of every job of a Scheduler: a coroutine function, or an object like this one.

    It runs in the event loop of the worker, whatever runs the job, within the timeout of the attempt and with
    ``current_job()``. Its return value is the value of the job, and the exception that it raises is the
    outcome of the attempt. A job fails before any middleware is called if its function is not registered, or
    its arguments cannot be read.

    An object may have a second method, ``headers(call: ScheduledCall) -> Mapping[str, str]``, which is not
    async. It is called for each job that this Scheduler stores, in the context of the caller. The strings
    that all middleware return become ``metadata["trace"]`` of the job, at most 8 KiB as JSON.

    Example:
        >>> from collections.abc import Awaitable, Callable
        >>> from pg_scheduler import JobCall
        >>> async def announce(call: JobCall, call_next: Callable[[], Awaitable[object]]) -> object:
        ...     print("started", call.job.job_name)
        ...     try:
        ...         return await call_next()
        ...     finally:
        ...         print("ended", call.job.job_name)
    """

    async def __call__(self, call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Run an attempt: ``await call_next()`` runs the next middleware, or in the last one the function."""


class SendingMiddleware(ABC):
    """The base class of middleware of this library that also surrounds the calls that store jobs."""

    @abstractmethod
    def sending(self, call: ScheduledCall | None, count: int) -> AbstractContextManager[None]:
        """Surround a call that stores jobs: the job ``call``, or ``count`` jobs if ``call`` is None."""


@public
@dataclass(frozen=True, slots=True)
class ScheduledCall:
    """A job that is about to be stored, as ``headers()`` of middleware sees it."""

    job_id: str
    """The id of the job. If a job with this id exists already, this one may not be stored."""
    job_name: str
    """The name of the job."""
    execution_time: datetime
    """When it is due. For most jobs of ``enqueue()``, it is computed by the clock of this machine. It is the
    time of the database for a job that may replace another one, waits for others, or is unique in a time
    span."""
    schedule_id: str | None
    """The schedule that enqueues it; None for other jobs."""
    _task_data: str = field(repr=False)
    _codec: PayloadCodec | None = field(default=None, repr=False)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, as JSON carries them."""
        args, _ = decode(self._task_data, self._codec, self.job_name)
        return args

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The keyword arguments, as JSON carries them."""
        _, kwargs = decode(self._task_data, self._codec, self.job_name)
        return kwargs

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the task, the schedule and the job; empty if there is none."""
        return metadata_of(self._task_data)


def check_middleware(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Return the middleware of a Scheduler.

    Raises:
        TypeError: It is not a list of coroutine functions or of objects with a method ``async __call__``, or
            one has a ``headers`` that is not a plain method.
    """
    if not isinstance(middleware, list | tuple):
        raise TypeError(f"middleware must be a list, not {middleware!r}; pass middleware=[{middleware!r}]")
    for place, member in enumerate(middleware):
        name = f"middleware[{place}]"
        if isinstance(member, type):
            raise TypeError(
                f"{name} must be an object, not the class {member.__name__}; pass {member.__name__}()"
            )
        # callable() would not distinguish an async method from a plain one.
        call_method = getattr(type(member), "__call__", None)  # noqa: B004 - see above
        is_async = inspect.iscoroutinefunction(member) or inspect.iscoroutinefunction(call_method)
        if not is_async:
            raise TypeError(
                f"{name} must be a coroutine function or an object with async def __call__(self, call, "
                f"call_next), not {member!r}"
            )
        try:
            signature_of(member).bind(None, None)
        except TypeError:
            raise TypeError(f"{name} must take two arguments, call and call_next: {member!r}") from None
        headers = getattr(member, "headers", None)
        if headers is not None and (not callable(headers) or inspect.iscoroutinefunction(headers)):
            raise TypeError(
                f"headers of {name} must be a plain method, since it may run without an event loop"
            )
    return tuple(middleware)
