"""The values that the Inspector returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pg_scheduler.jobs.model import Job

__all__ = ["SearchPage", "rounded"]


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A part of the result of a search, and how far the search got.

    A page can be short, or empty, although others follow: it reads a bounded number of rows. Only
    ``is_complete`` shows whether the search has ended.
    """

    items: Sequence[Job]
    """The jobs of the page."""
    searched: int
    """Jobs that were examined, on this page and those before."""
    found: int
    """Jobs that were found, on this page and those before."""
    total_estimate: int | None
    """About how many jobs the whole search examines; None if the table was never analyzed."""
    is_complete: bool
    """Whether every job was examined that can match."""
    next: str | None
    """The ``after=`` of the following page; None if the search is complete."""
    missing_index: str | None = None
    """The index that would shorten this search and does not exist; see `build_indexes()`. None for none."""

    @property
    def summary(self) -> str:
        """What was searched and found, in one line, as every front end shows it."""
        total = self.total_estimate
        about = "an unknown number of" if total is None else f"about {rounded(total)}"
        extent = f"all of {self.searched:,}" if self.is_complete else f"{self.searched:,} of {about}"
        missing = f"; the index {self.missing_index} is missing" if self.missing_index else ""
        return f"searched {extent} jobs, {self.found:,} found{missing}"


def rounded(number: int) -> str:
    """Return a number as people read it: ``9.8 M``, ``45 k``, ``9,500``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            amount = number / (1e3 if unit == "k" else size)
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{number:,}"
