"""The schedules of one Scheduler: declared in code, stored in the database, enabled and disabled by calls."""

from __future__ import annotations

import atexit
import os
import secrets
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pg_scheduler.base.messages import PERIODIC
from pg_scheduler.database.author import with_record
from pg_scheduler.database.faults import is_locked_out
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import ConfigurationError, DatabaseUnavailableError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.outcome import describe
from pg_scheduler.jobs.worker_report import ReportedSettings
from pg_scheduler.schedules.declared import (
    Declaration,
    PeriodicCatalogue,
    PeriodicJobConfig,
    declarations_of,
    is_as_declared,
    new_row,
    plan_sync,
    reported_declarations,
    service_among,
    service_of,
    split_module,
)
from pg_scheduler.schedules.row import ScheduleRow
from pg_scheduler.schedules.statements import ScheduleRepository
from pg_scheduler.triggers.serialization import kinds_of
from pg_scheduler.worker.store import WorkerStore

LOCK_TIMEOUT_MS: Final = 100
"""Longest wait for the lock of a schedule that the code declares."""

SKIPPING_TIMEOUT_MS: Final = 10
"""Longest wait for a lock in a transaction that leaves out the schedules that others have locked."""

UNWRITTEN: Final = (
    "schedules not stored at the end of the process: %s: %s; switch them again, and call await "
    "scheduler.shutdown() before the end"
)

RETIRED: Final = (
    "schedule %r of the task %r fires no more: no live worker declares it, because its function, its "
    "@periodic or its dedup key was removed or changed; pg-scheduler schedules remove %s deletes it, and "
    "code that declares it again continues it"
)


class Switches(dict[str, bool]):
    """The schedules that this process has enabled or disabled and not written yet, by dedup key.

    If there are any at the end of the process, they are written then, on a connection of their own: a
    Scheduler that was not started may have no event loop, and the pool may be closed.

    Attributes:
        configs: The schedules that the code declares. A schedule to switch may have no row yet.
    """

    def __init__(self, store: WorkerStore, schedules: ScheduleRepository) -> None:
        super().__init__()
        self._store = store
        self._schedules = schedules
        self._process = 0
        """The id of the process whose end writes the switches; 0 for none."""
        self.configs: dict[str, PeriodicJobConfig] = {}

    def __setitem__(self, dedup_key: str, enabled: bool) -> None:
        """Remember a switch, and let the end of the process write it if no call has done so before."""
        super().__setitem__(dedup_key, enabled)
        if self._process != os.getpid():
            self._process = os.getpid()
            # A forked child has inherited the function that its parent registered.
            atexit.unregister(self._write_at_exit)
            atexit.register(self._write_at_exit)

    def __delitem__(self, dedup_key: str) -> None:
        """Forget a switch that was written. Without any, the end of the process has nothing to write."""
        super().__delitem__(dedup_key)
        if not self:
            # No process has a function for its end any more: the number is that of a process, or 0.
            self._process = 0
            atexit.unregister(self._write_at_exit)

    def _write_at_exit(self) -> None:
        """Write the switches at the end of the process. An error is logged and not raised."""
        # A forked child has inherited the switches of its parent, and the parent writes them.
        if self._process != os.getpid():
            return
        try:
            self._store.connections.run_at_exit(self._write)
        except Exception as error:  # noqa: BLE001 - the end of the process has no caller that handles it
            states = [f"{key!r} {'enabled' if enabled else 'disabled'}" for key, enabled in self.items()]
            logger.warning(UNWRITTEN, ", ".join(states), describe(error), extra=record_fields())

    async def _write(self, connection: Connection) -> None:
        """Write all switches, and add the schedules that have no row yet."""
        schedules = self._schedules
        declarations = declarations_of(self.configs)
        for dedup_key, enabled in self.items():
            has_row = await _switch_row(schedules, declarations, dedup_key, enabled=enabled, on=connection)
            if not has_row:
                # No node has written the schedule yet, so it is added here as the switch has it.
                config = self.configs[dedup_key].switched(enabled=enabled)
                row = new_row(config, await self._store.statements.read_clock(on=connection))
                await schedules.insert(row, sorted(kinds_of(config.trigger)), on=connection, via="code")
        await self._store.locks.notify([PERIODIC], connection=connection)


class DeclaredSchedules:
    """Write the schedules that the code of this process declares, and keep what the database has of them.

    The schedules are known by their dedup keys, which are also the ids of their rows.
    """

    def __init__(
        self,
        store: WorkerStore,
        schedules: ScheduleRepository,
        catalogue: PeriodicCatalogue,
    ) -> None:
        self._store = store
        self._schedules = schedules
        self._catalogue = catalogue
        self._synced_version: int | None = None
        """The version of the catalogue (the declared schedules) that the last ``sync()`` wrote.

        None if there was none since the start, or if it could not write all schedules.
        """
        self._late: set[str] = set()
        """The schedules that the last ``sync()`` could not write, because another transaction holds them."""
        self.ids: list[str] = []
        """The ids of the schedules that the last ``sync()`` wrote or found unchanged."""
        self.worker_id: str | None = None
        """The worker of this process, if it plans; else None.

        If several workers declare a schedule, the code of the worker that started last decides. A process
        that does not plan leaves the schedules of all live workers as they are.
        """
        self._new_service = secrets.token_hex(4)
        """The mark of the service if its rows have none, which the first process of a service invents."""
        self._switches = Switches(store, schedules)
        self._rows: dict[str, ScheduleRow] = {}
        """The rows of the declared schedules, as ``refresh()`` read them last."""

    def configs(self) -> dict[str, PeriodicJobConfig]:
        """Return the configs, with the names that ``@job`` gives, and ``enabled`` as a call set it last."""
        configs = self._catalogue.configs()
        names_by_periodic = {config.job_name for config in configs.values() if config.named}
        switched_configs: dict[str, PeriodicJobConfig] = {}
        for key, config in configs.items():
            # A task has the name of its function, or one that @periodic gives, or otherwise one of @job.
            is_named_by_job = config.task not in {config.function, *names_by_periodic}
            switched_configs[key] = config.switched(
                enabled=self._is_enabled(config),
                job_name=config.task if is_named_by_job else config.job_name,
            )
        return switched_configs

    def functions(self) -> dict[str, Mapping[str, Any]]:
        """Return by dedup key the declaration of each schedule as JSON, which the worker's row stores.

        By that, other nodes know which schedules the code of this worker declares.
        """
        return {key: config.declaration.to_json() for key, config in self.configs().items()}

    def check_locks(self) -> None:
        """Raise ConfigurationError if a schedule uses an advisory lock and the pool cannot hold one."""
        keys = [key for key, config in self.configs().items() if config.use_advisory_lock]
        if keys and not self._store.connections.can_hold_a_lock:
            raise ConfigurationError(
                f"periodic jobs {keys} use an advisory lock, which keeps a connection during each attempt, "
                "but the pool has max_size=1; create the pool with max_size=2 or more, or pass direct_dsn="
            )

    def status(self, dedup_key: str) -> dict[str, Any] | None:
        """Return a description of one schedule, or None if the key is unknown in this process."""
        config = self.configs().get(dedup_key)
        if config is None:
            return None
        row = self._rows.get(dedup_key)
        trigger_values: dict[str, Any] = {"trigger": str(config.trigger)}
        if config.interval is not None:
            trigger_values = {"interval": config.interval.total_seconds()}
        elif config.cron is not None:
            trigger_values = {"cron": config.cron, "timezone": str(config.timezone)}
        next_fire_at = None
        # A row with a ``resume_from`` has no valid next fire time: the planner searches for it in its next
        # pass.
        if row is not None and config.enabled and row.resume_from is None:
            next_fire_at = row.next_fire_at
        return {
            "job_name": config.job_name,
            "enabled": config.enabled,
            "priority": config.priority.value,
            "max_retries": config.max_retries,
            "dedup_key": config.dedup_key,
            "use_advisory_lock": config.use_advisory_lock,
            "function_name": config.func.__name__,
            "function_module": config.func.__module__,
            **trigger_values,
            "next_fire_at": next_fire_at,
            "last_fire_at": None if row is None else row.last_fire_at,
        }

    def enable(self, dedup_key: str, enabled: bool) -> bool:
        """Enable or disable a schedule in memory; return False for an unknown key."""
        if dedup_key not in self._catalogue.configs():
            return False
        # The configs are needed if the switches are written at the end of the process.
        self._switches.configs = self.configs()
        self._switches[dedup_key] = enabled
        return True

    @property
    def version(self) -> int:
        """The number of the last change of the schedules that the code declares."""
        return self._catalogue.version

    @property
    def has_more(self) -> bool:
        """Whether the code has declared schedules since the last ``sync()``, for example by an import.

        False before the first ``sync()``, which writes all of them.
        """
        return self._synced_version not in {None, self._catalogue.version}

    @property
    def is_written(self) -> bool:
        """Whether the database has all schedules declared in code, enabled as in this process."""
        return self._synced_version == self._catalogue.version and not self._switches

    @property
    def has_unwritten_switches(self) -> bool:
        """Whether a switch of this process is not in the database yet."""
        return bool(self._switches)

    async def write_switches(self) -> bool:
        """Write which schedules this process enabled or disabled; return whether a row changed."""
        has_written = False
        # The loop goes through a copy, since callers may add switches while a statement is awaited.
        for dedup_key, enabled in dict(self._switches).items():
            if not await self._try_switch(dedup_key, enabled=enabled):
                # The schedule has no row yet, or another transaction holds it. A later call writes it.
                continue
            has_written = True
            # What configs() and status() return follows at once, without another read of the row.
            row = self._rows.get(dedup_key)
            if row is not None:
                self._rows[dedup_key] = replace(row, paused_at=None if enabled else row.updated_at)
            # A caller may have switched it back in the meantime.
            if self._switches.get(dedup_key) is enabled:
                del self._switches[dedup_key]
        return has_written

    async def _try_switch(self, dedup_key: str, *, enabled: bool) -> bool:
        """Enable or disable one schedule; return False if it has no row, or another transaction locks it."""
        switch = partial(self._switch, dedup_key, enabled=enabled)
        try:
            return await with_record(f"the record of schedule {dedup_key!r}", switch)
        except DatabaseUnavailableError as fault:
            if not is_locked_out(fault):
                raise
            return False

    async def _switch(self, dedup_key: str, *, enabled: bool) -> bool:
        """Enable or disable one schedule in a transaction of its own; return False if it has no row."""
        declarations = declarations_of(self.configs())
        statements = self._store.statements
        async with statements.transaction(lock_timeout_ms=LOCK_TIMEOUT_MS) as (connection, _):
            return await _switch_row(self._schedules, declarations, dedup_key, enabled=enabled, on=connection)

    def forget_sync(self) -> None:
        """Make the next ``sync()`` compare every schedule again."""
        self._synced_version = None
        self._late.clear()

    async def sync(self) -> None:
        """Write the schedules declared in code to the database, unless they are unchanged.

        A transaction that writes schedules excludes others, so it begins only if there is a change, and waits
        for no lock longer than a moment. A schedule that another transaction holds is left to the next call.
        """
        # The version is read first: if an import declares further schedules during a statement, the next call
        # finds that the version has changed since.
        version = self._catalogue.version
        if self._synced_version != version:
            configs = self._catalogue.configs()
            changed_ids = await self._find_changed(configs) if configs else set()
            late_ids: set[str] = set()
            if changed_ids:
                late_ids = await self._write_with_record(configs, changed_ids, creates=True)
            self._late = late_ids
            self.ids = [key for key in configs if key not in late_ids]
            self._synced_version = None if late_ids else version

    async def restore(self) -> bool:
        """Write schedules again whose rows a worker of another release has changed.

        While that worker lives, its code decides if it has started later. A schedule without a row stays
        without one, since a person may have removed it. This reads nothing while the rows of the last
        ``refresh()`` are as declared.

        Returns True if nothing is left to write. False means that another transaction holds a schedule, or
        that ``sync()`` has not written all schedules yet.
        """
        configs = self._catalogue.configs()
        if self._synced_version != self._catalogue.version:
            return False
        are_as_declared = all(
            key in self._rows and is_as_declared(config, self._rows[key]) for key, config in configs.items()
        )
        if are_as_declared:
            return True
        changed_ids = await self._find_changed(configs, creates=False)
        if not changed_ids:
            return True
        late_ids = await self._write_with_record(configs, changed_ids, creates=False)
        return not late_ids

    async def _write_with_record(
        self, configs: Mapping[str, PeriodicJobConfig], changed_ids: set[str], *, creates: bool
    ) -> set[str]:
        """Write the schedules that no other transaction holds for long; return the ids of all others.

        Each change is recorded in the audit. If the server refuses the records, the schedules are written
        without them.
        """
        write = partial(self._write_unlocked, configs, changed_ids, creates=creates)
        return await with_record("the records of declared schedules", write)

    async def _write_unlocked(
        self, configs: Mapping[str, PeriodicJobConfig], changed_ids: set[str], *, creates: bool
    ) -> set[str]:
        """Write the schedules, with one or two attempts; return the ids of those that were not written.

        The first attempt waits for locked rows. If it meets one for too long, the second one leaves out the
        schedules whose rows are locked.
        """
        # If all changed schedules met a lock in the last ``sync()``, the first attempt is omitted, because it
        # would meet the locks again.
        if not changed_ids <= self._late:
            try:
                return await self._write(configs, skips_locked=False, creates=creates)
            except DatabaseUnavailableError as fault:
                if not is_locked_out(fault):
                    raise
        try:
            return await self._write(configs, skips_locked=True, creates=creates)
        except DatabaseUnavailableError as fault:
            if not is_locked_out(fault):
                raise
            # The attempt has left out locked rows, so it met another lock: another process writes its
            # schedules, or the table is being vacuumed.
            return changed_ids

    async def _write(
        self, configs: Mapping[str, PeriodicJobConfig], *, skips_locked: bool, creates: bool
    ) -> set[str]:
        """Write schedules in one transaction; return the ids of those that another transaction holds.

        Args:
            configs: The schedules that the code declares.
            skips_locked: Whether to leave those that are locked. Otherwise a lock is an error.
            creates: Whether those without a row get one.
        """
        schedules = self._schedules
        timeout_ms = SKIPPING_TIMEOUT_MS if skips_locked else LOCK_TIMEOUT_MS
        async with schedules.declaring(lock_timeout_ms=timeout_ms) as transaction:
            connection = transaction.connection
            rows, _ = await schedules.declared(configs, on=connection)
            new_keys = [key for key in configs if creates and key not in rows]
            plan_with = partial(
                plan_sync,
                configs,
                chain_due_times=await schedules.chain_due_times(new_keys, on=connection),
                now=await self._store.statements.read_clock(on=connection),
                service=self._new_service,
                creates=creates,
                left_ids=await self._left_to_later_workers(rows, on=connection),
            )
            plan = plan_with(rows)
            # A planner may have advanced a row in the meantime. So the rows to change are locked and read
            # again, and the changes are computed again from what the locked rows have.
            ids = {row.schedule_id for row in plan.write} | {*plan.delete}
            locked_rows = await schedules.lock(ids, skip_locked=skips_locked, on=connection)
            # The existing rows that are not locked here are those that another transaction holds.
            held_keys = (ids & rows.keys()) - locked_rows.keys()
            for key, (locked_row, _) in locked_rows.items():
                rows[key] = locked_row
            plan = plan_with(rows)
            late_keys: set[str] = set()
            for row in plan.write:
                key = row.schedule_id
                # A schedule whose key has changed moves: its row under the former key is deleted.
                previous_key = plan.moved.get(key)
                if key in held_keys or previous_key in held_keys:
                    late_keys.add(key)
                    continue
                kinds = sorted(kinds_of(configs[key].trigger))
                if not skips_locked:
                    await self._write_row(row, kinds, previous_key, connection)
                    continue
                # A planner may still lock the row of the former key, or a row that is inserted now. Then only
                # this schedule is left to the next call.
                write = partial(self._write_row_within, row, kinds, previous_key, transaction)
                try:
                    await with_record(f"the record of schedule {key!r}", write)
                except DatabaseUnavailableError as fault:
                    if not is_locked_out(fault):
                        raise
                    late_keys.add(key)
            return late_keys

    async def _write_row_within(
        self, row: ScheduleRow, kinds: Sequence[str], previous_key: str | None, transaction: Transaction
    ) -> None:
        """Write a schedule within a savepoint, so that one that meets a lock does not undo the others."""
        async with self._store.statements.transaction(within=transaction) as savepoint:
            await self._write_row(row, kinds, previous_key, savepoint.connection)

    async def _write_row(
        self, row: ScheduleRow, kinds: Sequence[str], previous_key: str | None, connection: Connection
    ) -> None:
        """Insert or overwrite the row of a schedule; delete its row under its previous key, if it had one."""
        if previous_key is not None:
            await self._schedules.remove(previous_key, on=connection, via="code")
        if not await self._schedules.insert(row, kinds, on=connection, via="code"):
            await self._schedules.write(row, kinds, on=connection, via="code")

    async def _find_changed(
        self, configs: Mapping[str, PeriodicJobConfig], *, creates: bool = True
    ) -> set[str]:
        """Return the ids of the schedules whose rows differ from the code, unless another worker decides."""
        rows, now = await self._schedules.declared(configs)
        # The statement returns the time with each row. Without a time, the database has no schedule that any
        # code declares.
        if now is None:
            return set(configs) if creates else set()
        plan_with = partial(
            plan_sync, configs, rows, now=now, chain_due_times={}, service=self._new_service, creates=creates
        )
        plan = plan_with()
        # Normally nothing has changed. Then the statement about other workers is saved.
        if plan.write:
            left_ids = await self._left_to_later_workers(rows)
            if left_ids:
                plan = plan_with(left_ids=left_ids)
        return {row.schedule_id for row in plan.write}

    async def _left_to_later_workers(
        self, schedule_ids: Collection[str], *, on: Connection | None = None
    ) -> Collection[str]:
        """Return those of the schedules that the code of another live worker decides about.

        It does if that worker has started later than the worker of this process. A process without a worker
        leaves all schedules that any live worker declares.
        """
        if not schedule_ids:
            return ()
        return await self._schedules.declared_later(schedule_ids, self.worker_id, on=on)

    async def retire(self) -> None:
        """Mark schedules as retired whose functions were removed from modules that this process has imported.

        Retired schedules fire no more. Schedules of other modules are left, because another service may
        declare them, although none of its workers is alive now. Another service may also have modules of the
        same names. The marks in the rows distinguish its schedules, unless this process declares no schedule
        and so knows no mark of its service.
        """
        configs = self._catalogue.configs()
        schedules = self._schedules
        services = {service_of(row) for row in self._rows.values()}
        # Texts of the column ``module``: each has the name of a module, and perhaps the mark of a service.
        marked_modules: list[str] = []
        for marked_module in await schedules.undeclared_modules(configs):
            module, service = split_module(marked_module)
            may_be_of_this_service = not configs or service is None or service in services
            if _is_imported(module) and may_be_of_this_service:
                marked_modules.append(marked_module)
        if not marked_modules:
            return
        moving_ids = await self._find_moving()
        for schedule_id, task in await schedules.retire(configs, marked_modules, moving_ids):
            logger.warning(RETIRED, schedule_id, task, schedule_id, extra=record_fields())

    async def _find_moving(self) -> set[str]:
        """Return the ids of the rows that live workers will move to other keys.

        The code of such a worker declares a schedule under a key that has no row yet, and the row of that
        schedule has a former key. It must not be marked as retired meanwhile.
        """
        rows, _ = await self._schedules.declared([])
        moving: set[str] = set()
        for worker in await self._store.workers.list_workers():
            if not worker.is_alive:
                continue
            declarations = reported_declarations(ReportedSettings(worker.settings).declared_functions)
            service = service_among(declarations, rows)
            for key in declarations.keys() - rows.keys():
                former_rows = declarations[key].find_former_rows(declarations, rows, service)
                moving.update(row.schedule_id for row in former_rows)
        return moving

    async def refresh(self) -> None:
        """Read the rows of the schedules of this process."""
        configs = self._catalogue.configs()
        self._rows = await self._schedules.read(configs) if configs else {}

    def _is_enabled(self, config: PeriodicJobConfig) -> bool:
        """Return whether a schedule is enabled: by the last call here, else by its row, else by the code."""
        row = self._rows.get(config.dedup_key)
        was_enabled = config.enabled if row is None else row.enabled
        return self._switches.get(config.dedup_key, was_enabled)


def _is_imported(module: str) -> bool:
    """Return whether this process has executed a module to its end, so that all its functions exist."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


async def _switch_row(
    schedules: ScheduleRepository,
    declarations: Mapping[str, Declaration],
    dedup_key: str,
    *,
    enabled: bool,
    on: Connection,
) -> bool:
    """Enable or disable a schedule; return whether it has a row.

    If its own key has no row, the row may have the key that the code of another release gives the schedule. A
    worker that later moves that row to another key keeps what is written here.
    """

    async def switch(schedule_id: str) -> bool:
        """Resume or pause the schedule with this id; return whether it exists."""
        if enabled:
            return await schedules.resume(schedule_id, from_now=True, on=on) is not None
        return await schedules.pause(schedule_id, None, on=on) is not None

    if await switch(dedup_key):
        return True
    rows, _ = await schedules.declared([], on=on)
    service = service_among(declarations, rows)
    former_rows = declarations[dedup_key].find_former_rows(declarations, rows, service)
    active_ids = [row.schedule_id for row in former_rows if row.retired_at is None]
    # Of several rows, it is unknown which one is that of the schedule.
    return len(active_ids) == 1 and await switch(active_ids[0])
