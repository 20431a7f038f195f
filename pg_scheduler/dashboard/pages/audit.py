"""The page of the audit: who did what, as sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from pg_scheduler.dashboard.context import PageRequest, RejectedError, View, identity_of
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.dashboard.texts import utc
from pg_scheduler.inspect import AuditPage, AuditRecord
from pg_scheduler.inspect.bulk_runs import PREFIX
from pg_scheduler.inspect.schedule_history import ChangedPart, differences
from pg_scheduler.inspect.store.bulk_runs import START
from pg_scheduler.inspect.texts import counted
from pg_scheduler.jobs.history import instant_from

PAGE_LENGTH: Final = 50

FILTERS: Final = ("actor", "action", "subject", "via")

WAYS: Final = ("admin", "api", "cli", "code", "dashboard", "inspector", "mcp", "worker")
"""The ways by which changes are made, as records have them."""

SPANS: Final[Mapping[str, timedelta | None]] = {
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "": None,
}
"""The times to choose from, by the parameter ``since``."""

OPEN_DETAILS: Final = frozenset(
    {
        "host",
        "count",
        "release",
        "group",
        "to",
        "by_s",
        "next",
        "note",
        "until",
        "from_now",
        "suspends_expiry",
    }
)
"""Details that contain neither arguments nor metadata."""

VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "add_schedule": ("added the schedule", "/schedule"),
    "update_schedule": ("changed the schedule", "/schedule"),
    "remove_schedule": ("removed the schedule", "/schedule"),
    "pause_schedule": ("paused the schedule", "/schedule"),
    "resume_schedule": ("resumed the schedule", "/schedule"),
    "trigger_schedule": ("triggered the schedule", "/schedule"),
    "backfill_schedule": ("backfilled the schedule", "/schedule"),
    "pause_task": ("paused the task", "/task"),
    "resume_task": ("resumed the task", "/task"),
    "drain_worker": ("drained the worker", "/worker"),
    "resume_worker": ("resumed the worker", "/worker"),
    "declare_dead": ("declared the worker", "/worker"),
    "cancel_jobs": ("cancelled", "/job"),
    "retry_jobs": ("retried", "/job"),
    "delete_jobs": ("deleted", "/job"),
    "move_jobs": ("moved", "/job"),
    "keep_job": ("let the job wait without expiry", "/job"),
    "skip_head": ("let a sequence continue behind the job", "/job"),
    "move_to_front": ("moved the job to the front of its sequence", "/job"),
    "change_job": ("changed the job", "/job"),
    "add_job": ("added the job", "/job"),
    "run_job": ("ran the job", "/job"),
    "signal_job": ("signalled the job", "/job"),
    "broadcast": ("sent to all jobs that waited", ""),
    "wake_job": ("ended the sleep of the job", "/job"),
    "show_stack": ("requested the stack of the job", "/job"),
    "mute_finding": ("muted the finding", "/doctor"),
    "unmute_finding": ("unmuted the finding", "/doctor"),
    "mute_error": ("muted the errors", "/error"),
    "unmute_error": ("unmuted the errors", "/error"),
    "vacuum_jobs": ("deleted old jobs", ""),
    "start_release": ("first started the release", ""),
    "notify_findings": ("sent findings to the webhook", ""),
    "start_bulk": ("started the bulk run", "/run"),
    "resume_bulk": ("resumed the bulk run", "/run"),
    "stop_bulk": ("stopped the bulk run", "/run"),
    "end_bulk": ("ended the bulk run", "/run"),
}
"""By action, what the actor did, before the subject, and the path of the page about the subject, or none."""

MAX_VALUE_LENGTH: Final = 2_000

CLOSED: Final = frozenset({"arguments", "metadata"})
"""Parts of a definition that are hidden with arguments."""

MANY: Final = frozenset({"cancel_jobs", "retry_jobs", "delete_jobs", "move_jobs"})
"""Actions on a batch of jobs. If the batch has a single job, this job is the subject of the record."""


@dataclass(frozen=True, slots=True)
class AuditItem:
    """A record, its sentence, and the parts of a schedule that it changed.

    Attributes:
        record: The record, with the details that the request may see.
        verb: What the actor did, before the subject.
        name: The name of the worker that is its subject; None for another subject, or if it has no name.
        path: The path of the page about the subject; empty for no page.
        extent: The rest of the sentence, after the subject; empty for none.
        where: The search that found the changed jobs; empty if it is hidden, or there is none.
        is_batch: Whether a bulk run, its subject, changed the jobs.
        changes: The parts of a schedule before and after.
        batches: How many records it stands for: those of batches of the same run.
        is_cut: Whether other pages may have further batches of the run.
    """

    record: AuditRecord
    verb: str
    name: str | None
    path: str
    extent: str
    where: str
    is_batch: bool
    changes: Sequence[ChangedPart]
    batches: int = 1
    is_cut: bool = False

    @property
    def details(self) -> Mapping[str, Any]:
        """The details that neither the sentence nor the changes contain."""
        shown_keys = {"note", "where", "count"}
        if self.extent:
            shown_keys.add("until")
        if self.changes:
            shown_keys |= {"before", "after"}
        return {key: value for key, value in self.record.details.items() if key not in shown_keys}


async def build(request: PageRequest) -> View:
    """Read a page of the audit, the newest record first."""
    page = await read(request, PAGE_LENGTH, request.parameters.get("after") or None)
    # Records are read by their ids. Transactions that overlap can get ids in another order than their times.
    records = sorted(page.items, key=lambda record: (record.at, record.id), reverse=True)
    filters = {name: request.parameters.get(name, "") for name in FILTERS}
    names = await request.worker_names()
    items = folded(
        [item_of(record, request, names) for record in records],
        has_newer=bool(request.parameters.get("after")),
        has_older=page.next is not None,
    )
    return View(
        filters=filters,
        since=request.parameters.get("since", ""),
        items=items,
        summary=page.summary,
        next=page.next,
        _head=_head(page),
        _given={name: value for name, value in filters.items() if value},
        # Also those that only the address names.
        _choices={
            "action": sorted({*VERBS, filters["action"]} - {""}),
            "via": sorted({*WAYS, filters["via"]} - {""}),
        },
    )


def _head(page: AuditPage) -> str:
    """Return the number of records and their order in one line."""
    if page.next is None:
        return f"{counted(len(page.items), 'record')}, newest first"
    return f"{counted(len(page.items), 'record', is_capped=True)}, newest first; older records follow"


async def read(request: PageRequest, limit: int, after: str | None) -> AuditPage:
    """Return records that match the filters of the request, with all their details.

    Raises:
        RejectedError: The request may not read the audit, or a filter is invalid.
    """
    if request.access.visible_names is not None:
        raise RejectedError("you may not read the audit: its records belong to all names", 403)
    span = SPANS[request.choice("since", SPANS)]
    actor, action, subject, via = (request.parameters.get(name) or None for name in FILTERS)
    try:
        return await request.inspector.audit(
            limit=limit,
            after=after,
            since=None if span is None else request.now - span,
            actor=actor,
            action=action,
            subject=subject,
            via=via,
        )
    # A filter is a text that no row can have, or ``after`` is no position in the audit.
    except ValueError as error:
        raise RejectedError(str(error)) from error


def visible(record: AuditRecord, request: PageRequest) -> AuditRecord:
    """Return the record with the details that the request may see."""
    redaction = request.settings.redaction
    if not request.access.sees_arguments:
        details = {key: value for key, value in record.details.items() if key in OPEN_DETAILS}
        return replace(record, details=details)
    visible_details: dict[str, Any] = redaction.values(record.details)
    # A search may contain a hidden value, with which it compares.
    if "where" in visible_details and not redaction.is_empty:
        visible_details["where"] = HIDDEN
    return replace(record, details=visible_details)


def verb_of(action: str) -> tuple[str, str]:
    """Return what an action did to its subject, and the path of the page about the subject, or none.

    An action that is not known here may have been recorded by another release.
    """
    unknown_action = action.replace("_", " "), ""
    return VERBS.get(action, unknown_action)


def item_of(
    record: AuditRecord, request: PageRequest, names_of_workers: Mapping[str, str] | None = None
) -> AuditItem:
    """Return an audit record as a sentence, with what the request may see of it.

    ``names_of_workers`` are the names of workers by their ids, for records about a worker.
    """
    visible_record = visible(record, request)
    verb, path = verb_of(record.action)
    # The id of a bulk run, which changes the jobs of a search in batches, begins with this prefix.
    is_run = (record.subject or "").startswith(PREFIX)
    count, where = visible_record.details.get("count"), visible_record.details.get("where")
    jobs = counted(count, "job") if isinstance(count, int) else "jobs"
    if record.action in MANY:
        has_many_jobs = is_run or record.subject is None
        verb = f"{verb} {jobs}" if has_many_jobs else f"{verb} the job"
    name_of_worker = None
    if path == "/worker":
        name_of_worker = identity_of(record) or (names_of_workers or {}).get(record.subject or "")
    return AuditItem(
        record=visible_record,
        verb=verb,
        name=name_of_worker,
        path="/run" if is_run else path,
        extent=f"dead, {jobs} reclaimed" if record.action == "declare_dead" else _until(visible_record),
        where=where if isinstance(where, str) and where != HIDDEN else "",
        is_batch=is_run and record.action in MANY,
        changes=_changed_parts(record, request),
    )


def folded(
    items: Sequence[AuditItem], *, has_newer: bool = False, has_older: bool = False
) -> list[AuditItem]:
    """Return audit items in which the newest batch of a bulk run stands for all batches of the run.

    It has the number of the jobs of all batches among the items, which are one page of the audit. The number
    has a "+" if another page may have further batches of the run. A page of newer records may always have
    some. A page of older ones has none if the start of the run is among the items.

    Args:
        items: The items of the page, the newest first.
        has_newer: Whether there is a page of newer records.
        has_older: Whether there is a page of older records.
    """
    begun_runs = {item.record.subject for item in items if item.record.action == START}
    items_by_key: dict[object, AuditItem] = {}
    for item in items:
        record = item.record
        # A run that was resumed may have several actors, whose batches are shown separately. The id of a
        # record that is no batch is unique, so this record stays by itself.
        key = (record.subject, record.action, record.actor, record.via) if item.is_batch else record.id
        newer_item = items_by_key.get(key)
        items_by_key[key] = item if newer_item is None else _added(newer_item, item)
    folded_items: list[AuditItem] = []
    for item in items_by_key.values():
        # Another page may have further batches of this run.
        if item.is_batch and (has_newer or (has_older and item.record.subject not in begun_runs)):
            folded_items.append(_marked(item))
        else:
            folded_items.append(item)
    return folded_items


def _added(item: AuditItem, older: AuditItem) -> AuditItem:
    """Return an item of a bulk run that stands for an older batch too, with the jobs of both."""
    counts = [audit_item.record.details.get("count") for audit_item in (item, older)]
    number = sum(count for count in counts if isinstance(count, int))
    record = replace(item.record, details={**item.record.details, "count": number})
    verb = f"{VERBS[record.action][0]} {counted(number, 'job')}"
    return replace(item, record=record, verb=verb, batches=item.batches + 1)


def _marked(item: AuditItem) -> AuditItem:
    """Return an item of a bulk run with a "+" at its number of jobs, because other pages may have others."""
    number = item.record.details.get("count")
    jobs = counted(number, "job", is_capped=True) if isinstance(number, int) else "jobs"
    return replace(item, verb=f"{VERBS[item.record.action][0]} {jobs}", is_cut=True)


def _until(record: AuditRecord) -> str:
    """Return when a mute or a pause ends, as the sentence states it; empty if it has no end."""
    until = instant_from(record.details.get("until"))
    return f"until {utc(until)}" if until is not None else ""


def _changed_parts(record: AuditRecord, request: PageRequest) -> list[ChangedPart]:
    """Return the parts of a schedule before and after a change, with the values that the request may see."""
    return [
        replace(
            difference,
            before=_shown(difference.key, difference.before, request),
            after=_shown(difference.key, difference.after, request),
        )
        for difference in differences(record)
    ]


def _shown(key: str, value: object, request: PageRequest) -> str | None:
    """Return a part of a definition as a text without hidden values; None if there is no such part."""
    if value is None:
        return None
    if key in CLOSED and not request.access.sees_arguments:
        return HIDDEN
    shown_value = request.settings.redaction.values({key: value})[key]
    if isinstance(shown_value, str):
        text = shown_value
    else:
        text = json.dumps(shown_value, ensure_ascii=False, sort_keys=True)
    return text[:MAX_VALUE_LENGTH]
