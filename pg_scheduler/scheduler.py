"""The face of the library: checks what callers say and hands it to the part that owns the duty."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar, overload

import asyncpg

from pg_scheduler.clock import Clock
from pg_scheduler.enqueue.enqueuer import Enqueuer
from pg_scheduler.enqueue.schedule_book import ScheduleBook
from pg_scheduler.errors import ConfigurationError, NotRunningError
from pg_scheduler.events import Event, EventBus, JobCancelled, Subscriber
from pg_scheduler.events.log import EventLog, record_fields
from pg_scheduler.events.types import BY_CALLER
from pg_scheduler.jobs.model import (
    UNSET,
    ConflictResolution,
    Job,
    JobCounts,
    JobFunction,
    JobPriority,
    JobSpec,
    JobStatus,
    Unset,
    Worker,
)
from pg_scheduler.jobs.naming import check_name
from pg_scheduler.jobs.payload import encode_task_data
from pg_scheduler.jobs.registry import TaskRegistry, catalogue
from pg_scheduler.jobs.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.validation import (
    check_count,
    check_execution_time,
    check_job_id,
    check_kind,
    check_text,
)
from pg_scheduler.schedules.catalogue import periodic_catalogue
from pg_scheduler.schedules.model import PeriodicJobConfig
from pg_scheduler.settings import PollingConfig, SchedulerConfig, VacuumConfig, checked
from pg_scheduler.store.connections.pool import Connections, PoolConnection
from pg_scheduler.store.store import Store
from pg_scheduler.worker.announcer import Announcer
from pg_scheduler.worker.lifecycle import Lifecycle, log_failure
from pg_scheduler.worker.maintenance.vacuum import Vacuum
from pg_scheduler.worker.runtime import Runtime

__all__ = ["Scheduler"]

F = TypeVar("F", bound=JobFunction)

logger = logging.getLogger("pg_scheduler")

MAX_PAGE: Final = 10_000
"""Jobs that list_jobs() gives at most at once."""


class Scheduler:
    """Runs coroutine functions at their time, on any number of nodes, with nothing but PostgreSQL.

    Args:
        db_pool: Your asyncpg pool. With ``max_size`` of 3 or more one connection is kept for LISTEN and
            heartbeats, with 4 or more another one for claims.
        max_concurrent_jobs: Jobs this node runs at once.
        misfire_grace_time: Seconds after its time within which a job may still start, for jobs that say
            nothing themselves; None for ever.
        vacuum_config: What is deleted when; see VacuumConfig.
        vacuum_enabled: False to delete nothing.
        batch_claim_limit: Jobs taken at most with one statement.
        polling_config: Bounds of the fallback polling; see PollingConfig.
        schema: The schema of the tables, created if need be; None for the connection's search path.
        direct_dsn: A DSN that leads to PostgreSQL itself, for LISTEN, heartbeats and advisory locks: needed
            behind PgBouncer in transaction mode, or with a very small pool.
        keeper_dsn: Where the lease keeper connects, a thread that keeps the lease while a job blocks the
            event loop. When None it connects as ``direct_dsn`` says, else as the pool does, with one
            connection more than the pool's. With a pool of 3 or fewer there is then no keeper, and the jobs
            of a killed process wait for its lease.
        max_crashes: Workers that may die under one job, whether it killed them or not, before it fails for
            good; None for any number.
        max_loop_block: Seconds for which the event loop may be blocked before this worker gives its lease up.
        max_payload_bytes: Bytes of JSON, in UTF-8, that the arguments of one job may have, at least 64; None
            for any number. What is larger is refused where it is scheduled.
        shutdown_timeout: Seconds that running jobs get to end at shutdown, and their results after that
            to be written.
        retry_policy: When failed tries are tried again; see RetryPolicy.
        clock: For tests: decides what time it is in place of the database.

    Raises:
        ConfigurationError: A setting that cannot be, with its value and the rule; a ValueError.

    Example::

        async with asyncpg.create_pool(dsn) as pool, Scheduler(pool) as scheduler:
            await scheduler.schedule(send_mail, execution_time=datetime.now(UTC) + timedelta(hours=1))
            await scheduler.wait()
    """

    HEARTBEAT_THRESHOLD: ClassVar[float] = 120
    """Seconds after which a running row that has a heartbeat but no lease is given to another worker."""

    LEASE_DURATION: ClassVar[float] = 60
    """Seconds for which a worker that cannot be heard of keeps its jobs."""

    WORKER_ID_LENGTH: ClassVar[int] = 8
    """Characters of ``worker_id``."""

    def __init__(  # noqa: PLR0917 - the signature is the contract with users of 0.2.x
        self,
        db_pool: asyncpg.Pool,
        max_concurrent_jobs: int = 25,
        misfire_grace_time: int | None = 300,
        vacuum_config: VacuumConfig | None = None,
        vacuum_enabled: bool = True,
        batch_claim_limit: int = 10,
        polling_config: PollingConfig | None = None,
        *,
        schema: str | None = None,
        direct_dsn: str | None = None,
        keeper_dsn: str | None = None,
        max_crashes: int | None = 3,
        max_loop_block: float = 600.0,
        max_payload_bytes: int | None = 1_048_576,
        shutdown_timeout: float = 30.0,
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(db_pool, asyncpg.Pool):
            raise TypeError(
                "db_pool must be an asyncpg.Pool, as asyncpg.create_pool() gives it, "
                f"not {type(db_pool).__name__}"  # the repr could be a DSN with a password
            )
        check_kind("retry_policy", retry_policy, RetryPolicy)
        self._config: SchedulerConfig = checked(
            SchedulerConfig,
            max_concurrent_jobs=max_concurrent_jobs,
            batch_claim_limit=batch_claim_limit,
            misfire_grace_time=misfire_grace_time,
            vacuum_enabled=vacuum_enabled,
            vacuum=vacuum_config if vacuum_config is not None else VacuumConfig(),
            polling=polling_config if polling_config is not None else PollingConfig(),
            schema=schema,
            direct_dsn=direct_dsn,
            keeper_dsn=keeper_dsn,
            max_crashes=max_crashes,
            max_loop_block=max_loop_block,
            max_payload_bytes=max_payload_bytes,
            shutdown_timeout=shutdown_timeout,
            lease_seconds=self.LEASE_DURATION,
            heartbeat_threshold=self.HEARTBEAT_THRESHOLD,
        )
        self.db_pool = db_pool
        self._retry_policy = retry_policy
        self._events = EventBus(EventLog(lambda: self.worker_id))
        self._store = Store(
            Connections(db_pool, direct_dsn, keeper_dsn=keeper_dsn), schema=schema, clock=clock
        )
        self._tasks = TaskRegistry(catalogue)
        self._announcer = Announcer(
            self._store,
            self._events,
            horizon=2 * self._config.polling.max_interval,
            on_due=lambda: self._runtime.wake_claimer() if self._runtime else None,
            mark=secrets.token_hex(4),
        )
        self._enqueuer = Enqueuer(
            self._store,
            self._tasks,
            self._announcer,
            misfire_grace_time=misfire_grace_time,
            max_payload_bytes=max_payload_bytes,
        )
        self._periodic = ScheduleBook(
            self._store, periodic_catalogue, self._tasks, misfire_grace_time=misfire_grace_time
        )
        self._life = Lifecycle(self._events, self._new_worker_id(), self._build)
        self._errands: set[asyncio.Task[None]] = set()

    @property
    def worker_id(self) -> str:
        """Who this Scheduler is in the tables; the same from construction on."""
        return self._life.worker_id

    @property
    def is_running(self) -> bool:
        """Whether jobs are being claimed."""
        return self._life.is_running

    @property
    def is_shutting_down(self) -> bool:
        """Whether ``shutdown()`` is under way."""
        return self._life.is_shutting_down

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Migrate or verify the schema and start every part; returns when jobs are really being claimed.

        Twice is a no-op; after ``shutdown()`` it starts again.

        Raises:
            SchemaError: The database was migrated by a newer version.
            ConfigurationError: A periodic job wants an advisory lock and the pool has one connection.
            DatabaseUnavailableError: The database cannot be reached, or the pool has been closed.
        """
        if not self.is_running and len(self.worker_id) != self.WORKER_ID_LENGTH:  # it was set since
            self._life.worker_id = self._new_worker_id()
        await self._life.start()

    async def shutdown(self) -> None:
        """Stop claiming, let running jobs end, hand back what does not, and write every result.

        Jobs that are still running after ``shutdown_timeout`` seconds are cancelled and pending again at
        once; their interrupted try does not count. Twice is a no-op. A call that is cancelled goes on in
        the background.

        Raises:
            DatabaseUnavailableError: The database was unavailable, or the pool was closed first, so results
                could not be written. Every service has stopped; another worker reclaims those jobs within
                seconds, or when the lease expires.
        """
        if self._errands:
            await asyncio.wait(self._errands)
        await self._life.shutdown()

    async def wait(self) -> None:
        """Wait until the Scheduler has stopped.

        Raises:
            BaseException: What made it stop by itself, if it was not ``shutdown()``.
        """
        await self._life.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()
        if error is None and self._life.fault is not None:
            raise self._life.fault

    async def initialize_db(self) -> None:
        """Create or upgrade the schema without starting.

        Raises:
            SchemaError: The database was migrated by a newer version.
        """
        await self._store.migrate()

    # -- functions -------------------------------------------------------------------------------------

    @overload
    def register(self, func: F, *, name: str | None = None, aliases: Iterable[str] = ()) -> F: ...
    @overload
    def register(
        self, func: None = None, *, name: str | None = None, aliases: Iterable[str] = ()
    ) -> Callable[[F], F]: ...
    def register(self, func: F | None = None, *, name: str | None = None, aliases: Iterable[str] = ()) -> Any:
        """Make a coroutine function known to this Scheduler, also while it runs; also as a decorator.

        Args:
            func: The function; left out when used as a decorator with arguments.
            name: The name of its jobs; ``module.qualname`` when None.
            aliases: Old names whose waiting jobs shall run too.

        Returns:
            The function as it is, or a decorator.

        Raises:
            TypeError: It is no coroutine function.
            NameConflictError: Another function has one of the names; a ValueError.

        Example::

            @scheduler.register(name="mail.send", aliases=["send_mail"])
            async def send(to: str) -> None: ...
        """

        def add(function: F) -> F:
            self._tasks.register(function, name=name, aliases=aliases)
            if self._runtime:
                self._runtime.wake_claimer()
            return function

        return add if func is None else add(func)

    # -- scheduling ------------------------------------------------------------------------------------

    async def schedule(
        self,
        func: JobFunction,
        *,
        execution_time: datetime,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        priority: JobPriority = JobPriority.NORMAL,
        max_retries: int = 0,
        job_id: str | None = None,
        conflict_resolution: ConflictResolution = ConflictResolution.RAISE,
        misfire_grace_time: int | Unset | None = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        connection: PoolConnection | None = None,
    ) -> str:
        """Run a coroutine function once, at a time.

        Args:
            func: The coroutine function; it becomes known to this Scheduler.
            execution_time: When; timezone-aware. A time in the past means at once, if it is within the grace.
            args: Positional arguments; plain values that JSON can carry.
            kwargs: Keyword arguments likewise.
            priority: Due jobs of a higher priority start first.
            max_retries: Tries after the first one.
            job_id: Your own id, of at most 2,000 bytes of UTF-8; made for you when None.
            conflict_resolution: What to do when the id exists.
            misfire_grace_time: Seconds after ``execution_time`` within which the job may start; None for
                ever; left out, the function's or the scheduler's.
            timeout: Seconds (or a timedelta) one try may take; None for ever; left out, the function's,
                which is an hour unless ``@job`` says otherwise.
            connection: An asyncpg connection in a transaction of yours: the job exists if and only if
                that transaction commits.

        Returns:
            The id.

        Raises:
            TypeError: ``func`` is no coroutine function, or a value has the wrong type.
            ValueError: A naive time, or another value that cannot be.
            PayloadError: An argument that JSON cannot carry, with its path, or more than
                ``max_payload_bytes`` of them. Nothing is stored.
            JobConflictError: The id is taken and the resolution is RAISE; a ValueError.
            DatabaseUnavailableError: The database was unreachable, or its answer was lost and the job may
                exist. Call again with the same ``job_id`` and ``ConflictResolution.IGNORE``.

        Example::

            job_id = await scheduler.schedule(
                send_mail,
                execution_time=datetime.now(UTC) + timedelta(minutes=5),
                args=("ada@example.org",),
                max_retries=3,
            )
        """
        spec = JobSpec(
            func,
            execution_time,
            args,  # type: ignore[arg-type] # a list is as good as a tuple
            kwargs,  # type: ignore[arg-type] # None is as good as {}
            priority,
            max_retries,
            job_id,
            misfire_grace_time,
            timeout=timeout,
        )
        (job,) = self._enqueuer.check((spec,))
        return await self._enqueuer.insert(job, conflict_resolution, connection)

    async def schedule_bulk(
        self,
        jobs: Sequence[JobSpec],
        *,
        conflict_resolution: ConflictResolution = ConflictResolution.IGNORE,
        batch_size: int = 1000,
        connection: PoolConnection | None = None,
    ) -> list[str | None]:
        """Schedule many jobs with few statements.

        Args:
            jobs: What to run. All are checked before the first one is written.
            conflict_resolution: What to do with ids that exist or come twice. RAISE is all or nothing;
                with IGNORE the first of an id stands, with REPLACE the last.
            batch_size: Jobs per statement.
            connection: As in ``schedule()``.

        Returns:
            Ids in the order of the jobs, None where a job was not inserted.

        What is raised is as in ``schedule()``.
        """
        return await self._enqueuer.insert_all(jobs, conflict_resolution, batch_size, connection)

    async def schedule_job(  # noqa: PLR0917 - the same
        self,
        job_name: str,
        execution_time: datetime,
        task_data: Mapping[str, Any],
        priority: JobPriority = JobPriority.NORMAL,
        max_retries: int = 0,
        job_id: str | None = None,
        conflict_resolution: ConflictResolution = ConflictResolution.RAISE,
        misfire_grace_time: int | Unset | None = UNSET,
    ) -> str:
        """Schedule by name; the function need not be known here, some worker must know it.

        ``job_name`` is ``module.qualname``, or the name given to ``@job`` or ``register()``; ``task_data``
        is ``{"args": [...], "kwargs": {...}}``. Everything else is as in ``schedule()``.
        """
        job = self._enqueuer.new_job(
            check_name(job_name),
            execution_time,
            encode_task_data(task_data),
            priority=priority,
            max_retries=max_retries,
            job_id=job_id,
            misfire_grace_time=misfire_grace_time,
        )
        return await self._enqueuer.insert(job, conflict_resolution, None)

    async def cancel_job(self, job_id: str) -> bool:
        """Cancel a job that is pending or running.

        The task of a running one is cancelled within a second, on whichever worker it runs.

        Returns:
            True if it was pending or running; False if it had ended, or there is none of that id.
        """
        told = await self._store.cancel(check_job_id(job_id))
        await self._tell(told.worker_id)
        if told.changed and told.worker_id is None:  # else whoever runs it says so
            self._events.publish(JobCancelled(job_id, told.job_name, told.attempt, reason=BY_CALLER))
        return told.changed

    async def retry_job(self, job_id: str) -> bool:
        """Run a job that has ended once more, now, with its retries and crashes unused.

        Whatever its end was: failed, expired, cancelled or completed. Its id, arguments and priority stay.

        Returns:
            True if it had ended and is pending now; False if it waits or runs, or there is none of that id.
        """
        was_there = await self._store.retry(check_job_id(job_id))
        if was_there:
            self._announcer.due_soon()
        return was_there

    async def update_job_status(self, job_id: str, status: JobStatus | str) -> bool:
        """Set a status by hand, whatever it was before.

        A worker that runs the job loses it: its task is cancelled and its result refused. ``pending``
        makes a finished job run again. ``running`` reserves a job for one lease (one that is not due yet,
        until its time at least), after which it is pending again.

        Args:
            job_id: The job.
            status: A JobStatus or its text.

        Returns:
            False if there is no job of that id.

        Raises:
            ValueError: ``status`` is no status.
        """
        wanted = JobStatus.parse(status)
        told = await self._store.set_status(check_job_id(job_id), wanted, self._config.lease_seconds)
        await self._tell(told.worker_id)
        if wanted is JobStatus.PENDING:
            await self._announcer.due(datetime.now(UTC))
        return told.changed

    # -- looking ---------------------------------------------------------------------------------------

    async def get_job(self, job_id: str) -> Job | None:
        """A job as its row says; None if there is none of that id."""
        return await self._store.get_job(check_job_id(job_id))

    async def list_jobs(
        self,
        *,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        job_name: str | None = None,
        worker_id: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """A page of jobs in the order of their ids; ids made here sort by the time they were made.

        Args:
            status: One status or several; None for all.
            job_name: Jobs of this name only.
            worker_id: Jobs that this worker runs, or ran last.
            due_from: Jobs due at or after this time.
            due_before: Jobs due before this time.
            after: The last id of the page before; None for the first page.
            limit: The length of the page, 1 to 10,000.

        Raises:
            ValueError: A status that is none, a naive time, or a limit out of range.

        Example::

            page = await scheduler.list_jobs(status="failed")
            more = await scheduler.list_jobs(status="failed", after=page[-1].job_id)
        """
        if status is not None:
            one = isinstance(status, str)
            statuses: list[JobStatus] | None = [
                JobStatus.parse(each) for each in ([status] if one else status)
            ]
        else:
            statuses = None
        check_count("limit", limit, least=1, most=MAX_PAGE)
        for name, value in (("job_name", job_name), ("worker_id", worker_id)):
            if value is not None:
                check_text(name, value)
        return await self._store.list_jobs(
            after=None if after is None else check_job_id(after),
            statuses=statuses,
            job_name=job_name,
            worker_id=worker_id,
            due_from=None if due_from is None else check_execution_time(due_from, name="due_from"),
            due_before=None if due_before is None else check_execution_time(due_before, name="due_before"),
            limit=limit,
        )

    async def count_jobs(self, *, job_name: str | None = None) -> JobCounts:
        """How many jobs have each status, of one name or of all."""
        if job_name is not None:
            check_text("job_name", job_name)
        return await self._store.count_jobs(job_name)

    async def workers(self) -> list[Worker]:
        """Every worker that has a row, the oldest first, with whether its lease still runs."""
        return await self._store.workers()

    def subscribe(self, subscriber: Subscriber, *kinds: type[Event]) -> Callable[[], None]:
        """Call ``subscriber`` with events of these classes (``pg_scheduler.events``), or with all.

        It is called in the event loop and must not block. What it raises is logged.

        Returns:
            A function that ends the subscription.
        """
        return self._events.subscribe(subscriber, *kinds)

    # -- building blocks -------------------------------------------------------------------------------

    async def recover_orphaned_jobs(self) -> None:
        """Give back the jobs of dead workers now."""
        await self._running().rescuer.run_once()

    async def periodic_orphan_recovery(self) -> None:
        """The same; the rescuer does it by itself when a lease is over."""
        await self.recover_orphaned_jobs()

    async def monitor_heartbeats(self) -> None:
        """The same: a worker is dead when its lease is over."""
        await self.recover_orphaned_jobs()

    async def listen_for_jobs(self) -> None:
        """Claim due jobs now; the claimer does it by itself when jobs are due."""
        await self._running().claimer.run_once()

    async def send_heartbeat(self, job_id: str) -> None:
        """Renew this worker's lease and those of its jobs; done by itself every third of a lease."""
        check_job_id(job_id)
        await self._running().heartbeat.run_once()

    async def load_task_functions(self) -> list[str]:
        """Look for waiting jobs whose names are unknown here, and log them.

        Returns:
            The unknown names. Their jobs stay pending for a worker that knows them.
        """
        unknown = sorted(name for name in await self._store.waiting_names() if not self._tasks.resolve(name))
        for name in unknown:
            logger.warning(
                "pending jobs reference the unregistered function %r; start a worker that registers it",
                name,
                extra=record_fields(job_name=name, worker_id=self.worker_id),
            )
        return unknown

    async def execute_job(self, job_row: Mapping[str, Any]) -> None:
        """Run one job that this worker has claimed, now; returns when it has ended.

        Args:
            job_row: Its row, or anything with its ``job_id``.

        Raises:
            ValueError: This worker has no claim on it, or runs it already.
        """
        await self._running().execute(await self._claim_of(job_row))

    async def execute_job_with_concurrency_control(self, job_row: Mapping[str, Any]) -> None:
        """The same as soon as one of the ``max_concurrent_jobs`` slots is free."""
        await self._running().execute_when_free(await self._claim_of(job_row))

    # -- vacuum ----------------------------------------------------------------------------------------

    async def run_vacuum(self) -> dict[str, int]:
        """Delete what the policies say now; how many jobs of each status were deleted."""
        vacuum = Vacuum(self._store, self._events, self._config.vacuum, self.worker_id)
        return {status.value: count for status, count in (await vacuum.run()).items()}

    async def get_vacuum_stats(self, days: int = 7) -> list[dict[str, Any]]:
        """What was deleted on each of the last days, the newest first; empty unless ``track_metrics``."""
        check_count("days", days, least=1)
        if not self._config.vacuum.track_metrics:
            return []
        return [asdict(day) for day in await self._store.vacuum_stats(days)]

    async def get_total_vacuum_stats(self) -> dict[str, Any]:
        """What was deleted in all; empty unless ``track_metrics``."""
        if not self._config.vacuum.track_metrics:
            return {}
        return asdict(await self._store.total_vacuum_stats())

    # -- periodic jobs ---------------------------------------------------------------------------------

    def get_periodic_jobs(self) -> dict[str, PeriodicJobConfig]:
        """Every periodic function known here, by dedup key."""
        return self._periodic.configs()

    def enable_periodic_job(self, dedup_key: str) -> bool:
        """Switch a schedule on: here at once, on every node within a second, and for good.

        Returns:
            False for an unknown key.
        """
        return self._switch(dedup_key, True)

    def disable_periodic_job(self, dedup_key: str) -> bool:
        """Switch a schedule off likewise. A run that is already enqueued still runs."""
        return self._switch(dedup_key, False)

    async def trigger_periodic_job(self, dedup_key: str) -> str | None:
        """Run a periodic job once now, also when it is switched off. Its rhythm is untouched.

        Returns:
            The job's id, or None for an unknown key.
        """
        job = self._periodic.manual_job(dedup_key, await self._store.now())
        if job is None:
            return None
        return await self._enqueuer.insert(job, ConflictResolution.RAISE, None)

    def get_periodic_job_status(self, dedup_key: str) -> dict[str, Any] | None:
        """One schedule for people to read; None for an unknown key.

        Keys: ``job_name, enabled, priority, max_retries, dedup_key, use_advisory_lock, function_name,
        function_module``; ``interval`` (seconds) or ``cron`` and ``timezone``; ``next_fire_at`` and
        ``last_fire_at`` as last read from the database by the running Scheduler.
        """
        return self._periodic.status(dedup_key)

    # -- inner -----------------------------------------------------------------------------------------

    def _new_worker_id(self) -> str:
        length = check_count("WORKER_ID_LENGTH", self.WORKER_ID_LENGTH, least=1)
        return secrets.token_hex((length + 1) // 2)[:length]

    async def _build(self) -> Runtime:
        # The class attributes may have been set since construction.
        settings = {name: getattr(self._config, name) for name in SchedulerConfig.__dataclass_fields__}
        settings |= {"lease_seconds": self.LEASE_DURATION, "heartbeat_threshold": self.HEARTBEAT_THRESHOLD}
        self._config = checked(SchedulerConfig, **settings)
        self._check_locks_can_be_held()
        await self._store.migrate()
        return Runtime(
            self._store,
            self._events,
            self._tasks,
            self._periodic,
            self._announcer,
            self._config,
            self._retry_policy,
            self.worker_id,
            on_fault=self._life.break_down,
        )

    @property
    def _runtime(self) -> Runtime | None:
        return self._life.runtime

    def _running(self) -> Runtime:
        if self._runtime is None:
            raise NotRunningError("the Scheduler is not running: call await scheduler.start() first")
        return self._runtime

    async def _tell(self, worker_id: str | None) -> None:
        if worker_id is None:
            return
        if worker_id == self.worker_id and self._runtime is not None:
            self._runtime.heartbeat.wake()
        else:
            await self._announcer.check(worker_id)

    async def _claim_of(self, job_row: Mapping[str, Any]) -> Claim:
        job_id = check_job_id(job_row["job_id"])
        if job_id in self._running().in_flight.held():
            raise ValueError(f"job {job_id!r} runs here already")
        claim = await self._store.held_claim(job_id, self.worker_id)
        if claim is None:
            raise ValueError(
                f"job {job_id!r} is not running under worker {self.worker_id}: it must be claimed first"
            )
        return claim

    def _switch(self, dedup_key: str, enabled: bool) -> bool:
        if not self._periodic.enable(dedup_key, enabled):
            return False
        if self._runtime is not None:
            self._runtime.planner.wake()
            return True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no loop: written at the next start
            return True
        errand = loop.create_task(self._write_switches(), name="pg_scheduler switch")
        self._errands.add(errand)
        errand.add_done_callback(log_failure)
        errand.add_done_callback(self._errands.discard)
        return True

    async def _write_switches(self) -> None:
        if await self._periodic.write_wishes():
            await self._announcer.periodic()

    def _check_locks_can_be_held(self) -> None:
        locked = [key for key, config in self._periodic.configs().items() if config.use_advisory_lock]
        if locked and not self._store.connections.can_hold_a_lock:
            raise ConfigurationError(
                f"periodic jobs {locked} use an advisory lock, which keeps a connection through the run, "
                "and the pool has one in all. Give it max_size of 2 or more, or pass direct_dsn=."
            )
