"""A job scheduler for asyncio services that have PostgreSQL and want nothing else.

See ``Scheduler``; everything that is public is named here.
"""

import logging

from pg_scheduler.config import PollingConfig, VacuumConfig, VacuumPolicy, VacuumTrigger
from pg_scheduler.domain.context import CurrentJob, current_job
from pg_scheduler.domain.job import (
    ConflictResolution,
    Job,
    JobCounts,
    JobPriority,
    JobSpec,
    JobStatus,
    Worker,
)
from pg_scheduler.domain.periodic import PeriodicJobConfig, periodic
from pg_scheduler.domain.retry import RetryPolicy
from pg_scheduler.domain.tasks import job
from pg_scheduler.errors import (
    ConfigurationError,
    JobConflictError,
    MigrationChangedError,
    NameConflictError,
    NotRunningError,
    PayloadError,
    PoolClosedError,
    SchedulerError,
    SchemaError,
    SchemaForbiddenError,
    SchemaMissingError,
    SchemaTooNewError,
    TransientFault,
)
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.version import __version__

__all__ = [
    "ConfigurationError",
    "ConflictResolution",
    "CurrentJob",
    "Job",
    "JobConflictError",
    "JobCounts",
    "JobPriority",
    "JobSpec",
    "JobStatus",
    "MigrationChangedError",
    "NameConflictError",
    "NotRunningError",
    "PayloadError",
    "PeriodicJobConfig",
    "PollingConfig",
    "PoolClosedError",
    "RetryPolicy",
    "Scheduler",
    "SchedulerError",
    "SchemaError",
    "SchemaForbiddenError",
    "SchemaMissingError",
    "SchemaTooNewError",
    "TransientFault",
    "VacuumConfig",
    "VacuumPolicy",
    "VacuumTrigger",
    "Worker",
    "__version__",
    "current_job",
    "job",
    "periodic",
]

logging.getLogger("pg_scheduler").addHandler(logging.NullHandler())
