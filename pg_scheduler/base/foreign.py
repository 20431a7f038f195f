"""Call user code in a thread, and inspect what it raises and returns.

User code may override whatever an inspection calls, from ``str()`` to ``__class__``, and each of these may
raise any exception. The functions here never raise it: they read past the overrides, or describe the mistake.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from traceback import TracebackException
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

MAX_MESSAGE_LENGTH: Final = 10_000
"""Characters of an error message that are kept."""

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

T = TypeVar("T")

Returned: TypeAlias = tuple[T, None] | tuple[None, BaseException]
"""What a call returned, and None; or None, and what the call raised."""

# These read an attribute as Python itself has it, whatever a class of the user overrides.
_module: Final = vars(type)["__module__"].__get__
_qualname: Final = vars(type)["__qualname__"].__get__
_cause: Final = vars(BaseException)["__cause__"].__get__
_context: Final = vars(BaseException)["__context__"].__get__
_traceback: Final = vars(BaseException)["__traceback__"].__get__
_exceptions: Final = vars(BaseExceptionGroup)["exceptions"].__get__


def call_in_daemon(call: Callable[[], T], name: str) -> Future[Returned[T]]:
    """Call a function in a thread of its own, which delays neither a shutdown nor the end of the process.

    If the function raises, the exception is a part of the future's value. An asyncio future that wraps this
    one could not raise every exception: it rejects StopIteration, takes the CancelledError of
    concurrent.futures for a cancellation, and passes SystemExit on to the event loop.
    """
    future: Future[Returned[T]] = Future()
    # A future that runs cannot be cancelled, so the thread can always set its value.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result((call(), None))
        except BaseException as error:  # noqa: BLE001 - user code
            future.set_result((None, error))

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def guarded(inspect: Callable[[], T], fallback: Callable[[str], T]) -> T:
    """Return what ``inspect()`` returns, or else what ``fallback()`` returns for the error.

    If ``inspect()`` raises any exception, ``fallback()`` gets the name of its class.
    """
    try:
        return inspect()
    except BaseException as mistake:  # noqa: BLE001 - user code; sys.exit() and the like count as its errors
        return fallback(class_name(mistake))


def is_a(value: object, kind: type[T]) -> TypeGuard[T]:
    """Return whether the type of a value is this class or a subclass, whatever its ``__class__`` is."""
    return issubclass(type(value), kind)


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether an exception that passes through user code may be a Ctrl-C, which ends the program.

    Python raises KeyboardInterrupt in the main thread, unless the program or its event loop handles SIGINT.
    """
    return (
        is_a(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def current_task() -> asyncio.Task[Any] | None:
    """Return the task that the event loop steps now; None without one, as where Python closes a coroutine."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return None


def ends_task(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether an exception that passes through user code ends the task around it.

    That is its cancellation, a Ctrl-C, or the GeneratorExit by which Python closes its coroutine. Any other
    exception is an error of the user code.
    """
    # User code may raise a CancelledError itself. It ends the task only if the task was cancelled.
    if is_a(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    if is_a(error, GeneratorExit):
        # Python closes the coroutine of a task while that task does not run. If it runs, user code has raised
        # the exception.
        return current_task() is not task
    return is_ctrl_c(error)


def class_name(value: object) -> str:
    """Return the qualified name of the type of a value."""
    return str.__str__(_qualname(type(value)))


def class_path(value: object) -> str:
    """Return the qualified name of the type of a value with its module, unless it is one of Python's own."""
    name = class_name(value)
    module = guarded(lambda: _module(type(value)), lambda _: None)
    # A module that cannot be read, or that is no text, is left out like that of Python's own classes.
    module_name = str.__str__(module) if is_a(module, str) else "builtins"
    return name if module_name == "builtins" else f"{module_name}.{name}"


def message_of(error: BaseException) -> str:
    """Return the message of an exception, which may be empty."""
    message = guarded(lambda: str.__str__(str(error)), lambda kind: f"(str() of it raised {kind})")
    return message[:MAX_MESSAGE_LENGTH]


def cause_of(error: BaseException) -> BaseException | None:
    """Return the cause of an exception."""
    cause: BaseException | None = _cause(error)
    return cause


def leaves_of(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions in a group and in the groups in it, in their order; another exception itself."""
    if not is_a(error, BaseExceptionGroup):
        return (error,)
    leaves: list[BaseException] = []
    remaining: list[BaseException] = [error]
    while remaining:
        exception = remaining.pop()
        if is_a(exception, BaseExceptionGroup):
            # The last one is examined first, so the members are added in reverse order.
            remaining.extend(reversed(_exceptions(exception)))
        else:
            leaves.append(exception)
    return tuple(leaves)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception."""
    traceback: TracebackType | None = _traceback(error)
    return traceback


def has_traceback(error: BaseException) -> bool:
    """Return whether an exception has a traceback, its own or that of another one before it."""
    return any(attribute(error) is not None for attribute in (_traceback, _cause, _context))


def traceback_lines(error: BaseException, *, limit: int | None = None) -> list[str]:
    """Return an exception with its causes as ``traceback.format_exception()`` does."""

    def lines() -> list[str]:
        return list(TracebackException(type(error), error, traceback_of(error), limit=limit).format())

    return guarded(lines, lambda kind: [f"(formatting it raised {kind})"])


def exc_info_of(error: BaseException) -> ExcInfo | None:
    """Return an exception as ``logging`` takes it; None if no handler could format it."""
    info = (type(error), error, traceback_of(error))

    def checked() -> ExcInfo | None:
        # This reads what a handler of logging reads, so it raises if the handler would.
        TracebackException(*info, limit=1)
        return info

    return guarded(checked, lambda _: None)
