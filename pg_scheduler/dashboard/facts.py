"""What the side bar counts and the field of the top bar finds: one read that all requests share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from pg_scheduler.dashboard.cache import in_time
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.inspect import Finding
from pg_scheduler.inspect.audit import finding_id, is_muted, read_mutes
from pg_scheduler.inspect.status import STATUS_CODES, problems_of
from pg_scheduler.status import JobStatus

AGE_S: Final = 30.0
ERRORS_SINCE: Final = timedelta(days=1)

MAX_READ: Final = 500


class Facts(NamedTuple):
    """Names and numbers of all jobs; each request sees those of its names.

    Attributes:
        jobs: About how many jobs there are; None if it is unknown.
        error_names: The job name of each group of errors that is not muted.
        schedules: The task of each schedule by its id.
        tasks: The names of tasks; none if they were not read in time.
        workers: The names of live workers by their ids.
        limit_tasks: The tasks of each limit.
        paused_schedules: The ids of paused schedules.
        paused_tasks: The names of paused tasks.
        findings: The findings because of which not all is well, without muted ones.
    """

    jobs: int | None
    error_names: Sequence[str]
    schedules: dict[str, str]
    tasks: Sequence[str]
    workers: dict[str, str]
    limit_tasks: Sequence[Sequence[str]]
    paused_schedules: frozenset[str]
    paused_tasks: frozenset[str]
    findings: Sequence[Finding]


async def read_facts(request: PageRequest) -> Facts:
    """Return the facts of the last 30 seconds.

    Raises:
        SchedulerError: The database is unavailable.
    """

    async def read() -> Facts:
        inspector = request.inspector
        groups = (await inspector.error_groups(since=request.now - ERRORS_SINCE, limit=MAX_READ)).items
        muted = await read_mutes(inspector, "error", (each.fingerprint for each in groups))
        findings = problems_of((await inspector.doctor(only=STATUS_CODES)).findings)
        muted |= await read_mutes(inspector, "finding", map(finding_id, findings))
        limit_tasks: dict[str, list[str]] = {}  # by name: workers may declare several numbers
        for limit in (await inspector.limits()).items:
            limit_tasks.setdefault(limit.name, []).extend(limit.tasks)
        schedules = await inspector.schedules(limit=MAX_READ)
        found = await in_time(inspector.tasks())
        tasks = () if found is None else found.items
        return Facts(
            jobs=(await inspector.totals()).jobs,
            error_names=[
                each.job_name
                for each in groups
                if each.status is not JobStatus.CANCELLED
                and not is_muted(muted.get(each.fingerprint, ()), request.now)
            ],
            schedules={each.schedule_id: each.task for each in schedules},
            tasks=[each.name for each in tasks],
            workers={
                each.worker_id: each.identity or each.worker_id
                for each in await inspector.workers()
                if each.is_alive
            },
            limit_tasks=list(limit_tasks.values()),
            paused_schedules=frozenset(each.schedule_id for each in schedules if each.paused_at is not None),
            paused_tasks=frozenset(each.name for each in tasks if each.paused_at is not None),
            findings=[
                each for each in findings if not is_muted(muted.get(finding_id(each), ()), request.now)
            ],
        )

    return await request.cache.get("facts", AGE_S, read, is_data=False)
