"""The doors by which tests reach inside the engine.

A test imports what users import from the public modules, and takes what it needs beyond that from here. It
patches nothing of the package by a path or by a module of its own, but calls `replace()`. So a module of the
engine that moves, or a part that gets another name, is adapted in this file only. Look for a public name, the
fixture ``world`` or an event first. Add a name here if several files need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from pg_scheduler import Scheduler
from pg_scheduler.admission.pauses import Renewal
from pg_scheduler.base.blocking import run_at_once
from pg_scheduler.base.dsn import address_parts, normalise_dsn
from pg_scheduler.base.figures import BOUNDS, OUTCOMES, Histogram, JobFigures
from pg_scheduler.base.health import Health, HealthCheck
from pg_scheduler.base.meter import Meter
from pg_scheduler.base.settings import SchedulerConfig
from pg_scheduler.cli import errors
from pg_scheduler.cli.errors import ExitCode
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.queries import load_fragment, load_queries, load_query
from pg_scheduler.events import EventBus
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.jobs.error_text import fingerprint_of
from pg_scheduler.jobs.outcome import COMPLETE, RELEASE, Outcome, quarantine_error
from pg_scheduler.jobs.registry import TaskRegistry, catalogue
from pg_scheduler.jobs.rows import Claim, ExtendedJob, Extras, GeneratedIdJob, PlainJob
from pg_scheduler.jobs.step_values import NO_TIMEOUT, row_of_retries
from pg_scheduler.jobs.task import JOB_OPTIONS, TaskOptions
from pg_scheduler.queue.enqueuer import Enqueuer
from pg_scheduler.queue.outbox import Outbox
from pg_scheduler.queue.writer import JobWriter
from pg_scheduler.scheduler.parts import parts_of
from pg_scheduler.scheduler.runtime import Part, Runtime
from pg_scheduler.scheduler.store import Store
from pg_scheduler.schedules.declarations import DeclaredSchedules
from pg_scheduler.schedules.declared import PeriodicCatalogue, periodic_catalogue
from pg_scheduler.schedules.timing import fire_time_job_id
from pg_scheduler.statistics.service import StatisticsWriter
from pg_scheduler.testing import TestScheduler
from pg_scheduler.worker.attempt_runner import AttemptRunner
from pg_scheduler.worker.claimer import Claimer
from pg_scheduler.worker.completer import Completer
from pg_scheduler.worker.in_flight import Revocation
from pg_scheduler.worker.service import NEVER, Service
from pg_scheduler.worker.vacuum import Vacuum

if TYPE_CHECKING:
    from pg_scheduler.dashboard.pages import Page
    from pg_scheduler.dashboard.rendering import StaticFile

__all__ = [
    "BOUNDS",
    "COMPLETE",
    "JOB_OPTIONS",
    "NEVER",
    "NO_TIMEOUT",
    "OUTCOMES",
    "PLACES",
    "RELEASE",
    "AttemptRunner",
    "Claim",
    "Claimer",
    "Completer",
    "Connections",
    "ExitCode",
    "ExtendedJob",
    "Extras",
    "GeneratedIdJob",
    "Health",
    "HealthCheck",
    "Histogram",
    "JobFigures",
    "JobWriter",
    "Meter",
    "Outcome",
    "PeriodicCatalogue",
    "PlainJob",
    "Renewal",
    "Revocation",
    "Service",
    "StatisticsWriter",
    "Store",
    "TaskOptions",
    "TaskRegistry",
    "Vacuum",
    "address_parts",
    "bus_of",
    "catalogue",
    "clock_of",
    "config_of",
    "dashboard_files",
    "dashboard_pages",
    "dashboard_streams",
    "declarations_of",
    "enqueuer_of",
    "fault_of",
    "fingerprint_of",
    "fire_time_job_id",
    "hide_libraries",
    "internal_setting",
    "is_enqueuer_wrapped",
    "load_fragment",
    "load_queries",
    "load_query",
    "normalise_dsn",
    "outbox_of",
    "periodic_catalogue",
    "place",
    "quarantine_error",
    "reads_of",
    "refused_consequences",
    "registry_of",
    "replace",
    "row_of_retries",
    "run_at_once",
    "run_command",
    "services_of",
    "set_server_start_grace",
    "store_of",
    "worker_of",
]


# What a Scheduler is made of


def bus_of(scheduler: Scheduler) -> EventBus:
    """Return the bus on which a Scheduler publishes its events."""
    return parts_of(scheduler).events


def clock_of(kit: TestScheduler) -> FakeClock:
    """Return the clock of a test kit, to set it back too."""
    return kit._clock


def config_of(scheduler: Scheduler) -> SchedulerConfig:
    """Return the checked settings of a Scheduler."""
    return parts_of(scheduler).config


def declarations_of(scheduler: Scheduler) -> DeclaredSchedules:
    """Return the schedules that the code declares, which a Scheduler writes to the database."""
    return parts_of(scheduler).declared


def enqueuer_of(scheduler: Scheduler) -> Enqueuer:
    """Return the part that makes rows of the jobs that are enqueued, of a Scheduler without middleware."""
    assert not is_enqueuer_wrapped(scheduler)
    return cast("Enqueuer", parts_of(scheduler).enqueuer)


def fault_of(scheduler: Scheduler) -> BaseException | None:
    """Return the error that stopped the worker of a Scheduler, None if none did."""
    return parts_of(scheduler).life.fault


def is_enqueuer_wrapped(scheduler: Scheduler) -> bool:
    """Return whether middleware is called for each job that is enqueued."""
    return type(parts_of(scheduler).enqueuer) is not Enqueuer


def outbox_of(scheduler: Scheduler) -> Outbox:
    """Return the part that notifies other nodes."""
    return parts_of(scheduler).outbox


def reads_of(inspector: Inspector) -> InspectionStore:
    """Return the tables of an Inspector, as it reads them."""
    return tables_of(inspector).reads


def refused_consequences(scheduler: Scheduler) -> dict[str, float]:
    """Return the jobs whose consequences the table has refused, and when each is tried again."""
    return store_of(scheduler).consequences._pause_ends


def registry_of(scheduler: Scheduler) -> TaskRegistry:
    """Return the tasks that a Scheduler knows."""
    return parts_of(scheduler).tasks


def services_of(scheduler: Scheduler) -> Sequence[Part]:
    """Return the services of the worker of a Scheduler, in the order of their start."""
    return worker_of(scheduler).supervisor._parts


def set_server_start_grace(scheduler: Scheduler, seconds: float) -> None:
    """Set how long after the server's start a free liveness lock is no sign of a death."""
    store_of(scheduler).workers._server_start_grace_s = seconds


def store_of(scheduler: Scheduler) -> Store:
    """Return the tables of a Scheduler."""
    return parts_of(scheduler).store


def worker_of(scheduler: Scheduler) -> Runtime:
    """Return the parts of the worker of a Scheduler that runs."""
    runtime = parts_of(scheduler).runtime
    assert runtime, "the worker is stopped"
    return runtime


# What tests replace, and what they compare with

PLACES: Final = {
    "assistant_tools": "cli.assistant.server:TOOLS",
    "audit_page": "dashboard.pages.audit:PAGE_LENGTH",
    "backlog_groups": "inspect.store.inspections:MAX_GROUPS",
    "backlog_rows": "inspect.store.inspections:MAX_BACKLOG_ROWS",
    "batch_characters": "base.batches:MAX_BATCH_CHARACTERS",
    "batch_of_renewal_of_pause": "admission.pauses:Renewal.batch_size",
    "batch_of_unblocker": "admission.unblocker:Unblocker.batch_size",
    "blocked_keys": "inspect.store.limits:MAX_BLOCKED_KEYS",
    "blocked_rows": "inspect.store.limits:MAX_BLOCKED_ROWS",
    "bulk_batch": "inspect.bulk:BATCH_SIZE",
    "bulk_runs": "inspect.bulk_runs:MAX_RUNS",
    "bytes_of_clean_ups": "queue.clean_ups:MAX_VALUES_BYTES",
    "bytes_of_item_of_stream": "jobs.streams:MAX_ITEM_BYTES",
    "bytes_of_json_value": "jobs.payload:MAX_JSON_BYTES",
    "calendar_fires": "inspect.calendar:MAX_FIRES",
    "calendar_seconds": "inspect.calendar:MAX_SECONDS",
    "capacity_of_result_buffer": "worker.result_buffer:ResultBuffer.capacity",
    "class_of_advisory_locks": "queue.locks:LOCK_CLASS",
    "cleanup_interval_of_unblocker_s": "admission.unblocker:Unblocker.cleanup_interval_s",
    "connections_of_scheduler": "scheduler.scheduler:Connections",
    "consequence_generations": "queue.consequences:MAX_GENERATIONS",
    "copied_jobs": "queue.writer:MIN_COPY_JOBS",
    "count_of_expiring": "inspect.store.inspections:InspectionRepository.expiring",
    "counted_fire_times": "triggers.missed:MAX_COUNT",
    "counted_limits": "admission.admission:MAX_COUNTED_LIMITS",
    "crashing_poll_interval_s": "testing.worker:POLL_INTERVAL_S",
    "dashboard_cache": "dashboard.app:Cache",
    "dashboard_cache_slowdown": "dashboard.cache:SLOWDOWN",
    "dashboard_read_settings": "dashboard.app:READ_SETTINGS",
    "default_timeout": "worker.attempt_runner:DEFAULT_TIMEOUT",
    "events_in_queue": "events.queues:MAX_QUEUED_EVENTS",
    "examined_rows": "queue.jobs:MAX_EXAMINED_ROWS",
    "examined_schedules": "inspect.store.schedules:MAX_EXAMINED",
    "expected_jobs_page": "testing.expected:PAGE_LENGTH",
    "export_is_stopping": "dashboard.export:is_stopping",
    "export_page": "dashboard.export:PAGE_LENGTH",
    "fast_poll_interval_of_pauses_s": "admission.pause_watcher:FAST_POLL_INTERVAL_S",
    "fire_time_search_wait_s": "schedules.own_thread:WAIT_S",
    "first_rows_of_search": "inspect.pages:FIRST_ROWS",
    "gap_of_batches_of_stream_s": "streams.attempt:BATCH_GAP_S",
    "grace_of_unclaimed_jobs_s": "admission.unblocker:Unblocker.unclaimed_grace_s",
    "history_age_s": "dashboard.pages.history:HISTORY_AGE_S",
    "history_search_s": "inspect.schedule_history:MAX_SEARCH_S",
    "import_of_commands": "cli.main:import_module",
    "index_progress": "cli.migrate:build_progress",
    "interval_of_deadline_scanner_s": "worker.overdue:DeadlineScanner.interval_s",
    "interval_of_statistics_s": "statistics.service:StatisticsWriter.interval_s",
    "items_of_batch_of_stream": "streams.attempt:BATCH_ITEMS",
    "items_of_stream": "streams.attempt:MAX_ITEMS",
    "job_counts_age_s": "dashboard.pages.jobs:COUNTS_AGE_S",
    "jobs_page": "dashboard.pages.jobs:PAGE_LENGTH",
    "late_report_timeout_ms": "schedules.planner:REPORT_TIMEOUT_MS",
    "live_seconds": "dashboard.live:MAX_SECONDS",
    "lock_report_delay_s": "database.lock_retries:REPORT_AFTER_S",
    "logged_refusals_of_vacuum": "worker.retention:MAX_REFUSALS",
    "metrics_connections": "telemetry.server:MAX_CONNECTIONS",
    "moved_rows": "inspect.store.limits:MAX_MOVED_ROWS",
    "overview_history_age_s": "dashboard.pages.overview:HISTORY_AGE_S",
    "page_of_broadcast": "steps.signals:BROADCAST_PAGE",
    "patience_of_renewal_of_pause_s": "admission.pauses:Renewal.patience_s",
    "pause_before_run_here": "cli.worker.here:pause_of",
    "pause_of_locked_consequences_s": "queue.consequences:LOCKED_PAUSE_S",
    "pause_of_refused_claims_s": "worker.refused_claims:REFUSED_PAUSE_S",
    "pause_of_refused_names_s": "worker.refused_claims:NAME_PAUSE_S",
    "pause_of_refused_outcomes_s": "worker.completer:REFUSED_PAUSE_S",
    "pause_of_refused_rows_s": "database.refused_rows:REFUSED_PAUSE_S",
    "planned_rows": "schedules.planner:MAX_ROWS",
    "poll_interval_of_lease_keeper_s": "worker.keeper:LeaseKeeper.poll_interval_s",
    "poll_interval_of_planner_s": "schedules.planner:POLL_INTERVAL_S",
    "prepared_jobs": "queue.bulk:PREPARE_BATCH",
    "probe_timeout_of_listener_s": "worker.notifications:Listener.probe_timeout_s",
    "progress_gap_s": "worker.progress_writer:GAP_S",
    "progress_line_interval_s": "cli.progress:LINE_INTERVAL_S",
    "progress_look_interval_s": "cli.progress:LOOK_INTERVAL_S",
    "refused_claims": "worker.refused_claims:MAX_JOBS",
    "refused_rows": "database.refused_rows:MAX_REFUSALS",
    "registered_names": "tools:registered_names",
    "report_delay_of_blocked_loop_s": "worker.watchdog:LoopWatchdog.blocked_after_s",
    "report_delay_of_unwritten_outcomes_s": "worker.completer:Completer.report_after_s",
    "restart_of_leases": "worker.worker_rows:WorkerRepository.restart_leases",
    "rounds_of_unique_keys": "queue.unique_keys:MAX_ROUNDS",
    "scan_interval_of_sequencer_s": "admission.sequencer:Sequencer.scan_interval_s",
    "scan_interval_of_unblocker_s": "admission.unblocker:Unblocker.scan_interval_s",
    "schedules_page": "dashboard.pages.schedules:PAGE_LENGTH",
    "shared_lock_timeout_ms": "database.statements:SHARED_LOCK_TIMEOUT_MS",
    "shown_error_groups": "dashboard.pages.errors:MAX_GROUPS",
    "shown_lock_age_s": "inspect.store.inspections:MIN_LOCK_S",
    "signal_bytes": "steps.signals:MAX_STEP_BYTES",
    "signals_of_job": "steps.signals:MAX_STEPS",
    "size_of_broadcast": "steps.signals:BROADCAST_SIZE",
    "statistics_batch": "inspect.store.statistics:SUM_SIZE",
    "statistics_of_explanation": "inspect.store.inspections:MAX_STATISTICS",
    "statistics_rows": "inspect.statistics:MAX_STATISTICS_ROWS",
    "step_bytes": "steps.loaded:MAX_STEP_BYTES",
    "steps_of_job": "steps.loaded:MAX_STEPS",
    "store_of_scheduler": "scheduler.scheduler:Store",
    "stream_first_interval_s": "streams.readers:FIRST_INTERVAL_S",
    "summed_rows": "inspect.statistics:MAX_SUMMED_ROWS",
    "supervisor_time": "cli.worker.supervisor:time.monotonic",
    "tenants": "inspect.shares:MAX_TENANTS",
    "thread_idle_s": "worker.runners.thread:IDLE_S",
    "timeout_of_subscriber_s": "scheduler.events:SUBSCRIBER_TIMEOUT_S",
    "unfinished_rows": "inspect.jobs:MAX_UNFINISHED_ROWS",
    "unsuccessful_rows": "inspect.jobs:MAX_UNSUCCESSFUL_ROWS",
    "wait_look_interval_s": "steps.waits:LOOK_INTERVAL_S",
    "waiting_outcomes": "worker.late_outcomes:MAX_WAITING",
    "waiting_rows": "inspect.store.limits:MAX_WAITING_ROWS",
}
"""The numbers, clocks and functions of the engine that tests replace or compare with, by their names here."""


def internal_setting(name: str) -> Any:
    """Return the value of an entry of `PLACES`."""
    owner, attribute = place(name)
    return getattr(owner, attribute)


def replace(patch: pytest.MonkeyPatch, **values: Any) -> None:
    """Replace bounds, intervals, clocks and functions of the package until the end of the test.

    Example::

        inside.replace(monkeypatch, backlog_rows=4, blocked_rows=4)
    """
    for name, value in values.items():
        owner, attribute = place(name)
        patch.setattr(owner, attribute, value)


def place(name: str) -> tuple[object, str]:
    """Return the module or class of an entry of `PLACES`, and the name of the attribute."""
    module_name, _, path = PLACES[name].partition(":")
    owner_path, _, attribute = path.rpartition(".")
    module = import_module(f"pg_scheduler.{module_name}")
    return (attrgetter(owner_path)(module) if owner_path else module), attribute


# The command line and the dashboard, which few tests import


def dashboard_files() -> Mapping[str, StaticFile]:
    """Return the style sheets, scripts and images of the dashboard."""
    from pg_scheduler.dashboard.rendering import static_files

    return static_files()


def dashboard_pages() -> Mapping[str, Page]:
    """Return the pages of the dashboard by path."""
    from pg_scheduler.dashboard.pages import PAGES

    return PAGES


def dashboard_streams() -> Iterable[str]:
    """Return the paths at which the dashboard sends events."""
    from pg_scheduler.dashboard.app import STREAMS

    return STREAMS


def hide_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command line find none of the libraries that are optional."""
    monkeypatch.setattr(errors, "find_spec", lambda _name: None)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command in this process, and return its exit code."""
    from pg_scheduler.cli.main import run

    return run(arguments)
