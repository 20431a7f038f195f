"""Triggers that an application has on the tables of the library."""

from __future__ import annotations

import asyncpg


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
