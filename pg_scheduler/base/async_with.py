"""Context managers whose wrong use is an error with a remedy."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import NoReturn, TypeVar

T = TypeVar("T")


class AsyncWithOnly(AbstractAsyncContextManager[T]):
    """Opens an object for a block of ``async with``.

    The object does not exist outside of the block. Code that takes this for the object itself gets an error
    that states what to write. Its name is a part of the error that Python raises where it is awaited.

    Args:
        manager: The context manager that opens the object.
        usage: What to write, for the error.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T], usage: str) -> None:
        self._manager = manager
        self._usage = usage

    async def __aenter__(self) -> T:
        return await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, trace)

    def __getattr__(self, name: str) -> NoReturn:
        # Python itself looks for special methods, such as those of copies, and handles this error.
        raise AttributeError(f"there is no {name!r} before the block is entered; write {self._usage}")
