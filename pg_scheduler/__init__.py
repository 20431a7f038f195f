"""A job scheduler for asyncio services on PostgreSQL.

Start with ``Scheduler``. The other public modules are clock, dashboard, embedded, errors, events, inspect,
migrate, sync, testing and triggers, and those of the packages integrations and telemetry.
"""

import logging

from pg_scheduler_plugins import program as _program

# PID 1 would lose a SIGTERM that comes during the imports below, which take a second.
if _program.is_python_m("pg_scheduler"):
    _program.end_pid_1_at_sigterm()

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
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.schedules.declared import PeriodicJobConfig
from pg_scheduler.schedules.decorator import periodic
from pg_scheduler.schedules.policies import CatchUp, Overlap
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.version import __version__
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

for _name in __all__:  # tracebacks, docs and pickles name the module that users import from
    if _name not in {"UNSET", "__version__", "AfterOutcome", "Connection", "Injected", "JobFunction"}:
        globals()[_name].__module__ = __name__
