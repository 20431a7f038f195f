"""The values of a job: its result, its arguments and its metadata, as far as a request may see them."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

from starlette.responses import Response

from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.pages.job_steps import read_steps
from pg_scheduler.dashboard.texts import plain
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.jobs.model import Job
from pg_scheduler.status import JobStatus

MEDIA_TYPE: Final = "application/json"

Result: TypeAlias = tuple[()] | tuple[Any]


async def raw_value(request: PageRequest, *, is_head: bool) -> Response:
    """Return the whole value of a job that ``part=`` names, as JSON: a page shows a bounded part of it.

    ``name=`` names the step of the part ``step``.

    Raises:
        NotFoundError: The job, or the value, does not exist or is hidden.
    """
    _, job = await read_job(request)
    part = request.required("part")
    if part == "step":
        (step,) = await read_steps(job.job_id, request, request.required("name")) or (None,)
        values = {} if step is None or step.no_value_reason is not None else {part: step.value}
    else:
        values = values_of(job, await read_result(job, request) if part == "result" else (), request)
    if part not in values:
        raise NotFoundError(f"the job has no {part[:50]!r}, or you may not see it")
    if is_head:
        return Response(media_type=MEDIA_TYPE)
    return Response(json.dumps(plain(values[part]), ensure_ascii=False, indent=2), media_type=MEDIA_TYPE)


async def read_job(request: PageRequest) -> tuple[Job, Job]:
    """Return the job of a request, and what the request may see of it.

    Raises:
        NotFoundError: It does not exist, or is hidden.
    """
    sees_name, read = request.access.sees_name, request.inspector.get_job
    job = await request.visible("job", request.required("id"), read, lambda job: sees_name(job.job_name))
    return job, request.visible_job(job)


async def read_result(job: Job, request: PageRequest) -> Result:
    """Return the value of a completed job in a tuple; an empty one if none was kept, or none may be seen."""
    if job.status is not JobStatus.COMPLETED or not request.access.sees_arguments:
        return ()
    try:
        found = await request.inspector.get_result(job.job_id)
    except JobNotFoundError:  # deleted since
        return ()
    if found is None or found.no_value_reason is not None:
        return ()
    return (request.settings.redaction.value(found.value),)


def values_of(job: Job, result: Result, request: PageRequest) -> dict[str, Any]:
    """Return the values of a visible job that are shown, the result first."""
    found: dict[str, Any] = {"result": result[0]} if result else {}
    if request.access.sees_arguments:
        named = {"kwargs": job.kwargs} if job.kwargs else {}
        found["arguments"] = {"args": list(job.args), **named} if job.args else job.kwargs
        if job.metadata:
            found["metadata"] = job.metadata
    return found
