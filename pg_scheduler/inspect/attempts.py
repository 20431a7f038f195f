"""Find the attempts of workers, although no index has the worker of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.workers import AttemptRow, IdRange
from pg_scheduler.jobs.history import errors_from
from pg_scheduler.schedules.timing import job_id_prefix

MAX_GENERATED: Final = 5_000
"""Jobs with a generated id that are examined, the newest ones."""

MAX_SCHEDULES: Final = 200
MAX_FIRED: Final = 100
"""Jobs of each schedule that are examined, the newest ones."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a job.

    Attributes:
        outcome: ``running``, the status of its job if that ended with it, or its outcome in the history.
        ended_at: When it ended; None while it runs.
    """

    job_id: str
    job_name: str
    outcome: str
    started_at: datetime
    ended_at: datetime | None = None


async def running_attempts(inspector: Inspector) -> dict[str, list[Attempt]]:
    """Return the running attempts by their workers, the oldest first."""
    rows = await inspector._reads.attempts.running()  # noqa: SLF001 - attempts are no public part of it
    found: dict[str, list[Attempt]] = {}
    for row in rows:
        if row.worker_id is not None and row.started_at is not None:
            attempt = Attempt(row.job_id, row.job_name, row.status, row.started_at)
            found.setdefault(row.worker_id, []).append(attempt)
    for attempts in found.values():
        attempts.sort(key=lambda each: each.started_at)
    return found


async def ended_attempts(
    inspector: Inspector, worker_id: str, since: datetime, now: datetime
) -> list[Attempt]:
    """Return attempts of a worker that ended between two instants, the oldest first.

    Of completed jobs the newest are examined: 5,000 with a generated id, and 100 of each schedule that fired.
    """
    reads = inspector._reads  # noqa: SLF001
    fired = [
        row.schedule_id
        for row in await reads.cluster.schedules(MAX_SCHEDULES)
        if row.last_fire_at is not None and row.last_fire_at >= since
    ]
    prefixes = [job_id_prefix(each, owner) for each in fired for owner in ("code", "api")]
    stamp = f"{int((now + timedelta(seconds=1)).timestamp() * 1000):012x}"  # workers and this process differ
    ranges = [IdRange("0", f"{stamp[:8]}-{stamp[8:]}", MAX_GENERATED)]
    ranges += [IdRange(each, f"{each}A", MAX_FIRED) for each in prefixes]
    rows = [
        *await reads.attempts.unsuccessful(worker_id, since),
        *await reads.attempts.completed(worker_id, since, ranges),
    ]
    found = {each for row in rows for each in _attempts_of(row) if each.ended_at and each.ended_at >= since}
    return sorted(found, key=lambda each: each.started_at)


def _attempts_of(row: AttemptRow) -> Iterator[Attempt]:
    history = errors_from(row.history)
    for each in history:
        if each.started_at is not None and each.ended_at is not None:
            yield Attempt(row.job_id, row.job_name, each.outcome, each.started_at, each.ended_at)
    has_entry = any(each.attempt == row.attempt for each in history)
    if row.started_at is not None and row.finished_at is not None and not has_entry:
        yield Attempt(row.job_id, row.job_name, row.status, row.started_at, row.finished_at)
