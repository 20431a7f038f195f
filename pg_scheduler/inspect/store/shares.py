"""Read the tenants of shares, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.store.statements import Repository

MAX_WAITING_ROWS: Final = 20_000
"""Waiting jobs that are counted."""

MAX_MOVED_ROWS: Final = 10_000
"""Jobs in flight that are counted; there are about as many as slots."""


class TenantRow(NamedTuple):
    """The queue of a tenant.

    Attributes:
        key: The text of the share and the tenant.
        jobs: The jobs that wait for its turn, as far as they were counted.
        last_turn_at: When a worker last moved a job of it, within about an hour; None for none.
    """

    key: str
    jobs: int
    last_turn_at: datetime | None


class ShareReadRepository(Repository):
    """The statements that read shares for people."""

    async def queues(self, keys: Sequence[str]) -> tuple[list[TenantRow], bool]:
        """Return the queues of tenants, and whether counting some of them stopped.

        Each tenant has the same part of 20,000 rows.
        """
        most = max(MAX_WAITING_ROWS // max(len(keys), 1), 1)
        rows = await self._rows(TenantRow, "inspect_tenants", list(keys), most)
        return rows, any(row.jobs >= most for row in rows)

    async def in_flight(self) -> dict[str, int]:
        """Return the number of jobs in flight by the text of the share and the tenant."""
        rows = await self._statements.fetch("inspect_in_flight", MAX_MOVED_ROWS, self._statements.now)
        return {row["key"]: row["jobs"] for row in rows}
