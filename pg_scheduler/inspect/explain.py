"""Explain why a job runs, waits or has ended: a pure function of facts.

The most decisive reasons come first: reasons that prevent a start, then reasons that delay it, then further
facts. A completed job has no reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.errors import (
    DeadlineExceededError,
    JobCancelledError,
    JobExpiredError,
    JobFailedError,
)
from pg_scheduler.facts.job_state import ended_state
from pg_scheduler.inspect.job_facts import JobFacts
from pg_scheduler.inspect.reasons import Explanation, Reason, ReasonCode, Verdict, loop_blocked
from pg_scheduler.inspect.store.workers import InspectedWorker
from pg_scheduler.inspect.texts import command as shell
from pg_scheduler.inspect.texts import counted, estimated, instant, later, length, listed, short
from pg_scheduler.inspect.timeline import retries_used
from pg_scheduler.inspect.waiting import explain_pending
from pg_scheduler.jobs.history import PARENT
from pg_scheduler.jobs.model import DEFAULT_GRACE_S, Job

PASSED_DEADLINE: Final = f"{DeadlineExceededError.__name__}: "
"""How the error of a job begins that has passed its deadline."""

_FAILED_CHILDREN: Final = tuple(
    f"{error.__name__}: " for error in (JobCancelledError, JobExpiredError, JobFailedError)
)
"""How the error of a job begins that waited for a job without success, as steps do for a child."""

MAX_STANDBY_LAG_S: Final = 1.0


def explain(facts: JobFacts) -> Explanation:
    """Return why a job runs, waits or has ended, and when it will probably start or end."""
    status = facts.job.status
    if status is JobStatus.COMPLETED:
        return Explanation(Verdict.COMPLETED, ())
    if status is JobStatus.RUNNING:
        explanation = Explanation(Verdict.RUNNING, tuple(_running(facts)), _end_of_attempt(facts))
    elif status.is_finished:
        explanation = Explanation(Verdict.ENDED, tuple(_ended(facts)))
    else:
        explanation = explain_pending(facts)
    return replace(
        explanation, reasons=(*explanation.reasons, *_about_schedule(facts), *_about_standby(facts))
    )


# -- jobs that run -------------------------------------------------------------------------------------


def _running(facts: JobFacts) -> Iterator[Reason]:
    """Yield what is wrong with the lease or the event loop, and where and for how long the attempt runs."""
    job = facts.job
    # The worker may have no row any more.
    worker = next((candidate for candidate in facts.workers if candidate.worker_id == job.worker_id), None)
    if job.lease_until is None or job.lease_until <= facts.now:
        yield _lease_expired(facts, worker)
    if worker is not None and worker.health.block is not None:
        yield loop_blocked([worker])
    running_for = "" if job.started_at is None else f" for {length(facts.now - job.started_at)}"
    p95_s = facts.run_p95_s
    usual = "" if p95_s is None else f"; 95 % of the attempts take at most {estimated(p95_s)}"
    where = "" if worker is None else f" on {worker.hostname}"
    yield Reason(
        ReasonCode.RUNNING,
        f"runs on worker {job.worker_id}{where}{running_for}{usual}",
        None,
        job.started_at,
    )
    if job.replacement:
        yield Reason(ReasonCode.REPLACED, "a new definition waits until this attempt ends", None)


def _lease_expired(facts: JobFacts, worker: InspectedWorker | None) -> Reason:
    """State that the lease of the job has expired, and when the job is reclaimed.

    ``worker`` is the worker of the attempt; None if it has no row any more.
    """
    lease_until = facts.job.lease_until
    expired = "" if lease_until is None else f" at {instant(lease_until)}"
    if worker is None:
        when = "; its worker has no row, so it is reclaimed within seconds"
    elif worker.is_alive:
        when = "; its worker is alive and keeps it: a transaction may hold its row, so that it is not renewed"
    elif worker.reclaim_at is not None and worker.reclaim_at > facts.now:
        when = f"; it is reclaimed within {length(worker.reclaim_at - facts.now)}"
    else:
        when = "; it is reclaimed within seconds"
    return Reason(
        ReasonCode.LEASE_EXPIRED,
        f"its lease expired{expired}{when}",
        "wait for a live worker to reclaim it, or start one",
        lease_until,
    )


def _end_of_attempt(facts: JobFacts) -> datetime | None:
    """Return when the attempt will probably end: 95 of 100 recent attempts of its name have ended by then.

    None if that is unknown, or if this time has passed.
    """
    if facts.run_p95_s is None or facts.job.started_at is None:
        return None
    end = later(facts.job.started_at, facts.run_p95_s)
    return end if end is not None and end > facts.now else None


# -- jobs that have ended ------------------------------------------------------------------------------


def _ended(facts: JobFacts) -> Iterator[Reason]:
    """Yield why the job expired, was cancelled or quarantined, or failed.

    A job is quarantined if too many workers died while they ran it.
    """
    job = facts.job
    retry = f"await scheduler.retry_job({job.job_id!r})"
    command = shell("jobs", "retry", arguments=[job.job_id])
    error = short(job.error_message) if job.error_message else None
    if job.status is JobStatus.EXPIRED:
        text = error or f"did not start before {instant(job.expires_at)}"
        if facts.slot_use:
            used = [f"{name!r} for {length(seconds)}" for name, seconds in facts.slot_use]
            text += f"; attempts that ended around then took slots: {listed(used)}"
        remedy = f"{retry}; schedule such jobs with a longer misfire grace time{_than_grace(job)}"
        yield Reason(ReasonCode.EXPIRED, text, remedy, job.finished_at, command)
    elif job.status is JobStatus.CANCELLED:
        text = error or "cancelled by a caller"
        newest = job.errors[-1] if job.errors else None
        # The newest entry of the history may be about the parent (a job that this one waited for) because of
        # which the job was cancelled. If the job was retried after an earlier end, the entry may be about
        # that end, at another time.
        is_about_parent = newest is not None and newest.outcome == PARENT
        if newest is not None and is_about_parent and newest.ended_at == job.finished_at and newest.message:
            text += f": {short(newest.message)}"
        yield Reason(ReasonCode.CANCELLED, text, retry, job.finished_at, command)
    elif job.error_message and ended_state(job.status, job.error_message) == "quarantined":
        remedy = f"read the log of the workers that died, correct the function, then {retry}"
        yield Reason(ReasonCode.QUARANTINED, job.error_message, remedy, job.finished_at, command)
    else:
        remedy = f"correct the cause, then {retry}"
        if job.error_message and job.error_message.startswith(_FAILED_CHILDREN):
            # Without its children, the job would meet the same failed child again.
            remedy = f"correct the cause, then await scheduler.retry_job({job.job_id!r}, children=True)"
            command = shell("jobs", "retry", "--children", arguments=[job.job_id])
        if job.deadline is not None and job.error_message and job.error_message.startswith(PASSED_DEADLINE):
            remedy = f"{retry}, which drops the deadline, or schedule such jobs with a later deadline="
        retries = f", {retries_used(job)}" if job.max_retries else ""
        error_part = f": {error}" if error else ""
        text = f"failed{retries}{error_part}"
        yield Reason(ReasonCode.FAILED, text, remedy, job.finished_at, command)


def _than_grace(job: Job) -> str:
    """Return the misfire grace time of an expired job, as the end of its remedy; the error may be cut."""
    grace = job.misfire_grace_time
    if grace is None:
        return ""
    default = ", the default" if grace == DEFAULT_GRACE_S else ""
    return f" than {counted(grace, 'second')}{default}, or with None for no limit"


# -- jobs of every status but completed ---------------------------------------------------------------


def _about_schedule(facts: JobFacts) -> Iterator[Reason]:
    """Yield why no further job of the job's schedule follows; nothing if one does, or without a schedule."""
    schedule_id = facts.job.schedule_id
    schedule = facts.schedule
    if schedule_id is None:
        return
    if schedule is None:
        yield Reason(
            ReasonCode.SCHEDULE_UNKNOWN,
            f"its schedule {schedule_id!r} does not exist any more, so no further job follows",
        )
    elif schedule.paused_at is not None:
        note = "" if schedule.note is None else f": {short(schedule.note)}"
        end = "" if schedule.paused_until is None else f" until {instant(schedule.paused_until)}"
        yield Reason(
            ReasonCode.SCHEDULE_PAUSED,
            f"its schedule {schedule_id!r} is paused{end}, so no further job follows{note}",
            f"await scheduler.schedules.resume({schedule_id!r})",
            schedule.paused_at,
            shell("schedules", "resume", arguments=[schedule_id]),
        )


def _about_standby(facts: JobFacts) -> Iterator[Reason]:
    """Yield how old the facts are, if they come from a standby that is behind the primary."""
    if facts.standby_lag_s is not None and facts.standby_lag_s > MAX_STANDBY_LAG_S:
        yield Reason(
            ReasonCode.STANDBY_LAG,
            f"this was read from a standby that is {length(facts.standby_lag_s)} behind",
            "ask again without read_pool=",
        )
