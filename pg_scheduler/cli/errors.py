"""Exit codes, the errors that lead to them, and the suggestions in errors about an unknown word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from importlib.util import find_spec
from typing import Final

from pg_scheduler.errors import (
    ConnectionRejectedError,
    DatabaseCopyError,
    DatabaseUnavailableError,
    JobConflictError,
    JobNotFoundError,
    MigrationChangedError,
    PoolClosedError,
    ScheduleConflictError,
    ScheduleNotFoundError,
    ScheduleOwnedByCodeError,
    SchedulerError,
    SchemaForbiddenError,
    SchemaMismatchError,
    SchemaMissingError,
    SchemaTooNewError,
)
from pg_scheduler.jobs.call_errors import Subject, message_for
from pg_scheduler.jobs.naming import most_similar
from pg_scheduler.jobs.task import UnfitArgumentsError


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


class UsageError(CommandError):
    """An argument is invalid, or arguments contradict each other."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.USAGE, message)


class NotFoundError(CommandError):
    """An argument names something that does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.NOT_FOUND, message)


class RefusedError(CommandError):
    """The present state does not allow the action."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.REFUSED, message)


def hint_at(word: str, candidates: Iterable[str], otherwise: str = "", *, title: str = "") -> str:
    """Return the end of an error about an unknown word: the word that was probably meant, else ``otherwise``.

    With a title, ``otherwise`` becomes the title and all known words. The end is empty if there is neither.
    """
    words = list(candidates)
    # None if no known word is similar.
    near = most_similar(word, words)
    if title:
        otherwise = f"{title}: {', '.join(words) or 'none'}"
    hint = otherwise if near is None else f"did you mean {near}?"
    return f"; {hint}" if hint else ""


EXTRAS: Final = {
    "dashboard": ("jinja2", "pygments", "starlette", "uvicorn"),
    "mcp": ("jinja2", "mcp", "pygments", "starlette", "uvicorn"),
    "metrics": ("prometheus-client",),
}
"""The packages of optional extras that commands need."""


def check_extra(user: str, extra: str) -> None:
    """Raise CommandError (USAGE) if a package of an extra is missing; ``user`` names what needs the extra."""
    packages = EXTRAS[extra]
    # The module of a package has underscores in place of the hyphens.
    if any(find_spec(package.replace("-", "_")) is None for package in packages):
        *first_packages, last_package = packages
        names = f"{', '.join(first_packages)} and {last_package}" if first_packages else last_package
        raise UsageError(f"{user} needs {names}; install the extra: pip install 'pg-scheduler[{extra}]'")


_CODES: Final[tuple[tuple[type[Exception], ExitCode], ...]] = (  # the first match counts
    (JobNotFoundError, ExitCode.NOT_FOUND),
    (ScheduleNotFoundError, ExitCode.NOT_FOUND),
    (JobConflictError, ExitCode.REFUSED),
    (ScheduleConflictError, ExitCode.REFUSED),
    (ScheduleOwnedByCodeError, ExitCode.REFUSED),
    (DatabaseCopyError, ExitCode.REFUSED),
    (SchemaForbiddenError, ExitCode.REFUSED),
    (SchemaMismatchError, ExitCode.REFUSED),
    (MigrationChangedError, ExitCode.REFUSED),
    (SchemaMissingError, ExitCode.SCHEMA),
    (SchemaTooNewError, ExitCode.SCHEMA),
    (PoolClosedError, ExitCode.UNAVAILABLE),
    (ConnectionRejectedError, ExitCode.REFUSED),  # a wrong password is a permanent error
    (DatabaseUnavailableError, ExitCode.UNAVAILABLE),
    (UnfitArgumentsError, ExitCode.USAGE),  # any other TypeError is a bug
    (ValueError, ExitCode.USAGE),  # an argument that the library rejects, such as a search
)


OPTION_REMEDIES: Final[Mapping[Subject, str]] = {
    "arguments": "pass --args and --kwargs that fit the signature of the function",
    "bounds": "pass a later --end",
    "conflict resolution": "omit --on-conflict",
    "deadline": "pass a later --deadline, or a duration such as 1h",
    "due time": "omit --at and --in",
    "id": "omit --id",
    "key of metadata": "choose another key",
    "named argument": "pass it in --kwargs",
    "policies": "pass --overlap allow or queue_all, or --catch-up latest",
    "size": "store them elsewhere and pass an id or a path",
    "value": "pass another value, or encode it as a text",
}
"""What a person who uses a command can do about an error of a call."""


def message_of(error: Exception, *, schema: str | None) -> str:
    """Return the message of an error, with commands and options in place of calls of the library."""
    # Commands that complete words need neither of these modules.
    from pg_scheduler.events.log import describe_refusal  # noqa: PLC0415
    from pg_scheduler.inspect.positions import PositionError  # noqa: PLC0415

    conflict = "or pass --on-conflict ignore or replace"
    match error:
        case JobConflictError(unique_key=None):
            problem = f"job id {error.job_id!r} already exists with status {error.status!r}"
            remedy = f"pass another --id, {conflict}"
        case JobConflictError():
            holder = f"job {error.job_id!r} with status {error.status!r}"
            problem = f"unique key {error.unique_key!r} is taken by {holder}"
            remedy = f"wait until that job has ended, {conflict}"
        case ScheduleConflictError(expected=None):
            problem = f"schedule {error.schedule_id!r} already exists"
            remedy = f"pass another --id, {conflict}"
        case ScheduleConflictError():
            problem = f"schedule {error.schedule_id!r} has version {error.version}, not {error.expected}"
            remedy = f"read it again with pg-scheduler schedules show {error.schedule_id}"
        case ScheduleNotFoundError():
            problem = f"schedule {error.schedule_id!r} does not exist"
            remedy = "pg-scheduler schedules list lists them"
        case PositionError():
            problem = f"--after is no position of {error.subject}: {error.text!r}"
            remedy = "pass the one that the command printed before"
        case SchemaMissingError():
            option = "" if schema is None else f"--schema {schema} "
            problem = error.problem
            remedy = f"run pg-scheduler {option}migrate"
        case SchedulerError() | CommandError():
            # The messages of other errors name no calls of the library.
            return message_for(error, OPTION_REMEDIES)
        case _:
            is_refused = _is_refused_change(error)
            return describe_refusal(error) if is_refused else message_for(error, OPTION_REMEDIES)
    return f"{problem}; {remedy}"


def exit_code_of(error: Exception) -> ExitCode | None:
    """Return the exit code of an error that is reported by its message, or None for any other error."""
    if isinstance(error, CommandError):
        return error.code
    # Some of these errors are of a class below, and of others only asyncpg has the class.
    if _is_refused_change(error):
        return ExitCode.REFUSED
    # The first class counts that the error is an instance of.
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


def _is_refused_change(error: Exception) -> bool:
    """Return whether a trigger or a constraint of the application refused the change of a row."""
    from pg_scheduler.database.faults import is_refused_change  # noqa: PLC0415 - not needed to complete words

    return is_refused_change(error)
