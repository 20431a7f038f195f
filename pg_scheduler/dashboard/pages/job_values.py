"""The values, steps and signals of a job, as far as a request may see them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from starlette.responses import Response

from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.json_tree import JsonTree, arguments_of, json_tree
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.dashboard.texts import plain
from pg_scheduler.errors import JobNotFoundError, SchemaError
from pg_scheduler.inspect import PublishedItem, StepState
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.step_values import SIGNAL

MEDIA_TYPE: Final = "application/json"

Result: TypeAlias = tuple[()] | tuple[Any]
"""The result of a job in a tuple, because the result itself can be None; an empty tuple for no result."""


async def raw_value(request: PageRequest, *, is_head: bool) -> Response:
    """Return a whole value of a job as JSON. The page of the job shows a bounded part of it.

    The parameter ``part=`` names the value: ``arguments``, ``metadata``, ``result`` or ``step``. For a step,
    ``name=`` is the name of the step.

    Raises:
        NotFoundError: The job, or the value, does not exist or is hidden.
    """
    _, job = await read_job(request)
    part = request.required("part")
    values: dict[str, Any] = {}
    if part == "step":
        for step in await read_steps(job.job_id, request, request.required("name")):
            if step.no_value_reason is None:
                values[part] = step.value
    else:
        result = await read_result(job, request) if part == "result" else ()
        values = values_of(job, result, request)
    if part not in values:
        raise NotFoundError(f"the job has no {part[:50]!r}, or you may not see it")
    if is_head:
        return Response(media_type=MEDIA_TYPE)
    return Response(json.dumps(plain(values[part]), ensure_ascii=False, indent=2), media_type=MEDIA_TYPE)


async def read_job(request: PageRequest) -> tuple[Job, Job]:
    """Return the job whose id the address has: as its row has it, and as far as the request may see it.

    Raises:
        NotFoundError: It does not exist, or is hidden.
    """

    def is_visible(job: Job) -> bool:
        """Return whether the request sees jobs of this name."""
        return request.access.sees_name(job.job_name)

    job = await request.visible("job", request.required("id"), request.inspector.get_job, is_visible)
    return job, request.visible_job(job)


async def read_result(job: Job, request: PageRequest) -> Result:
    """Return the value of a completed job; nothing if no value was kept, or the request may not see it."""
    if job.status is not JobStatus.COMPLETED or not request.access.sees_arguments:
        return ()
    try:
        result = await request.inspector.get_result(job.job_id)
    except JobNotFoundError:  # The job was deleted after it had been read.
        return ()
    if result is None or result.no_value_reason is not None:
        return ()
    return (request.settings.redaction.value(result.value),)


def values_of(job: Job, result: Result, request: PageRequest) -> dict[str, Any]:
    """Return the values of a visible job that are shown, the result first."""
    values: dict[str, Any] = {"result": result[0]} if result else {}
    if request.access.sees_arguments:
        values["arguments"] = arguments_of(job.args, job.kwargs)
        if job.metadata:
            values["metadata"] = job.metadata
    return values


async def read_steps(job_id: str, request: PageRequest, name: str | None = None) -> Sequence[StepState]:
    """Return the steps of a visible job, the oldest first, without what the request may not see.

    With a name, only the step of this name is read, and its value even if it is large. There are no steps if
    the job was deleted meanwhile.
    """
    try:
        step_list = await request.inspector.steps(job_id, name=name)
    except JobNotFoundError:
        return ()
    return [request.visibility.step(step) for step in step_list.items]


@dataclass(frozen=True, slots=True)
class ShownItem:
    """A published value or an item, as the page shows it: its number, and its JSON as a tree or a reason."""

    number: int
    tree: JsonTree | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ShownPublished:
    """What a visible job has published under a name."""

    name: str
    value: ShownItem | None
    count: int
    items: Sequence[ShownItem]


async def read_published(job_id: str, request: PageRequest) -> Sequence[ShownPublished]:
    """Return what a visible job has published, without what ``redact=`` hides; nothing without that right."""
    if not request.access.sees_arguments:
        return ()
    try:
        all_published = await request.inspector.published(job_id)
    # The job was deleted meanwhile, or the role of the dashboard may not read the table, which may be missing
    # before the migration.
    except (JobNotFoundError, SchemaError):
        return ()
    redaction = request.settings.redaction

    def shown(name: str, item: PublishedItem) -> ShownItem:
        """Return an item as the page shows it. Its name counts as the key of its value."""
        if item.no_value_reason is not None:
            return ShownItem(item.number, None, item.no_value_reason)
        value = HIDDEN if redaction.is_hidden(name) else redaction.value(item.value)
        return ShownItem(item.number, json_tree(value), None)

    return [
        ShownPublished(
            published.name,
            None if published.value is None else shown(published.name, published.value),
            published.count,
            [shown(published.name, item) for item in published.items],
        )
        for published in all_published
    ]


def waiting_signals(steps: Sequence[StepState]) -> list[StepState]:
    """Return the signals and messages that a job waits for."""
    return [step for step in steps if step.kind == SIGNAL and step.ended_at is None]
