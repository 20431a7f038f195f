"""What jobs see of their worker: asynchronous in its event loop, blocking in other threads.

A blocking call runs in the event loop of the worker, on the pool of the worker. While the thread waits, it
checks that the event loop runs on and that its attempt has not been cancelled, so no call waits without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import cache
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar, cast

from pg_scheduler.base.blocking import Blocking, Caller, Crossing, check_may_block, derive
from pg_scheduler.errors import JobCancelledError, NotRunningError
from pg_scheduler.jobs.context import Cancellation, cancellation
from pg_scheduler.worker.in_flight import Attempt, OpenSteps, OpenStreams

CHECK_INTERVAL_S: Final = 0.2
"""Seconds between two checks of a thread that waits."""

ENDED: Final = (
    "the event loop of the worker has ended, so this job in a thread cannot call its Scheduler; end the job "
    "when current_job().is_cancelled is true"
)


class Watch:
    """What a thread of a job checks while it waits for a call in the event loop of the worker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, flag: Cancellation | None) -> None:
        self._loop = loop
        self._flag = flag
        self._was_stopped = False
        self.renew()

    def renew(self) -> None:
        """Let only a cancellation after this moment interrupt a call.

        A job that was cancelled before may have to call its Scheduler in order to clean up.
        """
        self._may_interrupt = self._flag is not None and not self._flag.is_cancelled

    @property
    def is_interrupted(self) -> bool:
        """Whether the attempt was cancelled meanwhile."""
        return self._may_interrupt and self._flag is not None and self._flag.is_cancelled

    def loop_has_ended(self) -> bool:
        """Return whether the event loop does not run now, and did not run at the check before.

        One check is not enough, because ``asyncio.run()`` pauses the event loop for a moment at its end.
        """
        was_stopped, self._was_stopped = self._was_stopped, not self._loop.is_running()
        return was_stopped and self._was_stopped


class AttemptInThread:
    """The attempt of a job outside of the event loop of its worker, as its own code reaches it."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.loop = asyncio.get_running_loop()

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._attempt.claim.job_id

    @property
    def flag(self) -> Cancellation | None:
        """The cancellation flag of the attempt; None if its code is not called yet."""
        return self._attempt.call

    def steps_in_loop(self) -> OpenSteps:
        """Return the durable steps of the attempt; called in the event loop of the worker."""
        return self._attempt.open_steps()

    def streams_in_loop(self) -> OpenStreams:
        """Return the values and streams of the attempt; called in the event loop of the worker."""
        return self._attempt.open_streams()

    def open_streams(self) -> NoReturn:
        """Reject the use of streams that must be awaited: a thread cannot await them."""
        raise NotRunningError(
            f"job {self.job_id!r} runs in a thread or an executor of its own, where publish() and stream() "
            "of current_job() cannot be awaited; call pg_scheduler.sync.current_streams(), whose methods "
            "block"
        )

    def open_steps(self) -> NoReturn:
        """Reject the use of steps that must be awaited: a thread cannot await them."""
        raise NotRunningError(
            f"job {self.job_id!r} runs in a thread or an executor of its own, where current_job().steps "
            "cannot be awaited; call pg_scheduler.sync.current_steps(), whose methods block"
        )

    def predecessors(self) -> NoReturn:
        """Reject the iteration over passed results, which must be awaited: a thread cannot await."""
        raise NotRunningError(
            f"job {self.job_id!r} runs in a thread or an executor of its own, where predecessors() cannot be "
            "awaited; call pg_scheduler.sync.current_steps().predecessors(), which blocks"
        )

    def completing(self, connection: object) -> NoReturn:  # noqa: ARG002 - of the protocol
        """Reject the block that completes the job: it is for coroutines in the event loop."""
        self._reject_completion()

    def set_result(self, value: object) -> NoReturn:  # noqa: ARG002 - of the protocol
        """Reject the value of a completion: a job in a thread has no block of ``completing()``."""
        self._reject_completion()

    def _reject_completion(self) -> NoReturn:
        """Raise the error about a completion by code that does not run in the event loop."""
        raise NotRunningError(
            f"job {self.job_id!r} runs in a thread or an executor of its own, where it cannot complete in a "
            "transaction; write in pg_scheduler.sync.current_steps().transaction(), or make it an async "
            "function without executor="
        )


class HasWorkerId(Protocol):
    """A Scheduler."""

    @property
    def worker_id(self) -> str:
        """The id of its worker."""


S = TypeVar("S", bound=HasWorkerId)


class SchedulerOfJobs(Generic[S]):
    """Returns the Scheduler to the jobs of a worker. Create it in the event loop of the worker."""

    def __init__(self, scheduler: S) -> None:
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._blocking: object = None

    @property
    def worker_id(self) -> str:
        """The id of the worker; any thread may read it."""
        return self._scheduler.worker_id

    def __call__(self) -> S:
        """Return the Scheduler in the event loop of the worker; one with blocking methods elsewhere."""
        try:
            running_loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:  # this thread runs no event loop
            running_loop = None
        if running_loop is self._loop:
            return self._scheduler
        # All threads share one object, which is made when it is first needed.
        if self._blocking is None:
            cls: Any = type(self._scheduler)  # mypy: "not hashable"
            self._blocking = _blocking_class(cls)(_Calls(self._loop, self._scheduler))
        return cast("S", self._blocking)


class _Calls:
    """Calls functions in the event loop of the worker, from the threads of its jobs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, scheduler: object) -> None:
        self._loop = loop
        self.resource = scheduler

    @property
    def is_alive(self) -> bool:
        """Whether calls can still be made."""
        return not self._loop.is_closed()

    def call(self, function: Callable[[], Any]) -> Any:
        """Call the function, and block until its coroutine has ended, or is cancelled with the attempt.

        A call that begins after the cancellation is not interrupted: the job may have to clean up.

        Raises:
            JobCancelledError: The attempt was cancelled during the call.
            NotRunningError: The event loop has ended.
            BaseException: The error of the function.
        """
        watch = Watch(self._loop, cancellation.get(None))
        # The call, on its way to the event loop and back.
        crossing = self.submit(function)
        try:
            while not crossing.wait(CHECK_INTERVAL_S):
                if watch.is_interrupted:
                    raise JobCancelledError(
                        "the job was cancelled during a call of current_job().scheduler: it timed out, was "
                        "cancelled, or its worker shuts down; the call may have taken effect"
                    )
                if watch.loop_has_ended():
                    raise NotRunningError(ENDED)
            return crossing.result()
        except CancelledError:
            # At its end, the event loop has cancelled the call.
            raise NotRunningError(ENDED) from None
        finally:
            crossing.cancel()  # without effect after its end
            # The traceback of its error has this frame. If the frame kept the call too, the frame and the
            # error would keep each other alive.
            del crossing

    def submit(self, function: Callable[[], Any]) -> Crossing:
        """Call the function in the event loop, with the context variables of the caller, and do not wait.

        Raises:
            NotRunningError: The event loop is closed.
        """
        try:
            return Crossing(self._loop, function)
        except RuntimeError:
            raise NotRunningError(ENDED) from None


class _BlockingScheduler(Blocking):
    """The base of the classes derived from those of Schedulers."""

    def __init__(self, calls: Caller) -> None:
        self._calls = calls

    @property
    def db_pool(self) -> object:
        """The asyncpg pool, for the event loop of the worker."""
        return self._source().db_pool

    def __repr__(self) -> str:
        return f"<blocking methods of {self._calls.resource!r}>"

    @property
    def _owner_name(self) -> str:
        """How messages of errors name this object."""
        return "current_job().scheduler in a thread"

    def _portal(self) -> Caller:
        """Return what calls functions in the event loop of the worker."""
        return self._calls

    def _register(self, func: Any = None, **options: Any) -> Any:
        """Register a function as ``Scheduler.register()`` does: as a decorator, with or without options."""

        def add(function: Any) -> Any:
            return self._call("register", (function,), options)

        return add if func is None else add(func)

    def _subscribe(self, *arguments: Any, **options: Any) -> Callable[[], None]:
        """Subscribe to events as ``Scheduler.subscribe()`` does; return what ends that, which blocks too."""
        stop: Callable[[], None] = self._call("subscribe", arguments, options)

        def unsubscribe() -> None:
            check_may_block("unsubscribe", self._owner_name)
            self._calls.call(stop)

        return unsubscribe


@cache
def _blocking_class(cls: type) -> type[Any]:
    """Return a class with the methods of a class of Schedulers that block instead of being awaited.

    Those that are written by hand call the methods above whose names begin with an underscore.
    """
    return derive(cls, "BlockingScheduler", _BlockingScheduler, by_hand=("register", "subscribe"))
