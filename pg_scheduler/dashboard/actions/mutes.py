"""Mute and unmute findings of the doctor and groups of errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from pg_scheduler.dashboard.actions.request import ActionRequest, Redirect
from pg_scheduler.dashboard.context import NotFoundError, RejectedError
from pg_scheduler.dashboard.pages import doctor, errors
from pg_scheduler.inspect.audit import MutedKind

MAX_DAYS: Final = 90
"""A mute is a record of the audit, which keeps records for this many days by default."""

MAX_NOTE: Final = 500


async def mute(kind: MutedKind, request: ActionRequest) -> Redirect:
    """Mute a finding or a group for some days, with a note."""
    days = request.number("days")
    if days is None or not 1 <= days <= MAX_DAYS:
        raise RejectedError(f"days must be a whole number from 1 to {MAX_DAYS}, not {days}")
    details = {"until": (request.page.now + timedelta(days=days)).isoformat()}
    if note := request.text("note")[:MAX_NOTE]:
        details["note"] = note
    return await _record(kind, "mute", request, details)


async def unmute(kind: MutedKind, request: ActionRequest) -> Redirect:
    """End the mute of a finding or a group."""
    return await _record(kind, "unmute", request, {})


async def _record(kind: MutedKind, verb: str, request: ActionRequest, details: Mapping[str, str]) -> Redirect:
    """Record in the audit that a finding or a group of errors is muted or unmuted, and return to its page.

    A mute is such a record and nothing else.

    Raises:
        NotFoundError: There is no such finding or group, or the request does not see it.
    """
    muted_id, action = request.page.required("id"), f"{verb}_{kind}"
    if kind == "error":
        since = request.page.choice("since", errors.SPANS, "1d")
        visible_ids = {(await errors.read_group(request.page, muted_id)).fingerprint}
        result = Redirect("/error", action, {"id": muted_id, "since": since})
    else:
        visible_ids = {finding.mute_id for finding in (await doctor.build(request.page)).findings}
        result = Redirect("/doctor", action)
    if muted_id not in visible_ids:
        raise NotFoundError(f"there is no {kind} {muted_id[:200]!r} now, or you may not see it")
    await request.operations.inspector.record_action(action, muted_id, **details)
    return result
