"""Reasons that jobs of different statuses share: their schedule, old facts, blocked event loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pg_scheduler.inspect.facts import Facts
from pg_scheduler.inspect.reasons import Reason, ReasonCode
from pg_scheduler.inspect.remedies import command
from pg_scheduler.inspect.store.inspections import InspectedWorker
from pg_scheduler.inspect.texts import hosts, length, short

MAX_STANDBY_LAG_S: Final = 1.0


def about_schedule(facts: Facts) -> Iterator[Reason]:
    """Yield why no further job of the schedule follows."""
    schedule_id, schedule = facts.job.schedule_id, facts.schedule
    if schedule_id is None:
        return
    if schedule is None:
        yield Reason(
            ReasonCode.SCHEDULE_UNKNOWN,
            f"its schedule {schedule_id!r} does not exist any more, so no further job follows",
        )
    elif schedule.paused_at is not None:
        note = "" if schedule.note is None else f": {short(schedule.note)}"
        yield Reason(
            ReasonCode.SCHEDULE_PAUSED,
            f"its schedule {schedule_id!r} is paused, so no further job follows{note}",
            f"await scheduler.schedules.resume({schedule_id!r})",
            schedule.paused_at,
            command("schedules", "resume", schedule_id),
        )


def about_standby(facts: Facts) -> Iterator[Reason]:
    """Yield how old the facts are, if they are old."""
    if facts.standby_lag_s is not None and facts.standby_lag_s > MAX_STANDBY_LAG_S:
        yield Reason(
            ReasonCode.STANDBY_LAG,
            f"this was read from a standby that is {length(facts.standby_lag_s)} behind",
            "ask again without read_pool=",
        )


def loop_blocked(workers: Sequence[InspectedWorker]) -> Reason:
    """Return the reason that these workers have blocked event loops."""
    (worker, *_) = workers
    by = "" if worker.blocking_job_id is None else f" by job {worker.blocking_job_id!r}"
    blocked = length(worker.loop_blocked_s or 0)
    return Reason(
        ReasonCode.LOOP_BLOCKED,
        f"the event loop of {hosts(workers)} has been blocked for {blocked}{by}",
        "declare the blocking function as a plain one, so that it runs in a thread",
    )
