"""Change the tables as nobody should."""

from __future__ import annotations

from tests.conftest import Connection, run_on


def rename(dsn: str, column: str) -> None:
    """Rename a column of ``scheduled_jobs``, so that statements that name it fail."""

    async def work(connection: Connection) -> None:
        await connection.execute(f"ALTER TABLE scheduled_jobs RENAME {column} TO former")

    run_on(dsn, work)
