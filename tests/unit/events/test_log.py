"""The log: level, message and fields of every event, and the records of an outage."""

from __future__ import annotations

import ast
import json
import logging
import os
import platform
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import events
from pg_scheduler.errors import (
    ConnectionLostError,
    ConnectionRejectedError,
    DatabaseUnavailableError,
    SchemaMissingError,
)
from pg_scheduler.events import (
    Event,
    EventBus,
    JobCompleted,
    JobFailed,
    PassFinished,
    ServiceFaulted,
    ServiceRetrying,
    WorkerStarted,
    log,
)
from pg_scheduler.events.log import EventLog, record_fields
from pg_scheduler.events.types import LEVELS
from tests.support.source import parsed

OUTAGE = "claimer: database unavailable, retry in 62 ms: DatabaseUnavailableError: connection refused"
WAITING = "claimer: waits for a lock of another transaction, retry in 62 ms"
LOCK_WAIT = f"{WAITING}: DatabaseUnavailableError: a table is locked"


def lock_wait() -> DatabaseUnavailableError:
    """Return the error of a statement that has met the lock of a table, as two layers have wrapped it."""
    statement = DatabaseUnavailableError("lock timeout")
    statement.__cause__ = asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
    error = DatabaseUnavailableError("a table is locked")
    error.__cause__ = statement
    return error


ATTEMPT = ("7f3a", "mail.send", 2)
STUCK = "its thread runs on after its timeout or cancellation"
JOB = "job mail.send (id 7f3a, attempt 2)"
FIELDS = {"job_id": "7f3a", "job_name": "mail.send", "attempt": 2}
DUE = datetime(2030, 1, 1, 9, 30, tzinfo=UTC)
UNAVAILABLE = DatabaseUnavailableError("connection refused")

RECORDS: list[tuple[Event, str, str, dict[str, object]]] = [
    (WorkerStarted("w9", "node1", 42), "INFO", "worker w9 started on node1, pid 42", {"worker_id": "w9"}),
    (events.WorkerStopped("w9"), "INFO", "worker w9 stopped", {"worker_id": "w9"}),
    (
        events.JobScheduled("7f3a", "mail.send", 0, execution_time=DUE),
        "DEBUG",
        "job mail.send (id 7f3a) scheduled for 2030-01-01 09:30:00.000+00:00",
        FIELDS | {"attempt": 0},
    ),
    (
        events.EventsDropped(7, "app.alert"),
        "WARNING",
        "event subscriber app.alert is 1,000 events behind; its oldest events are dropped",
        {},
    ),
    (
        events.EventsMissed(DUE),
        "WARNING",
        "events of other nodes may be lost since 2030-01-01 09:30:00.000+00:00",
        {},
    ),
    (
        events.JobStarted(*ATTEMPT, execution_time=DUE),
        "DEBUG",
        f"{JOB} started, due at 2030-01-01 09:30:00.000+00:00",
        FIELDS,
    ),
    (
        events.JobBlocked(*ATTEMPT, blocked_on="limit:stripe:17"),
        "DEBUG",
        f"{JOB} waits: blocked on limit:stripe:17",
        FIELDS,
    ),
    (JobCompleted(*ATTEMPT), "DEBUG", f"{JOB} completed", FIELDS),
    (JobFailed(*ATTEMPT, error="ValueError: no"), "ERROR", f"{JOB} failed, no retry: ValueError: no", FIELDS),
    (
        events.JobRetried(*ATTEMPT, error="ValueError: no", delay=timedelta(seconds=4)),
        "WARNING",
        f"{JOB} failed, retry in 4.0 s: ValueError: no",
        FIELDS,
    ),
    (
        events.JobSnoozed(*ATTEMPT, delay=timedelta(seconds=4)),
        "INFO",
        f"{JOB} snoozed, next attempt in 4.0 s",
        FIELDS,
    ),
    (
        events.JobSuspended(*ATTEMPT, step="trial", kind="sleep", until=DUE),
        "INFO",
        f"{JOB} suspended by the sleep trial until 2030-01-01 09:30:00.000+00:00",
        FIELDS,
    ),
    (
        events.JobSuspended(*ATTEMPT, step="approval", kind="signal", until=datetime(9999, 1, 1, tzinfo=UTC)),
        "INFO",
        f"{JOB} suspended by the signal approval, without a timeout",
        FIELDS,
    ),
    (
        events.JobProgressed(*ATTEMPT, done=1.5, total=4.0, note="half"),
        "DEBUG",
        f"{JOB} reported progress: done 1.5, total 4.0",
        FIELDS,
    ),
    (events.JobPublished(*ATTEMPT), "DEBUG", f"{JOB} has published values or items", FIELDS),
    (
        events.JobReleased(*ATTEMPT),
        "WARNING",
        f"{JOB} interrupted and released, attempt not counted",
        FIELDS,
    ),
    (
        events.JobCancelled(*ATTEMPT, reason="cancelled by a caller"),
        "INFO",
        f"{JOB} cancelled: cancelled by a caller",
        FIELDS,
    ),
    (
        events.JobDeadlineExceeded(*ATTEMPT, error="DeadlineExceededError: too late"),
        "ERROR",
        f"{JOB} passed its deadline, no retry: DeadlineExceededError: too late",
        FIELDS,
    ),
    (
        events.JobExpired(*ATTEMPT),
        "WARNING",
        f"{JOB} expired: not started within its misfire grace time",
        FIELDS,
    ),
    (
        events.JobLost(*ATTEMPT),
        "WARNING",
        f"{JOB} lost: claimed by another worker or changed manually, result not recorded",
        FIELDS,
    ),
    (
        events.TaskPaused("mail.send", None, None, "ops"),
        "INFO",
        "task mail.send paused by ops",
        {},
    ),
    (
        events.TaskPaused("mail.send", DUE, "no server", "ops"),
        "INFO",
        "task mail.send paused by ops until 2030-01-01 09:30:00.000+00:00: no server",
        {},
    ),
    (events.TaskResumed("mail.send", "ops"), "INFO", "task mail.send resumed by ops", {}),
    (events.TaskResumed("mail.send", None), "INFO", "task mail.send resumed, its pause has ended", {}),
    (
        events.LeaseLost("w9"),
        "ERROR",
        "worker w9 lost its lease, its running jobs are cancelled",
        {"worker_id": "w9"},
    ),
    (events.KeeperConnected(has_lock=True), "DEBUG", "lease keeper connected, liveness lock held", {}),
    (
        events.KeeperConnected(has_lock=False),
        "DEBUG",
        "lease keeper connected, no liveness lock behind a pooler",
        {},
    ),
    (events.KeeperLost("refused"), "WARNING", "lease keeper not connected: refused", {}),
    (
        events.ThreadAbandoned(*ATTEMPT, stack="line 1", has_slot=False),
        "WARNING",
        f"{JOB}: {STUCK}, its slot is free for another job, at\nline 1",
        FIELDS,
    ),
    (
        events.ThreadAbandoned(*ATTEMPT, stack="line 1\nline 2"),
        "WARNING",
        f"{JOB}: {STUCK}, at\nline 1\nline 2",
        FIELDS,
    ),
    (
        events.LoopBlocked("7f3a", "mail.send", 12.34, stack="line 1\nline 2"),
        "WARNING",
        "event loop was blocked for 12.3 s by job mail.send (id 7f3a)",
        {"job_id": "7f3a", "job_name": "mail.send"},
    ),
    (
        events.OutcomesDelayed("7f3a", "mail.send", 2, 5.0, ("pid 7, application 'psql'", "pid 8"), 12),
        "WARNING",
        (
            "outcome of job mail.send (id 7f3a, attempt 2) not written for 5.0 s, because a row is locked: "
            "pid 7, application 'psql', pid 8; end that transaction (outcomes that wait: 12)"
        ),
        {"job_id": "7f3a", "job_name": "mail.send", "attempt": 2},
    ),
    (
        events.OutcomeRefused(
            "7f3a", "mail.send", 2, error="RaiseError: no", effect="the job failed instead"
        ),
        "ERROR",
        (
            "outcome of job mail.send (id 7f3a, attempt 2) refused by the table, the job failed instead: "
            "RaiseError: no"
        ),
        {"job_id": "7f3a", "job_name": "mail.send", "attempt": 2},
    ),
    (
        events.OutcomesDelayed("7f3a", "mail.send", 2, 5.0, (), 1),
        "WARNING",
        (
            "outcome of job mail.send (id 7f3a, attempt 2) not written for 5.0 s, because a row is locked; "
            "see pg_locks (outcomes that wait: 1)"
        ),
        {"job_id": "7f3a", "job_name": "mail.send", "attempt": 2},
    ),
    (
        events.LoopBlocked(None, None, 1.0, stack=""),
        "WARNING",
        "event loop was blocked for 1.0 s, not by a job",
        {},
    ),
    (
        events.LoopBlocked(None, "mail.send", 1.0, stack=""),
        "WARNING",
        "event loop was blocked for 1.0 s by a chunk of jobs mail.send",
        {"job_name": "mail.send"},
    ),
    (
        events.JobsReclaimed((), ("w1", "w2")),
        "WARNING",
        "dead workers w1, w2 removed, which ran no job",
        {},
    ),
    (
        events.JobsReclaimed(("a", "b"), ("w1", "w2")),
        "WARNING",
        "jobs of dead workers w1, w2 reclaimed: a, b",
        {},
    ),
    (
        events.JobsReclaimed(tuple(map(str, range(12))), ()),
        "WARNING",
        "jobs without an owner reclaimed after a lost response: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2 more",
        {},
    ),
    (
        events.UnregisteredName("sned", 2, DUE, "send"),
        "WARNING",
        (
            "pending jobs reference the function sned, which is not registered here "
            "(2, due since 2030-01-01 09:30:00.000+00:00); start a worker that registers it, "
            "or cancel the jobs; did you mean send?"
        ),
        {"job_name": "sned"},
    ),
    (
        events.UnregisteredName("a\nb", 2, DUE, None, more_names=3),
        "WARNING",
        (
            "pending jobs reference the function 'a\\nb', which is not registered here "
            "(2, due since 2030-01-01 09:30:00.000+00:00); start a worker that registers it, "
            "or cancel the jobs (3 more such names)"
        ),
        {"job_name": "a\nb"},
    ),
    (
        events.UnregisteredName("send", 2, DUE, None, namesakes=("letters.send", "mail.send")),
        "WARNING",
        (
            "pending jobs reference the function send, which is not registered here "
            "(2, due since 2030-01-01 09:30:00.000+00:00); several functions here have this name "
            "(letters.send, mail.send); pass it to one of them by aliases="
        ),
        {"job_name": "send"},
    ),
    (
        events.UnregisteredName("sned", 2, DUE, None, busy_workers=1),
        "INFO",
        (
            "pending jobs reference the function sned, which is not registered here "
            "(2, due since 2030-01-01 09:30:00.000+00:00); it may be registered on workers without a free "
            "slot (1)"
        ),
        {"job_name": "sned"},
    ),
    (
        events.JobsVacuumed(completed=4, failed=3, cancelled=2, expired=1),
        "INFO",
        "deleted jobs: 4 completed, 3 failed, 2 cancelled, 1 expired",
        {},
    ),
    (
        events.PeriodicJobPlanned("nightly", "7f3a", next_fire_at=DUE, task_name="shop.report"),
        "DEBUG",
        "schedule nightly of shop.report: job 7f3a enqueued, next fire time 2030-01-01 09:30:00.000+00:00",
        {"job_id": "7f3a"},
    ),
    (
        events.PeriodicJobBroken("nightly", ValueError("no cron"), task_name="shop.report"),
        "ERROR",
        (
            "schedule nightly of shop.report cannot be planned and is paused, correct and resume it: "
            "ValueError: no cron"
        ),
        {},
    ),
    (
        events.ScheduleBroken("nightly", ValueError("no cron"), task_name="shop.report"),
        "ERROR",
        (
            "schedule nightly of shop.report cannot be planned and is paused, correct and resume it: "
            "ValueError: no cron"
        ),
        {},
    ),
    (
        events.ScheduleFired("nightly", "7f3a", next_fire_at=None, task_name="shop.report"),
        "DEBUG",
        "schedule nightly of shop.report: job 7f3a enqueued, next fire time None",
        {"job_id": "7f3a"},
    ),
    (
        events.ScheduleAdded("nightly", task_name="shop.report"),
        "INFO",
        "schedule nightly of shop.report added",
        {},
    ),
    (
        events.ScheduleUpdated("nightly", task_name="shop.report"),
        "INFO",
        "schedule nightly of shop.report updated",
        {},
    ),
    (
        events.ScheduleRemoved("nightly", task_name="shop.report"),
        "INFO",
        "schedule nightly of shop.report removed",
        {},
    ),
    (
        events.SchedulePaused("nightly", "holidays", task_name="shop.report"),
        "INFO",
        "schedule nightly of shop.report paused: holidays",
        {},
    ),
    (
        events.SchedulePaused("nightly", "holidays", DUE, task_name="shop.report"),
        "INFO",
        "schedule nightly of shop.report paused until 2030-01-01 09:30:00.000+00:00: holidays",
        {},
    ),
    (
        events.ScheduleResumed("nightly", task_name="shop.report"),
        "INFO",
        "schedule nightly of shop.report resumed",
        {},
    ),
    (
        events.ScheduleSkipped("nightly", 2, "7f3a", task_name="shop.report"),
        "INFO",
        "schedule nightly of shop.report: 2 fire times dropped, job 7f3a is unfinished",
        {},
    ),
    (
        events.ScheduleSkipped("nightly", 1, "7f3a", task_name="shop.report"),
        "INFO",
        "schedule nightly of shop.report: 1 fire time dropped, job 7f3a is unfinished",
        {},
    ),
    (
        events.ScheduleMissed("nightly", 1, is_exact=True, task_name="shop.report"),
        "WARNING",
        "schedule nightly of shop.report missed 1 fire time",
        {},
    ),
    (
        events.ScheduleMissed("nightly", 3, is_exact=True, task_name="shop.report"),
        "WARNING",
        "schedule nightly of shop.report missed 3 fire times",
        {},
    ),
    (
        events.ScheduleFinished("nightly", task_name="shop.report"),
        "INFO",
        "schedule nightly of shop.report finished: no further fire time",
        {},
    ),
    (events.ListenerConnected("jobs"), "DEBUG", "listener connected, channel jobs", {}),
    (
        events.ListenerLost("the connection ended"),
        "WARNING",
        "listener not connected: the connection ended",
        {},
    ),
    (PassFinished("claimer", 0.0031, 1.5), "DEBUG", "claimer: pass took 3 ms, next pass in 1.5 s", {}),
    (
        PassFinished("claimer", 0.1, float("inf")),
        "DEBUG",
        "claimer: pass took 100 ms, next pass when notified",
        {},
    ),
    (
        ServiceRetrying("claimer", UNAVAILABLE, next_in=0.062),
        "WARNING",
        "claimer: database unavailable, retry in 62 ms: DatabaseUnavailableError: connection refused",
        {},
    ),
    (
        ServiceRetrying("notifier", UNAVAILABLE, next_in=float("inf")),
        "WARNING",
        "notifier: database unavailable, no retry: DatabaseUnavailableError: connection refused",
        {},
    ),
    (
        ServiceRetrying("claimer", ConnectionLostError("terminated"), next_in=0.062),
        "WARNING",
        "claimer: connection lost, retry in 62 ms: ConnectionLostError: terminated",
        {},
    ),
    (
        ServiceRetrying("claimer", lock_wait(), next_in=0.062, holders=("pid 7",)),
        "WARNING",
        f"{LOCK_WAIT}; the strongest locks on the tables are those of pid 7; end that transaction",
        {},
    ),
    (
        ServiceRetrying("claimer", lock_wait(), next_in=0.062),
        "WARNING",
        f"{LOCK_WAIT}; see pg_locks, and end that transaction",
        {},
    ),
    (
        ServiceRetrying("claimer", UNAVAILABLE, next_in=0.062, holders=("pid 7",)),
        "WARNING",
        f"{OUTAGE}; the strongest locks on the tables are those of pid 7",
        {},
    ),
    (
        ServiceFaulted("claimer", KeyError("a bug")),
        "CRITICAL",
        "claimer failed, the Scheduler shuts down: KeyError: 'a bug'",
        {},
    ),
]


@pytest.mark.parametrize(("event", "level", "message", "fields"), RECORDS)
def test_log_writes_one_record_per_event_with_level_message_and_fields(
    event: Event, level: str, message: str, fields: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pg_scheduler")
    EventLog(lambda: "w1")(event)
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("pg_scheduler", level, message)
    expected = record_fields(event_type=type(event).__name__, worker_id="w1") | fields
    assert {name: vars(record)[name] for name in expected} == expected


def test_structlog_keeps_the_message_of_a_record_and_adds_its_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    structlog = pytest.importorskip("structlog")
    stdlib = structlog.stdlib
    formatter = stdlib.ProcessorFormatter(
        foreign_pre_chain=[stdlib.add_log_level, stdlib.ExtraAdder()],
        processors=[stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
    )
    EventLog(lambda: "w1")(events.JobExpired("a", "app.work", 0))
    (record,) = caplog.records
    fields = record_fields(
        event_type="JobExpired", job_id="a", job_name="app.work", attempt=0, worker_id="w1"
    )
    written = json.loads(formatter.format(record))
    assert written["event"] == record.getMessage()
    assert {name: written[name] for name in fields} == fields


def test_every_public_event_has_a_level_and_a_tested_message() -> None:
    public = {getattr(events, name) for name in events.__all__}
    concrete = {
        kind
        for kind in public - {Event, events.JobEvent, events.ScheduleEvent}
        if isinstance(kind, type) and issubclass(kind, Event)
    }
    assert set(LEVELS) == concrete == {type(event) for event, *_ in RECORDS}


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        (logging.DEBUG, {JobCompleted, JobFailed, WorkerStarted}),
        (logging.INFO, {JobFailed, WorkerStarted}),
        (logging.ERROR, {JobFailed}),
    ],
)
def test_log_wants_an_event_only_when_its_level_is_enabled(
    level: int, wanted: set[type[Event]], caplog: pytest.LogCaptureFixture
) -> None:
    bus = EventBus(EventLog())
    caplog.set_level(level, "pg_scheduler")
    assert {kind for kind in (JobCompleted, JobFailed, WorkerStarted) if bus.wants(kind)} == wanted


@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_log_writes_nothing_when_the_level_is_disabled(level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(level, "pg_scheduler")
    EventLog()(JobCompleted(*ATTEMPT))
    assert caplog.records == []


def test_log_message_stays_on_one_line_when_a_value_has_line_breaks(caplog: pytest.LogCaptureFixture) -> None:
    EventLog()(JobFailed("a\nb", "größe", 1, error="ValueError: 1\n2\ud800"))
    (record,) = caplog.records
    assert (
        record.getMessage() == r"job größe (id 'a\nb', attempt 1) failed, no retry: 'ValueError: 1\n2\ud800'"
    )
    assert vars(record)["job_id"] == "a\nb"


def test_log_message_shows_percent_signs_in_values_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    EventLog()(JobFailed("100%(x)s", "%d", 1, error="50 %"))
    assert caplog.records[0].getMessage() == "job %d (id 100%(x)s, attempt 1) failed, no retry: 50 %"


def test_log_includes_the_traceback_of_a_job_that_raised(caplog: pytest.LogCaptureFixture) -> None:
    try:
        int("deep down")
    except ValueError as error:
        EventLog()(JobFailed(*ATTEMPT, error="ValueError: no", exception=error))
    (record,) = caplog.records
    assert "in test_log_includes_the_traceback" in (record.exc_text or "")


def test_log_writes_the_recorded_error_when_str_of_the_exception_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise LookupError

    EventLog()(JobFailed(*ATTEMPT, error="Unprintable", exception=Unprintable()))
    assert caplog.records[0].getMessage() == f"{JOB} failed, no retry: Unprintable"


def test_log_includes_the_traceback_of_a_service_error(caplog: pytest.LogCaptureFixture) -> None:
    error = OSError("gone")
    EventLog()(ServiceFaulted("claimer", error))
    EventLog()(ServiceRetrying("claimer", error, next_in=1.0))
    assert [record.levelname for record in caplog.records] == ["CRITICAL", "WARNING"]
    assert all(record.exc_info and record.exc_info[1] is error for record in caplog.records)


def test_log_reports_an_error_of_all_services_once_until_the_worker_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    write = EventLog()
    for _ in range(2):
        write(ServiceFaulted("claimer", SchemaMissingError("one table is missing")))
        write(ServiceFaulted("completer", SchemaMissingError("another table too")))
        write(ServiceFaulted("planner", KeyError("one bug")))
        write(ServiceFaulted("rescuer", KeyError("another bug")))
        write(events.WorkerStopped("w"))
    services = [record.getMessage().partition(" failed")[0] for record in caplog.records]
    assert services == ["claimer", "planner", "rescuer"] * 2


LOGGING = {"debug", "info", "warning", "error", "critical", "exception", "log"}


def logger_calls(module: Path) -> Iterator[ast.Call]:
    """The calls of logging methods in a module, direct or in a ``partial``."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Call):
            first = node.args[:1] if ast.unparse(node.func) == "partial" else [node.func]
            if first and re.fullmatch(rf"logger\.({'|'.join(LOGGING)})", ast.unparse(first[0])):
                yield node


def test_every_log_record_of_the_package_has_the_fields() -> None:
    package = Path(log.__file__).parents[1]
    own = [
        each for each in package.rglob("*.py") if each.parent.name != "demo"
    ]  # an application, with its logger
    calls = [(module.name, call) for module in own for call in logger_calls(module)]
    assert len(calls) >= 7
    for name, call in calls:
        extra = [ast.unparse(each.value) for each in call.keywords if each.arg == "extra"]
        assert len(extra) == 1, f"{name}:{call.lineno}"
        assert re.match(r"record_fields\(|event_fields\(|extra$", extra[0]), f"{name}:{call.lineno}"


# -- outages -------------------------------------------------------------------------------------------


class Seconds:
    """A monotonic clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def log_with(clock: Callable[[], float]) -> EventLog:
    return EventLog(monotonic=clock)


def retrying(service: str) -> ServiceRetrying:
    return ServiceRetrying(service, OSError("unreachable"), next_in=1.0)


def passed(service: str) -> PassFinished:
    return PassFinished(service, 0.1, 1.0)


def rejected(service: str) -> ServiceRetrying:
    return ServiceRetrying(service, ConnectionRejectedError("no such role"), next_in=1.0)


def test_log_reports_rejected_connections_once_at_error_and_then_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Seconds()
    write = EventLog(lambda: "w1", clock)
    caplog.set_level(logging.INFO, "pg_scheduler")
    write(retrying("claimer"))  # the server restarts first
    for _ in range(12):
        for service in ("claimer", "heartbeat"):
            write(rejected(service))
        clock.now += 10
    records = [(record.levelname, record.getMessage()) for record in caplog.records[1:]]
    message = "connection rejected, retry in 1.0 s: ConnectionRejectedError: no such role"
    assert records == [("ERROR", f"claimer: {message}"), ("WARNING", f"claimer: {message}")]
    assert [bool(record.exc_info) for record in caplog.records] == [True, True, False]


def test_log_reports_an_outage_once_per_service_and_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = Seconds()
    write = EventLog(lambda: "w1", clock)
    caplog.set_level(logging.INFO, "pg_scheduler")
    for service in ("claimer", "claimer", "heartbeat", "claimer", "heartbeat"):
        write(retrying(service))
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(":")[0] for message in messages] == ["claimer", "heartbeat"]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]
    caplog.clear()
    clock.now += 40.26
    write(passed("planner"))  # it may not have queried the database
    write(passed("claimer"))
    assert not caplog.records
    write(passed("heartbeat"))
    write(passed("claimer"))
    (end,) = caplog.records
    assert end.levelname == "WARNING"
    assert end.getMessage() == "database available again after 40.3 s; all services resumed"
    assert (vars(end)["event_type"], vars(end)["worker_id"]) == (None, "w1")
    write(retrying("claimer"))
    assert caplog.records[-1].exc_info


def test_log_reports_one_retry_every_ten_seconds_during_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    clock = Seconds()
    write = log_with(clock)
    caplog.set_level(logging.INFO, "pg_scheduler")
    for _ in range(40):
        write(retrying("claimer"))
        write(retrying("heartbeat"))
        clock.now += 1
    assert [record.exc_info is not None for record in caplog.records] == [True, *[False] * 4]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_log_writes_the_other_retries_of_an_outage_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    write = log_with(Seconds())
    caplog.set_level(logging.DEBUG, "pg_scheduler")
    write(retrying("claimer"))
    write(retrying("claimer"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG"]


def test_log_does_not_report_the_end_of_an_outage_after_the_worker_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    write = log_with(Seconds())
    write(retrying("claimer"))
    write(events.WorkerStopped("w"))
    write(passed("claimer"))
    assert len(caplog.records) == 1


def test_worker_started_record_contains_host_and_process() -> None:
    event = WorkerStarted("w")
    assert (event.hostname, event.pid) == (platform.node(), os.getpid())


def test_log_escapes_lone_surrogates_in_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "log"
    handler, logger = logging.FileHandler(path, encoding="utf-8"), logging.getLogger("pg_scheduler")
    logger.addHandler(handler)
    error = ValueError("file \udcff")
    error.__cause__ = KeyError("é")
    EventLog()(JobFailed(*ATTEMPT, error="ValueError", exception=error))
    logger.removeHandler(handler)
    handler.close()
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"{JOB} failed, no retry: ValueError\n")
    assert "KeyError: 'é'\n" in text
    assert text.endswith("\nValueError: file \\udcff\n")
