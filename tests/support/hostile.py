"""What somebody might write into a table by hand, as far as its columns take it."""

from __future__ import annotations

from collections.abc import Mapping

import asyncpg
from hypothesis import strategies as st

NAME = "hostile.work"

MOST = str(2**31 - 1)
FIRST = "4713-01-01 00:00:00 BC"
LAST = "294276-12-31 23:59:59.999999"
INSTANTS = [
    "infinity",
    "-infinity",
    FIRST,
    LAST,
    "0001-01-01 00:00:00Z",
    "9999-12-31 23:59:59.999999Z",
    "now",
]
FINITE = [each for each in INSTANTS if "infinity" not in each]
COUNTS = ["0", "1", "2147483646", MOST]
NAMES = [
    NAME,
    "nobody.knows",
    "",
    "'; DROP TABLE scheduled_jobs; --",
    "os.system",
    "🦉" * 3000,
    "\u202e$1 %s",
]
OTHERS = ["somebody", "", "'", "x" * 5000]


def column(*values: str | None) -> st.SearchStrategy[str | None]:
    return st.sampled_from(values)


instants = column(None, *INSTANTS)


async def write_row(
    pool: asyncpg.Pool, table: str, key: str, types: Mapping[str, str], row: Mapping[str, str | None]
) -> bool:
    """Write a row as it is, over the one of its key if there is one; False if the table refuses it."""
    marks = ", ".join(f"${place}::text::{types[name]}" for place, name in enumerate(row, 1))
    changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in row)
    statement = (
        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {changes}"
    )
    try:
        await pool.execute(statement, *row.values())
    except asyncpg.CheckViolationError:
        return False
    return True
