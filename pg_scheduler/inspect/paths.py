"""Choose the indexes that a search reads: a plan of segments, each a range of one index.

A segment is read from its start, in the order of its index. A position in a segment is the key of the last
row that was examined. So a search can stop after any row and continue there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, get_args

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.facts.outcomes import UNSUCCESSFUL_JOBS
from pg_scheduler.inspect.search.terms import (
    WAIT_FIELDS,
    PriorityTerm,
    Search,
    SearchStatus,
    StatusTerm,
    TextField,
    TextTerm,
    TimeField,
    TimeSpan,
    TimeTerm,
)
from pg_scheduler.inspect.store.searches import TABLE
from pg_scheduler.jobs.model import Job, JobPriority
from pg_scheduler.triggers.search import INSTANT

CLAIM_INDEX: Final = "scheduled_jobs_claim"
BLOCKED_INDEX: Final = "scheduled_jobs_blocked"
UNSUCCESSFUL_INDEX: Final = "scheduled_jobs_unsuccessful"

FIRST_INSTANT: Final = datetime(1, 1, 1, tzinfo=UTC)
LAST_DAY: Final = datetime(9999, 12, 31, tzinfo=UTC)

Sort: TypeAlias = Literal["due", "id", "finished"]
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)
"""The orders in which jobs can be listed. Each is the order of an index."""

AFTER_GENERATED: Final = "1"
"""Generated ids begin with the digit 0 until the year 2527, so they sort before this id. Most other ids, such
as those of schedules, sort after it."""

Key: TypeAlias = tuple[Any, ...]
"""The values by which an index is ordered: texts, numbers and instants."""


class Path(Enum):
    """How a segment is read."""

    IDS = "ids"
    """Some ids of the primary key."""
    WAITING = "waiting"
    """One priority of the claim index."""
    DUE = "due"
    """Several priorities of the claim index, merged by due time."""
    BLOCKED = "blocked"
    """The index of blocked jobs."""
    UNSUCCESSFUL = "unsuccessful"
    """The index of finished jobs with an error, backwards."""
    NEWEST = "newest"
    """The primary key, backwards: generated ids sort by the time of their creation."""

    @property
    def key_types(self) -> tuple[type, ...]:
        """The types of the values of a key."""
        return _KEY_TYPES[self]

    def key_of(self, job: Job) -> Key:
        """Return the key of a job in the index that this path reads.

        Jobs in the index have all of these values. The replacements for None only satisfy the types.
        """
        match self:
            case Path.WAITING | Path.DUE:
                return job.execution_time, job.job_id
            case Path.BLOCKED:
                return job.blocked_on or "", job.priority.db_value, job.execution_time, job.job_id
            case Path.UNSUCCESSFUL:
                return job.finished_at or LAST_DAY, job.job_id
            case _:
                return (job.job_id,)


_KEY_TYPES: Final[dict[Path, tuple[type, ...]]] = {
    Path.IDS: (str,),
    Path.WAITING: (datetime, str),
    Path.DUE: (datetime, str),
    Path.BLOCKED: (str, int, datetime, str),
    Path.UNSUCCESSFUL: (datetime, str),
    Path.NEWEST: (str,),
}


BY_ID: Final = "by id, descending"
BY_CREATION: Final = "newest first; those with chosen ids follow"
_ORDERS: Final[dict[Path, str]] = {
    Path.IDS: "by id",
    Path.WAITING: "by priority and due time",
    Path.DUE: "by due time",
    Path.BLOCKED: "blocked ones by what they wait for",
    Path.UNSUCCESSFUL: "the newest end first",
}
"""The orders of segments in words, apart from those of ``Path.NEWEST``."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of an index.

    Attributes:
        path: How the segment is read.
        start: The key at which the segment starts; empty for the first key.
        end: The instant at which the segment ends; None for no bound.
        first_id: The id down to which ``Path.NEWEST`` reads; None for no bound.
        ids: The ids of ``Path.IDS``.
        priority: The number of the priority of ``Path.WAITING``.
        priorities: The numbers of the priorities of ``Path.DUE``.
        is_descending: Whether ``Path.IDS`` has the greatest id first.
    """

    path: Path
    start: Key = ()
    end: datetime | None = None
    ids: tuple[str, ...] = ()
    priority: int = 0
    priorities: tuple[int, ...] = ()
    is_descending: bool = False
    first_id: str | None = None

    @property
    def ranges(self) -> int:
        """How many ranges of the index are merged. To examine n rows, up to n rows of each range are read."""
        # Only a segment by due time has several ranges: one for each priority.
        return len(self.priorities) or 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of the table and its indexes that a search reads.

    Attributes:
        segments: The segments, in the order in which they are read.
        relations: The names of the table and indexes of which the segments are ranges.
        missing: The index that would shorten the search and does not exist; None if no such index is missing.
    """

    segments: tuple[Segment, ...]
    relations: tuple[str, ...] = ()
    missing: str | None = None

    @property
    def order(self) -> str:
        """The order in which the jobs are found, in words; empty if there are none."""
        newest_segments = [segment for segment in self.segments if segment.path is Path.NEWEST]
        if newest_segments:
            # Two segments read the generated ids before all others, and a single one reads all ids.
            has_generated_first = len(newest_segments) > 1
            return BY_CREATION if has_generated_first else BY_ID
        texts = dict.fromkeys(_ORDERS[segment.path] for segment in self.segments)
        # Free text may be a whole id, whose job comes first, whatever the order is.
        if len(texts) > 1:
            texts.pop(_ORDERS[Path.IDS], None)
        return ", then ".join(texts)

    @property
    def probed(self) -> frozenset[str]:
        """The ids of `Path.IDS`. The segments after that one leave these jobs out."""
        return frozenset(id_ for segment in self.segments for id_ in segment.ids)


class _Kind(Enum):
    """A kind of jobs that an index contains or does not contain."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    RUNNING = "running"
    COMPLETED = "completed"
    UNSUCCESSFUL = "unsuccessful"


_UNFINISHED: Final = frozenset({_Kind.WAITING, _Kind.BLOCKED, _Kind.RUNNING})

UNSUCCESSFUL_STATUSES: Final = frozenset(map(SearchStatus, UNSUCCESSFUL_JOBS))
_LATER: Final = {
    SearchStatus.SCHEDULED,
    SearchStatus.RETRYING,
    SearchStatus.SLEEPING,
    SearchStatus.AWAITING,
}
_PARTS: Final = {SearchStatus.DUE, *_LATER}
"""Statuses that only some jobs of a kind have: a waiting job is due, or has one of the later ones."""

_KINDS: Final = {
    SearchStatus.PENDING: {_Kind.WAITING, _Kind.BLOCKED},
    SearchStatus.DUE: {_Kind.WAITING},
    SearchStatus.SCHEDULED: {_Kind.WAITING},
    SearchStatus.RETRYING: {_Kind.WAITING},
    SearchStatus.SLEEPING: {_Kind.WAITING},
    SearchStatus.AWAITING: {_Kind.WAITING},
    SearchStatus.BLOCKED: {_Kind.BLOCKED},
    SearchStatus.RUNNING: {_Kind.RUNNING},
    SearchStatus.COMPLETED: {_Kind.COMPLETED},
    SearchStatus.CANCELLED: {_Kind.UNSUCCESSFUL},
    SearchStatus.FAILED: {_Kind.UNSUCCESSFUL},
    SearchStatus.EXPIRED: {_Kind.UNSUCCESSFUL},
}
"""The kinds of jobs that can have each status."""


def plan_search(
    search: Search,
    indexes: Iterable[str],
    *,
    sort: Sort | None = None,
    is_list: bool = False,
    blocked_first: bool = False,
) -> Plan:
    """Return what a search reads.

    Args:
        search: The search.
        indexes: The indexes of the table that can be used.
        sort: The order of the jobs; None for the order of the indexes that are read. With ``id`` the search
            reads the primary key only. So no job comes twice because its other values change meanwhile.
        is_list: Whether generated ids are read first, the newest one first, and all other ids after them. A
            person who looks through a list wants the newest jobs. Otherwise the primary key is read from the
            greatest id on: a person who searches often wants the jobs of a schedule or a name, of which few
            have a generated id.
        blocked_first: Whether blocked jobs are read before the others and again after them, where indexes are
            read.

    Raises:
        ConfigurationError: The order needs the index of unsuccessful jobs, and that index is missing.
    """
    kinds = _kinds(search)
    # Each of these orders is that of an index, which lacks jobs of other kinds.
    if sort in {"due", "finished"}:
        return _by_due_time(search, kinds) if sort == "due" else _by_end(search, kinds, indexes)
    ids = _ids(search)
    if ids is not None:
        return Plan((Segment(Path.IDS, ids=ids, is_descending=sort == "id"),))
    if not kinds:
        return Plan(())
    if sort == "id":
        return Plan((Segment(Path.NEWEST),), (TABLE,))
    # Of all indexes, only the primary key contains completed jobs. The index of unsuccessful jobs may be
    # missing. Unless the smaller indexes contain all jobs that can match, the primary key is read.
    has_unsuccessful_index = UNSUCCESSFUL_INDEX in set(indexes)
    can_read_unsuccessful = has_unsuccessful_index or _Kind.UNSUCCESSFUL not in kinds
    if _Kind.COMPLETED not in kinds and can_read_unsuccessful:
        return _by_indexes(search, kinds, blocked_first=blocked_first)
    missing = UNSUCCESSFUL_INDEX if kinds == {_Kind.UNSUCCESSFUL} else None
    words = _words(search)
    segments = [Segment(Path.IDS, ids=words)] if words else []
    if is_list:
        # The first segment reads backwards from the last generated id. The second one has the ids after it.
        segments += [Segment(Path.NEWEST, (AFTER_GENERATED,)), Segment(Path.NEWEST, first_id=AFTER_GENERATED)]
    else:
        segments.append(Segment(Path.NEWEST))
    return Plan(tuple(segments), (TABLE,), missing)


def _by_end(search: Search, kinds: frozenset[_Kind], indexes: Iterable[str]) -> Plan:
    """Return the plan of the unsuccessful jobs of a search, the newest end first."""
    if UNSUCCESSFUL_INDEX not in set(indexes):
        raise ConfigurationError(
            f"sort='finished' needs the index {UNSUCCESSFUL_INDEX}, which is missing; "
            "run pg-scheduler migrate indexes, or sort by id"
        )
    if _Kind.UNSUCCESSFUL not in kinds:
        return Plan(())
    return Plan((_unsuccessful(search),), (UNSUCCESSFUL_INDEX,))


def _unsuccessful(search: Search) -> Segment:
    """Return the range of the index of unsuccessful jobs that a search reads, from the newest end on."""
    finished = _hull(search, TimeField.FINISHED)
    # The index is read backwards, so the segment starts at the latest instant and ends at the earliest one.
    return Segment(Path.UNSUCCESSFUL, (finished.until or LAST_DAY, ""), finished.since)


def _by_due_time(search: Search, kinds: frozenset[_Kind]) -> Plan:
    """Return the plan of the jobs of a search that run or wait without being blocked, by their due time."""
    priorities = tuple(_priorities(search))
    has_unblocked = bool(kinds & {_Kind.WAITING, _Kind.RUNNING})
    if not has_unblocked or not priorities:
        return Plan(())
    start, end = _due_range(search, kinds)
    return Plan((Segment(Path.DUE, start, end, priorities=priorities),), (CLAIM_INDEX,))


def _by_indexes(search: Search, kinds: frozenset[_Kind], *, blocked_first: bool) -> Plan:
    """Return the plan of a search that cannot match completed jobs: it reads the index of each kind."""
    segments: list[Segment] = []
    relations: list[str] = []
    if kinds & {_Kind.WAITING, _Kind.RUNNING}:
        start, end = _due_range(search, kinds)
        segments += [Segment(Path.WAITING, start, end, priority=priority) for priority in _priorities(search)]
        relations.append(CLAIM_INDEX)
    if _Kind.BLOCKED in kinds:
        blocked = Segment(Path.BLOCKED, ("", 0, FIRST_INSTANT, ""))
        # The first reading has the jobs that are unblocked meanwhile. The second one has those that become
        # blocked.
        segments = [blocked, *segments, blocked] if blocked_first else [*segments, blocked]
        relations.append(BLOCKED_INDEX)
    if _Kind.UNSUCCESSFUL in kinds:
        segments.append(_unsuccessful(search))
        relations.append(UNSUCCESSFUL_INDEX)
    words = _words(search)
    if words:
        segments.insert(0, Segment(Path.IDS, ids=words))
    return Plan(tuple(segments), tuple(relations))


def _due_range(search: Search, kinds: frozenset[_Kind]) -> tuple[Key, datetime | None]:
    """Return where the jobs of a search start and end in the claim index; the end is None for no bound.

    Scheduled, retrying and suspended jobs are due after now. Due and running jobs were due by now.
    """
    due = _hull(search, TimeField.DUE)
    # The alternatives of each term about the status. A job must have one of the alternatives of every term.
    alternatives = [
        term.statuses for term in search.terms if isinstance(term, StatusTerm) and not term.is_negated
    ]
    # A term may also name statuses whose jobs are not in the claim index. They do not change the range.
    elsewhere = {SearchStatus.BLOCKED, SearchStatus.COMPLETED, *UNSUCCESSFUL_STATUSES}
    later_or_elsewhere = _LATER | elsewhere
    is_later_only = any(
        bool(statuses & _LATER) and statuses <= later_or_elsewhere for statuses in alternatives
    )
    # Without waiting jobs, only running jobs of the claim index are left, which are due.
    due_by_now = {SearchStatus.DUE, SearchStatus.RUNNING, SearchStatus.BLOCKED}
    is_due_only = _Kind.WAITING not in kinds or any(statuses <= due_by_now for statuses in alternatives)
    # The range is the intersection of that of the due times in the search and that of the statuses.
    starts = [due.since] if due.since else []
    if is_later_only:
        starts.append(search.now)
    ends = [due.until] if due.until else []
    if is_due_only:
        # The end does not belong to the range, so it is an instant later. LAST_DAY leaves room for that.
        ends.append(min(search.now, LAST_DAY) + INSTANT)
    return (max(starts, default=FIRST_INSTANT), ""), min(ends, default=None)


def _kinds(search: Search) -> frozenset[_Kind]:
    """Return the kinds of jobs that can match, which decide on the indexes that a search reads.

    Each term of the search can only exclude kinds, because a job must match all terms.
    """
    kinds = set(_Kind)
    for term in search.terms:
        match term:
            case StatusTerm(statuses, is_negated=False):
                kinds &= {kind for status in statuses for kind in _KINDS[status]}
            # This term is negated. Without some parts of a kind, such as the due jobs, the kind still has
            # other jobs, so statuses that are parts exclude no kind.
            case StatusTerm(statuses):
                for status in statuses - _PARTS:
                    kinds -= _emptied_kinds(status, statuses)
            case TextTerm(TextField.LIMIT, is_negated=False):
                kinds &= {_Kind.BLOCKED}
            case TextTerm(field, is_negated=False) if field in WAIT_FIELDS:
                kinds &= _UNFINISHED
            # Pending jobs have no worker.
            case TextTerm(TextField.WORKER, is_negated=False):
                kinds -= {_Kind.WAITING, _Kind.BLOCKED}
            case TimeTerm(TimeField.FINISHED, is_negated=False):
                kinds -= _UNFINISHED
    return frozenset(kinds)


def _emptied_kinds(status: SearchStatus, excluded: Iterable[SearchStatus]) -> set[_Kind]:
    """Return the kinds that have no job left because a status is excluded.

    ``excluded`` are all excluded statuses. Unsuccessful jobs are one kind with three statuses, so this kind
    is returned only if all three are excluded.
    """
    kinds = _KINDS[status]
    if kinds == {_Kind.UNSUCCESSFUL} and not set(excluded) >= UNSUCCESSFUL_STATUSES:
        return set()
    return kinds


def _ids(search: Search) -> tuple[str, ...] | None:
    """Return the ids to which a search is restricted; None if it can match other ids too."""
    for term in search.terms:
        if isinstance(term, TextTerm) and term.field is TextField.ID and not term.is_negated:
            ids = [
                pattern.literal
                for pattern in term.patterns
                if pattern.literal is not None and not pattern.is_part
            ]
            # A pattern with a wildcard, or of a part of an id, can match any number of ids.
            if len(ids) == len(term.patterns):
                return tuple(ids)
    return None


def _words(search: Search) -> tuple[str, ...]:
    """Return the words of free text that may be ids, so that an old job is found by its id at once."""
    words: list[str] = []
    for term in search.terms:
        if not isinstance(term, TextTerm) or term.is_negated:
            continue
        if term.field in {TextField.WORDS, TextField.ANY}:
            words += [pattern.literal for pattern in term.patterns if pattern.literal is not None]
    return tuple(words)


def _priorities(search: Search) -> list[int]:
    """Return the numbers of the priorities that can match, sorted."""
    numbers = {priority.db_value for priority in JobPriority}
    for term in search.terms:
        if isinstance(term, PriorityTerm):
            named = {priority.db_value for priority in term.priorities}
            numbers = numbers - named if term.is_negated else numbers & named
    return sorted(numbers)


def _hull(search: Search, field: TimeField) -> TimeSpan:
    """Return the shortest span of time that contains every instant of a field that can match.

    A bound is None if the search has no such bound.
    """
    since: datetime | None = None
    until: datetime | None = None
    for term in search.terms:
        if isinstance(term, TimeTerm) and term.field is field and not term.is_negated:
            starts = [span.since for span in term.spans if span.since is not None]
            ends = [span.until for span in term.spans if span.until is not None]
            # A term has a bound only if each of its alternatives has one. A job must fulfil all terms, so the
            # closest of their bounds counts.
            if len(starts) == len(term.spans):
                since = min(starts) if since is None else max(since, min(starts))
            if len(ends) == len(term.spans):
                until = max(ends) if until is None else min(until, max(ends))
    return TimeSpan(since, until)
