"""Pause, resume and trigger schedules: one by its id, or the selected rows; backfill and remove one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final, Literal
from urllib.parse import quote

from pg_scheduler.dashboard.actions.request import ActionRequest, ConfirmPage, PageAnswer, Redirect
from pg_scheduler.dashboard.context import NotFoundError, RejectedError
from pg_scheduler.dashboard.messages import Undo, code_of, message_of
from pg_scheduler.dashboard.pages.schedules import build_pause, is_claimed, visible_schedule
from pg_scheduler.dashboard.pauses import FIELDS
from pg_scheduler.dashboard.texts import utc
from pg_scheduler.database.faults import REFUSALS, is_refused_change
from pg_scheduler.errors import JobConflictError, ScheduleNotFoundError, SchedulerError
from pg_scheduler.events.log import log_refusal
from pg_scheduler.inspect.fire_searches import search_one
from pg_scheduler.inspect.texts import counted
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.triggers.base import is_fixed_delay
from pg_scheduler.triggers.search import INSTANT

MAX_BACKFILL: Final = 1000
"""Fire times of one backfill."""

_DID: Final[Mapping[str, str]] = {
    "pause": "schedule_paused",
    "resume": "schedule_resumed",
    "trigger": "schedule_triggered",
}


async def pause(request: ActionRequest) -> Redirect | PageAnswer:
    """Pause schedules, until a time or until they are resumed."""
    form = request.pause
    try:
        until = form.ends_at(request.page.now)
    except RejectedError as error:
        if request.is_one:
            return await _asked_again(request, str(error))
        raise
    note = form.note or None
    # The field matters only for a pause that ends by itself.
    resume_from = _resume_from(until is not None and form.at_end == "pause")

    async def change(schedule: Schedule) -> bool:
        """Pause a schedule; return False if it was already paused until then."""
        await request.operations.scheduler.schedules.pause(
            schedule.schedule_id, note=note, until=until, resume_from=resume_from
        )
        return schedule.paused_at is None or schedule.paused_until != until

    try:
        return await _change(request, "pause", change)
    except ValueError as error:
        # The form of a single schedule shows the error next to the end of the pause. If no end was entered,
        # the error is about something else.
        if until is None or not request.is_one:
            raise
        return await _asked_again(request, str(error))


async def _asked_again(request: ActionRequest, wrong: str) -> PageAnswer:
    """Return the form of a pause as it was sent, with a text that states what is wrong with its end."""
    entered_fields = {name: request.text(name) for name in FIELDS}
    page = await build_pause(replace(request.page, parameters={**request.page.parameters, **entered_fields}))
    return PageAnswer(replace(page, entered=page.entered._replace(wrong=wrong)), "schedule_pause", 400)


def _resume_from(is_caught_up: bool) -> Literal["now", "pause"]:
    """Return whether the fire times of a pause count as missed (``"pause"``), or are left out (``"now"``)."""
    return "pause" if is_caught_up else "now"


async def resume(request: ActionRequest) -> Redirect:
    """Resume schedules. The field ``from`` decides whether the fire times of the pause count as missed."""
    resume_from = _resume_from(request.text("from") == "pause")

    async def change(schedule: Schedule) -> bool:
        """Resume a schedule; return False if it was not paused."""
        await request.operations.scheduler.schedules.resume(schedule.schedule_id, resume_from=resume_from)
        return schedule.paused_at is not None

    return await _change(request, "resume", change)


async def trigger(request: ActionRequest) -> Redirect | ConfirmPage:
    """Enqueue one job of each schedule now; of several ones, after a question."""
    rows = list(dict.fromkeys(request.ids))
    if len(rows) > 1 and not request.is_confirmed:
        question = f"Run {len(rows)} schedules now? A job of each is enqueued at once."
        return ConfirmPage(question, "Run now", "/schedules", rows=rows)

    job_ids: list[str] = []

    async def change(schedule: Schedule) -> bool:
        """Enqueue a job of a schedule, and note the id of the job."""
        try:
            job_id = await request.operations.scheduler.schedules.trigger(schedule.schedule_id)
        except JobConflictError as error:
            raise RejectedError(request.page.visible_conflict(error), 409) from error
        if job_id is None:
            raise ScheduleNotFoundError(schedule.schedule_id)
        job_ids.append(job_id)
        return True

    result = await _change(request, "trigger", change)
    # The message links to the job, if there is only one.
    return replace(result, job_id=job_ids[0]) if len(job_ids) == 1 else result


async def _change_one(schedule: Schedule, change: Callable[[Schedule], Awaitable[bool]]) -> bool:
    """Change one of several schedules; return whether that made a difference.

    Raises:
        ValueError: A trigger or a constraint of the application refuses this schedule, which is logged.
    """
    try:
        return await change(schedule)
    except REFUSALS as error:
        if not is_refused_change(error):
            raise
        log_refusal(f"schedule {schedule.schedule_id!r} is left as it is", error, is_last=True)
        raise ValueError(schedule.schedule_id) from error


async def _change(
    request: ActionRequest, action: str, change: Callable[[Schedule], Awaitable[bool]]
) -> Redirect:
    """Change the schedule that the address names, or each of those that were selected in a list.

    If several were selected, one that cannot be changed does not keep the others from being changed. The
    message states how many were changed, and the undo is offered if it can restore all of these.

    Args:
        request: The request.
        action: ``pause``, ``resume`` or ``trigger``.
        change: Changes a schedule, and returns whether that made a difference.
    """
    if request.is_one:
        schedule = await find_schedule(request)
        undo = _undo_of(schedule, action, request) if await change(schedule) else None
        return Redirect("/schedule", _DID[action], {"id": schedule.schedule_id}, undo)
    # Numbers of schedules.
    changed = refused = missing = failed = 0
    restorable_ids: list[str] = []

    def message_code() -> str:
        """Return the code of the message that states the numbers so far."""
        counts = [changed, refused, missing]
        # The text about failures is in the message only if there are any.
        if failed:
            counts.append(failed)
        return code_of(f"schedules_{action}", *counts)

    for schedule_id in dict.fromkeys(request.rows):
        try:
            schedule = await visible_schedule(request.page, schedule_id)
            is_changed = await _change_one(schedule, change)
        except (NotFoundError, ScheduleNotFoundError):
            missing += 1
        except RejectedError:
            refused += 1
        except ValueError:
            # The change is invalid for this schedule only, so the next ones are changed.
            failed += 1
        except SchedulerError as error:
            # The database is unavailable, so the next ones cannot be changed either.
            raise RejectedError(
                f"the database did not answer in time; before: {message_of(message_code())}. "
                f"{schedule_id!r} may have been changed or not, and those after it were not; "
                "look at them before you select them",
                503,
            ) from error
        else:
            if is_changed:
                changed += 1
            else:
                refused += 1
            # The undo below is for several schedules, and resumes them. So it cannot restore a schedule that
            # was paused before.
            if schedule.paused_at is None and _undo_of(schedule, action, request) is not None:
                restorable_ids.append(quote(schedule_id, safe=""))
    list_parameters = {name: request.page.parameters.get(name) for name in ("state", "task", "q", "after")}
    undo = None
    # An undo is offered only if it restores all schedules that were changed.
    if restorable_ids and len(restorable_ids) == changed:
        filters = {name: text for name, text in list_parameters.items() if text}
        undo = Undo("/actions/schedules/resume", filters, {"from": ["pause"], "row": restorable_ids})
    return Redirect("/schedules", message_code(), list_parameters, undo)


def _undo_of(schedule: Schedule, action: str, request: ActionRequest) -> Undo | None:
    """Return the action that restores a schedule as it was; None if no action restores it exactly.

    Resuming resets the number of failures, so no action restores a schedule that had failures.
    """
    address, until = {"id": schedule.schedule_id}, schedule.paused_until
    has_pause_ended = until is not None and until <= request.page.now
    if schedule.failures or has_pause_ended:
        return None
    # The schedule was not paused before the action.
    if schedule.paused_at is None:
        if action != "pause":
            return None
        return Undo("/actions/schedules/resume", address, {"from": ["pause"]})
    # The schedule was paused before the action, so another pause restores it, if anything does. Resuming has
    # decided what becomes of the fire times that have passed. Another pause would not revoke that.
    has_passed = schedule.next_fire_at is not None and schedule.next_fire_at <= request.page.now
    if action == "trigger" or (action == "resume" and has_passed):
        return None
    fields = {
        "note": [schedule.note or ""],
        "until": [] if until is None else [until.isoformat()],
        "at_end": ["pause" if schedule.keeps_fire_times else "now"],
    }
    return Undo("/actions/schedules/pause", address, fields)


async def backfill(request: ActionRequest) -> Redirect | ConfirmPage:
    """Enqueue a job for each fire time in a span, after a question with their number."""
    schedule = await find_schedule(request)
    start, end = request.instant("start"), request.instant("end")
    if start is None or end is None:
        raise RejectedError("enter the start and the end of the span")
    if not request.is_confirmed:
        number = await _count_fires(schedule, start, end)
        # With 0 or too many fire times there is no question: the call below enqueues nothing, or states why
        # it refuses the span.
        if 0 < number <= MAX_BACKFILL:
            question = (
                f"{schedule.schedule_id} has {counted(number, 'fire time')} from {utc(start)} to {utc(end)}. "
                "Enqueue a job for each that has none?"
            )
            fields = {"start": start.isoformat(), "end": end.isoformat()}
            return ConfirmPage(question, "Enqueue", "/schedule", fields=fields)
    jobs = await request.operations.scheduler.schedules.backfill(
        schedule.schedule_id, start, end, limit=MAX_BACKFILL
    )
    return _done(schedule, code_of("schedule_backfilled", len(jobs)))


async def _count_fires(schedule: Schedule, start: datetime, end: datetime) -> int:
    """Return the number of fire times in a span, at most one more than a backfill may have.

    It is 0 for an empty span, and for a trigger that cannot be interpreted or counts from the end of a job.
    """
    if start >= end or schedule.trigger is None or is_fixed_delay(schedule.trigger):
        return 0
    # A backfill enqueues jobs beyond ``max_runs`` too.
    all_runs = replace(schedule, max_runs=None)
    # The search begins just before the start, because its fire times are later than ``after``.
    search = partial(all_runs.upcoming, MAX_BACKFILL + 1, after=start - INSTANT)
    return sum(fire < end for fire in await search_one(schedule.trigger, search))


async def remove(request: ActionRequest) -> Redirect | ConfirmPage:
    """Delete a schedule, after a question. Code that still declares it would restore it."""
    schedule = await find_schedule(request)
    if is_claimed(schedule, await request.page.inspector.workers()):
        raise RejectedError(
            f"{schedule.schedule_id!r} is defined in code, and a live worker may declare it: its next start "
            "would restore it; remove it from the code, or pause it here",
            409,
        )
    if not request.is_confirmed:
        question = "Delete this schedule? Its pending jobs still run."
        return ConfirmPage(question, "Remove", "/schedule", rows=[schedule.schedule_id])
    if not await request.operations.scheduler.schedules.remove(schedule.schedule_id):
        raise ScheduleNotFoundError(schedule.schedule_id)
    return Redirect("/schedules", "schedule_removed")


async def find_schedule(request: ActionRequest) -> Schedule:
    """Return the schedule that the address names.

    Raises:
        NotFoundError: It does not exist, or the request does not see it.
    """
    return await visible_schedule(request.page, request.page.required("id"))


def _done(schedule: Schedule, did: str) -> Redirect:
    """Return the redirect to the page of a schedule, with the message that has this code."""
    return Redirect("/schedule", did, {"id": schedule.schedule_id})
