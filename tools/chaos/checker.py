"""The checks, from three independent sources.

The sources are the answers that the enqueuers received, the ledgers of jobs and workers, and the table at
the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tools.chaos.channels import broadcasts_in_part, items_lost_or_repeated, messages_lost_or_moved
from tools.chaos.durable import (
    children_lost_or_repeated,
    choices_lost_or_changed,
    effects_repeated_or_lost,
    passed_results_missing_or_wrong,
    signals_lost_or_replaced,
    steps_repeated_or_lost,
)
from tools.chaos.durable_jobs import CHOICE, ORDERS, SHARED, SUMMARIES, THREAD_ORDER
from tools.chaos.evidence import Evidence, Verdict, attempt_of, committed_completions
from tools.chaos.families import (
    clean_ups_lost_or_repeated,
    deadlines_passed_or_early,
    families_changed_in_part,
    retries_of_steps_exceeded,
)
from tools.chaos.features import (
    alerts_lost_or_repeated,
    callbacks_early_or_repeated,
    results_lost_or_wrong,
    unique_keys_held_twice,
)
from tools.chaos.jobs import ALERT, ENDLESS, KEYED, LIMITED, PERIODIC, RATED, SCHEDULED, UNIQUE
from tools.chaos.ledger import DONE, Attempt
from tools.chaos.limits import limits_exceeded
from tools.chaos.load import (
    BOUNDED,
    BROKEN,
    CALLBACK,
    CANCELLED,
    EXPIRING,
    IN_VAIN,
    PLAIN,
    REPLACED,
    ROLLED_BACK,
)
from tools.chaos.nemesis import MACHINE_STALLED
from tools.chaos.order import (
    AffectedPeriods,
    claimed_at_steady_clock,
    early_claims,
    inversions,
    repeated_or_missing_fire_times,
)
from tools.chaos.overlaps import overlaps
from tools.chaos.schedules import overlapping_or_stopped
from tools.chaos.turns import (
    chunks_too_large_or_mixed,
    debounced_calls_lost_or_moved,
    sequences_out_of_order,
)
from tools.chaos.workflow_jobs import FAMILY, GATHERED, SEQUENCES

RECOVERY_S: Final = 5.0
MAX_LATENESS_S: Final = 1.0
"""Seconds by which a job may be late, from `RECOVERY_S` seconds after the last fault or stall on."""

EXPECTED_STATUS: Final[dict[str, set[str]]] = {
    PLAIN: {"completed"},
    REPLACED: {"completed"},
    BROKEN: {"failed"},
    EXPIRING: {"completed", "expired"},
    CANCELLED: {"completed", "cancelled"},
    CALLBACK: {"completed"},
    IN_VAIN: {"cancelled"},
    ROLLED_BACK: set(),
    BOUNDED: {"failed"},
}


def judge(evidence: Evidence) -> Verdict:
    """Check every guarantee."""
    verdict = Verdict(faults=dict(Counter(fault.kind for fault in evidence.faults)))
    fenced: list[Attempt] = []
    verdict.problems = {
        "lost": list(_lost(evidence)),
        "finished without having run": list(_unsupported_completions(evidence)),
        "overlaps": list(overlaps(evidence, fenced)),
        "stale writes": list(_stale_writes(evidence)),
        "fire times duplicated or missed": list(repeated_or_missing_fire_times(evidence)),
        "results lost or wrong": list(results_lost_or_wrong(evidence)),
        "callbacks early or repeated": list(callbacks_early_or_repeated(evidence)),
        "schedules overlapping or stopped": list(overlapping_or_stopped(evidence)),
        "limits exceeded": list(limits_exceeded(evidence)),
        "unique keys held twice": list(unique_keys_held_twice(evidence)),
        "steps repeated or lost": list(steps_repeated_or_lost(evidence)),
        "effects repeated or lost": list(effects_repeated_or_lost(evidence)),
        "choices lost or changed": list(choices_lost_or_changed(evidence)),
        "alerts lost or repeated": list(alerts_lost_or_repeated(evidence)),
        "changes not read from the publication": list(evidence.unread),
        "signals lost or replaced": list(signals_lost_or_replaced(evidence)),
        "children lost or repeated": list(children_lost_or_repeated(evidence)),
        "passed results missing or wrong": list(passed_results_missing_or_wrong(evidence)),
        "families changed in part": list(families_changed_in_part(evidence)),
        "clean-ups lost or repeated": list(clean_ups_lost_or_repeated(evidence)),
        "deadlines passed, or ends before them": list(deadlines_passed_or_early(evidence)),
        "retries of steps exceeded": list(retries_of_steps_exceeded(evidence)),
        "items of streams lost or repeated": list(items_lost_or_repeated(evidence)),
        "messages lost or moved": list(messages_lost_or_moved(evidence)),
        "broadcasts in part": list(broadcasts_in_part(evidence)),
        "sequences out of order": list(sequences_out_of_order(evidence)),
        "debounced calls lost or moved": list(debounced_calls_lost_or_moved(evidence)),
        "chunks too large or mixed": list(chunks_too_large_or_mixed(evidence)),
        "claimed early": list(early_claims(evidence)),
        "claimed out of order": list(inversions(evidence)),
        "workers that stopped by themselves": list(evidence.unexpected_exits),
        "unhandled errors": [
            *evidence.unhandled,
            *(str(record.details) for record in evidence.ledgers.events["Unhandled"]),
        ],
    }
    verdict.late = sorted(_lateness(evidence))
    if evidence.timed:
        verdict.problems["late after the faults"] = [
            f"{late:.2f} s late" for late in verdict.late if late > MAX_LATENESS_S
        ]
    attempts = evidence.ledgers.attempts
    events = evidence.ledgers.events
    verdict.figures = {
        "jobs": len(evidence.rows),
        "confirmed by `schedule()`": sum(request.confirmed for request in evidence.requests.values()),
        "attempts": sum(map(len, attempts.values())),
        "fenced": len(fenced),
        "finished twice": sum(
            sum(one.outcome == DONE for one in attempts.get(job_id, ())) > 1
            for job_id in evidence.rows
            if not evidence.is_replaced(job_id)
        ),
        "leases lost": len(events["LeaseLost"]),
        "jobs reclaimed": sum(len(record.details[0]) for record in events["JobsReclaimed"]),
        "results kept": len(evidence.results),
        "callbacks": sum(bool(request.after) for request in evidence.requests.values()),
        "jobs of schedules": sum(row.job_name in SCHEDULED for row in evidence.rows.values()),
        "jobs cancelled by their schedule": sum(
            row.job_name in SCHEDULED and row.status == "cancelled" for row in evidence.rows.values()
        ),
        "jobs of limited tasks": sum(
            row.job_name in (LIMITED, RATED, KEYED) for row in evidence.rows.values()
        ),
        "unique jobs": sum(row.job_name == UNIQUE for row in evidence.rows.values()),
        "orders of ten steps": sum(row.job_name in ORDERS for row in evidence.rows.values()),
        "orders in threads": sum(row.job_name == THREAD_ORDER for row in evidence.rows.values()),
        "orders resumed at a child that failed": len(
            {record.details[0] for record in events["JobFailed"]}
            & {row.job_id for row in evidence.rows.values() if row.job_name in ORDERS}
        ),
        "children": sum(map(evidence.is_child, evidence.rows)),
        "suspensions": len(events["JobSuspended"]),
        "signals": sum(len(request.signals) for request in evidence.requests.values()),
        "jobs completed in a transaction": len(committed_completions(evidence)),
        "jobs that were passed results": sum(row.job_name in SUMMARIES for row in evidence.rows.values()),
        "jobs of two tenants": sum(row.job_name == SHARED for row in evidence.rows.values()),
        "jobs that exceeded their timeout": sum(row.job_name in ENDLESS for row in evidence.rows.values()),
        "choices": sum(row.job_name == CHOICE for row in evidence.rows.values()),
        "alerts": sum(row.job_name == ALERT for row in evidence.rows.values()),
        "families": sum(row.job_name == FAMILY for row in evidence.rows.values()),
        "children of families": sum(map(evidence.is_of_family, evidence.rows)),
        "jobs that passed their deadline": sum(
            request.kind == BOUNDED for request in evidence.requests.values()
        ),
        "items of streams": len(evidence.items),
        "messages": sum(len(request.messages) for request in evidence.requests.values()),
        "broadcasts": len(evidence.calls.broadcasts),
        "jobs of sequences": sum(row.job_name in SEQUENCES for row in evidence.rows.values()),
        "calls of debounced jobs": sum(map(len, evidence.calls.debounced.values())),
        "calls of chunks": len(events[GATHERED]),
        "attempts in chunks": sum(len(record.details[0]) for record in events[GATHERED]),
        "rows locked by transactions": sum(len(fault.rows) for fault in evidence.faults),
        "changes read from the publication": evidence.changes,
        "jobs deleted by the vacuum": evidence.deleted,
        "fire times": sum(row.job_name in PERIODIC for row in evidence.rows.values()),
    }
    verdict.recoveries = sorted(_recoveries(evidence))
    return verdict


def _lost(evidence: Evidence) -> Iterator[str]:
    for job_id, request in evidence.requests.items():
        row = evidence.rows.get(job_id)
        if row is None:
            if request.confirmed:
                yield f"{job_id} ({request.kind}) was scheduled, but has no row"
        elif row.status not in EXPECTED_STATUS[request.kind] or (
            request.cancelled and row.status != "cancelled"
        ):
            yield f"{job_id} ({request.kind}, cancelled {request.cancelled}) ended as {row.status}"
        elif request.kind == BROKEN and row.retry_count != row.max_retries:
            yield f"{job_id} failed after {row.retry_count} retries of {row.max_retries}"
        elif request.kind == REPLACED:
            last = attempt_of(evidence, row)
            if last is None or last.version not in request.versions:
                version = last and last.version
                yield f"{job_id} last ran as version {version} instead of {request.versions}"
    for row in evidence.rows.values():
        if row.status in ("pending", "running"):
            yield f"{row.job_id} ({row.job_name}) never ended: {row.status}, attempt {row.attempt}"


def _unsupported_completions(evidence: Evidence) -> Iterator[str]:
    """Yield completed rows without an attempt that completed under their token.

    A worker may die between a completion in a transaction and the end of the function.
    """
    committed = committed_completions(evidence)
    for row in evidence.rows.values():
        last = attempt_of(evidence, row)
        if row.status != "completed" or (row.job_id, row.attempt, row.worker_id) in committed:
            continue
        if last is None or last.outcome != DONE:
            yield f"{row.job_id} is completed, but attempt {row.attempt} of {row.worker_id} did not complete"


def _stale_writes(evidence: Evidence) -> Iterator[str]:
    """Yield completions that are not in their row, and attempts after a completion."""
    for record in evidence.ledgers.events["JobCompleted"]:
        job_id, attempt = record.details
        row = evidence.rows.get(job_id)
        if row is None:
            yield f"{job_id} was completed, but has no row"
        elif (
            evidence.is_replaced(job_id)
            or job_id in evidence.inserted_again
            or evidence.may_have_run_again(job_id)
        ):
            continue
        elif (row.status, row.worker_id, row.attempt) != ("completed", record.worker_id, attempt):
            yield (
                f"{job_id} was completed by {record.worker_id} at attempt {attempt}, but its row is "
                f"{row.status} by {row.worker_id} at {row.attempt}"
            )
        elif any(one.attempt > attempt for one in evidence.ledgers.attempts.get(job_id, ())):
            yield f"{job_id} ran again after it was completed at attempt {attempt}"


def _lateness(evidence: Evidence) -> Iterator[float]:
    stalls = (fault for fault in evidence.faults if fault.kind == MACHINE_STALLED)
    stalled = AffectedPeriods(stalls, RECOVERY_S)
    for row in evidence.rows.values():
        due = max(row.due, row.created)
        if due < evidence.quiet + RECOVERY_S or row.attempt != 1 or row.started is None:
            continue
        if evidence.was_blocked(row.job_id) or stalled.touch(due, row.started):
            continue
        if claimed_at_steady_clock(evidence, row):
            yield row.started - due


def _recoveries(evidence: Evidence) -> Iterator[float]:
    """Yield the seconds from the death of a worker to the next attempt of each of its jobs."""
    for attempts in evidence.ledgers.attempts.values():
        for one, other in pairwise(attempts):
            died = evidence.deaths.get(one.pid)
            if one.ended is None and died is not None and other.started > died:
                yield other.started - died
