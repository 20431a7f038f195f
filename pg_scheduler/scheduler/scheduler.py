"""The Scheduler, with all of its methods, by subject.

A method that takes more than a few lines calls an object or a function of the module of its subject in this
room, such as `Jobs`, or a part from another room, such as the enqueuer of `Parts`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, overload

import asyncpg

from pg_scheduler.base.async_with import AsyncWithOnly
from pg_scheduler.base.dsn import normalise_dsn, server_in
from pg_scheduler.base.health import Health, judge
from pg_scheduler.base.job_imports import check_not_importing
from pg_scheduler.base.lazy_imports import LazyClass, LazyModule, import_now, lazy_call
from pg_scheduler.base.public import public
from pg_scheduler.base.settings import Notify, PollingConfig, SchedulerConfig, VacuumConfig
from pg_scheduler.base.status import JobStatus
from pg_scheduler.base.threads import resolve_in_threads
from pg_scheduler.clock import Clock
from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.database.faults import connecting, reading_dsn, translated
from pg_scheduler.database.opening import open_own_pool
from pg_scheduler.database.pool import Connections
from pg_scheduler.errors import JobResult
from pg_scheduler.events import Event, EventBus, EventStream, Subscriber
from pg_scheduler.events.log import EventLog, GapLog, warn_of_disabled_logger
from pg_scheduler.jobs.call import JobExecutor
from pg_scheduler.jobs.codec import Codec, check_codec
from pg_scheduler.jobs.context import chunk_scheduler, current
from pg_scheduler.jobs.executors import PROCESS, default_executor
from pg_scheduler.jobs.keys import KeyFunction
from pg_scheduler.jobs.limits import Limit, check_limits
from pg_scheduler.jobs.middleware import Middleware
from pg_scheduler.jobs.model import (
    UNSET,
    AfterOutcome,
    Call,
    ConflictResolution,
    Job,
    JobCounts,
    JobFunction,
    JobPriority,
    Page,
    Unset,
    Worker,
)
from pg_scheduler.jobs.naming import check_aliases, check_function, check_name
from pg_scheduler.jobs.payload import split_task_data
from pg_scheduler.jobs.registry import TaskRegistry, catalogue
from pg_scheduler.jobs.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from pg_scheduler.jobs.rows import EPOCH
from pg_scheduler.jobs.sequences import Sequence as JobSequence
from pg_scheduler.jobs.shares import Share
from pg_scheduler.jobs.step_values import check_step_name
from pg_scheduler.jobs.task import JobSpec, TaskOptions
from pg_scheduler.jobs.unique import Unique
from pg_scheduler.jobs.validation import (
    check_count,
    check_delay,
    check_job_id,
    check_kind,
    check_list,
    check_text,
)
from pg_scheduler.queue.enqueuer import Enqueuer
from pg_scheduler.queue.outbox import Outbox
from pg_scheduler.queue.prepare import JobPreparer
from pg_scheduler.queue.result_waiters import ResultWaiters
from pg_scheduler.scheduler.events import Events
from pg_scheduler.scheduler.jobs import MAX_PAGE_LENGTH, Jobs
from pg_scheduler.scheduler.lifecycle import Lifecycle
from pg_scheduler.scheduler.parts import Parts
from pg_scheduler.scheduler.periodic_jobs import PeriodicJobs, check_key
from pg_scheduler.scheduler.results import RUN_JOB_KEEPS, FailureRecord, read_result
from pg_scheduler.scheduler.store import Store
from pg_scheduler.statistics.recording import new_meter

if TYPE_CHECKING:
    from pg_scheduler.jobs import streams as stream_values
    from pg_scheduler.jobs.streams import StreamItem
    from pg_scheduler.queue import clean_ups, failure_alerts
    from pg_scheduler.scheduler import health as health_facts
    from pg_scheduler.scheduler import runtime as worker_runtime
    from pg_scheduler.scheduler import signals as signal_calls
    from pg_scheduler.scheduler import tasks as task_facet
    from pg_scheduler.scheduler import wiring
    from pg_scheduler.scheduler.runtime import Runtime
    from pg_scheduler.scheduler.schedules import Schedules
    from pg_scheduler.scheduler.tasks import Tasks
    from pg_scheduler.schedules.declared import PeriodicJobConfig
    from pg_scheduler.steps import attempt as attempt_steps
    from pg_scheduler.steps import child_jobs
    from pg_scheduler.steps import signals as step_signals
    from pg_scheduler.steps.attempt import AttemptSteps
    from pg_scheduler.streams import attempt as attempt_streams
    from pg_scheduler.streams.attempt import AttemptStreams
    from pg_scheduler.worker import node as worker_node
    from pg_scheduler.worker import vacuum as vacuuming
    from pg_scheduler.worker.in_flight import Attempt
    from pg_scheduler.worker.node import Node
    from pg_scheduler.worker.runners import executors as runner_executors
    from pg_scheduler.worker.runners import jobs_view
else:
    worker_runtime = LazyModule("pg_scheduler.scheduler.runtime")
    wiring = LazyModule("pg_scheduler.scheduler.wiring")
    Schedules = LazyClass("pg_scheduler.scheduler.schedules.Schedules")
    Tasks = LazyClass("pg_scheduler.scheduler.tasks.Tasks")
    task_facet = LazyModule("pg_scheduler.scheduler.tasks")
    signal_calls = LazyModule("pg_scheduler.scheduler.signals")
    health_facts = LazyModule("pg_scheduler.scheduler.health")
    clean_ups = LazyModule("pg_scheduler.queue.clean_ups")
    failure_alerts = LazyModule("pg_scheduler.queue.failure_alerts")
    attempt_steps = LazyModule("pg_scheduler.steps.attempt")
    child_jobs = LazyModule("pg_scheduler.steps.child_jobs")
    step_signals = LazyModule("pg_scheduler.steps.signals")
    attempt_streams = LazyModule("pg_scheduler.streams.attempt")
    worker_node = LazyModule("pg_scheduler.worker.node")
    runner_executors = LazyModule("pg_scheduler.worker.runners.executors")
    jobs_view = LazyModule("pg_scheduler.worker.runners.jobs_view")
    vacuuming = LazyModule("pg_scheduler.worker.vacuum")
    stream_values = LazyModule("pg_scheduler.jobs.streams")


F = TypeVar("F", bound=JobFunction)
R = TypeVar("R")


@public
class Scheduler:
    """Runs coroutine functions at their due time, on any number of nodes that share a PostgreSQL database.

    Args:
        db_pool: Your asyncpg pool. With ``max_size`` of 3 or more, one connection is reserved for LISTEN and
            heartbeats; with 4 or more, another one for claims.
        max_concurrent_jobs: Jobs that this worker runs at the same time.
        misfire_grace_time: Default misfire grace time in seconds: how late a job may start. None disables
            expiry.
        vacuum_config: When finished jobs are deleted; see VacuumConfig.
        vacuum_enabled: Whether finished jobs are deleted.
        batch_claim_limit: Jobs claimed at most by one statement. None adapts it: 10 while the queue is short,
            then up to 128, or up to half of the slots and 500.
        polling_config: Bounds of the fallback polling; see PollingConfig.
        schema: Schema of the tables, created if it does not exist; None for the connection's search path.
        direct_dsn: DSN of the PostgreSQL server itself, for LISTEN, heartbeats and advisory locks. Required
            behind PgBouncer, useful with a very small pool.
        keeper_dsn: DSN for the lease keeper, a thread that renews the lease while a job blocks the event
            loop. None uses ``direct_dsn``, else the pool's DSN with one connection outside of the pool. A
            pool of 3 or fewer connections has no keeper then, and the jobs of a killed process wait until its
            lease expires.
        max_crashes: Workers that may die while they run a job before the job fails; None for no limit.
        max_loop_block: Seconds for which the event loop or the whole process may be blocked before the worker
            loses its lease. A stopped process (SIGSTOP) keeps its jobs for the same time.
        max_payload_bytes: Maximum size of the arguments of one job, as JSON in UTF-8, at least 64; None for
            the limit of the table, 16 MiB. Larger arguments are rejected when the job is scheduled.
        max_result_bytes: Maximum size of a kept result, as JSON in UTF-8, at least 64; None for what
            PostgreSQL stores, 256 MiB. A job with a larger result completes without a kept value.
        shutdown_timeout: Seconds that running jobs get to finish at shutdown. After that, the results get as
            many seconds to be written.
        lease: How long this worker owns its jobs without a heartbeat, in seconds or as a timedelta, from
            0.1 s to 365 days; None uses ``LEASE_DURATION``.
        retry_policy: Delays before the retries of failed attempts; see RetryPolicy.
        executors: Where jobs run, by the names in ``executor=`` of ``@job``. Two names exist already:
            "thread", a ``ThreadExecutor()``, and "process", a ``ProcessExecutor()``. You can replace both.
        stop_grace: Seconds that a cancelled attempt gets to end. A thread that runs longer is reported.
        max_stuck_threads: How many threads that run longer release their slots, so that other jobs start in
            new threads; the others keep theirs. 0 to 10,000.
        role: "worker" runs jobs, "scheduler" enqueues the jobs of schedules, "both" does both and "observer"
            neither. Every role does maintenance and receives events.
        identity: A label of this worker, such as the name of its pod, at most 200 characters. Its start
            releases the jobs of a worker that ended with this identity on this machine.
        only: Patterns such as "reports.*" for the names of jobs. Jobs of other names are left to other
            workers.
        skip: Patterns for the names of jobs that are left to other workers.
        metadata: Labels of this worker, a JSON object, for ``workers()``.
        statistics: Whether jobs are counted by name and outcome, for metrics and the tables of statistics.
        middleware: Code around the attempts of all jobs, the outermost first; see Middleware.
        codec: Encodes the arguments, results and progress notes of jobs, such as a FernetCodec; see Codec.
            None stores them readable.
        migrations: "apply" lets ``start()`` and ``initialize_db()`` create and upgrade the tables. With
            "verify" they change nothing and raise SchemaMissingError: another tool owns the tables.
        on_copy: What a start does in a copy of the database that has jobs or schedules of the original:
            "refuse" raises DatabaseCopyError, "adopt" runs them here from now on, and "hold" pauses all tasks
            and schedules before it does so.
        notify: How workers are notified of jobs that your transactions schedule by ``connection=``. With
            "hint" this process notifies them after the transaction. If it cannot see the end of the
            transaction, the commit notifies them. With "commit" the commit always does, although it waits for
            every other commit that notifies. With "never" polling finds the jobs, within ``max_interval``.
        clock: Replaces the database's clock, for tests; see FakeClock.

    Raises:
        ConfigurationError: A setting is invalid. The message has its name, value and constraint. A
            ValueError.

    Example::

        async with asyncpg.create_pool(dsn, min_size=1) as pool, Scheduler(pool) as scheduler:
            await scheduler.schedule(send_mail, execution_time=datetime.now(UTC) + timedelta(hours=1))
            await scheduler.wait()
    """

    HEARTBEAT_THRESHOLD: ClassVar[float] = 120
    """Seconds after its last heartbeat at which a running row without a lease is reclaimed."""

    LEASE_DURATION: ClassVar[float] = 60
    """Lease in seconds, unless ``lease=`` is given: how long a worker owns its jobs without a heartbeat."""

    WORKER_ID_LENGTH: ClassVar[int] = 8
    """Number of characters of ``worker_id``."""

    state: Any = None
    """An object of the application for its jobs, which `job_state()` returns; set it before ``start()``."""

    # The test kits replace these. None is that of the modules that load at the start of the worker.
    _runtime_class: ClassVar[type[Runtime] | None] = None
    _store_class: ClassVar[type[Store]] = Store
    _steps_class: ClassVar[type[AttemptSteps] | None] = None

    _guards_copies: ClassVar[bool] = True
    """Whether a start looks for a copy of the database, as ``on_copy`` states. Tests may turn it off."""

    _catalogue: TaskRegistry | None = None
    """The functions that it finds besides the registered ones; None for those of ``@job`` in this process."""

    # -- construct and connect -----------------------------------------------------------------------------

    def __init__(  # noqa: PLR0917 - the signature is the contract with users of 0.2.x
        self,
        db_pool: asyncpg.Pool,
        max_concurrent_jobs: int = 25,
        misfire_grace_time: int | None = 300,
        vacuum_config: VacuumConfig | None = None,
        vacuum_enabled: bool = True,
        batch_claim_limit: int | None = None,
        polling_config: PollingConfig | None = None,
        *,
        schema: str | None = None,
        direct_dsn: str | None = None,
        keeper_dsn: str | None = None,
        max_crashes: int | None = 3,
        max_loop_block: float = 600.0,
        max_payload_bytes: int | None = 1_048_576,
        max_result_bytes: int | None = 1_048_576,
        shutdown_timeout: float = 30.0,
        lease: float | timedelta | None = None,
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
        executors: Mapping[str, JobExecutor] | None = None,
        stop_grace: float = 10.0,
        max_stuck_threads: int = 0,
        role: Literal["both", "scheduler", "worker", "observer"] = "both",
        identity: str | None = None,
        only: Sequence[str] = (),
        skip: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        statistics: bool = True,
        middleware: Sequence[Middleware] = (),
        codec: Codec | None = None,
        migrations: Literal["apply", "verify"] = "apply",
        on_copy: Literal["refuse", "adopt", "hold"] = "refuse",
        notify: Notify = "hint",
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(db_pool, asyncpg.Pool):
            raise TypeError(
                # The value itself is not shown, since it may be a DSN with a password.
                f"db_pool must be an asyncpg.Pool, not {type(db_pool).__name__}; "
                "pass the result of asyncpg.create_pool()"
            )
        check_kind("retry_policy", retry_policy, RetryPolicy)
        if clock is not None and not callable(getattr(clock, "override", None)):
            raise TypeError(f"clock must have a method override(), not {clock!r}; pass a FakeClock")
        # This shadows the attribute of the class. _build() reads it again at each start.
        if lease is not None:
            self.LEASE_DURATION = check_delay("lease", lease)  # type: ignore[misc]
        config = SchedulerConfig(
            max_concurrent_jobs=max_concurrent_jobs,
            batch_claim_limit=batch_claim_limit,
            misfire_grace_time=misfire_grace_time,
            vacuum_enabled=vacuum_enabled,
            vacuum=VacuumConfig() if vacuum_config is None else vacuum_config,
            polling=PollingConfig() if polling_config is None else polling_config,
            schema=schema,
            direct_dsn=direct_dsn,
            keeper_dsn=keeper_dsn,
            max_crashes=max_crashes,
            max_loop_block=max_loop_block,
            max_payload_bytes=max_payload_bytes,
            max_result_bytes=max_result_bytes,
            shutdown_timeout=shutdown_timeout,
            stop_grace=stop_grace,
            max_stuck_threads=max_stuck_threads,
            role=role,
            identity=identity,
            only=only,  # type: ignore[arg-type] # any sequence
            skip=skip,  # type: ignore[arg-type] # any sequence
            metadata=metadata,  # type: ignore[arg-type] # any mapping
            statistics=statistics,
            migrations=migrations,
            on_copy=on_copy,
            notify=notify,
            lease_seconds=self.LEASE_DURATION,
            heartbeat_threshold=self.HEARTBEAT_THRESHOLD,
        )
        self.db_pool = db_pool
        events = EventBus(EventLog(self._get_worker_id), worker_id=self._get_worker_id)
        payload_codec = check_codec(codec)
        store = self._store_class(
            self._connections_of(config), schema=schema, clock=clock, codec=payload_codec
        )
        meter = new_meter(store.statements, events) if statistics else None
        # The functions of ``@job`` are found besides those that are registered with this Scheduler.
        tasks = TaskRegistry(catalogue if self._catalogue is None else self._catalogue)
        outbox = Outbox(
            store,
            events,
            # Jobs that are due later than this need no notification, since polling finds them in time.
            horizon_s=2 * config.polling.max_interval,
            mark=secrets.token_hex(4),
            notify=notify,
            meter=meter,
        )
        preparer = JobPreparer(
            tasks,
            misfire_grace_time=misfire_grace_time,
            max_payload_bytes=max_payload_bytes,
            codec=payload_codec,
        )
        cluster_events = EventBus(GapLog(self._get_worker_id), worker_id=self._get_worker_id)
        self._parts = Parts(
            config=config,
            store=store,
            events=events,
            cluster_events=cluster_events,
            tasks=tasks,
            outbox=outbox,
            preparer=preparer,
            enqueuer=Enqueuer(store, events, outbox, preparer, meter),
            waiters=ResultWaiters(store, config.polling.max_interval),
            codec=payload_codec,
            retry_policy=retry_policy,
            custom_executors=None if executors is None else runner_executors.check_executors(executors),
            meter=meter,
            life=Lifecycle(events, self._new_worker_id(), self._build),
        )
        # These need objects that were made later than the store.
        store.consequences.set_handlers(
            on_failure=lazy_call(lambda: failure_alerts.FailureAlerts(store, preparer).enqueue),
            on_cancel=lazy_call(lambda: clean_ups.CleanUps(store, preparer).enqueue),
        )
        store.statements.publish = events.publish
        store.statements.get_author = self._parts.get_author
        self._parts.use_middleware(middleware)
        # Whether a block of "async with" has started this Scheduler and has not ended.
        self._has_open_block = False
        self._jobs = Jobs(self._parts)
        self._periodic_jobs = PeriodicJobs(self._parts)
        self._events = Events(self._parts)

    @classmethod
    def connect(
        cls, url: str, *, pool_size: int = 10, start: bool = True, **settings: Any
    ) -> AbstractAsyncContextManager[Self]:
        """Yield a Scheduler with a pool of its own, started; stop it and close the pool at the end.

        Args:
            url: Address of the database: ``postgresql://user:password@host:5432/database``, or the URL of a
                SQLAlchemy engine.
            pool_size: Maximum number of connections. One is opened at once, the others when needed.
            start: Whether it is started. Otherwise it is a client, which schedules, reads and changes jobs;
                the tables must exist.
            **settings: The other parameters of `Scheduler`, by name.

        Raises:
            ConfigurationError: The URL or a setting is invalid.
            ConnectionRejectedError: The server rejects the role, its password or the database.
            DatabaseUnavailableError: The server is unavailable.
            TypeError: The URL is not a str, or ``start`` not a bool.

        Example::

            async with Scheduler.connect(dsn, start=False) as scheduler:
                await scheduler.enqueue("mail.send", args=("ada@example.org",))
        """
        opening = partial(cls._open, url, pool_size=pool_size, start=start, settings=settings)
        return AsyncWithOnly(opening, f"async with {cls.__name__}.connect(url) as scheduler:")

    @classmethod
    @asynccontextmanager
    async def _open(
        cls, url: str, *, pool_size: int, start: bool, settings: Mapping[str, Any]
    ) -> AsyncIterator[Self]:
        """Yield a Scheduler with a pool of its own; see ``connect()``."""
        check_count("pool_size", pool_size, least=1)
        check_kind("start", start, bool)
        dsn = normalise_dsn(url, "url")
        # The child process of a job imports the module of the job, which must not start a Scheduler there.
        check_not_importing()
        resolve_in_threads(asyncio.get_running_loop())
        with translated(), connecting("url", partial(server_in, dsn, "url")), reading_dsn("url"):
            pool = await open_own_pool(dsn, "url", min_size=1, max_size=pool_size)
        try:
            scheduler = cls(pool, **settings)
            if start:
                async with scheduler:
                    yield scheduler
            else:
                yield scheduler
                await scheduler._parts.outbox.flush_or_report()
        finally:
            await pool.close()

    async def initialize_db(self) -> None:
        """Create or upgrade the schema without starting; with ``migrations="verify"``, only verify it.

        A table that was dropped is created again, empty; a warning in the log names it.

        Raises:
            ConfigurationError: The server is not PostgreSQL.
            SchemaError: A newer version of the library has migrated the database. With
                ``migrations="verify"``, a table or a migration is missing.
        """
        await self._parts.store.migrate(self._parts.config.migrations)

    @property
    def worker_id(self) -> str:
        """The id of this Scheduler in the tables, from construction on."""
        return self._parts.life.worker_id

    @property
    def is_running(self) -> bool:
        """Whether this Scheduler has started."""
        return self._parts.life.is_running

    @property
    def is_shutting_down(self) -> bool:
        """Whether ``shutdown()`` is in progress."""
        return self._parts.life.is_shutting_down

    # -- start and shut down -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Migrate or verify the schema, start every service, and return once jobs are being claimed.

        A second call is a no-op. After ``shutdown()`` it starts again.

        Raises:
            SchemaError: A newer version of the library has migrated the database. With
                ``migrations="verify"``, a table or a migration is missing.
            ConfigurationError: A periodic job uses an advisory lock and the pool has one connection, a codec
                or ``reset=`` callable of the pool breaks the Scheduler's statements, a pooler loses prepared
                statements of the pool, ``direct_dsn`` or ``keeper_dsn`` leads to another database than the
                pool, or the server is not PostgreSQL.
            ConnectionRejectedError: The server, or a callable of the pool, rejects connections.
            DatabaseUnavailableError: The database is unavailable, or the pool was closed.
        """
        check_not_importing()
        self._parts.store.connections.check_loop()
        warn_of_disabled_logger()
        # WORKER_ID_LENGTH may have been set after the id was made. And if jobs of an earlier start still run
        # here, their rows have the old id, so the new worker needs another one.
        is_id_outdated = len(self.worker_id) != self.WORKER_ID_LENGTH or self._parts.life.has_left_jobs
        if is_id_outdated and not self.is_running:
            self._parts.life.worker_id = self._new_worker_id()
        self._parts.store.connections.close_in_children()
        await self._parts.life.start()

    async def shutdown(self) -> None:
        """Stop claiming, let running jobs finish, release the unfinished ones, and write every result.

        Jobs that still run after ``shutdown_timeout`` seconds are cancelled and released; the interrupted
        attempt is not counted. Jobs that run on after ``stop_grace`` seconds, in threads or because they
        suppress ``CancelledError``, stay with this worker until they end. A second call is a no-op. If the
        call is cancelled, the shutdown continues in the background.

        Raises:
            DatabaseUnavailableError: The database was unavailable, or the pool was closed first, so results
                could not be written. Every service has stopped; another worker reclaims those jobs within
                seconds, or when the lease expires.
        """
        connections = self._parts.store.connections
        # With nothing to stop, the call may come from another event loop than that of the pool.
        if self.is_running or self.is_shutting_down or self._periodic_jobs.is_writing:
            connections.check_loop()
        try:
            await self._parts.life.shutdown()
        finally:
            await self._periodic_jobs.wait_for_writes()
            # If the caller is a job, the shutdown is still in progress here, because it waits for that job.
            if not self.is_shutting_down:
                if connections.is_in_loop:
                    # Calls may have left a connection of the pool reserved, also if there was no start.
                    await connections.release_held()
                await self._events.drain()

    async def wait(self) -> None:
        """Wait until the Scheduler has stopped.

        Raises:
            NotRunningError: The Scheduler was not started.
            BaseException: The error that stopped it, unless ``shutdown()`` did.
        """
        self._parts.store.connections.check_loop()
        await self._parts.life.wait()

    async def __aenter__(self) -> Self:
        """Start the Scheduler.

        Raises:
            RuntimeError: A block of it is open, or this Scheduler runs the job that opens another one: the
                end of that block would shut the Scheduler down.
        """
        job = current.get(None)
        if job is not None and job.attempt is not None and job.get_scheduler() is self:
            raise RuntimeError(
                "this Scheduler runs the job that enters it, and the end of the block would shut it down; "
                "use current_job().scheduler without async with"
            )
        get_scheduler = chunk_scheduler.get()
        if get_scheduler is not None and get_scheduler() is self:
            raise RuntimeError(
                "this Scheduler calls the function of the chunk that enters it, and the end of the block "
                "would shut it down; use chunk.scheduler without async with"
            )
        if self._has_open_block:
            raise RuntimeError(
                "another block of async with has started this Scheduler, and the end of this one would shut "
                "it down; use the Scheduler of that block without async with"
            )
        self._has_open_block = True
        try:
            await self.start()
        except BaseException:  # whatever it was, there is no block
            self._has_open_block = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shut the Scheduler down; raise the error that stopped it, unless the block has raised one."""
        self._has_open_block = False
        await self.shutdown()
        if error is None and self._parts.life.fault is not None:
            raise self._parts.life.fault

    def health(self) -> Health:
        """Return whether this Scheduler is live, ready and started, with the checks that decide it.

        The facts are in memory, so the call makes no query. Any thread may call it. If the event loop is
        blocked, the answer names the job that blocks it. A call in the event loop itself always finds the
        loop responding.
        """
        return judge(health_facts.facts_about(self._parts.life))

    # -- enqueue -------------------------------------------------------------------------------------------

    async def schedule(
        self,
        func: JobFunction | Call[Any],
        *,
        execution_time: datetime,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        priority: JobPriority | Unset = UNSET,
        max_retries: int | Unset = UNSET,
        job_id: str | None = None,
        conflict_resolution: ConflictResolution = ConflictResolution.RAISE,
        misfire_grace_time: int | Unset | None = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        deadline: datetime | float | timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        after: Iterable[str | None] = (),
        after_outcome: AfterOutcome = "completed",
        pass_results: bool = False,
        unique: Unique | str | Unset | None = UNSET,
        connection: AnyConnection | None = None,
        notify: Notify | None = None,
    ) -> str:
        """Schedule one job at one time.

        Args:
            func: The function to run, or a ``call()`` with its arguments. A coroutine function is registered
                with this Scheduler.
            execution_time: The due time, timezone-aware. A job whose due time has passed runs at once if it
                is within its misfire grace time.
            args: Positional arguments that JSON can represent.
            kwargs: Keyword arguments that JSON can represent.
            priority: Due jobs of a higher priority start first. Default: the task's, else NORMAL.
            max_retries: Retries after a failed first attempt. Default: the task's, else 0.
            job_id: Your own id, at most 2,000 bytes of UTF-8; None to generate one.
            conflict_resolution: The behaviour when the id exists or the unique key is taken.
            misfire_grace_time: Seconds after ``execution_time`` within which the job may start; None for no
                limit. Default: the task's, else the Scheduler's.
            timeout: Time limit of one attempt, in seconds or as a timedelta; None for no limit. Default: the
                task's, else one hour.
            keep_result: How long the result is kept after the end, for ``get_job_result()``; None for
                not at all. Default: the task's, else not at all.
            deadline: When the job must have ended, over all of its attempts, retries, sleeps and children: a
                timezone-aware instant, or a time from its due time in seconds or as a timedelta. A job that
                passes it fails with a `DeadlineExceededError` and is not retried. None for no deadline.
                Default: the task's, else none.
            metadata: A JSON object for people and filters, merged into that of the task.
            after: Ids of jobs that must end before this one may start. Its misfire grace time starts then.
                None, which ``schedule_bulk()`` returns for a job that was not inserted, is skipped.
            after_outcome: ``"completed"`` cancels the job if one of the jobs in ``after`` does not complete;
                ``"ended"`` runs it in any case.
            pass_results: Whether the job reads the results of the jobs in ``after``, by
                ``current_job().predecessors()``. Each of them must keep its result, for however short a time,
                since the result is copied to this job.
            unique: Which jobs exclude one another: a key of 1 to 200 bytes, shared by all tasks, or a
                ``Unique()``, whose key contains the task and its arguments. At most one unfinished job has
                the key. None for a job that is not unique. Default: the task's, else None.
            connection: Your connection, session or ConnectionAdapter: asyncpg inside a transaction, psycopg,
                SQLAlchemy or SQLModel. The job exists if and only if its transaction commits.
            notify: With ``connection``, how workers are notified of a job that is due soon: by this process
                after the transaction ("hint"), by the commit ("commit"), or not ("never"). Default: the
                setting of the Scheduler.

        Returns:
            The id of the job. If a job exists already, IGNORE and REPLACE return the id of that job.

        Raises:
            TypeError: ``func`` is not a coroutine function or cannot be called with the arguments, or a value
                has the wrong type.
            ValueError: ``execution_time`` is naive, ``deadline`` is not after it, ``connection`` is not in a
                transaction that the call needs, ``notify`` is given without one, a job in ``after`` keeps no
                result that ``pass_results`` asks for, or another value is out of range.
            ConfigurationError: ``connection`` leads to another database than the Scheduler.
            PayloadError: JSON cannot represent an argument, or arguments and metadata exceed
                ``max_payload_bytes``. Nothing is stored.
            JobConflictError: The id exists or the unique key is taken, and the resolution is RAISE. Or the
                resolution is REPLACE, and the id and the key are those of two different jobs. A ValueError.
            JobNotFoundError: A job in ``after`` does not exist. Nothing is stored.
            DatabaseUnavailableError: The database is unavailable, ``connection`` is closed or was released,
                or a response was lost and the job may exist. Call again with the same ``job_id`` and
                ``ConflictResolution.IGNORE``.
            Exception: An exception of your driver. An earlier error has aborted the transaction of
                ``connection``.

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
            keep_result=keep_result,
            deadline=deadline,
            metadata=metadata,
            after=after,
            after_outcome=after_outcome,
            pass_results=pass_results,
            unique=unique,
        )
        (job,) = self._parts.preparer.prepare((spec,))
        return await self._parts.enqueuer.insert(job, conflict_resolution, connection, notify=notify)

    async def enqueue(
        self,
        func: JobFunction | Call[Any] | str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        delay: float | timedelta | None = None,
        priority: JobPriority | Unset = UNSET,
        max_retries: int | Unset = UNSET,
        job_id: str | None = None,
        conflict_resolution: ConflictResolution = ConflictResolution.RAISE,
        misfire_grace_time: int | Unset | None = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        deadline: datetime | float | timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        after: Iterable[str | None] = (),
        after_outcome: AfterOutcome = "completed",
        pass_results: bool = False,
        unique: Unique | str | Unset | None = UNSET,
        connection: AnyConnection | None = None,
        notify: Notify | None = None,
    ) -> str:
        """Run one job now, or after a delay, by the clock of the database.

        The clock of this machine does not matter, so a job that is enqueued now is due now on every node.

        Args:
            func: The function to run, a ``call()`` with its arguments, or the name of a task, which
                need not be registered in this process.
            args: Positional arguments that JSON can represent.
            kwargs: Keyword arguments that JSON can represent.
            delay: The time until the job is due, in seconds or as a timedelta; None for now.
            priority: Due jobs of a higher priority start first. Default: the task's, else NORMAL.
            max_retries: Retries after a failed first attempt. Default: the task's, else 0.
            job_id: Your own id; None to generate one.
            conflict_resolution: The behaviour when the id exists or the unique key is taken.
            misfire_grace_time: Seconds after its due time within which the job may start; None for no limit.
                Default: the task's, else no limit; for a job with a delay, the Scheduler's.
            timeout: Time limit of one attempt, in seconds or as a timedelta; None for no limit. Default: the
                task's, else one hour.
            keep_result: How long the result is kept after the end, for ``get_job_result()``; None for
                not at all. Default: the task's, else not at all.
            deadline: When the job must have ended, as in ``schedule()``.
            metadata: A JSON object for people and filters, merged into that of the task.
            after: Ids of jobs that must end before this one may start, as in ``schedule()``.
            after_outcome: ``"completed"`` or ``"ended"``, as in ``schedule()``.
            pass_results: Whether the job reads the results of the jobs in ``after``, as in ``schedule()``.
            unique: A key or a ``Unique()``, as in ``schedule()``, also one with ``debounce=``. Then the call
                replaces the job that waits, without ``conflict_resolution=``.
            connection: A connection of yours; see ``schedule()``. A delay counts from this call, not from the
                commit.
            notify: With ``connection``, how workers are notified; see ``schedule()``.

        Returns:
            The id of the job.

        Raises:
            ValueError: ``delay`` is negative or too long, or it is given although ``unique`` has a debounce.
                ``schedule()`` lists the other errors.

        Example::

            await scheduler.enqueue(call(send_mail, "ada@example.org"))
            await scheduler.enqueue("reports.build", kwargs={"year": 2030}, delay=timedelta(minutes=5))
        """
        delay_s = 0.0 if delay is None else check_delay("delay", delay)
        # The job is stored with a delay, which counts from the time of the database at the insert. Until then
        # it is written as EPOCH plus the delay, in place of a due time. None is a job that is due now.
        delay_from_epoch = EPOCH + timedelta(seconds=delay_s) if delay_s else None
        spec = JobSpec(
            func,  # type: ignore[arg-type] # it may be a name
            delay_from_epoch,
            args,  # type: ignore[arg-type] # a list is as good as a tuple
            kwargs,  # type: ignore[arg-type] # None is as good as {}
            priority,
            max_retries,
            job_id,
            misfire_grace_time,
            timeout=timeout,
            keep_result=keep_result,
            deadline=deadline,
            metadata=metadata,
            after=after,
            after_outcome=after_outcome,
            pass_results=pass_results,
            unique=unique,
        )
        (job,) = self._parts.preparer.prepare((spec,), allows_names=True, allows_now=True)
        return await self._parts.enqueuer.insert(
            job, conflict_resolution, connection, is_delayed=True, notify=notify
        )

    async def schedule_bulk(
        self,
        jobs: Sequence[JobSpec],
        *,
        conflict_resolution: ConflictResolution = ConflictResolution.IGNORE,
        batch_size: int = 1000,
        connection: AnyConnection | None = None,
        notify: Notify | None = None,
    ) -> list[str | None]:
        """Schedule many jobs with few statements. A job without an execution time is due now.

        Args:
            jobs: The jobs. All are validated before the first one is written. An empty sequence writes
                nothing, and the result is an empty list.
            conflict_resolution: The behaviour for ids and unique keys that exist or occur twice. RAISE
                inserts all jobs or none. Of the jobs with one id or key, IGNORE keeps the first and REPLACE
                the last. Jobs whose ``unique`` has a debounce need REPLACE.
            batch_size: Jobs per statement, fewer if their arguments are large. Each statement commits
                separately, except under RAISE, with ``connection``, and if a job has ``after``.
            connection: A connection of yours; see ``schedule()``.
            notify: With ``connection``, how workers are notified; see ``schedule()``.

        Returns:
            The ids in the order of ``jobs``, None where a job was not inserted. If a unique job replaced the
            definition of an existing job under REPLACE, the id is that of the existing job.

        Raises:
            TypeError: A value has the wrong type, or a function cannot be called with the arguments.
            ValueError: A value is out of range, ``connection`` is not in a transaction, ``notify`` is given
                without one, or a job in ``after`` keeps no result that ``pass_results`` asks for.
            PayloadError: JSON cannot represent an argument, or the arguments of a job are too large.
            JobConflictError: An id or a unique key exists or occurs twice, and the resolution is RAISE; a
                ValueError.
            JobNotFoundError: A job in ``after`` neither exists nor is inserted here. Nothing is stored.
            DatabaseUnavailableError: The database is unavailable, or its response was lost; see
                ``schedule()``.
        """
        return await self._parts.enqueuer.insert_all(
            jobs, conflict_resolution, batch_size, connection, notify=notify
        )

    async def schedule_job(  # noqa: PLR0917 - the signature is the contract with users of 0.2.x
        self,
        job_name: str,
        execution_time: datetime,
        task_data: Mapping[str, Any],
        priority: JobPriority | Unset = UNSET,
        max_retries: int | Unset = UNSET,
        job_id: str | None = None,
        conflict_resolution: ConflictResolution = ConflictResolution.RAISE,
        misfire_grace_time: int | Unset | None = UNSET,
        *,
        timeout: float | timedelta | Unset | None = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        deadline: datetime | float | timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        after: Iterable[str | None] = (),
        after_outcome: AfterOutcome = "completed",
        pass_results: bool = False,
        unique: Unique | str | Unset | None = UNSET,
        connection: AnyConnection | None = None,
        notify: Notify | None = None,
    ) -> str:
        """Schedule one job by name. The function need not be registered in this process.

        Args:
            job_name: ``module.qualname``, or the name given to ``@job`` or ``register()``.
            execution_time: The due time, timezone-aware.
            task_data: ``{"args": [...], "kwargs": {...}}``; both keys are optional.
            priority: Due jobs of a higher priority start first. Default: the task's, else NORMAL.
            max_retries: Retries after a failed first attempt. Default: the task's, else 0.
            job_id: Your own id; None to generate one.
            conflict_resolution: The behaviour when the id exists or the unique key is taken.
            misfire_grace_time: Seconds of grace, as in ``schedule()``.
            timeout: Time limit of one attempt in seconds or as a timedelta, as in ``schedule()``.
            keep_result: How long the result is kept, as in ``schedule()``.
            deadline: When the job must have ended, as in ``schedule()``.
            metadata: A JSON object, as in ``schedule()``. Its key ``trace`` may have trace context of another
                program: strings by name, at most 8 KiB.
            after: Ids of jobs that must end before this one may start, as in ``schedule()``.
            after_outcome: ``"completed"`` or ``"ended"``, as in ``schedule()``.
            pass_results: Whether the job reads the results of the jobs in ``after``, as in ``schedule()``.
            unique: A key or a ``Unique()``, as in ``schedule()``.
            connection: A connection of yours, as in ``schedule()``.
            notify: With ``connection``, how workers are notified, as in ``schedule()``.

        Returns:
            The id of the job. ``schedule()`` lists the errors.
        """
        args, kwargs = split_task_data(task_data)
        spec = JobSpec(
            check_name(job_name),  # type: ignore[arg-type] # instead of a function
            execution_time,
            args,
            kwargs,
            priority,
            max_retries,
            job_id,
            misfire_grace_time,
            timeout=timeout,
            keep_result=keep_result,
            deadline=deadline,
            metadata=metadata,
            after=after,
            after_outcome=after_outcome,
            pass_results=pass_results,
            unique=unique,
        )
        (job,) = self._parts.preparer.prepare((spec,), allows_names=True, allows_trace=True)
        return await self._parts.enqueuer.insert(job, conflict_resolution, connection, notify=notify)

    # -- read and change jobs ------------------------------------------------------------------------------

    async def get_job(self, job_id: str, *, connection: AnyConnection | None = None) -> Job | None:
        """Return the job, or None if it does not exist.

        Args:
            job_id: The job.
            connection: A connection of yours, as in ``schedule()``; the call sees what its transaction has
                changed.
        """
        usable_connection = await self._parts.store.connections.check_call(connection)
        return await self._parts.store.jobs.get_job(check_job_id(job_id), usable_connection)

    async def list_jobs(
        self,
        *,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        job_name: str | None = None,
        worker_id: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Job]:
        """Return a page of jobs, ordered by id. Generated ids sort by the time of their creation.

        Args:
            status: One status or several; None for all. An empty list selects no job.
            job_name: Only jobs with this name. If its task is registered here, its former names and aliases
                are found too.
            worker_id: Only jobs that this worker runs or ran last.
            due_from: Only jobs due at or after this time.
            due_before: Only jobs due before this time.
            metadata: Only jobs whose metadata contain these keys and values. Such a call examines at most
                20,000 rows, so a page can be short, or empty, while ``next`` is set.
            after: The ``next`` of the previous page; None for the first page.
            limit: Jobs per page, 1 to 10,000.

        Returns:
            The jobs, with ``next``: the ``after=`` of the following page, None at the end.

        Raises:
            ValueError: A status is unknown, a time is naive, or the limit is out of range.
            PayloadError: JSON cannot represent the metadata; a ValueError.

        Example::

            page = await scheduler.list_jobs(status="failed")
            if page.next is not None:
                more = await scheduler.list_jobs(status="failed", after=page.next)
        """
        check_count("limit", limit, least=1, most=MAX_PAGE_LENGTH)
        filters = self._jobs.check_filters(
            status=status,
            job_name=job_name,
            worker_id=worker_id,
            due_from=due_from,
            due_before=due_before,
            metadata=metadata,
        )
        previous_id = None if after is None else check_job_id(after)
        return await self._parts.store.jobs.list_jobs(after=previous_id, limit=limit, **filters._asdict())

    async def count_jobs(self, *, job_name: str | None = None) -> JobCounts:
        """Return the number of jobs in each status: of all jobs, or of one name as in ``list_jobs()``."""
        names = None
        if job_name is not None:
            names = self._parts.tasks.names_like(check_text("job_name", job_name))
        return await self._parts.store.jobs.count_jobs(names)

    @overload
    async def cancel_job(
        self,
        job_id: str,
        *,
        children: Literal[False] = False,
        connection: AnyConnection | None = None,
    ) -> bool: ...

    @overload
    async def cancel_job(
        self,
        job_id: str,
        *,
        children: bool,
        connection: AnyConnection | None = None,
    ) -> int: ...

    async def cancel_job(
        self, job_id: str, *, children: bool = False, connection: AnyConnection | None = None
    ) -> int:
        """Cancel a pending or running job, with ``children=True`` all jobs that its steps have started too.

        The task of a running job is cancelled within a second, on whichever worker runs it.

        Args:
            job_id: The job.
            children: Whether the unfinished children of the job are cancelled with it, and their children,
                and so on: all of them in one transaction. Children with ``detached=True`` go their own way,
                with their children. If the job itself has finished, its unfinished children are cancelled.
            connection: A connection of yours, as in ``schedule()``: the job is cancelled if and only if its
                transaction commits. The row is locked until then.

        Returns:
            True if the job was pending or running, False if it has finished or does not exist. With
            ``children=True`` the number of cancelled jobs.

        Raises:
            TypeError: ``connection`` is no connection of a supported library, or ``children`` is no bool.
            ValueError: ``connection`` is not in a transaction that the call needs; with ``children=True``,
                its isolation level is not READ COMMITTED.

        Example::

            cancelled = await scheduler.cancel_job("order:7", children=True)
        """
        check_kind("children", children, bool)
        usable_connection = await self._parts.store.connections.check_call(connection)
        if children:
            return await self._jobs.cancel_family(check_job_id(job_id), usable_connection)
        return await self._jobs.cancel(check_job_id(job_id), usable_connection)

    async def cancel_jobs(
        self,
        *,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        job_name: str | None = None,
        worker_id: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        children: bool = False,
        connection: AnyConnection | None = None,
    ) -> int:
        """Cancel every pending or running job that matches all filters, in bounded batches.

        The batches are transactions of their own: if one fails, earlier ones stay cancelled, and the call can
        be repeated. A job that is scheduled during the call may be missed.

        Args:
            status: ``pending``, ``running`` or both, the default. Finished jobs are never changed.
            job_name: Only jobs with this name.
            worker_id: Only jobs that this worker runs.
            due_from: Only jobs due at or after this time.
            due_before: Only jobs due before this time.
            metadata: Only jobs whose metadata contain these keys and values.
            children: Whether the children of these jobs are cancelled with them, as in ``cancel_job()``,
                whether they match the filters or not. A job and its children belong to one batch.
            connection: A connection of yours in a transaction, as in ``cancel_job()``. All batches belong to
                that transaction, so the jobs are cancelled if and only if it commits. Their rows are locked
                until then.

        Returns:
            The number of cancelled jobs, with their children.

        Raises:
            TypeError: ``connection`` is no connection of a supported library, or ``children`` is no bool.
            ValueError: No filter is given, a status is unknown, a time is naive, or ``connection`` is not in
                a transaction; with ``children=True``, its isolation level is not READ COMMITTED.
            PayloadError: JSON cannot represent the metadata; a ValueError.

        Example::

            cancelled = await scheduler.cancel_jobs(metadata={"tenant": 7})
        """
        check_kind("children", children, bool)
        usable_connection = await self._parts.store.connections.check_call(connection)
        filters = self._jobs.check_filters(
            status=status,
            job_name=job_name,
            worker_id=worker_id,
            due_from=due_from,
            due_before=due_before,
            metadata=metadata,
        )
        return await self._jobs.cancel_all(filters, usable_connection, children=children)

    @overload
    async def retry_job(
        self,
        job_id: str,
        *,
        from_step: str | None = None,
        children: Literal[False] = False,
        connection: AnyConnection | None = None,
    ) -> bool: ...

    @overload
    async def retry_job(
        self,
        job_id: str,
        *,
        from_step: None = None,
        children: bool,
        connection: AnyConnection | None = None,
    ) -> int: ...

    async def retry_job(
        self,
        job_id: str,
        *,
        from_step: str | None = None,
        children: bool = False,
        connection: AnyConnection | None = None,
    ) -> int:
        """Run a finished job again now, with its retries and crashes reset.

        The job may have failed, expired, completed or been cancelled. Its id, arguments, priority and stored
        steps stay. A job of a schedule waits for the last job of the schedule, unless these may overlap.

        Args:
            job_id: The job.
            from_step: The name of a stored step. This step runs again, and so do the steps that were stored
                after it, because all of them are deleted. Cursors that were written after it are deleted too.
                Signals that have come stay, unless ``from_step`` is the name of one. None to keep all steps.
            children: Whether the children that failed, expired or were cancelled run again too, and such
                children of theirs, all in one transaction. Each parent that has finished repeats its first
                step with such a child, and the later steps, as with ``from_step=``. A parent that still
                waits for such a child waits for its new end. Completed children are not repeated.
            connection: A connection of yours in a transaction, as in ``schedule()``. The job is retried if
                and only if that transaction commits. Its row is locked until then.

        Returns:
            True if the job had finished and is pending now, False if it is unfinished or does not exist. It
            is also False if the attempt of a cancelled job still runs while other jobs or a schedule wait for
            it, or if the job was cancelled while it waited for the previous job of its schedule, and that one
            is unfinished. With ``children=True`` the number of retried jobs: 0, and nothing is changed, while
            a cancelled attempt of one of them still runs.

        Raises:
            JobConflictError: Another unfinished job has its unique key, or that of a child; a ValueError.
            TypeError: ``connection`` is no connection of a supported library, or ``children`` is no bool.
            ValueError: ``connection`` is not in a transaction, the job has not stored ``from_step``, or both
                ``from_step`` and ``children=True`` are given. With ``children=True``, the isolation level of
                ``connection`` is not READ COMMITTED.
        """
        if check_kind("children", children, bool):
            if from_step is not None:
                raise ValueError(
                    "retry_job() takes either from_step= or children=True, which chooses the step of each "
                    f"job itself; omit from_step={from_step!r}, or retry the children by their ids first"
                )
            usable_connection = await self._parts.store.connections.check_call(connection)
            return await self._jobs.retry_family(check_job_id(job_id), usable_connection)
        usable_connection = await self._parts.store.connections.check_call(connection)
        return await self._jobs.retry(check_job_id(job_id), from_step, usable_connection)

    async def run_job_now(self, job_id: str, *, connection: AnyConnection | None = None) -> bool:
        """Make a pending job due now, with its whole misfire grace time. It still waits for other jobs.

        A job that waits in a sequence and is due already keeps its due time, and so its place.

        Args:
            job_id: The job.
            connection: A connection of yours, as in ``schedule()``: the job is due now if and only if its
                transaction commits. The row is locked until then.

        Returns:
            True if the job is pending, False if it runs, has finished or does not exist.

        Raises:
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is an asyncpg connection outside of a transaction.
        """
        usable_connection = await self._parts.store.connections.check_call(connection)
        return await self._jobs.run_now(check_job_id(job_id), usable_connection)

    async def update_job_status(self, job_id: str, status: JobStatus | str) -> bool:
        """Set the status of a job, regardless of its current status.

        A worker that runs the job loses it: the attempt is cancelled, and its result is rejected. ``pending``
        runs a finished job again. ``running`` reserves a job for one lease, or until its due time if that is
        later. After that, the job is pending again.

        A running job of a sequence that is set to ``pending`` stays ``running`` until its worker has stopped
        the attempt, because another job of the sequence must not start before. It keeps its place.

        Args:
            job_id: The job.
            status: A JobStatus or its text.

        Returns:
            False if the job does not exist.

        Raises:
            ValueError: ``status`` is not a status.
            JobConflictError: The job is finished and would become unfinished, but another unfinished job has
                its unique key. A ValueError.
        """
        new_status = JobStatus.parse(status)
        return await self._jobs.set_status(check_job_id(job_id), new_status)

    # -- results -------------------------------------------------------------------------------------------

    @overload
    async def get_job_result(
        self,
        job_id: str,
        *,
        wait: Literal[True] = True,
        timeout: float | timedelta | None = None,
        connection: None = None,
    ) -> JobResult: ...

    @overload
    async def get_job_result(
        self,
        job_id: str,
        *,
        wait: bool,
        timeout: float | timedelta | None = None,
        connection: AnyConnection | None = None,
    ) -> JobResult | None: ...

    async def get_job_result(
        self,
        job_id: str,
        *,
        wait: bool = True,
        timeout: float | timedelta | None = None,
        connection: AnyConnection | None = None,
    ) -> JobResult | None:
        """Return how a job ended, and its value if it was kept.

        Reading does not remove the result: any number of readers may read it until it expires. A started
        Scheduler learns of the end by a notification. In other processes the call repeats a query, at
        intervals that grow from 50 ms to ``max_interval`` of the polling.

        Args:
            job_id: The job.
            wait: Whether to wait for the end of the job.
            timeout: The maximum wait in seconds or as a timedelta, 0 for one query; None for no limit. The
                job runs on.
            connection: A connection of yours, as in ``schedule()``; requires ``wait=False``.

        Returns:
            The result; None only if ``wait`` is False and the job has not ended.

        Raises:
            JobNotFoundError: There is no such job; a LookupError.
            TimeoutError: The job did not end in time. It runs on.
            ValueError: ``connection`` is given, and ``wait`` is true.
            SchemaError: A table is missing, or the database role may not read results.

        Example:
            >>> job_id = await scheduler.enqueue(report, keep_result=timedelta(hours=1))  # doctest: +SKIP
            >>> (await scheduler.get_job_result(job_id, timeout=60)).unwrap()  # doctest: +SKIP
            'https://example.org/report.pdf'
        """
        check_job_id(job_id)
        # Without this check, a number that the caller means as the timeout would be true, so that the call
        # would wait without a limit.
        if not isinstance(wait, bool):
            raise TypeError(f"wait must be a bool, not {wait!r}; pass timeout= for the maximum wait")
        usable_connection = await self._parts.store.connections.check_call(connection)
        if wait and connection is not None:
            raise ValueError("get_job_result() cannot wait on a connection of the caller; pass wait=False")
        timeout_s = None if timeout is None else check_delay("timeout", timeout)
        return await read_result(self._parts, job_id, usable_connection, wait=wait, timeout_s=timeout_s)

    @overload
    async def run_job(
        self,
        func: Call[R],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        wait_timeout: float | timedelta | None = None,
        cancel_on_timeout: bool = False,
        **options: Any,
    ) -> R: ...

    @overload
    async def run_job(
        self,
        func: JobFunction | str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        wait_timeout: float | timedelta | None = None,
        cancel_on_timeout: bool = False,
        **options: Any,
    ) -> Any: ...

    async def run_job(
        self,
        func: JobFunction | Call[Any] | str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        wait_timeout: float | timedelta | None = None,
        cancel_on_timeout: bool = False,
        **options: Any,
    ) -> Any:
        """Enqueue a job, wait until it has ended, and return its value.

        The result is kept for 15 minutes, unless ``keep_result=`` is given.

        Args:
            func: The function to run, a `call()` with its arguments, or the name of a task. For a type
                checker, the value has the type that the function of a `call()` returns.
            args: Positional arguments that JSON can represent.
            kwargs: Keyword arguments that JSON can represent.
            wait_timeout: The maximum wait in seconds or as a timedelta; None for no limit.
            cancel_on_timeout: Whether the job is cancelled if it has not ended by then; otherwise it runs on.
            **options: The other arguments of ``enqueue()``, except ``connection``.

        Returns:
            The value that the function returned, after a round trip through JSON. If the task is typed and
            registered here, it is of the type that the function declares.

        Raises:
            JobFailedError: The job failed. If it ran in this process, ``__cause__`` is its exception.
            JobCancelledError: The job was cancelled.
            JobExpiredError: The job expired.
            ResultUnavailableError: The job completed, and its value could not be kept.
            TimeoutError: The job did not end in time.
            ValueError: ``connection`` was given: a job of an open transaction cannot end.

        Example:
            >>> await scheduler.run_job(call(add, 1, 2), wait_timeout=10)  # doctest: +SKIP
            3
        """
        if options.pop("connection", None) is not None:
            raise ValueError(
                "run_job() takes no connection: the job starts when the transaction commits, so waiting "
                "here never ends; call enqueue() and, after the commit, get_job_result()"
            )
        timeout_s = None if wait_timeout is None else check_delay("wait_timeout", wait_timeout)
        check_kind("cancel_on_timeout", cancel_on_timeout, bool)
        options = {"keep_result": RUN_JOB_KEEPS, **options}
        # If the job fails in this process, its exception becomes the cause of the error that is raised here.
        with FailureRecord(self._parts) as failures:
            job_id = await self.enqueue(func, args=args, kwargs=kwargs, **options)
            failures.job_id = job_id
            try:
                result = await self._parts.waiters.wait(job_id, timeout_s)
            except TimeoutError:
                if cancel_on_timeout:
                    await self.cancel_job(job_id)
                raise
            value = failures.complete(result).unwrap()
        # A JobSpec has the function of a call(), and the name of a task of another library.
        function: Any = JobSpec(func, None).func  # type: ignore[arg-type] # it may be a name
        tasks = self._parts.tasks
        task = tasks.resolve(function) if isinstance(function, str) else tasks.task_of(function)
        return value if task is None else task.result_from(value)

    # -- signals -------------------------------------------------------------------------------------------

    async def signal(
        self, job_id: str, name: str, value: object = None, *, connection: AnyConnection | None = None
    ) -> bool:
        """Send a signal to a job: ``steps.wait(name)`` of the job returns the value.

        The job may wait for the signal before or after this call. The first value of a name is kept with the
        job, and no later value replaces it, so you can repeat the call. If the job was replaced while it
        runs, the signal is for the new definition.

        Args:
            job_id: The job, which need not wait yet.
            name: The name of the wait, at most 200 bytes of UTF-8. No other wait or step of the job has it.
            value: A value that pydantic serializes to JSON, such as plain values, models, dataclasses and
                datetimes, at most ``max_result_bytes``. Fields of a model that were not set are left out.
            connection: A connection of yours in a transaction, as in ``schedule()``. The job receives the
                signal if and only if that transaction commits. The row of a job that has not stored any step
                is locked until then.

        Returns:
            True if the value is stored. False if the name has a value, if the wait has timed out, if a step
            of that name is stored, or if the job has ended.

        Raises:
            JobNotFoundError: There is no such job; a LookupError.
            PayloadError: The value cannot be serialized, would not arrive equal (such as a SecretStr) or is
                too large, or the job has 1,000 signals for which it has not waited; a ValueError.
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is not in a transaction, or the name is empty or too long.
            DatabaseUnavailableError: The database is unavailable, or its response was lost and the signal may
                be stored. Call again. If the transaction of ``connection`` is stricter than READ COMMITTED,
                the cause may also be a conflict with another session. Repeat the transaction then.

        Example::

            await scheduler.enqueue("shop.order", args=(7,), job_id="order:7")
            await scheduler.signal("order:7", "approval", {"by": "ann"})
        """
        usable_connection = await self._parts.store.connections.check_call(connection)
        check_job_id(job_id)
        check_step_name(name, noun="signal")
        return await signal_calls.send_signal(self._parts, job_id, name, value, usable_connection)

    async def send(
        self, job_id: str, name: str, value: object = None, *, connection: AnyConnection | None = None
    ) -> bool:
        """Send a message to a mailbox of a job: ``steps.receive(name)`` of the job returns the value.

        The job may wait for it before or after this call. Unlike a signal, each call adds one more message,
        and the job receives all of them once, in the order of the commits. So a call that you repeat sends
        two messages. If the job was replaced while it runs, the message is for the new definition.

        Args:
            job_id: The job, which need not wait yet.
            name: The name of the mailbox, at most 200 bytes of UTF-8.
            value: A value as in ``signal()``.
            connection: A connection of yours in a transaction, as in ``schedule()``. The job receives the
                message if and only if that transaction commits. Other senders to this mailbox wait until
                then. The row of a job that has not stored any step is locked until then.

        Returns:
            True if the message is stored, False if the job has ended.

        Raises:
            JobNotFoundError: There is no such job; a LookupError.
            PayloadError: The value cannot be serialized, would not arrive equal (such as a SecretStr) or is
                too large, or 1,000 messages have come before the job waited for them; a ValueError. Those
                that the job has received meanwhile count too.
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is not in a transaction, or the name is empty or too long.
            DatabaseUnavailableError: The database is unavailable, or its response was lost and the message
                may be stored. If a second one would harm, pass ``connection`` and insert a row of your own
                with an id of the message in the same transaction. If that transaction is stricter than READ
                COMMITTED, the cause may also be a conflict with another session. Repeat the transaction then.

        Example::

            await scheduler.enqueue("shop.cart", args=(7,), job_id="cart:7")
            await scheduler.send("cart:7", "items", {"sku": "A-1"})
            await scheduler.send("cart:7", "items", {"sku": "B-2"})
        """
        usable_connection = await self._parts.store.connections.check_call(connection)
        check_job_id(job_id)
        check_step_name(name, noun="mailbox")
        return await signal_calls.send_message(self._parts, job_id, name, value, usable_connection)

    async def broadcast(
        self,
        name: str,
        value: object = None,
        *,
        job_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        job_ids: Iterable[str] | None = None,
        connection: AnyConnection | None = None,
    ) -> int:
        """Give one value to all jobs that wait for a signal or a message of this name now.

        A job waits for it in ``steps.wait(name)``, in a `Wait` of ``steps.first()``, or in
        ``steps.receive(name)``. All jobs get the value in one transaction, each of them once. A job that
        begins to wait during the call may be missed, and one that does not wait gets nothing.

        Args:
            name: The name of the signal or the mailbox.
            value: A value as in ``signal()``.
            job_name: Only jobs with this name of a task.
            metadata: Only jobs whose metadata contain these keys and values.
            job_ids: Only jobs with these ids, such as those that a search of the inspector has found.
            connection: A connection of yours in a transaction, as in ``schedule()``. The jobs receive the
                value if and only if that transaction commits. Other signals to them wait until then.

        Returns:
            The number of jobs that got the value.

        Raises:
            PayloadError: The value or the metadata cannot be serialized; a ValueError. No job gets the value.
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is not in a transaction, or in one at another isolation level than READ
                COMMITTED, or a name or an id is empty or too long.
            DatabaseUnavailableError: The database is unavailable, and no job has got the value, or all have
                and the response was lost. A repetition reaches the jobs that wait then: those that have got a
                signal do not wait for it any more, but a job may wait for its next message.

        Example::

            await scheduler.broadcast("prices", {"EUR": 1.08}, job_name="shop.quote")
        """
        usable_connection = await self._parts.store.connections.check_call(connection)
        check_step_name(name, noun="signal")
        if usable_connection is not None:
            await self._parts.store.connections.check_isolation(
                usable_connection, "jobs that have begun to wait since it began would be missed"
            )
        filters = self._jobs.check_filters(
            status=None, job_name=job_name, worker_id=None, due_from=None, due_before=None, metadata=metadata
        )
        ids = None if job_ids is None else check_list("job_ids", job_ids, "list of ids")
        for job_id in ids or ():
            check_job_id(job_id)
        audience = step_signals.Audience(filters.names, filters.metadata, ids)
        return await signal_calls.broadcast(self._parts, name, value, audience, usable_connection)

    async def end_sleep(self, job_id: str) -> bool:
        """End the sleep of a job now: ``steps.sleep()`` of the job returns as it does at its time.

        Suppose an order sleeps for 14 days until its delivery is checked, and the customer calls today. It
        does not help to move the job by ``move_jobs()``: the step keeps its end, so the job sleeps on.

        Args:
            job_id: The id of the job. If several of its steps sleep at once, all of these sleeps end.

        Returns:
            True if the job slept; it is due now. False if it does not exist or does not sleep, or if a worker
            of an earlier version has suspended it.

        Raises:
            TypeError: ``job_id`` is no str.
            ValueError: ``job_id`` is empty or too long.
            DatabaseUnavailableError: The database is unavailable, or its response was lost and the sleep may
                have ended. Call again.

        Example::

            await scheduler.enqueue("shop.order", args=(7,), job_id="order:7")
            await scheduler.end_sleep("order:7")
        """
        return await signal_calls.end_sleep(self._parts, check_job_id(job_id))

    # -- values and streams of running jobs ----------------------------------------------------------------

    async def get_value(
        self, job_id: str, name: str, *, wait: bool = True, timeout: float | timedelta | None = None
    ) -> Any:
        """Return the value that a job has published under a name by ``current_job().publish()``.

        A value can be read as long as the row of the job exists, also after the end of the job. If the job
        has published several values under the name, this is the last one.

        Args:
            job_id: The job.
            name: The name of the value.
            wait: Whether to wait until the job has published the value or has ended.
            timeout: The maximum wait in seconds or as a timedelta, 0 for one query; None for no limit.

        Returns:
            The value as JSON carries it; None if the job has ended without it, or if ``wait`` is False and
            there is none yet.

        Raises:
            JobNotFoundError: There is no such job; a LookupError.
            TimeoutError: The job did not publish the value in time. It runs on.
            PayloadError: The codec of this process cannot read the value.
            SchemaError: A table is missing, or the database role may not read it.

        Example::

            from pg_scheduler import current_job

            async def pay(order_id: int) -> None:
                await current_job().publish("payment_url", f"https://pay.example.org/{order_id}")

            job_id = await scheduler.enqueue(pay, args=(7,))
            url = await scheduler.get_value(job_id, "payment_url", timeout=10)
        """
        check_job_id(job_id)
        check_step_name(name, noun="published value")
        # Without this check, a number that the caller means as the timeout would be true.
        check_kind("wait", wait, bool)
        self._parts.store.connections.check_loop()
        timeout_s = None if timeout is None else check_delay("timeout", timeout)
        return await self._parts.stream_readers.value(job_id, name, wait=wait, timeout_s=timeout_s)

    def stream(self, job_id: str, name: str, *, after: int = 0) -> AsyncIterator[StreamItem]:
        """Iterate over the items that a job appends to a stream by ``current_job().stream(name)``.

        The iteration yields the items that are stored, waits for the next ones, and ends when the job has
        ended and all items were read. A job that is retried continues its stream, so the iteration waits. It
        also ends if the job is replaced or deleted meanwhile.

        A started Scheduler learns of new items by a notification. In other processes the call repeats a query
        for all readers of the process, at intervals that grow from 50 ms to a second while nothing comes.

        Args:
            job_id: The job, which need not have started yet.
            name: The name of the stream.
            after: The number of the last item that you have, to continue behind it; 0 for all items.

        Yields:
            A `StreamItem` with ``number`` and ``value``, in the order of the numbers, without gaps.

        Raises:
            JobNotFoundError: There is no such job; a LookupError. The iteration raises it.
            PayloadError: The codec of this process cannot read an item.
            SchemaError: A table is missing, or the database role may not read it.

        Example::

            from pg_scheduler import current_job

            async def answer(question: str) -> None:
                for word in question.split():
                    await current_job().stream("words").append(word)

            job_id = await scheduler.enqueue(answer, args=("what is a stream",))
            async for item in scheduler.stream(job_id, "words"):
                print(item.number, item.value)
        """
        check_job_id(job_id)
        check_step_name(name, noun="stream")
        check_count("after", after, most=stream_values.MAX_ITEMS)
        self._parts.store.connections.check_loop()
        return self._parts.stream_readers.items(job_id, name, after)

    # -- tasks ---------------------------------------------------------------------------------------------

    @cached_property
    def tasks(self) -> Tasks:
        """The registered functions and the paused names; see `Tasks`."""
        return Tasks(self._parts)

    @overload
    def register(
        self,
        func: F,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
        max_retries: int | Unset = UNSET,
        retry: RetryPolicy | None = None,
        priority: JobPriority | Unset = UNSET,
        executor: str | Unset = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        deadline: float | timedelta | Unset | None = UNSET,
        typed: bool | Unset = UNSET,
        metadata: Mapping[str, Any] | None = None,
        limits: Iterable[Limit] = (),
        share: Share | None = None,
        sequence: JobSequence | KeyFunction | None = None,
        unique: Unique | str | Unset | None = UNSET,
        on_failure: str | None = None,
        on_cancel: str | None = None,
        version: int | Unset = UNSET,
        chunk: int | None = None,
        chunk_wait: float | timedelta | Unset = UNSET,
        chunk_by: KeyFunction | None = None,
    ) -> F: ...

    @overload
    def register(
        self,
        func: None = None,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
        max_retries: int | Unset = UNSET,
        retry: RetryPolicy | None = None,
        priority: JobPriority | Unset = UNSET,
        executor: str | Unset = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        deadline: float | timedelta | Unset | None = UNSET,
        typed: bool | Unset = UNSET,
        metadata: Mapping[str, Any] | None = None,
        limits: Iterable[Limit] = (),
        share: Share | None = None,
        sequence: JobSequence | KeyFunction | None = None,
        unique: Unique | str | Unset | None = UNSET,
        on_failure: str | None = None,
        on_cancel: str | None = None,
        version: int | Unset = UNSET,
        chunk: int | None = None,
        chunk_wait: float | timedelta | Unset = UNSET,
        chunk_by: KeyFunction | None = None,
    ) -> Callable[[F], F]: ...

    def register(
        self,
        func: F | None = None,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
        max_retries: int | Unset = UNSET,
        retry: RetryPolicy | None = None,
        priority: JobPriority | Unset = UNSET,
        executor: str | Unset = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        deadline: float | timedelta | Unset | None = UNSET,
        typed: bool | Unset = UNSET,
        metadata: Mapping[str, Any] | None = None,
        limits: Iterable[Limit] = (),
        share: Share | None = None,
        sequence: JobSequence | KeyFunction | None = None,
        unique: Unique | str | Unset | None = UNSET,
        on_failure: str | None = None,
        on_cancel: str | None = None,
        version: int | Unset = UNSET,
        chunk: int | None = None,
        chunk_wait: float | timedelta | Unset = UNSET,
        chunk_by: KeyFunction | None = None,
    ) -> Any:
        """Register a function with this Scheduler, also while it runs; usable as a decorator.

        Registering a function again adds names and changes the options that are given.

        Args:
            func: The function; omitted when used as a decorator with arguments.
            name: The name of its jobs; ``module.qualname`` when None.
            aliases: Former names whose pending jobs run too.
            timeout: Default time limit of one attempt in seconds or as a timedelta, as in ``@job()``.
            misfire_grace_time: Default misfire grace time in seconds, as in ``@job()``.
            max_retries: Default number of retries, as in ``@job()``.
            retry: The delays before its retries, as in ``@job()``.
            priority: Default priority, as in ``@job()``.
            executor: Where its jobs run, as in ``@job()``.
            keep_result: How long results are kept, as in ``@job()``.
            deadline: Default time within which a job must have ended, as in ``@job()``.
            typed: Whether pydantic validates its arguments, as in ``@job()``.
            metadata: Metadata of its jobs, as in ``@job()``.
            limits: How many attempts may run or start, as in ``@job()``.
            share: The share whose tenants take turns, as in ``@job()``.
            sequence: The key by which its jobs run one after the other, as in ``@job()``.
            unique: Which of its jobs exclude one another, as in ``@job()``.
            on_failure: The task to enqueue when a job has failed finally, as in ``@job()``.
            on_cancel: The task to enqueue when a job that has begun is cancelled, as in ``@job()``.
            version: The version of the code, for durable steps, as in ``@job()``.
            chunk: How many jobs one call of the function may get, as in ``@job()``.
            chunk_wait: How long the first job of a chunk waits for others, as in ``@job()``.
            chunk_by: The key of the jobs that may be in one chunk, as in ``@job()``.

        Returns:
            The unchanged function, or a decorator that returns it.

        Raises:
            TypeError: ``func`` is not a function, or the executor cannot run it.
            ConfigurationError: An option is out of range; a ValueError.
            NameConflictError: Another function has one of the names, or the same ``module.qualname`` with
                another name; a ValueError.

        Example::

            @scheduler.register(name="mail.send", aliases=["send_mail"], max_retries=5)
            async def send(to: str) -> None: ...
        """
        former_names = check_aliases(aliases)
        options = TaskOptions(
            timeout=timeout,
            misfire_grace_time=misfire_grace_time,
            max_retries=max_retries,
            retry=retry,
            priority=priority,
            executor=executor,
            keep_result=keep_result,
            deadline=deadline,
            typed=typed,
            metadata=metadata,
            limits=check_limits(limits),
            share=share,
            sequence=sequence,
            unique=unique,
            on_failure=on_failure,
            on_cancel=on_cancel,
            version=version,
            chunk=chunk,
            chunk_wait=chunk_wait,
            chunk_by=chunk_by,
        )

        def add(function: F) -> F:
            """Register the function with the options, and return it."""
            self._check_executor_of_chunks(function, options)
            self._parts.tasks.register(function, name=name, aliases=former_names, options=options)
            # Jobs and fire times of this name may be due, so the claimer and the planner look for them now.
            if self._parts.runtime is not None:
                self._parts.runtime.node.signals.due()
                self._parts.runtime.node.signals.schedules_changed()
            return function

        # Without a function, this is a decorator with arguments.
        return add if func is None else add(func)

    def _check_executor_of_chunks(self, function: JobFunction, options: TaskOptions) -> None:
        """Raise ConfigurationError if the executor of a task with ``chunk=`` cannot call its function."""
        check_function(function, allow_plain=True)
        task = self._parts.tasks.task_of(function)
        if options.chunk is None and (task is None or task.chunk is None):
            return
        name = default_executor(function) if task is None else task.executor
        if isinstance(options.executor, str):
            name = options.executor
        # The registry refuses that of processes.
        executor = None if name == PROCESS else self._parts.executors.get(name)
        # Another worker may have an executor that is missing here.
        fault = None if executor is None else runner_executors.fault_of_chunks(name, executor)
        if fault is not None:
            raise fault

    # -- schedules -----------------------------------------------------------------------------------------

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules that are added, changed and read at run time; see `Schedules`."""
        return Schedules(self._parts)

    def get_periodic_jobs(self) -> dict[str, PeriodicJobConfig]:
        """Return the periodic functions of this process by dedup key."""
        return self._parts.declared.configs()

    def get_periodic_job_status(self, dedup_key: str) -> dict[str, Any] | None:
        """Return a description of one schedule, or None if the key is unknown in this process.

        Keys: ``job_name, enabled, priority, max_retries, dedup_key, use_advisory_lock, function_name,
        function_module``; ``interval`` (seconds), ``cron`` and ``timezone``, or ``trigger`` (a text);
        ``next_fire_at`` and ``last_fire_at`` as the running Scheduler last read them from the database.
        """
        return self._parts.declared.status(check_key(dedup_key))

    def enable_periodic_job(self, dedup_key: str) -> bool:
        """Enable a schedule: at once on this node, within a second on the others. Restarts keep the change.

        Returns:
            False if the key is unknown in this process.
        """
        return self._periodic_jobs.switch(dedup_key, enabled=True)

    def disable_periodic_job(self, dedup_key: str) -> bool:
        """Disable a schedule: at once on this node, within a second on the others. Restarts keep the change.

        A job that is already enqueued still runs. A Scheduler that was not started writes the change in the
        background, and ``shutdown()`` waits until it is written. If there is no event loop, or there are no
        tables, ``start()`` writes it. A change that is not written when the process ends is written then, on
        a connection of its own. If that fails, a warning is logged.

        Returns:
            False if the key is unknown in this process.
        """
        return self._periodic_jobs.switch(dedup_key, enabled=False)

    async def trigger_periodic_job(self, dedup_key: str) -> str | None:
        """Run a periodic job once now, even if its schedule is disabled. Its fire times do not change.

        Only those of a `FixedDelay` change: the next one follows the end of this job.

        Returns:
            The id of the job, or None if the key is unknown in this process.

        Raises:
            JobConflictError: The task is unique, and another job has the key; a ValueError.
            SchemaForbiddenError: The role may insert plain jobs only, and the task has other options.
        """
        return await self._periodic_jobs.trigger(dedup_key, self.schedules)

    # -- events --------------------------------------------------------------------------------------------

    def subscribe(
        self, subscriber: Subscriber, *kinds: type[Event], once: bool = False, cluster: bool = False
    ) -> Callable[[], None]:
        """Call ``subscriber`` with events of these classes of ``pg_scheduler.events``, or with all events.

        A plain function is called in the event loop at once, so it must not block. An async function has a
        queue of 1,000 events and a task that awaits it with one event after the other. When the queue is
        full, the oldest events are dropped, and the function receives ``EventsDropped`` with their number. To
        call blocking code in it, await ``asyncio.to_thread()``. An exception that a subscriber raises is
        logged, and stops neither the next event nor another subscriber.

        With ``cluster=True``, the subscriber receives the events of every started Scheduler of the database:
        at most once, in the order of each node, and without exceptions and stacks; an error has at most 200
        characters. Nodes send a class only while a worker subscribes to it, from some milliseconds after the
        call on. When events may have been lost, the subscriber receives ``EventsMissed`` and must read the
        rows. Every role that may NOTIFY in the database can forge such events.

        ``shutdown()`` waits for up to 5 seconds until async subscribers have handled their queues. The
        subscription remains for the next ``start()``.

        Args:
            subscriber: The function.
            kinds: The classes; a base class stands for its subclasses. All events if none is given.
            once: End the subscription with the first event.
            cluster: Receive the events of all nodes. Requires a started Scheduler with a LISTEN connection.

        Returns:
            A function that ends the subscription. After that, queued events are not passed to an async
            function.

        Raises:
            TypeError: ``subscriber`` is not a function, a kind is not an event class, or ``once`` or
                ``cluster`` is not a bool.
            ValueError: ``cluster=True``, and a class concerns one process only, such as PassFinished.
            NotRunningError: ``cluster=True``, and the Scheduler is not running.
            ConfigurationError: ``cluster=True``, and notifications do not arrive: the pool is too small, or a
                pooler is in between and there is no ``direct_dsn``. A ValueError.

        Example::

            from pg_scheduler.events import JobFailed

            unsubscribe = scheduler.subscribe(print, JobFailed)
        """
        return self._events.subscribe(subscriber, kinds, once=once, cluster=cluster)

    async def next_event(
        self, *kinds: type[Event], cluster: bool = False, timeout: float | timedelta | None = None
    ) -> Event:
        """Wait for the next event of these classes, or of any class, and return it.

        Args:
            kinds: The classes; a base class stands for its subclasses.
            cluster: Wait for an event of any node, or for EventsMissed; see ``subscribe()``.
            timeout: Seconds or a timedelta; None to wait without limit.

        Raises:
            TypeError: A kind is not an event class, or ``cluster`` is not a bool.
            ValueError: The timeout is not a positive number, or a class is not sent to other nodes.
            TimeoutError: There was no event in time.
            NotRunningError: The Scheduler stopped before there was one, or ``cluster=True`` and it is not
                running.
            ConfigurationError: ``cluster=True``, and notifications do not arrive.

        Example::

            from pg_scheduler.events import JobFailed

            try:
                print(await scheduler.next_event(JobFailed, timeout=0.1))
            except TimeoutError:
                print("no job has failed meanwhile")
        """
        return await self._events.next(kinds, cluster=cluster, timeout=timeout)

    def events(self, *kinds: type[Event], cluster: bool = False) -> EventStream:
        """Return an asynchronous iterator over the events of these classes, or over all events.

        The iterator collects events from this call on, also while your loop handles one. It keeps up to
        1,000. If your loop falls further behind, the oldest events are dropped, and ``EventsDropped`` with
        their number takes their place. The iteration ends when the Scheduler has stopped.

        Args:
            kinds: The classes; a base class stands for its subclasses.
            cluster: Iterate over the events of all nodes, and EventsMissed; see ``subscribe()``.

        Raises:
            TypeError: A kind is not an event class, or ``cluster`` is not a bool.
            ValueError: ``cluster=True``, and a class is not sent to other nodes.
            NotRunningError: ``cluster=True``, and the Scheduler is not running.
            ConfigurationError: ``cluster=True``, and notifications do not arrive.
            RuntimeError: Another event loop or thread called it.

        Example::

            from pg_scheduler.events import JobCompleted

            completed = scheduler.events(JobCompleted)
            await scheduler.schedule(send_mail, execution_time=datetime.now(UTC))
            async for event in completed:
                print(event)
                break
        """
        return self._events.stream(kinds, cluster=cluster)

    # -- workers and deleted jobs --------------------------------------------------------------------------

    async def workers(self) -> list[Worker]:
        """Return every worker that has a row, oldest first, and whether its lease is valid."""
        return await self._parts.store.workers.list_workers()

    async def run_vacuum(self) -> dict[str, int]:
        """Apply the vacuum policies now and return the number of deleted jobs by status."""
        store = self._parts.store
        vacuum = vacuuming.Vacuum(
            store,
            self._parts.events,
            self._parts.config.vacuum,
            self._parts.life.worker_id,
            schedules=store.schedules,
            statistics=store.statistics,
            streams=store.streams,
        )
        return {status.value: count for status, count in (await vacuum.run()).items()}

    async def get_vacuum_stats(self, days: int = 7) -> list[dict[str, Any]]:
        """Return the deletions of the last days in UTC, newest first; empty without ``track_metrics``.

        Keys: ``stat_date, deleted_completed, deleted_failed, deleted_cancelled, deleted_expired, last_run,
        worker_id``.

        Args:
            days: The number of days, today included; at least 1.

        Raises:
            ValueError: ``days`` is less than 1.
        """
        check_count("days", days, least=1)
        if not self._parts.config.vacuum.track_metrics:
            return []
        return [asdict(day) for day in await self._parts.store.retention.vacuum_stats(days)]

    async def get_total_vacuum_stats(self) -> dict[str, Any]:
        """Return the deletions since the first vacuum; empty without ``track_metrics``.

        Keys: ``total_completed, total_failed, total_cancelled, total_expired, last_vacuum_run``.
        """
        if not self._parts.config.vacuum.track_metrics:
            return {}
        return asdict(await self._parts.store.retention.total_vacuum_stats())

    # -- names of 0.2 --------------------------------------------------------------------------------------

    # Each method makes one step that a running worker makes by itself. All except load_task_functions()
    # require a running Scheduler.

    async def recover_orphaned_jobs(self) -> None:
        """Reclaim the jobs of dead workers now."""
        await self._parts.running().rescuer.reclaim_now()

    async def periodic_orphan_recovery(self) -> None:
        """Reclaim the jobs of dead workers now. A running Scheduler does so whenever a lease expires."""
        await self.recover_orphaned_jobs()

    async def monitor_heartbeats(self) -> None:
        """Reclaim the jobs of workers whose lease has expired now."""
        await self.recover_orphaned_jobs()

    async def listen_for_jobs(self) -> None:
        """Claim due jobs now. A running Scheduler does so whenever jobs are due."""
        await self._parts.running().claimer.run_once()

    async def send_heartbeat(self, job_id: str) -> None:
        """Renew the lease of this worker and its jobs. A running Scheduler does so every third of a lease."""
        check_job_id(job_id)
        await self._parts.running().heartbeat.run_once()

    async def load_task_functions(self) -> list[str]:
        """Return the names of pending jobs for which no function is registered here; warn of each in the log.

        Nothing is loaded. The jobs stay pending for a worker that registers their names.
        """
        return await task_facet.find_unregistered(self._parts)

    async def execute_job(self, job_row: Mapping[str, Any]) -> None:
        """Run one job that this worker has claimed, and wait until it has finished.

        Args:
            job_row: The row of the job, or any mapping with its ``job_id``.

        Raises:
            ValueError: This worker has not claimed the job, or runs it already.
        """
        executor = self._parts.running().executor
        await executor.submit(await self._jobs.held_claim(job_row))

    async def execute_job_with_concurrency_control(self, job_row: Mapping[str, Any]) -> None:
        """Run one job that this worker has claimed once a slot is free, and wait until it has finished.

        Args:
            job_row: The row of the job, or any mapping with its ``job_id``.

        Raises:
            ValueError: This worker has not claimed the job, or runs it already.
        """
        executor = self._parts.running().executor
        claim = await self._jobs.held_claim(job_row)
        # The first await is for a free slot, the second one for the end of the job.
        end_of_job = await executor.submit_when_free(claim)
        await end_of_job

    # -- parts of a worker ---------------------------------------------------------------------------------

    def _connections_of(self, config: SchedulerConfig) -> Connections:
        """Return the connections of the pool and of the DSNs in the settings. The test kit overrides this."""
        return Connections(self.db_pool, config.direct_dsn, keeper_dsn=config.keeper_dsn, shares=True)

    def _get_worker_id(self) -> str:
        """Return the id of the worker, for parts that need the id which it has when they are called."""
        return self._parts.life.worker_id

    def _new_worker_id(self) -> str:
        """Return a random id of ``WORKER_ID_LENGTH`` hexadecimal digits."""
        length = check_count("WORKER_ID_LENGTH", self.WORKER_ID_LENGTH, least=1)
        # Each byte becomes two characters. For an odd length, the last character is cut off.
        return secrets.token_hex((length + 1) // 2)[:length]

    async def _build(self) -> Runtime:
        """Check the settings and the database, and build the parts of the worker."""
        # HEARTBEAT_THRESHOLD and LEASE_DURATION may have been set since the construction.
        parts = self._parts
        parts.config = replace(
            parts.config, lease_seconds=self.LEASE_DURATION, heartbeat_threshold=self.HEARTBEAT_THRESHOLD
        )
        parts.declared.check_locks()
        await parts.store.begin(
            parts.config.migrations, on_copy=parts.config.on_copy if self._guards_copies else None
        )
        runtime_class = self._runtime_class or worker_runtime.Runtime
        runtime = runtime_class(
            self._node(), worker_runtime.Slices(parts.store, parts.declared, parts.job_builders)
        )
        # The event loop must not wait for an import while jobs run.
        import_now(attempt_steps, child_jobs, attempt_streams)
        # From here on, a signal such as "a job is due" wakes the parts of the worker that it concerns.
        wiring.connect(runtime)
        return runtime

    def _node(self) -> Node:
        """Return what all services of the worker share: its id, its settings, and parts of this Scheduler."""
        parts = self._parts
        return worker_node.Node(
            worker_id=self.worker_id,
            config=parts.config,
            store=parts.store,
            events=parts.events,
            cluster_events=parts.cluster_events,
            tasks=parts.tasks,
            declared=parts.declared,
            outbox=parts.outbox,
            waiters=parts.waiters,
            retry_policy=parts.retry_policy,
            executors=parts.executors,
            middleware=parts.middleware,
            meter=parts.meter,
            get_scheduler=jobs_view.SchedulerOfJobs(self),
            new_steps=self._new_steps,
            new_streams=self._new_streams,
            starts_draining=parts.starts_draining,
        )

    def _new_steps(self, node: Node, attempt: Attempt) -> AttemptSteps:
        """Return the durable steps of an attempt."""
        parts = self._parts
        child_enqueuer = child_jobs.ChildEnqueuer(parts.preparer, parts.enqueuer)
        steps_class = self._steps_class or attempt_steps.AttemptSteps
        return steps_class(parts.store.steps, child_enqueuer, node, attempt)

    def _new_streams(self, node: Node, attempt: Attempt) -> AttemptStreams:
        """Return the values and streams of an attempt."""
        return attempt_streams.AttemptStreams(self._parts.store.streams, node, attempt)
