"""A job scheduler for asyncio services on PostgreSQL.

Start with ``Scheduler``. The other public modules are clock, dashboard, embedded, errors, events, inspect,
migrate, sync, testing and triggers, and those of the packages integrations and telemetry.
"""

import logging
import typing

from pg_scheduler_plugins import program as _program

# PID 1 would lose a SIGTERM that comes during the imports of the program, which take a second.
if _program.is_python_m("pg_scheduler"):
    _program.end_pid_1_at_sigterm()

from pg_scheduler.base import lazy_imports as _lazy_imports
from pg_scheduler.version import __version__

if typing.TYPE_CHECKING:
    from pg_scheduler.base.settings import PollingConfig, VacuumConfig, VacuumPolicy, VacuumTrigger
    from pg_scheduler.base.status import JobStatus
    from pg_scheduler.database.callers.adapter import ConnectionAdapter
    from pg_scheduler.database.session import Connection
    from pg_scheduler.errors import (
        ConfigurationError,
        ConnectionLostError,
        ConnectionRejectedError,
        DatabaseCopyError,
        DatabaseUnavailableError,
        DeadlineExceededError,
        DuplicateStepError,
        JobCancelledError,
        JobConflictError,
        JobEndedError,
        JobError,
        JobExpiredError,
        JobFailedError,
        JobLostError,
        JobNotFoundError,
        JobResult,
        MigrationChangedError,
        NameConflictError,
        NotRunningError,
        PayloadError,
        PoolClosedError,
        ResultUnavailableError,
        ScheduleConflictError,
        ScheduleNotFoundError,
        ScheduleOwnedByCodeError,
        SchedulerError,
        SchemaError,
        SchemaForbiddenError,
        SchemaMismatchError,
        SchemaMissingError,
        SchemaTooNewError,
        ServiceCancelledError,
        StepFailedError,
        TransientFault,
    )
    from pg_scheduler.jobs.call import JobCall, JobExecutor
    from pg_scheduler.jobs.chunk import Chunk, ChunkJob
    from pg_scheduler.jobs.codec import Codec
    from pg_scheduler.jobs.context import CurrentJob, current_job, job_state
    from pg_scheduler.jobs.decorator import job
    from pg_scheduler.jobs.history import AttemptError
    from pg_scheduler.jobs.injected import Injected
    from pg_scheduler.jobs.limits import Limit
    from pg_scheduler.jobs.middleware import Middleware, ScheduledCall
    from pg_scheduler.jobs.model import (
        UNSET,
        AfterOutcome,
        Call,
        ConflictResolution,
        Job,
        JobCounts,
        JobFunction,
        JobPriority,
        Page,
        Worker,
        call,
    )
    from pg_scheduler.jobs.pause import TaskInfo
    from pg_scheduler.jobs.progress import JobProgress
    from pg_scheduler.jobs.retry import Abort, Retry, RetryPolicy, Snooze
    from pg_scheduler.jobs.sequences import Sequence
    from pg_scheduler.jobs.shares import Share
    from pg_scheduler.jobs.steps import Child, First, Sleep, StepCursor, Steps, Wait
    from pg_scheduler.jobs.streams import JobStream, StreamItem
    from pg_scheduler.jobs.task import JobSpec
    from pg_scheduler.jobs.unique import Unique
    from pg_scheduler.scheduler.scheduler import Scheduler
    from pg_scheduler.schedules.declared import PeriodicJobConfig
    from pg_scheduler.schedules.decorator import periodic
    from pg_scheduler.schedules.policies import CatchUp, Overlap
    from pg_scheduler.schedules.schedule import Schedule
    from pg_scheduler.worker.runners.process import ProcessExecutor
    from pg_scheduler.worker.runners.thread import ThreadExecutor

__all__ = [
    "UNSET",
    "Abort",
    "AfterOutcome",
    "AttemptError",
    "Call",
    "CatchUp",
    "Child",
    "Chunk",
    "ChunkJob",
    "Codec",
    "ConfigurationError",
    "ConflictResolution",
    "Connection",
    "ConnectionAdapter",
    "ConnectionLostError",
    "ConnectionRejectedError",
    "CurrentJob",
    "DatabaseCopyError",
    "DatabaseUnavailableError",
    "DeadlineExceededError",
    "DuplicateStepError",
    "First",
    "Injected",
    "Job",
    "JobCall",
    "JobCancelledError",
    "JobConflictError",
    "JobCounts",
    "JobEndedError",
    "JobError",
    "JobExecutor",
    "JobExpiredError",
    "JobFailedError",
    "JobFunction",
    "JobLostError",
    "JobNotFoundError",
    "JobPriority",
    "JobProgress",
    "JobResult",
    "JobSpec",
    "JobStatus",
    "JobStream",
    "Limit",
    "Middleware",
    "MigrationChangedError",
    "NameConflictError",
    "NotRunningError",
    "Overlap",
    "Page",
    "PayloadError",
    "PeriodicJobConfig",
    "PollingConfig",
    "PoolClosedError",
    "ProcessExecutor",
    "ResultUnavailableError",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "ScheduleConflictError",
    "ScheduleNotFoundError",
    "ScheduleOwnedByCodeError",
    "ScheduledCall",
    "Scheduler",
    "SchedulerError",
    "SchemaError",
    "SchemaForbiddenError",
    "SchemaMismatchError",
    "SchemaMissingError",
    "SchemaTooNewError",
    "Sequence",
    "ServiceCancelledError",
    "Share",
    "Sleep",
    "Snooze",
    "StepCursor",
    "StepFailedError",
    "Steps",
    "StreamItem",
    "TaskInfo",
    "ThreadExecutor",
    "TransientFault",
    "Unique",
    "VacuumConfig",
    "VacuumPolicy",
    "VacuumTrigger",
    "Wait",
    "Worker",
    "__version__",
    "call",
    "current_job",
    "job",
    "job_state",
    "periodic",
]

logging.getLogger("pg_scheduler").addHandler(logging.NullHandler())

_MODULES: typing.Final = {
    "pg_scheduler.base.settings": ("PollingConfig", "VacuumConfig", "VacuumPolicy", "VacuumTrigger"),
    "pg_scheduler.base.status": ("JobStatus",),
    "pg_scheduler.database.callers.adapter": ("ConnectionAdapter",),
    "pg_scheduler.database.session": ("Connection",),
    "pg_scheduler.errors": (
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
        "JobError",
        "JobExpiredError",
        "JobFailedError",
        "JobLostError",
        "JobNotFoundError",
        "JobResult",
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
    ),
    "pg_scheduler.jobs.call": ("JobCall", "JobExecutor"),
    "pg_scheduler.jobs.chunk": ("Chunk", "ChunkJob"),
    "pg_scheduler.jobs.codec": ("Codec",),
    "pg_scheduler.jobs.context": ("CurrentJob", "current_job", "job_state"),
    "pg_scheduler.jobs.decorator": ("job",),
    "pg_scheduler.jobs.history": ("AttemptError",),
    "pg_scheduler.jobs.injected": ("Injected",),
    "pg_scheduler.jobs.limits": ("Limit",),
    "pg_scheduler.jobs.middleware": ("Middleware", "ScheduledCall"),
    "pg_scheduler.jobs.model": (
        "UNSET",
        "AfterOutcome",
        "Call",
        "ConflictResolution",
        "Job",
        "JobCounts",
        "JobFunction",
        "JobPriority",
        "Page",
        "Worker",
        "call",
    ),
    "pg_scheduler.jobs.pause": ("TaskInfo",),
    "pg_scheduler.jobs.progress": ("JobProgress",),
    "pg_scheduler.jobs.retry": ("Abort", "Retry", "RetryPolicy", "Snooze"),
    "pg_scheduler.jobs.sequences": ("Sequence",),
    "pg_scheduler.jobs.shares": ("Share",),
    "pg_scheduler.jobs.steps": ("Child", "First", "Sleep", "StepCursor", "Steps", "Wait"),
    "pg_scheduler.jobs.streams": ("JobStream", "StreamItem"),
    "pg_scheduler.jobs.task": ("JobSpec",),
    "pg_scheduler.jobs.unique": ("Unique",),
    "pg_scheduler.scheduler.scheduler": ("Scheduler",),
    "pg_scheduler.schedules.declared": ("PeriodicJobConfig",),
    "pg_scheduler.schedules.decorator": ("periodic",),
    "pg_scheduler.schedules.policies": ("CatchUp", "Overlap"),
    "pg_scheduler.schedules.schedule": ("Schedule",),
    "pg_scheduler.worker.runners.process": ("ProcessExecutor",),
    "pg_scheduler.worker.runners.thread": ("ThreadExecutor",),
}
"""The public names by the module that defines them: the same as in the imports above."""

__getattr__, __dir__ = _lazy_imports.lazy_names(
    __name__, _MODULES, submodules=("clock", "errors", "events", "migrate", "triggers")
)
