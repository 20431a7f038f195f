"""The verdict, from three books that know nothing of each other.

They are what the enqueuers were told, what the jobs and workers wrote down, and what is in the table at the
end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tools.chaos.evidence import Evidence, Row, Verdict
from tools.chaos.jobs import PERIODIC
from tools.chaos.ledger import DONE, Try
from tools.chaos.load import BROKEN, CANCELLED, EXPIRING, PLAIN, REPLACED
from tools.chaos.order import by_a_steady_clock, inversions, too_early, windows
from tools.chaos.overlaps import overlaps

__all__ = ["judge"]

NORMAL_AFTER: Final = 5.0
NORMAL: Final = 1.0
"""So many seconds after the last fault nothing is later than this any more."""

ENDS: Final = {
    PLAIN: {"completed"},
    REPLACED: {"completed"},
    BROKEN: {"failed"},
    EXPIRING: {"completed", "expired"},
    CANCELLED: {"completed", "cancelled"},
}


def judge(evidence: Evidence) -> Verdict:
    """Look at everything."""
    verdict = Verdict(faults=dict(Counter(fault.kind for fault in evidence.faults)))
    fenced: list[Try] = []
    verdict.problems = {
        "lost": list(_lost(evidence)),
        "ended without having run": list(_unearned(evidence)),
        "overlapped": list(overlaps(evidence, fenced)),
        "completed by a loser": list(_losers(evidence)),
        "windows doubled or missed": list(windows(evidence)),
        "claimed before its time": list(too_early(evidence)),
        "claimed out of order": list(inversions(evidence)),
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
            if not evidence.is_replaced(job_id)
        ),
        "leases lost": len(words["LeaseLost"]),
        "jobs taken over": sum(len(word.about[0]) for word in words["JobsReclaimed"]),
        "windows": sum(row.job_name in PERIODIC for row in evidence.rows.values()),
    }
    verdict.recoveries = sorted(_recoveries(evidence))
    return verdict


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


def _losers(evidence: Evidence) -> Iterator[str]:
    """Whoever said that a job was completed must be in its row; and nothing runs after that."""
    for word in evidence.book.words["JobCompleted"]:
        job_id, attempt = word.about
        row = evidence.rows.get(job_id)
        if row is None:
            yield f"{job_id} was completed, and there is no row of it"
        elif evidence.is_replaced(job_id):
            continue
        elif (row.status, row.worker_id, row.attempt) != ("completed", word.worker_id, attempt):
            yield (
                f"{job_id} was completed by {word.worker_id} at attempt {attempt}, and its row says "
                f"{row.status} by {row.worker_id} at {row.attempt}"
            )
        elif any(one.attempt > attempt for one in evidence.book.tries.get(job_id, ())):
            yield f"{job_id} ran again after it was completed at attempt {attempt}"


def _lateness(evidence: Evidence) -> Iterator[float]:
    for row in evidence.rows.values():
        due = max(row.due, row.created)
        if due < evidence.quiet + NORMAL_AFTER or row.attempt != 1 or row.started is None:
            continue
        if by_a_steady_clock(evidence, row):
            yield row.started - due


def _recoveries(evidence: Evidence) -> Iterator[float]:
    """From the death of a worker to the next try of each job that it had in its hands."""
    for tries in evidence.book.tries.values():
        for one, other in pairwise(tries):
            died = evidence.deaths.get(one.pid)
            if one.ended is None and died is not None and other.started > died:
                yield other.started - died
