"""Change jobs: one by its id, or the selected rows of a list."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from pg_scheduler.base.messages import LOG, STACK
from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.actions.bulk import change_all
from pg_scheduler.dashboard.actions.request import MAX_ROWS, ActionRequest, ConfirmPage, Redirect
from pg_scheduler.dashboard.context import NotFoundError, RejectedError
from pg_scheduler.dashboard.messages import Undo, code_of
from pg_scheduler.dashboard.pages.job_values import read_job
from pg_scheduler.dashboard.pages.look import can_look
from pg_scheduler.dashboard.workflow import own_steps
from pg_scheduler.inspect import Progress
from pg_scheduler.inspect.looks import request_look
from pg_scheduler.inspect.store.bulk import BulkAction
from pg_scheduler.inspect.texts import counted, listed
from pg_scheduler.inspect.workflows import read_family
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.step_values import SLEEP


async def cancel(request: ActionRequest) -> Redirect | ConfirmPage:
    """Cancel pending and running jobs; a single job that has begun only after the user has confirmed it."""
    is_single = request.is_one and not request.is_for_all
    if is_single and not request.is_confirmed:
        (job_id,) = request.ids
        job = (await request.page.inspector.get_jobs([job_id])).get(job_id)
        # change() below reports a job that is missing or hidden.
        if job is not None and request.access.sees_name(job.job_name):
            question = ""
            if job.status is JobStatus.RUNNING:
                question = (
                    "Cancel this job? Its attempt runs now and is stopped; what it has done stays done."
                )
            elif job.suspended_by is not None:
                question = await _question_about_steps(job, request)
            if question:
                return ConfirmPage(question, "Cancel the job", "/job", rows=[job_id])
    return await change("cancel", request)


async def _question_about_steps(job: Job, request: ActionRequest) -> str:
    """Return the question that is asked before a workflow that sleeps or waits is cancelled."""
    steps = (await request.page.inspector.steps(job.job_id)).items
    family = await read_family(request.page.inspector, job.job_id, steps, request.access.sees_name)
    ended_steps = [step for step in own_steps(steps) if step.ended_at is not None]
    waits = listed([step.name for step in steps if step.ended_at is None])
    verb = "sleeps" if job.suspended_by == SLEEP else "waits"
    text = f"Cancel this workflow, which {verb} in {waits}?" if waits else "Cancel this workflow?"
    if ended_steps:
        text += f" {counted(len(ended_steps), 'step')} of it ended, and what it did stays done."
    if family.open_children:
        children = counted(len(family.open_children), "child job", is_capped=family.has_more_children)
        text += f" {children} of it would not end with it; Cancel with children ends them too."
    return text


async def move(request: ActionRequest) -> Redirect | ConfirmPage:
    """Make pending jobs due at another time. After the move of a single job, an undo is offered."""
    to = request.instant("to")
    if to is None:
        raise RejectedError("enter the time to which the jobs are moved")
    if request.is_for_all or not request.is_one:
        return await change("move", request, to=to)
    (job_id,) = request.ids
    previous_job = (await request.page.inspector.get_jobs([job_id])).get(job_id)
    result = await change("move", request, to=to)
    if not isinstance(result, Redirect) or previous_job is None:
        return result
    # A job that was overdue cannot be restored: moving it back would give it its misfire grace time again.
    is_overdue = previous_job.execution_time <= request.page.now
    if previous_job.status is not JobStatus.PENDING or is_overdue:
        return result
    fields = {"to": [previous_job.execution_time.isoformat()]}
    return replace(result, undo=Undo("/actions/jobs/move", {"id": job_id}, fields))


async def delete(request: ActionRequest) -> Redirect | ConfirmPage:
    """Delete jobs that do not run, after a question."""
    if request.is_for_all or request.is_confirmed:
        return await change("delete", request)
    ids = request.ids
    jobs = await request.page.inspector.get_jobs(ids)
    visible_ids = [
        job_id for job_id in ids if job_id in jobs and request.access.sees_name(jobs[job_id].job_name)
    ]
    if not visible_ids:
        raise NotFoundError("there are no such jobs, or you may not see them")
    jobs_text = "this job" if len(visible_ids) == 1 else f"these {len(visible_ids):,} jobs"
    question = f"Delete {jobs_text}? Nothing can bring them back."
    back = "/job" if request.is_one else "/jobs"
    return ConfirmPage(question, "Delete", back, rows=visible_ids)


async def show_stack(request: ActionRequest) -> Redirect:
    """Request the stack of a running job from its worker. The page of the job shows it."""
    _, job = await read_job(request.page)
    if not request.access.sees_arguments:
        raise RejectedError("you may not see the stack of this job: it needs access to arguments", 403)
    if job.worker_id is None or not can_look(job, request.page):
        raise RejectedError("the job does not run, so it has no stack", 409)
    # The record comes first, so that no stack is shown without one.
    await request.operations.inspector.record_action("show_stack", job.job_id)
    await request_look(request.page.inspector, job.worker_id, job.job_id, STACK)
    return Redirect("/job", "stack_requested", {"id": job.job_id, "look": LOG})


async def keep(request: ActionRequest) -> Redirect:
    """Remove the expiry of a pending job, so that it waits for as long as necessary."""
    job, _ = await read_job(request.page)
    is_kept = await request.page.inspector.keep_job(job.job_id)
    return Redirect("/job", "job_kept" if is_kept else "job_not_kept", {"id": job.job_id})


async def run(request: ActionRequest) -> Redirect | ConfirmPage:
    """Make pending jobs due now. If it is a single job that sleeps, end its sleep instead."""
    if request.is_one and not request.is_for_all:
        job, _ = await read_job(request.page)
        if job.suspended_by == SLEEP:
            return await _end_sleep(request, job)
    return await change("move", request, "run", to=request.page.now)


async def wake(request: ActionRequest) -> Redirect | ConfirmPage:
    """End the sleep of a job, after a question."""
    job, _ = await read_job(request.page)
    if request.is_confirmed:
        return await _end_sleep(request, job)
    question = "End the sleep of this job now? It continues as if its time had come."
    return ConfirmPage(question, "End the sleep", "/job", rows=[job.job_id])


async def _end_sleep(request: ActionRequest, job: Job) -> Redirect:
    """End the sleep of a job, and return to its page.

    Raises:
        RejectedError: The job does not sleep.
    """
    if not await request.operations.scheduler.end_sleep(job.job_id):
        raise RejectedError("the job does not sleep, so nothing was changed", 409)
    await request.operations.inspector.record_action("wake_job", job.job_id)
    return Redirect("/job", "sleep_ended", {"id": job.job_id})


async def cancel_family(request: ActionRequest) -> Redirect | ConfirmPage:
    """Cancel a job and those of its children that have not ended, after a question."""
    job, _ = await read_job(request.page)
    if request.is_confirmed:
        rows = [job_id for job_id in request.rows if job_id != job.job_id]
        # The job is cancelled first, because the end of its last child would continue it.
        jobs = ActionRequest(replace(request.page, parameters={}), {"row": [job.job_id, *rows]})
        result = await change("cancel", jobs)
        if not isinstance(result, Redirect):
            return result
        return replace(result, path="/job", parameters={"id": job.job_id}, job_id="")
    steps = (await request.page.inspector.steps(job.job_id)).items
    family = await read_family(request.page.inspector, job.job_id, steps, request.access.sees_name)
    open_children = family.open_children
    # The form has a row for each of these jobs, and one for the job itself.
    chosen_children = [child.job_id for child in open_children[: MAX_ROWS - 1]]
    question = f"Cancel this job and {len(chosen_children):,} of its children, which have not ended?"
    if len(open_children) > len(chosen_children) or family.has_more_children:
        question += " It may have other children that have not ended, which stay as they are."
    return ConfirmPage(question, "Cancel with children", "/job", rows=[job.job_id, *chosen_children])


async def repeat(request: ActionRequest) -> Redirect | ConfirmPage:
    """Let an ended job run again from one of its steps."""
    name = request.text("from_step")
    if not name:
        raise RejectedError("choose the step from which the job runs again")
    return await change("retry", request, from_step=name)


async def change(
    verb: BulkAction, request: ActionRequest, did: str = "", **arguments: Any
) -> Redirect | ConfirmPage:
    """Change the selected jobs, or all jobs of a search, as far as the request may see them.

    Selected jobs are changed in one transaction. All jobs of a search are changed by `change_all()`.

    Args:
        verb: What is done with the jobs.
        request: The request.
        did: The code of the message; empty for the verb.
        arguments: The further arguments of the method of the Inspector that changes jobs, such as ``to``.
    """
    if request.is_for_all:
        return await change_all(verb, request, **arguments)
    call: Any = getattr(request.page.inspector, f"{verb}_jobs")
    steps: AsyncGenerator[Progress, None] = call(
        ids=request.ids, names=request.access.visible_names, **arguments
    )
    # Each step has the numbers of jobs so far, so the last one has those of all.
    last_step = [step async for step in steps][-1]
    if request.is_one and not last_step.done and not last_step.refused:
        raise NotFoundError("there is no such job, or you may not see it")
    code = code_of(did or verb, last_step.done, last_step.refused, last_step.skipped)
    parameters = request.page.parameters
    if request.is_one and verb != "delete":
        return Redirect("/job", code, {"id": parameters["id"]})
    list_parameters = {name: parameters.get(name) for name in ("q", "after", "sort", "cols")}
    # The message links to the job if it is about one job that exists.
    is_about_one = verb != "delete" and len(request.ids) == 1 and not last_step.skipped
    return Redirect("/jobs", code, list_parameters, job_id=request.ids[0] if is_about_one else "")
