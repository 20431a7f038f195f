"""Read the facts from which the doctor derives its findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.errors import SchemaError
from pg_scheduler.migrate import missing_indexes, verify
from pg_scheduler.migrate.shape import shipped_tables
from pg_scheduler.store.statements import Statements

__all__ = ["DoctorRepository", "IndexRow", "SettingRow", "TableRow"]

MAX_INDEXES: Final = 500


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table of this library.

    Attributes:
        options: Its storage settings.
        freeze_age: Transactions since its oldest row that is not frozen.
        live: About how many rows it has.
        dead: About how many dead rows it has.
        updates: Updates since the statistics were reset.
        hot_updates: Those that wrote to no index.
        vacuumed_at: When it was last vacuumed; None if that is unknown.
        bytes: Its size, without indexes.
    """

    name: str
    options: Mapping[str, str]
    freeze_age: int
    live: int
    dead: int
    updates: int
    hot_updates: int
    vacuumed_at: datetime | None
    bytes: int


class IndexRow(NamedTuple):
    """An index of a table of this library.

    Attributes:
        method: Its access method, such as ``btree``.
        constraint: The constraint that it belongs to; None for none.
        columns: The columns that its keys, expressions and condition use.
    """

    table: str
    name: str
    is_valid: bool
    method: str
    constraint: str | None
    columns: Sequence[str]


class SettingRow(NamedTuple):
    """A setting of the session, and where its value comes from, such as ``database``."""

    value: str
    source: str


class DoctorRepository:
    """The statements that only the doctor needs. Each reads a bounded number of rows.

    Args:
        statements: Runs the statements.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    async def schema_problem(self) -> SchemaError | None:
        """Return how the tables differ from those of this release; None if they do not."""
        schema = await self._statements.schema()
        async with self._statements.connections.acquire() as connection:
            try:
                await verify(connection, schema=schema)
            except SchemaError as problem:
                return problem
        return None

    async def missing_indexes(self) -> list[str]:
        """Return the indexes that migrations leave out on large tables and that do not exist."""
        schema = await self._statements.schema()
        async with self._statements.connections.acquire() as connection:
            return await missing_indexes(connection, schema=schema)

    async def tables(self) -> list[TableRow]:
        """Return the tables with their settings and statistics."""
        rows = await self._statements.fetch(
            "doctor_tables", await self._statements.schema(), list(shipped_tables())
        )
        return [
            TableRow(**{**row, "options": dict(each.split("=", 1) for each in row["options"] or ())})
            for row in rows
        ]

    async def indexes(self) -> list[IndexRow]:
        """Return the first 500 indexes of the tables."""
        rows = await self._statements.fetch(
            "doctor_indexes", await self._statements.schema(), list(shipped_tables()), MAX_INDEXES
        )
        return [IndexRow(*row) for row in rows]

    async def settings(self, names: Sequence[str]) -> dict[str, SettingRow]:
        """Return those of the settings that the server has, as this session sees them."""
        rows = await self._statements.fetch("doctor_settings", list(names))
        return {row["name"]: SettingRow(row["value"], row["source"]) for row in rows}
