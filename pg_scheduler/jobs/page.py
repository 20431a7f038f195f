"""A page of a longer list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class Page(list[T]):
    """A part of a longer list: a list with the position of the following part.

    A page can be short, or empty, although others follow: a call that filters examines a bounded number of
    rows. Only ``next`` shows whether the list ends.

    Args:
        items: The items of the page.
        next: The attribute of the same name.

    Example::

        page = await scheduler.list_jobs(status="failed")
        while page.next is not None:
            page = await scheduler.list_jobs(status="failed", after=page.next)
    """

    __slots__ = ("next",)

    next: str | None
    """The ``after=`` of the following page; None at the end."""

    def __init__(self, items: Iterable[T] = (), *, next: str | None = None) -> None:  # noqa: A002 - the name of the attribute
        super().__init__(items)
        self.next = next
