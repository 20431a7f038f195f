"""Read workers, make requests of them, and find their attempts.

No index contains the worker of a job, so the attempts of a worker are searched among bounded numbers of jobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from pg_scheduler.base.settings import VacuumConfig, VacuumPolicy, VacuumTrigger
from pg_scheduler.database.author import acting_as
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.inspect.base import InspectorBase, tables_of
from pg_scheduler.inspect.store.workers import AttemptRow, IdRange
from pg_scheduler.jobs.history import errors_from
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.validation import check_list, check_text
from pg_scheduler.jobs.worker_report import ReportedSettings
from pg_scheduler.schedules.timing import job_id_prefix
from pg_scheduler.worker.worker_rows import DRAIN

MAX_WORKERS: Final = 500
"""Workers of one call."""

POLICIES: Final = ("completed", "failed", "cancelled", "expired", "schedules", "audit")

MAX_GENERATED: Final = 5_000
"""Jobs with a generated id that are examined, the newest ones."""

MAX_SCHEDULES: Final = 200

MAX_FIRED: Final = 100
"""Jobs of each schedule that are examined, the newest ones."""


class WorkerMethods(InspectorBase):
    """The methods of `Inspector` that read workers and make requests of them.

    Workers fulfil a request with their next heartbeat, which is requested at once.
    """

    async def workers(self) -> list[Worker]:
        """Return every worker that has a row, oldest first, and whether its lease is valid."""
        return await self._reads.workers.list_workers()

    async def retention(self) -> VacuumConfig:
        """Return the retention that the live workers report. Workers that report none do not count.

        Raises:
            ConfigurationError: No live worker reports its retention, or live workers differ in it.
        """
        # Equal retentions have the same text, so each of them is here once.
        retentions_by_text = {}
        for worker in await self.workers():
            retention = ReportedSettings(worker.settings).retention if worker.is_alive else None
            if retention is not None:
                retentions_by_text[json.dumps(retention, sort_keys=True)] = retention
        if not retentions_by_text:
            raise ConfigurationError(
                "no live worker reports its retention, and the default may delete more; start a worker"
            )
        if len(retentions_by_text) > 1:
            raise ConfigurationError("live workers have different retention policies; finish the deployment")
        (only_retention,) = retentions_by_text.values()
        return _config_of(only_retention)

    async def drain_workers(self, worker_ids: Iterable[str]) -> list[str]:
        """Ask workers to claim no more jobs; jobs that run continue. Return the ids that exist.

        A request lasts until ``resume_workers()``, or the end of the worker.

        Args:
            worker_ids: At most 500 ids.

        Raises:
            ValueError: There are more ids.

        Example::

            await inspector.drain_workers([worker.worker_id for worker in await inspector.workers()])
        """
        return await self._request(worker_ids, DRAIN)

    async def resume_workers(self, worker_ids: Iterable[str]) -> list[str]:
        """Ask draining workers to claim jobs again; return the ids that exist.

        Args:
            worker_ids: At most 500 ids.

        Raises:
            ValueError: There are more ids.

        Example::

            await inspector.resume_workers([worker.worker_id for worker in await inspector.workers()])
        """
        return await self._request(worker_ids, None)

    async def _request(self, worker_ids: Iterable[str], state: str | None) -> list[str]:
        """Request a state of workers, and return the ids that exist; None withdraws earlier requests.

        The rows of the workers name the author of this Inspector.
        """
        ids = _checked_ids(worker_ids)
        with acting_as(self._author()):
            return await self._store.workers.request_state(ids, state)


def _checked_ids(worker_ids: Iterable[str]) -> list[str]:
    """Return the ids as a list; raise an error if one is no text, or if there are too many."""
    ids = [check_text("worker_id", worker_id) for worker_id in check_list("worker_ids", worker_ids)]
    if len(ids) > MAX_WORKERS:
        raise ValueError(
            f"worker_ids must have at most {MAX_WORKERS} ids, not {len(ids)}; pass them in parts"
        )
    return ids


def _config_of(values: Mapping[str, Any]) -> VacuumConfig:
    """Return the retention that the row of a worker contains; raise ConfigurationError if it is invalid."""
    policies: dict[str, Any] = {}
    try:
        for name in POLICIES:
            policy = values.get(name)
            # A policy that the row lacks keeps the default of VacuumConfig.
            if policy is not None:
                policies[name] = VacuumPolicy(
                    VacuumTrigger(policy["trigger"]),
                    days=policy.get("days"),
                    keep_count=policy.get("keep_count"),
                )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"the retention in the row of a worker is invalid: {error!r}") from error
    return VacuumConfig(**policies, track_metrics=bool(values.get("track_metrics")))


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a job.

    Attributes:
        outcome: ``running`` while it runs, the status of the job if the job ended with this attempt,
            otherwise the outcome that the history of the job has.
        ended_at: When it ended; None while it runs.
    """

    job_id: str
    job_name: str
    outcome: str
    started_at: datetime
    ended_at: datetime | None = None


async def running_attempts(inspector: InspectorBase) -> dict[str, list[Attempt]]:
    """Return the running attempts by their workers, the oldest first."""
    rows = await tables_of(inspector).reads.worker_reads.running()
    attempts_by_worker: dict[str, list[Attempt]] = {}
    for row in rows:
        if row.worker_id is not None and row.started_at is not None:
            attempt = Attempt(row.job_id, row.job_name, row.status, row.started_at)
            attempts_by_worker.setdefault(row.worker_id, []).append(attempt)
    for attempts in attempts_by_worker.values():
        attempts.sort(key=lambda attempt: attempt.started_at)
    return attempts_by_worker


class EndedAttempts(NamedTuple):
    """Attempts that ended, the oldest first.

    Attributes:
        is_capped: Whether there may be more, because a bound has cut the jobs that were examined.
    """

    items: Sequence[Attempt]
    is_capped: bool


async def ended_attempts(
    inspector: InspectorBase, worker_id: str, since: datetime, now: datetime
) -> EndedAttempts:
    """Return attempts of a worker that ended between two instants.

    Of completed jobs, the newest 5,000 with a generated id and the newest 100 of each schedule that fired are
    examined. Attempts of completed jobs are missing if a caller chose the id, or if ``trigger()`` enqueued
    the job.
    """
    reads = tables_of(inspector).reads
    schedule_rows = await reads.cluster.schedules(MAX_SCHEDULES)
    fired_ids = [
        row.schedule_id for row in schedule_rows if row.last_fire_at is not None and row.last_fire_at >= since
    ]
    # The ids of jobs begin differently for schedules of code and for those of callers. Both are searched.
    prefixes = [job_id_prefix(schedule_id, owner) for schedule_id in fired_ids for owner in ("code", "api")]
    # Generated ids begin with the milliseconds of their creation, in 12 hexadecimal digits. The upper bound
    # is a second later than now, because the clocks of workers and of this process differ.
    milliseconds = f"{int((now + timedelta(seconds=1)).timestamp() * 1000):012x}"
    ranges = [IdRange("0", f"{milliseconds[:8]}-{milliseconds[8:]}", MAX_GENERATED)]
    # After the prefix, the id of a fire time has a digit, which sorts before "A", and that of a manual run
    # a small letter.
    ranges += [IdRange(prefix, f"{prefix}A", MAX_FIRED) for prefix in prefixes]
    unsuccessful_rows = await reads.worker_reads.unsuccessful(worker_id, since)
    completed_rows = await reads.worker_reads.completed(worker_id, since, ranges)
    # If the last job of a range ended before the period, so did those that precede it, as far as jobs end in
    # the order of their ids.
    is_capped = len(schedule_rows) >= MAX_SCHEDULES or any(
        row.is_last and (row.finished_at is None or row.finished_at >= since)
        for row in (*unsuccessful_rows, *completed_rows)
    )
    # The last row that a statement examines is returned even if its job has not completed, or if its worker
    # is another one. These rows only show how far the statement came.
    completed_only = [row for row in completed_rows if row.status == "completed"]
    attempts: set[Attempt] = set()
    for row in (*unsuccessful_rows, *completed_only):
        if row.worker_id == worker_id:
            attempts.update(
                attempt for attempt in _attempts_of(row) if attempt.ended_at and attempt.ended_at >= since
            )
    return EndedAttempts(sorted(attempts, key=lambda attempt: attempt.started_at), is_capped)


def _attempts_of(row: AttemptRow) -> Iterator[Attempt]:
    """Yield the attempts in the history of a row, and its last attempt unless the history has it.

    Attempts that have not started or not ended are left out.
    """
    history = errors_from(row.history)
    for entry in history:
        if entry.started_at is not None and entry.ended_at is not None:
            yield Attempt(row.job_id, row.job_name, entry.outcome, entry.started_at, entry.ended_at)
    is_last_in_history = any(entry.attempt == row.attempt for entry in history)
    if row.started_at is not None and row.finished_at is not None and not is_last_in_history:
        yield Attempt(row.job_id, row.job_name, row.status, row.started_at, row.finished_at)
