"""The page of the audit: who did what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pg_scheduler.dashboard.context import PageRequest, RejectedError
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.inspect import AuditRecord
from pg_scheduler.inspect.bulk_runs import PREFIX

PAGE_LENGTH: Final = 50

FILTERS: Final = ("action", "actor", "subject", "via")

OPEN_DETAILS: Final = frozenset({"host", "count", "release", "group", "to", "by_s", "next", "note"})
"""Details without arguments and metadata."""


@dataclass(frozen=True, slots=True)
class AuditView:
    """A page of the audit, the newest record first."""

    filters: Mapping[str, str]
    items: Sequence[AuditRecord]
    summary: str
    next: str | None

    def target(self, record: AuditRecord) -> str | None:
        """Return the path of the page about the subject of a record; None for no page."""
        if record.subject is None:
            return None
        if record.subject.startswith(PREFIX):
            return "/run"
        kind = record.action.rpartition("_")[2]
        return {"schedule": "/schedule", "job": "/job", "jobs": "/job"}.get(kind)


async def build(request: PageRequest) -> AuditView:
    """Read a page of the audit."""
    if request.access.visible_names is not None:
        raise RejectedError("you may not read the audit: its records belong to all names", 403)
    filters = {name: request.parameters.get(name, "") for name in FILTERS}
    given: dict[str, str] = {name: value for name, value in filters.items() if value}
    try:
        page = await request.inspector.audit(
            limit=PAGE_LENGTH,
            after=request.parameters.get("after") or None,
            action=given.get("action"),
            actor=given.get("actor"),
            subject=given.get("subject"),
            via=given.get("via"),
        )
    except ValueError as error:  # a text that no row can have, or no position of the audit
        raise RejectedError(str(error)) from error
    return AuditView(filters, [_visible(each, request) for each in page.items], page.summary, page.next)


def _visible(record: AuditRecord, request: PageRequest) -> AuditRecord:
    """Return the record with the details that the request may see."""
    redaction = request.settings.redaction
    if not request.access.sees_arguments:
        details = {key: value for key, value in record.details.items() if key in OPEN_DETAILS}
        return replace(record, details=details)
    shown: dict[str, Any] = redaction.values(record.details)
    if "where" in shown and not redaction.is_empty:
        shown["where"] = HIDDEN  # a search may contain a value that it compares with
    return replace(record, details=shown)
