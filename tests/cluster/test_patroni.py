"""A switchover, a killed postmaster and a lost node under load lose no acknowledged job.

Real time: Patroni declares a node dead after 20 seconds. ``dev.py test tests/cluster/test_patroni.py -- -s``
prints the durations of the outages, which are not judged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.errors import DatabaseUnavailableError
from tests.cluster import patroni
from tests.cluster.fleet import ROOT
from tests.support.stories import NIGHTLY
from tools.chaos import jobs, ledger, report
from tools.chaos import run as chaos_run
from tools.chaos.checker import judge
from tools.chaos.evidence import Evidence
from tools.chaos.limits import COPY_ADMISSIONS
from tools.chaos.load import PLAIN, Load, Request
from tools.chaos.nemesis import SERVER, Fault
from tools.chaos.schedules import add_schedules

LEASE_S = float(os.environ.get("PG_SCHEDULER_TEST_LEASE") or 5)
RATE = 300
WORKERS = ("worker-1", "worker-2")
CALM_S = 2.0
"""Seconds of load before the first fault, and after each."""

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(480),
    pytest.mark.skipif(bool(patroni.find_obstacle()), reason=patroni.find_obstacle() or ""),
]


class Probe:
    """Schedules a job every twentieth of a second, and records the times of the answers."""

    def __init__(self, client: Scheduler, load: Load) -> None:
        self._client = client
        self._load = load
        self._calls: set[asyncio.Task[None]] = set()
        self._new_answer = asyncio.Event()
        self.answers: list[float] = []

    async def run(self) -> None:
        while True:
            call = asyncio.create_task(self._call())
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            await asyncio.sleep(0.05)

    async def wait_for_answers(self, count: int) -> None:
        """Wait for so many more answers."""
        wanted = len(self.answers) + count
        async with asyncio.timeout(patroni.TIMEOUT_S):
            while len(self.answers) < wanted:
                self._new_answer.clear()
                await self._new_answer.wait()

    async def stop(self) -> None:
        await asyncio.gather(*self._calls)

    async def _call(self) -> None:
        try:
            job_id = await self._client.schedule(jobs.quick, execution_time=datetime.now(UTC))
        except DatabaseUnavailableError:
            return
        self.answers.append(time.monotonic())
        self._new_answer.set()
        self._load.requests[job_id] = Request(PLAIN, confirmed=True)


@asynccontextmanager
async def workers(dsn: str, folder: Path) -> AsyncIterator[None]:
    """Run two worker processes, which must shut down gracefully."""
    running = []
    for seat in WORKERS:
        command = [sys.executable, "-m", "tools.chaos.worker", dsn, str(folder), seat, str(LEASE_S)]
        log = os.open(folder / f"{seat}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        running.append(await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stderr=log))
        os.close(log)
    try:
        yield
        async with asyncio.timeout(40):
            for worker in running:
                await worker.communicate(b"")
        assert [worker.returncode for worker in running] == [0, 0]
    finally:
        for worker in running:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()


async def kill_postmaster(cluster: patroni.Cluster, _: Probe) -> None:
    os.kill((await cluster.primary()).postmaster, signal.SIGKILL)


async def switch_over(cluster: patroni.Cluster, _: Probe) -> None:
    await cluster.switch_over()


async def lose_node(cluster: patroni.Cluster, probe: Probe) -> None:
    """Kill the primary node, and start it when the other one accepts jobs."""
    primary = await cluster.lose_primary()
    try:
        await probe.wait_for_answers(2)
    except TimeoutError:
        raise AssertionError(f"the other node accepts no jobs\n{cluster.logs()}") from None
    primary.start()


FAULTS: dict[str, Callable[[patroni.Cluster, Probe], Awaitable[None]]] = {
    "server: switchover": switch_over,
    "server: postmaster killed": kill_postmaster,
    "server: node lost": lose_node,
}


async def drain(pool: asyncpg.Pool) -> None:
    """Wait until every job has ended, with a deadline; the verdict reports jobs that have not."""
    await pool.execute("UPDATE scheduler_schedules SET paused_at = now()")
    deadline = time.monotonic() + LEASE_S + patroni.TIMEOUT_S
    while time.monotonic() < deadline:
        if not await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL"):
            return
        await asyncio.sleep(0.2)


def outage(fault: Fault, instants: Sequence[float]) -> float:
    """Return the longest gap between two instants from a fault on, in seconds."""
    first = bisect_left(instants, fault.began) - 1
    last = bisect_left(instants, fault.ended + CALM_S / 2)
    return max(later - one for one, later in pairwise(instants[first:last]))


@NIGHTLY
async def test_failovers_lose_no_acknowledged_job(scratch: Path | None, tmp_path: Path) -> None:
    offset = time.time() - time.monotonic()
    faults: list[Fault] = []
    async with patroni.Cluster(scratch) as cluster, AsyncExitStack() as stack:
        pool = await asyncpg.create_pool(cluster.dsn, min_size=0, max_size=10, timeout=10)
        stack.callback(pool.terminate)  # without waiting for calls in flight
        client = Scheduler(pool, misfire_grace_time=None)
        await client.initialize_db()
        await pool.execute(COPY_ADMISSIONS)
        await pool.execute(chaos_run.ARCHIVE)
        await pool.execute(chaos_run.ARCHIVE_RESULTS)
        await add_schedules(client)
        async with workers(cluster.dsn, tmp_path):
            load = Load(client, RATE, seed=7)
            probe = Probe(client, load)
            load.start()
            probing = asyncio.create_task(probe.run())
            async with asyncio.timeout(patroni.TIMEOUT_S):
                while len(await client.workers()) < len(WORKERS):  # noqa: ASYNC110 - other processes report nothing here
                    await asyncio.sleep(0.1)
            await asyncio.sleep(CALM_S)
            for kind, inflict in FAULTS.items():
                began = time.monotonic()
                await inflict(cluster, probe)
                await cluster.wait_until_settled()
                faults.append(Fault(kind, SERVER, began, time.monotonic()))
                await asyncio.sleep(CALM_S)
            probing.cancel()
            await probe.stop()
            await load.stop()
            await drain(pool)
            rows = await chaos_run._rows(cluster.dsn, offset)
            results = await chaos_run._results(cluster.dsn)
            admissions = await chaos_run._admissions(cluster.dsn, offset)
    ledgers = ledger.read(tmp_path)
    quiet = faults[-1].ended
    evidence = Evidence(
        load.requests, rows, results, admissions, ledgers, faults, {}, LEASE_S, quiet, timed=False
    )
    verdict = judge(evidence)
    starts = sorted(one.started for attempts in ledgers.attempts.values() for one in attempts)
    outages = [
        f"| {fault.kind} | {outage(fault, probe.answers):.1f} s | {outage(fault, starts):.1f} s |"
        for fault in faults
    ]
    head = [f"| lease {LEASE_S:g} s | no job enqueued for | no job started for |", "|---|---|---|"]
    print("", *head, *outages, "", report.table(verdict, "total"), sep="\n")  # noqa: T201 - for -s
    assert verdict.holds, report.render(verdict)
