"""The report that a worker sends about itself with each heartbeat, for people who operate it.

The heartbeat writes the row of the worker in any case, so the report costs no statement. Values that do not
change are written at registration only.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from typing import Any, Final, NamedTuple

from pg_scheduler.base.settings import SECRETS, SchedulerConfig
from pg_scheduler.events.log import is_logger_disabled
from pg_scheduler.jobs.limits import numbers_of
from pg_scheduler.jobs.model import UNSET, Worker
from pg_scheduler.jobs.registry import TaskLists, TaskRegistry
from pg_scheduler.jobs.shared_names import fingerprints_of
from pg_scheduler.jobs.task import CODE_OPTIONS, JOB_OPTIONS, Arity, Task, as_stored
from pg_scheduler.jobs.worker_report import (
    ABANDONED,
    CODE,
    DECLARED,
    DECLARED_FUNCTIONS,
    EXACT_ALIASES,
    LEFT_OUT,
    REFUSED_CLAIMS,
    REFUSED_NAMES,
    TASK_METADATA,
    UNKNOWN_ZONES,
    ZONE_DATA,
)
from pg_scheduler.triggers.zones import data_version
from pg_scheduler.version import __version__
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.watchdog import LoopWatchdog
from pg_scheduler.worker.worker_rows import DRAIN, WorkerReport

MAX_NAMES_BYTES: Final = 100_000
"""Names of a worker with more bytes are not reported: every reader of the workers would load them."""

NO_NAMES: Final[list[str]] = []
"""The names of a worker that runs no jobs."""

MAX_LIMITS: Final = 500
"""The maximum number of limits that a worker reports."""

RECENT_S: Final = 900.0
"""For how long a worker reports what last blocked its event loop."""

MAX_ALIASES: Final = 1000
"""The number of registered names that a worker reads to report which of them are other names of a task."""

MAX_PARAMETERS_BYTES: Final = 50_000
"""Bytes of the parameters that a worker reports; those of further tasks are left out."""

MAX_DECLARED_BYTES: Final = 50_000
"""Bytes of the ids and functions of declared schedules that a worker reports; further ones are left out."""

MAX_OPTIONS_BYTES: Final = 50_000
"""Bytes of the options of tasks that a worker reports; those of further tasks are left out.

Metadata have the room that the other options leave. Where they are left out, the report names them.
"""

MAX_MISSING: Final = 100
"""Names of functions without an executor that a worker reports, and schedules without their time zone."""

MAX_REFUSED: Final = 100
"""Jobs that cannot be claimed, and names, which a worker reports."""

MAX_ABANDONED: Final = 20
"""The maximum number of attempts that a worker reports as running on although they were to stop."""

COLUMNS: Final = frozenset({"max_concurrent_jobs", "role", "identity", "metadata"})
"""Settings that have columns of their own."""


def worker_of(node: Node) -> Worker:
    """Return what the row of a worker that starts now contains, without what its reports write."""
    config = node.config
    # The statement that registers a worker writes times of the database, and reads none of these.
    now = datetime.now(UTC)
    return Worker(
        worker_id=node.worker_id,
        hostname=platform.node(),
        pid=os.getpid(),
        version=__version__,
        max_concurrent_jobs=config.max_concurrent_jobs,
        running_jobs=0,
        started_at=now,
        last_beat=now,
        lease_until=now,
        is_alive=True,
        role=config.role,
        identity=config.identity,
        metadata=config.metadata or {},
        settings=settings_of(config, node.tasks),
    )


def settings_of(config: SchedulerConfig, tasks: TaskRegistry) -> dict[str, Any]:
    """Return the settings for people to read, without passwords, and what a worker reports of its tasks."""
    # The worker's row has columns for some of the settings, so the JSON does not repeat them.
    left_out = SECRETS | COLUMNS
    values = asdict(config, dict_factory=_plain)
    settings = {name: value for name, value in values.items() if name not in left_out}
    return {**settings, ZONE_DATA: data_version(), **_report_of(tasks)}


def _report_of(tasks: TaskRegistry) -> dict[str, Any]:
    """Return what a worker reports of its tasks besides their names, as values of JSON."""
    # A task is in the mappings of the registry under each of its names, and is reported once.
    limited_tasks = {task.name: task for task in tasks.lists.limited.values()}
    shared_tasks = {task.name: task for task in tasks.lists.shared.values()}
    limits = [
        {
            "task": task.name,
            "name": limit.name or task.name,
            "by_key": limit.key is not None,
            **numbers_of(limit)._asdict(),
            "spread": limit.spread,
        }
        for task in limited_tasks.values()
        for limit in task.limits
    ]
    shares = [
        {"task": task.name, "name": task.share.name or task.name}
        for task in shared_tasks.values()
        if task.share is not None
    ]
    # An alias is a registered name of a task that is not its main name.
    tasks_by_alias: dict[str, Task] = {}
    for name in islice(tasks.lists.names, MAX_ALIASES):
        task_of_name = tasks.resolve(name)
        if task_of_name and task_of_name.name != name:
            tasks_by_alias[name] = task_of_name
    parameters = _parameters_of(tasks)
    positional = {task.name: _positional_of(task.arity) for task in tasks.tasks() if task.name in parameters}
    return {
        "limits": limits[:MAX_LIMITS],
        "shares": shares[:MAX_LIMITS],
        "aliases": {name: task.name for name, task in tasks_by_alias.items()},
        EXACT_ALIASES: [name for name in tasks_by_alias if tasks.find_exact(name)],
        "parameters": parameters,
        **options_of(tasks),
        "positional": {name: count for name, count in positional.items() if count},
        CODE: fingerprints_of(tasks.tasks()),
    }


def _declared_by(node: Node) -> dict[str, Any]:
    """Return the ids of the schedules that the code declares, with their functions, as settings of the row.

    A worker that does not plan schedules declares none. Where there are too many, the last ones are left out,
    and ``LEFT_OUT`` is true.
    """
    functions: dict[str, Mapping[str, Any]] = {}
    size = 0  # bytes of JSON
    declared = node.declared.functions() if node.config.plans else {}
    for schedule_id, function in sorted(declared.items()):
        # The id is in the list of ids, and in the mapping of functions.
        size += len(json.dumps([schedule_id, schedule_id, function]))
        if size > MAX_DECLARED_BYTES:
            return {DECLARED: [*functions], DECLARED_FUNCTIONS: functions, LEFT_OUT: True}
        functions[schedule_id] = function
    return {DECLARED: [*functions], DECLARED_FUNCTIONS: functions}


def options_of(tasks: TaskRegistry) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the options and the metadata that tasks give their jobs, by task, as rows of jobs store them.

    The options that only the code can apply are named under ``code``. If the room does not suffice for all
    tasks, the tasks with such options come first: a process without the code must not make jobs of them.
    """
    options: dict[str, dict[str, Any]] = {}
    metadata: dict[str, dict[str, Any]] = {}
    size = 0  # bytes of JSON
    # False sorts before True, so the tasks with options that only the code can apply come first.
    sorted_tasks = sorted(tasks.tasks(), key=lambda task: (not _names_of_code_options(task), task.name))
    for task in sorted_tasks:
        task_options = _options_of_task(task)
        length = len(json.dumps([task.name, task_options]))
        if size + length <= MAX_OPTIONS_BYTES:
            size += length
            options[task.name] = task_options
    # The metadata get the room that the options of all tasks have left.
    for task in sorted_tasks:
        if not task.metadata or task.name not in options:
            continue
        length = len(json.dumps([task.name, task.metadata]))
        if size + length <= MAX_OPTIONS_BYTES:
            size += length
            metadata[task.name] = dict(task.metadata)
        else:
            # Readers of the report see by this name that the task has metadata, which are not reported.
            options[task.name]["code"].append("metadata")
    return {"options": options, TASK_METADATA: metadata}


def _options_of_task(task: Task) -> dict[str, Any]:
    """Return the options of a task that are set, without its metadata, as rows of jobs store them."""
    values = {name: as_stored(getattr(task, name)) for name in JOB_OPTIONS}
    options: dict[str, Any] = {name: value for name, value in values.items() if value is not UNSET}
    options["code"] = _names_of_code_options(task)
    if task.on_failure is not None:
        options["on_failure"] = task.on_failure
    if task.on_cancel is not None:
        options["on_cancel"] = task.on_cancel
    return options


def _names_of_code_options(task: Task) -> list[str]:
    """Return the names of the options of a task that are set, and that only its code can apply."""
    return [name for name in CODE_OPTIONS if getattr(task, name)]


def _parameters_of(tasks: TaskRegistry) -> dict[str, list[tuple[str, bool]]]:
    """Return the parameters that a job can be given by name, each with whether it is required, by task.

    Tasks for which the room does not suffice are left out, and so are tasks with unknown parameters.
    """
    parameters_by_task: dict[str, list[tuple[str, bool]]] = {}
    size = 0  # bytes of JSON
    for task in sorted(tasks.tasks(), key=lambda task: task.name):
        if task.arity.signature is None:
            continue
        parameters = [
            (parameter.name, parameter.default is parameter.empty)
            for parameter in task.arity.signature.parameters.values()
            if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
        ]
        length = len(json.dumps([task.name, parameters]))
        if size + length <= MAX_PARAMETERS_BYTES:
            size += length
            parameters_by_task[task.name] = parameters
    return parameters_by_task


def _positional_of(arity: Arity) -> int:
    """Return how many of the reported parameters can be passed by position too, counted from the first one.

    It is 0 if the function has positional-only parameters. These come first and are not reported, so the
    first positional argument would belong to none of the reported parameters.
    """
    if arity.signature is None:
        return 0
    kinds = [parameter.kind for parameter in arity.signature.parameters.values()]
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        return 0
    return kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a dataclass as a dict, with the value of each enum in place of its member."""
    return {name: value.value if isinstance(value, Enum) else value for name, value in items}


class _Reported(NamedTuple):
    """What a report contained, or would have contained if it had changed.

    Attributes:
        names: The names that the worker claims.
        declared_version: The version of the declared schedules.
        tasks: The registered tasks.
    """

    names: list[str]
    declared_version: int
    tasks: TaskLists


class Reporter:
    """Describe this worker, and obey what is requested of it."""

    def __init__(self, node: Node, watchdog: LoopWatchdog) -> None:
        self._connections = node.store.connections
        self._in_flight = node.in_flight
        self._lease = node.lease
        self._clock = node.clock
        self._signals = node.signals
        self._routing = node.routing
        self._unknown_zones = node.unknown_zones
        self._refused_claims = node.refused_claims
        self._watchdog = watchdog
        self._runs_jobs = node.config.runs_jobs
        self._node = node
        self.worker = worker_of(node)
        """The row of this worker, without what its reports write."""
        self._last_report: WorkerReport | None = None
        self._first_tasks = node.tasks.lists
        """The tasks of ``worker``. A further registration makes another object, so ``is`` finds a change."""
        self._reported: _Reported | None = None
        """The content of the last report; None before the first one."""
        self._written: _Reported | None = None
        """The content of the last report that is known to be in the row; None before the first one."""
        self._lag_s = 0.0
        self.wanted: str | None = DRAIN if node.starts_draining else None
        """The request to this worker, as read by the last heartbeat; None for no request."""
        self.is_stopping = False
        """Whether the worker is shutting down."""

    @property
    def state(self) -> str:
        """Return ``running``, ``draining`` or ``stopping``."""
        if self.is_stopping:
            return "stopping"
        return "draining" if self.wanted == DRAIN else "running"

    @property
    def lag_s(self) -> float:
        """Return how many seconds the event loop took to run a callback at the last heartbeat."""
        return self._lag_s

    def report(self, *, whole: bool = False) -> WorkerReport:
        """Return what a heartbeat writes; the names, tasks and declared schedules only if they have changed.

        All count as changed if ``whole`` is true, and until ``confirm()`` has recorded that they were
        written.
        """
        names = self._routing.claimable() if self._runs_jobs else NO_NAMES
        tasks = self._node.tasks.lists
        self._reported = _Reported(names, self._node.declared.version, tasks)
        # What the row is known to have. Without it, everything is written.
        written = None if whole else self._written
        # The list of names is the same object until a name changes, and so is the object of the tasks.
        have_names_changed = written is None or names is not written.names
        have_tasks_changed = written is None or tasks is not written.tasks
        writes_names = have_names_changed and sum(len(name.encode()) for name in names) <= MAX_NAMES_BYTES
        # A task may get its name after its schedule, so new names of tasks may change the schedules too.
        writes_declared = have_names_changed or self._reported != self._written
        declared = _declared_by(self._node) if writes_declared else {}
        # The settings with which the row is registered contain the first tasks, so these are not repeated.
        if tasks is not self._first_tasks and have_tasks_changed:
            declared |= _report_of(self._node.tasks)
        # None: the row keeps what it has.
        self._last_report = report = WorkerReport(
            state=self.state,
            health=self._health(),
            names=names if writes_names else None,
            declared=declared or None,
        )
        # This measures for how long the event loop lets a callback wait; the next report contains that.
        asyncio.get_running_loop().call_soon(self._measure, time.monotonic())
        return report

    def report_blocked(self) -> WorkerReport | None:
        """Return the last report with what blocks the event loop now; None if nothing does.

        The thread of the lease keeper calls it, which sends heartbeats while the event loop cannot.
        """
        blockage = self._watchdog.find_blockage()
        if blockage is None or self._last_report is None:
            return None
        blocked = {
            "loop_blocked_s": round(blockage.seconds, 1),
            "blocking_job_id": blockage.job_id,
            "blocking_job_name": blockage.job_name,
        }
        return WorkerReport(self._last_report.state, {**self._last_report.health, **blocked})

    def confirm(self) -> None:
        """Record that the last report was written, so that the next one contains only what changes."""
        self._written = self._reported

    def obey(self, request: str | None) -> bool:
        """Stop claiming if the request is to drain, else claim; return whether the request has changed."""
        if request == self.wanted:
            return False
        self.wanted = request
        claims_again = self._routing.drain(is_draining=request == DRAIN)
        # Jobs may have become due while this worker claimed none.
        if claims_again:
            self._signals.due()
        return True

    def _health(self) -> dict[str, Any]:
        """Return what the report has about the state of this worker, as values of JSON.

        Problems that the worker does not have are left out, so that the row of a healthy worker is short.
        """
        size, idle, max_size = self._connections.pool_use()
        return {
            "pool": {"size": size, "idle": idle, "max": max_size},
            "loop_lag_s": round(self._lag_s, 4),
            "is_listening": self._signals.notifications_up.is_set,
            "has_liveness_lock": self._lease.liveness_key is not None,
            **({"is_logger_disabled": True} if is_logger_disabled() else {}),
            **self._clock_offset(),
            **self._missing_executors(),
            **self._missing_zones(),
            **self._refused(),
            **self._last_blocked(),
            **self._abandoned(),
        }

    def _clock_offset(self) -> dict[str, Any]:
        """Return by how much the clock of this host is ahead of the server's clock; empty if unknown."""
        offset_s = self._clock.offset_s
        return {} if offset_s is None else {"clock_offset_s": round(offset_s, 3)}

    def _missing_executors(self) -> dict[str, Any]:
        """Return which executors of functions are missing here, by function; empty if none is."""
        if not self._runs_jobs:
            return {}
        missing = self._routing.missing_executors()
        return {"missing_executors": dict(islice(missing.items(), MAX_MISSING))} if missing else {}

    def _missing_zones(self) -> dict[str, Any]:
        """Return the time zones that this machine does not know, by schedule; empty if there are none."""
        zones = dict(islice(self._unknown_zones.recent().items(), MAX_MISSING))
        return {UNKNOWN_ZONES: zones} if zones else {}

    def _refused(self) -> dict[str, Any]:
        """Return why this worker leaves out jobs of its claims, by job; empty if it leaves out none."""
        if not self._refused_claims:
            return {}
        names = self._refused_claims.names
        return {
            REFUSED_CLAIMS: dict(islice(self._refused_claims.reasons.items(), MAX_REFUSED)),
            **({REFUSED_NAMES: names[:MAX_REFUSED]} if names else {}),
        }

    def _last_blocked(self) -> dict[str, Any]:
        """Return which job last blocked the event loop, and for how long; empty if that was long ago."""
        if self._watchdog.last_blocked is None:
            return {}
        # When the event loop resumed, by the monotonic clock, and the event about that.
        resumed_at, event = self._watchdog.last_blocked
        if time.monotonic() - resumed_at > RECENT_S:
            return {}
        job = {"job_id": event.job_id, "job_name": event.job_name}
        return {"last_blocked": {"seconds": round(event.seconds, 1), **job}}

    def _abandoned(self) -> dict[str, Any]:
        """Return the attempts that run on although they were to stop; empty if there are none."""
        now, offset_s = time.monotonic(), self._clock.offset_s or 0.0
        # The times that people see are those of the server's clock, but an attempt has the time at which it
        # was to stop by the monotonic clock. So its age is subtracted from the server's time.
        server_time = time.time() - offset_s
        attempts = [
            {
                "job_id": attempt.claim.job_id,
                "job_name": attempt.claim.job_name,
                "attempt": attempt.claim.attempt,
                "reason": attempt.stop_reason,
                "in_thread": attempt.is_unstoppable,
                **({"has_slot": False} if attempt.has_released_slot else {}),
                "since": datetime.fromtimestamp(
                    round(server_time - (now - attempt.stopped_at)), UTC
                ).isoformat(),
            }
            for attempt in self._in_flight.stopping()
            if attempt.is_abandoned
        ]
        return {ABANDONED: attempts[:MAX_ABANDONED]} if attempts else {}

    def _measure(self, since: float) -> None:
        """Note how long the event loop took to run this; the next heartbeat reports it."""
        self._lag_s = time.monotonic() - since
