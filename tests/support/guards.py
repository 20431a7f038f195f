"""Triggers that an application has on the tables of the library."""

from __future__ import annotations

from typing import Final

import asyncpg

STATES: Final = (
    *("P0001", "08001", "08006", "25006", "26000", "40001", "42501"),
    *("42P01", "53300", "55006", "57014", "57P01", "0A000", "XX000"),
)
"""SQLSTATEs that a trigger may choose: each is one that the server itself raises in another situation."""

OUTAGES: Final = frozenset(["08001", "08006", "25006", "40001", "53300", "55006", "57014", "57P01"])
"""The states of an outage, as of another server that the trigger calls."""


async def guard(
    pool: asyncpg.Pool | asyncpg.Connection,
    body: str,
    *,
    on: str = "UPDATE",
    table: str = "scheduled_jobs",
    is_deferred: bool,
) -> None:
    """Create a trigger of the application."""
    await pool.execute(f"CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    await pool.execute(
        f"CREATE CONSTRAINT TRIGGER guard AFTER {on} ON {table} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION guard()"
        if is_deferred
        else f"CREATE TRIGGER guard BEFORE {on} ON {table} FOR EACH ROW EXECUTE FUNCTION guard()"
    )
