"""Change jobs: one by its id, or the selected rows of a list."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import datetime
from typing import Any

from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.actions.bulk import change_all
from pg_scheduler.dashboard.actions.request import ActionRequest, ConfirmPage, Redirect
from pg_scheduler.dashboard.context import NotFoundError, RejectedError
from pg_scheduler.dashboard.messages import Undo, code_of
from pg_scheduler.inspect import Progress
from pg_scheduler.inspect.store.bulk import BulkAction


async def cancel(request: ActionRequest) -> Redirect | ConfirmPage:
    """Cancel pending and running jobs. If a single job is named and runs, ask before."""
    if request.is_one and not request.is_for_all and not request.is_confirmed:
        (job_id,) = request.ids
        job = (await request.page.inspector.get_jobs([job_id])).get(job_id)
        if job is not None and job.status is JobStatus.RUNNING and request.access.sees_name(job.job_name):
            question = "Cancel this job? Its attempt runs now and is stopped; what it has done stays done."
            return ConfirmPage(question, "Cancel the job", "/job", rows=[job_id])
    return await change("cancel", request)


async def move(request: ActionRequest) -> Redirect | ConfirmPage:
    """Make pending jobs due at another time."""
    to = request.instant("to")
    if to is None:
        raise RejectedError("enter the time to which the jobs are moved")
    if request.is_for_all or not request.is_one:
        return await change("move", request, to=to)
    (job_id,) = request.ids
    before = (await request.page.inspector.get_jobs([job_id])).get(job_id)
    result = await change("move", request, to=to)
    if not isinstance(result, Redirect) or before is None or before.status is not JobStatus.PENDING:
        return result
    # To restore an overdue job would give it its misfire grace time again, so there is no undo.
    if before.execution_time <= request.page.now:
        return result
    fields = {"to": [before.execution_time.isoformat()]}
    return replace(result, undo=Undo("/actions/jobs/move", {"id": job_id}, fields))


async def delete(request: ActionRequest) -> Redirect | ConfirmPage:
    """Delete jobs that do not run, after a question."""
    if request.is_for_all or request.is_confirmed:
        return await change("delete", request)
    ids = request.ids
    jobs = await request.page.inspector.get_jobs(ids)
    visible = [job_id for job_id in ids if job_id in jobs and request.access.sees_name(jobs[job_id].job_name)]
    if not visible:
        raise NotFoundError("there are no such jobs, or you may not see them")
    many = "this job" if len(visible) == 1 else f"these {len(visible):,} jobs"
    question = f"Delete {many}? Nothing can bring them back."
    back = "/job" if request.is_one else "/jobs"
    return ConfirmPage(question, "Delete", back, rows=visible)


async def run(request: ActionRequest) -> Redirect | ConfirmPage:
    """Make pending jobs due now."""
    return await change("move", request, "run", to=request.page.now)


async def change(
    verb: BulkAction, request: ActionRequest, did: str = "", **arguments: datetime
) -> Redirect | ConfirmPage:
    """Change all jobs of a search; else, in one transaction, the named jobs that the request sees.

    ``did`` is the code of the message; if it is empty, the verb is the code.
    """
    if request.is_for_all:
        return await change_all(verb, request, **arguments)
    call: Any = getattr(request.page.inspector, f"{verb}_jobs")
    steps: AsyncGenerator[Progress, None] = call(
        ids=request.ids, names=request.access.visible_names, **arguments
    )
    last_step = [step async for step in steps][-1]
    if request.is_one and not last_step.done and not last_step.refused:
        raise NotFoundError("there is no such job, or you may not see it")
    code = code_of(did or verb, last_step.done, last_step.refused, last_step.skipped)
    parameters = request.page.parameters
    if request.is_one and verb != "delete":
        return Redirect("/job", code, {"id": parameters["id"]})
    list_parameters = {name: parameters.get(name) for name in ("q", "after", "sort", "cols")}
    is_about_one = verb != "delete" and len(request.ids) == 1 and not last_step.skipped
    return Redirect("/jobs", code, list_parameters, job_id=request.ids[0] if is_about_one else "")
