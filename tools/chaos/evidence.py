"""What a run leaves to judge from, and what is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.chaos.ledger import Book
from tools.chaos.load import REPLACED, Wish
from tools.chaos.nemesis import Fault

__all__ = ["Evidence", "Row", "Verdict"]


@dataclass(frozen=True, slots=True)
class Row:
    """A job's row at the end; its times by the monotonic clock, as if the server's had never been moved."""

    job_id: str
    job_name: str
    status: str
    worker_id: str | None
    attempt: int
    retry_count: int
    max_retries: int
    priority: int
    due: float
    created: float
    started: float | None


@dataclass(slots=True)
class Evidence:
    """All there is to judge from.

    Attributes:
        deaths: When processes ended, by process id.
        quiet: When the last fault was over.
        mutinies: Workers that ended by themselves.
        unhandled: Errors of the driver's process that nobody handled.
        timed: Whether lateness is judged.
    """

    wishes: Mapping[str, Wish]
    rows: Mapping[str, Row]
    book: Book
    faults: Sequence[Fault]
    deaths: Mapping[int, float]
    lease: float
    quiet: float
    mutinies: Sequence[str] = ()
    unhandled: Sequence[str] = ()
    timed: bool = True

    def is_replaced(self, job_id: str) -> bool:
        """Whether the job got a new definition, which begins anew."""
        wish = self.wishes.get(job_id)
        return wish is not None and wish.kind == REPLACED


@dataclass(slots=True)
class Verdict:
    """What was found: problems by the promise they break, and figures."""

    problems: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    recoveries: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every promise does."""
        return not any(self.problems.values())
