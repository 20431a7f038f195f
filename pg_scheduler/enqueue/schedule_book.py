"""The periodic jobs of one Scheduler: what the code says, what the database says, what was switched here."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from pg_scheduler.jobs.ids import new_job_id
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT, Unset
from pg_scheduler.jobs.payload import encode
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import NewJob
from pg_scheduler.jobs.validation import MAX_INTEGER
from pg_scheduler.schedules.advance import window_job_id
from pg_scheduler.schedules.catalogue import PeriodicCatalogue
from pg_scheduler.schedules.model import PeriodicJobConfig, advisory_lock_key
from pg_scheduler.schedules.row import PeriodicRow
from pg_scheduler.schedules.sync import merge
from pg_scheduler.store.store import Store

__all__ = ["ScheduleBook"]

NOTHING: Final = encode((), None)


class ScheduleBook:
    """Schedules by dedup key.

    Args:
        catalogue: What ``@periodic`` gathered in this process.
        misfire_grace_time: The scheduler's, in seconds; None for ever.
    """

    def __init__(
        self,
        store: Store,
        catalogue: PeriodicCatalogue,
        tasks: TaskRegistry,
        *,
        misfire_grace_time: int | None,
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._tasks = tasks
        self._grace = misfire_grace_time
        self._merged_version: int | None = None
        self._wishes: dict[str, bool] = {}
        self._rows: dict[str, PeriodicRow] = {}

    def configs(self) -> dict[str, PeriodicJobConfig]:
        """What the code says, with what was switched since."""
        return {
            key: replace(config, enabled=self._is_enabled(config)) for key, config in self._known().items()
        }

    def status(self, dedup_key: str) -> dict[str, Any] | None:
        """One schedule for people to read; None if the key is unknown here."""
        config = self.configs().get(dedup_key)
        if config is None:
            return None
        row = self._rows.get(dedup_key)
        when = (
            {"interval": config.interval.total_seconds()}
            if config.interval is not None
            else {"cron": config.cron, "timezone": str(config.timezone)}
        )
        return {
            "job_name": config.job_name,
            "enabled": config.enabled,
            "priority": config.priority.value,
            "max_retries": config.max_retries,
            "dedup_key": config.dedup_key,
            "use_advisory_lock": config.use_advisory_lock,
            "function_name": config.func.__name__,
            "function_module": config.func.__module__,
            **when,
            "next_fire_at": row.next_fire_at if row and config.enabled else None,
            "last_fire_at": row.last_fire_at if row else None,
        }

    def enable(self, dedup_key: str, enabled: bool) -> bool:
        """Switch on or off: here at once, in the database with ``write_wishes()``. False if unknown."""
        if dedup_key not in self._known():
            return False
        self._wishes[dedup_key] = enabled
        return True

    async def write_wishes(self) -> bool:
        """Write what was switched here; whether anything was written."""
        written = False
        for dedup_key, enabled in dict(self._wishes).items():
            if not await self._store.schedules.enable_periodic(dedup_key, enabled):
                continue  # no node has written the schedule yet: after the next merge
            written = True
            if row := self._rows.get(dedup_key):
                self._rows[dedup_key] = replace(row, enabled=enabled)
            if self._wishes.get(dedup_key) is enabled:
                del self._wishes[dedup_key]
        return written

    def forget_merge(self) -> None:
        """Have the next merge look at everything again."""
        self._merged_version = None

    async def merge(self) -> None:
        """Write the code's schedules into the database, unless that has been done."""
        version = self._catalogue.version
        configs = self._known()
        if configs and self._merged_version != version:
            async with self._store.schedules.periodic_locked() as connection:
                rows = await self._store.schedules.periodic_rows(on=connection)
                new = [key for key in configs if key not in rows]
                chained = await self._store.schedules.chained_runs(new, on=connection)
                now = await self._store.schedules.now(on=connection)
                await self._store.schedules.write_periodic(
                    merge(configs, rows, now=now, chained=chained), on=connection
                )
        self._merged_version = version

    async def refresh(self) -> tuple[dict[str, PeriodicRow], datetime | None]:
        """Read what the database says of the schedules known here, and its time.

        Where none is known, nothing is asked: the time is None.
        """
        known = self._known()
        rows, now = await self._store.schedules.periodic_rows_and_now() if known else ({}, None)
        self._rows = {key: row for key, row in rows.items() if key in known}
        return self._rows, now

    def window_job(self, row: PeriodicRow, window: datetime, now: datetime) -> NewJob:
        """The job of one window.

        Its grace counts from now, when it is enqueued: a window that was missed while no node ran is late
        already, and shall run.
        """
        late = max(math.ceil((now - window) / timedelta(seconds=1)), 0)
        return self._job(
            window_job_id(row.dedup_key, window),
            window,
            late,
            dedup_key=row.dedup_key,
            job_name=row.job_name,
            function=row.function,
            priority=row.priority,
            max_retries=row.max_retries,
            use_advisory_lock=row.use_advisory_lock,
        )

    def manual_job(self, dedup_key: str, now: datetime) -> NewJob | None:
        """The job of a run that somebody asked for; None if the key is unknown."""
        config = self._known().get(dedup_key)
        if config is None:
            return None
        return self._job(
            f"periodic:{dedup_key}:manual:{new_job_id()}",
            now,
            0,
            dedup_key=dedup_key,
            job_name=config.job_name,
            function=config.function,
            priority=config.priority.db_value,
            max_retries=config.max_retries,
            use_advisory_lock=config.use_advisory_lock,
        )

    def _job(
        self,
        job_id: str,
        due: datetime,
        late: int,
        *,
        dedup_key: str,
        job_name: str,
        function: str,
        priority: int,
        max_retries: int,
        use_advisory_lock: bool,
    ) -> NewJob:
        task = self._tasks.resolve(function)
        grace = (
            self._grace
            if task is None or isinstance(task.misfire_grace_time, Unset)
            else task.misfire_grace_time
        )
        return NewJob(
            job_id=job_id,
            job_name=job_name,
            execution_time=due,
            task_data=NOTHING,
            priority=priority,
            max_retries=max_retries,
            misfire_grace_time=None if grace is None else min(grace + late, MAX_INTEGER),
            timeout_seconds=task.timeout if task else DEFAULT_TIMEOUT.total_seconds(),
            function=function,
            lock_key=advisory_lock_key(dedup_key) if use_advisory_lock else None,
        )

    def _known(self) -> dict[str, PeriodicJobConfig]:
        return self._catalogue.configs()

    def _is_enabled(self, config: PeriodicJobConfig) -> bool:
        row = self._rows.get(config.dedup_key)
        return self._wishes.get(config.dedup_key, row.enabled if row else config.enabled)
