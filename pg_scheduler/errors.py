"""The errors of the library.

::

    SchedulerError
    ├── ConfigurationError (ValueError)      an invalid setting
    ├── JobEndedError                        the job whose value was requested has none; see ``result``
    │   ├── JobCancelledError                it was cancelled; in the job itself, see raise_if_cancelled()
    │   ├── JobExpiredError                  it expired
    │   ├── JobFailedError                   it failed
    │   └── ResultUnavailableError           it completed, and its value was not kept or has another type
    ├── JobConflictError (ValueError)        the job id exists, or the unique key is taken
    ├── JobLostError                         the attempt does not hold its job any more
    ├── JobNotFoundError (LookupError)       no job has this id
    ├── DeadlineExceededError (TimeoutError) a job passed its deadline before it ended
    ├── DuplicateStepError (ValueError)      a job uses the name of a step for another one
    ├── StepFailedError                      the retries of a step are used up
    ├── ScheduleConflictError (ValueError)   the schedule exists, or was changed since it was read
    ├── ScheduleNotFoundError (LookupError)  no schedule has this id
    ├── ScheduleOwnedByCodeError (ValueError) the schedule is declared with @periodic
    ├── PayloadError (TypeError, ValueError) arguments that JSON or the codec rejects
    ├── NameConflictError (ValueError)       two functions with the same name
    ├── NotRunningError (RuntimeError)       the call needs a started Scheduler
    ├── SchemaError
    │   ├── SchemaMissingError               a table is missing: call initialize_db() or start()
    │   ├── SchemaMismatchError              a table differs: execute what the message names
    │   ├── SchemaForbiddenError             the role lacks a privilege: grant it, or migrate as the owner
    │   ├── SchemaTooNewError                a newer version migrated the database: upgrade the code
    │   └── MigrationChangedError            an applied migration differs from the shipped one
    ├── DatabaseCopyError                    the database is a copy: adopt it, or hold its jobs
    ├── ServiceCancelledError                the application or a job cancelled a task of the Scheduler
    └── DatabaseUnavailableError             no connection, no answer in time, or writes rejected
        ├── ConnectionLostError              the connection ended; another one may work at once
        ├── ConnectionRejectedError          the server, or a callable of the pool, rejects connections
        └── PoolClosedError                  the pool was closed before the Scheduler was shut down

Invalid arguments raise plain ``TypeError`` and ``ValueError``. An error keeps its cause in ``__cause__``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from pg_scheduler.base.annotations import UnusableAnnotationError
from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.base.public import public
from pg_scheduler.base.status import JobStatus
from pg_scheduler.base.text import remedies
from pg_scheduler.base.text.numbers import counted

if TYPE_CHECKING:
    import pydantic

    from pg_scheduler.base import validators
else:
    pydantic = LazyModule("pydantic")
    validators = LazyModule("pg_scheduler.base.validators")


__all__ = [
    "ConfigurationError",
    "ConnectionLostError",
    "ConnectionRejectedError",
    "DatabaseCopyError",
    "DatabaseUnavailableError",
    "DeadlineExceededError",
    "DuplicateStepError",
    "JobCancelledError",
    "JobConflictError",
    "JobEndedError",
    "JobExpiredError",
    "JobFailedError",
    "JobLostError",
    "JobNotFoundError",
    "MigrationChangedError",
    "NameConflictError",
    "NotRunningError",
    "PayloadError",
    "PoolClosedError",
    "ResultUnavailableError",
    "ScheduleConflictError",
    "ScheduleNotFoundError",
    "ScheduleOwnedByCodeError",
    "SchedulerError",
    "SchemaError",
    "SchemaForbiddenError",
    "SchemaMismatchError",
    "SchemaMissingError",
    "SchemaTooNewError",
    "ServiceCancelledError",
    "StepFailedError",
    "TransientFault",
]


T = TypeVar("T")


@public
class SchedulerError(Exception):
    """The base class of all errors of this library."""


@public
class ConfigurationError(SchedulerError, ValueError):
    """A setting is invalid, or a connection leads to another database. The message contains the values."""


@public
class JobEndedError(SchedulerError):
    """The job ended without a value.

    Attributes:
        result: The `JobResult`; None where the error was raised within the job.
    """

    def __init__(self, message: str = "", result: JobResult | None = None) -> None:
        super().__init__(message)
        self.result = result


@public
class JobCancelledError(JobEndedError):
    """The job was cancelled, or the attempt that runs in a thread should end."""


@public
class DeadlineExceededError(SchedulerError, TimeoutError):
    """The job passed its deadline before it ended.

    No call raises it: it is the error of the failed job, and so the ``__cause__`` of a `JobFailedError`.

    Attributes:
        deadline: The deadline.
    """

    def __init__(self, message: str, deadline: datetime) -> None:
        super().__init__(message)
        self.deadline: Final = deadline

    def __reduce__(self) -> tuple[type[DeadlineExceededError], tuple[str, datetime]]:
        """Return how to restore the error in another process."""
        return type(self), (str(self), self.deadline)


@public
class JobExpiredError(JobEndedError):
    """The job expired before it started."""


@public
class JobFailedError(JobEndedError):
    """The job failed. If it ran in this process, ``__cause__`` is its exception."""


@public
class ResultUnavailableError(JobEndedError):
    """The job completed, and its value was not kept or has another type; the message contains the reason."""


@public
class JobConflictError(SchedulerError, ValueError):
    """A job with this id already exists, or an unfinished one with this unique key.

    Within a job, a step raises it if another job has the id of its child, or if one that runs and keeps no
    result has the unique key of its child.

    Attributes:
        job_id: The id of the existing job.
        status: The status of the existing job, as text; None when the id or the key occurs twice in one call.
        unique_key: The unique key, if that is the reason; None if it is the id.
    """

    def __init__(
        self,
        job_id: str,
        status: str | None,
        unique_key: str | None = None,
        *,
        child_of: str | None = None,
        owner: str = "",
        remedy: str | None = None,
    ) -> None:
        self.job_id = job_id
        self.status = status
        self.unique_key = unique_key
        if child_of is not None and unique_key is not None:
            super().__init__(
                f"the child of {child_of} has the unique key {unique_key!r} of job {job_id!r}, which has the "
                f"status {status!r} and keeps no result; pass keep_result= where that job is scheduled, or "
                "let this one be retried until that has ended"
            )
            return
        if child_of is not None:
            super().__init__(
                f"the child of {child_of} needs the job id {job_id!r}, which is taken by {owner}; "
                "give the step another name, or delete that job and run this one again"
            )
            return
        if unique_key is not None:
            state = (
                f"is taken by job {job_id!r} with status {status!r}"
                if status
                else "occurs more than once in this call"
            )
            default_remedy = (
                "wait until that job has ended, or schedule the job with "
                "conflict_resolution=ConflictResolution.IGNORE or REPLACE"
            )
            super().__init__(f"unique key {unique_key!r} {state}; {remedy or default_remedy}")
            return
        state = f"already exists with status {status!r}" if status else "occurs more than once in this call"
        default_remedy = "pass another id, no id, or conflict_resolution=ConflictResolution.IGNORE or REPLACE"
        super().__init__(f"job id {job_id!r} {state}; {remedy or default_remedy}")


@public
class JobLostError(SchedulerError):
    """The attempt does not hold its job any more: it was cancelled, replaced, or another worker took it over.

    What the attempt wrote in the same transaction is rolled back.

    Attributes:
        job_id: The id.
    """

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"this attempt does not hold job {job_id!r} any more, and nothing was written; let it end"
        )


@public
class DuplicateStepError(SchedulerError, ValueError):
    """A job uses the name of a step twice in one attempt, or for another kind of step than before."""


@public
class StepFailedError(SchedulerError):
    """A step with ``retry=`` has failed, and is not retried any more.

    The call in which its retries were used up raises it, from the error of the function. If the job catches
    it and is suspended, or its worker dies, calls of the step in later attempts raise it again, without a
    call of the function, until the job has failed. These know only the text of the error, so they have no
    ``__cause__``.

    Attributes:
        step: The name of the step.
        error: The class and the message of the last error, at most 250 bytes.
        count: How often the function has failed.
    """

    def __init__(self, step: str, error: str, count: int) -> None:
        self.step = step
        self.error = error
        self.count = count
        times = "once" if count == 1 else counted(count, "time")
        super().__init__(
            f"step {step!r} failed {times}, the last time with {error}; its function is called again after "
            "the job has failed and is retried, or under another name"
        )

    def __reduce__(self) -> tuple[type[StepFailedError], tuple[str, str, int]]:
        """Return how to restore the error in another process."""
        return type(self), (self.step, self.error, self.count)


@public
class JobNotFoundError(SchedulerError, LookupError):
    """No job has this id: it never existed, or it was deleted after its retention.

    Attributes:
        job_id: The id.
    """

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"job {job_id!r} does not exist; schedule it first, or check whether the vacuum deleted it"
        )


@public
class ScheduleConflictError(SchedulerError, ValueError):
    """A schedule with this id already exists, or it was changed since it was read.

    Attributes:
        schedule_id: The id.
        version: The version of the existing schedule.
        expected: The version that the call expected; None if it wanted to add the schedule.
    """

    def __init__(self, schedule_id: str, version: int, *, expected: int | None = None) -> None:
        self.schedule_id = schedule_id
        self.version = version
        self.expected = expected
        if expected is None:
            message = (
                f"schedule {schedule_id!r} already exists; pass another id, "
                "or conflict_resolution=ConflictResolution.IGNORE or REPLACE"
            )
        else:
            message = (
                f"schedule {schedule_id!r} has version {version}, not {expected}; read it again with get()"
            )
        super().__init__(message)


@public
class ScheduleNotFoundError(SchedulerError, LookupError):
    """No schedule has this id.

    Attributes:
        schedule_id: The id.
    """

    def __init__(self, schedule_id: str) -> None:
        self.schedule_id = schedule_id
        super().__init__(f"schedule {schedule_id!r} does not exist; add it with schedules.add()")


@public
class ScheduleOwnedByCodeError(SchedulerError, ValueError):
    """The schedule is declared with ``@periodic``, so only the code can change its definition.

    Attributes:
        schedule_id: The id, which is the dedup key of the declaration.
    """

    def __init__(self, schedule_id: str) -> None:
        self.schedule_id = schedule_id
        super().__init__(
            f"schedule {schedule_id!r} is declared with @periodic, and the next start would undo the change; "
            "edit the declaration, or pass another schedule_id="
        )


@public
class PayloadError(SchedulerError, TypeError, ValueError):
    """JSON cannot represent an argument of a job: the message starts with its path. Or the codec failed."""


@public
class NameConflictError(SchedulerError, ValueError):
    """Two functions have the same explicit name, or the same ``module.qualname`` and different names."""


@public
class NotRunningError(SchedulerError, RuntimeError):
    """The call requires a started Scheduler."""


@public
class SchemaError(SchedulerError):
    """The tables in the database do not match this version of the library.

    Attributes:
        problem: What does not match, without the remedy.
        steps: The steps of the remedy, of which the message has the sentence.
    """

    def __init__(self, problem: str, *steps: str | remedies.RemedyStep) -> None:
        self.problem = problem
        self.steps = remedies.as_steps(steps)
        remedy = remedies.sentence_of(self.steps)
        super().__init__(problem if remedy is None else f"{problem}; {remedy}")


@public
class SchemaMissingError(SchemaError):
    """A table is missing: call ``await scheduler.initialize_db()`` or ``start()`` first.

    Attributes:
        problem: The missing object, without the remedy.
    """

    def __init__(
        self,
        problem: str,
        remedy: str = "call scheduler.initialize_db() or start(), or run pg-scheduler migrate",
    ) -> None:
        # An empty remedy is no step.
        steps = [remedy] if remedy else []
        super().__init__(problem, *steps)


@public
class SchemaMismatchError(SchemaError):
    """A table differs from the one that the migrations make; the message names the part and the remedy."""


@public
class SchemaForbiddenError(SchemaError):
    """The database role lacks a privilege: grant it, or migrate as the owner of the tables."""


@public
class SchemaTooNewError(SchemaError):
    """A newer version of the library removed a table or column that this version uses: upgrade the code."""


@public
class MigrationChangedError(SchemaError):
    """A migration recorded in the database differs from the shipped one of that number."""


@public
class DatabaseCopyError(SchedulerError):
    """The database is a copy of the one whose workers wrote its rows, so no worker starts in it.

    A worker would run the jobs and schedules of the original a second time. If this database replaces the
    original one, execute ``pg-scheduler adopt``, or pass ``on_copy="adopt"``. With ``--hold`` or
    ``on_copy="hold"``, all tasks and schedules are paused first.

    Attributes:
        database: The name of this database.
        original: The name of the other one; both may have the same.
    """

    def __init__(self, database: str, original: str) -> None:
        self.database = database
        self.original = original
        super().__init__(
            f"the database {database!r} is a copy of {original!r}, whose jobs and schedules would run a "
            "second time here; execute pg-scheduler adopt if it replaces the original one, or "
            "pg-scheduler adopt --hold to pause all tasks and schedules"
        )


@public
class ServiceCancelledError(SchedulerError):
    """The application or a job cancelled a task of the Scheduler, so the Scheduler stops."""


@public
class DatabaseUnavailableError(SchedulerError):
    """The database was unreachable, did not answer in time, or rejected writes; see ``__cause__``.

    If only the response was lost, the call has taken effect.
    """


@public
class ConnectionLostError(DatabaseUnavailableError):
    """The server, a proxy or the network ended the connection; see ``__cause__``.

    Another connection may work at once: ``pg_terminate_backend()``, ``idle_session_timeout`` and a restart of
    a pooler end single ones.
    """


@public
class ConnectionRejectedError(DatabaseUnavailableError):
    """The server rejected a connection, or a callable of the pool raised an exception; see ``__cause__``.

    ``start()`` raises it immediately. A running Scheduler retries until a connection succeeds.
    """


@public
class PoolClosedError(DatabaseUnavailableError):
    """The pool was closed while the Scheduler was running, so the Scheduler stops."""


TransientFault = DatabaseUnavailableError
"""The former name of `DatabaseUnavailableError`, kept as an alias."""


# -- the result that a JobEndedError carries, and that raises one ----------------------------------------


@public
@dataclass(frozen=True, slots=True)
class JobError:
    """The error with which a job ended, as text: the reader needs none of the worker's code."""

    type: str
    """The name of the exception class; empty if only the message was stored."""
    message: str
    """The message, at most 10,000 characters."""
    traceback: str | None = None
    """The last 16,000 characters of the traceback; None if there was none."""

    def __str__(self) -> str:
        """Return the type and the message."""
        return ": ".join(part for part in (self.type, self.message) if part)


@public
@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended.

    ``value`` of a completed job is what its function returned, as JSON carries it: a tuple becomes a
    list.
    """

    job_id: str
    """The id of the job."""
    status: JobStatus
    """COMPLETED, FAILED, CANCELLED or EXPIRED."""
    value: Any = None
    """The return value; None if there is none, or if it was not kept."""
    no_value_reason: str | None = None
    """Why a completed job has no value here: JSON cannot carry it, it is too large, or it was not kept."""
    error: JobError | None = None
    """The error of a job that did not complete."""
    attempts: int = 0
    """The number of claims of the job."""
    started_at: datetime | None = None
    """When the last attempt started; None if the job never ran."""
    finished_at: datetime | None = None
    """When the job ended."""
    expires_at: datetime | None = None
    """Until when the result is kept; None if it was not kept and was read from the job's row."""
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """The exception itself, if the job ran in this process and `run_job()` waited for it."""

    @overload
    def unwrap(self, kind: type[T]) -> T: ...
    @overload
    def unwrap(self, kind: None = None) -> Any: ...
    def unwrap(self, kind: type[Any] | None = None) -> Any:
        """Return the value of a completed job, or raise the error that describes another end.

        Args:
            kind: The type of the value, for pydantic; None for the value as JSON carries it.

        Raises:
            JobFailedError: The job failed.
            JobCancelledError: The job was cancelled.
            JobExpiredError: The job expired before it started.
            ResultUnavailableError: The job completed, and its value is not available or does not fit
                ``kind``.
            ConfigurationError: pydantic does not support ``kind``.

        Example:
            >>> from datetime import date
            >>> from pg_scheduler import JobResult, JobStatus
            >>> JobResult("sum:1", JobStatus.COMPLETED, value=3).unwrap()
            3
            >>> JobResult("day:1", JobStatus.COMPLETED, value="2030-01-01").unwrap(date)
            datetime.date(2030, 1, 1)
        """
        if self.status is JobStatus.COMPLETED:
            if self.no_value_reason is not None:
                raise ResultUnavailableError(
                    f"job {self.job_id!r} completed without a value: {self.no_value_reason}", self
                )
            return self.value if kind is None else self._value_as(kind)
        error_class = _ERRORS.get(self.status, JobFailedError)
        raise error_class(
            f"job {self.job_id!r} {self.status.value}: {self.error or 'no reason'}", self
        ) from self.exception

    def _value_as(self, kind: type[Any]) -> Any:
        """Return the value as this type; raise ResultUnavailableError if it does not fit."""
        try:
            return validators.validated(kind, self.value)
        except UnusableAnnotationError as error:
            raise ConfigurationError(f"kind={kind!r} of a result is no type for pydantic: {error}") from error
        except pydantic.ValidationError as error:
            raise ResultUnavailableError(
                f"the value of job {self.job_id!r} does not fit kind={kind!r}: {error}; pass a type that "
                "accepts it, or return another value",
                self,
            ) from error


_ERRORS: Final[Mapping[JobStatus, type[JobFailedError | JobCancelledError | JobExpiredError]]] = {
    JobStatus.FAILED: JobFailedError,
    JobStatus.CANCELLED: JobCancelledError,
    JobStatus.EXPIRED: JobExpiredError,
}
