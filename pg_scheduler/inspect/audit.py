"""Read the audit: who did what, and which findings and errors people have muted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from pg_scheduler.inspect.base import InspectorBase, tables_of
from pg_scheduler.inspect.doctor.findings import Finding
from pg_scheduler.inspect.positions import PositionError
from pg_scheduler.inspect.store.audit import AuditFilters, AuditRecord
from pg_scheduler.inspect.texts import counted
from pg_scheduler.jobs.history import instant_from
from pg_scheduler.jobs.validation import check_count, check_execution_time, check_text

MAX_PAGE_LENGTH: Final = 1000
MAX_ROWS: Final = 20_000
"""The maximum number of records that a page examines."""

MAX_ID: Final = 2**63 - 1
_POSITION: Final = re.compile(r"[0-9]{1,19}")

ACTIONS: Final = (
    *("add_schedule", "update_schedule", "remove_schedule", "pause_schedule", "resume_schedule"),
    *("trigger_schedule", "backfill_schedule", "pause_task", "resume_task", "drain_worker", "resume_worker"),
    *(
        "declare_dead",
        "cancel_jobs",
        "retry_jobs",
        "delete_jobs",
        "move_jobs",
        "change_job",
        "keep_job",
        "skip_head",
        "move_to_front",
        "add_job",
        "run_job",
        "signal_job",
        "broadcast",
        "wake_job",
        "show_stack",
    ),
    *("mute_finding", "unmute_finding", "mute_error", "unmute_error", "vacuum_jobs", "start_release"),
    "notify_findings",
    *("start_bulk", "resume_bulk", "stop_bulk", "end_bulk"),
)
"""The actions of this release. Records may have actions of other releases too."""

MutedKind: TypeAlias = Literal["finding", "error"]

MAX_RECORDS: Final = 10
"""The maximum number of records of a subject that are examined, the newest ones."""

MAX_SUBJECT: Final = 500
"""Characters of a subject that a record keeps."""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A page of records, the newest first."""

    items: Sequence[AuditRecord]
    """The records of the page."""
    next: str | None
    """The ``after=`` of the following page; None if every record was examined."""

    @property
    def summary(self) -> str:
        """The number of records found, in one line, as every front end shows it."""
        has_more = self.next is not None
        extent = "older records follow" if has_more else "all records searched"
        return f"{counted(len(self.items), 'record', is_capped=has_more)} found, {extent}"


class AuditReads(InspectorBase):
    """The methods of `Inspector` that read the audit."""

    async def audit(
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        subject: str | None = None,
        via: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> AuditPage:
        """Return a page of the records of who did what, the newest first.

        A page examines at most 20,000 records, so it can be short although others follow.

        Args:
            action: Only this action, such as ``cancel_jobs``.
            actor: Only changes that this person or Scheduler made.
            subject: Only changes of this job, schedule, task or release.
            via: Only changes that were made by this way, such as ``cli`` or ``dashboard``.
            since: Only changes at or after this time.
            until: Only changes before this time.
            limit: Records of the page, 1 to 1,000.
            after: The ``next`` of the page before; None for the newest records.

        Raises:
            ValueError: A time is naive, ``limit`` is out of range, or ``after`` is not a position.

        Example::

            for record in (await inspector.audit(action="delete_jobs")).items:
                print(record.at, record.actor, record.details.get("count"))
        """
        check_count("limit", limit, least=1, most=MAX_PAGE_LENGTH)
        filters = AuditFilters(
            None if action is None else check_text("action", action),
            None if actor is None else check_text("actor", actor),
            None if via is None else check_text("via", via),
            None if since is None else check_execution_time(since, name="since"),
            None if until is None else check_execution_time(until, name="until"),
        )
        subject = None if subject is None else check_text("subject", subject)
        if after is not None and not (_POSITION.fullmatch(after) and int(after) <= MAX_ID):
            raise PositionError("the audit", after)
        before = None if after is None else int(after)
        # One record more than the page has room for shows whether another page follows.
        records, last_examined = await self._reads.audit_records.read(
            before, limit + 1, MAX_ROWS, filters, subject
        )
        # The next page begins behind the last record of this one, or else behind the last examined record.
        if len(records) > limit:
            records = records[:limit]
            last_examined = records[-1]
        elif last_examined is not None and since is not None and last_examined.at < since:
            # All further records are older than this one, so none of them can match.
            last_examined = None
        return AuditPage(records, None if last_examined is None else str(last_examined.id))


@dataclass(frozen=True, slots=True)
class Mute:
    """A record of a person who muted a finding or an error, or who ended a mute."""

    at: datetime
    actor: str
    until: datetime | None
    """When the mute ends; None if the record states that a person ended the mute."""
    note: str | None


def finding_id(finding: Finding) -> str:
    """Return the subject of records about a finding: its code, and what it is about unless that is empty."""
    return f"{finding.code.value} {finding.subject}".rstrip()[:MAX_SUBJECT]


async def read_mutes(
    inspector: InspectorBase, kind: MutedKind, subjects: Iterable[str]
) -> dict[str, tuple[Mute, ...]]:
    """Return for each subject the records of people who muted it or ended a mute, the newest first.

    ``subjects`` are the ids of findings, see `finding_id()`, or the fingerprints of groups of errors. A
    subject without a record is left out.
    """
    unique_subjects = sorted(set(subjects))
    mutes_by_subject: dict[str, tuple[Mute, ...]] = {}
    if unique_subjects:
        reads = tables_of(inspector).reads.audit_records
        for record in await reads.newest_records(
            unique_subjects, [f"mute_{kind}", f"unmute_{kind}"], MAX_RECORDS
        ):
            # Each of these records has one of the subjects, so the empty text only satisfies the type.
            subject = record.subject or ""
            mutes_by_subject[subject] = (*mutes_by_subject.get(subject, ()), _mute_of(record))
    return mutes_by_subject


async def read_muted(
    inspector: InspectorBase, kind: MutedKind, subjects: Iterable[str], now: datetime
) -> dict[str, Mute]:
    """Return the newest record of each finding or group of errors that is muted now; see `read_mutes()`."""
    mutes_by_subject = await read_mutes(inspector, kind, subjects)
    return {subject: mutes[0] for subject, mutes in mutes_by_subject.items() if is_muted(mutes, now)}


def is_muted(mutes: Sequence[Mute], now: datetime) -> bool:
    """Return whether the first of these records, the newest one, is a mute that has not ended."""
    return bool(mutes) and mutes[0].until is not None and mutes[0].until > now


def _mute_of(record: AuditRecord) -> Mute:
    """Return the mute that a record states. A value of a wrong type, as written by hand, becomes None."""
    # A record that ends a mute has no time until which it lasts.
    is_mute = record.action.startswith("mute_")
    until = instant_from(record.details.get("until")) if is_mute else None
    note = record.details.get("note")
    return Mute(record.at, record.actor, until, note if isinstance(note, str) else None)
