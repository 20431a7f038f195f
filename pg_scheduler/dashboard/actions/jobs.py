"""Change jobs: one by its id, or the selected rows of a list."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from pg_scheduler.dashboard.actions.bulk import change_all
from pg_scheduler.dashboard.actions.confirm import ask
from pg_scheduler.dashboard.actions.request import ActionRequest, Done, Shown
from pg_scheduler.dashboard.context import NotFoundError, RejectedError
from pg_scheduler.dashboard.messages import code_of
from pg_scheduler.inspect import Progress
from pg_scheduler.status import JobStatus


async def cancel(request: ActionRequest) -> Done | Shown:
    """Cancel pending and running jobs; one that runs, after a question."""
    if request.is_for_all:
        return await change_all("cancel", request)
    if _is_one(request) and not request.is_confirmed:
        (job_id,) = _ids(request)
        job = (await request.operations.inspector.get_jobs([job_id])).get(job_id)
        if job is not None and job.status is JobStatus.RUNNING and request.access.sees_name(job.job_name):
            question = "Cancel this job? Its attempt runs now and is stopped; what it has done stays done."
            return ask(request, question, "Cancel the job", "/job", rows=[job_id])
    return await _change(request, "cancel", request.operations.inspector.cancel_jobs)


async def retry(request: ActionRequest) -> Done | Shown:
    """Run finished jobs again."""
    if request.is_for_all:
        return await change_all("retry", request)
    return await _change(request, "retry", request.operations.inspector.retry_jobs)


async def run(request: ActionRequest) -> Done | Shown:
    """Make pending jobs due now."""
    if request.is_for_all:
        return await change_all("move", request, to=request.page.now)
    return await _change(request, "run", request.operations.inspector.move_jobs, to=request.page.now)


async def move(request: ActionRequest) -> Done | Shown:
    """Make pending jobs due at another time."""
    to = request.instant("to")
    if to is None:
        raise RejectedError("enter the time to which the jobs are moved")
    if request.is_for_all:
        return await change_all("move", request, to=to)
    return await _change(request, "move", request.operations.inspector.move_jobs, to=to)


async def delete(request: ActionRequest) -> Done | Shown:
    """Delete jobs that do not run, after a question."""
    if request.is_for_all:
        return await change_all("delete", request)
    ids = _ids(request)
    if request.is_confirmed:
        return await _change(request, "delete", request.operations.inspector.delete_jobs)
    jobs = await request.operations.inspector.get_jobs(ids)
    visible = [each for each in ids if each in jobs and request.access.sees_name(jobs[each].job_name)]
    if not visible:
        raise NotFoundError("there are no such jobs, or you may not see them")
    many = "this job" if len(visible) == 1 else f"these {len(visible):,} jobs"
    question = f"Delete {many}? Nothing can bring them back."
    back = "/job" if _is_one(request) else "/jobs"
    return ask(request, question, "Delete", back, rows=visible)


async def _change(request: ActionRequest, action: str, call: Any, **arguments: Any) -> Done:
    """Change the jobs that the request names and sees, in one transaction."""
    steps: AsyncGenerator[Progress, None] = call(
        ids=_ids(request), names=request.access.visible_names, **arguments
    )
    last = [step async for step in steps][-1]
    if _is_one(request) and not last.done and not last.refused:
        raise NotFoundError("there is no such job, or you may not see it")
    did = code_of(action, last.done, last.refused, last.skipped)
    parameters = request.page.parameters
    if _is_one(request) and action != "delete":
        return Done("/job", did, {"id": parameters["id"]})
    return Done("/jobs", did, {name: parameters.get(name) for name in ("q", "after", "sort", "cols")})


def _is_one(request: ActionRequest) -> bool:
    return "id" in request.page.parameters


def _ids(request: ActionRequest) -> Sequence[str]:
    return [request.page.required("id")] if _is_one(request) else request.rows
