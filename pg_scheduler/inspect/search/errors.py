"""The error of a search text."""

from __future__ import annotations

from pg_scheduler.errors import SchedulerError


class SearchError(SchedulerError, ValueError):
    """A search text is invalid; the message contains the reason and the remedy.

    Attributes:
        position: The index in the text at which the mistake is, from 0 to its length.
        suggestion: The word that was probably meant; None if none is similar.
    """

    def __init__(self, message: str, position: int, suggestion: str | None = None) -> None:
        self.position = position
        self.suggestion = suggestion
        meant = "" if suggestion is None else f"; did you mean {suggestion!r}?"
        super().__init__(f"{message}{meant} (at character {position + 1})")
