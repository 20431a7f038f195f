"""The values that a search text consists of.

A job of a search fulfils all of its terms. It fulfils a term if it has one of the alternatives of the term.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from pg_scheduler.jobs.model import JobPriority

_WILDCARDS: Final = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})


def escape_like(text: str) -> str:
    """Return the pattern of LIKE that only this text matches."""
    return text.translate(_WILDCARDS)


class SearchStatus(StrEnum):
    """A value of ``status:``: a status of a job, or a kind of pending jobs."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DUE = "due"
    """Pending, due by its time and not blocked."""
    SCHEDULED = "scheduled"
    """Pending and due later, not blocked or suspended, and no attempt has failed."""
    SLEEPING = "sleeping"
    """Pending and due later, not blocked, and a step sleeps."""
    AWAITING = "awaiting"
    """Pending and due later, not blocked, and a step waits for a signal."""
    RETRYING = "retrying"
    """Pending and due later, not blocked or suspended, after a failed attempt."""
    BLOCKED = "blocked"
    """Pending, and waiting for a limit or for other jobs."""


class TextField(StrEnum):
    """A text that a term compares."""

    WORDS = "words"
    """The id or the name: free text."""
    ANY = "any"
    """The id, the name, or a value of the arguments or the metadata, at any depth."""
    ID = "id"
    NAME = "name"
    """The name, or a former one that the row still has."""
    SHOWN_NAME = "shown_name"
    """The name alone, which decides who may see the job."""
    WORKER = "worker"
    SCHEDULE = "schedule"
    ERROR = "error"
    TAG = "tag"
    LIMIT = "limit"
    STEP = "step"
    """The step in which an unfinished job waits, whatever it waits for."""
    SIGNAL = "signal"
    """The signal for which it waits."""
    CHILD = "child"
    """The id of the child for which it waits."""


WAIT_FIELDS: Final = frozenset({TextField.STEP, TextField.SIGNAL, TextField.CHILD})
"""The fields about what a durable job waits for."""


class NumberField(StrEnum):
    """A number that a term compares."""

    ATTEMPT = "attempt"
    CRASHED = "crashed"


class TimeField(StrEnum):
    """An instant that a term compares."""

    DUE = "due"
    CREATED = "created"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text to compare with.

    Attributes:
        like: The text as a pattern of LIKE.
        literal: The text without wildcards; None if it has some.
        is_part: Whether the pattern matches a part of a text, and ignores case.
    """

    like: str
    literal: str | None
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class NumberSpan:
    """The numbers from ``low`` to ``high``, both included; None for no bound."""

    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The instants from ``since`` on and before ``until``; None for no bound."""

    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class StatusTerm:
    """``status:failed,expired``."""

    statuses: frozenset[SearchStatus]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class PriorityTerm:
    """``priority:high``."""

    priorities: frozenset[JobPriority]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class TextTerm:
    """``name:mail.*``, or a word without a field."""

    field: TextField
    patterns: tuple[Pattern, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class JsonTerm:
    """``arg.user.id:42`` or ``metadata.tenant:acme``: a path in the ``task_data`` column."""

    path: tuple[str, ...]
    patterns: tuple[Pattern, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class NumberTerm:
    """``attempt:>2``."""

    field: NumberField
    spans: tuple[NumberSpan, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class TimeTerm:
    """``due:<-1h``."""

    field: TimeField
    spans: tuple[TimeSpan, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class StepsTerm:
    """A job with steps; no text of a search has this term."""

    is_negated: bool = False


Term: TypeAlias = StatusTerm | PriorityTerm | TextTerm | JsonTerm | NumberTerm | TimeTerm | StepsTerm


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search.

    Attributes:
        terms: The terms. A job matches if it fulfils all of them, so every job matches if there are none.
        now: The instant to which relative times refer.
    """

    terms: tuple[Term, ...]
    now: datetime
