"""The schedules of one Scheduler: declared in code, stored in the database, enabled and disabled by calls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from pg_scheduler.jobs.ids import new_job_id
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT
from pg_scheduler.jobs.payload import encode
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import NewJob
from pg_scheduler.jobs.unset import Unset
from pg_scheduler.jobs.validation import MAX_INTEGER
from pg_scheduler.schedules.advance import fire_time_job_id
from pg_scheduler.schedules.catalogue import PeriodicCatalogue
from pg_scheduler.schedules.model import PeriodicJobConfig, PeriodicRow, advisory_lock_key
from pg_scheduler.schedules.sync import NO_CHANGES, plan_sync
from pg_scheduler.store.store import Store

__all__ = ["ScheduleBook"]

NO_ARGUMENTS: Final = encode((), None)


class ScheduleBook:
    """Keeps the schedules of this process, by dedup key.

    Args:
        catalogue: The functions decorated with ``@periodic`` in this process.
        misfire_grace_time: The Scheduler's misfire grace time in seconds; None for no limit.
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
        self._synced_version: int | None = None
        self._switches: dict[str, bool] = {}
        self._rows: dict[str, PeriodicRow] = {}

    def configs(self) -> dict[str, PeriodicJobConfig]:
        """Return the configs, each with ``enabled`` as the latest call set it."""
        return {
            key: replace(config, enabled=self._is_enabled(config)) for key, config in self._known().items()
        }

    def status(self, dedup_key: str) -> dict[str, Any] | None:
        """Return a description of one schedule, or None if the key is unknown in this process."""
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
        """Enable or disable a schedule in memory; return False for an unknown key."""
        if dedup_key not in self._known():
            return False
        self._switches[dedup_key] = enabled
        return True

    @property
    def has_unwritten_switches(self) -> bool:
        """Whether a switch of this process is not in the database yet."""
        return bool(self._switches)

    async def write_switches(self) -> bool:
        """Write which schedules this process enabled or disabled; return whether a row changed."""
        written = False
        for dedup_key, enabled in dict(self._switches).items():
            if not await self._store.schedules.enable_periodic(dedup_key, enabled):
                continue  # no node has written the schedule yet; the next sync does
            written = True
            if row := self._rows.get(dedup_key):
                self._rows[dedup_key] = replace(row, enabled=enabled)
            if self._switches.get(dedup_key) is enabled:
                del self._switches[dedup_key]
        return written

    def forget_sync(self) -> None:
        """Make the next ``sync()`` compare every schedule again."""
        self._synced_version = None

    async def sync(self) -> None:
        """Write the schedules declared in code to the database, unless they are unchanged.

        A transaction that writes schedules excludes others, so it begins only if there is a change.
        """
        version = self._catalogue.version
        configs = self._known()
        if configs and self._synced_version != version and not await self._is_in_sync(configs):
            async with self._store.schedules.periodic_locked() as connection:
                rows = await self._store.schedules.periodic_rows(on=connection)
                new = [key for key in configs if key not in rows]
                chained = await self._store.schedules.chained_runs(new, on=connection)
                now = await self._store.schedules.now(on=connection)
                plan = plan_sync(configs, rows, now=now, chained=chained)
                await self._store.schedules.write_periodic(plan, on=connection)
        self._synced_version = version

    async def _is_in_sync(self, configs: Mapping[str, PeriodicJobConfig]) -> bool:
        rows, now = await self._store.schedules.periodic_rows_and_now()
        if now is None or not configs.keys() <= rows.keys():
            return False
        return plan_sync(configs, rows, now=now, chained={}) == NO_CHANGES

    async def refresh(self) -> tuple[dict[str, PeriodicRow], datetime | None]:
        """Return the rows of the schedules of this process, and the time of the database.

        Without schedules there is no query, and the time is None.
        """
        known = self._known()
        rows, now = await self._store.schedules.periodic_rows_and_now() if known else ({}, None)
        self._rows = {key: row for key, row in rows.items() if key in known}
        return self._rows, now

    def fire_time_job(self, row: PeriodicRow, fire_time: datetime, now: datetime) -> NewJob:
        """Return the job of one fire time.

        Its misfire grace time counts from now, so a fire time that was missed while no node ran still runs.
        """
        late_s = max(math.ceil((now - fire_time) / timedelta(seconds=1)), 0)
        return self._job(
            fire_time_job_id(row.dedup_key, fire_time),
            fire_time,
            late_s,
            dedup_key=row.dedup_key,
            job_name=row.job_name,
            function=row.function,
            priority=row.priority,
            max_retries=row.max_retries,
            use_advisory_lock=row.use_advisory_lock,
        )

    def manual_job(self, dedup_key: str, now: datetime) -> NewJob | None:
        """Return a job that runs a schedule's function now, or None if the key is unknown in this process."""
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
        late_s: int,
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
            task_data=NO_ARGUMENTS,
            priority=priority,
            max_retries=max_retries,
            misfire_grace_time=None if grace is None else min(grace + late_s, MAX_INTEGER),
            timeout_seconds=task.timeout if task else DEFAULT_TIMEOUT.total_seconds(),
            function=function,
            lock_key=advisory_lock_key(dedup_key) if use_advisory_lock else None,
        )

    def _known(self) -> dict[str, PeriodicJobConfig]:
        return self._catalogue.configs()

    def _is_enabled(self, config: PeriodicJobConfig) -> bool:
        row = self._rows.get(config.dedup_key)
        return self._switches.get(config.dedup_key, row.enabled if row else config.enabled)
