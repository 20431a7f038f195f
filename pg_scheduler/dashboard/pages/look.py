"""The running attempt of a job: its last log lines while the page is open, and its stack on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pg_scheduler.base.messages import LOG
from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.inspect.looks import read_look, request_look
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.worker_report import ReportedHealth

RENEWAL_S: Final = 20.0
"""Seconds after which an open page renews its request, which lasts for a minute."""


@dataclass(frozen=True, slots=True)
class LookView:
    """What the page shows of a running attempt.

    Attributes:
        is_open: Whether the request looks at it.
        problem: Why there is nothing to see; None if there is something.
        log: Its last lines, oldest first.
        stack: Its frames, the outermost first; None if they were not requested, or cannot be read.
        stack_at: When the stack was taken; None if it was not requested.
    """

    is_open: bool
    problem: str | None = None
    log: Sequence[str] = ()
    stack: str | None = None
    stack_at: datetime | None = None


def can_look(job: Job, request: PageRequest) -> bool:
    """Return whether the request may look at a job, and the job runs."""
    is_permitted = request.may("look") and request.access.sees_arguments
    return is_permitted and job.status is JobStatus.RUNNING and job.worker_id is not None


async def look_at(job: Job, request: PageRequest) -> LookView | None:
    """Return the log and the stack of a running attempt for its page; None if the request may not look.

    They are read only if the address of the page has ``look=``. Then the worker of the job is requested to
    write them, and the page shows what the worker has written so far.
    """
    worker_id = job.worker_id
    if worker_id is None or not can_look(job, request):
        return None
    if not request.parameters.get("look"):
        return LookView(is_open=False)
    worker = next((worker for worker in await request.workers() if worker.worker_id == worker_id), None)
    if worker is not None and ReportedHealth.of(worker.health).is_listening is False:
        return LookView(is_open=True, problem="Its worker receives no notifications, so it cannot be asked.")
    await request.read_shared(_request_log, worker_id, job.job_id, age_s=RENEWAL_S, is_age_shown=False)
    answer = await read_look(request.inspector, job.job_id)
    if answer is None:
        return LookView(is_open=True, problem="Its worker has not answered yet.")
    problem = None
    if answer.log is None:
        problem = "Its worker keeps no log lines: add a JobLogHandler to a logger."
    elif not answer.log:
        problem = "It has logged nothing yet."
    return LookView(True, problem, answer.log or (), answer.stack, answer.stack_at)


async def _request_log(request: PageRequest, worker_id: str, job_id: str) -> None:
    """Request a worker to write the log of a job; all viewers of the job share the request."""
    await request_look(request.operations.inspector, worker_id, job_id, LOG)
