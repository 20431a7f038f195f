"""Values that a statement written by hand could store in the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping

import asyncpg
from hypothesis import strategies as st

JOB_NAME = "hostile.work"

MAX_INTEGER = str(2**31 - 1)
EARLIEST = "4713-01-01 00:00:00 BC"
LATEST = "294276-12-31 23:59:59.999999"
INSTANTS = [
    "infinity",
    "-infinity",
    EARLIEST,
    LATEST,
    "0001-01-01 00:00:00Z",
    "9999-12-31 23:59:59.999999Z",
    "now",
]
FINITE_INSTANTS = [each for each in INSTANTS if "infinity" not in each]
COUNTS = ["0", "1", "2147483646", MAX_INTEGER]
JOB_NAMES = [
    JOB_NAME,
    "unknown.function",
    "",
    "'; DROP TABLE scheduled_jobs; --",
    "os.system",
    "🦉" * 3000,
    "\u202e$1 %s",
]
OTHER_WORKERS = ["other", "", "'", "x" * 5000]


def column(*values: str | None) -> st.SearchStrategy[str | None]:
    return st.sampled_from(values)


instants = column(None, *INSTANTS)


async def write_row(
    pool: asyncpg.Pool, table: str, key: str, types: Mapping[str, str], row: Mapping[str, str | None]
) -> bool:
    """Insert a row or overwrite the one with its key; return False if a constraint rejects it."""
    placeholders = ", ".join(f"${place}::text::{types[name]}" for place, name in enumerate(row, 1))
    changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in row)
    statement = (
        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({placeholders})"
        f" ON CONFLICT ({key}) DO UPDATE SET {changes}"
    )
    try:
        await pool.execute(statement, *row.values())
    except (asyncpg.CheckViolationError, asyncpg.UniqueViolationError):
        return False
    return True
