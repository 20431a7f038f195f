"""The checks of families, clean-ups, deadlines, and steps that use up their retries."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from tools.chaos.durable_jobs import CALLED, RECEIVED
from tools.chaos.evidence import Evidence, Row
from tools.chaos.jobs import value_of
from tools.chaos.ledger import RAISED
from tools.chaos.load import BOUNDED
from tools.chaos.nemesis import SERVER_CLOCKS, WORKER_CLOCK
from tools.chaos.workflow_jobs import (
    BANK,
    BANK_RETRIES,
    CLEANED,
    CROPS,
    DETACHED,
    FAMILY,
    HARVEST,
    HARVESTED,
    MEMBERS,
    RESERVE,
    UNRELIABLE,
)

MAX_OVERRUN_S: Final = 60.0
"""Seconds after its deadline within which a job has ended: a scan finds it, and a fault may delay that."""

ROUNDING_S: Final = 0.5
"""Seconds by which the clocks of the caller and the server may differ."""


def families_changed_in_part(evidence: Evidence) -> Iterator[str]:
    """Yield descendants of cancelled jobs that are not cancelled, detached ones that are, and odd harvests.

    A job that a cancellation has missed never ends. All that a harvest has received are the values of the
    last attempts of its children, which it retried.
    """
    for job_id, row in evidence.rows.items():
        if row.job_name == FAMILY:
            if row.status != "cancelled":
                yield f"{job_id} is {row.status}, although it was cancelled"
            for steps, status in ((MEMBERS, "cancelled"), (DETACHED, "completed")):
                for step in steps:
                    child = evidence.rows.get(f"{job_id}:{step}")
                    if child is not None and child.status != status:
                        yield f"{child.job_id} is {child.status} instead of {status}"
    harvested: dict[str, list[list[str | None]]] = defaultdict(list)
    for record in evidence.ledgers.events[HARVESTED]:
        harvested[record.details[0]].append(list(record.details[2]))
    for job_id, row in evidence.rows.items():
        if row.job_name == HARVEST and row.status == "completed":
            crops = [evidence.rows.get(f"{job_id}:{step}") for step in CROPS]
            expected = [None if crop is None else _value(crop) for crop in crops]
            if not harvested[job_id]:
                yield f"{job_id} is completed, but received nothing"
            for values in harvested[job_id]:
                if values != expected:
                    yield f"{job_id} received {values} instead of {expected}"


def clean_ups_lost_or_repeated(evidence: Evidence) -> Iterator[str]:
    """Yield cancelled jobs that had begun without one clean-up, and clean-ups without a stored step."""
    clean_ups: dict[str, set[str]] = defaultdict(set)
    reserved: dict[str, set[str | None]] = defaultdict(set)
    for record in evidence.ledgers.events[RECEIVED]:
        job_id, _, step, value = record.details
        if step == RESERVE:
            reserved[job_id].add(value)
    for record in evidence.ledgers.events[CLEANED]:
        clean_up_id, job_id, steps = record.details
        clean_ups[job_id].add(clean_up_id)
        passed = {value for name, value, is_omitted in steps if name == RESERVE and not is_omitted}
        is_omitted = any(is_omitted for name, _, is_omitted in steps if name == RESERVE)
        if not is_omitted and reserved[job_id] and passed != reserved[job_id]:
            yield f"{clean_up_id} was passed {passed} instead of {reserved[job_id]}"
    for job_id, row in evidence.rows.items():
        if row.job_name == FAMILY:
            ids = clean_ups.pop(job_id, set())
            if len(ids) != (row.status == "cancelled" and row.attempt > 0):
                state = f"{row.status} at attempt {row.attempt}"
                yield f"{job_id} is {state}, and has the clean-ups {sorted(ids)}"
            for clean_up_id in ids:
                clean_up = evidence.rows.get(clean_up_id)
                if clean_up is None or clean_up.status != "completed":
                    yield f"{clean_up_id} is {clean_up and clean_up.status} instead of completed"
    for job_id, ids in clean_ups.items():
        yield f"{job_id} is no cancelled job, and has the clean-ups {sorted(ids)}"


def deadlines_passed_or_early(evidence: Evidence) -> Iterator[str]:
    """Yield jobs that ended long after their deadline, or before it.

    The end is that of the row, by the server's clock, or that of the event. What the clock showed while it
    was stepped is judged by its true time. A worker that has not compared its clock since a step, as it does
    at each heartbeat, may end a job early.
    """
    steps_of_workers = [fault for fault in evidence.faults if fault.kind == WORKER_CLOCK]
    stepped = [fault for fault in evidence.faults if fault.kind in SERVER_CLOCKS]
    ends: dict[str, list[float]] = defaultdict(list)
    for record in evidence.ledgers.events["JobDeadlineExceeded"]:
        ends[record.details[0]].append(record.at)
    for job_id, request in evidence.requests.items():
        row = evidence.rows.get(job_id)
        if request.kind != BOUNDED or request.deadline is None or row is None or row.finished is None:
            continue
        finished = row.finished
        true_ends = [finished - fault.step for fault in stepped]
        during = [
            end
            for end, fault in zip(true_ends, stepped, strict=True)
            if fault.began - ROUNDING_S <= end <= fault.ended + ROUNDING_S
        ]
        ended = min([finished, *during, *ends[job_id]])
        if ended > request.deadline + MAX_OVERRUN_S:
            yield f"{job_id} ended {ended - request.deadline:.1f} s after its deadline"
        began = request.deadline - MAX_OVERRUN_S
        is_steady = not any(fault.began <= finished and began <= fault.ended for fault in stepped)
        is_compared = not any(
            fault.began <= finished <= fault.ended + evidence.lease for fault in steps_of_workers
        )
        is_early = finished < request.deadline - ROUNDING_S
        if is_early and is_steady and is_compared and not during:
            yield f"{job_id} ended {request.deadline - finished:.1f} s before its deadline"


def retries_of_steps_exceeded(evidence: Evidence) -> Iterator[str]:
    """Yield jobs whose step was called more or less often than its retries, failures and crashes allow.

    Each failed attempt of the job gives the step all of its retries again. A call during which an attempt is
    lost does not count, so each attempt that was interrupted may have one more.
    """
    calls = Counter(
        record.details[0] for record in evidence.ledgers.events[CALLED] if record.details[2] == BANK
    )
    suspensions = Counter(record.details[0] for record in evidence.ledgers.events["JobSuspended"])
    for job_id, row in evidence.rows.items():
        if row.job_name != UNRELIABLE:
            continue
        attempts = evidence.ledgers.attempts.get(job_id, ())
        raised = sum(one.outcome == RAISED for one in attempts)
        interrupted = max(0, len(attempts) - 1 - raised - suspensions[job_id])
        most = (BANK_RETRIES + 1) * (1 + raised) + interrupted
        if calls[job_id] > most:
            yield f"{job_id} called its step {calls[job_id]} times, and at most {most} are explained"
        if row.status == "completed" and calls[job_id] <= BANK_RETRIES:
            yield f"{job_id} called its step {calls[job_id]} times instead of {BANK_RETRIES + 1}"


def _value(row: Row) -> str | None:
    return value_of(row.job_id, row.attempt, row.worker_id) if row.status == "completed" else None
