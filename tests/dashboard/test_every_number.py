"""Every number of every page, on a database that exceeds every bound: it is true, or has a plus."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, Page, request
from tests.support.world import HOUR, MINUTE, World

BOUNDS: Final = {
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
}
"""Each bound of a number that a page shows, made small."""


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
    shares = [{"task": "number.shared", "name": "exports"}]
    for number in range(5):
        await world.worker(
            f"w{number}",
            names=["number.limited", "number.shared"],
            settings={"limits": limits, "shares": shares},
        )
    await world.jobs(7, "number.limited", due=-HOUR)
    await world.jobs(7, "number.plain", due=-MINUTE)
    await world.jobs(7, "number.limited", job_id="run:{}".format, status="running", due=-2 * HOUR)
    await world.jobs(7, "number.plain", due=HOUR)
    await world.jobs(6, "number.limited", blocked_on="limit:bank:")
    await world.jobs(8, "number.limited", blocked_on="limit:card:{}".format)
    await world.jobs(12, "number.shared", blocked_on=lambda n: f"share:exports:{n % 3}")
    await world.jobs(8, "number.shared", job_id="moved:{}".format, status="running", due=-2 * HOUR)
    for number in range(1, 9):
        await world.start("share:exports:0", f"moved:{number}", attempt=0, keep_s=1e9)
    for number in range(1, 7):
        await world.start("limit:bank:", f"run:{number}", keep_s=1e9)
        await world.start("limit:card:1", f"run:{number}", keep_s=1e9)
    await world.jobs(7, "number.plain", status="failed", error_message=lambda n: f"Error{chr(64 + n)}: no")
    for number in range(6):
        await scheduler.schedules.add("number.plain", Every(timedelta(hours=1)), schedule_id=f"s{number}")
    await world.audit("declare_dead", "gone{}".format, count=4)
    await world.pool.execute("ANALYZE")


DUE = "status = 'pending' AND finished_at IS NULL AND blocked_on IS NULL AND execution_time <= now()"
BLOCKED = "blocked_on IS NOT NULL"
RUNNING = "status = 'running'"
SCHEDULED = "status = 'pending' AND blocked_on IS NULL AND execution_time > now()"
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

SHOWN: Final[dict[str, dict[str, list[str]]]] = {
    "/": {
        f"Waiting (?:oldest .*? )?{NUMBER} due {NUMBER}, blocked {NUMBER}": [
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
        f"\\[{NUMBER} groups of errors": [jobs("status = 'failed'")],
        f"\\[{NUMBER} schedules\\]": [SCHEDULES],
        f"\\[{NUMBER} tasks\\]": ["SELECT count(DISTINCT coalesce(function, job_name)) FROM scheduled_jobs"],
        f"\\[{NUMBER} live workers\\]": [WORKERS],
        f"\\[{NUMBER} limits\\]": ["SELECT 4"],
        f"\\[~{NUMBER} jobs, about\\]": [jobs("true")],
        f"{NUMBER} things? needs? attention": ["SELECT 1"],
    },
    "/jobs": {
        f"Due {NUMBER} Running {NUMBER} Scheduled {NUMBER} Blocked {NUMBER}": [
            *map(jobs, (DUE, RUNNING, SCHEDULED, BLOCKED))
        ],
        f"Retrying {NUMBER} Failed {NUMBER}": ["SELECT 0", jobs("status = 'failed'")],
    },
    "/tasks": {
        f"{NUMBER} running, waiting {NUMBER}: due {NUMBER}, blocked {NUMBER}": [
            *(jobs(RUNNING), WAITING, jobs(DUE), jobs(BLOCKED))
        ],
        f"number.limited .*?\\[waiting {NUMBER}: due {NUMBER}, blocked {NUMBER}\\] {NUMBER} due": [
            *(WAITING_LIMITED, jobs(LIMITED, DUE), jobs(LIMITED, BLOCKED), WAITING_LIMITED)
        ],
    },
    "/task?id=number.limited": {
        f"Waiting (?:oldest .*? )?{NUMBER} due {NUMBER}, blocked {NUMBER}": [
            *(WAITING_LIMITED, jobs(LIMITED, DUE), jobs(LIMITED, BLOCKED))
        ],
        f"Its jobs .*?Running {NUMBER} Scheduled Blocked {NUMBER}": [
            *(jobs(LIMITED, RUNNING), jobs(LIMITED, BLOCKED))
        ],
        f"bank at most 9 running.*? {NUMBER} / 9 .*? {NUMBER} / 9": [USE.format("bank:")] * 2,
    },
    "/limits": {
        f"{NUMBER} limits, {NUMBER} waiting jobs": ["SELECT 4", BY_LIMITS],
        f"bank number.limited .*?{NUMBER} / 9 .*?{NUMBER} / 9 in .*? {NUMBER} waiting": [
            *([USE.format("bank:")] * 2),
            OF_BANK,
        ],
        f"card number.limited at most .*? per key .*? per key {NUMBER} {NUMBER} waiting": [KEYS, OF_CARD],
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
    "/job?id=run:1": {f"bank .*?{NUMBER} / 9 .*?{NUMBER} / 9": [USE.format("bank:")] * 2},
}
"""The numbers of pages by their address: a pattern with the numbers, and statements that count the same.

The text that is searched has the titles of elements in brackets.
"""

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
        "number_of_problems",
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


async def test_every_number_of_every_page_is_true_or_has_a_plus(
    pool: asyncpg.Pool,
    world: World,
    scheduler: Scheduler,
    build: Callable[..., App],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, bound in BOUNDS.items():
        monkeypatch.setattr(f"pg_scheduler.{name}", bound)
    await fill(world, scheduler)
    app = build(authorize=lambda _: Access("ada", "admin"))
    wrong, cut = [], 0
    for url, patterns in SHOWN.items():
        words = " ".join(Shown((await request(app, url)).text).text.split())
        for pattern, statements in patterns.items():
            match = re.search(pattern, words)
            if match is None:
                wrong.append(f"{url} lacks {pattern}: {words[:3000]}")
                continue
            assert len(match.groups()) == len(statements), pattern
            for text, statement in zip(match.groups(), statements, strict=True):
                number, is_cut = int(text.rstrip("+").replace(",", "")), text.endswith("+")
                truth = int(await pool.fetchval(statement))
                cut += is_cut
                if not (number <= truth if is_cut else number == truth):
                    wrong.append(f"{url} shows {text} of {truth}: {match[0][-200:]}")
    assert wrong == []
    assert cut > 40, "the database exceeds the bounds"


async def test_every_count_of_a_page_is_among_those_that_are_compared(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    app = build(authorize=lambda _: Access("ada", "admin"))
    unknown = {}
    for url in (*SHOWN, "/errors", "/doctor", "/calendar", "/audit", "/runs", "/about", "/worker?id=w1"):
        names = set(names_of_integers((await request(app, url, headers=JSON)).data)) - COUNTS - OTHER
        if names := {name for name in names if not re.fullmatch(r"w\d*|", name)}:
            unknown[url] = names
    assert unknown == {}, "add to SHOWN how the page shows them, and to COUNTS"
