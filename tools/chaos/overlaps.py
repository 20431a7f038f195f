"""Two tries of one job at once: fenced, or a defect.

A try is *fenced* when the next one began before it was over: its worker had been stopped, cut off or declared
dead by then, and its result was refused. That is what leases and fences are for. The same without a fault, or
while the worker's lease was running and its connections stood, is an *overlap*, and a defect. A step of the
server's clock alone is no excuse: it ends every lease at once, but whoever lives is asked before it counts as
dead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tools.chaos.evidence import Evidence
from tools.chaos.ledger import Book, Try
from tools.chaos.nemesis import DROPPED, SERVER, SERVER_CLOCK, WORKER_CLOCK, Fault

__all__ = ["overlaps"]

TRUSTED: Final = 0.9
"""The part of its lease for which a worker trusts it."""

AFTERMATH: Final = 10.0
"""Seconds after a fault, beside a lease, in which its consequences still come: a transaction that was cut
off in its middle keeps its locks for that long."""

SILENCE: Final = 6.0
"""Seconds within which a worker that has no session any more is declared dead: a poll's two, one and a half
of patience, and what it takes until its jobs start elsewhere."""

HALF_OPEN: Final = 35.0
"""Seconds for which a call waits at most for an answer on a connection that leads nowhere."""

SESSIONS_END: Final = (
    "connections",
    "network",
    "server",
    "backends",
    "max_connections",
    "pool",
)
"""Faults in which a worker may be declared dead before its lease is over: nobody holds its liveness lock. Or,
when the server's clock is moved while another fault keeps the worker from answering, its lease is over by
that clock and not by the worker's own."""

CLOCKS: Final = (SERVER_CLOCK, WORKER_CLOCK)
"""Faults that explain no overlap alone."""


def overlaps(evidence: Evidence, fenced: list[Try]) -> Iterator[str]:
    """The defects; what leases and fences are for goes into the list."""
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
                fault.kind.startswith(SESSIONS_END)
                and other.started <= _felt_until(fault) + _notice(fault, evidence.lease)
                for fault in causes
            )
            if (
                all(fault.kind in CLOCKS for fault in causes)
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


def _notice(fault: Fault, lease: float) -> float:
    """Seconds until the others have seen it: a lease that is over is looked for each half of one."""
    return SILENCE + (lease if fault.kind == SERVER_CLOCK else 0)


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
