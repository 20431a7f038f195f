"""Context managers whose wrong use is an error with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import NoReturn, TypeVar

T = TypeVar("T")


class AsyncWithOnly(AbstractAsyncContextManager[T]):
    """Opens an object for a block of ``async with``, and another one for each further block.

    The object does not exist outside of the block. Code that takes this for the object itself gets an error
    that states what to write. Its name is a part of the error that Python raises where it is awaited.

    Args:
        open_object: Returns a context manager that opens one object.
        usage: What to write, for the error.
    """

    def __init__(self, open_object: Callable[[], AbstractAsyncContextManager[T]], usage: str) -> None:
        self._open_object = open_object
        self._usage = usage
        # The context manager of the block that is open; None while none is.
        self._manager: AbstractAsyncContextManager[T] | None = None

    async def __aenter__(self) -> T:
        if self._manager is not None:
            raise RuntimeError(f"a block of this object is open already; write another {self._usage}")
        self._manager = manager = self._open_object()
        try:
            return await manager.__aenter__()
        except BaseException:  # whatever it was, no block is open
            self._manager = None
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        manager, self._manager = self._manager, None
        if manager is None:
            raise RuntimeError(f"no block of this object is open; write {self._usage}")
        return await manager.__aexit__(kind, error, trace)

    def __getattr__(self, name: str) -> NoReturn:
        # Python itself looks for special methods, such as those of copies, and handles this error.
        raise AttributeError(f"there is no {name!r} before the block is entered; write {self._usage}")
