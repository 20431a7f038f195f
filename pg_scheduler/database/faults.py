"""Classify the errors of database calls, by class, SQLSTATE or source, never by message text.

A transient error ends by itself: the connection broke, the server restarts, has no connection left, or asks
to run the transaction again. Any other error is a mistake or a broken database, and a retry would only hide
it.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

import asyncpg

from pg_scheduler.errors import (
    ConfigurationError,
    ConnectionLostError,
    ConnectionRejectedError,
    DatabaseUnavailableError,
    PayloadError,
    SchedulerError,
    SchemaError,
    SchemaForbiddenError,
    SchemaMissingError,
)
from pg_scheduler.events.log import LOCK_NOT_AVAILABLE

REFUSALS: Final = (asyncpg.PostgresError, SchemaError, PayloadError)
"""Errors of a statement that the database received and rejected."""


class UnstorableTextError(PayloadError):
    """A text has a character that the encoding of the database lacks."""


Change: TypeAlias = Literal["insert", "update", "insert or update"]
"""What a statement does to a row."""


class SuppressedChangeError(PayloadError):
    """A statement did not write a row that fulfils its condition: a trigger has returned NULL."""

    def __init__(self, triggers: Sequence[str] = (), *, change: Change = "update") -> None:
        names = f" ({', '.join(triggers)})" if triggers else ""
        super().__init__(
            f"the {change} of the row was suppressed; look for a BEFORE {change.upper()} trigger that "
            f"returns NULL{names}, a rule or a row security policy of the table"
        )


CERTIFICATE_FOLDER: Final = ".postgresql"
"""The folder of certificates in the home folder, as libpq and asyncpg name it."""

REFUSED_PAUSE_S: Final = 60.0
"""Seconds for which a service leaves out a row that the application refuses, and continues with others."""

RECORD_REFUSALS: Final = (
    *(asyncpg.PostgresError, SchemaForbiddenError, SchemaMissingError, UnstorableTextError),
)
"""Errors after which a service continues without a record that only people read."""

ROW_ERRORS: Final = (asyncpg.PostgresError, ValueError)
"""Errors that a row may cause by being read: in the server, or when its values are decoded here."""

INVALID_VALUES: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
"""Errors of a statement that reads values from a JSON document, which may be written by hand."""

FORBIDDEN_TO_ROLE: Final = asyncpg.InsufficientPrivilegeError
"""The error of a statement that this database role may not execute."""

LOST_STATEMENTS: Final = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
"""Errors of a prepared statement whose session is not the one that prepared it."""

TOO_LARGE: Final = {
    "scheduled_jobs_payload": "the arguments of a job exceed 16 MiB in the table, or its name 64 KiB",
    "scheduler_schedules_sizes": (
        "the arguments of a schedule exceed 16 MiB in the table, "
        "or its metadata or the name of its task 64 KiB"
    ),
}
"""The error messages for values that are too large, by constraint."""

TRANSIENT_CLASSES: Final = frozenset({"08", "40", "53", "57", "58", "72"})
"""Connection exception, transaction rollback, insufficient resources (disk, memory, connections), operator
intervention (shutdown, crash, not ready yet, cancelled statement), system error, snapshot too old."""

TRANSIENT_STATES: Final = frozenset({"25006", "25P03", "25P04", "55P03", "55006"})
"""Read-only transaction (a former primary or a standby), a transaction that the server ended because this
process was suspended in it, lock not available, object in use."""

PROGRAM_LIMIT: Final = "54000"
"""A limit of the program. Some are limits of a value or of a row, such as the size of an index row."""

FULL_QUEUE_ROUTINE: Final = "PreCommit_Notify"
"""The function of the server that refuses a commit with notifications, because its queue is full."""

SERVER_LIMIT_ROUTINES: Final = frozenset({FULL_QUEUE_ROUTINE, "GetNewTransactionId", "GetNewMultiXactId"})
"""The functions of the server that report a limit of the whole server: its queue of notifications is full, or
it assigns no numbers of transactions until old rows are frozen. A limit of a row has the same SQLSTATE, but
comes from other functions."""


POLICY_ROUTINE: Final = "ExecWithCheckOptions"
"""The function of the server that refuses a row because of a row security policy. The error of a missing
privilege has the same SQLSTATE, but comes from another function."""

PROCEDURAL: Final = "PL/"
FUNCTION_LANGUAGES: Final = ("SQL", PROCEDURAL)
"""What the context of an error of a function contains, whatever the language of the messages is."""

OWN_TRIGGER: Final = "scheduler_after_mark()"
"""The function of this library's only trigger, as the context of an error names it."""

INTERRUPTING_ROUTINE: Final = "ProcessInterrupts"
"""The function of the server that ends a statement or a session from outside, wherever the statement is."""

UNSTORABLE: Final = frozenset({"22021", "22P05"})
"""A text has a character that the encoding of the database lacks."""

_BYTE: Final = re.compile("0x([0-9a-f]{2})")
_ESCAPE: Final = re.compile(r"(?:\\u[0-9a-f]{4}){1,2}(?=(?:\.\.\.)?$)", re.IGNORECASE | re.MULTILINE)

LOST_STATES: Final = frozenset({"08003", "08006", "25P03", "25P04", "57P01", "57P02", "57P05"})
"""The connection ended: it failed, was idle too long, was terminated, or the server stopped."""

LOST_CLASSES: Final = (ConnectionResetError, BrokenPipeError)

ENDED_WHILE_IDLE: Final = (
    "the server, or a proxy before it, ended the connection while no statement ran on it, as by "
    "pg_terminate_backend(), idle_session_timeout, idle_in_transaction_session_timeout or a restart"
)
"""Replaces the text of asyncpg, which has two numbers of states and no reason. The server has sent a reason
before it ended the connection, but asyncpg does not report it."""

ENDED_DURING_CALL: Final = "the connection ended between two steps of a call"
"""Replaces the text of the AttributeError that asyncpg raises then, because it removed its protocol."""

DEADLOCK: Final = "40P01"
WAITS: Final = frozenset({DEADLOCK, LOCK_NOT_AVAILABLE})
"""A statement met a lock of another transaction, whether it or a trigger needed it."""

FORBIDDEN: Final = "42501"
READ_ONLY: Final = "25006"
SERIALIZATION_FAILURE: Final = "40001"
CONFLICTS: Final = frozenset({DEADLOCK, SERIALIZATION_FAILURE})
"""A transaction lost against another one. None of its statements can succeed any more, but all of them can in
a new transaction."""

STATE_REMEDIES: Final[Mapping[str, str]] = {
    READ_ONLY: "connect to the primary, or set default_transaction_read_only = off for this role and "
    "database; begin your own transaction READ WRITE",
    **dict.fromkeys(CONFLICTS, "repeat the transaction from its beginning"),
}
"""What a caller can do about some transient errors, by SQLSTATE."""

MISSING: Final = frozenset({"3F000", "42703", "42883", "42P01"})
"""Schema, column, function or table that does not exist."""

MISTAKES: Final = frozenset({"0A", "26", "42", "XX"})
"""Classes of errors of a statement itself, or of a broken database."""

FOREIGN_LIBRARIES: Final = frozenset({"django", "psycopg", "psycopg2", "sqlalchemy"})
"""Libraries of callers, whose errors have the classes of PEP 249."""

LIBRARIES: Final = frozenset({"asyncpg", *FOREIGN_LIBRARIES})

UNAVAILABLE: Final = frozenset({"InterfaceError", "InternalClientError", "OperationalError"})
"""Classes of PEP 249, and one of asyncpg. Without an SQLSTATE, such an error concerns the connection."""


def is_transient(error: BaseException) -> bool:
    """Return whether an error ends by itself, so that a later retry can succeed."""
    if isinstance(error, asyncpg.InvalidCachedStatementError):  # the table was altered
        return True
    # The first two characters of an SQLSTATE are its class.
    if state := sqlstate_of(error):
        return state[:2] in TRANSIENT_CLASSES or state in TRANSIENT_STATES or _is_limit_of_server(error)
    if isinstance(error, asyncpg.DataError | ValueError):  # an invalid argument, found before it was sent
        return False
    # These libraries may not be installed, so their classes are recognised by their names.
    if _library_of(error) in FOREIGN_LIBRARIES:
        classes = (*type(error).__mro__, *type(_source_of(error)).__mro__)
        return any(kind.__name__ in UNAVAILABLE for kind in classes)
    # InterfaceError: the connection or pool is closed. InternalClientError: the protocol was interrupted.
    return isinstance(
        error,
        OSError
        | TimeoutError
        | asyncpg.InterfaceError
        | asyncpg.InternalClientError
        | DatabaseUnavailableError,
    ) or has_ended_during_call(error)


def _is_limit_of_server(error: BaseException) -> bool:
    """Return whether the server has reached a limit that concerns all of its transactions, not a row."""
    return sqlstate_of(error) == PROGRAM_LIMIT and _routine_of(error) in SERVER_LIMIT_ROUTINES


def is_queue_full(fault: Exception) -> bool:
    """Return whether a commit failed because the server's queue of notifications is full."""
    source = fault.__cause__
    return source is not None and _is_limit_of_server(source) and _routine_of(source) == FULL_QUEUE_ROUTINE


def _routine_of(error: BaseException) -> str | None:
    """Return the function of the server that raised an error; None if the error does not name it."""
    source = _source_of(error)
    # asyncpg has it in the error, psycopg in ``diag``, and SQLAlchemy on asyncpg in the cause.
    for candidate in (source, getattr(source, "diag", None), getattr(source, "__cause__", None)):
        for attribute in ("server_source_function", "source_function"):
            name = getattr(candidate, attribute, None)
            if isinstance(name, str):
                return name
    return None


def has_ended_during_call(error: BaseException) -> bool:
    """Return whether asyncpg raised an AttributeError because a connection ended between two steps of a call.

    asyncpg removes the protocol of a connection that is closed or terminated, as by ``pool.terminate()``. If
    that happens between two steps of a call, such as PREPARE and EXECUTE, the second one finds None.
    """
    # A subclass is an error of user code, and to read its attributes may raise anything. Only an attribute of
    # None is missing because asyncpg has removed the protocol.
    if type(error) is not AttributeError or error.obj is not None:
        return False
    # The last frame is the one that raised the error.
    modules = [str(frame.f_globals.get("__name__")) for frame, _line in walk_tb(error.__traceback__)]
    return bool(modules) and modules[-1].partition(".")[0] == "asyncpg"


def sqlstate_of(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of an error of asyncpg or of a library of the caller; None if it has none."""
    source = _source_of(error)
    # No library raised it, and to read the attributes of an error of user code may raise anything.
    if source is None:
        return None
    state = getattr(source, "sqlstate", None) or getattr(source, "pgcode", None)
    return state if isinstance(state, str) else None


def constraint_of(error: BaseException) -> str | None:
    """Return the name of the constraint that a statement violated; None if the error has none."""
    source = _source_of(error)
    # asyncpg has it in the error, psycopg in ``diag``, and SQLAlchemy on asyncpg in the cause.
    for candidate in (source, getattr(source, "diag", None), getattr(source, "__cause__", None)):
        name = getattr(candidate, "constraint_name", None)
        if isinstance(name, str):
            return name
    return None


def _source_of(error: BaseException | None) -> Any:
    """Return the error of the driver, which SQLAlchemy and Django wrap; None if no library raised it."""
    match _library_of(error):
        case None:
            return None
        case "sqlalchemy":
            return getattr(error, "orig", None) or error
        case "django":
            return getattr(error, "__cause__", None) or error
        case _:
            return error


def _library_of(error: object) -> str | None:
    """Return the library that defines the class of an error or one of its bases; None if none does."""
    roots = (kind.__module__.partition(".")[0] for kind in type(error).__mro__)
    return next((root for root in roots if root in LIBRARIES), None)


REVEALING_CLASSES: Final = frozenset({"22", "23"})
"""Data exception, integrity constraint violation: their DETAIL shows the failing row with its arguments."""


def _remove_values(error: BaseException) -> None:
    """Remove the values of rows from an error, which may end in a log."""
    if _library_of(error) == "sqlalchemy" and hasattr(error, "hide_parameters"):
        # Otherwise its message contains the values of the statement.
        error.hide_parameters = True
    if (sqlstate_of(error) or "")[:2] not in REVEALING_CLASSES:
        return
    if isinstance(error, asyncpg.PostgresError):
        error.detail = None
    elif _library_of(error) in FOREIGN_LIBRARIES:
        # Their messages have the DETAIL in the lines after the first one. The message is the first argument
        # of such an exception, and no other one is kept.
        for exception in (error, _source_of(error)):
            exception.args = tuple(str(message).partition("\n")[0] for message in exception.args[:1])


NO_ANSWER: Final = (
    "no answer in time; the server is unreachable or overloaded, or another transaction holds a lock that "
    "the statement needs (see pg_locks)"
)


def _describe(error: BaseException) -> str:
    """Return the class and the message of an error."""
    # The class itself has a text about states, which its subclasses replace by texts for people.
    if type(error) is asyncpg.InternalClientError:
        return ENDED_WHILE_IDLE
    if has_ended_during_call(error):
        return ENDED_DURING_CALL
    text = _message_of(error)
    # A TimeoutError mostly has no text.
    if not text and isinstance(error, TimeoutError):
        text = NO_ANSWER
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _message_of(error: BaseException) -> str:
    """Return the message of an error, without the statement and the values that other libraries add."""
    if _library_of(error) in FOREIGN_LIBRARIES:
        return str(_source_of(error)).partition("\n")[0]
    return str(error)


def is_conflict(fault: Exception) -> bool:
    """Return whether a transaction lost against another one, and can run again at once."""
    return sqlstate_of(fault.__cause__) in CONFLICTS


def is_lock_timeout(fault: Exception) -> bool:
    """Return whether a statement failed because a row was locked. Its connection stays usable."""
    return sqlstate_of(fault.__cause__) == LOCK_NOT_AVAILABLE


def is_refusal(error: BaseException) -> bool:
    """Return whether a constraint or code of the application refused a row, so other rows may be written."""
    # raise_translated() raises this error for a missing privilege too, which is no refusal of a row.
    if isinstance(error, SchemaForbiddenError) and error.__cause__ is not None:
        return _is_of_application(error.__cause__)
    if isinstance(error, asyncpg.PostgresError):
        is_mistake = (error.sqlstate or "")[:2] in MISTAKES
        return _is_of_application(error) or not (is_mistake or _is_limit_of_server(error))
    return isinstance(error, PayloadError)


def is_refused_change(error: BaseException) -> bool:
    """Return whether a constraint or code of the application refused the change of a row that a person made.

    A value that cannot be stored is no such refusal: the person has to pass another one.
    """
    is_invalid_value = isinstance(error, PayloadError) and not isinstance(error, SuppressedChangeError)
    return is_refusal(error) and not is_invalid_value


def _is_of_application(error: BaseException) -> bool:
    """Return whether a trigger or a row security policy of the application raised an error.

    An error that a function raises has a context, which names the innermost function first. So the context
    shows the triggers of the application, if two other origins are excluded: the only trigger of this library
    that is such a function, and COPY, which adds lines of its own.

    A trigger chooses its SQLSTATE, which may be that of an outage although this server has none. But errors
    of a parallel worker of the server have a context too, in the language of the server. So an error with the
    SQLSTATE of an outage counts as one of a trigger only if its context names a language of functions.
    """
    routine = _routine_of(error)
    if routine == POLICY_ROUTINE:
        return True
    # The statement was interrupted, it waited for a lock, or it met a limit of the server. This can happen
    # within a trigger too, so the context does not show that the trigger has raised the error.
    is_interrupted = routine == INTERRUPTING_ROUTINE or sqlstate_of(error) in WAITS
    if is_interrupted or _is_limit_of_server(error):
        return False
    context: str = getattr(error, "context", None) or ""
    # A line about a function names its language, such as PL/pgSQL.
    lines = [line for line in context.splitlines() if not line.startswith("COPY ")]
    functions = [line for line in lines if PROCEDURAL in line]
    if functions and OWN_TRIGGER in functions[0]:
        return False
    if is_transient(error):
        return any(language in line for line in lines for language in FUNCTION_LANGUAGES)
    return bool(lines)


def is_read_only(fault: Exception) -> bool:
    """Return whether a statement failed because this session may not write."""
    return sqlstate_of(fault.__cause__) == READ_ONLY


def is_locked_out(fault: Exception) -> bool:
    """Return whether a transaction failed because of locks of others; a part of its work may succeed."""
    return is_lock_timeout(fault) or is_conflict(fault)


def may_be_of_one_change(error: Exception) -> bool:
    """Return whether one of several changes may have caused an error, so that the others may succeed."""
    return is_locked_out(error) or is_refusal(error)


def may_be_of_record(error: Exception) -> bool:
    """Return whether a record for people may have caused an error, so that the rest may succeed without it.

    A service writes such a record, as for the audit or a count of failures, together with a change of jobs.
    The table of the record may refuse it, may be missing, or may be locked by another transaction.
    """
    if isinstance(error, DatabaseUnavailableError):
        return is_locked_out(error)
    return isinstance(error, RECORD_REFUSALS)


def is_timeout(fault: DatabaseUnavailableError) -> bool:
    """Return whether a statement failed because it was not answered in time."""
    return isinstance(fault.__cause__, TimeoutError)


@contextmanager
def connecting(origin: str, server: Callable[[], str | None]) -> Iterator[None]:
    """Raise the errors of taking or returning a connection as errors of this library, with the address.

    The pool may call functions of its owner here. If these fail, the cause is mostly a secret store or the
    rotation of credentials, which recover without a change of the code.

    Args:
        origin: The setting that the address comes from, for messages.
        server: Returns the address; None if it is unknown.
    """
    try:
        with reaching(origin, server):
            yield
    except Exception as error:  # user code: a callable of the pool
        raise_rejected(error)
        raise  # an error that is transient, or that this library has raised


@contextmanager
def reaching(origin: str, server: Callable[[], str | None]) -> Iterator[None]:
    """Raise the error of `raise_unreached()` if the block cannot connect to a server."""
    try:
        yield
    except OSError as error:
        raise_unreached(error, origin, server)
        raise


def raise_unreached(error: Exception, origin: str, server: Callable[[], str | None]) -> None:
    """Raise DatabaseUnavailableError with the address if a connection could not be opened.

    Return for any other error: for one of the server, one of a file, whose message has its path, and one of
    this library. The parameters are those of `connecting()`.
    """
    if not isinstance(error, OSError) or error.filename is not None or not is_transient(error):
        return
    address = server()
    place = f" to {address}" if address is not None else ""
    reason = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else "")
    described = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    kind = ConnectionLostError if isinstance(error, LOST_CLASSES) else DatabaseUnavailableError
    raise kind(
        f"cannot connect{place} ({described}); check that the server runs there, or correct {origin}"
    ) from error


def raise_rejected(error: Exception) -> None:
    """Raise ConnectionRejectedError for a permanent error of taking or returning a connection.

    Return for a transient error, and for one of this library: the caller raises these unchanged.
    """
    if not isinstance(error, SchedulerError) and not is_transient(error):
        raise ConnectionRejectedError(_describe_rejection(error)) from error


@contextmanager
def reading_dsn(name: str) -> Iterator[None]:
    """Raise the errors of asyncpg about a DSN as ConfigurationError. The message does not quote the DSN.

    Args:
        name: The setting that it comes from, for the message.
    """
    try:
        yield
    except (ConfigurationError, ssl.SSLCertVerificationError):
        # These are ValueErrors too, but their messages do not quote the DSN.
        raise
    except asyncpg.ClientConfigurationError as error:
        raise ConfigurationError(f"{name} is invalid: {error}") from None
    except ValueError as error:  # its message may quote any part of the DSN, and so may its cause
        raise ConfigurationError(
            f"{name} is invalid ({type(error).__name__}); check its host, port and options"
        ) from None


def _describe_rejection(error: Exception) -> str:
    """Return what happened when a connection was rejected, and what to check."""
    if isinstance(error, asyncpg.UndefinedObjectError):
        return (
            f"the server rejected a connection ({error.sqlstate}, {_describe(error)}); asyncpg sends each "
            "option of a DSN that it does not know as a setting: remove it, or let Scheduler.connect() "
            "translate it"
        )
    if isinstance(error, asyncpg.PostgresError):
        return (
            f"the server rejected a connection ({error.sqlstate}, {_describe(error)}); check the role, its "
            "password and CONNECT privilege, the database and pg_hba.conf"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the server is not trusted ({_describe(error)}); check it, and sslmode and "
            "sslrootcert of the DSN, or ssl= of asyncpg.create_pool()"
        )
    # The message has the class of the error only, because its text may quote a password.
    return (
        f"a callable of the pool raised {type(error).__name__}; check the password=, connect=, init=, setup= "
        "and reset= of asyncpg.create_pool()"
    )


def translated() -> _Translated:
    """Raise transient errors as DatabaseUnavailableError, and errors of the schema as SchemaError.

    Other errors keep their class. They may end in a log, so the values of rows are removed from them.
    """
    return _TRANSLATED


class _Translated:
    """The context manager of ``translated()``; one made of a generator costs three times as much."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Translate the error."""
        if isinstance(error, Exception):
            raise_translated(error)


_TRANSLATED: Final = _Translated()


def raise_translated(error: Exception) -> None:
    """Raise the exception of this library that stands for an error, as ``translated()`` does.

    It returns if there is none, and the caller raises the error itself. The error then contains no values of
    rows, since it may be logged. Statements call it in an except clause, which costs nothing as long as no
    statement fails.
    """
    # This library has raised it, so it needs no translation.
    if isinstance(error, SchedulerError):
        return
    is_of_application = _is_of_application(error)
    if isinstance(error, LOST_STATEMENTS) and not is_of_application:
        raise ConfigurationError(
            f"a prepared statement of a pool's connection is gone ({error.sqlstate}): a reset= callable runs "
            "DISCARD ALL or DEALLOCATE, or a pooler shares the session; pass statement_cache_size=0 to "
            "asyncpg.create_pool(), or write pgbouncer=true as an option of the DSN"
        ) from error
    # The error becomes the cause of what is raised below, or the caller raises it.
    _remove_values(error)
    state = sqlstate_of(error)
    if state in UNSTORABLE:
        raise UnstorableTextError(_describe_unstorable(error)) from error
    if problem := TOO_LARGE.get(constraint_of(error) or ""):
        raise PayloadError(f"{problem}; store large data elsewhere and pass a reference to it") from error
    if is_of_application and state == FORBIDDEN:
        raise SchemaForbiddenError(
            f"a trigger or a row security policy of the scheduler's tables refused a row "
            f"({_message_of(error)})",
            "correct it, or grant what it needs",
        ) from error
    # Code of the application has chosen the SQLSTATE, so it shows nothing about the tables or the server.
    if is_of_application:
        return
    if state == FORBIDDEN:
        raise SchemaForbiddenError(
            f"this database role lacks a privilege on the scheduler's tables ({_message_of(error)})",
            "grant it as their owner (the documentation lists, under Roles, the privileges of each role)",
        ) from error
    if state in MISSING:
        raise SchemaMissingError(
            f"the scheduler's tables are missing or old ({_message_of(error)})"
        ) from error
    if remedy := STATE_REMEDIES.get(state or ""):
        raise DatabaseUnavailableError(f"{_describe(error)}; {remedy}") from error
    if (
        state in LOST_STATES
        or isinstance(error, LOST_CLASSES)
        or type(error) is asyncpg.InternalClientError  # its subclasses have other causes; see ``_describe()``
        or has_ended_during_call(error)
    ):
        raise ConnectionLostError(_describe(error)) from error
    if isinstance(error, PermissionError) and CERTIFICATE_FOLDER in Path(error.filename or "").parts:
        raise ConfigurationError(
            f"asyncpg looks for certificates in {Path(error.filename).parent}, which this process may not "
            "enter; set HOME to a folder that it may enter, or pass sslmode=disable if the server has no TLS"
        ) from error
    if is_transient(error):
        raise DatabaseUnavailableError(_describe(error)) from error


def _describe_unstorable(error: BaseException) -> str:
    """Return the message for a text that the database cannot store."""
    text = _message_of(error)
    character = _unstorable_character(error)
    description = f"the character {character!r}" if character else "a character"
    return (
        f"the encoding of the database lacks {description} of a text ({text}); use other characters, or a "
        "database with the encoding UTF8"
    )


def _unstorable_character(error: BaseException) -> str:
    """Return the character that the encoding of the database lacks; empty if the server does not name it."""
    # The message may show the bytes of the character, such as "0xe2 0x82 0xac".
    if encoded := _BYTE.findall(_message_of(error)):
        return bytes.fromhex("".join(encoded)).decode("utf-8", "replace")
    source = _source_of(error)
    # asyncpg has the context in the error, psycopg in ``diag``.
    context = getattr(source, "context", None)
    if not context:
        context = getattr(getattr(source, "diag", None), "context", None)
    if isinstance(context, str) and (escaped := _ESCAPE.search(context)):
        # The server's context ends with the escape of the character, such as \u20ac, in a text of JSON.
        text: str = json.loads(f'"{escaped[0]}"')
        # The character may be half of a surrogate pair, which cannot be printed: it becomes a question mark.
        return text[-1].encode("utf-8", "replace").decode()
    return ""
