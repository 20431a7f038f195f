"""Mute findings of the doctor and groups of errors for some days, and end that."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pg_scheduler.dashboard.actions.request import ActionRequest, Done
from pg_scheduler.dashboard.context import NotFoundError, RejectedError
from pg_scheduler.dashboard.pages import doctor, errors
from pg_scheduler.inspect.mutes import MutedKind

MAX_DAYS: Final = 90
"""The audit keeps records for so long by default."""

MAX_NOTE: Final = 500


async def mute(kind: MutedKind, request: ActionRequest) -> Done:
    """Mute a finding or a group for some days, with a note."""
    done, name = await _found(kind, request), request.page.required("id")
    days = request.number("days")
    if days is None or not 1 <= days <= MAX_DAYS:
        raise RejectedError(f"days must be a whole number from 1 to {MAX_DAYS}, not {days}")
    details = {"until": (request.page.now + timedelta(days=days)).isoformat()}
    if note := request.text("note")[:MAX_NOTE]:
        details["note"] = note
    return await _record(f"mute_{kind}", name, details, request, done)


async def unmute(kind: MutedKind, request: ActionRequest) -> Done:
    """End the mute of a finding or a group."""
    done = await _found(kind, request)
    return await _record(f"unmute_{kind}", request.page.required("id"), {}, request, done)


async def _record(
    action: str, name: str, details: dict[str, str], request: ActionRequest, done: Done
) -> Done:
    await request.operations.inspector.record_action(action, name, **details)
    return Done(done.path, action, done.parameters)


async def _found(kind: MutedKind, request: ActionRequest) -> Done:
    """Return the page of a finding or a group, which the request sees.

    Raises:
        NotFoundError: There is none.
    """
    asked = request.page.required("id")
    if kind == "error":
        since, _, groups = await errors.read_groups(request.page)
        names, done = (
            {each.fingerprint for each in groups},
            Done("/error", None, {"id": asked, "since": since}),
        )
    else:
        names, done = {each.mute_id for each in (await doctor.build(request.page)).findings}, Done("/doctor")
    if asked in names:
        return done
    raise NotFoundError(f"there is no {kind} {asked[:200]!r} now, or you may not see it")
