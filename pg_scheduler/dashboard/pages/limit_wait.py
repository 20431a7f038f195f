"""Who holds the limit that a job waits for, for its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.job_facts import read_limit_wait
from pg_scheduler.inspect.texts import estimated
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT
from pg_scheduler.jobs.model import Job

LONG: Final = 3.0
"""An attempt is marked as long if it has run for more than this multiple of its usual duration. It probably
does not end soon."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A job whose attempt counts for the limit.

    Attributes:
        usual: How long half of the attempts of its task took lately; None if that is unknown.
        is_long: Whether it has run for much longer than that.
        worker_id: The worker that runs it; None if it does not run any more.
    """

    job_id: str
    job_name: str
    since: datetime
    usual: str | None
    is_long: bool
    worker_id: str | None
    worker_name: str
    is_running: bool


@dataclass(frozen=True, slots=True)
class LimitWaitView:
    """Who holds the limit, and how many jobs wait for it before this one."""

    holders: Sequence[Holder]
    ahead: int
    is_capped: bool


async def limit_wait_of(waiting_job: Job, request: PageRequest) -> LimitWaitView | None:
    """Return which jobs hold the limit that a job waits for, and how many jobs wait before it.

    None if it waits for no limit, or if the request sees only some names: jobs of other names may hold the
    limit.
    """
    is_blocked_by_limit = waiting_job.blocked_on is not None and waiting_job.blocked_on.startswith(
        BLOCKED_BY_LIMIT
    )
    waits_for_limit = is_blocked_by_limit and waiting_job.status is JobStatus.PENDING
    if not waits_for_limit or request.access.visible_names is not None:
        return None
    wait = await read_limit_wait(tables_of(request.inspector).reads, waiting_job)
    jobs = await request.inspector.get_jobs([holder.job_id for holder in wait.holders])
    names = await request.worker_names()
    holders = []
    for holder in wait.holders:
        # The job may have been deleted since.
        job = jobs.get(holder.job_id)
        worker_id = None if job is None else job.worker_id
        ran_s = (request.now - holder.since).total_seconds()
        holders.append(
            Holder(
                holder.job_id,
                holder.job_name,
                holder.since,
                None if holder.usual_s is None else estimated(holder.usual_s),
                is_long=holder.usual_s is not None and ran_s > LONG * holder.usual_s,
                worker_id=worker_id,
                worker_name=names.get(worker_id or "", worker_id or ""),
                is_running=job is not None and job.status is JobStatus.RUNNING,
            )
        )
    return LimitWaitView(holders, wait.ahead.ahead, wait.ahead.is_capped)
