"""Read who changed what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import asyncpg

from pg_scheduler.base.sqltext import qualify
from pg_scheduler.database.statements import Repository
from pg_scheduler.jobs.payload import object_from


class AuditFilters(NamedTuple):
    """The values that records must have; None for any value."""

    action: str | None = None
    actor: str | None = None
    via: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A change of jobs, schedules or tasks, or the first start of a release."""

    id: int
    """Its number; a later change has a greater one."""
    at: datetime
    """When it was made."""
    actor: str
    """The person or the Scheduler that made it."""
    via: str
    """The way: ``api``, ``code``, ``cli``, ``dashboard``, ``inspector``, ``mcp`` or ``worker``."""
    action: str
    """The action, such as ``cancel_jobs`` or ``pause_schedule``."""
    subject: str | None
    """The id of the job or the schedule, the name of the task, or the release; None for several jobs."""
    details: Mapping[str, Any]
    """Further facts, such as ``host``, ``before``, ``after``, ``where``, ``jobs`` and ``count``."""


class AuditReadRepository(Repository):
    """The statements that read audit records."""

    async def read(
        self, before: int | None, limit: int, rows: int, filters: AuditFilters, subject: str | None = None
    ) -> tuple[list[AuditRecord], AuditRecord | None]:
        """Return matching records, the newest first, and the last record that was examined.

        The last record is None if all records were examined.

        Args:
            before: The id before which the search starts; None to start with the newest record.
            limit: The maximum number of returned records.
            rows: The maximum number of examined records.
            filters: The values that the records must have.
            subject: Return only records of this subject, found by an index; None for all.
        """
        args = before, limit, rows, *filters
        if subject is None:
            audit_rows = await self._statements.fetch("inspect_audit", *args)
        else:
            audit_rows = await self._statements.fetch("inspect_audit_of", *args, subject)
        records = [_record_from(row) for row in audit_rows if row["matches"]]
        # The place of a row is the number of records that were examined up to it. If that of the last row is
        # the maximum, the search stopped there.
        is_capped = bool(audit_rows) and audit_rows[-1]["place"] == rows
        last_examined = _record_from(audit_rows[-1]) if is_capped else None
        return records, last_examined

    async def trigger_changes(self, schedule_ids: Sequence[str], rows: int) -> dict[str, datetime]:
        """Return when the triggers of schedules were last changed, for schedules with a record of that.

        Args:
            schedule_ids: The schedules.
            rows: The maximum number of records of each schedule that are examined, the newest ones.
        """
        changes = await self._statements.fetch("inspect_trigger_changes", schedule_ids, rows)
        return {row["id"]: row["at"] for row in changes}

    async def is_writable(self) -> bool:
        """Return whether the role of the session may read and add records; True if there is no table."""
        table = qualify("{schema}scheduler_audit", await self._statements.schema())
        return await self._statements.value("inspect_audit_privileges", table) is not False

    async def newest_records(
        self, subjects: Sequence[str], actions: Sequence[str], most_per_subject: int
    ) -> list[AuditRecord]:
        """Return records of these actions on subjects, the newest first.

        Args:
            subjects: The subjects.
            actions: The actions.
            most_per_subject: The maximum number of records of each subject that are examined, the newest
                ones.
        """
        records = await self._statements.fetch("inspect_newest_records", subjects, actions, most_per_subject)
        return [_record_from(row) for row in records]


def _record_from(row: asyncpg.Record) -> AuditRecord:
    """Return the record of a row, with its JSON details as a mapping."""
    names = ("id", "at", "actor", "via", "action", "subject")
    return AuditRecord(**{name: row[name] for name in names}, details=object_from(row["details"]))
