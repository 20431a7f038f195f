"""Record who changed what."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Repository


class AuditRepository(Repository):
    """The statements that write and delete audit records."""

    async def record(
        self, action: str, subject: str | None, *, on: Connection | None = None, **details: Any
    ) -> int:
        """Record an action of the current author, and return the id of the record.

        Args:
            action: The action, such as ``trigger_schedule``.
            subject: The id or name of the changed object; None for no particular object.
            on: The connection of the transaction that changes the subject; None for one of the pool.
            details: Values that JSON can represent.
        """
        author = self._statements.author.values(**details)
        now = self._statements.now
        return await self._statements.number("insert_audit", now, action, subject, *author, on=on)

    async def vacuum(self, before: datetime, limit: int) -> int:
        """Delete old records and old bulk runs; return how many records or runs, whichever is greater.

        Args:
            before: The instant before which a record was made, or a bulk run was last changed.
            limit: The maximum number of records, and of bulk runs.
        """
        return await self._statements.number("vacuum_audit", before, limit)
