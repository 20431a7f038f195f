"""Schedule the jobs of the demo and kill a node at fixed times, and compute the figures on the screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from pg_scheduler import JobPriority, JobSpec, Scheduler

from . import jobs
from .jobs import BROKEN_ATTEMPTS, Ledger, Tally
from .nodes import Node, Nodes

DURATION_S: Final = 17.0
GRACE_S: Final = 6.0
"""Seconds after ``DURATION_S`` within which unfinished jobs may still finish."""

BULK_AT_S: Final = 3.0
ORDERS_AT_S: Final = 3.3
VIDEOS_AT_S: Final = 8.0
KILL_AT_S: Final = 9.5

REMINDERS: Final = 45
CARDS: Final = 3
IMPORTS: Final = 2000
ORDERS_PER_PRIORITY: Final = 10
VIDEOS: Final = 12

LEAST_URGENT_FIRST: Final = (JobPriority.LOW, JobPriority.NORMAL, JobPriority.HIGH, JobPriority.CRITICAL)


class Scenario:
    """The actions of the demo.

    Attributes:
        expected: The kind of every job that was scheduled, by job id.
        victim: The node that was killed.
        killed_at: The time at which it was killed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        nodes: Nodes,
        pool: asyncpg.Pool,
        ledger: Ledger,
        log: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._nodes = nodes
        self._pool = pool
        self._ledger = ledger
        self._log = log
        self._started = time.monotonic()
        self.expected: dict[str, str] = {}
        self.victim: Node | None = None
        self.killed_at: datetime | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def planned(self, kind: str) -> int:
        """Return how many jobs of this kind were scheduled; orders of all priorities are one kind."""
        # The kind of an order has its priority behind a comma, such as "order, high".
        return sum(name.partition(",")[0] == kind for name in self.expected.values())

    async def run(self) -> None:
        """Run all actions and wait until every job has finished."""
        await self._schedule_one_off_jobs()
        await self._wait_until(BULK_AT_S)
        await self._schedule_imports()
        await self._wait_until(ORDERS_AT_S)
        await self._schedule_orders()
        await self._wait_until(VIDEOS_AT_S)
        await self._schedule_videos()
        await self._wait_until(KILL_AT_S)
        await self._kill_busiest_node()
        await self._wait_for_reclaim()
        await self._wait_until(DURATION_S)
        await self._wait_for_completion()

    async def _wait_until(self, elapsed_s: float) -> None:
        """Wait until so many seconds have passed since the start of the demo."""
        await asyncio.sleep(max(elapsed_s - self.elapsed, 0))

    async def _schedule_one_off_jobs(self) -> None:
        """Schedule reminders at different times, card payments that fail at first, and a job that fails."""
        now = datetime.now(UTC)
        # The reminders are due one after the other, during the whole demo but its last second.
        step = timedelta(seconds=(DURATION_S - 1) / REMINDERS)
        for number in range(REMINDERS):
            due = now + timedelta(seconds=0.5) + number * step
            job_id = await self._scheduler.schedule(jobs.remind, execution_time=due, args=(number,))
            self.expected[job_id] = "reminder"
        self._log(f"schedule {REMINDERS} reminders, one due every {step.total_seconds():.2f} s")
        soon = now + timedelta(seconds=1)
        for number in range(CARDS):
            job_id = await self._scheduler.schedule(
                jobs.charge_card, execution_time=soon, args=(number,), max_retries=3
            )
            self.expected[job_id] = "card"
        self._log(f"schedule {CARDS} card payments that fail twice; retries after 0.5 s and 1 s")
        job_id = await self._scheduler.schedule(
            jobs.call_unknown_service, execution_time=soon, max_retries=jobs.BROKEN_ATTEMPTS - 1
        )
        self.expected[job_id] = "broken"
        self._log(f"schedule 1 broken job that fails at each of its {jobs.BROKEN_ATTEMPTS} attempts")

    async def _schedule_imports(self) -> None:
        """Schedule many jobs of low priority at once."""
        now = datetime.now(UTC)
        specs = [
            JobSpec(jobs.import_row, now, args=(number,), priority=JobPriority.LOW)
            for number in range(IMPORTS)
        ]
        started = time.monotonic()
        self._expect("import", await self._scheduler.schedule_bulk(specs))
        duration_ms = (time.monotonic() - started) * 1000
        self._log(f"schedule {IMPORTS:,} imports of low priority in bulk, in {duration_ms:.0f} ms")

    async def _schedule_orders(self) -> None:
        """Schedule orders of each priority while imports wait, so that urgent orders overtake them."""
        pending = (await self._scheduler.count_jobs(job_name="demo.import")).pending
        due = datetime.now(UTC) + timedelta(seconds=0.2)
        for priority in LEAST_URGENT_FIRST:
            specs = [
                JobSpec(jobs.ship_order, due, args=(number, priority.value), priority=priority)
                for number in range(ORDERS_PER_PRIORITY)
            ]
            self._expect(f"order, {priority.value}", await self._scheduler.schedule_bulk(specs))
        self._log(
            f"schedule {ORDERS_PER_PRIORITY * len(LEAST_URGENT_FIRST)} orders of four priorities "
            f"while {pending:,} imports are pending"
        )

    async def _schedule_videos(self) -> None:
        """Schedule long jobs, which run when a node is killed."""
        now = datetime.now(UTC)
        specs = [JobSpec(jobs.render_video, now, args=(number,)) for number in range(VIDEOS)]
        self._expect("video", await self._scheduler.schedule_bulk(specs))
        self._log(f"schedule {VIDEOS} videos of {jobs.VIDEO_SECONDS:.0f} s")

    async def _kill_busiest_node(self) -> None:
        """Kill the node that runs the most videos, without a chance to stop its jobs."""
        tallies = [tally for tally in await self._ledger.tallies() if tally.kind == "video"]
        # A tally counts the attempts of a node that have begun and not ended as open.
        busiest_tally = max(tallies, key=lambda tally: tally.open)
        victim = self._nodes[busiest_tally.node]
        running = sum(tally.open for tally in tallies if tally.node == victim.name)
        await self._nodes.kill(victim, self._pool)
        self.victim, self.killed_at = victim, datetime.now(UTC)
        self._log(f"kill {victim.name}, pid {victim.pid}, with SIGKILL while it runs {running} videos")
        lease = self._scheduler.LEASE_DURATION
        self._log("its connection closes, which frees its liveness lock")
        self._log(f"its jobs are reclaimed within seconds, long before its lease of {lease:g} s expires")

    async def _wait_for_reclaim(self) -> None:
        """Wait until the other node runs jobs of the killed one again, or the time of the demo is over."""
        while self.elapsed < DURATION_S:
            restarts = await self._ledger.count_restarts("video")
            if restarts:
                self._log(f"the other node has reclaimed the orphaned jobs and runs {restarts} videos again")
                return
            await asyncio.sleep(0.05)

    async def _wait_for_completion(self) -> None:
        """Wait until no job is left, for some seconds after the end at most."""
        while self.elapsed < DURATION_S + GRACE_S:
            counts = await self._scheduler.count_jobs()
            if counts.pending + counts.running == 0:
                return
            await asyncio.sleep(0.05)

    def _expect(self, kind: str, job_ids: list[str | None]) -> None:
        """Note the kind of jobs that were scheduled. The id of a job that was not stored is None."""
        for job_id in job_ids:
            if job_id is not None:
                self.expected[job_id] = kind


TITLES: Final = {
    "reminder": "reminders, timed",
    "interval": "interval, every 1 s",
    "cron": "cron, every 2 s",
    "card": "cards, 2 retries each",
    "broken": "broken, always fails",
    "import": "imports, low priority",
    "order": "orders, 4 priorities",
    "video": "videos of 3 s",
}


@dataclass(frozen=True, slots=True)
class NodeView:
    """Figures of one node."""

    name: str
    pid: int
    killed: bool
    running: int
    done: int


@dataclass(frozen=True, slots=True)
class KindView:
    """Figures of one kind of job.

    Attributes:
        done: Completed jobs by node.
        planned: Jobs that were scheduled so far: 0 if the demo schedules the first ones later, and None for
            a periodic job.
    """

    title: str
    done: Sequence[int]
    finished: int
    running: int
    failed_attempts: int
    planned: int | None


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a screen shows."""

    elapsed: float
    duration: float
    nodes: Sequence[NodeView]
    kinds: Sequence[KindView]


def build_view(scenario: Scenario, nodes: Nodes, tallies: Sequence[Tally]) -> View:
    """Return the figures of nodes and kinds of jobs.

    ``tallies`` are the counts of attempts that the ledger of the demo has, by node and kind of job.
    """
    return View(
        elapsed=scenario.elapsed,
        duration=DURATION_S,
        nodes=[
            NodeView(
                name=node.name,
                pid=node.pid,
                killed=node.killed,
                running=sum(tally.open for tally in tallies if tally.node == node.name),
                done=sum(tally.done for tally in tallies if tally.node == node.name),
            )
            for node in nodes
        ],
        kinds=[_kind_view(kind, scenario, nodes, tallies) for kind in TITLES],
    )


def _kind_view(kind: str, scenario: Scenario, nodes: Nodes, tallies: Sequence[Tally]) -> KindView:
    """Return the figures of one kind of job."""
    # The orders of each priority are a kind of their own in the ledger, such as "order, high".
    kind_tallies = [tally for tally in tallies if tally.kind.partition(",")[0] == kind]
    live_names = {node.name for node in nodes if not node.killed}
    failed = sum(tally.failed for tally in kind_tallies)
    # A broken job has finished when each of its attempts has failed. It never completes.
    completed = sum(tally.done for tally in kind_tallies)
    finished = failed // BROKEN_ATTEMPTS if kind == "broken" else completed
    return KindView(
        title=TITLES[kind],
        done=[sum(tally.done for tally in kind_tallies if tally.node == node.name) for node in nodes],
        finished=finished,
        # The attempts of a killed node stay open in the ledger, and do not run.
        running=sum(tally.open for tally in kind_tallies if tally.node in live_names),
        failed_attempts=failed,
        planned=None if kind in ("interval", "cron") else scenario.planned(kind),
    )
