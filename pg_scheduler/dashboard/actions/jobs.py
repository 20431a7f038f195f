"""Change jobs: one by its id, or the selected rows of a list."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from pg_scheduler.base.messages import LOG, STACK
from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.actions.bulk import change_all
from pg_scheduler.dashboard.actions.request import ActionRequest, ConfirmPage, Redirect
from pg_scheduler.dashboard.context import NotFoundError, RejectedError
from pg_scheduler.dashboard.messages import Undo, code_of
from pg_scheduler.dashboard.pages.job_values import read_job
from pg_scheduler.dashboard.pages.look import can_look
from pg_scheduler.dashboard.workflow import own_steps
from pg_scheduler.events.log import log_refusal
from pg_scheduler.inspect import Progress
from pg_scheduler.inspect.looks import request_look
from pg_scheduler.inspect.store.bulk import BulkAction
from pg_scheduler.inspect.store.workflows import MAX_FAMILY
from pg_scheduler.inspect.texts import counted, listed
from pg_scheduler.inspect.workflows import count_family
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.step_values import SLEEP


async def cancel(request: ActionRequest) -> Redirect | ConfirmPage:
    """Cancel pending and running jobs; a job that has begun or has children only after a question."""
    is_single = request.is_one and not request.is_for_all
    if is_single and not request.is_confirmed:
        (job_id,) = request.ids
        job = (await request.page.inspector.get_jobs([job_id])).get(job_id)
        # change() below reports a job that is missing or hidden.
        if job is not None and request.access.sees_name(job.job_name):
            children = await count_family(request.page.inspector, job_id, request.access.sees_name)
            question = ""
            if job.status is JobStatus.RUNNING:
                question = (
                    "Cancel this job? Its attempt runs now and is stopped; what it has done stays done."
                )
            elif job.suspended_by is not None:
                question = await _question_about_steps(job, request)
            elif children:
                question = "Cancel this job?"
            if children:
                question += f" {_children(children)} of it would not end with it."
            if question:
                return ConfirmPage(
                    question,
                    "Cancel the job",
                    "/job",
                    rows=[job_id],
                    children=f"Cancel {_children(children)} too" if children else "",
                )
    return await change("cancel", request, **_with_children(request))


async def _question_about_steps(job: Job, request: ActionRequest) -> str:
    """Return the question that is asked before a workflow that sleeps or waits is cancelled."""
    steps = (await request.page.inspector.steps(job.job_id)).items
    ended_steps = [step for step in own_steps(steps) if step.ended_at is not None]
    waits = listed([step.name for step in steps if step.ended_at is None])
    verb = "sleeps" if job.suspended_by == SLEEP else "waits"
    text = f"Cancel this workflow, which {verb} in {waits}?" if waits else "Cancel this workflow?"
    if ended_steps:
        text += f" {counted(len(ended_steps), 'step')} of it ended, and what it did stays done."
    return text


async def retry(request: ActionRequest) -> Redirect | ConfirmPage:
    """Run finished jobs again. If children of a single job ended without success, ask about them first."""
    if request.is_one and not request.is_for_all and not request.is_confirmed:
        job, _ = await read_job(request.page)
        children = await count_family(
            request.page.inspector, job.job_id, request.access.sees_name, for_retry=True
        )
        if children and job.finished_at is not None:
            question = (
                f"Run this job again? {_children(children)} of it ended without success, so a step that "
                "waited for one of them raises its error again."
            )
            return ConfirmPage(
                question,
                "Run again",
                "/job",
                rows=[job.job_id],
                children=f"Run {_children(children)} again too, and the steps that waited for them",
                is_with_children=job.status is not JobStatus.COMPLETED,
            )
    return await change("retry", request, **_with_children(request))


def _children(number: int) -> str:
    """Return a number of children as text."""
    return counted(number, "child job", is_capped=number >= MAX_FAMILY)


def _with_children(request: ActionRequest) -> dict[str, Any]:
    """Return the argument by which a confirmed action includes the children of a single job."""
    is_single = request.is_one and not request.is_for_all
    return {"children": True} if is_single and request.text("children") == "yes" else {}


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


async def skip(request: ActionRequest) -> Redirect | ConfirmPage:
    """Let a sequence continue behind its first job, after a question."""
    job, _ = await read_job(request.page)
    if not request.is_confirmed:
        question = "Let the sequence continue behind this job?"
        if job.finished_at is None:
            question = "Cancel this job, so that the next one of its sequence starts?"
        return ConfirmPage(question, "Skip", "/job", rows=[job.job_id])
    if not await request.operations.inspector.skip_job(job.job_id):
        raise RejectedError("the job is not the first one of a sequence, so nothing was changed", 409)
    return Redirect("/job", "job_skipped", {"id": job.job_id})


async def move_to_front(request: ActionRequest) -> Redirect:
    """Make a job that waits in a sequence the next one."""
    job, _ = await read_job(request.page)
    if not await request.operations.inspector.move_to_front(job.job_id):
        raise RejectedError("the job does not wait in a sequence, so nothing was changed", 409)
    return Redirect("/job", "job_in_front", {"id": job.job_id})


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
    refusals = {change.job_id: change.refusal for change in last_step.changes if change.refusal is not None}
    for job_id, refusal in refusals.items():
        # The answer has the reason if nothing was changed. Otherwise it has numbers, and the log the reasons.
        if not last_step.done:
            raise refusal
        log_refusal(f"job {job_id!r} is left as it is", refusal, is_last=True, job_id=job_id)
    if request.is_one and not last_step.done and not last_step.refused:
        raise NotFoundError("there is no such job, or you may not see it")
    # If a family was changed, the number in the message includes the children.
    done = last_step.done + last_step.children
    counts = [done, last_step.refused - len(refusals), last_step.skipped]
    # The message has the text about failures only if there are any.
    if refusals:
        counts.append(len(refusals))
    code = code_of(did or verb, *counts)
    parameters = request.page.parameters
    if request.is_one and verb != "delete":
        return Redirect("/job", code, {"id": parameters["id"]})
    list_parameters = {name: parameters.get(name) for name in ("q", "after", "sort", "cols")}
    # The message links to the job if it is about one job that exists.
    is_about_one = verb != "delete" and len(request.ids) == 1 and not last_step.skipped
    return Redirect("/jobs", code, list_parameters, job_id=request.ids[0] if is_about_one else "")
