"""The history of a schedule, as far as a request may see it: its jobs and its changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.inspect import AuditRecord
from pg_scheduler.inspect.schedule_history import ChangedPart, PastFire, differences, newest_results
from pg_scheduler.text.values import copy_fields

MAX_VALUE_LENGTH: Final = 2_000

CLOSED: Final = frozenset({"arguments", "metadata"})
"""Parts of a definition that are hidden with arguments."""


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """A change of a schedule, from the audit."""

    at: datetime
    actor: str
    via: str
    action: str
    details: Mapping[str, Any]
    changes: Sequence[ChangedPart]


async def results_of(schedule_id: str | None, request: PageRequest) -> Sequence[PastFire]:
    """Return the last 20 fire times of the schedule of a job, the newest first."""
    schedule = None if schedule_id is None else await request.inspector.get_schedule(schedule_id)
    if schedule is None or not request.access.sees_name(schedule.task):
        return ()
    results = await newest_results(request.inspector, [schedule], request.access.sees_name)
    return results.get(schedule.schedule_id, ())


def changes_of(records: Sequence[AuditRecord], request: PageRequest) -> list[ScheduleChange]:
    """Return the changes, with what the request may see of their values."""
    return [
        copy_fields(
            ScheduleChange,
            record,
            details={
                key: value
                for key, value in record.details.items()
                if key in {"note", "release", "host", "job_id", "jobs", "start", "end"} and value is not None
            },
            changes=[
                replace(
                    each,
                    before=_shown(each.key, each.before, request),
                    after=_shown(each.key, each.after, request),
                )
                for each in differences(record)
            ],
        )
        for record in records
    ]


def _shown(key: str, value: object, request: PageRequest) -> str | None:
    if value is None:
        return None
    if key in CLOSED and not request.access.sees_arguments:
        return HIDDEN
    shown = request.settings.redaction.values({key: value})[key]
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, sort_keys=True)
    return text[:MAX_VALUE_LENGTH]
