"""Measure the pages of the dashboard on a large table: ``python3 dev.py scale --rows 5000000``.

Nineteen jobs of twenty are finished, one of fifty of them failed, one of a hundred is due; there are 1,000
schedules and six hours of statistics of 200 names. Each page is opened several times without its cache. Of
each one the report has the slowest statement, as the client sees it, and what the page says it searched. With
``--viewers 10``, a worker also drains jobs while ten streams of the overview are open, in turn with none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import asyncpg

from benchmarks.machine import SETTINGS
from benchmarks.ours import work
from pg_scheduler import JobSpec, Scheduler
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.dashboard.pages import PAGES
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.triggers import Cron

UNFINISHED: Final = (
    "SELECT EXISTS (SELECT FROM scheduled_jobs"
    " WHERE finished_at IS NULL AND blocked_on IS NULL AND execution_time <= now())"
)

BOUND_MS: Final = 300
"""Milliseconds that a statement of a page may take."""

SEARCHES: Final = (
    "status:failed",
    "status:pending",
    "status:running",
    "name:name.7",
    "name:nothing",
    "status:failed error:~777",
    "arg.user:nobody status:completed",
    "due:<-1h status:pending",
    "777",
)
"""Searches that find at once, late, or nothing."""

ITEMS: Final = (
    "/job?id=due-1",
    "/job?id=job-000000050",
    "/schedule?id=scale:7",
    "/task?id=name.7",
    "/calendar?span=month",
    "/?range=6h",
)
"""Pages with a parameter."""

WITH_PARAMETER: Final = frozenset({"/job", "/run", "/schedule", "/task", "/limit", "/worker"})

SCHEDULES: Final = 1000

FILL: Final = {
    "finished jobs": """
        INSERT INTO scheduled_jobs (job_id, job_name, task_data, execution_time, status, priority,
            finished_at, error_message, attempt)
        SELECT 'job-' || lpad(n::text, 9, '0'), 'name.' || n % 200,
            jsonb_build_object('args', jsonb_build_array(n), 'kwargs', jsonb_build_object('user', n % 1000)),
            now() - ($1 - n) * interval '100 ms', CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'completed' END, 5,
            now() - ($1 - n) * interval '100 ms',
            CASE WHEN n % 50 = 0 THEN 'ValueError: no ' || n % 1000 END, 1
        FROM generate_series(1, $1::integer * 95 / 100) AS n""",
    "due jobs": """
        INSERT INTO scheduled_jobs (job_id, job_name, execution_time, priority)
        SELECT 'due-' || n, 'name.' || n % 200, now() - n * interval '1 ms', 5
        FROM generate_series(1, $1::integer / 100) AS n""",
    "jobs of the future": """
        INSERT INTO scheduled_jobs (job_id, job_name, execution_time, priority)
        SELECT 'later-' || n, 'name.' || n % 200, now() + interval '1 day' + n * interval '1 s', 5
        FROM generate_series(1, $1::integer * 4 / 100) AS n""",
    "six hours of statistics": """
        INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)
        SELECT date_trunc('minute', now()) - m * interval '1 min', 60, 'name.' || k,
            array_fill(5::bigint, ARRAY[11]), ARRAY[1.0, 1.0]::float8[], array_fill(3, ARRAY[48]),
            array_fill(3, ARRAY[48])
        FROM generate_series(0, 359) AS m, generate_series(0, $1::integer * 0 + 199) AS k""",
}
"""The contents of the tables, for $1 jobs."""


@dataclass
class Visit:
    """The costs of a page.

    Attributes:
        milliseconds: Of each statement, by its text.
        total: Seconds of each answer.
        says: The extent of the search, as the page shows it.
    """

    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    total: list[float] = field(default_factory=list)
    says: str = ""

    @property
    def slowest(self) -> tuple[float, str]:
        """The median time of the slowest statement, and its text."""
        found = ((statistics.median(times), text) for text, times in self.milliseconds.items())
        return max(found, default=(0.0, ""))


def read_all(_request: object) -> Access:
    """Let the benchmark read everything."""
    return Access("benchmark")


async def get(app: Any, url: str) -> tuple[int, bytes]:
    """Return the answer to a request."""
    messages: list[MutableMapping[str, Any]] = []

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    await app(_scope(url), receive, send)
    return messages[0]["status"], b"".join(each.get("body", b"") for each in messages)


def _scope(url: str) -> dict[str, Any]:
    path, _, query = url.partition("?")
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"benchmark"), (b"accept", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("benchmark", 80),
    }


async def fill(pool: asyncpg.Pool, rows: int) -> None:
    """Fill the tables, unless an earlier run did."""
    if await pool.fetchval("SELECT EXISTS (SELECT FROM scheduled_jobs)"):
        return
    for what, statement in FILL.items():
        print(f"  {time.strftime('%H:%M:%S')} {what} ...", file=sys.stderr, flush=True)
        await pool.execute(statement, rows, timeout=3600)
    scheduler = Scheduler(pool)
    scheduler.register(work, name="scale.work")
    for number in range(SCHEDULES):
        trigger = Cron(f"{number % 60} {number % 24} * * *", timezone="Europe/Berlin")
        name = f"scale:{number}"
        await scheduler.schedules.add(work, trigger, schedule_id=name, args=(0.0, "ada"))
    await pool.execute("VACUUM ANALYZE", timeout=3600)


async def visit(dsn: str, rounds: int) -> dict[str, Visit]:
    """Open each page ``rounds`` times."""
    visits: dict[str, Visit] = {}
    current = Visit()

    def record(query: Any) -> None:
        current.milliseconds.setdefault(query.query, []).append(query.elapsed * 1000)

    async def watch(connection: asyncpg.Connection) -> None:
        connection.add_query_logger(record)

    warnings.simplefilter("ignore", asyncpg.InterfaceWarning)  # the logger stays on released connections
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4, init=watch) as pool:
        plain = [path for path in PAGES if path not in WITH_PARAMETER]
        for url in (*plain, *(f"/jobs?q={quote(each)}" for each in SEARCHES), *ITEMS):
            current = visits[url] = Visit()
            for _ in range(rounds):
                app = dashboard(Scheduler(pool), authorize=read_all)
                begin = time.perf_counter()
                status, body = await get(app, url)
                current.total.append(time.perf_counter() - begin)
                if status != 200:
                    raise RuntimeError(f"{url} answered {status}: {body[:500]!r}")
                current.says = str(_searched(json.loads(body)["data"]) or "")
    return visits


def _searched(data: object) -> object:
    if isinstance(data, dict):
        if isinstance(data.get("summary"), str):
            return data["summary"]
        return next((found for each in data.values() if (found := _searched(each))), None)
    return None


async def view(dsn: str, number: int) -> None:
    """Keep that many streams of the overview open, until the process is ended."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
        app: Any = dashboard(Scheduler(pool), authorize=read_all)
        await asyncio.gather(*(_watch_overview(app) for _ in range(number)))


async def _watch_overview(app: Any) -> None:
    async def receive() -> Mapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")

    async def send(_message: object) -> None:
        pass

    while True:  # a stream ends after 30 s, and a browser opens it again
        await app(_scope("/live?page=/"), receive, send)


async def drain(dsn: str, jobs: int, viewers: int) -> float:
    """Return the jobs per second of one worker, while another process has the viewers."""
    command = [sys.executable, "-m", "benchmarks.scale", "--view", dsn, "--viewers", str(viewers)]
    process = await asyncio.create_subprocess_exec(*command) if viewers else None
    try:
        async with asyncpg.create_pool(dsn, min_size=2, max_size=6) as pool:
            scheduler = Scheduler(pool)
            scheduler.register(work, name="scale.work")
            now = await pool.fetchval("SELECT now()")
            specs = [JobSpec(work, now, args=(0.0, "ada")) for _ in range(jobs)]
            await scheduler.schedule_bulk(specs)
            begin = time.perf_counter()
            async with scheduler:
                while await pool.fetchval(UNFINISHED):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)  # events would cost the drain more than this
                return jobs / (time.perf_counter() - begin)
    finally:
        if process is not None:
            process.kill()
            await process.wait()


async def measure(dsn: str, options: argparse.Namespace) -> None:
    """Fill the tables, measure and print the report."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        await Scheduler(pool).initialize_db()
        await fill(pool, options.rows)
        size = await pool.fetchval("SELECT pg_size_pretty(pg_total_relation_size('scheduled_jobs'))")
    print(f"{options.rows:,} jobs, {size}, {options.rounds} rounds; bound {BOUND_MS} ms a statement\n")
    print("| page | statements | slowest (ms) | page (ms) | says |\n|---|---|---|---|---|")
    found = await visit(dsn, options.rounds)
    for url, each in found.items():
        page_ms = statistics.median(each.total) * 1000
        print(f"| `{url}` | {len(each.milliseconds)} | {each.slowest[0]:.1f} | {page_ms:.1f} | {each.says} |")
    for url, each in found.items():
        if each.slowest[0] > BOUND_MS:
            print(f"\nover the bound on {url}:\n{each.slowest[1]}")
    if options.viewers:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
            await pool.execute("DELETE FROM scheduled_jobs WHERE starts_with(job_id, 'due-')", timeout=600)
        rates: dict[int, list[float]] = {0: [], options.viewers: []}
        for number in range(options.rounds):
            for viewers in sorted(rates, reverse=bool(number % 2)):
                rates[viewers].append(await drain(dsn, options.jobs, viewers))
        alone, viewed = (statistics.median(rates[key]) for key in (0, options.viewers))
        scatter = {key: [round(rate) for rate in found] for key, found in rates.items()}
        print(f"\ndrain with {options.viewers} viewers: {viewed / alone:.2f} x of none; jobs/s {scatter}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="dev.py scale", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="jobs in the table (default: 5,000,000)")
    parser.add_argument("--rounds", type=int, default=5, help="visits of each page (default: 5)")
    parser.add_argument("--viewers", type=int, default=0, help="streams of the overview during a drain")
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs of each drain (default: 50,000)")
    parser.add_argument("--data", type=Path, help="a folder that keeps the filled tables for the next run")
    parser.add_argument("--view", metavar="DSN", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.view:
        asyncio.run(view(options.view, options.viewers))
        return
    with EmbeddedPostgres(options.data, settings=SETTINGS) as server:
        asyncio.run(measure(server.dsn(), options))


if __name__ == "__main__":
    main()
