"""The database roles besides the owner of the tables, and exactly the privileges that each role needs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from pg_scheduler.base.sqltext import MAX_IDENTIFIER_BYTES, quote_identifier
from pg_scheduler.inspect.store.cluster import TABLES

SENDER_ACTIONS: Final = ("enqueue", "cancel", "signal")
"""The ends of the names of a sender's functions, which begin with the name of the role."""


class Role(StrEnum):
    """The purpose of a database role."""

    WORKER = "worker"
    """Runs Schedulers."""
    ENQUEUER = "enqueuer"
    """Schedules jobs, with a Scheduler that is never started."""
    SENDER = "sender"
    """Adds, cancels and signals jobs of certain tasks, by functions that are made for it; see `senders`."""
    EXPORTER = "exporter"
    """Reads the metrics of all workers."""
    VIEWER = "viewer"
    """Reads jobs for people."""
    OPERATOR = "operator"
    """Reads and changes jobs for people."""
    ADMIN = "admin"
    """Does what an operator does, deletes jobs, and adds and removes schedules."""


class Grant(NamedTuple):
    """Privileges on tables, or on some of their columns."""

    privileges: tuple[str, ...]
    tables: tuple[str, ...]
    columns: tuple[str, ...] = ()


_DATA: Final = (*TABLES, "vacuum_stats", "scheduler_vacuum_passes", "scheduler_vacuum_ranges")
_MIGRATIONS: Final = "scheduler_migrations"

_OPERATOR: Final = (
    Grant(("SELECT",), (*_DATA, _MIGRATIONS)),
    Grant(("INSERT", "UPDATE"), ("scheduled_jobs", "scheduler_results", "scheduler_bulk_runs")),
    Grant(("UPDATE",), ("scheduler_schedules", "scheduler_workers")),
    Grant(("INSERT", "DELETE"), ("scheduler_after",)),
    Grant(("UPDATE", "DELETE"), ("scheduler_sequences",)),
    Grant(("INSERT", "UPDATE", "DELETE"), ("scheduler_tasks", "scheduler_steps")),
    Grant(("INSERT",), ("scheduler_audit", "scheduler_deadlines")),
)

GRANTS: Final[Mapping[Role, tuple[Grant, ...]]] = {
    Role.WORKER: (
        Grant(("SELECT", "INSERT", "UPDATE", "DELETE"), _DATA),
        Grant(("SELECT",), (_MIGRATIONS,)),
    ),
    Role.ENQUEUER: (
        Grant(("SELECT",), ("scheduled_jobs",), ("job_id", "status")),
        Grant(
            ("INSERT",),
            ("scheduled_jobs",),
            (
                *("job_id", "task_data", "execution_time", "job_name", "priority", "max_retries"),
                *(
                    "misfire_grace_time",
                    "timeout_seconds",
                    "function",
                    "lock_key",
                    "created_at",
                    "expires_at",
                ),
            ),
        ),
    ),
    # The functions of this role run with the rights of the owner, so the role itself needs no privileges on
    # tables.
    Role.SENDER: (),
    Role.EXPORTER: (
        Grant(
            ("SELECT",),
            (
                *("scheduled_jobs", "scheduler_workers", "scheduler_schedules", "scheduler_tasks"),
                *("scheduler_totals", _MIGRATIONS),
            ),
        ),
        Grant(("SELECT",), ("scheduler_audit",), ("at", "action")),
    ),
    Role.VIEWER: (Grant(("SELECT",), (*_DATA, _MIGRATIONS)),),
    Role.OPERATOR: _OPERATOR,
    Role.ADMIN: (
        *_OPERATOR,
        Grant(("DELETE",), ("scheduled_jobs", "scheduler_results")),
        Grant(("INSERT", "DELETE"), ("scheduler_schedules",)),
    ),
}
"""The privileges that each role needs, apart from the use of the schema."""


def default_name(role: Role, schema: str) -> str:
    """Return the name of a role for which a person gives none. A long name of the schema is cut.

    Example:
        >>> default_name(Role.VIEWER, "jobs")
        'jobs_viewer'
    """
    end = f"_{role.value}"
    room = MAX_IDENTIFIER_BYTES - len(end)
    if role is Role.SENDER:
        # The names of its functions begin with its name, and must not be too long either.
        room -= max(len(f"_{action}") for action in SENDER_ACTIONS)
    # A character that is cut in the middle of its bytes is left out.
    return schema.encode()[:room].decode(errors="ignore") + end


def grant_statements(role: Role, schema: str, grantee: str) -> list[str]:
    """Return the statements that give a database role what it needs.

    Example:
        >>> grant_statements(Role.VIEWER, "jobs", "ada")[0]
        'GRANT USAGE ON SCHEMA "jobs" TO "ada"'
    """
    quoted_schema, quoted_grantee = quote_identifier(schema), quote_identifier(grantee)
    statements = [f"GRANT USAGE ON SCHEMA {quoted_schema} TO {quoted_grantee}"]
    for grant in GRANTS[role]:
        columns = f" ({', '.join(grant.columns)})" if grant.columns else ""
        privileges = ", ".join(f"{privilege}{columns}" for privilege in grant.privileges)
        tables = ", ".join(f"{quoted_schema}.{table}" for table in grant.tables)
        statements.append(f"GRANT {privileges} ON {tables} TO {quoted_grantee}")
    return statements


def privileges_of(role: Role) -> dict[str, set[str]]:
    """Return the privileges that a role needs on whole tables, by table."""
    privileges: dict[str, set[str]] = {}
    for grant in GRANTS[role]:
        # A grant on some columns gives no privilege on the whole table.
        if not grant.columns:
            for table in grant.tables:
                privileges.setdefault(table, set()).update(grant.privileges)
    return privileges
