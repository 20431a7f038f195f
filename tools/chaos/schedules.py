"""Schedules that are added at run time, and the checks of those whose jobs may not overlap."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Final

from pg_scheduler import Overlap, Scheduler
from pg_scheduler.triggers import Every, FixedDelay
from tools.chaos import jobs
from tools.chaos.evidence import Evidence, Row, attempt_of
from tools.chaos.overlaps import Fences

INTERVAL: Final = timedelta(seconds=2)
SCHEDULES: Final = {
    "queue-all": (jobs.in_turn, Every(INTERVAL), Overlap.QUEUE_ALL),
    "queue-one": (jobs.in_turn, Every(INTERVAL), Overlap.QUEUE_ONE),
    "skip": (jobs.in_turn, Every(INTERVAL), Overlap.SKIP),
    "delay": (jobs.in_turn, FixedDelay(INTERVAL), Overlap.QUEUE_ONE),
    "cancel": (jobs.in_turn, Every(INTERVAL), Overlap.CANCEL),
    "cancel-thread": (jobs.thread_in_turn, Every(INTERVAL), Overlap.CANCEL),
    "allow": (jobs.allowed, Every(jobs.STEP), Overlap.ALLOW),
}


TRIGGERED: Final = "triggered"
"""The schedule that callers trigger. It fires by itself only while the server's clock is wrong by years."""


async def add_schedules(client: Scheduler) -> None:
    """Add a schedule for each policy, and the one that is triggered."""
    await client.schedules.add(jobs.triggered, Every(timedelta(days=300)), schedule_id=TRIGGERED)
    for schedule_id, (function, trigger, overlap) in SCHEDULES.items():
        await client.schedules.add(function, trigger, schedule_id=schedule_id, overlap=overlap)


async def stopped_schedules(client: Scheduler, timeout: float) -> list[str]:
    """Return the schedules that enqueue no further job although no fault is in progress."""
    runs = {schedule_id: await _runs(client, schedule_id) for schedule_id in SCHEDULES}
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        runs = {each: count for each, count in runs.items() if await _runs(client, each) == count}
        if not runs:
            break
        await asyncio.sleep(0.2)
    return [f"{each} enqueued no job within {timeout:g} s after the faults" for each in runs]


async def _runs(client: Scheduler, schedule_id: str) -> int:
    found = await client.schedules.get(schedule_id)
    assert found is not None
    return found.runs


async def pause_schedules(client: Scheduler) -> None:
    """Pause the schedules; jobs that wait still run."""
    for schedule_id in (*SCHEDULES, TRIGGERED):
        await client.schedules.pause(schedule_id)


def overlapping_or_stopped(evidence: Evidence) -> Iterator[str]:
    """Yield jobs of a schedule that started before the previous one had ended, and schedules that stopped.

    A job has ended when the attempt that its row names has ended. Earlier attempts were fenced, and may
    run on, and so may a cancelled one. A job that was cancelled before its row's attempt began has ended.
    """
    fences = Fences(evidence)
    yield from evidence.stopped_schedules
    jobs_of: dict[str, list[tuple[float, Row]]] = defaultdict(list)
    for row in evidence.rows.values():
        attempts = evidence.ledgers.attempts.get(row.job_id)
        if row.job_name in jobs.ONE_BY_ONE and attempts and row.job_id not in evidence.inserted_again:
            schedule_id = row.job_id.split(":")[1]  # schedule:<id>:<fire time>
            jobs_of[schedule_id].append((min(one.started for one in attempts), row))
    for in_order in jobs_of.values():
        in_order.sort(key=lambda one: one[0])
        for (_, row), (started, other) in pairwise(in_order):
            last = attempt_of(evidence, row)
            ended = None if last is None else last.ended
            if row.status == "cancelled":
                if last is None or fences.may_run_on(last, started):
                    continue
                ended = evidence.deaths.get(last.pid) if ended is None else ended
            if ended is None:
                yield f"{other.job_id} started, but {row.job_id} has not ended"
            elif started < ended:
                yield f"{other.job_id} started {ended - started:.3f} s before the end of {row.job_id}"
