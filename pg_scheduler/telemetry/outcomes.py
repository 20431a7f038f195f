"""How an attempt ended that raised an exception, as middleware of this library reports it."""

from __future__ import annotations

from pg_scheduler.base.foreign import is_a
from pg_scheduler.jobs.call import CrashedError, JobCall, RaisedError
from pg_scheduler.jobs.outcome import may_retry
from pg_scheduler.jobs.retry import snooze_of
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.tools import retry_policy_of
from pg_scheduler.worker.attempt_runner import timeout_result

ERRORS = frozenset({"failed", "retried", "crashed"})
"""The outcomes that are errors of the job."""


def outcome_of(scheduler: Scheduler, call: JobCall, raised: BaseException) -> tuple[str, BaseException]:
    """Return the outcome of an attempt whose code raised an exception, and the error that counts.

    That is the exception itself, but a ``TimeoutError`` for a timeout. The outcome is ``failed``,
    ``retried``, ``crashed`` (its process), ``snoozed`` (also if its job was suspended), ``cancelled``,
    ``lost`` (its lease), ``released`` (at a shutdown), or ``completed`` if its code had completed the job
    before.
    """
    if call.has_completed:
        return "completed", raised
    if snooze_of(raised) is not None:
        return "snoozed", raised
    if is_a(raised, CrashedError):
        return "crashed", raised
    # The reasons ``cancelled`` and ``lost`` are outcomes of the same name. A timeout is an error of the job;
    # see below. The reason ``middleware`` does not occur: it is set when all middleware has ended, and
    # middleware calls this function.
    reason = call.cancelled_by
    if reason is not None and reason != "timeout":
        other_names = {"shutdown": "released", "suspended": "snoozed"}
        return other_names.get(reason, reason), raised
    # An error that would end the task of the caller, such as a SystemExit, comes in a RaisedError.
    error = raised.error if is_a(raised, RaisedError) else raised
    if reason == "timeout":
        error = timeout_result(call.claim).error
    policy = retry_policy_of(scheduler, call.claim.function)
    outcome = "retried" if may_retry(call.claim, error, policy) else "failed"
    return outcome, error
