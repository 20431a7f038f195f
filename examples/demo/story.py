"""What happens in the demo, and when: the script that the two nodes play."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from examples.demo import jobs
from examples.demo.ledger import Ledger
from examples.demo.nodes import Node, Nodes
from examples.demo.worker import DemoScheduler
from pg_scheduler import JobPriority, JobSpec

__all__ = ["DURATION", "KILL_AT", "Story"]

DURATION: Final = 17.0
PATIENCE: Final = 6.0
"""Seconds after that for what is not done yet."""

REMINDERS: Final = 45
CARDS: Final = 3
BULK: Final = 2000
BULK_AT: Final = 3.0
ORDERS_AT: Final = 3.3
ORDERS: Final = 10
VIDEOS_AT: Final = 8.0
VIDEOS: Final = 12
KILL_AT: Final = 9.5

LEVELS: Final = (JobPriority.LOW, JobPriority.NORMAL, JobPriority.HIGH, JobPriority.CRITICAL)


class Story:
    """Schedules everything at its moment, and kills a node.

    Args:
        tell: Called with each line of the story.

    Attributes:
        expected: Every job that was scheduled, and its kind.
        victim: The node that was killed.
        killed_at: When.
    """

    def __init__(
        self,
        scheduler: DemoScheduler,
        nodes: Nodes,
        pool: asyncpg.Pool,
        ledger: Ledger,
        tell: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._nodes = nodes
        self._pool = pool
        self._ledger = ledger
        self._tell = tell
        self._began = time.monotonic()
        self.expected: dict[str, str] = {}
        self.victim: Node | None = None
        self.killed_at: datetime | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self._began

    def planned(self, kind: str) -> int:
        """Jobs of this kind that were scheduled so far; of orders, those of every priority."""
        return sum(each.partition(",")[0] == kind for each in self.expected.values())

    async def play(self) -> None:
        """From the first job to the end of the last."""
        await self._first_jobs()
        await self._until(BULK_AT)
        await self._bulk()
        await self._until(ORDERS_AT)
        await self._orders()
        await self._until(VIDEOS_AT)
        await self._videos()
        await self._until(KILL_AT)
        await self._kill()
        await self._see_takeover()
        await self._until(DURATION)
        await self._all_done()

    async def _until(self, moment: float) -> None:
        await asyncio.sleep(max(moment - self.elapsed, 0))

    async def _first_jobs(self) -> None:
        now = datetime.now(UTC)
        step = timedelta(seconds=(DURATION - 1) / REMINDERS)
        for number in range(REMINDERS):
            due = now + timedelta(seconds=0.5) + number * step
            job_id = await self._scheduler.schedule(jobs.remind, execution_time=due, args=(number,))
            self.expected[job_id] = "reminder"
        self._tell(f"{REMINDERS} reminders are scheduled, one every {step.total_seconds():.2f} s")
        soon = now + timedelta(seconds=1)
        for number in range(CARDS):
            job_id = await self._scheduler.schedule(
                jobs.charge_card, execution_time=soon, args=(number,), max_retries=3
            )
            self.expected[job_id] = "card"
        job_id = await self._scheduler.schedule(
            jobs.call_nobody, execution_time=soon, max_retries=jobs.TRIES_OF_BROKEN - 1
        )
        self.expected[job_id] = "broken"
        self._tell(
            f"{CARDS} cards are to be charged; the bank fails twice each: retried after 0.5 s, then 1 s"
        )
        self._tell(f"1 job is broken: it fails for good after {jobs.TRIES_OF_BROKEN} tries")

    async def _bulk(self) -> None:
        now = datetime.now(UTC)
        specs = [
            JobSpec(jobs.import_row, now, args=(number,), priority=JobPriority.LOW) for number in range(BULK)
        ]
        began = time.monotonic()
        self._expect("import", await self._scheduler.schedule_bulk(specs))
        took = (time.monotonic() - began) * 1000
        self._tell(f"{BULK:,} imports of low priority are loaded in bulk: {took:.0f} ms")

    async def _orders(self) -> None:
        waiting = (await self._scheduler.count_jobs(job_name="demo.import")).pending
        due = datetime.now(UTC) + timedelta(seconds=0.2)
        for level in LEVELS:
            specs = [
                JobSpec(jobs.ship_order, due, args=(number, level.value), priority=level)
                for number in range(ORDERS)
            ]
            self._expect(f"order, {level.value}", await self._scheduler.schedule_bulk(specs))
        self._tell(
            f"{ORDERS * len(LEVELS)} orders come in, the least urgent first: "
            f"those above low priority overtake {waiting:,} waiting imports"
        )

    async def _videos(self) -> None:
        now = datetime.now(UTC)
        specs = [JobSpec(jobs.render_video, now, args=(number,)) for number in range(VIDEOS)]
        self._expect("video", await self._scheduler.schedule_bulk(specs))
        self._tell(f"{VIDEOS} videos are to be rendered, {jobs.VIDEO_SECONDS:.0f} s each")

    async def _kill(self) -> None:
        tallies = [tally for tally in await self._ledger.tallies() if tally.kind == "video"]
        victim = self._nodes[max(tallies, key=lambda tally: tally.open).node]
        running = sum(tally.open for tally in tallies if tally.node == victim.name)
        await self._nodes.kill(victim, self._pool)
        self.victim, self.killed_at = victim, datetime.now(UTC)
        self._tell(
            f"{victim.name}, pid {victim.pid}, is killed with SIGKILL while it renders {running} videos"
        )
        lease = self._scheduler.LEASE_DURATION
        self._tell(f"its lease of {lease} s must run out (the default is 60 s): then the other takes over")

    async def _see_takeover(self) -> None:
        while self.elapsed < DURATION:
            if restarted := await self._ledger.restarted("video"):
                self._tell(f"the other node has taken over: {restarted} videos are rendered again")
                return
            await asyncio.sleep(0.05)

    async def _all_done(self) -> None:
        while self.elapsed < DURATION + PATIENCE:
            counts = await self._scheduler.count_jobs()
            if counts.pending + counts.running == 0:
                return
            await asyncio.sleep(0.05)

    def _expect(self, kind: str, job_ids: list[str | None]) -> None:
        self.expected |= {job_id: kind for job_id in job_ids if job_id is not None}
