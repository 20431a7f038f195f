"""Every error the library raises.

::

    SchedulerError
    ├── ConfigurationError (ValueError)      a setting that cannot be
    ├── JobConflictError (ValueError)        the job id exists and conflict_resolution is RAISE
    ├── PayloadError (TypeError, ValueError) arguments that JSON cannot carry
    ├── NameConflictError (ValueError)       two functions under one explicit name
    ├── NotRunningError (RuntimeError)       the call needs a started Scheduler
    ├── SchemaError
    │   ├── SchemaMissingError               the tables are not there: call initialize_db() or start()
    │   ├── SchemaForbiddenError             the role lacks a right: grant it, or migrate as the owner
    │   ├── SchemaTooNewError                the database was migrated by one this cannot work beside
    │   └── MigrationChangedError            an applied migration differs from the shipped one
    └── DatabaseUnavailableError             the database is unreachable or asks to retry
        └── PoolClosedError                  the pool was closed before the Scheduler was shut down

Wrong arguments are plain ``TypeError`` and ``ValueError``. A fault keeps what caused it in ``__cause__``.
"""

from __future__ import annotations

__all__ = [
    "ConfigurationError",
    "DatabaseUnavailableError",
    "JobConflictError",
    "MigrationChangedError",
    "NameConflictError",
    "NotRunningError",
    "PayloadError",
    "PoolClosedError",
    "SchedulerError",
    "SchemaError",
    "SchemaForbiddenError",
    "SchemaMissingError",
    "SchemaTooNewError",
    "TransientFault",
]


class SchedulerError(Exception):
    """The root of all errors of this library."""


class ConfigurationError(SchedulerError, ValueError):
    """A setting has a value that cannot be; the message names it, the value and the rule."""


class JobConflictError(SchedulerError, ValueError):
    """A job of this id exists already.

    Attributes:
        job_id: The id that was taken.
        status: The status the existing job had, as text; None when the same id came twice in one call.
    """

    def __init__(self, job_id: str, status: str | None) -> None:
        self.job_id = job_id
        self.status = status
        found = f"already exists with status {status!r}" if status else "comes more than once in this call"
        super().__init__(
            f"job id {job_id!r} {found}. Choose another id, leave it out, "
            "or pass conflict_resolution=ConflictResolution.IGNORE or REPLACE."
        )


class PayloadError(SchedulerError, TypeError, ValueError):
    """An argument of a job cannot be carried by JSON; the message starts with its path."""


class NameConflictError(SchedulerError, ValueError):
    """Two different functions were registered under one explicit name."""


class NotRunningError(SchedulerError, RuntimeError):
    """The call needs a Scheduler that has been started."""


class SchemaError(SchedulerError):
    """The tables in the database are not those this version works with."""


class SchemaMissingError(SchemaError):
    """The tables are not there: call ``await scheduler.initialize_db()`` or ``start()`` first."""


class SchemaForbiddenError(SchemaError):
    """The database role may not do what was asked of the tables: grant it, or migrate as their owner."""


class SchemaTooNewError(SchemaError):
    """A newer version of the library took away what this one uses: upgrade the code."""


class MigrationChangedError(SchemaError):
    """A migration recorded in the database is not the one this version ships under that number."""


class DatabaseUnavailableError(SchedulerError):
    """The database could not be reached, or asked to try again; the cause is in ``__cause__``.

    When only the answer was lost, what the call asked for has been done all the same.
    """


class PoolClosedError(DatabaseUnavailableError):
    """The pool was closed or terminated under the Scheduler, which stops: a closed pool never opens again."""


TransientFault = DatabaseUnavailableError
"""The former name of `DatabaseUnavailableError`, kept as an alias."""
