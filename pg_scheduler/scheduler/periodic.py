"""Inspect, enable, disable and trigger periodic functions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from pg_scheduler.errors import SchemaForbiddenError, SchemaMissingError
from pg_scheduler.events.background import start_in_background
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.model import ConflictResolution
from pg_scheduler.scheduler.parts import SchedulerMethods
from pg_scheduler.scheduler.schedules import Schedules
from pg_scheduler.schedules.declared import PeriodicJobConfig, new_row

NO_TABLES: Final = "enabled and disabled schedules not stored, start() stores them: %s"


class PeriodicMethods(SchedulerMethods):
    """The methods of `Scheduler` for periodic jobs."""

    _switch_tasks: set[asyncio.Task[None]]

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules that are added, changed and read at run time; see `Schedules`."""
        return Schedules(self._parts)

    def get_periodic_jobs(self) -> dict[str, PeriodicJobConfig]:
        """Return the periodic functions of this process by dedup key."""
        return self._parts.declared.configs()

    def enable_periodic_job(self, dedup_key: str) -> bool:
        """Enable a schedule: at once on this node, within a second on the others. Restarts keep the change.

        Returns:
            False if the key is unknown in this process.
        """
        return self._switch(dedup_key, True)

    def disable_periodic_job(self, dedup_key: str) -> bool:
        """Disable a schedule: at once on this node, within a second on the others. Restarts keep the change.

        A job that is already enqueued still runs. A Scheduler that was not started writes to the database in
        the background, and ``shutdown()`` waits for that. Without an event loop or tables, ``start()`` does.
        The end of the process writes what is left, on a connection of its own, and logs a warning if it
        cannot.

        Returns:
            False if the key is unknown in this process.
        """
        return self._switch(dedup_key, False)

    async def trigger_periodic_job(self, dedup_key: str) -> str | None:
        """Run a periodic job once now, even if its schedule is disabled. Its fire times do not change.

        Returns:
            The id of the job, or None if the key is unknown in this process.

        Raises:
            JobConflictError: The task is unique, and another job has the key; a ValueError.
            SchemaForbiddenError: The role may insert plain jobs only, and the task has other options.
        """
        config = self._parts.declared.configs().get(_check_key(dedup_key))
        if config is None:
            return None
        is_enqueuer = False
        try:
            job_id = await self.schedules.trigger(dedup_key)
            if job_id is not None:
                return job_id
        except SchemaForbiddenError:  # a role that may only insert plain jobs
            is_enqueuer = True
        # No node has stored the schedule yet, or this role may not read it. The job has all options of its
        # task, but later jobs of the schedule do not wait for its end. The enqueuer calls the middleware.
        row = new_row(config, await self._parts.store.schedules.now())
        builder = replace(self._parts.schedule_jobs.builder(row), sender=None)
        job = builder.manual_job(row.created_at)
        # Such a role cannot store the id of the schedule. It is refused a job with options of its task.
        is_row = is_enqueuer and builder.is_plain
        return await self._parts.enqueuer.insert(job.row if is_row else job, ConflictResolution.RAISE, None)

    def get_periodic_job_status(self, dedup_key: str) -> dict[str, Any] | None:
        """Return a description of one schedule, or None if the key is unknown in this process.

        Keys: ``job_name, enabled, priority, max_retries, dedup_key, use_advisory_lock, function_name,
        function_module``; ``interval`` (seconds), ``cron`` and ``timezone``, or ``trigger`` (a text);
        ``next_fire_at`` and ``last_fire_at`` as the running Scheduler last read them from the database.
        """
        return self._parts.declared.status(_check_key(dedup_key))

    def _switch(self, dedup_key: str, enabled: bool) -> bool:
        self._parts.store.connections.check_thread()
        _check_key(dedup_key)
        if not self._parts.declared.enable(dedup_key, enabled):
            return False
        runtime = self._parts.runtime
        if self._parts.life.is_running and runtime is not None and runtime.node.config.plans:
            runtime.node.signals.schedules_changed()
            return True
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # without a loop, the next start writes it
            return True
        task = start_in_background(self._write_switches(), f"pg_scheduler switch of {dedup_key!r}")
        self._switch_tasks.add(task)
        task.add_done_callback(self._switch_tasks.discard)
        return True

    async def _write_switches(self) -> None:
        try:
            written = await self._parts.declared.write_switches()
            if self._parts.declared.has_unwritten_switches:  # no node has stored the schedule yet
                await self._parts.declared.sync()
                written = await self._parts.declared.write_switches() or written
            await self._parts.declared.refresh()
        except SchemaMissingError as error:
            logger.warning(NO_TABLES, error, extra=record_fields())
            return
        if written:
            await self._parts.outbox.notify_schedules()


def _check_key(dedup_key: object) -> str:
    if not isinstance(dedup_key, str):
        raise TypeError(
            f"dedup_key must be a str, not {dedup_key!r}; pass a key of get_periodic_jobs(), "
            "or give @periodic a dedup_key="
        )
    return dedup_key
