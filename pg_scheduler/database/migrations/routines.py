"""Find the functions and triggers of the migrations that a schema lacks, or whose text is another one.

A function contains the name of its schema. After ALTER SCHEMA ... RENAME it would change the tables of a
schema that has the former name. A trigger and its function are dropped with a schema from which only the
tables were moved. So every check of the tables compares them, and the migration creates them again.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.base.sqltext import qualify
from pg_scheduler.database.migrations.plan import shipped_migrations

if TYPE_CHECKING:
    from collections.abc import Collection

ROUTINES: Final = qualify_builtins("""
    SELECT 'function' AS kind, proname::text AS name, prosrc AS body
    FROM pg_catalog.pg_proc
    WHERE pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1)
      AND proname ~ '^scheduler_'
    UNION ALL
    SELECT 'trigger', tgname::text, ''
    FROM pg_catalog.pg_trigger
    JOIN pg_catalog.pg_class AS class ON class.oid = tgrelid
    WHERE relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1)
      AND relname = ANY ($2::text[]) AND NOT tgisinternal
""")
"""The query of the functions in the schema $1, and of the triggers of its tables $2."""

_FUNCTION: Final = re.compile(
    r"^CREATE OR REPLACE FUNCTION \{schema\}(?P<name>\w+)\(.*?AS (?P<tag>\$\w+\$)(?P<body>.*?)(?P=tag);",
    re.MULTILINE | re.DOTALL,
)
_TRIGGER: Final = re.compile(r"^CREATE CONSTRAINT TRIGGER (?P<name>\w+) .*?;", re.MULTILINE | re.DOTALL)


class Routine(NamedTuple):
    """A function or a trigger, as the catalogue has it.

    Attributes:
        kind: ``function`` or ``trigger``.
        name: Its name.
        body: The text of a function.
    """

    kind: str
    name: str
    body: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class _Source(NamedTuple):
    """What a migration contains of a function or a trigger."""

    statement: str
    """The statement that creates it."""
    body: str
    """The text of a function; empty for a trigger."""


def shipped_routines(home: str) -> dict[Routine, str]:
    """Return the functions and triggers of the newest version, each with the statement that creates it.

    Functions come first, because triggers call them.
    """
    return {
        Routine(kind, name, _text(qualify(source.body, home))): qualify(source.statement, home)
        for (kind, name), source in _newest_sources().items()
    }


def missing_routines(existing: Collection[Routine], home: str) -> list[Routine]:
    """Return the functions and triggers that a schema lacks, or has with another text."""
    texts = {routine._replace(body=_text(routine.body)) for routine in existing}
    return [routine for routine in shipped_routines(home) if routine not in texts]


@cache
def _newest_sources() -> dict[tuple[str, str], _Source]:
    """Return the source of each function and trigger, by kind and name, from the last migration with it."""
    scripts = [migration.up for migration in shipped_migrations()]
    # Of several migrations that create a routine, the last one remains under its key.
    routines = {
        ("function", match["name"]): _Source(match[0], match["body"])
        for script in scripts
        for match in _FUNCTION.finditer(script)
    }
    triggers = {
        ("trigger", match["name"]): _Source(match[0], "")
        for script in scripts
        for match in _TRIGGER.finditer(script)
    }
    return routines | triggers


def _text(body: str) -> str:
    """Return the text of a function with line feeds only, whatever line endings its file had."""
    return "\n".join(body.splitlines())
