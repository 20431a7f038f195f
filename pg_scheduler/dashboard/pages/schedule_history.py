"""The history of a schedule, as far as a request may see it: its jobs and its changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.inspect import AuditRecord
from pg_scheduler.inspect.schedule_history import ChangedPart, PastFire, differences, newest_results

MAX_VALUE_LENGTH: Final = 2_000

CLOSED: Final = frozenset({"arguments", "metadata"})
"""Parts of a definition that are hidden with arguments."""


async def results_of(schedule_id: str | None, request: PageRequest) -> Sequence[PastFire]:
    """Return the last 20 fire times of the schedule of a job, the newest first."""
    schedule = None if schedule_id is None else await request.inspector.get_schedule(schedule_id)
    if schedule is None or not request.access.sees_name(schedule.task):
        return ()
    results = await newest_results(request.inspector, [schedule], request.access.sees_name)
    return results.get(schedule.schedule_id, ())


def changed_parts(record: AuditRecord, request: PageRequest) -> list[ChangedPart]:
    """Return the parts of a schedule before and after a change, with the values that the request may see."""
    return [
        replace(
            each,
            before=_shown(each.key, each.before, request),
            after=_shown(each.key, each.after, request),
        )
        for each in differences(record)
    ]


def _shown(key: str, value: object, request: PageRequest) -> str | None:
    if value is None:
        return None
    if key in CLOSED and not request.access.sees_arguments:
        return HIDDEN
    shown = request.settings.redaction.values({key: value})[key]
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, sort_keys=True)
    return text[:MAX_VALUE_LENGTH]
