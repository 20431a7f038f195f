"""Read who changed what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pg_scheduler.jobs.stored_json import object_from
from pg_scheduler.store.statements import Statements


class AuditFilters(NamedTuple):
    """What records have; None for any value."""

    action: str | None = None
    actor: str | None = None
    via: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class AuditRow(NamedTuple):
    """A record that was examined, and whether it matches."""

    id: int
    at: datetime
    actor: str
    via: str
    action: str
    subject: str | None
    details: Mapping[str, Any]
    matches: bool
    place: int


class AuditReadRepository:
    """The statements that read audit records."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    async def read(
        self, before: int | None, limit: int, rows: int, filters: AuditFilters, subject: str | None = None
    ) -> list[AuditRow]:
        """Return matching records, the newest first, and the last one that was examined.

        Args:
            before: The id before which the search starts; None for the newest record.
            limit: The records that are returned at most.
            rows: The records that are examined at most.
            filters: What the records have.
            subject: Only records of this subject, by an index; None for all.
        """
        args = before, limit, rows, *filters
        if subject is None:
            found = await self._statements.fetch("inspect_audit", *args)
        else:
            found = await self._statements.fetch("inspect_audit_of", *args, subject)
        return [AuditRow(**{**row, "details": object_from(row["details"])}) for row in found]

    async def trigger_changes(self, schedule_ids: Sequence[str], rows: int) -> dict[str, datetime]:
        """Return when the triggers of schedules were last changed; omit those without such a record.

        Args:
            schedule_ids: The schedules.
            rows: The records of each that are examined at most, the newest ones.
        """
        found = await self._statements.fetch("inspect_trigger_changes", schedule_ids, rows)
        return {row["id"]: row["at"] for row in found}
