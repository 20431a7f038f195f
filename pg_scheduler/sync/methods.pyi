"""The blocking methods of `SyncScheduler`, for type checkers; made by ``python -m tools.reference.stub``."""

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, TypedDict, TypeVar, overload

from pg_scheduler.base.blocking import Blocking, BlockingFacet, BlockingIterator
from pg_scheduler.base.health import Health
from pg_scheduler.base.settings import Notify, PollingConfig, VacuumConfig
from pg_scheduler.base.status import JobStatus
from pg_scheduler.clock import Clock
from pg_scheduler.database.callers.adapter import AnySyncConnection
from pg_scheduler.errors import JobResult
from pg_scheduler.events import Event, Subscriber
from pg_scheduler.jobs.call import JobExecutor
from pg_scheduler.jobs.codec import Codec
from pg_scheduler.jobs.keys import KeyFunction
from pg_scheduler.jobs.limits import Limit
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
from pg_scheduler.jobs.pause import TaskInfo
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.sequences import Sequence as JobSequence
from pg_scheduler.jobs.shares import Share
from pg_scheduler.jobs.streams import StreamItem
from pg_scheduler.jobs.task import JobSpec
from pg_scheduler.jobs.unique import Unique
from pg_scheduler.schedules.declared import PeriodicJobConfig
from pg_scheduler.schedules.policies import LATEST, CatchUp, Overlap
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.triggers.base import Trigger

__all__ = ["BlockingMethods", "Settings"]

R = TypeVar("R")
F = TypeVar("F", bound=JobFunction)

class Settings(TypedDict, total=False):
    """The keyword parameters of `Scheduler`."""

    max_concurrent_jobs: int
    misfire_grace_time: int | None
    vacuum_config: VacuumConfig | None
    vacuum_enabled: bool
    batch_claim_limit: int | None
    polling_config: PollingConfig | None
    schema: str | None
    direct_dsn: str | None
    keeper_dsn: str | None
    max_crashes: int | None
    max_loop_block: float
    max_payload_bytes: int | None
    max_result_bytes: int | None
    shutdown_timeout: float
    lease: float | timedelta | None
    retry_policy: RetryPolicy
    executors: Mapping[str, JobExecutor] | None
    stop_grace: float
    max_stuck_threads: int
    role: Literal["both", "scheduler", "worker", "observer"]
    identity: str | None
    only: Sequence[str]
    skip: Sequence[str]
    metadata: Mapping[str, Any] | None
    statistics: bool
    middleware: Sequence[Middleware]
    codec: Codec | None
    migrations: Literal["apply", "verify"]
    on_copy: Literal["refuse", "adopt", "hold"]
    notify: Notify
    clock: Clock | None

class BlockingTasks(BlockingFacet):
    """The public members of `Scheduler.tasks`, blocking."""
    def pause(
        self,
        name: str,
        *,
        until: datetime | None = None,
        note: str | None = None,
        suspend_expiry: bool = False,
    ) -> bool:
        """Stop starting the jobs of a task, under all of its names, on all nodes within a second.

        The name, the aliases and the default name ``module.qualname`` stop on every node, also on one whose
        code has the task under one of these names, as during a deployment and after a rollback. The bare name
        of the function stops where the task is registered.

        Parameters, values and errors are those of ``Scheduler.tasks.pause()``.
        """
    def resume(self, name: str) -> bool:
        """Start the jobs of a paused task again, on all nodes within a second.

        If the pause has suspended expiry, the jobs that are due first get their whole misfire grace time
        again. The call waits for that, and up to five seconds for jobs that other sessions have locked or
        whose change a trigger of yours refuses; these keep their former time. If the call is cut, by a
        cancellation or because the database is unavailable, the workers do the rest.

        Parameters, values and errors are those of ``Scheduler.tasks.resume()``.
        """
    def list(self) -> builtins.list[TaskInfo]:
        """Return the registered tasks and the paused names, in the order of the names.

        Parameters, values and errors are those of ``Scheduler.tasks.list()``.
        """

class BlockingSchedules(BlockingFacet):
    """The public members of `Scheduler.schedules`, blocking."""
    def add(
        self,
        func: JobFunction | Call[Any] | str,
        trigger: Trigger,
        *,
        schedule_id: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        max_runs: int | None = None,
        jitter: float | timedelta = 0,
        run_now: bool = False,
        paused: bool = False,
        overlap: Overlap = Overlap.QUEUE_ONE,
        catch_up: CatchUp = LATEST,
        pause_after_failures: int | None = None,
        priority: JobPriority | Unset = UNSET,
        max_retries: int | Unset = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        deadline: float | timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        conflict_resolution: ConflictResolution = ConflictResolution.RAISE,
        connection: AnySyncConnection | None = None,
    ) -> Schedule:
        """Store a schedule. Nodes that have registered the task and the kind of the trigger plan it.

        Parameters, values and errors are those of ``Scheduler.schedules.add()``.
        """
    def update(
        self,
        schedule_id: str,
        *,
        if_version: int | None = None,
        func: JobFunction | str | Unset = UNSET,
        trigger: Trigger | Unset = UNSET,
        args: Sequence[Any] | Unset = UNSET,
        kwargs: Mapping[str, Any] | Unset | None = UNSET,
        start: datetime | Unset | None = UNSET,
        end: datetime | Unset | None = UNSET,
        max_runs: int | Unset | None = UNSET,
        jitter: float | timedelta | Unset = UNSET,
        overlap: Overlap | Unset = UNSET,
        catch_up: CatchUp | Unset = UNSET,
        pause_after_failures: int | Unset | None = UNSET,
        priority: JobPriority | Unset = UNSET,
        max_retries: int | Unset = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        deadline: float | timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        connection: AnySyncConnection | None = None,
    ) -> Schedule:
        """Change the given fields of a schedule. The others keep their values.

        With another trigger or another start, the schedule fires next at its first fire time after now. If
        you remove the start, intervals count from the creation of the schedule. The other fields leave the
        timing as it is.

        Parameters, values and errors are those of ``Scheduler.schedules.update()``.
        """
    def get(self, schedule_id: str, *, connection: AnySyncConnection | None = None) -> Schedule | None:
        """Return the schedule, or None if it does not exist.

        Parameters, values and errors are those of ``Scheduler.schedules.get()``.
        """
    def list(
        self,
        *,
        owner: Literal["code", "api"] | None = None,
        paused: bool | None = None,
        task: JobFunction | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        due_before: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
        connection: AnySyncConnection | None = None,
    ) -> Page[Schedule]:
        """Return a page of schedules, ordered by id.

        Parameters, values and errors are those of ``Scheduler.schedules.list()``.
        """
    def pause(
        self,
        schedule_id: str,
        *,
        note: str | None = None,
        until: datetime | None = None,
        resume_from: Literal["now", "pause"] = "now",
        connection: AnySyncConnection | None = None,
    ) -> bool:
        """Pause a schedule: no fire time becomes a job until it is resumed. Enqueued jobs still run.

        Parameters, values and errors are those of ``Scheduler.schedules.pause()``.
        """
    def resume(
        self,
        schedule_id: str,
        *,
        resume_from: datetime | Literal["now", "pause"] = "now",
        connection: AnySyncConnection | None = None,
    ) -> bool:
        """Resume a paused schedule.

        Parameters, values and errors are those of ``Scheduler.schedules.resume()``.
        """
    def remove(
        self, schedule_id: str, *, cancel_jobs: bool = False, connection: AnySyncConnection | None = None
    ) -> bool:
        """Delete a schedule. If ``@periodic`` declares it, pause it instead: the next start writes it again.

        To change a schedule, call ``update()``, or ``add()`` with REPLACE. If you delete it and add another
        one with the same id, the jobs of the new schedule do not wait for unfinished jobs of the old one.

        Parameters, values and errors are those of ``Scheduler.schedules.remove()``.
        """
    def trigger(self, schedule_id: str, *, connection: AnySyncConnection | None = None) -> str | None:
        """Enqueue one job now, also if the schedule is paused or has finished. Its fire times do not change.

        Only those of a `FixedDelay` change: the next one follows the end of this job.

        Like a job of ``enqueue()``, it expires only if the schedule or the task has a misfire grace time.

        If the task is not registered in this process, the job has the options of the task that the live
        worker reports which started last. If none reports the task, it has the defaults, and a WARNING is
        logged.

        Parameters, values and errors are those of ``Scheduler.schedules.trigger()``.
        """
    def backfill(
        self,
        schedule_id: str,
        start: datetime,
        end: datetime,
        *,
        limit: int = 1000,
        connection: AnySyncConnection | None = None,
    ) -> builtins.list[str]:
        """Enqueue one job for each fire time in a span, in order. Fire times whose job still exists get none.

        Parameters, values and errors are those of ``Scheduler.schedules.backfill()``.
        """

class BlockingMethods(Blocking):
    """The public members of `Scheduler`, blocking."""

    HEARTBEAT_THRESHOLD: ClassVar[float]
    LEASE_DURATION: ClassVar[float]
    WORKER_ID_LENGTH: ClassVar[int]
    state: Any
    def initialize_db(self) -> None:
        """Create or upgrade the schema without starting; with ``migrations="verify"``, only verify it.

        A table that was dropped is created again, empty; a warning in the log names it.

        Parameters, values and errors are those of ``Scheduler.initialize_db()``.
        """
    @property
    def worker_id(self) -> str:
        """The id of this Scheduler in the tables, from construction on."""
    @property
    def is_running(self) -> bool:
        """Whether this Scheduler has started."""
    @property
    def is_shutting_down(self) -> bool:
        """Whether ``shutdown()`` is in progress."""
    def start(self) -> None:
        """Migrate or verify the schema, start every service, and return once jobs are being claimed.

        A second call is a no-op. After ``shutdown()`` it starts again.

        Parameters, values and errors are those of ``Scheduler.start()``.
        """
    def shutdown(self) -> None:
        """Stop claiming, let running jobs finish, release the unfinished ones, and write every result.

        Jobs that still run after ``shutdown_timeout`` seconds are cancelled and released; the interrupted
        attempt is not counted. Jobs that run on after ``stop_grace`` seconds, in threads or because they
        suppress ``CancelledError``, stay with this worker until they end. A second call is a no-op. If the
        call is cancelled, the shutdown continues in the background.

        Parameters, values and errors are those of ``Scheduler.shutdown()``.
        """
    def wait(self) -> None:
        """Wait until the Scheduler has stopped.

        Parameters, values and errors are those of ``Scheduler.wait()``.
        """
    def health(self) -> Health:
        """Return whether this Scheduler is live, ready and started, with the checks that decide it.

        The facts are in memory, so the call makes no query. Any thread may call it. If the event loop is
        blocked, the answer names the job that blocks it. A call in the event loop itself always finds the
        loop responding.

        Parameters, values and errors are those of ``Scheduler.health()``.
        """
    def schedule(
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
        connection: AnySyncConnection | None = None,
        notify: Notify | None = None,
    ) -> str:
        """Schedule one job at one time.

        Parameters, values and errors are those of ``Scheduler.schedule()``.
        """
    def enqueue(
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
        connection: AnySyncConnection | None = None,
        notify: Notify | None = None,
    ) -> str:
        """Run one job now, or after a delay, by the clock of the database.

        The clock of this machine does not matter, so a job that is enqueued now is due now on every node.

        Parameters, values and errors are those of ``Scheduler.enqueue()``.
        """
    def schedule_bulk(
        self,
        jobs: Sequence[JobSpec],
        *,
        conflict_resolution: ConflictResolution = ConflictResolution.IGNORE,
        batch_size: int = 1000,
        connection: AnySyncConnection | None = None,
        notify: Notify | None = None,
    ) -> list[str | None]:
        """Schedule many jobs with few statements. A job without an execution time is due now.

        Parameters, values and errors are those of ``Scheduler.schedule_bulk()``.
        """
    def schedule_job(
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
        connection: AnySyncConnection | None = None,
        notify: Notify | None = None,
    ) -> str:
        """Schedule one job by name. The function need not be registered in this process.

        Parameters, values and errors are those of ``Scheduler.schedule_job()``.
        """
    def get_job(self, job_id: str, *, connection: AnySyncConnection | None = None) -> Job | None:
        """Return the job, or None if it does not exist.

        Parameters, values and errors are those of ``Scheduler.get_job()``.
        """
    def list_jobs(
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

        Parameters, values and errors are those of ``Scheduler.list_jobs()``.
        """
    def count_jobs(self, *, job_name: str | None = None) -> JobCounts:
        """Return the number of jobs in each status: of all jobs, or of one name as in ``list_jobs()``.

        Parameters, values and errors are those of ``Scheduler.count_jobs()``.
        """
    @overload
    def cancel_job(
        self, job_id: str, *, children: Literal[False] = False, connection: AnySyncConnection | None = None
    ) -> bool:
        """Cancel a pending or running job, with ``children=True`` all jobs that its steps have started too.

        The task of a running job is cancelled within a second, on whichever worker runs it.

        Parameters, values and errors are those of ``Scheduler.cancel_job()``.
        """
    @overload
    def cancel_job(self, job_id: str, *, children: bool, connection: AnySyncConnection | None = None) -> int:
        """Cancel a pending or running job, with ``children=True`` all jobs that its steps have started too.

        The task of a running job is cancelled within a second, on whichever worker runs it.

        Parameters, values and errors are those of ``Scheduler.cancel_job()``.
        """
    def cancel_jobs(
        self,
        *,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        job_name: str | None = None,
        worker_id: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        children: bool = False,
        connection: AnySyncConnection | None = None,
    ) -> int:
        """Cancel every pending or running job that matches all filters, in bounded batches.

        The batches are transactions of their own: if one fails, earlier ones stay cancelled, and the call can
        be repeated. A job that is scheduled during the call may be missed.

        Parameters, values and errors are those of ``Scheduler.cancel_jobs()``.
        """
    @overload
    def retry_job(
        self,
        job_id: str,
        *,
        from_step: str | None = None,
        children: Literal[False] = False,
        connection: AnySyncConnection | None = None,
    ) -> bool:
        """Run a finished job again now, with its retries and crashes reset.

        The job may have failed, expired, completed or been cancelled. Its id, arguments, priority and stored
        steps stay. A job of a schedule waits for the last job of the schedule, unless these may overlap.

        Parameters, values and errors are those of ``Scheduler.retry_job()``.
        """
    @overload
    def retry_job(
        self,
        job_id: str,
        *,
        from_step: None = None,
        children: bool,
        connection: AnySyncConnection | None = None,
    ) -> int:
        """Run a finished job again now, with its retries and crashes reset.

        The job may have failed, expired, completed or been cancelled. Its id, arguments, priority and stored
        steps stay. A job of a schedule waits for the last job of the schedule, unless these may overlap.

        Parameters, values and errors are those of ``Scheduler.retry_job()``.
        """
    def run_job_now(self, job_id: str, *, connection: AnySyncConnection | None = None) -> bool:
        """Make a pending job due now, with its whole misfire grace time. It still waits for other jobs.

        A job that waits in a sequence and is due already keeps its due time, and so its place.

        Parameters, values and errors are those of ``Scheduler.run_job_now()``.
        """
    def update_job_status(self, job_id: str, status: JobStatus | str) -> bool:
        """Set the status of a job, regardless of its current status.

        A worker that runs the job loses it: the attempt is cancelled, and its result is rejected. ``pending``
        runs a finished job again. ``running`` reserves a job for one lease, or until its due time if that is
        later. After that, the job is pending again.

        A running job of a sequence that is set to ``pending`` stays ``running`` until its worker has stopped
        the attempt, because another job of the sequence must not start before. It keeps its place.

        Parameters, values and errors are those of ``Scheduler.update_job_status()``.
        """
    @overload
    def get_job_result(
        self,
        job_id: str,
        *,
        wait: Literal[True] = True,
        timeout: float | timedelta | None = None,
        connection: AnySyncConnection | None = None,
    ) -> JobResult:
        """Return how a job ended, and its value if it was kept.

        Reading does not remove the result: any number of readers may read it until it expires. A started
        Scheduler learns of the end by a notification. In other processes the call repeats a query, at
        intervals that grow from 50 ms to ``max_interval`` of the polling.

        Parameters, values and errors are those of ``Scheduler.get_job_result()``.
        """
    @overload
    def get_job_result(
        self,
        job_id: str,
        *,
        wait: bool,
        timeout: float | timedelta | None = None,
        connection: AnySyncConnection | None = None,
    ) -> JobResult | None:
        """Return how a job ended, and its value if it was kept.

        Reading does not remove the result: any number of readers may read it until it expires. A started
        Scheduler learns of the end by a notification. In other processes the call repeats a query, at
        intervals that grow from 50 ms to ``max_interval`` of the polling.

        Parameters, values and errors are those of ``Scheduler.get_job_result()``.
        """
    @overload
    def run_job(
        self,
        func: Call[R],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        wait_timeout: float | timedelta | None = None,
        cancel_on_timeout: bool = False,
        **options: Any,
    ) -> R:
        """Enqueue a job, wait until it has ended, and return its value.

        The result is kept for 15 minutes, unless ``keep_result=`` is given.

        Parameters, values and errors are those of ``Scheduler.run_job()``.
        """
    @overload
    def run_job(
        self,
        func: JobFunction | str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        wait_timeout: float | timedelta | None = None,
        cancel_on_timeout: bool = False,
        **options: Any,
    ) -> Any:
        """Enqueue a job, wait until it has ended, and return its value.

        The result is kept for 15 minutes, unless ``keep_result=`` is given.

        Parameters, values and errors are those of ``Scheduler.run_job()``.
        """
    def signal(
        self, job_id: str, name: str, value: object = None, *, connection: AnySyncConnection | None = None
    ) -> bool:
        """Send a signal to a job: ``steps.wait(name)`` of the job returns the value.

        The job may wait for the signal before or after this call. The first value of a name is kept with the
        job, and no later value replaces it, so you can repeat the call. If the job was replaced while it
        runs, the signal is for the new definition.

        Parameters, values and errors are those of ``Scheduler.signal()``.
        """
    def send(
        self, job_id: str, name: str, value: object = None, *, connection: AnySyncConnection | None = None
    ) -> bool:
        """Send a message to a mailbox of a job: ``steps.receive(name)`` of the job returns the value.

        The job may wait for it before or after this call. Unlike a signal, each call adds one more message,
        and the job receives all of them once, in the order of the commits. So a call that you repeat sends
        two messages. If the job was replaced while it runs, the message is for the new definition.

        Parameters, values and errors are those of ``Scheduler.send()``.
        """
    def broadcast(
        self,
        name: str,
        value: object = None,
        *,
        job_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        job_ids: Iterable[str] | None = None,
        connection: AnySyncConnection | None = None,
    ) -> int:
        """Give one value to all jobs that wait for a signal or a message of this name now.

        A job waits for it in ``steps.wait(name)``, in a `Wait` of ``steps.first()``, or in
        ``steps.receive(name)``. All jobs get the value in one transaction, each of them once. A job that
        begins to wait during the call may be missed, and one that does not wait gets nothing.

        Parameters, values and errors are those of ``Scheduler.broadcast()``.
        """
    def end_sleep(self, job_id: str) -> bool:
        """End the sleep of a job now: ``steps.sleep()`` of the job returns as it does at its time.

        Suppose an order sleeps for 14 days until its delivery is checked, and the customer calls today. It
        does not help to move the job by ``move_jobs()``: the step keeps its end, so the job sleeps on.

        Parameters, values and errors are those of ``Scheduler.end_sleep()``.
        """
    def get_value(
        self, job_id: str, name: str, *, wait: bool = True, timeout: float | timedelta | None = None
    ) -> Any:
        """Return the value that a job has published under a name by ``current_job().publish()``.

        A value can be read as long as the row of the job exists, also after the end of the job. If the job
        has published several values under the name, this is the last one.

        Parameters, values and errors are those of ``Scheduler.get_value()``.
        """
    def stream(self, job_id: str, name: str, *, after: int = 0) -> BlockingIterator[StreamItem]:
        """Iterate over the items that a job appends to a stream by ``current_job().stream(name)``.

        The iteration yields the items that are stored, waits for the next ones, and ends when the job has
        ended and all items were read. A job that is retried continues its stream, so the iteration waits. It
        also ends if the job is replaced or deleted meanwhile.

        A started Scheduler learns of new items by a notification. In other processes the call repeats a query
        for all readers of the process, at intervals that grow from 50 ms to a second while nothing comes.

        Parameters, values and errors are those of ``Scheduler.stream()``.
        """
    @property
    def tasks(self) -> BlockingTasks:
        """The registered functions and the paused names; see `Tasks`."""
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
    ) -> F:
        """Register a function with this Scheduler, also while it runs; usable as a decorator.

        Registering a function again adds names and changes the options that are given.

        Parameters, values and errors are those of ``Scheduler.register()``.
        """
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
    ) -> Callable[[F], F]:
        """Register a function with this Scheduler, also while it runs; usable as a decorator.

        Registering a function again adds names and changes the options that are given.

        Parameters, values and errors are those of ``Scheduler.register()``.
        """
    @property
    def schedules(self) -> BlockingSchedules:
        """Schedules that are added, changed and read at run time; see `Schedules`."""
    def get_periodic_jobs(self) -> dict[str, PeriodicJobConfig]:
        """Return the periodic functions of this process by dedup key.

        Parameters, values and errors are those of ``Scheduler.get_periodic_jobs()``.
        """
    def get_periodic_job_status(self, dedup_key: str) -> dict[str, Any] | None:
        """Return a description of one schedule, or None if the key is unknown in this process.

        Keys: ``job_name, enabled, priority, max_retries, dedup_key, use_advisory_lock, function_name,
        function_module``; ``interval`` (seconds), ``cron`` and ``timezone``, or ``trigger`` (a text);
        ``next_fire_at`` and ``last_fire_at`` as the running Scheduler last read them from the database.

        Parameters, values and errors are those of ``Scheduler.get_periodic_job_status()``.
        """
    def enable_periodic_job(self, dedup_key: str) -> bool:
        """Enable a schedule: at once on this node, within a second on the others. Restarts keep the change.

        Parameters, values and errors are those of ``Scheduler.enable_periodic_job()``.
        """
    def disable_periodic_job(self, dedup_key: str) -> bool:
        """Disable a schedule: at once on this node, within a second on the others. Restarts keep the change.

        A job that is already enqueued still runs. A Scheduler that was not started writes the change in the
        background, and ``shutdown()`` waits until it is written. If there is no event loop, or there are no
        tables, ``start()`` writes it. A change that is not written when the process ends is written then, on
        a connection of its own. If that fails, a warning is logged.

        Parameters, values and errors are those of ``Scheduler.disable_periodic_job()``.
        """
    def trigger_periodic_job(self, dedup_key: str) -> str | None:
        """Run a periodic job once now, even if its schedule is disabled. Its fire times do not change.

        Only those of a `FixedDelay` change: the next one follows the end of this job.

        Parameters, values and errors are those of ``Scheduler.trigger_periodic_job()``.
        """
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

        Parameters, values and errors are those of ``Scheduler.subscribe()``.
        """
    def next_event(
        self, *kinds: type[Event], cluster: bool = False, timeout: float | timedelta | None = None
    ) -> Event:
        """Wait for the next event of these classes, or of any class, and return it.

        Parameters, values and errors are those of ``Scheduler.next_event()``.
        """
    def events(self, *kinds: type[Event], cluster: bool = False) -> BlockingIterator[Event]:
        """Return an asynchronous iterator over the events of these classes, or over all events.

        The iterator collects events from this call on, also while your loop handles one. It keeps up to
        1,000. If your loop falls further behind, the oldest events are dropped, and ``EventsDropped`` with
        their number takes their place. The iteration ends when the Scheduler has stopped.

        Parameters, values and errors are those of ``Scheduler.events()``.
        """
    def workers(self) -> list[Worker]:
        """Return every worker that has a row, oldest first, and whether its lease is valid.

        Parameters, values and errors are those of ``Scheduler.workers()``.
        """
    def run_vacuum(self) -> dict[str, int]:
        """Apply the vacuum policies now and return the number of deleted jobs by status.

        Parameters, values and errors are those of ``Scheduler.run_vacuum()``.
        """
    def get_vacuum_stats(self, days: int = 7) -> list[dict[str, Any]]:
        """Return the deletions of the last days in UTC, newest first; empty without ``track_metrics``.

        Keys: ``stat_date, deleted_completed, deleted_failed, deleted_cancelled, deleted_expired, last_run,
        worker_id``.

        Parameters, values and errors are those of ``Scheduler.get_vacuum_stats()``.
        """
    def get_total_vacuum_stats(self) -> dict[str, Any]:
        """Return the deletions since the first vacuum; empty without ``track_metrics``.

        Keys: ``total_completed, total_failed, total_cancelled, total_expired, last_vacuum_run``.

        Parameters, values and errors are those of ``Scheduler.get_total_vacuum_stats()``.
        """
    def recover_orphaned_jobs(self) -> None:
        """Reclaim the jobs of dead workers now.

        Parameters, values and errors are those of ``Scheduler.recover_orphaned_jobs()``.
        """
    def periodic_orphan_recovery(self) -> None:
        """Reclaim the jobs of dead workers now. A running Scheduler does so whenever a lease expires.

        Parameters, values and errors are those of ``Scheduler.periodic_orphan_recovery()``.
        """
    def monitor_heartbeats(self) -> None:
        """Reclaim the jobs of workers whose lease has expired now.

        Parameters, values and errors are those of ``Scheduler.monitor_heartbeats()``.
        """
    def listen_for_jobs(self) -> None:
        """Claim due jobs now. A running Scheduler does so whenever jobs are due.

        Parameters, values and errors are those of ``Scheduler.listen_for_jobs()``.
        """
    def send_heartbeat(self, job_id: str) -> None:
        """Renew the lease of this worker and its jobs. A running Scheduler does so every third of a lease.

        Parameters, values and errors are those of ``Scheduler.send_heartbeat()``.
        """
    def load_task_functions(self) -> list[str]:
        """Return the names of pending jobs for which no function is registered here; warn of each in the log.

        Nothing is loaded. The jobs stay pending for a worker that registers their names.

        Parameters, values and errors are those of ``Scheduler.load_task_functions()``.
        """
    def execute_job(self, job_row: Mapping[str, Any]) -> None:
        """Run one job that this worker has claimed, and wait until it has finished.

        Parameters, values and errors are those of ``Scheduler.execute_job()``.
        """
    def execute_job_with_concurrency_control(self, job_row: Mapping[str, Any]) -> None:
        """Run one job that this worker has claimed once a slot is free, and wait until it has finished.

        Parameters, values and errors are those of ``Scheduler.execute_job_with_concurrency_control()``.
        """
