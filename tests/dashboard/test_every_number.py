"""Every number of every page, on a database that exceeds every bound: it is true, or has a plus."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg
import pytest

import pg_scheduler
from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.queue.prepare import new_job_id
from pg_scheduler.schedules.timing import job_id_prefix
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, Page, request
from tests.support.inside import dashboard_pages, dashboard_streams, fingerprint_of
from tests.support.world import DAY, HOUR, MINUTE, World

SOURCE: Final = Path(pg_scheduler.__file__).parent

BOOM: Final = fingerprint_of("number.broken", "Boom: no")

BOUNDS: Final[dict[str, int]] = {
    "inspect.store.inspections.MAX_BACKLOG_ROWS": 12,
    "inspect.store.limits.MAX_BLOCKED_ROWS": 9,
    "inspect.store.limits.MAX_STARTS": 4,
    "inspect.limits.MAX_STARTS": 4,
    "inspect.store.limits.MAX_WAITING_ROWS": 12,
    "inspect.store.limits.MAX_MOVED_ROWS": 6,
    "inspect.limits.MAX_LIMITS": 3,
    "inspect.limits.MAX_KEYS": 3,
    "inspect.shares.MAX_TENANTS": 2,
    "inspect.jobs.MAX_UNFINISHED_ROWS": 5,
    "inspect.jobs.MAX_UNSUCCESSFUL_ROWS": 5,
    "inspect.store.schedules.MAX_EXAMINED": 4,
    "dashboard.navigation.MAX_READ": 4,
    "dashboard.pages.workers.MAX_WORKERS": 3,
    "dashboard.context.MAX_DEAD": 2,
    "inspect.store.inspections.MAX_GROUPS": 2,
    "inspect.store.inspections.MAX_QUEUE_ROWS": 3,
    "inspect.store.limits.MAX_BLOCKED_KEYS": 2,
    "inspect.store.limits.MAX_LIMIT_KEYS": 2,
    "inspect.shares.MAX_ITEMS": 2,
    "inspect.statistics.MAX_STATISTICS_ROWS": 3,
    "inspect.statistics.MAX_SUMMED_ROWS": 3,
    "dashboard.pages.release.MAX_SUMMED_ROWS": 3,
    "inspect.store.workflows.MAX_OPEN": 4,
    "dashboard.pages.workflows.MAX_OPEN": 4,
    "inspect.store.workflows.MAX_COUNTED": 2,
    "dashboard.pages.workflows.MAX_COUNTED": 2,
    "inspect.store.workflows.MAX_CHILDREN": 5,
    "inspect.workflows.MAX_CHILDREN": 5,
    "inspect.dependencies.MAX_LINKED": 8,
    "inspect.dependencies.MAX_RECORDS": 2,
    "inspect.dependencies.MAX_CHANGED": 4,
    "inspect.store.errors.MAX_FRESH_ROWS": 2,
    "dashboard.pages.errors.MAX_GROUPS": 3,
    "dashboard.pages.overview.MAX_GROUPS": 3,
    "dashboard.pages.release.MAX_GROUPS": 3,
    "dashboard.pages.task.MAX_GROUPS": 3,
    "dashboard.pages.calendar.MAX_SCHEDULES": 8,
    "inspect.calendar.MAX_FIRES": 100,
    "dashboard.pages.calendar.MAX_FIRES": 100,
    "dashboard.pages.schedules.MAX_IN_DAY": 20,
    "dashboard.pages.schedules.MAX_AFFECTED": 20,
    "inspect.store.workers.MAX_WORKERS": 3,
    "inspect.job_facts.MAX_WORKERS": 3,
    "inspect.tasks.MAX_WORKERS": 3,
    "inspect.doctor.jobs.MAX_WORKERS": 3,
    "inspect.doctor.schedules.MAX_WORKERS": 3,
    "inspect.store.workers.MAX_UNSUCCESSFUL": 3,
    "inspect.workers.MAX_GENERATED": 3,
    "inspect.workers.MAX_FIRED": 2,
    "inspect.workers.MAX_SCHEDULES": 4,
    "dashboard.pages.worker.MAX_JOBS": 3,
    "inspect.store.doctor.MAX_UNSUCCESSFUL": 4,
    "inspect.store.doctor.MAX_QUARANTINED": 2,
    "inspect.store.doctor.MAX_SCHEDULES": 4,
}
"""Each bound of a number that a page shows, made small, in each module that uses it."""

UNSHOWN: Final[dict[str, tuple[str, ...]]] = {
    "the length of a text, or the size of a value": (
        "dashboard.access.MAX_ACTOR_LENGTH",
        "dashboard.actions.mutes.MAX_NOTE",
        "dashboard.actions.request.MAX_BODY_BYTES",
        "dashboard.job_rows.MAX_ARGUMENTS_LENGTH",
        "dashboard.job_rows.MAX_ERROR_LENGTH",
        "dashboard.json_tree.MAX_LENGTH",
        "dashboard.json_tree.MAX_TEXT_LENGTH",
        "dashboard.messages.MAX_LENGTH",
        "dashboard.messages.MAX_JOB",
        "dashboard.messages.MAX_UNDO",
        "dashboard.pages.audit.MAX_VALUE_LENGTH",
        "dashboard.pages.completion.MAX_TYPED",
        "dashboard.pages.completion.MAX_VALUE_LENGTH",
        "dashboard.pages.errors.MAX_VALUE",
        "dashboard.pages.find.MAX_LENGTH_DIFFERENCE",
        "dashboard.pages.find.MAX_NAME",
        "dashboard.pages.find.MAX_QUERY",
        "dashboard.pages.job.MAX_COMMAND_LENGTH",
        "dashboard.pages.job_forms.MAX_LENGTH",
        "dashboard.pages.schedule_form.MAX_ARGUMENTS",
        "dashboard.pages.tasks.MAX_QUERY",
        "dashboard.texts.MAX_DEPTH",
        "dashboard.texts.MAX_WORD",
        "inspect.audit.MAX_SUBJECT",
        "inspect.doctor.workers.MAX_VALUE_LENGTH",
        "inspect.positions.MAX_LENGTH",
        "inspect.search.words.MAX_LENGTH",
        "inspect.store.bulk.MAX_WORKER_ID_BYTES",
        "inspect.store.deploy.MAX_READ_BYTES",
        "inspect.store.doctor.MAX_TRIGGER_BYTES",
        "inspect.store.senders.MAX_VALUE_BYTES",
        "inspect.texts.MAX_LENGTH",
    ),
    "a time": (
        "dashboard.actions.mutes.MAX_DAYS",
        "dashboard.density.MAX_AGE_S",
        "dashboard.live.MAX_SECONDS",
        "dashboard.messages.MAX_AGE_S",
        "dashboard.pages.doctor.MAX_AGE_S",
        "dashboard.pages.workers.MAX_CLOCK_OFFSET_S",
        "inspect.explain.MAX_STANDBY_LAG_S",
        "inspect.job_actions.MAX_MOVE",
        "inspect.schedule_history.MAX_SEARCH_S",
        "inspect.schedules.MAX_SEARCH_S",
        "inspect.statistics.MAX_STATISTICS_AGE",
    ),
    "what a request or a call may ask for; more is rejected": (
        "dashboard.actions.bulk.MAX_RATE",
        "dashboard.actions.request.MAX_FIELDS",
        "dashboard.actions.request.MAX_ROWS",
        "dashboard.actions.schedules.MAX_BACKFILL",
        "dashboard.switch.MAX_SOURCES",
        "dashboard.team_views.MAX_VIEWS",
        "inspect.audit.MAX_ID",
        "inspect.audit.MAX_PAGE_LENGTH",
        "inspect.bulk_runs.MAX_RUNS",
        "inspect.jobs.MAX_IDS",
        "inspect.jobs.MAX_PAGE_LENGTH",
        "inspect.pages.MAX_MILLISECONDS",
        "inspect.pages.MAX_ROWS",
        "inspect.schedules.MAX_PAGE_LENGTH",
        "inspect.schedules.MAX_ROWS",
        "inspect.search.conditions.MAX_INTEGER",
        "inspect.search.parser.MAX_NUMBER",
        "inspect.search.values.MAX_TERMS",
        "inspect.search.values.MAX_VALUES",
        "inspect.workers.MAX_WORKERS",
    ),
    "a number of a question before an action, which tests of the actions compare": (
        "dashboard.actions.bulk.MAX_COUNTED",
        "dashboard.actions.bulk.MAX_UNTYPED",
        "dashboard.actions.request.MAX_SHOWN",
        "inspect.store.workflows.MAX_FAMILY",
    ),
    "a resource of the process": (
        "dashboard.cache.MAX_ENTRIES",
        "dashboard.search_runs.MAX_RUNS",
        "inspect.store.connections.MAX_POOL_SIZE",
    ),
    "what is listed or drawn, without a number, or with the number of the others": (
        "dashboard.charts.MAX_LOG_TICKS",
        "dashboard.charts.MAX_TICKS",
        "dashboard.graph.MAX_COLUMNS",
        "dashboard.graph.MAX_ROWS",
        "dashboard.job_rows.MAX_TAGS",
        "dashboard.json_tree.MAX_ITEMS",
        "dashboard.lanes.MAX_BARS",
        "dashboard.lanes.MAX_LANES",
        "dashboard.pages.completion.MAX_COMPLETIONS",
        "dashboard.pages.completion.MAX_ELEMENTS",
        "dashboard.pages.completion.MAX_LEVELS",
        "dashboard.pages.completion.MAX_LISTED",
        "dashboard.pages.completion.MAX_MEANT",
        "dashboard.pages.completion.MAX_PATHS",
        "dashboard.pages.find.MAX_ACTIONS",
        "dashboard.pages.find.MAX_OF_KIND",
        "dashboard.pages.history.MAX_NAMES",
        "dashboard.pages.job.MAX_CHANGES",
        "dashboard.pages.job.MAX_LINKS",
        "dashboard.pages.job.MAX_TAGS",
        "dashboard.pages.job_context.MAX_RUNS",
        "dashboard.pages.jobs.MAX_PLACES",
        "dashboard.pages.limits.MAX_LINES",
        "dashboard.pages.limits.MAX_QUEUES",
        "dashboard.pages.overview.MAX_PROBLEMS",
        "dashboard.pages.overview.MAX_SCHEDULES",
        "dashboard.pages.overview_parts.MAX_RISE",
        "dashboard.pages.schedules.MAX_TICKS",
        "dashboard.pages.task.MAX_CHANGED",
        "dashboard.pages.task.MAX_SCHEDULES",
        "dashboard.pages.task.MAX_WORKERS",
        "dashboard.pages.workflows.MAX_EXAMINED",
        "dashboard.search_bar.MAX_MEANT",
        "dashboard.workflow.MAX_LISTED",
        "dashboard.workflow.MAX_NODES",
        "dashboard.workflow.MAX_SHOWN",
        "inspect.clock_changes.MAX_FIRES",
        "inspect.clock_changes.MAX_STEPS",
        "inspect.dependencies.MAX_BLOCKERS",
        "inspect.dependencies.MAX_EDGES",
        "inspect.errors.MAX_PARTS",
        "inspect.inspector.MAX_MIGRATIONS",
        "inspect.job_facts.MAX_HOLDERS",
        "inspect.limits.MAX_JOBS",
        "inspect.limits.MAX_SHOWN_KEYS",
        "inspect.store.inspections.MAX_LAST_ITEMS",
        "inspect.sequences.MAX_SEQUENCES",
        "inspect.store.limits.MAX_SEQUENCES",
        "dashboard.pages.limits.MAX_SEQUENCES",
        "inspect.schedule_history.MAX_SCHEDULES",
        "inspect.store.bulk_runs.MAX_EXAMINED_RUNS",
        "inspect.store.inspections.MAX_WAITS",
        "inspect.store.workflows.MAX_NAMES",
        "inspect.tasks.MAX_NAMES",
        "inspect.texts.MAX_LISTED",
        "inspect.timeline.MAX_KEPT",
        "inspect.timeline.MAX_SUSPENDED",
    ),
    "durations, of which a quantile or a sum is shown": (
        "inspect.job_facts.MAX_RECENT_ROWS",
        "inspect.store.inspections.MAX_STATISTICS",
    ),
    "a number of the command line only": (
        "inspect.audit.MAX_RECORDS",
        "inspect.cluster.MAX_NAMES",
        "inspect.cluster.MAX_RECORDS",
        "inspect.cluster.MAX_SCHEDULES",
        "inspect.cluster.MAX_UNSUCCESSFUL_ROWS",
        "inspect.deploy.MAX_GROUPS",
        "inspect.deploy.MAX_HINTS",
        "inspect.deploy.MAX_IDS",
        "inspect.deploy.MAX_PROBLEMS",
        "inspect.status.MAX_SENTENCES",
        "inspect.store.inspections.MAX_PARENTS",
    ),
    "which findings a check lists, each with its own numbers": (
        "inspect.doctor.jobs.MAX_RETRIED",
        "inspect.doctor.schedules.MAX_SECONDS",
        "inspect.doctor.workers.MAX_COMPARED",
        "inspect.doctor.workers.MAX_DRAINING",
        "inspect.doctor.workers.MAX_RECORDS",
        "inspect.doctor.workers.MAX_RESUMED",
        "inspect.store.doctor.MAX_DUE",
        "inspect.store.doctor.MAX_INDEXES",
        "inspect.store.doctor.MAX_OLDEST",
        "inspect.store.doctor.MAX_RUNNING",
        "inspect.store.doctor.MAX_SCHEDULES_RETURNED",
        "inspect.store.doctor.MAX_ZONED",
        "inspect.store.server.MAX_GROUPS",
        "inspect.store.server.MAX_HOLDERS",
        "inspect.store.server.MAX_LOCKING",
    ),
    "a number whose text names the bound": (
        "inspect.calendar.MAX_DAILY",
        "inspect.calendar.MAX_EACH",
        "inspect.calendar.MAX_SECONDS",
        "inspect.audit.MAX_ROWS",
        "inspect.store.bulk.MAX_RECORDED_BYTES",
        "inspect.store.doctor.MAX_STEPS",
    ),
    "a number that has no mark yet": (
        # The attempts of the last 15 minutes of a finding, in installations with 2,000 names in each minute.
        "inspect.store.doctor.MAX_STATISTICS",
        # The jobs that a worker runs, on the overview, behind 5,000 jobs of its priority that are due longer.
        "inspect.store.workers.MAX_DUE",
        # The releases that started in one slot of a chart, if they are more than 20.
        "dashboard.pages.history.MAX_RELEASES",
    ),
}
"""The other bounds, by what each of them bounds."""

SHOWN_ROWS: Final[dict[str, int]] = {
    "dashboard.pages.errors.SAMPLE": 3,
    "dashboard.pages.release.SHOWN_TASKS": 1,
    "dashboard.pages.calendar.SHOWN": 1,
    "dashboard.pages.audit.PAGE_LENGTH": 4,
}
"""How many rows pages show, made small, so that they state of how many these are."""


async def fill(world: World, scheduler: Scheduler) -> None:
    """Add more of everything than the bounds admit."""
    limits = [
        {
            "task": "number.limited",
            "name": name,
            "by_key": by_key,
            "max_running": 9,
            "max_starts": 9,
            "per_s": 9e9,
        }
        for name, by_key in (("bank", False), ("card", True), ("dove", False), ("east", False))
    ]
    shares = [
        {"task": task, "name": name}
        for task, name in (("number.shared", "exports"), ("number.flow", "films"), ("number.leaf", "gifts"))
    ]
    for number in range(5):
        await world.worker(
            f"w{number}",
            names=["number.limited", "number.shared"],
            lease=HOUR,
            settings={"limits": limits, "shares": shares},
        )
    running: dict[str, Any] = {"status": "running", "due": -2 * HOUR, "started": -MINUTE}
    await world.jobs(7, "number.limited", due=-HOUR)
    await world.jobs(7, "number.plain", due=-MINUTE)
    await world.jobs(7, "number.limited", job_id="run:{}".format, **running)
    await world.jobs(7, "number.plain", due=HOUR)
    await world.jobs(6, "number.limited", blocked_on="limit:bank:")
    await world.job("queued", "number.limited", blocked_on="limit:bank:", due=MINUTE)
    await world.jobs(8, "number.limited", blocked_on="limit:card:{}".format)
    await world.jobs(12, "number.shared", blocked_on=lambda n: f"share:exports:{n % 3}")
    await world.jobs(8, "number.shared", job_id="moved:{}".format, **running)
    for number in range(1, 9):
        await world.start("share:exports:0", f"moved:{number}", attempt=0, keep_s=1e9)
    for number in range(1, 7):
        await world.start("limit:bank:", f"run:{number}", keep_s=1e9)
        await world.start("limit:card:1", f"run:{number}", keep_s=1e9)
    for key in range(2, 5):
        await world.start(f"limit:card:{key}", "run:7", keep_s=1e9)
    await world.jobs(7, "number.plain", status="failed", error_message=lambda n: f"Error{chr(64 + n)}: no")
    for number in range(6):
        await scheduler.schedules.add("number.plain", Every(timedelta(hours=1)), schedule_id=f"s{number}")
    for number in range(3):
        await scheduler.schedules.add("number.plain", Every(MINUTE), schedule_id=f"f{number}")
    await world.audit("declare_dead", "gone{}".format, count=4, details={"count": 7})
    await add_failures(world)
    await add_fired_jobs(world)
    await add_workflows(world)
    await add_releases(world)
    await add_bulk_run(world)
    # No worker has added these failures to their group yet.
    await world.pool.execute(
        "INSERT INTO scheduler_failures (fingerprint, job_name, text, status, jobs, at, job_id)"
        " SELECT $1, 'number.broken', 'Boom: no', 'failed', 1, now(), concat('broken:', number)"
        " FROM generate_series(1, 5) AS number",
        BOOM,
    )
    await world.pool.execute("ANALYZE")


async def add_failures(world: World) -> None:
    """Add failures of one group, quarantined jobs, and attempts of a worker that completed."""
    await world.jobs(
        9,
        "number.broken",
        job_id="broken:{}".format,
        status="failed",
        worker_id="w1",
        started=-20 * MINUTE,
        ended=-10 * MINUTE,
        error_message="Boom: no",
    )
    await world.jobs(5, "number.crash", status="failed", error_message="quarantined: its worker died")
    await world.jobs(
        6,
        "number.limited",
        job_id=lambda _: new_job_id(),
        status="completed",
        worker_id="w1",
        started=-20 * MINUTE,
        ended=-10 * MINUTE,
    )


async def add_fired_jobs(world: World) -> None:
    """Add jobs of a schedule that has fired, which a worker has completed."""
    await world.pool.execute("UPDATE scheduler_schedules SET last_fire_at = now() WHERE schedule_id = 'f0'")
    await world.jobs(
        4,
        "number.limited",
        job_id=lambda n: f"{job_id_prefix('f0', 'api')}{n}",
        status="completed",
        worker_id="w1",
        started=-20 * MINUTE,
        ended=-10 * MINUTE,
    )


async def add_workflows(world: World) -> None:
    """Add jobs with steps, one with children, and one with jobs before and after it."""
    suspended = {"steps": 1, "suspended": {"attempt": 1, "kind": "signal"}}
    await world.jobs(6, "number.flow", job_id="flow:{}".format, attempt=1, due=DAY, options=suspended)
    for number in range(1, 7):
        await world.step(f"flow:{number}", "approval", "signal", ended=None, until=DAY)
    await world.step("flow:1", "part:{}".format, count=3)
    fan_options = {"steps": 1, "suspended": {"attempt": 1, "kind": "child"}}
    await world.job("fan", "number.flow", attempt=1, options=fan_options, blocked_on="after")
    for place, (name, count) in enumerate((("begin", 3), ("finish", 7))):
        ids = [f"{name}:{number}" for number in range(count)]
        begin = (place - 9) * MINUTE
        await world.step("fan", name, "child", value=ids, started=begin, ended=None, until=DAY)
        await world.jobs(count, "number.part", job_id=lambda n, ids=ids: ids[n - 1], status="completed")
    await world.job("hub", "number.plain", due=HOUR)
    await world.jobs(12, "number.leaf", job_id="leaf:{}".format, blocked_on="after")
    await world.job("sink", "number.leaf", blocked_on="after")
    for number in range(1, 13):
        await world.edge("hub", f"leaf:{number}")
    for number in range(1, 7):
        await world.edge(f"leaf:{number}", "sink")


async def add_releases(world: World) -> None:
    """Add two releases, with attempts before and after the start of the second."""
    starts = [-6 * HOUR, -2 * HOUR]
    await world.audit("start_release", "v{}".format, count=2, at=lambda n: starts[n - 1], via="worker")
    for number in range(5):
        await world.attempts(f"number.{number}", 9, at=-150 * MINUTE)
        await world.attempts(f"number.{number}", 9, at=-60 * MINUTE, failed=2)
    for number in range(5):
        await world.attempts("number.limited", 9, at=-(10 + number) * MINUTE, failed=2)


async def add_bulk_run(world: World) -> None:
    """Add a bulk run that has retried six jobs in as many batches, all of which failed again."""
    await world.pool.execute(
        "INSERT INTO scheduler_bulk_runs (run_id, jobs, created_at, created_by, begun, started_at, actor,"
        " phase, last_at, answered_at, batches, done, searched)"
        " VALUES ('bulk-1', $1, now(), 'ada', 1, now(), 'ada', 'complete', now(), now(), 6, 6, 6)",
        json.dumps({"verb": "retry", "where": "", "names": None, "rate": None, "to": None, "group": None}),
    )
    await world.audit(
        "retry_jobs",
        "bulk-1",
        count=6,
        at=lambda n: (n - 7) * MINUTE,
        details=lambda n: {"count": 1, "jobs": [f"broken:{n}"]},
    )


DUE = "status = 'pending' AND finished_at IS NULL AND blocked_on IS NULL AND execution_time <= now()"
BLOCKED = "blocked_on IS NOT NULL"
RUNNING = "status = 'running'"
SUSPENDING = "(options -> 'suspended') IS NOT NULL"
SCHEDULED = f"status = 'pending' AND blocked_on IS NULL AND execution_time > now() AND NOT {SUSPENDING}"
LIMITED = "coalesce(function, job_name) = 'number.limited'"


def jobs(*conditions: str) -> str:
    """Return the statement that counts jobs."""
    return f"SELECT count(*) FROM scheduled_jobs WHERE {' AND '.join(f'({each})' for each in conditions)}"


def moved(condition: str, key: str = "share:exports:%") -> str:
    """Return the statement that counts the jobs of a share that had their turn."""
    return (
        "SELECT count(*) FROM scheduler_starts JOIN scheduled_jobs USING (job_id)"
        f" WHERE scheduler_starts.attempt = 0 AND key LIKE '{key}' AND finished_at IS NULL AND {condition}"
    )


WAITING = jobs(f"({DUE}) OR {BLOCKED}")
WAITING_LIMITED = jobs(LIMITED, f"({DUE}) OR {BLOCKED}")
WORKERS = "SELECT count(*) FROM scheduler_workers"
SLOTS = "SELECT sum(max_concurrent_jobs) FROM scheduler_workers"
SCHEDULES = "SELECT count(*) FROM scheduler_schedules"
DEAD = "SELECT count(*) FROM scheduler_audit WHERE action = 'declare_dead'"
USE = "SELECT count(*) FROM scheduler_starts WHERE key = 'limit:{}' AND attempt > 0"
KEYS = "SELECT count(DISTINCT blocked_on) FROM scheduled_jobs WHERE blocked_on LIKE 'limit:card:%'"
TENANTS = "SELECT count(DISTINCT blocked_on) FROM scheduled_jobs WHERE blocked_on LIKE 'share:%'"
OF_BANK, OF_CARD, OF_SHARE = (
    jobs(f"blocked_on LIKE '{key}%'") for key in ("limit:bank:", "limit:card:", "share:")
)
BY_LIMITS = jobs("blocked_on LIKE 'limit:%'")
NUMBER = r"([\d,]+\+?)"
UNKNOWN_TASK = f"The task 'number.plain' of {NUMBER} schedules.*? none of {NUMBER} live workers"
HOURLY, FREQUENT = (f"{SCHEDULES} WHERE schedule_id LIKE '{prefix}%'" for prefix in ("s", "f"))
GROUPS = "SELECT count(*) FROM scheduler_error_groups"
GROUPS_OF_STATE = f"{GROUPS} WHERE status = 'failed' AND text {{}} LIKE 'quarantined:%'"
FAILURES = (
    "SELECT (SELECT coalesce(sum(jobs), 0) FROM scheduler_error_groups WHERE fingerprint LIKE '{0}')"
    " + (SELECT coalesce(sum(jobs), 0) FROM scheduler_failures WHERE fingerprint LIKE '{0}')"
)
FAILED = (
    "SELECT (SELECT coalesce(sum(jobs), 0) FROM scheduler_error_groups WHERE text NOT LIKE 'quarantined:%')"
    " + (SELECT coalesce(sum(jobs), 0) FROM scheduler_failures WHERE text NOT LIKE 'quarantined:%')"
)
SUSPENDED = "SELECT count(DISTINCT job_id) FROM scheduler_steps WHERE ended_at IS NULL AND kind = '{}'"
STEPS = "SELECT count(*) FROM scheduler_steps WHERE job_id = '{}'"
CHILDREN = "SELECT jsonb_array_length(value) FROM scheduler_steps WHERE job_id = 'fan' AND name = '{}'"
AFTER_HUB = "SELECT count(*) FROM scheduler_after WHERE parent_id = 'hub'"
BEFORE_SINK = "SELECT count(*) FROM scheduler_after WHERE child_id = 'sink'"
TASKS = (
    "SELECT count(DISTINCT name) FROM (SELECT coalesce(function, job_name) AS name FROM scheduled_jobs"
    f" WHERE {RUNNING} OR ({DUE}) OR {BLOCKED}"
    " UNION ALL SELECT unnest(names) FROM scheduler_workers) AS known"
)
TASKS_OF_WORKERS = (
    "SELECT count(DISTINCT name) FROM scheduler_workers CROSS JOIN unnest(names) AS each (name)"
)
ATTEMPTED = "SELECT count(DISTINCT job_name) FROM scheduler_stats"
OF_W1 = jobs("worker_id = 'w1' AND started_at IS NOT NULL")
BATCHES = "SELECT {} FROM scheduler_audit WHERE action = 'retry_jobs'"
CHANGED = BATCHES.format("sum((details ->> 'count')::integer)")
LIMITED_FAILED = (
    "SELECT sum(counts[4]) FROM scheduler_stats"
    " WHERE job_name = 'number.limited' AND bucket > now() - interval '1 hour'"
)
TOMORROW: Final = (datetime.now(UTC) + timedelta(days=2)).date()
"""A day that begins after the schedules are added, also if the test runs at midnight."""

SHOWN: Final[dict[str, dict[str, list[str]]]] = {
    "/": {
        f"Waiting (?:oldest .*? )?{NUMBER} · {NUMBER} due, {NUMBER} blocked": [
            WAITING,
            jobs(DUE),
            jobs(BLOCKED),
        ],
        f"Slots in use (?:\\d+ % )?{NUMBER} of {NUMBER}": [jobs(RUNNING), SLOTS],
        f"Scheduled {NUMBER}": [jobs(SCHEDULED)],
        f"Workers {NUMBER} live": [WORKERS],
        f"number.limited.*?\\[waiting {NUMBER}: due {NUMBER}, blocked {NUMBER}\\]": [
            WAITING_LIMITED,
            jobs(LIMITED, DUE),
            jobs(LIMITED, BLOCKED),
        ],
        f"\\[{NUMBER} groups of errors": [GROUPS],
        f"\\[{NUMBER} schedules\\]": [SCHEDULES],
        f"\\[{NUMBER} tasks\\]": [TASKS],
        f"\\[{NUMBER} live workers\\]": [WORKERS],
        f"\\[{NUMBER} limits\\]": ["SELECT 4"],
        f"\\[~{NUMBER} jobs, about\\]": [jobs("true")],
        f"Boom no number.broken · \\[[^]]*\\] [^\\[]*?(?:now|ago) {NUMBER} ": [FAILURES.format(BOOM)],
        f"The task 'number.plain' of {NUMBER} schedules.*? none of {NUMBER} live workers": [
            SCHEDULES,
            WORKERS,
        ],
    },
    "/jobs": {
        f"Due {NUMBER} Running {NUMBER} Scheduled {NUMBER} Blocked {NUMBER}": [
            *map(jobs, (DUE, RUNNING, SCHEDULED, BLOCKED))
        ],
        f"Retrying {NUMBER} Failed {NUMBER}": ["SELECT 0", jobs("status = 'failed'")],
        # The first one of the completions of the search that finds a job.
        f"Completed ~\\d+ Search {NUMBER} ": [jobs(LIMITED)],
    },
    "/tasks": {
        f"{NUMBER} tasks, 0 paused": [TASKS],
        f"number.limited .*?\\[{NUMBER} attempts failed\\]": [LIMITED_FAILED],
        f"number.limited .*?≤ 50 ms .*? {NUMBER} bank , card": [WORKERS],
        f"{NUMBER} running, waiting {NUMBER}: due {NUMBER}, blocked {NUMBER}": [
            *(jobs(RUNNING), WAITING, jobs(DUE), jobs(BLOCKED))
        ],
        f"number.limited .*?\\[waiting {NUMBER}: due {NUMBER}, blocked {NUMBER}\\] {NUMBER} ": [
            *(WAITING_LIMITED, jobs(LIMITED, DUE), jobs(LIMITED, BLOCKED), WAITING_LIMITED)
        ],
    },
    "/task?id=number.limited": {
        f"Waiting (?:oldest .*? )?{NUMBER} {NUMBER} due, {NUMBER} blocked": [
            *(WAITING_LIMITED, jobs(LIMITED, DUE), jobs(LIMITED, BLOCKED))
        ],
        f"Its jobs .*?Running {NUMBER} Scheduled Blocked {NUMBER}": [
            *(jobs(LIMITED, RUNNING), jobs(LIMITED, BLOCKED))
        ],
        f"Failed attempts {NUMBER} ": [LIMITED_FAILED],
        f"Workers {NUMBER} live": [WORKERS],
        f"bank at most 9 running.*? {NUMBER} / 9 .*? {NUMBER} / 9": [USE.format("bank:")] * 2,
    },
    "/limits": {
        f"{NUMBER} limits, {NUMBER} waiting jobs": ["SELECT 4", BY_LIMITS],
        f"bank number.limited .*?{NUMBER} / 9 .*?{NUMBER} / 9 in .*? {NUMBER} waiting": [
            *([USE.format("bank:")] * 2),
            OF_BANK,
        ],
        f"card number.limited at most .*? per key .*? per key {NUMBER} {NUMBER} waiting": [KEYS, OF_CARD],
        f"Shares {NUMBER} shares, {NUMBER} tenants, {NUMBER} running, {NUMBER} admitted, {NUMBER} waiting": [
            *("SELECT 3", TENANTS, moved(RUNNING), moved("status = 'pending'"), OF_SHARE)
        ],
        f"exports number.shared {NUMBER} {NUMBER} {NUMBER} {NUMBER} ": [
            *(TENANTS, moved(RUNNING), moved("status = 'pending'"), OF_SHARE)
        ],
        f"0 {NUMBER} running, {NUMBER} admitted, {NUMBER} waiting": [
            moved(RUNNING, "share:exports:0"),
            moved("status = 'pending'", "share:exports:0"),
            jobs("blocked_on = 'share:exports:0'"),
        ],
    },
    "/limit?name=card": {
        f"{NUMBER} keys, {NUMBER} waiting jobs": [KEYS, OF_CARD],
        f"Starts next 0?.*?\\b1 .*?{NUMBER} / 9 .*?{NUMBER} / 9 in .*? {NUMBER} waiting": [
            *([USE.format("card:1")] * 2),
            jobs("blocked_on = 'limit:card:1'"),
        ],
    },
    "/schedules": {f"All {NUMBER} Active {NUMBER}": [SCHEDULES] * 2, f"Schedules {NUMBER}": [SCHEDULES]},
    "/schedule?id=s1": {f"{NUMBER} fire times in the next 24 hours": ["SELECT 24"]},
    "/workers": {
        f"{NUMBER} live, {NUMBER} dead within a day, {NUMBER} of {NUMBER} slots": [
            WORKERS,
            DEAD,
            WORKERS,
            SLOTS,
        ],
        f"All {NUMBER} Live {NUMBER} Draining {NUMBER} Dead, 24 h {NUMBER}": [
            f"SELECT ({WORKERS}) + ({DEAD})",
            WORKERS,
            "SELECT 0",
            DEAD,
        ],
    },
    "/workers?group=host": {
        f"host {NUMBER} workers, {NUMBER} of {NUMBER} slots busy": [WORKERS, WORKERS, SLOTS],
    },
    "/worker?id=w1": {f"now {NUMBER} attempts": [OF_W1]},
    "/workflows": {
        f"Awaiting {NUMBER} Sleeping {NUMBER} Blocked {NUMBER}": [
            SUSPENDED.format(kind) for kind in ("signal", "sleep", "child")
        ],
        f"Waits in approval {NUMBER}": [SUSPENDED.format("signal")],
        f"flow:1 .*?in 24 h {NUMBER} ": [STEPS.format("flow:1")],
    },
    "/job?id=fan": {
        f"finish, {NUMBER} of {NUMBER} completed": [CHILDREN.format("finish")] * 2,
        f"begin {NUMBER} children .*? {NUMBER} of {NUMBER} \\[": [CHILDREN.format("begin")] * 3,
        f"finish {NUMBER} children .*? {NUMBER} of {NUMBER} \\[": [CHILDREN.format("finish")] * 3,
    },
    "/job?id=queued": {f"{NUMBER} jobs before it in the queue": [f"SELECT ({OF_BANK}) - 1"]},
    "/job?id=hub": {
        f" {NUMBER} more, see the list": [f"SELECT ({AFTER_HUB}) - 5"],
        f"{NUMBER} other tasks claimed": [TASKS_OF_WORKERS],
    },
    "/job?id=sink": {f"Waits for {NUMBER} other jobs": [BEFORE_SINK]},
    "/job?id=broken:1": {
        f"{NUMBER} other failures of this task .*? Show the group \\({NUMBER}\\)": [
            f"SELECT ({FAILURES.format(BOOM)}) - 1",
            FAILURES.format(BOOM),
        ],
    },
    "/errors": {
        f"Errors {NUMBER} groups, {NUMBER} failed jobs": [GROUPS_OF_STATE.format("NOT"), FAILED],
        f"Failed {NUMBER} Expired {NUMBER} Quarantined {NUMBER} Muted {NUMBER}": [
            *(GROUPS_OF_STATE.format("NOT"), "SELECT 0", GROUPS_OF_STATE.format(""), "SELECT 0")
        ],
        f"number.broken {NUMBER} ": [FAILURES.format(BOOM)],
    },
    f"/error?id={BOOM}": {
        f"failed {NUMBER} failed jobs of number.broken": [FAILURES.format(BOOM)],
        f"Workers of the last attempts of the newest {NUMBER} jobs \\[w1\\] w1 {NUMBER} ": [
            "SELECT 3",
            "SELECT 3",
        ],
    },
    "/release": {
        f"none of {NUMBER} live workers reports it now": [WORKERS],
        f"before → after, the first 1 of {NUMBER} ": [ATTEMPTED],
        f"New errors (?:the first 1 of )?{NUMBER} ": ["SELECT 0"],
    },
    f"/calendar?span=day&start={TOMORROW}": {
        f"{NUMBER} fire times of {NUMBER} schedules; {NUMBER} schedules too frequent": [
            *(f"SELECT 24 * ({HOURLY})", HOURLY, FREQUENT)
        ],
        f"Schedules 00 (?:\\[[^]]*\\] )+(?:collision, )?{NUMBER} ": [HOURLY],
        f"Collisions .*?: {NUMBER} fire times": [HOURLY],
        f"Frequent schedules the first 1 of {NUMBER} ": [FREQUENT],
    },
    "/audit": {f"Audit {NUMBER} records, newest first": ["SELECT count(*) FROM scheduler_audit"]},
    "/audit?action=retry_jobs": {
        f"retried {NUMBER} jobs \\( bulk run , {NUMBER} batches": [CHANGED, BATCHES.format("count(*)")],
    },
    "/runs": {f"Retry complete {NUMBER} jobs {NUMBER} ada": [CHANGED, CHANGED]},
    "/run?id=bulk-1": {
        f"Complete: {NUMBER} jobs retried, {NUMBER} jobs searched": [CHANGED, CHANGED],
        f"Show {NUMBER} failed jobs": [CHANGED],
    },
    "/schedule?id=f0": {f"{NUMBER} fire times in the next 24 hours": ["SELECT 1440"]},
    "/schedule-pause?id=f0&for=%2B4h": {f"{NUMBER} fire times before that": ["SELECT 240"]},
    "/doctor": {
        f"The task 'number.plain' of {NUMBER} schedules.*? none of {NUMBER} live workers": [
            SCHEDULES,
            WORKERS,
        ],
        f"{NUMBER} quarantined jobs": [jobs("starts_with(error_message, 'quarantined:')")],
    },
    "/find?q=broken": {
        f"Find {NUMBER} found": ["SELECT 1"],
        f"number. broken , {NUMBER} ": [FAILURES.format(BOOM)],
    },
    "/job?id=run:1": {f"bank .*?{NUMBER} / 9 .*?{NUMBER} / 9": [USE.format("bank:")] * 2},
}
"""The numbers of pages by their address: a pattern with the numbers, and statements that count the same.

The text that is searched has the titles of elements in brackets.
"""

WITHOUT_NUMBERS: Final[dict[str, str]] = {
    "/about": "versions and rights",
    "/chart": "rates and durations; a sentence states that statistics are left out",
    "/job-form": "a form",
    "/schedule-form": "a form",
    "/signal-form": "a form",
    "/complete": "completions, whose numbers the page of jobs has too; test_find.py reads them",
    "/export": "rows",
    "/live": "parts of the pages",
    "/metrics": "the metrics of the process and of the cluster, which tests/telemetry compares",
    "/value": "a value of a job",
}
"""The other addresses that answer to GET, and what they show."""

COUNTS: Final = frozenset(
    {
        "admitted",
        "all",
        "blocked",
        "dead",
        "dead_workers",
        "draining",
        "due",
        "failed",
        "found",
        "full_keys",
        "fires_in_day",
        "jobs",
        "limits",
        "live",
        "done",
        "number_of_errors",
        "number_of_frequent",
        "number_of_problems",
        "number_of_tasks",
        "outcomes",
        "sampled",
        "problems",
        "running",
        "slots",
        "slots_busy",
        "starts",
        "tenants",
        "unfinished",
        "unsuccessful",
        "waiting",
        "workers",
        "workers_of_release",
        "active",
        "failing",
        "overdue",
        "paused",
        "finished",
        "retired",
    }
)
"""The fields of JSON that count rows, and that SHOWN has as pages show them."""

OTHER: Final = frozenset(
    {
        "attempt",
        "max_attempts",
        "pid",
        "max_concurrent_jobs",
        "running_jobs",
        "runs",
        "skipped",
        "missed",
        "version",
        "id",
        "batches",
        "retry_count",
        "crash_count",
        "max_retries",
        "max_running",
        "max_starts",
        "jitter_seconds",
        "schema_version",
        "started",
        "failures",
        "history",
        "expired",
        "quarantined",
        "cancelled",
        "muted",
        "first",
        "completions",
        "number",
        "now_hour",
        "count",
        "total",
        "others",
        "lanes",
        "searched",
        "total_estimate",
        "decided",
        "examined",
        "lane",
        "reclaimed",
    }
)
"""Other integers of JSON: of a row itself, of what is on the page or searched, of triggers, and of
statistics, which test_tasks.py and test_overview.py compare."""


class Shown(Page):
    """The text of a page, with the titles of its elements in brackets before their texts."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        self.handle_data(f" [{title}] " if (title := dict(attrs).get("title")) else " ")

    def handle_endtag(self, tag: str) -> None:
        super().handle_endtag(tag)
        self.handle_data(" ")


def names_of_integers(value: Any, name: str = "") -> Iterator[str]:
    """Yield the name of the field of each integer; an entry of a list has the name of the list."""
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield name
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from names_of_integers(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from names_of_integers(part, name)


def bounds_of(package: str) -> set[str]:
    """Return the constants of the modules of a package that are named as bounds."""
    names: set[str] = set()
    for path in (SOURCE / package).rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names |= {
                f"{module}.{target.id}"
                for target in targets
                if isinstance(target, ast.Name) and target.id.lstrip("_").startswith("MAX_")
            }
    return names


def test_every_page_is_compared_or_has_no_numbers() -> None:
    compared = {url.partition("?")[0] for url in SHOWN}
    assert compared | set(WITHOUT_NUMBERS) == {*dashboard_pages(), *dashboard_streams()}, (
        "add a new page to SHOWN"
    )
    assert compared & set(WITHOUT_NUMBERS) == set()


def test_every_bound_is_made_small_or_bounds_no_number() -> None:
    unshown = [name for names in UNSHOWN.values() for name in names]
    defined = bounds_of("dashboard") | bounds_of("inspect")
    assert len(defined) > 150
    assert defined - set(BOUNDS) == set(unshown), "add a new bound to BOUNDS, or to UNSHOWN with a reason"
    assert len(unshown) == len(set(unshown))


class Comparison(NamedTuple):
    """The numbers of pages beside those of SQL."""

    wrong: list[str]
    """Numbers that are not true."""
    marked: list[str]
    """Numbers with a plus."""
    numbers: dict[str, list[str | None]]
    """All numbers as texts, by the page; None for one that a page does not show if it is 0."""


async def compare(pool: asyncpg.Pool, app: App, urls: Iterable[str] = SHOWN) -> Comparison:
    """Compare the numbers of pages with SQL."""
    # No worker plans here, so a schedule would become overdue while a test lasts.
    await pool.execute(
        "UPDATE scheduler_schedules SET next_fire_at = next_fire_at + interval '1 minute'"
        " WHERE schedule_id LIKE 'f%' AND next_fire_at < now()"
    )
    result = Comparison([], [], {})
    for url in urls:
        words = " ".join(Shown((await request(app, url)).text).text.split())
        numbers = result.numbers.setdefault(url, [])
        for pattern, statements in SHOWN[url].items():
            match = re.search(pattern, words)
            if match is None:
                result.wrong.append(f"{url} lacks {pattern}: {words[:3000]}")
                continue
            assert len(match.groups()) == len(statements), pattern
            for text, statement in zip(match.groups(), statements, strict=True):
                numbers.append(text)
                if text is None:  # a number that the page does not show if it is 0
                    continue
                number, is_cut = int(text.rstrip("+").replace(",", "")), text.endswith("+")
                truth = int(await pool.fetchval(statement))
                if is_cut:
                    result.marked.append(f"{url} {pattern}: {text}")
                if not (number <= truth if is_cut else number == truth):
                    result.wrong.append(f"{url} shows {text} of {truth}: {match[0][-200:]}")
    return result


async def test_every_number_of_every_page_is_true_or_has_a_plus(
    pool: asyncpg.Pool,
    world: World,
    scheduler: Scheduler,
    build: Callable[..., App],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, bound in {**BOUNDS, **SHOWN_ROWS}.items():
        monkeypatch.setattr(f"pg_scheduler.{name}", bound)
    await fill(world, scheduler)
    result = await compare(pool, build(authorize=lambda _: Access("ada", "admin")))
    assert result.wrong == []
    assert len(result.marked) > 100, "the database exceeds the bounds"


@pytest.mark.slow
async def test_every_bound_marks_the_numbers_that_it_cuts_if_no_other_bound_does(
    pool: asyncpg.Pool,
    world: World,
    scheduler: Scheduler,
    build: Callable[..., App],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def compare_with(bounds: Mapping[str, int], urls: Iterable[str]) -> Comparison:
        with monkeypatch.context() as patch:
            for name, bound in {**bounds, **SHOWN_ROWS}.items():
                patch.setattr(f"pg_scheduler.{name}", bound)
            return await compare(pool, build(authorize=lambda _: Access("ada", "admin")), urls)

    await fill(world, scheduler)
    bounds_of_name: dict[str, dict[str, int]] = {}
    for name, bound in BOUNDS.items():
        # The modules that use a bound import it, so they share its name and value.
        bounds_of_name.setdefault(f"{name.rpartition('.')[2]} {bound}", {})[name] = bound
    without = await compare_with({}, SHOWN)
    assert without.wrong == []
    # A page that shows the same with all bounds as without them is not concerned by any.
    with_all = await compare_with(BOUNDS, SHOWN)
    urls = [url for url, numbers in without.numbers.items() if numbers != with_all.numbers[url]]
    marked_without = [mark for mark in without.marked if mark.partition(" ")[0] in urls]
    wrong: dict[str, list[str] | str] = {}
    for label, bounds in bounds_of_name.items():
        result = await compare_with(bounds, urls)
        if result.wrong or result.marked == marked_without:
            wrong[label] = result.wrong or "it cuts no number"
    assert wrong == {}


async def test_every_count_of_a_page_is_among_those_that_are_compared(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    app = build(authorize=lambda _: Access("ada", "admin"))
    unknown = {}
    for url in (*SHOWN, "/about", "/chart?id=outcomes"):
        names = set(names_of_integers((await request(app, url, headers=JSON)).data)) - COUNTS - OTHER
        if names := {name for name in names if not re.fullmatch(r"w\d*|", name)}:
            unknown[url] = names
    assert unknown == {}, "add to SHOWN how the page shows them, and to COUNTS"
