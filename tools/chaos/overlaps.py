"""Two attempts of one job at the same time: fenced, or a defect.

An attempt is *fenced* if the next one began before it ended, because its worker had been stopped,
disconnected or declared dead; its result was rejected. Leases and fencing tokens exist for this. The same
without a fault, or while the lease was valid and the connections worked, is an *overlap* and a defect. A
step of the server's clock alone is no excuse: it ends every lease at once, but a heartbeat is
requested from a worker before it counts as dead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tools.chaos.evidence import Evidence
from tools.chaos.ledger import Attempt, Ledgers
from tools.chaos.nemesis import (
    DROPPED,
    JOBS_LOCKED,
    MACHINE_STALLED,
    SCHEDULES_LOCKED,
    SERVER,
    SERVER_CLOCKS,
    WORKER_CLOCK,
    Fault,
)

TRUSTED_SHARE: Final = 0.9
"""The part of its lease for which a worker trusts it."""

AFTERMATH_S: Final = 10.0
"""Seconds after a fault, in addition to a lease, in which it has consequences: an interrupted transaction
keeps its locks for that long.
"""

DEATH_DETECTION_S: Final = 6.0
"""Seconds until a worker without a session is declared dead: 2 s of a poll, 1.5 s for the requested
heartbeat, and the time until its jobs start elsewhere.
"""

HALF_OPEN_TIMEOUT_S: Final = 35.0
"""Seconds after which a call on a half-open connection fails at the latest."""

SESSIONS_END: Final = (
    "connections",
    "network",
    "server",
    "backends",
    "max_connections",
    "pool",
)
"""Faults in which a worker may be declared dead before its lease expires, because its liveness lock is
released. If the server's clock moves while another fault keeps the worker from answering, its lease expires
by the server's clock and not by the worker's.
"""

NO_EXCUSES: Final = (*SERVER_CLOCKS, WORKER_CLOCK, JOBS_LOCKED, SCHEDULES_LOCKED)
"""Faults that alone explain no overlap."""


def overlaps(evidence: Evidence, fenced: list[Attempt]) -> Iterator[str]:
    """Yield the defects and append the fenced attempts to the list."""
    notified = _notified(evidence.ledgers)
    fences = Fences(evidence)
    for attempts in evidence.ledgers.attempts.values():
        for one, other in pairwise(attempts):
            if one.attempt == other.attempt:
                if one.job_id in evidence.inserted_again:
                    continue
                yield f"{one.job_id} was claimed twice as attempt {one.attempt}"
                continue
            end = one.ended if one.ended is not None else evidence.deaths.get(one.pid, float("inf"))
            if other.started >= end:
                continue
            was_notified = (one.job_id, one.attempt, one.worker_id) in notified or one.pid in evidence.deaths
            if not was_notified or not fences.may_run_on(one, other.started):
                causes = fences.causes(one, other.started)
                yield (
                    f"{one.job_id}: attempt {one.attempt} on {one.seat} ran for "
                    f"{end - other.started:.3f} s concurrently with attempt {other.attempt} on {other.seat}; "
                    f"notified: {was_notified}; faults: {', '.join(fault.kind for fault in causes) or 'none'}"
                )
            else:
                fenced.append(one)


class Fences:
    """Judges whether the worker of an attempt had lost its lease because of a fault."""

    def __init__(self, evidence: Evidence) -> None:
        self._faults = evidence.faults
        self._lease = evidence.lease
        self._leases = _Leases(evidence)

    def causes(self, one: Attempt, at: float) -> list[Fault]:
        """Return the faults by which the attempt may be fenced at this instant."""
        return [
            fault
            for fault in self._faults
            if fault.target in (SERVER, one.seat)
            and fault.began <= at <= _affected_until(fault) + _aftermath_s(fault, self._lease)
        ]

    def may_run_on(self, one: Attempt, at: float) -> bool:
        """Return whether the attempt may run although another one began at this instant."""
        causes = self.causes(one, at)
        was_disconnected = any(
            fault.kind.startswith(SESSIONS_END)
            and at <= _affected_until(fault) + _detection_s(fault, self._lease)
            for fault in causes
        )
        if all(fault.kind in NO_EXCUSES for fault in causes):
            return False
        return was_disconnected or not self._leases.is_trusted(one.worker_id, at)


def _affected_until(fault: Fault) -> float:
    return fault.ended + (HALF_OPEN_TIMEOUT_S if fault.kind == DROPPED else 0)


def _aftermath_s(fault: Fault, lease: float) -> float:
    """Return the seconds after a fault in which an attempt may begin elsewhere because of it.

    A worker that was stalled renews its lease as soon as it runs, so only a worker that was declared dead
    before loses its jobs.
    """
    return DEATH_DETECTION_S if fault.kind == MACHINE_STALLED else lease + AFTERMATH_S


def _detection_s(fault: Fault, lease: float) -> float:
    """Return the seconds until other workers detect the fault; they scan for it every half lease."""
    return DEATH_DETECTION_S + (lease if fault.kind in SERVER_CLOCKS else 0)


def _notified(ledgers: Ledgers) -> set[tuple[str, int, str]]:
    return {
        (*record.details[:2], record.worker_id)
        for event in ("JobLost", "JobCancelled")
        for record in ledgers.events[event]
    }


class _Leases:
    """The periods in which a worker trusted its lease, each from the start of a heartbeat."""

    def __init__(self, evidence: Evidence) -> None:
        self._seconds = evidence.lease * TRUSTED_SHARE
        losses: dict[str, list[float]] = {}
        for record in evidence.ledgers.events["LeaseLost"]:
            losses.setdefault(record.worker_id, []).append(record.at)
        self._requested: dict[str, list[float]] = {}
        for record in evidence.ledgers.events["heartbeat"]:
            requested = record.details[0]
            if not any(requested <= lost <= record.at for lost in losses.get(record.worker_id, ())):
                self._requested.setdefault(record.worker_id, []).append(requested)
        for instants in self._requested.values():
            instants.sort()

    def is_trusted(self, worker_id: str, at: float) -> bool:
        requested = self._requested.get(worker_id, [])
        index = bisect_right(requested, at)
        return index > 0 and at < requested[index - 1] + self._seconds
