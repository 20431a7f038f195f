"""The checks of features that a part of the jobs use: kept results, callbacks and unique keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from pg_scheduler.steps.child_jobs import CHILD_KEEPS
from tools.chaos.evidence import Evidence, Row, attempt_of, committed_completions
from tools.chaos.jobs import ALERT, ALERTED, ALERTING, value_of
from tools.chaos.load import IN_VAIN
from tools.chaos.nemesis import MAX_STEP_S

CHILD_KEEP_S: Final = CHILD_KEEPS.total_seconds() - 2 * MAX_STEP_S
"""Seconds for which the result of a child is kept at least, while the server's clock is set forward too."""


def results_lost_or_wrong(evidence: Evidence) -> Iterator[str]:
    """Yield jobs whose kept result is missing, or is not that of the attempt that ended the job."""
    for job_id, row in evidence.rows.items():
        if row.status in ("completed", "failed") and _keeps(evidence, job_id):
            yield from _differences(evidence, row)
    for job_id in evidence.results:
        if not _keeps(evidence, job_id):
            yield f"{job_id} has a result, but keeps none"


def _keeps(evidence: Evidence, job_id: str) -> bool:
    request = evidence.requests.get(job_id)
    return evidence.is_child(job_id) if request is None else request.keeps


def _differences(evidence: Evidence, row: Row) -> Iterator[str]:
    result = evidence.results.get(row.job_id)
    if result is None:
        last = attempt_of(evidence, row)
        if (
            evidence.is_child(row.job_id)
            and last is not None
            and last.started < evidence.quiet - CHILD_KEEP_S
        ):
            return
        yield f"{row.job_id} is {row.status}, but has no result"
        return
    if (result.status, result.attempts) != (row.status, row.attempt):
        yield (
            f"{row.job_id} is {row.status} at attempt {row.attempt}, but its result is {result.status} at "
            f"attempt {result.attempts}"
        )
    expected = value_of(row.job_id, row.attempt, row.worker_id) if row.status == "completed" else None
    if result.value != expected:
        yield f"{row.job_id} has the value {result.value!r} instead of {expected!r}"
    if result.has_error != (row.status == "failed"):
        yield f"{row.job_id} is {row.status}, but its result has an error: {result.has_error}"


def callbacks_early_or_repeated(evidence: Evidence) -> Iterator[str]:
    """Yield callbacks that started before the end of a job that they wait for, in vain, or completed twice.

    A job has ended when the attempt that its row names has ended. Earlier attempts were fenced, and may
    run on. So may an attempt that completed its job in a transaction.
    """
    committed = {job_id for job_id, _, _ in committed_completions(evidence)}
    completions = Counter(record.details[0] for record in evidence.ledgers.events["JobCompleted"])
    for job_id, request in evidence.requests.items():
        if not request.after or job_id not in evidence.rows:
            continue
        if completions[job_id] > 1:
            yield f"{job_id} was completed {completions[job_id]} times"
        attempts = evidence.ledgers.attempts.get(job_id, ())
        if not attempts:
            continue
        if request.kind == IN_VAIN:
            yield f"{job_id} started, although a job failed whose completion it requires"
        else:
            waited_for = set(request.after) - committed
            yield from _early(evidence, job_id, waited_for, min(one.started for one in attempts))


def _early(evidence: Evidence, job_id: str, parents: Iterable[str], started: float) -> Iterator[str]:
    for parent_id in parents:
        row = evidence.rows.get(parent_id)
        last = None if row is None else attempt_of(evidence, row)
        if last is None or last.ended is None:
            yield f"{job_id} started, but {parent_id} has not ended"
        elif started < last.ended:
            yield f"{job_id} started {last.ended - started:.3f} s before the end of {parent_id}"


def alerts_lost_or_repeated(evidence: Evidence) -> Iterator[str]:
    """Yield failed jobs that have no alert or several, and alerts of jobs that did not fail."""
    alerts: dict[str, set[str]] = {}
    for record in evidence.ledgers.events[ALERTED]:
        alert_id, job_id = record.details
        alerts.setdefault(job_id, set()).add(alert_id)
    for row in evidence.rows.values():
        if row.job_name == ALERTING and row.status == "failed":
            found = alerts.pop(row.job_id, set())
            if len(found) != 1:
                yield f"{row.job_id} failed and has {len(found)} alerts: {sorted(found)}"
        elif row.job_name == ALERT and row.status != "completed":
            yield f"{row.job_id} ended as {row.status}"
    for job_id, found in alerts.items():
        yield f"{job_id} has not failed, but has the alerts {sorted(found)}"


def unique_keys_held_twice(evidence: Evidence) -> Iterator[str]:
    """Yield jobs that started before the end of another job with their unique key.

    A job has its key from its first attempt to the end of the attempt that its row names. Earlier attempts
    were fenced, and may run on.
    """
    spans: dict[str, list[tuple[float, float, str]]] = {}
    for row in evidence.rows.values():
        attempts = evidence.ledgers.attempts.get(row.job_id)
        last = attempt_of(evidence, row)
        if row.unique_key is None or not attempts or last is None or last.ended is None:
            continue
        span = min(one.started for one in attempts), last.ended, row.job_id
        spans.setdefault(row.unique_key, []).append(span)
    for key, found in spans.items():
        found.sort()
        for (_, ended, one), (started, _, other) in pairwise(found):
            if started < ended:
                yield f"{other} started {ended - started:.3f} s before the end of {one}: both have {key}"
