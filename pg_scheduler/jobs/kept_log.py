"""The last log lines of each running attempt, where a ``JobLogHandler`` keeps them."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import Final

MAX_LINES: Final = 64
MAX_LINE_LENGTH: Final = 1000
MAX_LOG_LENGTH: Final = 8000
"""Characters of all lines together; the oldest ones are dropped."""


class KeptLog:
    """The lines of the attempt that runs in the current context, and of what it starts.

    Attributes:
        is_used: Whether anything adds lines, so that attempts have to remember them.
    """

    def __init__(self) -> None:
        self.is_used = False
        self._lines: ContextVar[deque[str]] = ContextVar("pg_scheduler_kept_log")

    @property
    def has_attempt(self) -> bool:
        """Whether an attempt runs in this context."""
        return self._lines.get(None) is not None

    def begin(self) -> deque[str]:
        """Return where the lines of an attempt are kept that begins in this context."""
        lines: deque[str] = deque(maxlen=MAX_LINES)
        self._lines.set(lines)
        return lines

    def add(self, line: str) -> None:
        """Keep a line, if an attempt runs in this context; any thread may call it."""
        lines, line = self._lines.get(None), str.__str__(line)
        if lines is not None:
            lines.append(line if len(line) <= MAX_LINE_LENGTH else line[:MAX_LINE_LENGTH] + " ...")


kept_log: Final = KeptLog()


def kept_lines(lines: deque[str]) -> list[str]:
    """Return the newest lines that are stored, oldest first."""
    kept: list[str] = []
    length = 0
    for line in reversed(list(lines)):
        length += len(line)
        if length > MAX_LOG_LENGTH:
            break
        kept.append(line)
    return kept[::-1]
