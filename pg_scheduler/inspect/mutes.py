"""Mute findings of the doctor and groups of errors for a time: records of the audit say who did, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from pg_scheduler.inspect.doctor.findings import Finding
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.audit import AuditRecord
from pg_scheduler.jobs.history import instant_from

MutedKind: TypeAlias = Literal["finding", "error"]

MAX_RECORDS: Final = 10
"""Records of a subject that are examined, the newest ones."""

MAX_SUBJECT: Final = 500
"""Characters of a subject that a record keeps."""


@dataclass(frozen=True, slots=True)
class Mute:
    """A record of a mute, or of its end by a person."""

    at: datetime
    actor: str
    until: datetime | None
    """When the mute ends; None for a record of its end."""
    note: str | None


def finding_id(finding: Finding) -> str:
    """Return what identifies a finding in the audit: its code and its subject."""
    return f"{finding.code.value} {finding.subject}".rstrip()[:MAX_SUBJECT]


async def read_mutes(
    inspector: Inspector, kind: MutedKind, subjects: Iterable[str]
) -> dict[str, tuple[Mute, ...]]:
    """Return the records of findings, or of groups of errors by their fingerprints, the newest first."""
    wanted, found = sorted(set(subjects)), dict[str, tuple[Mute, ...]]()
    if wanted:
        reads = inspector._reads.audit_records  # noqa: SLF001 - front ends share it, callers do not
        for record in await reads.newest_records(wanted, [f"mute_{kind}", f"unmute_{kind}"], MAX_RECORDS):
            subject = record.subject or ""
            found[subject] = (*found.get(subject, ()), _mute_of(record))
    return found


def is_muted(mutes: Sequence[Mute], now: datetime) -> bool:
    """Return whether the newest of these records is that of a mute that has not ended."""
    return bool(mutes) and mutes[0].until is not None and mutes[0].until > now


def _mute_of(record: AuditRecord) -> Mute:
    """Return a record, which may have been written by hand."""
    until = instant_from(record.details.get("until")) if record.action.startswith("mute_") else None
    note = record.details.get("note")
    return Mute(record.at, record.actor, until, note if isinstance(note, str) else None)
