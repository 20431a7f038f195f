"""One run: start a server and workers, apply load and faults, wait for the end of all jobs, and judge."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.embedded import EmbeddedPostgres
from tools.chaos import ledger
from tools.chaos.callers import FullLoad
from tools.chaos.changes import SETTINGS, ChangeReader
from tools.chaos.checker import judge
from tools.chaos.clock import Clock, find_library
from tools.chaos.durable_jobs import CREATE_EFFECTS, EFFECTS
from tools.chaos.evidence import Admission, Effect, Evidence, KeptResult, Row, StreamItem, Verdict
from tools.chaos.fleet import Fleet
from tools.chaos.jobs import PERIODIC, SCHEDULED, codec
from tools.chaos.limits import ADMISSIONS, COPY_ADMISSIONS
from tools.chaos.nemesis import Nemesis
from tools.chaos.proxy import Proxy
from tools.chaos.schedules import add_schedules, pause_schedules, stopped_schedules
from tools.chaos.stalls import recorded_stalls
from tools.chaos.unhandled import report_unhandled_errors

SERVER_SETTINGS: Final = {"max_connections": "60", "max_wal_size": "1GB", **SETTINGS}
ON_MEMORY: Final = {"fsync": "off"}
WARM_UP_S: Final = 2.0
DRAIN_TIMEOUT_S: Final = 40.0
STATUS_INTERVAL_S: Final = 10.0
SOON: Final = 3.0
"""Seconds after the last call until every requested job is due."""

ROWS_PER_FETCH: Final = 5000
"""Rows to read at a time."""

UNFINISHED: Final = (
    "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL AND ($1 OR job_name <> ALL ($2))"
)
ARCHIVE: Final = """
    CREATE TABLE chaos_archive (LIKE scheduled_jobs, place bigint GENERATED ALWAYS AS IDENTITY);
    CREATE FUNCTION chaos_archive() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
    BEGIN
        INSERT INTO chaos_archive SELECT OLD.*;
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_archive AFTER DELETE ON scheduled_jobs
        FOR EACH ROW EXECUTE FUNCTION chaos_archive();
"""
"""Keeps the rows that the vacuum deletes."""

ROWS: Final = """
    SELECT job_id, job_name, status, worker_id, attempt, retry_count, max_retries, priority,
        extract(epoch FROM execution_time)::float8 - $1, extract(epoch FROM created_at)::float8 - $1,
        extract(epoch FROM started_at)::float8 - $1, unique_key,
        extract(epoch FROM (options ->> 'fire_time')::timestamptz)::float8 - $1,
        extract(epoch FROM finished_at)::float8 - $1
    FROM (SELECT *, NULL::bigint AS place FROM scheduled_jobs UNION ALL SELECT * FROM chaos_archive) AS job
    ORDER BY place NULLS LAST
"""
"""The rows that were deleted come first, in that order, so the last row of an id counts."""

DELETED: Final = "SELECT count(*) FROM chaos_archive"
INSERTED_AGAIN: Final = """
    SELECT job_id FROM (SELECT job_id FROM scheduled_jobs UNION ALL SELECT job_id FROM chaos_archive) AS job
    GROUP BY job_id HAVING count(*) > 1
"""

ARCHIVE_RESULTS: Final = """
    CREATE TABLE chaos_results (LIKE scheduler_results);
    CREATE FUNCTION chaos_results() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
    BEGIN
        INSERT INTO chaos_results SELECT OLD.*;
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_results AFTER DELETE ON scheduler_results
        FOR EACH ROW WHEN (OLD.expires_at <= now()) EXECUTE FUNCTION chaos_results();
"""
"""Keeps the results whose time has come, as it does when the server's clock is set forward by years."""

RESULTS: Final = """
    SELECT job_id, status, value::text, error IS NOT NULL, attempts
    FROM (SELECT *, 2 AS place FROM scheduler_results UNION ALL SELECT *, 1 FROM chaos_results) AS result
    ORDER BY place
"""

ARCHIVE_ITEMS: Final = """
    CREATE TABLE chaos_items (LIKE scheduler_streams);
    CREATE FUNCTION chaos_items() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
    BEGIN
        INSERT INTO chaos_items SELECT OLD.*;
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_items AFTER DELETE ON scheduler_streams
        FOR EACH ROW EXECUTE FUNCTION chaos_items();
"""
"""Keeps the items of the jobs that the vacuum deletes."""

ITEMS: Final = """
    SELECT job_id, name, number, value::text
    FROM (SELECT * FROM scheduler_streams UNION ALL SELECT * FROM chaos_items) AS item
    ORDER BY job_id, name, number
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """The size and duration of a run.

    Attributes:
        seconds: Duration of the faults.
        calm: Seconds of load after them.
        scratch: The folder of the server's data, in memory and without fsync; None for the disk.
        timed: Whether lateness is judged.
    """

    seed: int
    seconds: float
    calm: float
    workers: int
    rate: int
    lease: float
    folder: Path
    scratch: Path | None
    timed: bool


@dataclass(frozen=True, slots=True)
class _Stage:
    server: EmbeddedPostgres
    dsn: str
    fleet: Fleet
    clock: Clock | None


async def run(settings: Settings, log: Callable[[str], None]) -> Verdict:
    """Run once and return the verdict."""
    server_settings = SERVER_SETTINGS | (ON_MEMORY if settings.scratch else {})
    library = find_library()
    if library is None:
        log("libfaketime is not installed: clocks are not stepped")
    with ExitStack() as stack:
        clock = Clock(library) if library else None
        if clock is not None:
            stack.callback(clock.close)
        server = stack.enter_context(
            EmbeddedPostgres(
                settings=server_settings,
                scratch=settings.scratch,
                environment=clock.environment if clock else None,
            )
        )
        connection = await asyncpg.connect(server.dsn())
        await connection.execute("CREATE DATABASE chaos")
        await connection.close()
        dsn = server.dsn("chaos")
        names = [f"worker-{number}" for number in range(1, settings.workers + 1)]
        fleet = Fleet(settings.folder, dsn, settings.lease, names, library=library)
        try:
            evidence = await _gather(settings, _Stage(server, dsn, fleet, clock), log)
        finally:
            await fleet.close()
    return judge(evidence)


async def _gather(settings: Settings, stage: _Stage, log: Callable[[str], None]) -> Evidence:
    offset = time.time() - time.monotonic()
    fleet = stage.fleet
    unhandled: list[str] = []
    report_unhandled_errors(unhandled.append)
    async with AsyncExitStack() as stack:
        proxy = Proxy(stage.dsn)
        stack.callback(proxy.close)
        pool = await stack.enter_async_context(
            asyncpg.create_pool(dsn := await proxy.start(), min_size=0, max_size=10, timeout=10)
        )
        client = Scheduler(pool, misfire_grace_time=None, codec=codec(encrypts=False))
        await client.initialize_db()
        await pool.execute(COPY_ADMISSIONS)
        await pool.execute(CREATE_EFFECTS)
        await pool.execute(ARCHIVE)
        await pool.execute(ARCHIVE_RESULTS)
        await pool.execute(ARCHIVE_ITEMS)
        changes = ChangeReader(stage.dsn)
        await changes.start()
        await add_schedules(client)
        await fleet.start()
        load = FullLoad(client, settings.rate, settings.seed, pool, dsn)
        load.start()
        await asyncio.sleep(WARM_UP_S)
        status = asyncio.create_task(_report(load, log))
        stack.callback(status.cancel)
        nemesis = Nemesis(stage.server, stage.dsn, fleet, proxy, stage.clock)
        await nemesis.apply(settings.seed, settings.lease, settings.seconds, log)
        quiet = time.monotonic()
        log("faults ended")
        await asyncio.sleep(settings.calm)
        await nemesis.restart_sleeps()  # callers wait for some of these jobs
        await load.stop()
        status.cancel()
        raised = ", ".join(f"{count} {kind}" for kind, count in load.faults.items())
        log(f"load ended; calls that raised: {raised or 'none'}")
        await asyncio.sleep(SOON)
        nemesis.catch_up()
        # An attempt may have suspended its job just after a step of the clock.
        await nemesis.restart_sleeps()
        await _drained(stage.dsn, periodic=False)
        stopped = await stopped_schedules(client, DRAIN_TIMEOUT_S)
        await pause_schedules(client)
        await _disable_schedules(client, stage.dsn)
        await _drained(stage.dsn, periodic=True)
        log("all jobs ended")
        await fleet.stop()
        unread = await changes.stop()
    ledgers = ledger.read(settings.folder)
    return Evidence(
        requests=load.requests,
        rows=await _rows(stage.dsn, offset),
        results=await _results(stage.dsn),
        admissions=await _admissions(stage.dsn, offset),
        effects=await _effects(stage.dsn),
        items=await _items(stage.dsn),
        calls=load.calls,
        deleted=await _deleted(stage.dsn),
        inserted_again=await _inserted_again(stage.dsn),
        unread=unread,
        changes=changes.changes,
        stopped_schedules=stopped,
        ledgers=ledgers,
        faults=[*nemesis.faults, *recorded_stalls(ledgers, nemesis.faults)],
        deaths=fleet.deaths,
        lease=settings.lease,
        quiet=quiet,
        unhandled=unhandled,
        unexpected_exits=fleet.unexpected_exits,
        timed=settings.timed,
    )


async def _report(load: FullLoad, log: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(STATUS_INTERVAL_S)
        log(str(load))


async def _drained(dsn: str, *, periodic: bool) -> None:
    """Wait until no job is pending or running, up to a limit; the checker reports jobs that never end."""
    connection = await asyncpg.connect(dsn)
    try:
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while await connection.fetchval(UNFINISHED, periodic, [*PERIODIC, *SCHEDULED]):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.2)
    finally:
        await connection.close()


async def _disable_schedules(client: Scheduler, dsn: str) -> None:
    """Disable the periodic jobs on every node."""
    for key in PERIODIC:
        assert client.disable_periodic_job(key)
    connection = await asyncpg.connect(dsn)
    try:
        while await connection.fetchval("SELECT bool_or(paused_at IS NULL) FROM scheduler_schedules"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    finally:
        await connection.close()
    await asyncio.sleep(1)  # a planner may be in the middle of a pass


async def _rows(dsn: str, offset: float) -> dict[str, Row]:
    """Read all rows, possibly millions, in portions."""
    rows: dict[str, Row] = {}
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            async for record in connection.cursor(ROWS, offset, prefetch=ROWS_PER_FETCH):
                row = Row(*map(_shared, record))
                rows[row.job_id] = row
    finally:
        await connection.close()
    return rows


async def _results(dsn: str) -> dict[str, KeptResult]:
    connection = await asyncpg.connect(dsn)
    try:
        return {
            sys.intern(job_id): KeptResult(status, _decrypted(value), has_error, attempts)
            for job_id, status, value, has_error, attempts in await connection.fetch(RESULTS)
        }
    finally:
        await connection.close()


def _decrypted(text: str | None) -> Any:
    """Return the value of a result; some workers encrypt them."""
    value = None if text is None else json.loads(text)
    if isinstance(value, dict):
        return json.loads(codec(encrypts=False).decode(base64.b64decode(value["data"]), ""))
    return value


async def _admissions(dsn: str, offset: float) -> list[Admission]:
    connection = await asyncpg.connect(dsn)
    try:
        return [Admission(*map(_shared, record)) for record in await connection.fetch(ADMISSIONS, offset)]
    finally:
        await connection.close()


async def _effects(dsn: str) -> list[Effect]:
    connection = await asyncpg.connect(dsn)
    try:
        return [Effect(*map(_shared, record)) for record in await connection.fetch(EFFECTS)]
    finally:
        await connection.close()


async def _items(dsn: str) -> list[StreamItem]:
    connection = await asyncpg.connect(dsn)
    try:
        return [
            StreamItem(sys.intern(job_id), sys.intern(name), number, _decrypted(value))
            for job_id, name, number, value in await connection.fetch(ITEMS)
        ]
    finally:
        await connection.close()


async def _deleted(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval(DELETED))
    finally:
        await connection.close()


async def _inserted_again(dsn: str) -> frozenset[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return frozenset(record[0] for record in await connection.fetch(INSERTED_AGAIN))
    finally:
        await connection.close()


def _shared(value: Any) -> Any:
    """Intern strings, which the ledgers contain too."""
    return sys.intern(value) if isinstance(value, str) else value
