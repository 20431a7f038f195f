"""The verdict, from three books that know nothing of each other.

They are what the enqueuers were told, what the jobs and workers wrote down, and what is in the table at the
end.

A try is *fenced* when the next one began before it was over: its worker had been stopped, cut off or declared
dead by then, and its result was refused. That is what leases and fences are for. The same without a
fault, or while the worker's lease was running and its connections stood, is an *overlap*, and a defect.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from chaos.jobs import PERIODIC
from chaos.ledger import DONE, Book, Try
from chaos.load import BROKEN, CANCELLED, EXPIRING, PLAIN, REPLACED, Wish
from chaos.nemesis import DROPPED, SERVER, Fault

__all__ = ["Evidence", "Row", "Verdict", "judge"]

TRUSTED: Final = 0.9
"""The part of its lease for which a worker trusts it."""

OVERLOOKED: Final = 3.0
"""Seconds for which a claim may overlook a job that came in late with an earlier time: the polling interval's
two, and one for the job to be committed."""

AFTERMATH: Final = 10.0
"""Seconds after a fault, beside a lease, in which its consequences still come: a transaction that was cut
off in its middle keeps its locks for that long."""

SILENCE: Final = 6.0
"""Seconds within which a worker that has no session any more is declared dead: a poll's two, one and a half
of patience, and what it takes until its jobs start elsewhere."""

HALF_OPEN: Final = 35.0
"""Seconds for which a call waits at most for an answer on a connection that leads nowhere."""

NORMAL_AFTER: Final = 5.0
NORMAL: Final = 1.0
"""So many seconds after the last fault nothing is later than this any more."""

SESSIONS_END: Final = (
    "connections",
    "network",
    "server",
    "backends",
    "max_connections",
    "pool",
)
"""Faults in which a worker may be declared dead before its lease is over: nobody holds its liveness lock."""

ENDS: Final = {
    PLAIN: {"completed"},
    REPLACED: {"completed"},
    BROKEN: {"failed"},
    EXPIRING: {"completed", "expired"},
    CANCELLED: {"completed", "cancelled"},
}


@dataclass(frozen=True, slots=True)
class Row:
    """A job's row at the end; its times by the monotonic clock."""

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


def judge(evidence: Evidence) -> Verdict:
    """Look at everything."""
    verdict = Verdict(faults=dict(Counter(fault.kind for fault in evidence.faults)))
    fenced: list[Try] = []
    verdict.problems = {
        "lost": list(_lost(evidence)),
        "ended without having run": list(_unearned(evidence)),
        "overlapped": list(_overlaps(evidence, fenced)),
        "completed by a loser": list(_losers(evidence)),
        "windows doubled or missed": list(_windows(evidence)),
        "claimed out of order": list(_inversions(evidence)),
        "workers that ended by themselves": list(evidence.mutinies),
        "errors that nobody handled": [
            *evidence.unhandled,
            *(str(word.about) for word in evidence.book.words["Unhandled"]),
        ],
    }
    verdict.late = sorted(_lateness(evidence))
    if evidence.timed:
        verdict.problems["late after the faults"] = [
            f"{late:.2f} s late" for late in verdict.late if late > NORMAL
        ]
    tries = evidence.book.tries
    words = evidence.book.words
    verdict.figures = {
        "jobs": len(evidence.rows),
        "of which surely scheduled": sum(wish.sure for wish in evidence.wishes.values()),
        "tries": sum(map(len, tries.values())),
        "fenced": len(fenced),
        "ran to their end twice": sum(
            sum(one.how == DONE for one in tries.get(job_id, ())) > 1
            for job_id in evidence.rows
            if not _is_replaced(evidence, job_id)
        ),
        "leases lost": len(words["LeaseLost"]),
        "jobs taken over": sum(len(word.about[0]) for word in words["JobsRescued"]),
        "windows": sum(row.job_name in PERIODIC for row in evidence.rows.values()),
    }
    verdict.recoveries = sorted(_recoveries(evidence))
    return verdict


def _is_replaced(evidence: Evidence, job_id: str) -> bool:
    wish = evidence.wishes.get(job_id)
    return wish is not None and wish.kind == REPLACED


def _lost(evidence: Evidence) -> Iterator[str]:
    for job_id, wish in evidence.wishes.items():
        row = evidence.rows.get(job_id)
        if row is None:
            if wish.sure:
                yield f"{job_id} ({wish.kind}) was scheduled, and there is no row of it"
        elif row.status not in ENDS[wish.kind] or (wish.cancelled and row.status != "cancelled"):
            yield f"{job_id} ({wish.kind}, cancelled {wish.cancelled}) ended as {row.status}"
        elif wish.kind == BROKEN and row.retry_count != row.max_retries:
            yield f"{job_id} failed after {row.retry_count} retries of {row.max_retries}"
        elif wish.kind == REPLACED:
            version = {one.version for one in _tries_of_token(evidence, row)}
            if not version & wish.versions:
                yield f"{job_id} ran last as version {version}, not as {wish.versions}"
    for row in evidence.rows.values():
        if row.status in ("pending", "running"):
            yield f"{row.job_id} ({row.job_name}) is {row.status} for ever, attempt {row.attempt}"


def _tries_of_token(evidence: Evidence, row: Row) -> list[Try]:
    return [
        one
        for one in evidence.book.tries.get(row.job_id, ())
        if (one.attempt, one.worker_id) == (row.attempt, row.worker_id)
    ]


def _unearned(evidence: Evidence) -> Iterator[str]:
    """What a row says was done, its jobs must have done under its token."""
    for row in evidence.rows.values():
        if row.status == "completed" and not any(one.how == DONE for one in _tries_of_token(evidence, row)):
            yield f"{row.job_id} is completed by {row.worker_id} at attempt {row.attempt}, which did not end"


def _overlaps(evidence: Evidence, fenced: list[Try]) -> Iterator[str]:
    told = _told(evidence.book)
    leases = _Leases(evidence)
    for tries in evidence.book.tries.values():
        for one, other in pairwise(tries):
            if one.attempt == other.attempt:
                yield f"{one.job_id} was claimed twice as attempt {one.attempt}"
                continue
            end = one.ended if one.ended is not None else evidence.deaths.get(one.pid, float("inf"))
            if other.started >= end:
                continue
            causes = [
                fault
                for fault in evidence.faults
                if fault.target in (SERVER, one.seat)
                and fault.began <= other.started <= _felt_until(fault) + evidence.lease + AFTERMATH
            ]
            was_told = (one.job_id, one.attempt, one.worker_id) in told or one.pid in evidence.deaths
            broken_off = any(
                fault.kind.startswith(SESSIONS_END) and other.started <= _felt_until(fault) + SILENCE
                for fault in causes
            )
            if (
                not causes
                or not was_told
                or (leases.trusted(one.worker_id, other.started) and not broken_off)
            ):
                yield (
                    f"{one.job_id}: attempt {one.attempt} on {one.seat} went on for "
                    f"{end - other.started:.3f} s beside attempt {other.attempt} on {other.seat}; "
                    f"told: {was_told}; faults: {', '.join(fault.kind for fault in causes) or 'none'}"
                )
            else:
                fenced.append(one)


def _felt_until(fault: Fault) -> float:
    return fault.ended + (HALF_OPEN if fault.kind == DROPPED else 0)


def _told(book: Book) -> set[tuple[str, int, str]]:
    return {
        (*word.about[:2], word.worker_id)
        for event in ("JobLost", "JobCancelled")
        for word in book.words[event]
    }


class _Leases:
    """When a worker trusted its lease: from when it asked for each beat, unless it found it lost."""

    def __init__(self, evidence: Evidence) -> None:
        self._seconds = evidence.lease * TRUSTED
        losses: dict[str, list[float]] = {}
        for word in evidence.book.words["LeaseLost"]:
            losses.setdefault(word.worker_id, []).append(word.at)
        self._asked: dict[str, list[float]] = {}
        for word in evidence.book.words["beat"]:
            asked = word.about[0]
            if not any(asked <= lost <= word.at for lost in losses.get(word.worker_id, ())):
                self._asked.setdefault(word.worker_id, []).append(asked)
        for instants in self._asked.values():
            instants.sort()

    def trusted(self, worker_id: str, at: float) -> bool:
        asked = self._asked.get(worker_id, [])
        index = bisect_right(asked, at)
        return index > 0 and at < asked[index - 1] + self._seconds


def _losers(evidence: Evidence) -> Iterator[str]:
    """Whoever said that a job was completed must be in its row; and nothing runs after that."""
    for word in evidence.book.words["JobCompleted"]:
        job_id, attempt = word.about
        row = evidence.rows.get(job_id)
        if row is None:
            yield f"{job_id} was completed, and there is no row of it"
        elif _is_replaced(evidence, job_id):
            continue
        elif (row.status, row.worker_id, row.attempt) != ("completed", word.worker_id, attempt):
            yield (
                f"{job_id} was completed by {word.worker_id} at attempt {attempt}, and its row says "
                f"{row.status} by {row.worker_id} at {row.attempt}"
            )
        elif any(one.attempt > attempt for one in evidence.book.tries.get(job_id, ())):
            yield f"{job_id} ran again after it was completed at attempt {attempt}"


def _windows(evidence: Evidence) -> Iterator[str]:
    """Each window once; only in the wake of a fault may several become one."""
    planned = Counter(word.about[1] for word in evidence.book.words["PeriodicJobPlanned"])
    for job_id, times in planned.items():
        if times > 1:
            yield f"{job_id} was planned {times} times"
    for name in PERIODIC:
        due = sorted(row.due for row in evidence.rows.values() if row.job_name == name)
        if not due:
            yield f"{name}: no window"
        for one, other in pairwise(due):
            steps = round(other - one)
            if steps < 1:
                yield f"{name}: two jobs for one window"
            elif steps > 1 and not _in_the_wake(evidence, one, other, AFTERMATH):
                yield f"{name}: {steps - 1} windows were left out with no fault near"


def _in_the_wake(evidence: Evidence, began: float, ended: float, aftermath: float) -> bool:
    return any(
        fault.began <= ended and fault.ended + evidence.lease + aftermath >= began
        for fault in evidence.faults
    )


def _inversions(evidence: Evidence) -> Iterator[str]:
    """While nothing was wrong, nobody was claimed before one of a higher priority that had been due."""
    calm = [
        row
        for row in evidence.rows.values()
        if row.attempt == 1 and row.started is not None and not _is_replaced(evidence, row.job_id)
    ]
    waiting: dict[int, list[tuple[float, float]]] = {}
    for row in calm:
        assert row.started is not None
        since = max(row.due, row.created) + OVERLOOKED
        if since < row.started and not _in_the_wake(evidence, since - OVERLOOKED, row.started, 0):
            waiting.setdefault(row.priority, []).append((since, row.started))
    for priority, spans in waiting.items():
        merged = _merged(spans)
        starts = [since for since, _ in merged]
        for row in calm:
            assert row.started is not None
            index = bisect_right(starts, row.started) - 1
            if row.priority > priority and index >= 0 and row.started < merged[index][1]:
                yield f"{row.job_id} of priority {row.priority} was claimed while some of {priority} waited"


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for since, until in sorted(spans):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(until, merged[-1][1]))
        else:
            merged.append((since, until))
    return merged


def _lateness(evidence: Evidence) -> Iterator[float]:
    for row in evidence.rows.values():
        due = max(row.due, row.created)
        if due >= evidence.quiet + NORMAL_AFTER and row.attempt == 1 and row.started is not None:
            yield row.started - due


def _recoveries(evidence: Evidence) -> Iterator[float]:
    """From the death of a worker to the next try of each job that it had in its hands."""
    for tries in evidence.book.tries.values():
        for one, other in pairwise(tries):
            died = evidence.deaths.get(one.pid)
            if one.ended is None and died is not None and other.started > died:
                yield other.started - died
