"""Enable, disable and trigger the periodic functions of this process, by their dedup keys."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.errors import SchemaForbiddenError, SchemaMissingError
from pg_scheduler.events.background import start_in_background
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.model import ConflictResolution
from pg_scheduler.scheduler.parts import Parts

if TYPE_CHECKING:
    from pg_scheduler.scheduler.schedules import Schedules
    from pg_scheduler.schedules import declared as declared_schedules
    from pg_scheduler.schedules.declared import PeriodicJobConfig
else:
    declared_schedules = LazyModule("pg_scheduler.schedules.declared")


NO_TABLES: Final = "enabled and disabled schedules not stored, start() stores them: %s"


class PeriodicJobs:
    """Triggers periodic jobs, and enables and disables their schedules.

    `switch()` is a plain function, which cannot await a statement. If no planner runs in this process to
    write the change, a task in the background does.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._writes: set[asyncio.Task[None]] = set()

    @property
    def is_writing(self) -> bool:
        """Whether tasks in the background store which schedules are disabled."""
        return bool(self._writes)

    async def wait_for_writes(self) -> None:
        """Wait until the tasks in the background have ended."""
        if self._writes:
            await asyncio.wait(self._writes)

    async def trigger(self, dedup_key: str, schedules: Schedules) -> str | None:
        """Run a periodic job once now; return its id, or None if the key is unknown in this process."""
        config = self._parts.declared.configs().get(check_key(dedup_key))
        if config is None:
            return None
        # Whether the database role may perhaps insert plain jobs only.
        is_enqueuer = False
        try:
            job_id = await schedules.trigger(dedup_key)
            # It is None if no node has stored the schedule yet.
            if job_id is not None:
                return job_id
        except SchemaForbiddenError:
            # The role may not use the table of schedules. Perhaps it may insert plain jobs, as the enqueuer
            # does.
            is_enqueuer = True
        return await self._insert(config, is_enqueuer=is_enqueuer)

    async def _insert(self, config: PeriodicJobConfig, *, is_enqueuer: bool) -> str:
        """Insert a job of a schedule that no node has stored yet, or that this role may not read.

        The job has all options of its task. But later jobs of the schedule do not wait for its end, because
        the schedule does not record it as its last job.

        Args:
            config: The periodic function.
            is_enqueuer: Whether the role may not read schedules, so that it may perhaps insert plain jobs
                only.
        """
        row = declared_schedules.new_row(config, await self._parts.store.statements.read_clock())
        # The enqueuer calls the middleware, so the builder does not.
        builder = replace(self._parts.job_builders.builder(row), sender=None)
        job = builder.manual_job(row.created_at)
        # A role that may insert plain jobs only cannot store the id of the schedule, so the plain row is
        # inserted, which lacks the id. If the task has other options, the job needs all columns, and the
        # server refuses it.
        has_plain_row = is_enqueuer and builder.is_plain
        inserted_job = job.row if has_plain_row else job
        return await self._parts.enqueuer.insert(inserted_job, ConflictResolution.RAISE, None)

    def switch(self, dedup_key: str, *, enabled: bool) -> bool:
        """Enable or disable a schedule; return whether the key is known in this process.

        The planner of a running worker stores the change. Otherwise a task in the background does, or if
        there is no event loop, the next start.
        """
        self._parts.store.connections.check_thread()
        check_key(dedup_key)
        if not self._parts.declared.enable(dedup_key, enabled):
            return False
        runtime = self._parts.runtime
        # The planner of this process writes the change in its next pass, which begins at once.
        if self._parts.life.is_running and runtime is not None and runtime.node.config.plans:
            runtime.node.signals.schedules_changed()
            return True
        try:
            asyncio.get_running_loop()
        # There is no event loop, so the next start writes the change.
        except RuntimeError:
            return True
        task = start_in_background(self._write_switches(), f"pg_scheduler switch of {dedup_key!r}")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return True

    async def _write_switches(self) -> None:
        """Store which schedules this process has disabled or enabled.

        If no node has stored the schedule of a switch yet, it is stored first.
        """
        try:
            has_changed = await self._parts.declared.write_switches()
            # A switch is left if no node has stored its schedule yet.
            if self._parts.declared.has_unwritten_switches:
                await self._parts.declared.sync()
                has_changed = await self._parts.declared.write_switches() or has_changed
            # configs() and the status of this process show what the rows have now.
            await self._parts.declared.refresh()
        except SchemaMissingError as error:
            logger.warning(NO_TABLES, error, extra=record_fields())
            return
        if has_changed:
            await self._parts.outbox.notify_schedules()


def check_key(dedup_key: object) -> str:
    """Return the dedup key; raise TypeError unless it is a str."""
    if not isinstance(dedup_key, str):
        raise TypeError(
            f"dedup_key must be a str, not {dedup_key!r}; pass a key of get_periodic_jobs(), "
            "or give @periodic a dedup_key="
        )
    return dedup_key
