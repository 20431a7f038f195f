"""Divide what statements send into batches, by number and by size.

Callers decide how large arguments and results are. PostgreSQL ends the connection of a statement of more than
1 GiB. That would look like an outage, so the statement would be repeated without an end. A large one also
blocks the event loop while it is encoded. So what sends many values with one statement asks a ``BatchRoom``
for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

MAX_BATCH_CHARACTERS = 8 * 2**20
"""Characters of values per batch. A larger value is sent alone."""


class BatchRoom:
    """The room of one batch.

    Args:
        count: The maximum number of items.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._characters = MAX_BATCH_CHARACTERS
        self._is_empty = True

    def take(self, characters: int) -> bool:
        """Take the room of one more item of so many characters; return False if there is none.

        The first item always has room.
        """
        has_room = self._count > 0 and characters <= self._characters
        if not has_room and not self._is_empty:
            return False
        self._is_empty = False
        self._count -= 1
        self._characters -= characters
        return True


def batches(
    items: Sequence[T], count: int, lengths_of: Callable[[Sequence[T]], Sequence[int]]
) -> Iterator[Sequence[T]]:
    """Yield items in batches of at most ``count`` items and ``MAX_BATCH_CHARACTERS`` characters.

    An item with more characters is a batch of its own.

    Args:
        items: The items.
        count: The maximum number of items of a batch.
        lengths_of: Returns the number of characters of each of the items that it gets.
    """
    for start in range(0, len(items), count):
        part = items[start : start + count]
        lengths = lengths_of(part)
        # Nearly always the part fits into one batch. One sum finds that out faster than a BatchRoom.
        if sum(lengths) <= MAX_BATCH_CHARACTERS:
            yield part
        else:
            yield from _divided(part, lengths)


def _divided(items: Sequence[T], lengths: Sequence[int]) -> Iterator[Sequence[T]]:
    """Yield items that are too large for one batch in several batches."""
    batch: list[T] = []
    # Only the characters limit these batches: the number of all items together is within the bounds of one.
    room = BatchRoom(len(items))
    for item, characters in zip(items, lengths, strict=True):
        if not room.take(characters):
            yield batch
            batch, room = [], BatchRoom(len(items))
            # The first item of a batch always has room.
            room.take(characters)
        batch.append(item)
    yield batch
