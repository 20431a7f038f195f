"""Exit codes, and which error leads to which of them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from pg_scheduler.errors import (
    ConnectionRejectedError,
    DatabaseUnavailableError,
    JobConflictError,
    JobNotFoundError,
    MigrationChangedError,
    PoolClosedError,
    ScheduleConflictError,
    ScheduleNotFoundError,
    ScheduleOwnedByCodeError,
    SchemaForbiddenError,
    SchemaMismatchError,
    SchemaMissingError,
    SchemaTooNewError,
)

__all__ = ["CommandError", "ExitCode", "exit_code_of"]


class ExitCode(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    NEGATIVE = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNAVAILABLE = 5
    SCHEMA = 6
    TIMEOUT = 7
    INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot do what it was asked to; the message is for the user.

    Attributes:
        code: The exit code.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code: Final = code


_CODES: Final[tuple[tuple[type[Exception], ExitCode], ...]] = (  # the first match counts
    (JobNotFoundError, ExitCode.NOT_FOUND),
    (ScheduleNotFoundError, ExitCode.NOT_FOUND),
    (JobConflictError, ExitCode.REFUSED),
    (ScheduleConflictError, ExitCode.REFUSED),
    (ScheduleOwnedByCodeError, ExitCode.REFUSED),
    (SchemaForbiddenError, ExitCode.REFUSED),
    (SchemaMismatchError, ExitCode.REFUSED),
    (MigrationChangedError, ExitCode.REFUSED),
    (SchemaMissingError, ExitCode.SCHEMA),
    (SchemaTooNewError, ExitCode.SCHEMA),
    (PoolClosedError, ExitCode.UNAVAILABLE),
    (ConnectionRejectedError, ExitCode.REFUSED),  # a wrong password is a permanent error
    (DatabaseUnavailableError, ExitCode.UNAVAILABLE),
    (ValueError, ExitCode.USAGE),  # an argument that the library rejects, such as a search
)


def exit_code_of(error: Exception) -> ExitCode | None:
    """Return the exit code of an error that is reported by its message, or None for any other error."""
    if isinstance(error, CommandError):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)
