"""Recognise what user code returns in place of the work that it was called to do.

An async function that is called without ``await`` returns a coroutine, a generator function a generator, and
``map()`` an iterator: none of them has run a line of the function. A decorator that is not aware of async
functions turns each of them into a plain function that returns such a value.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import AsyncContextDecorator, ContextDecorator
from types import CoroutineType
from typing import Any, Final

from pg_scheduler.base.foreign import class_name, guarded

LAZY: Final = (Awaitable, Generator, AsyncGenerator, ContextDecorator, AsyncContextDecorator, map, filter)
"""The classes of values that do their work when they are awaited, iterated or entered."""


def check_done(value: object, subject: str, remedy: str, *, allows_tasks: bool = False) -> None:
    """Raise TypeError if what user code returned has not done its work.

    Args:
        value: What it returned.
        subject: What returned it, for the message.
        remedy: What to do instead of returning an awaitable, for the message.
        allows_tasks: Whether it may be a task or another future, which runs without being awaited.
    """
    if value is None:
        return
    # The class is compared and not the value, since a value may claim another class. Its metaclass may raise.
    kind = type(value)
    if not guarded(lambda: issubclass(kind, LAZY), lambda _: False):
        return
    untyped_value: Any = value
    is_future = issubclass(kind, Future)
    if is_future and allows_tasks:
        return
    # A future that has its result has done its work.
    if is_future and guarded(lambda: untyped_value.done(), lambda _: False):  # noqa: PLW0108 - "done" may raise
        return
    if kind is CoroutineType:
        # Otherwise Python warns that it was never awaited.
        untyped_value.close()
    advice = remedy if issubclass(kind, Awaitable) else "iterate or enter it in the function"
    raise TypeError(
        f"{subject} returned a value of the type {class_name(value)}, whose work is not done; {advice}"
    )
