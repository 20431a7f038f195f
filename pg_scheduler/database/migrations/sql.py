"""Write migrations as statements without parameters, which any library and any tool can execute or print.

``migrate`` executes them with asyncpg, after it has read which migrations a database has. They need a
transaction: the lock ends with it, and the search path is restored for what follows.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from pg_scheduler.base.sqltext import check_new_schema, qualify, quote_identifier
from pg_scheduler.database.migrations.records import create_records, delete_record, insert_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pg_scheduler.database.migrations.plan import Step


_LOCK_CLASS: Final = 0x70677363  # "pgsc"; the second half of the key is a hash of the schema's name

# Names that the migrations do not qualify lead to built-in functions, operators and types only.
_PIN: Final = """\
SELECT
    pg_catalog.set_config('pg_scheduler.search_path', pg_catalog.current_setting('search_path'), true),
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"""

UNPIN: Final = """\
SELECT
    pg_catalog.set_config('search_path', pg_catalog.current_setting('pg_scheduler.search_path'), true);"""
"""Restores the search path, for a transaction that continues."""

_COMMENT: Final = re.compile(r"--[^\n]*")
_PART: Final = re.compile(
    r"""
    --[^\n]* | /\*.*?\*/ | '[^']*' | "[^"]*" | (?P<tag>\$\w*\$).*?(?P=tag)
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)


def script(steps: Sequence[Step], home: str) -> list[str]:
    """Return the statements that migrate a schema by these steps, in one transaction, with its records.

    They do not check which migrations the schema has. A statement whose object exists already fails.

    Args:
        steps: The steps in order, from ``steps_between()``.
        home: The schema of the tables. It is created before the first migration if it does not exist.

    Returns:
        Single statements without parameters, each with its semicolon. The first waits for the lock under
        which schemas are migrated, the last restores the search path.

    Raises:
        ConfigurationError: The schema's name is invalid.

    Example:
        >>> for statement in script(steps_between(0, 2), "jobs"):  # doctest: +SKIP
        ...     cursor.execute(statement)
    """
    statements = [lock(home)]
    if any(step.up and step.migration.version == 1 for step in steps):
        statements += [create_schema(home), create_records(home)]
    for step in steps:
        statements += step_statements(step, home)
    return [*statements, UNPIN]


def lock(home: str) -> str:
    """Return the statement that waits for the lock under which a schema is migrated.

    It also sets the search path, so that unqualified names lead to built-in objects only, until ``UNPIN``.
    """
    digest = hashlib.sha256(home.encode()).digest()
    key = int.from_bytes(digest[:4], "big", signed=True)
    return f"{_PIN},\n    pg_catalog.pg_advisory_xact_lock({_LOCK_CLASS}, {key});"


def create_schema(home: str) -> str:
    """Return the statement that creates the schema. The role needs the privilege even if it exists."""
    check_new_schema(home)
    return f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(home)};"


def step_statements(step: Step, home: str) -> list[str]:
    """Return the statements that apply or revert one migration, and the one that changes its record."""
    migration = step.migration
    if step.up:
        verb, text, record = "apply", migration.up, insert_record(home, migration)
    else:
        verb, text, record = "revert", migration.down, delete_record(home, migration)
    # The first statement begins with a comment that names the migration.
    heading = f"-- {verb} {migration.version:04} {migration.name}\n"
    statements = (qualify(statement, home) for statement in _split(text))
    return [heading + next(statements, ""), *statements, record]


def _split(text: str) -> Iterator[str]:
    """Yield the statements of a migration one by one, because asyncpg prepares only one at a time.

    A semicolon in a comment, a text or the body of a function does not end a statement.
    """
    start = 0
    for part in _PART.finditer(text):
        if part["end"]:
            yield text[start : part.end()].strip()
            start = part.end()
    remainder = text[start:].strip()
    # Comments alone are no statement. The last line may be a comment, so the semicolon has its own line.
    if _COMMENT.sub("", remainder).strip():
        yield f"{remainder}\n;"
