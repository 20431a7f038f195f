"""Run for hours as a service does, and judge what grows: ``python3 dev.py soak --hours 2 --rate 2000``.

A process enqueues plain jobs one by one; two workers run them, keep them for a twelfth of the run and delete
them. Another Scheduler has a schedule for each second, jobs within a limit, and jobs that fail once. A
standby follows the server. Now and then a session holds a snapshot for a while, and ``pg_dump`` runs. Every
few seconds a line of figures goes into a CSV file: sizes and dead rows of the tables, lateness, processor
time, memory. At the end, each figure of the second half of the run must not have grown.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS
from benchmarks.drivers import Driver, DriverError
from benchmarks.growth import MIN_SAMPLES, Bound, judge
from benchmarks.machine import SETTINGS
from benchmarks.plots import draw
from benchmarks.rows.snapshot import held_snapshot
from pg_scheduler import Limit, Scheduler, current_job
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.embedded.binaries import find_binaries
from pg_scheduler.triggers import Every

RESULTS: Final = Path(__file__).resolve().parent / "results"
WORKERS: Final = 2
SLOTS: Final = 64
CALLERS: Final = 32
HISTORY: Final = 12
"""Completed jobs are kept for this part of the run, so the tables stop growing in its first half."""

PASSES: Final = 4
"""Passes of the vacuum in the time for which jobs are kept."""

SNAPSHOTS: Final = 8
DUMPS: Final = 4
"""How often each happens in a short run."""

SNAPSHOT_EVERY_S: Final = 1200.0
DUMP_EVERY_S: Final = 3600.0
"""In a long run, the seconds between two of them. A snapshot is held for a quarter of the time."""

LIMITED_RATE: Final = 20.0
"""Jobs within the limit per second, which a busy machine can run two at a time."""

FLAKY_SHARE: Final = 0.02
"""The jobs that fail, as a part of the rate."""

DRAIN_TIMEOUT_S: Final = 120.0

TABLES: Final = """
    SELECT relname, pg_total_relation_size(relid) AS bytes, n_dead_tup AS dead
    FROM pg_stat_user_tables WHERE relname LIKE 'schedule%' OR relname = 'vacuum_stats'
"""
LAG: Final = "SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn))::bigint FROM pg_stat_replication"
MIB: Final = 2.0**20

BOUNDS: Final = {
    "p50, ms": Bound(50, 20),
    "p99, ms": Bound(100, 200),
    "server CPU, us/job": Bound(20),
    "worker CPU, us/job": Bound(20),
    "worker memory, MiB": Bound(5),
    "dead rows": Bound(50, 50_000),
    "standby behind, MiB": Bound(50, 64),
}
"""The bounds of the figures."""

TABLE_BOUND: Final = Bound(10, 4)
"""That of the size of a table with its indexes, in MiB."""


async def tick() -> None:
    """Do nothing; a schedule runs it each second."""


async def narrow() -> None:
    """Sleep for a moment, within a limit."""
    await asyncio.sleep(0.001)


async def flaky() -> None:
    """Fail at the first attempt."""
    if current_job().attempt == 1:
        raise RuntimeError("the first attempt always fails")


@dataclass
class Run:
    """One run.

    Attributes:
        every: Seconds between two lines of figures.
        samples: The figures by name, each with one value for a line.
        happening: The disturbances in progress.
        meanwhile: Those since the last line.
    """

    bench: Bench
    database: Database
    seconds: float
    rate: float
    every: float
    samples: dict[str, list[float]] = field(default_factory=dict)
    happening: set[str] = field(default_factory=set)
    meanwhile: set[str] = field(default_factory=set)

    async def drive(self, path: Path) -> None:
        """Run the load until its end, and write a line of figures every few seconds."""
        days = self.seconds / HISTORY / 86_400
        options = {
            "slots": SLOTS,
            "report": self.every,
            "days": days,
            "vacuum": days * 1440 / PASSES,
        }
        async with AsyncExitStack() as stack:
            workers = [
                await stack.enter_async_context(self.database.worker(OURS, options=options))
                for _ in range(WORKERS)
            ]
            sending = self.database.run(
                OURS,
                "single",
                n=int(self.rate * self.seconds),
                callers=CALLERS,
                rate=self.rate,
                timeout=2 * self.seconds + 600,
            )
            tasks = [
                asyncio.create_task(each)
                for each in (
                    sending,
                    self._other_jobs(),
                    self._again_and_again("snapshot", SNAPSHOTS, SNAPSHOT_EVERY_S),
                    self._again_and_again("dump", DUMPS, DUMP_EVERY_S),
                )
            ]
            try:
                await self._sample(workers, tasks, path)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error
            await self._drained()
            for worker in workers:
                await worker.stop()
        await self.database.check_finished(OURS)

    async def _other_jobs(self) -> None:
        """Enqueue and run the jobs that are not plain."""
        async with asyncpg.create_pool(self.database.dsn, min_size=1, max_size=8) as pool:
            scheduler = Scheduler(pool, vacuum_enabled=False)
            scheduler.register(narrow, limits=[Limit(max_running=2)])
            scheduler.register(flaky, max_retries=1)
            async with scheduler:
                await scheduler.schedules.add(tick, Every(timedelta(seconds=1)), schedule_id="tick")
                try:
                    async with asyncio.TaskGroup() as senders:
                        senders.create_task(_send(scheduler, narrow, LIMITED_RATE))
                        senders.create_task(_send(scheduler, flaky, self.rate * FLAKY_SHARE))
                finally:
                    await scheduler.schedules.remove("tick")
                    await self._drained()

    async def _again_and_again(self, what: str, times: int, longest_s: float) -> None:
        every = min(self.seconds / times, longest_s)
        while True:
            await asyncio.sleep(every * 3 / 4 if what == "snapshot" else every)
            self.happening.add(what)
            self.meanwhile.add(what)
            if what == "snapshot":
                async with held_snapshot(self.database):
                    await asyncio.sleep(every / 4)
            else:
                await dump(self.database.dsn)
            self.happening.discard(what)

    async def _sample(
        self, workers: Sequence[Driver], tasks: Sequence[asyncio.Task[Any]], path: Path
    ) -> None:
        """Write lines until the producer has ended, which is the only task that does."""
        began = time.monotonic()
        before: tuple[float, float, float] | None = None
        async with self.database.connect() as connection:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer: csv.DictWriter[str] | None = None
                while not any(task.done() for task in tasks):
                    reports = [await worker.wait_for("report") for worker in workers]
                    jobs, worker_cpu = (sum(report[key] for report in reports) for key in ("count", "cpu"))
                    server_cpu = (await self.database.counters()).cpu_seconds
                    now, before = before, (jobs, server_cpu, worker_cpu)
                    if now is None:
                        continue
                    done, server, worker = (after - early for early, after in zip(now, before, strict=True))
                    tables = await connection.fetch(TABLES)
                    figures = {
                        "jobs/s": done / self.every,
                        "p50, ms": max(report["p50"] for report in reports),
                        "p99, ms": max(report["p99"] for report in reports),
                        "server CPU, us/job": 1e6 * server / max(done, 1),
                        "worker CPU, us/job": 1e6 * worker / max(done, 1),
                        "worker memory, MiB": max(report["rss"] for report in reports) / MIB,
                        "dead rows": float(sum(table["dead"] for table in tables)),
                        "load of the machine": os.getloadavg()[0],
                        "standby behind, MiB": (await connection.fetchval(LAG) or 0) / MIB,
                        **{f"{row['relname']}, MiB": row["bytes"] / MIB for row in tables},
                    }
                    for name, value in figures.items():
                        self.samples.setdefault(name, []).append(value)
                    line = {"seconds": time.monotonic() - began} | figures
                    if writer is None:
                        writer = csv.DictWriter(file, [*line, "meanwhile"])
                        writer.writeheader()
                    shown = {name: f"{value:.6g}" for name, value in line.items()}
                    meanwhile = " ".join(sorted(self.meanwhile))
                    self.meanwhile = set(self.happening)
                    writer.writerow(shown | {"meanwhile": meanwhile})
                    file.flush()
                    self.bench.progress(
                        f"{line['seconds'] / 60:.1f} min, {figures['jobs/s']:.0f} jobs/s, "
                        f"p99 {figures['p99, ms']:.0f} ms, {shown['scheduled_jobs, MiB']} MiB, "
                        f"{figures['dead rows']:.0f} dead {meanwhile}"
                    )

    async def _drained(self) -> None:
        """Wait until no job is unfinished, up to a limit."""
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        async with self.database.connect() as connection:
            while await connection.fetchval(OURS.unfinished) and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    def verdict(self) -> bool:
        """Print how each figure changed, and return whether none has grown."""
        print(f"\n| figure | median | change over the second half | verdict |\n|{'---|' * 4}")
        is_steady = True
        for name, values in self.samples.items():
            bound = BOUNDS.get(name) or (TABLE_BOUND if name.endswith(", MiB") else None)
            if bound is None:
                continue
            found = judge(values, bound)
            is_steady &= not found.grows
            verdict = f"GROWS by more than {bound.percent:g} %" if found.grows else "steady"
            print(f"| {name} | {found.median:.6g} | {found.percent:+.1f} % | {verdict} |")
        return is_steady


async def _send(scheduler: Scheduler, function: Any, rate: float) -> None:
    while True:
        await asyncio.sleep(1 / rate)
        await scheduler.enqueue(function)


async def dump(dsn: str) -> None:
    """Dump the database to nowhere."""
    program = str(find_binaries() / "pg_dump")
    process = await asyncio.create_subprocess_exec(
        program, "--format=custom", f"--dbname={dsn}", stdout=asyncio.subprocess.DEVNULL
    )
    try:
        if await process.wait():
            raise DriverError(f"pg_dump ended with {process.returncode}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextmanager
def standby(server: EmbeddedPostgres, data: Path) -> Iterator[None]:
    """Run a hot standby of the server."""
    folder = Path(tempfile.mkdtemp(prefix="standby-"))
    copy = folder / "data"
    try:
        subprocess.run(
            [
                find_binaries() / "pg_basebackup",
                *("--write-recovery-conf", "--checkpoint=fast", "--create-slot", "--slot=soak"),
                *(f"--dbname={server.dsn()}", f"--pgdata={copy}"),
            ],
            check=True,
        )
        owner = data.stat()  # the account of the server, which is another one if this one is root
        for path in (folder, copy, *copy.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        with EmbeddedPostgres(copy, settings=SETTINGS):
            yield
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def opened(server: EmbeddedPostgres, *, has_standby: bool) -> AsyncIterator[tuple[Bench, Database]]:
    """Open a database with empty tables, and attach a standby."""
    bench = Bench(server, quick=False, chosen=[], rounds=1, soak_minutes=0)
    admin = await bench.open()
    bench.outcome.name = "soak"
    with (
        standby(server, Path(await admin.fetchval("SHOW data_directory")))
        if has_standby
        else tempfile.TemporaryDirectory()
    ):
        async with bench.database(OURS) as database:
            yield bench, database
    await bench.close()


async def run(server: EmbeddedPostgres, options: argparse.Namespace, path: Path) -> Run:
    """Run once, and write the figures to the file."""
    seconds = 3600 * options.hours
    async with opened(server, has_standby=options.standby) as (bench, database):
        one = Run(bench, database, seconds, options.rate, every=min(15.0, seconds / (5 * MIN_SAMPLES)))
        await one.drive(path)
    return one


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once and return the exit code: 1 if a figure grew."""
    parser = argparse.ArgumentParser(prog="dev.py soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0, help="duration (default: 2)")
    parser.add_argument("--rate", type=float, default=2000.0, help="plain jobs per second (default: 2,000)")
    parser.add_argument("--csv", type=Path, help="file of the figures (default: in benchmarks/results)")
    parser.add_argument("--plots", type=Path, help="folder of the plots")
    parser.add_argument("--no-standby", dest="standby", action="store_false", help="attach no standby")
    options = parser.parse_args(arguments)
    path: Path = options.csv or RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-soak.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with EmbeddedPostgres(settings=SETTINGS) as server:
        one = asyncio.run(run(server, options, path))
    is_steady = one.verdict()
    reached = sum(one.samples["jobs/s"]) / len(one.samples["jobs/s"])
    print(f"\n{reached:,.0f} of {options.rate:,.0f} plain jobs/s; every job ended; written to {path}")
    if options.plots:
        curves = [
            {"plot": f"Soak: {name} over minutes", "label": name, "x": _minutes(one, values), "y": values}
            for name, values in one.samples.items()
        ]
        draw({"rows": [{"curves": curves}]}, options.plots)
    print("nothing grows" if is_steady else "growth found")
    return 0 if is_steady else 1


def _minutes(one: Run, values: Sequence[float]) -> list[float]:
    return [one.every * number / 60 for number in range(1, len(values) + 1)]


if __name__ == "__main__":
    sys.exit(main())
