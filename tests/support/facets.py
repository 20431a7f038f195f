"""An asynchronous class with every kind of member that blocking members are derived from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from functools import cached_property


class Ticks:
    """An asynchronous iterator that is neither a generator nor annotated as an iterator."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.is_closed = False

    def __aiter__(self) -> Ticks:
        return self

    async def __anext__(self) -> int:
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        return self.left

    async def aclose(self) -> None:
        self.is_closed = True


class Shelf:
    """A facet."""

    def __init__(self) -> None:
        self.books: dict[str, int] = {}

    async def add(self, name: str, *, copies: int = 1, connection: object = None) -> str:
        """Store a book.

        Args:
            name: Its name.
            copies: How many.
            connection: Runs the call in the thread of the caller.
        """
        self.books[name] = copies
        if connection is not None:
            await asyncio.sleep(0)
            return f"{name} {connection}"
        task = asyncio.current_task()
        assert task
        return name or task.get_name()

    async def list(self) -> list[str]:
        """Return the names."""
        return sorted(self.books)


class Base:
    """A base class."""

    annotated: Shelf

    async def inherited(self) -> str:
        """Return a word."""
        return "inherited"


class Face(Base):
    """The class."""

    LIMIT: int = 5

    def __init__(self, db_pool: object = None, *, size: int = 1) -> None:
        self.db_pool = db_pool
        self.size = size
        self.annotated = Shelf()
        self.ticks: Ticks | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return self.size

    @property
    def shelf(self) -> Shelf:
        """The shelf."""
        return self.annotated

    @cached_property
    def second_shelf(self) -> Shelf:
        """Another shelf."""
        return Shelf()

    def plain(self, number: int, *more: int) -> int:
        """Add numbers in the event loop."""
        asyncio.get_running_loop()
        return number + sum(more)

    async def fail(self) -> None:
        """Raise an exception."""
        raise LookupError("nothing there")

    async def generate(self, count: int) -> AsyncIterator[int]:
        """Yield numbers."""
        for number in range(count):
            yield number

    async def generate_more(self) -> AsyncGenerator[str, None]:
        """Yield nothing."""
        words: list[str] = []
        for word in words:
            yield word

    def stream(self, count: int) -> Ticks:
        """Return an iterator."""
        self.ticks = Ticks(count)
        return self.ticks
