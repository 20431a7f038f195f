"""The Scheduler: its settings, its start and shutdown.

The methods that work on functions, jobs and schedules are in the other modules of this package, by subject.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import asyncpg

from pg_scheduler.base.dsn import normalise_dsn
from pg_scheduler.base.settings import Notify, PollingConfig, SchedulerConfig, VacuumConfig
from pg_scheduler.base.threads import resolve_in_threads
from pg_scheduler.clock import Clock
from pg_scheduler.database.faults import connecting, reading_dsn, translated
from pg_scheduler.database.opening import open_own_pool
from pg_scheduler.database.pool import Connections
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import EventBus
from pg_scheduler.events.log import EventLog, GapLog, warn_of_disabled_logger
from pg_scheduler.jobs.call import JobExecutor
from pg_scheduler.jobs.codec import Codec, check_codec
from pg_scheduler.jobs.middleware import Middleware
from pg_scheduler.jobs.registry import TaskRegistry, catalogue
from pg_scheduler.jobs.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from pg_scheduler.jobs.validation import check_count, check_delay, check_kind
from pg_scheduler.queue.enqueuer import Enqueuer
from pg_scheduler.queue.outbox import Outbox
from pg_scheduler.queue.prepare import JobPreparer
from pg_scheduler.queue.result_waiters import ResultWaiters
from pg_scheduler.scheduler.control import ControlMethods
from pg_scheduler.scheduler.events import SUBSCRIBER_TIMEOUT_S, EventMethods
from pg_scheduler.scheduler.inspection import InspectionMethods
from pg_scheduler.scheduler.jobs import JobMethods
from pg_scheduler.scheduler.legacy import LegacyMethods
from pg_scheduler.scheduler.lifecycle import Lifecycle
from pg_scheduler.scheduler.parts import Parts
from pg_scheduler.scheduler.periodic import PeriodicMethods
from pg_scheduler.scheduler.results import ResultMethods
from pg_scheduler.scheduler.runtime import Runtime, Slices
from pg_scheduler.scheduler.signals import SignalMethods
from pg_scheduler.scheduler.store import Store
from pg_scheduler.scheduler.tasks import TaskMethods
from pg_scheduler.scheduler.wiring import connect
from pg_scheduler.schedules.declarations import DeclaredSchedules
from pg_scheduler.schedules.declared import periodic_catalogue
from pg_scheduler.schedules.jobs import ScheduleJobs
from pg_scheduler.statistics.service import new_meter
from pg_scheduler.steps.attempt import AttemptSteps
from pg_scheduler.steps.child_jobs import ChildEnqueuer
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.runners.jobs_view import SchedulerOfJobs
from pg_scheduler.worker.runners.places import check_executors


class Scheduler(
    TaskMethods,
    ResultMethods,
    JobMethods,
    ControlMethods,
    SignalMethods,
    InspectionMethods,
    EventMethods,
    PeriodicMethods,
    LegacyMethods,
):
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
            behind PgBouncer in transaction mode, useful with a very small pool.
        keeper_dsn: DSN for the lease keeper, a thread that renews the lease while a job blocks the event
            loop. None uses ``direct_dsn``, else the pool's DSN with one connection outside of the pool. A
            pool of 3 or fewer connections has no keeper then, and the jobs of a killed process wait until its
            lease expires.
        max_crashes: Workers that may die while they run a job before the job fails; None for no limit.
        max_loop_block: Seconds for which the event loop or the whole process may be blocked before the worker
            loses its lease. A stopped process (SIGSTOP) keeps its jobs for as long.
        max_payload_bytes: Maximum size of the arguments of one job, as JSON in UTF-8, at least 64; None for
            the limit of the table, 16 MiB. Larger arguments are rejected when the job is scheduled.
        max_result_bytes: Maximum size of a kept result, as JSON in UTF-8, at least 64; None for no limit. A
            job with a larger one completes without a kept value.
        shutdown_timeout: Seconds that running jobs get to finish at shutdown, and then their results to be
            written.
        lease: How long this worker owns its jobs without a heartbeat, in seconds or as a timedelta, from
            0.1 s to 365 days; None uses ``LEASE_DURATION``.
        retry_policy: Delays before the retries of failed attempts; see RetryPolicy.
        executors: Where jobs run, by the names in ``executor=`` of ``@job``. They are added to "thread", a
            ``ThreadExecutor()``, and "process", a ``ProcessExecutor()``, or replace them.
        stop_grace: Seconds that a cancelled attempt gets to end; a thread that runs on is reported.
        role: "worker" runs jobs, "scheduler" enqueues the jobs of schedules, "both" does both and "observer"
            neither. Every role does maintenance and receives events.
        identity: A label of this worker, such as the name of its pod, at most 200 characters. Its start
            releases the jobs of a worker that ended with this identity on this machine.
        only: Patterns such as "reports.*" for the names of jobs: others are left to other workers.
        skip: Patterns for the names of jobs that are left to other workers.
        metadata: Labels of this worker, a JSON object, for ``workers()``.
        statistics: Whether jobs are counted by name and outcome, for metrics and the tables of statistics.
        middleware: Code around the attempts of all jobs, the outermost first; see Middleware.
        codec: Encodes the arguments, results and progress notes of jobs, such as a FernetCodec; see Codec.
            None stores them readable.
        migrations: "apply" lets ``start()`` and ``initialize_db()`` create and upgrade the tables. With
            "verify" they change nothing and raise SchemaMissingError: another tool owns the tables.
        on_copy: What a start does in a copy of the database, which has jobs or schedules of the original:
            "refuse" raises DatabaseCopyError, "adopt" runs them here from now on, and "hold" pauses all tasks
            and schedules first.
        notify: How workers are notified of jobs that your transactions schedule by ``connection=``. With
            "hint" this process does it after the transaction, if it sees its end, else by its commit. With
            "commit" it is always the commit, which waits for every other commit that notifies. With "never"
            polling finds the jobs, within ``max_interval``.
        clock: Replaces the database's clock, for tests; see FakeClock.

    Raises:
        ConfigurationError: A setting is invalid; with its name, value and constraint. A ValueError.

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

    _runtime_class: ClassVar[type[Runtime]] = Runtime
    _steps_class: ClassVar[type[AttemptSteps]] = AttemptSteps

    _guards_copies: ClassVar[bool] = True
    """Whether a start refuses a copy of the database; not in tests."""

    _catalogue: TaskRegistry | None = None
    """The functions that it finds besides its own; None for those of ``@job`` in this process."""

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
                f"db_pool must be an asyncpg.Pool, not {type(db_pool).__name__}; "  # a DSN has a password
                "pass the result of asyncpg.create_pool()"
            )
        check_kind("retry_policy", retry_policy, RetryPolicy)
        if clock is not None and not callable(getattr(clock, "override", None)):
            raise TypeError(f"clock must have a method override(), not {clock!r}; pass a FakeClock")
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
        store = Store(self._connections_of(config), schema=schema, clock=clock, codec=payload_codec)
        meter = new_meter(store.statements, events) if statistics else None
        tasks = TaskRegistry(catalogue if self._catalogue is None else self._catalogue)
        outbox = Outbox(
            store,
            events,
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
        self._parts = Parts(
            config=config,
            store=store,
            events=events,
            cluster_events=EventBus(GapLog(self._get_worker_id), worker_id=self._get_worker_id),
            tasks=tasks,
            outbox=outbox,
            preparer=preparer,
            enqueuer=Enqueuer(store, events, outbox, preparer, meter),
            declared=DeclaredSchedules(store, store.schedules, periodic_catalogue),
            schedule_jobs=ScheduleJobs(tasks, misfire_grace_time=misfire_grace_time, codec=payload_codec),
            waiters=ResultWaiters(store, config.polling.max_interval),
            retry_policy=retry_policy,
            executors=check_executors(executors),
            meter=meter,
            life=Lifecycle(events, self._new_worker_id(), self._build),
        )
        store.statements.publish = events.publish
        store.statements.get_author = self._parts.get_author
        self._parts.use_middleware(middleware)
        self._switch_tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str, *, pool_size: int = 10, start: bool = True, **settings: Any
    ) -> AsyncIterator[Self]:
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
        check_count("pool_size", pool_size, least=1)
        check_kind("start", start, bool)
        dsn = normalise_dsn(url, "url")
        resolve_in_threads(asyncio.get_running_loop())
        with translated(), connecting(), reading_dsn("url"):
            pool = await open_own_pool(dsn, "url", min_size=1, max_size=pool_size)
        try:
            scheduler = cls(pool, **settings)
            if start:
                async with scheduler:
                    yield scheduler
            else:
                yield scheduler
                with suppress(
                    DatabaseUnavailableError
                ):  # the jobs are committed; workers find them by polling
                    await scheduler._parts.outbox.flush()
        finally:
            await pool.close()

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

    async def start(self) -> None:
        """Migrate or verify the schema, start every service, and return once jobs are being claimed.

        A second call is a no-op. After ``shutdown()`` it starts again.

        Raises:
            SchemaError: A newer version of the library has migrated the database. With
                ``migrations="verify"``, a table or a migration is missing.
            ConfigurationError: A periodic job uses an advisory lock and the pool has one connection, a codec
                or ``reset=`` callable of the pool breaks the Scheduler's statements, a pooler loses prepared
                statements of the pool, or the server is not PostgreSQL.
            ConnectionRejectedError: The server, or a callable of the pool, rejects connections.
            DatabaseUnavailableError: The database is unavailable, or the pool was closed.
        """
        self._parts.store.connections.check_loop()
        warn_of_disabled_logger()
        if not self.is_running and (
            len(self.worker_id) != self.WORKER_ID_LENGTH  # changed on the instance
            or self._parts.life.has_left_jobs  # which stay with the former worker
        ):
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
        if self.is_running or self.is_shutting_down or self._switch_tasks:
            connections.check_loop()
        try:
            await self._parts.life.shutdown()
        finally:
            if self._switch_tasks:
                await asyncio.wait(self._switch_tasks)
            if not self.is_shutting_down:  # else the caller is a job
                if connections.is_in_loop:
                    await connections.release_held()  # that of calls, which need no start
                for bus in (self._parts.events, self._parts.cluster_events):
                    await bus.drain(SUBSCRIBER_TIMEOUT_S)

    async def wait(self) -> None:
        """Wait until the Scheduler has stopped.

        Raises:
            NotRunningError: The Scheduler was not started.
            BaseException: The error that stopped it, unless ``shutdown()`` did.
        """
        self._parts.store.connections.check_loop()
        await self._parts.life.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()
        if error is None and self._parts.life.fault is not None:
            raise self._parts.life.fault

    async def initialize_db(self) -> None:
        """Create or upgrade the schema without starting; with ``migrations="verify"``, only verify it.

        A table that was dropped is created again, empty; a warning in the log names it.

        Raises:
            ConfigurationError: The server is not PostgreSQL.
            SchemaError: A newer version of the library has migrated the database. With
                ``migrations="verify"``, a table or a migration is missing.
        """
        await self._parts.store.migrate(self._parts.config.migrations)

    def _connections_of(self, config: SchedulerConfig) -> Connections:
        return Connections(self.db_pool, config.direct_dsn, keeper_dsn=config.keeper_dsn)

    def _get_worker_id(self) -> str:
        return self._parts.life.worker_id

    def _new_worker_id(self) -> str:
        length = check_count("WORKER_ID_LENGTH", self.WORKER_ID_LENGTH, least=1)
        return secrets.token_hex((length + 1) // 2)[:length]

    async def _build(self) -> Runtime:
        # The class attributes may have changed since construction.
        parts = self._parts
        parts.config = replace(
            parts.config, lease_seconds=self.LEASE_DURATION, heartbeat_threshold=self.HEARTBEAT_THRESHOLD
        )
        parts.declared.check_locks()
        await parts.store.migrate(parts.config.migrations)
        await parts.store.connections.check_pooler()
        if self._guards_copies:
            await parts.store.identity.guard(parts.config.on_copy)
        runtime = self._runtime_class(self._node(), Slices(parts.store, parts.declared, parts.schedule_jobs))
        connect(runtime)
        return runtime

    def _node(self) -> Node:
        parts = self._parts
        enqueue_child = ChildEnqueuer(parts.preparer, parts.enqueuer).enqueue
        return Node(
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
            get_scheduler=SchedulerOfJobs(self),
            new_steps=partial(self._steps_class, parts.store.steps, enqueue_child),
            starts_draining=parts.starts_draining,
        )
