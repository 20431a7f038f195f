"""Decide the outcome of an attempt from its result.

``decide()`` maps a result (how the attempt ended) to an outcome (the change of the row, and the event). Most
completions need no outcome: those of jobs that keep no result and have no steps. ``COMPLETE`` is the outcome
of such a job where one is needed, such as after a report of progress, or after its completion was refused.

An attempt that a caller cancelled, or whose lease was lost, has a ``Revocation`` (worker/in_flight.py),
because its row then belongs to another attempt, or has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from pg_scheduler.base.foreign import class_name, guarded, message_of
from pg_scheduler.base.sqltext import storable
from pg_scheduler.base.status import JobStatus
from pg_scheduler.errors import DeadlineExceededError
from pg_scheduler.events import (
    JobCancelled,
    JobCompleted,
    JobDeadlineExceeded,
    JobEvent,
    JobFailed,
    JobLost,
    JobReleased,
    JobRetried,
    JobSnoozed,
    JobSuspended,
)
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.events.types import BY_CALLER
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.history import count_others, exception_entry, history_entry, step_of
from pg_scheduler.jobs.result import KeptResult, keep_seconds, kept_error, kept_value
from pg_scheduler.jobs.retry import (
    DEFAULT_RETRY_POLICY,
    RetryPolicy,
    delay_of,
    may_repeat,
    naming_leaf_of,
    reason_of,
    retry_of,
    snooze_of,
)
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.step_values import shown_name
from pg_scheduler.jobs.validation import check_delay

if TYPE_CHECKING:
    from pg_scheduler.jobs.steps import Suspension


T = TypeVar("T")

MakeEvent: TypeAlias = Callable[[str, str, int], JobEvent]
"""Makes an event from the id of the job, its name and the attempt."""

MAX_ERROR_LENGTH: Final = 10_000
"""Characters of an error message that are kept, with the name of its class."""

# -- how an attempt ended ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReturnResult:
    """The function returned."""

    value: object = None


@dataclass(frozen=True, slots=True)
class ErrorResult:
    """The function raised an exception or timed out.

    Attributes:
        log: The last lines that it logged.
        trace: The headers of its trace.
    """

    error: BaseException
    timed_out: bool = False
    log: tuple[str, ...] = ()
    trace: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DeadlineResult(ErrorResult):
    """The job passed its deadline, before the attempt began or while it ran. So there is no retry."""

    error: DeadlineExceededError


@dataclass(frozen=True, slots=True)
class UnrunnableResult:
    """No worker can run the row, so a retry would not help."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class SkippedResult:
    """Another attempt holds the advisory lock."""

    reason: str


@dataclass(frozen=True, slots=True)
class InterruptResult:
    """The attempt was stopped before its end, or could not begin. The job has not failed."""


@dataclass(frozen=True, slots=True)
class CrashResult:
    """The process or the event loop that ran the function ended. ``trace`` as in ``ErrorResult``."""

    reason: str
    max_crashes: int | None
    trace: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SuspendResult:
    """The attempt ended because the job waits for one or several steps. The first suspension ends first."""

    suspensions: tuple[Suspension, ...]


Result = (
    ReturnResult
    | ErrorResult
    | DeadlineResult
    | UnrunnableResult
    | SkippedResult
    | InterruptResult
    | CrashResult
    | SuspendResult
)

# -- what to write -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowChange:
    """Column values that settle an attempt.

    Attributes:
        status: The new status.
        error: The new error message; None keeps the old one, unless the job completed.
        delay_s: Seconds until a pending job is due; 0 keeps its execution time.
        retries: Added to the row's retries; negative after progress.
        crashes: Added to the row's crashes.
        entry: Appended to the row's history, as JSON text; None for an attempt that simply completed.
        kept: The result to store; None for a job that does not keep it.
        is_revoked: Whether the job was ended before, so that only the end of the attempt is reported.
        suspensions: What a pending job waits for. It is due at the end of the first one.
    """

    status: JobStatus
    error: str | None = None
    delay_s: float = 0.0
    retries: int = 0
    crashes: int = 0
    entry: str | None = None
    kept: KeptResult | None = None
    is_revoked: bool = False
    suspensions: tuple[Suspension, ...] = ()

    @property
    def characters(self) -> int:
        """The length of the kept result. The job decides it, whereas all other texts are cut."""
        return 0 if self.kept is None else self.kept.characters


@dataclass(frozen=True, slots=True)
class Outcome:
    """The change of the row of an attempt, and the event that follows.

    Attributes:
        change: The change of the row.
        make_event: Makes the event; None for no event.
        after_crashes: Makes the outcome of a crash from the number of earlier crashes of the job, which is
            read just before the outcome is written; None if the attempt did not crash.
    """

    change: RowChange
    make_event: MakeEvent | None
    after_crashes: Callable[[int], Outcome] | None = None

    def after_progress(self, claim: Claim) -> Outcome:
        """Return the outcome of an attempt that stored a step: retries before it do not count any more."""
        if not claim.retry_count:
            return self
        # The change is added to the number in the row. That becomes 1 if this attempt is retried, else 0.
        return replace(self, change=replace(self.change, retries=self.change.retries - claim.retry_count))

    def without_texts(self, reason: str) -> Outcome:
        """Return the outcome with a reason in place of the error and the value of the job.

        It is written instead of an outcome whose texts or value the table has refused.
        """
        change = self.change
        # A job that keeps its result keeps the error of a failure, or else a value.
        result = change.kept
        if result is not None and result.error is not None:
            result = kept_error(result.seconds, reason, None)
        elif result is not None:
            result = KeptResult(result.seconds, no_value_reason=reason)
        error = None if change.error is None else reason
        entry = history_entry("refused", message=reason)
        # ``after_crashes`` would make an outcome with the refused texts again.
        return replace(
            self, change=replace(change, error=error, entry=entry, kept=result), after_crashes=None
        )

    def with_hint(self, hint: str) -> Outcome:
        """Return the outcome of a failed job with a hint in its event."""
        if self.make_event is None:
            return self
        make_event = self.make_event

        def make(job_id: str, job_name: str, attempt: int) -> JobEvent:
            """Make the event, and add the hint."""
            event = make_event(job_id, job_name, attempt)
            return replace(event, hint=hint) if isinstance(event, JobFailed) else event

        return replace(self, make_event=make)

    def event_of(self, claim: Claim, *, accepted: bool = True, is_cancelled: bool = False) -> JobEvent | None:
        """Return the event about an attempt; None for an outcome without an event, accepted or not.

        Args:
            claim: The attempt.
            accepted: Whether the database accepted the outcome. If not, the attempt is lost, unless the job
                was cancelled meanwhile.
            is_cancelled: Whether the job was cancelled meanwhile.
        """
        if self.make_event is None:
            return None
        make: MakeEvent
        if accepted:
            make = self.make_event
        elif is_cancelled:
            make = partial(JobCancelled, reason=BY_CALLER)
        else:
            make = JobLost
        return make(claim.job_id, claim.job_name, claim.attempt)

    @classmethod
    def fail(
        cls,
        error: str,
        exception: BaseException | None = None,
        entry: str | None = None,
        kept: KeptResult | None = None,
    ) -> Outcome:
        """Fail the job permanently. ``exception`` goes into the log, ``entry`` into the history."""
        entry = entry or history_entry("error", message=error)
        change = RowChange(JobStatus.FAILED, error, entry=entry, kept=kept)
        return cls(change, partial(JobFailed, error=error, exception=exception))

    @classmethod
    def retry(
        cls, delay: timedelta, error: str, exception: BaseException | None = None, entry: str | None = None
    ) -> Outcome:
        """Make the job pending again, due after the delay. ``exception`` and ``entry`` as in ``fail()``."""
        entry = entry or history_entry("error", message=error)
        # The 1 is added to the retries in the row.
        change = RowChange(JobStatus.PENDING, error, delay.total_seconds(), retries=1, entry=entry)
        return cls(change, partial(JobRetried, error=error, delay=delay, exception=exception))

    @classmethod
    def snooze(cls, delay: timedelta, reason: str | None = None) -> Outcome:
        """Make the job pending again, due after the delay. The attempt does not count as a retry."""
        entry = history_entry("snoozed", message=reason)
        change = RowChange(JobStatus.PENDING, delay_s=delay.total_seconds(), entry=entry)
        return cls(change, partial(JobSnoozed, delay=delay))

    @classmethod
    def suspend(cls, suspensions: tuple[Suspension, ...]) -> Outcome:
        """Make the job pending again, to wait for its suspensions. The history has no entry about it."""
        first = suspensions[0]
        change = RowChange(JobStatus.PENDING, suspensions=suspensions)
        return cls(
            change, partial(JobSuspended, step=shown_name(first.step), kind=first.kind, until=first.until)
        )

    @classmethod
    def skip(cls, reason: str) -> Outcome:
        """Cancel the job with a reason."""
        entry = history_entry("skipped", message=reason)
        return cls(RowChange(JobStatus.CANCELLED, reason, entry=entry), partial(JobCancelled, reason=reason))

    @classmethod
    def crash(
        cls, error: str, max_crashes: int | None, trace: Mapping[str, str] | None = None, crashes: int = 0
    ) -> Outcome:
        """Make the job pending again at once, or fail it after too many crashes.

        ``crashes`` is the number of earlier crashes of the job.
        """
        change = reclaim_change(crashed=True, crashes=crashes, max_crashes=max_crashes)
        # The change has an error only after too many crashes: why the job is not run again.
        reason = change.error or error
        change = replace(change, error=reason, entry=history_entry("crashed", message=reason, trace=trace))
        event: MakeEvent = partial(JobFailed, error=reason)
        if change.status is JobStatus.PENDING:
            event = partial(JobRetried, error=reason, delay=timedelta(0))
        # The partial leaves one argument open: the number of earlier crashes.
        return cls(change, event, partial(cls.crash, error, max_crashes, trace))


LOCK_RETRY_DELAY: Final = timedelta(seconds=5)
"""The time after which a job that has begun requests its advisory lock again, if another attempt holds it."""

LOCK_AWAITED: Final = "another attempt holds the advisory lock"
"""The message in the history about an attempt that did not get the lock."""

COMPLETE: Final = Outcome(RowChange(JobStatus.COMPLETED), JobCompleted)
"""Complete the job, which keeps no result. The result buffer recognizes it."""

RELEASE: Final = Outcome(RowChange(JobStatus.PENDING, entry=history_entry("released")), JobReleased)
"""Make the job pending again at once. The attempt does not count as a retry."""

REVOKED: Final = Outcome(RowChange(JobStatus.CANCELLED, is_revoked=True), None)
"""Report the end of an attempt whose job had ended before, for example because a caller cancelled it."""


class Substitute(NamedTuple):
    """An outcome to write instead of one that the table refuses.

    Attributes:
        outcome: The outcome.
        with_consequences: Whether the consequences of the end are written with it; if not, a scan applies
            them later.
        description: What it is, for people.
    """

    outcome: Outcome
    with_consequences: bool
    description: str


def substitutes(
    outcome: Outcome, reason: str, state: str, error: Exception, *, deletes: bool = False
) -> list[Substitute]:
    """Return what may be written where the table refuses an outcome, in the order in which to try it.

    A trigger or a constraint may reject a text or a value of the job, an effect of its end such as an alert,
    or the status. So each is left out in turn; in the end the job fails with a text of the library alone.

    Args:
        outcome: The refused outcome.
        reason: Why it was refused, with the message of the server.
        state: The SQLSTATE, for a reason without that message.
        error: The error.
        deletes: Whether a completed job is deleted at once. No substitute deletes its job.
    """
    change = outcome.change
    ends_job = change.status is not JobStatus.PENDING
    choices: list[Substitute] = []
    # The table may refuse nothing but the deletion of the row.
    if deletes and change.status is JobStatus.COMPLETED:
        choices.append(Substitute(outcome, with_consequences=True, description="the job is deleted later"))
    if ends_job:
        description = "what follows from the end of the job is written later"
        choices.append(Substitute(outcome, with_consequences=False, description=description))
    # The job ended before, and only the end of its attempt is reported. There is no text to leave out, and no
    # job that could fail.
    if change.is_revoked:
        return choices
    # Without any of these, the outcome has no text or value that could be left out.
    if change.error or change.kept or change.entry:
        reduced_outcome = outcome.without_texts(reason)
        description = "it was written without the error and the value of the job"
        choices.append(Substitute(reduced_outcome, with_consequences=True, description=description))
        if ends_job:
            choices.append(Substitute(reduced_outcome, with_consequences=False, description=description))
    # The reason has the message of the server, which may contain what the table refuses. So the last choices
    # have only the code of the error.
    for text in (reason, f"outcome refused by the table, SQLSTATE {state}"):
        failure = Outcome.fail(text, error, history_entry("refused", message=text))
        choices += [
            Substitute(failure, with_consequences, "the job failed instead")
            for with_consequences in (True, False)
        ]
    return choices


QUARANTINE_REMEDY: Final = (
    "; max_crashes= permits no further attempt. A death counts for every job that the worker was running: if "
    "another job or the machine is the cause, raise max_crashes=. retry_job() runs this job once more."
)
"""The end of the error of a quarantined job: why it is not run again, and what to do."""

_REMEDY_START: Final = QUARANTINE_REMEDY.partition("= ")[0]


def quarantine_error(workers: int) -> str:
    """Return the error of a job that is quarantined because this number of workers died."""
    died = "1 worker died while it" if workers == 1 else f"{workers} workers died while they"
    return f"quarantined: {died} ran this job{QUARANTINE_REMEDY}"


def without_quarantine_remedy(error: str) -> str:
    """Return the error of a quarantined job for a page that has a button for its remedy.

    The text of a group of errors has only the first part of the remedy.
    """
    return error.partition(_REMEDY_START)[0].removesuffix(".")


def reclaim_change(*, crashed: bool, crashes: int, max_crashes: int | None) -> RowChange:
    """Return the row change of an orphaned job: one whose worker died, or does not hold it any more.

    The job becomes pending again, unless too many workers died while they ran it.

    Args:
        crashed: Whether its worker died.
        crashes: The number of workers that died before while they ran the job.
        max_crashes: The number that quarantines the job; None for no limit.
    """
    if not crashed:
        return RowChange(JobStatus.PENDING, entry=history_entry("lost"))
    if max_crashes is None or crashes + 1 < max_crashes:
        return RowChange(JobStatus.PENDING, crashes=1, entry=history_entry("crashed"))
    reason = quarantine_error(crashes + 1)
    return RowChange(JobStatus.FAILED, reason, crashes=1, entry=history_entry("crashed", message=reason))


# -- the decision --------------------------------------------------------------------------------------


def decide(  # noqa: PLR0911 - one for each result
    claim: Claim,
    result: Result,
    policy: RetryPolicy,
    *,
    spread: float,
    max_result_bytes: int | None = None,
    codec: PayloadCodec | None = None,
) -> Outcome:
    """Return the outcome of an attempt.

    Args:
        claim: The attempt.
        result: How it ended.
        policy: The exceptions that are retried, and the delay before a retry. The job is due again when the
            delay has passed by the clock of the database.
        spread: A random number from -1 to 1 for the policy's jitter.
        max_result_bytes: The maximum size of a kept value as JSON; None for no limit.
        codec: Encodes a kept value; None for none.
    """
    match result:
        case ReturnResult(value):
            return completion_of(claim, value, max_result_bytes, codec)
        # An attempt that raised a Snooze has not failed, so this case precedes that of all other errors.
        case ErrorResult(error) if (snooze := snooze_of(error)) is not None:
            return Outcome.snooze(delay_of(snooze))
        case DeadlineResult(error, _, log, trace):
            entry = exception_entry("timeout", error, log, trace, step_of(error))
            outcome = _fail(claim, error, entry)
            event = partial(
                JobDeadlineExceeded, error=describe(error), exception=error, deadline=error.deadline
            )
            return replace(outcome, make_event=event)
        case ErrorResult(error, timed_out, log, trace):
            # The reason of a Retry is its cause, which is stored instead.
            reason = reason_of(error)
            kind = "timeout" if timed_out else "error"
            entry = exception_entry(kind, reason, log, trace, step_of(error))
            # What was raised decides about a retry: the cause of a Retry might not permit one.
            if not may_retry(claim, error, policy):
                return _fail(claim, reason, entry)
            delay = retry_delay(claim, error, policy, retry_count=claim.retry_count, spread=spread)
            return Outcome.retry(delay, describe(reason), reason, entry)
        case UnrunnableResult(error):
            return _fail(claim, error, exception_entry("error", error))
        case SuspendResult(suspensions):
            return Outcome.suspend(suspensions)
        case SkippedResult() if claim.attempt > 1:
            # The job has begun, and released the lock when it slept, failed or was interrupted. Skipping it
            # would leave its work half done.
            return Outcome.snooze(LOCK_RETRY_DELAY, LOCK_AWAITED)
        case SkippedResult(reason):
            return Outcome.skip(reason)
        case InterruptResult():
            return RELEASE
        case CrashResult(reason, max_crashes, trace):
            return Outcome.crash(reason, max_crashes, trace)


def completion_of(
    claim: Claim, value: object, max_result_bytes: int | None, codec: PayloadCodec | None
) -> Outcome:
    """Return the outcome of an attempt that completed its job with a value; see ``decide()``."""
    seconds = keep_seconds(claim.options)
    if seconds is None:
        return COMPLETE
    result = kept_value(seconds, value, max_result_bytes, codec=codec, job_name=claim.job_name)
    return Outcome(RowChange(JobStatus.COMPLETED, kept=result), JobCompleted)


NOT_RETRIED: Final = (
    "not retried: max_retries is 0, the default; pass max_retries= if the function may run again"
)
"""The hint about a job that failed at its first error only because its task has the default of retries."""


def lacks_retries(claim: Claim, result: Result, policy: RetryPolicy) -> bool:
    """Return whether a job failed only because its row permits no retry: its error is one that is retried."""
    return (
        claim.max_retries == 0
        and isinstance(result, ErrorResult)
        and not isinstance(result, DeadlineResult)
        and is_retryable(claim, result.error, policy)
    )


def may_retry(claim: Claim, error: BaseException, policy: RetryPolicy) -> bool:
    """Return whether the job is retried after this error of an attempt."""
    return claim.retry_count < claim.max_retries and is_retryable(claim, error, policy)


def is_retryable(claim: Claim, error: BaseException, policy: RetryPolicy) -> bool:
    """Return whether a policy permits a retry after an error of a job, or of one of its steps."""
    # The policy may be a subclass of the user. If it raises an exception, the default policy decides.
    return guarded(
        lambda: may_repeat(error, policy),
        lambda kind: _broken_policy(claim, may_repeat(error, DEFAULT_RETRY_POLICY), kind),
    )


def retry_delay(
    claim: Claim, error: BaseException, policy: RetryPolicy, *, retry_count: int, spread: float
) -> timedelta:
    """Return the delay before a retry of a job, or of one of its steps.

    Args:
        claim: The attempt of the job.
        error: The error, in which a Retry may have chosen the delay. Without one, the policy gives it.
        policy: The policy. If that of a user raises an exception, the default policy gives the delay.
        retry_count: The number of retries before this one.
        spread: A random number from -1 to 1, by which the policy varies the delay.
    """
    retry = retry_of(error)
    if retry is not None:
        return delay_of(retry)
    return guarded(
        lambda: timedelta(seconds=check_delay("delay", policy.delay(retry_count, spread=spread))),
        partial(_broken_policy, claim, DEFAULT_RETRY_POLICY.delay(retry_count, spread=spread)),
    )


def _broken_policy(claim: Claim, default: T, kind: str) -> T:
    """Log that the retry policy raised an exception of this class; return the default value."""
    logger.error(
        "the retry policy of job %s (id %s) raised %s; the default policy applies",
        claim.job_name,
        claim.job_id,
        kind,
        extra=record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt),
    )
    return default


def _fail(claim: Claim, error: BaseException, entry: str) -> Outcome:
    """Return the outcome that fails a job with an error, which is also the result of a job that keeps one."""
    message, seconds = describe(error), keep_seconds(claim.options)
    result = None if seconds is None else kept_error(seconds, message, error)
    return Outcome.fail(message, error, entry, result)


def describe(error: BaseException) -> str:
    """Return an exception as text that PostgreSQL can hold: without NUL and surrogates.

    A group is described by its strongest exception and the number of the others.
    """
    leaf, suffix = naming_leaf_of(error), count_others(error)
    name, message = class_name(leaf), message_of(leaf)
    text = f"{name}: {message}" if message else name
    # The number of the others stays when the text is cut.
    return storable(text[: MAX_ERROR_LENGTH - len(suffix)] + suffix)
