"""Measure the pages of the dashboard on a large table: ``python3 dev.py scale --rows 5000000``.

Nineteen jobs of twenty are finished, one of fifty of them failed, one of a hundred is due, one of 250 waits
for a signal; one of these has 1,000 children. There are 1,000 schedules, six hours of statistics of 200
names, two releases of the last hours and a live worker with a limit. Each page is opened several times
without its cache, as HTML. Of each one the report has the slowest statement, as the client sees it, the time
of the processors, and what the page says it searched. With ``--small 50000``, a second database has that many
jobs; its pages are opened in turn, and each time is divided by theirs. With ``--viewers 10``, ten streams are
open for a minute, first all of the overview, then of ten pages; after that a worker drains jobs while ten
streams of the overview are open, in turn with none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import warnings
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import asyncpg

from benchmarks.machine import SETTINGS, processor_seconds
from benchmarks.ours import work
from pg_scheduler import JobSpec, Limit, Scheduler, VacuumConfig, VacuumPolicy
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.dashboard.pages import PAGES
from pg_scheduler.database.queries import DEFAULT_SCHEMA, load_query
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.jobs.error_text import OTHER_ERRORS
from pg_scheduler.statistics.errors import MAX_GROUPS_OF_NAME
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
    "/job?id=flow-1",
    "/job-form?id=job-000000050",
    "/signal-form?id=flow-1",
    "/workflows?state=awaiting",
    "/release?range=6h",
    "/value?id=job-000000050&part=arguments",
    "/error?id={error}",
    "/schedule?id=scale:7",
    "/schedule-pause?id=scale:7",
    "/task?id=name.7",
    "/limit?name=scale",
    "/worker?id={worker}",
    "/calendar?span=month",
    "/?range=6h",
    "/chart?id=outcomes",
    "/find?q=name.7",
    "/complete?term=arg.",
)
"""Pages with a parameter."""

WITH_PARAMETER: Final = frozenset(
    {
        "/chart",
        "/job",
        "/error",
        "/run",
        "/signal-form",
        "/schedule",
        "/schedule-pause",
        "/task",
        "/limit",
        "/worker",
        "/find",
    }
)

WATCHED: Final = (
    "/",
    "/jobs&q=status:failed",
    "/jobs&q=status:due",
    "/job&id=due-1",
    "/errors",
    "/schedules",
    "/tasks",
    "/task&id=name.7",
    "/workers",
    "/limits",
)
"""The pages of ten viewers, each with another one."""

KEEPING: Final = VacuumConfig(
    completed=VacuumPolicy.never(), failed=VacuumPolicy.never(), interval_minutes=1000
)
"""Each round meets the same table."""

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
    "workflows": """
        INSERT INTO scheduled_jobs (job_id, job_name, execution_time, priority, attempt, options)
        SELECT 'flow-' || n, 'flow.' || n % 20, '9999-01-01Z', 5, 1, jsonb_build_object(
            'steps', 1, 'definition', '1', 'suspended', jsonb_build_object('attempt', 1, 'kind', 'signal'))
        FROM generate_series(1, $1::integer / 250) AS n""",
    "their steps": """
        INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at)
        SELECT 'flow-' || n, step.name, step.kind, step.value::jsonb, 1, now() - interval '1 hour',
            CASE WHEN step.kind = 'step' THEN now() - interval '59 min' END
        FROM generate_series(1, $1::integer / 250) AS n
        CROSS JOIN (VALUES ('charge', 'step', '{"payment": 7}'), ('label', 'step', '"label-7"'),
            ('approved', 'signal', NULL)) AS step (name, kind, value)""",
    "children": """
        INSERT INTO scheduled_jobs (job_id, job_name, execution_time, priority, status, finished_at, attempt)
        SELECT 'flow-1:part:' || n, 'flow.part', now(), 5, 'completed', now() - n * interval '1 s', 1
        FROM generate_series(1, $1::integer * 0 + 1000) AS n""",
    "the step that waits for them": """
        INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at)
        SELECT 'flow-1', 'parts', 'child', jsonb_agg('flow-1:part:' || n), 1, now()
        FROM generate_series(1, $1::integer * 0 + 1000) AS n""",
    "failures": """
        INSERT INTO scheduler_failures (fingerprint, job_name, text, status, jobs, at, job_id)
        SELECT left(md5(job_name || chr(10) || 'ValueError: no #'), 12), job_name, 'ValueError: no #',
            'failed', 1, finished_at, job_id
        FROM scheduled_jobs WHERE status = 'failed' AND $1::integer > 0""",
    "releases": """
        INSERT INTO scheduler_audit (at, actor, via, action, subject)
        SELECT now() - hours * interval '1 hour', 'node', 'worker', 'start_release', 'v' || 10 - hours
        FROM unnest(ARRAY [$1::integer * 0 + 5, 1]) AS hours""",
}
"""The contents of the tables, for $1 jobs."""


@dataclass(frozen=True)
class Watching:
    """What viewers cost while their streams are open.

    Attributes:
        statements: Per second.
        server: Seconds of the server's processors per second.
        dashboard: Seconds of the dashboard's processor per second.
        bytes: That each viewer receives per second.
    """

    statements: float
    server: float
    dashboard: float
    bytes: float


@dataclass
class Visit:
    """The costs of a page.

    Attributes:
        milliseconds: Of each statement, by its text.
        total: Seconds of each answer.
        dashboard: Seconds of the dashboard's processor, of all answers.
        server: Seconds of the server's processors, of all answers.
        says: The extent of the search, as the page shows it.
    """

    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    total: list[float] = field(default_factory=list)
    dashboard: float = 0.0
    server: float = 0.0
    says: str = ""

    @property
    def median_ms(self) -> float:
        """The median time of the answers."""
        return statistics.median(self.total) * 1000

    @property
    def processor_ms(self) -> tuple[float, float]:
        """The mean times of the processors of dashboard and server, for each answer."""
        each = 1000 / len(self.total)
        return self.dashboard * each, self.server * each

    @property
    def slowest(self) -> tuple[float, str]:
        """The median time of the slowest statement, and its text."""
        found = ((statistics.median(times), text) for text, times in self.milliseconds.items())
        return max(found, default=(0.0, ""))


def permit_all(_request: object) -> Access:
    """Let the benchmark open every page."""
    return Access("benchmark", "admin")


async def get(app: Any, url: str, accept: bytes = b"text/html") -> tuple[int, bytes]:
    """Return the answer to a request."""
    messages: list[MutableMapping[str, Any]] = []

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    await app(_scope(url, accept), receive, send)
    return messages[0]["status"], b"".join(each.get("body", b"") for each in messages)


def _scope(url: str, accept: bytes = b"text/html") -> dict[str, Any]:
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
        "headers": [(b"host", b"benchmark"), (b"accept", accept)],
        "client": ("127.0.0.1", 1),
        "server": ("benchmark", 80),
    }


async def fill(pool: asyncpg.Pool, rows: int) -> None:
    """Fill the tables, unless an earlier run did."""
    if await pool.fetchval("SELECT EXISTS (SELECT FROM scheduled_jobs)"):
        await pool.execute(
            f"{FILL['due jobs']} ON CONFLICT DO NOTHING", rows, timeout=3600
        )  # drains delete them
        return
    for what, statement in FILL.items():
        print(f"  {time.strftime('%H:%M:%S')} {what} ...", file=sys.stderr, flush=True)
        await pool.execute(statement, rows, timeout=3600)
    fold = load_query(DEFAULT_SCHEMA, "fold_failures").text  # as the workers that fail the jobs
    while await pool.fetchval(fold, 5000, MAX_GROUPS_OF_NAME, OTHER_ERRORS, timeout=3600):
        pass
    scheduler = Scheduler(pool)
    scheduler.register(work, name="scale.work")
    for number in range(SCHEDULES):
        trigger = Cron(f"{number % 60} {number % 24} * * *", timezone="Europe/Berlin")
        name = f"scale:{number}"
        await scheduler.schedules.add(work, trigger, schedule_id=name, args=(0.0, "ada"))
    await pool.execute("VACUUM ANALYZE", timeout=3600)


@asynccontextmanager
async def worker(dsn: str) -> AsyncIterator[str]:
    """Run a worker that claims none of the jobs, and return its id."""
    async with asyncpg.create_pool(dsn, min_size=2, max_size=6) as pool:
        scheduler = Scheduler(pool, vacuum_config=KEEPING)
        scheduler.register(work, name="scale.work", limits=[Limit("scale", max_running=10)])
        async with scheduler:
            yield str(scheduler.worker_id)


@dataclass
class Table:
    """A filled database with a live worker.

    Attributes:
        pool: Its connections, whose statements are recorded.
        visits: The costs of its pages.
        ids: Those of a worker and of a group of errors.
        current: The page that is open.
    """

    pool: asyncpg.Pool
    visits: dict[str, Visit] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    current: Visit = field(default_factory=Visit)

    async def data(self, url: str) -> Any:
        """Return the data of a page."""
        app = dashboard(Scheduler(self.pool), authorize=permit_all)
        return json.loads((await get(app, url, b"application/json"))[1]).get("data")

    async def open(self, url: str, postmaster: int | None) -> None:
        """Open a page without a cache."""
        app = dashboard(Scheduler(self.pool), authorize=permit_all)
        begin, own, server = time.perf_counter(), time.process_time(), processor_seconds(postmaster)
        status, body = await get(app, url)
        self.current.total.append(time.perf_counter() - begin)
        self.current.dashboard += time.process_time() - own
        self.current.server += processor_seconds(postmaster) - server
        if status != 200:
            raise RuntimeError(f"{url} answered {status}: {body[:500]!r}")


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[Table]:
    """Connect to a filled database."""

    def record(query: Any) -> None:
        table.current.milliseconds.setdefault(query.query, []).append(query.elapsed * 1000)

    async def watch(connection: asyncpg.Connection) -> None:
        connection.add_query_logger(record)

    warnings.simplefilter("ignore", asyncpg.InterfaceWarning)  # the logger stays on released connections
    async with worker(dsn) as worker_id, asyncpg.create_pool(dsn, min_size=1, max_size=4, init=watch) as pool:
        table = Table(pool)
        table.ids = {"worker": worker_id, "error": (await table.data("/errors"))["items"][0]["fingerprint"]}
        yield table


async def visit(tables: Sequence[Table], rounds: int, postmaster: int | None) -> None:
    """Open each page ``rounds`` times, of the tables in turn."""
    plain = [path for path in PAGES if path not in WITH_PARAMETER]
    for address in (*plain, *(f"/jobs?q={quote(each)}" for each in SEARCHES), *ITEMS):
        urls = [address.format_map(table.ids) for table in tables]
        for table, url in zip(tables, urls, strict=True):
            said = str(_searched(await table.data(url)) or "")
            table.visits[address] = Visit(says=said)
        for _ in range(rounds):
            for table, url in zip(tables, urls, strict=True):
                table.current = table.visits[address]
                await table.open(url, postmaster)
                table.current = Visit()


def _searched(data: object) -> object:
    if isinstance(data, dict):
        if isinstance(data.get("summary"), str):
            return data["summary"]
        return next((found for each in data.values() if (found := _searched(each))), None)
    return None


async def watched(dsn: str, postmaster: int | None, pages: tuple[str, ...], seconds: float) -> Watching:
    """Keep a stream of each page open, and return what that costs after the first second."""
    statements = 0

    def count(_query: object) -> None:
        nonlocal statements
        statements += 1

    async def watch(connection: asyncpg.Connection) -> None:
        connection.add_query_logger(count)

    async with asyncpg.create_pool(dsn, min_size=1, max_size=4, init=watch) as pool:
        app: Any = dashboard(Scheduler(pool), authorize=permit_all)
        received = [0]
        streams = [asyncio.create_task(_watch(app, page, received)) for page in pages]
        await asyncio.sleep(1)
        before = statements, processor_seconds(postmaster), time.process_time(), received[0]
        begin = time.perf_counter()
        await asyncio.sleep(seconds)
        after = statements, processor_seconds(postmaster), time.process_time(), received[0]
        passed = time.perf_counter() - begin
        queries, server, own, sent = (
            (late - early) / passed for early, late in zip(before, after, strict=True)
        )
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        return Watching(queries, server, own, sent / max(len(pages), 1))


async def view(dsn: str, number: int) -> None:
    """Keep that many streams of the overview open, until the process is ended."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
        app: Any = dashboard(Scheduler(pool), authorize=permit_all)
        await asyncio.gather(*(_watch(app, "/", [0]) for _ in range(number)))


async def _watch(app: Any, page: str, received: list[int]) -> None:
    """Keep a stream open, and add the bytes that it sends."""
    versions = ""

    async def receive() -> Mapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal versions
        body = message.get("body", b"")
        received[0] += len(body)
        for line in body.splitlines():
            if line.startswith(b"id: "):
                versions = line.removeprefix(b"id: ").decode()

    while True:  # a stream ends after 30 s, and a browser opens it again
        await app(_scope(f"/live?page={page}&seen={versions}", b"text/event-stream"), receive, send)


async def drain(dsn: str, jobs: int, viewers: int) -> float:
    """Return the jobs per second of one worker, while another process has the viewers."""
    command = [sys.executable, "-m", "benchmarks.scale", "--view", dsn, "--viewers", str(viewers)]
    process = await asyncio.create_subprocess_exec(*command) if viewers else None
    try:
        async with asyncpg.create_pool(dsn, min_size=2, max_size=6) as pool:
            scheduler = Scheduler(pool, vacuum_config=KEEPING)
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


async def measure(server: EmbeddedPostgres, options: argparse.Namespace) -> None:
    """Fill the tables, measure and print the report."""
    sizes = {"postgres": options.rows}
    if options.small:
        sizes["small"] = options.small
        async with asyncpg.create_pool(server.dsn(), min_size=1, max_size=1) as pool:
            if not await pool.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = 'small')"):
                await pool.execute("CREATE DATABASE small")
    for name, rows in sizes.items():
        async with asyncpg.create_pool(server.dsn(name), min_size=1, max_size=2) as pool:
            await Scheduler(pool).initialize_db()
            await fill(pool, rows)
            size = await pool.fetchval("SELECT pg_size_pretty(pg_total_relation_size('scheduled_jobs'))")
        print(f"{rows:,} jobs, {size}, {options.rounds} rounds; bound {BOUND_MS} ms a statement")
    async with AsyncExitStack() as stack:
        tables = [await stack.enter_async_context(opened(server.dsn(name))) for name in sizes]
        await visit(tables, options.rounds, server.pid)
    _report(tables)
    if options.viewers:
        await _view_and_drain(server, options)


def _report(tables: Sequence[Table]) -> None:
    head = "page | statements | slowest (ms) | page (ms) | dashboard (ms) | server (ms) | to small | says"
    print(f"\n| {head} |\n|{'---|' * 8}")
    large = tables[0].visits
    for address, each in large.items():
        ratio = f"{each.median_ms / tables[1].visits[address].median_ms:.2f} x" if tables[1:] else "-"
        own, server = each.processor_ms
        times = f"{each.slowest[0]:.1f} | {each.median_ms:.1f} | {own:.1f} | {server:.1f}"
        print(f"| `{address}` | {len(each.milliseconds)} | {times} | {ratio} | {each.says} |")
    for address, each in large.items():
        if each.slowest[0] > BOUND_MS:
            print(f"\nover the bound on {address}:\n{each.slowest[1]}")


async def _view_and_drain(server: EmbeddedPostgres, options: argparse.Namespace) -> None:
    dsn = server.dsn()
    async with worker(dsn):
        nobody = await watched(dsn, server.pid, (), options.seconds)
        own = f"server {nobody.server:.3f}, dashboard {nobody.dashboard:.3f} of a core"
        print(f"\nno viewer, an idle worker: {own}")
        for what, pages in (("the overview", ("/",) * options.viewers), ("ten pages", WATCHED)):
            cost = await watched(dsn, server.pid, pages, options.seconds)
            print(
                f"{len(pages)} viewers of {what}: {cost.statements:.1f} statements/s,"
                f" server {cost.server:.3f} and dashboard {cost.dashboard:.3f} of a core,"
                f" {cost.bytes:,.0f} bytes/s each"
            )
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
    parser.add_argument(
        "--small", type=int, default=0, metavar="ROWS", help="jobs of a table to compare with"
    )
    parser.add_argument("--viewers", type=int, default=0, help="streams of the overview during a drain")
    parser.add_argument("--seconds", type=float, default=60.0, help="of open streams (default: 60)")
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs of each drain (default: 50,000)")
    parser.add_argument("--data", type=Path, help="a folder that keeps the filled tables for the next run")
    parser.add_argument("--view", metavar="DSN", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.view:
        asyncio.run(view(options.view, options.viewers))
        return
    with EmbeddedPostgres(options.data, settings=SETTINGS) as server:
        asyncio.run(measure(server, options))


if __name__ == "__main__":
    main()
