"""The adapter of pg_scheduler for the harness: a producer and a worker in one process, with default settings.

The harness sets environment variables, sends ``ENQUEUE <n>`` to standard input when it paces the producer,
and reads a JSON object per line from standard output. SIGTERM ends the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg

import pg_scheduler
from pg_scheduler import JobSpec, Scheduler, events
from pg_scheduler.errors import DatabaseUnavailableError

SYSTEM: Final = "pg-scheduler"
TABLES: Final = ("public.scheduled_jobs",)
INSTANCE: Final = int(os.environ.get("BENCH_INSTANCE_ID", "0"))
WINDOW_S: Final = 30.0
MAX_SAMPLES: Final = 32_768
"""The newest delays that are kept."""

DEPTH_EVERY_S: Final = 0.5
DEPTH: Final = """
    SELECT count(*) FROM scheduled_jobs
    WHERE finished_at IS NULL AND blocked_on IS NULL AND execution_time <= now() AND status = 'pending'
"""
SHUTDOWN_S: Final = 3.0


def setting(name: str, default: int) -> int:
    """Return an environment variable as a number."""
    return int(os.environ.get(name, default))


def emit(**record: Any) -> None:
    """Write a record for the harness."""
    print(json.dumps(record | {"instance_id": INSTANCE}), flush=True)


class Delays:
    """The delays of the last seconds, in milliseconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)

    def add(self, seconds: float) -> None:
        """Add a delay."""
        self._samples.append((time.monotonic(), 1000 * max(seconds, 0.0)))

    def percentiles(self, prefix: str) -> dict[str, float]:
        """Return the metrics of the window."""
        since = time.monotonic() - WINDOW_S
        found = sorted(delay for at, delay in self._samples if at >= since) or [0.0]
        return {
            f"{prefix}_p{share}_ms": found[min(len(found) - 1, len(found) * share // 100)]
            for share in (50, 95, 99)
        }


class Adapter:
    """A producer and a worker, and what they have done."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self.scheduler = Scheduler(
            pool, max_concurrent_jobs=setting("WORKER_COUNT", 32), shutdown_timeout=SHUTDOWN_S
        )
        self.rate = setting("PRODUCER_RATE", 800)
        self.mode = os.environ.get("PRODUCER_MODE", "fixed")
        self.most = setting("PRODUCER_BATCH_MAX", 128)
        self.padding = "x" * max(0, setting("JOB_PAYLOAD_BYTES", 256) - 32)
        self.work_s = setting("JOB_WORK_MS", 1) / 1000
        self.enqueued = self.completed = self.depth = self.tokens = 0
        self.has_tokens = asyncio.Event()
        self.sent, self.picked_up, self.ended = Delays(), Delays(), Delays()
        self.scheduler.register(self.work, name="bench.work")
        self.scheduler.subscribe(self.note_completion, events.JobCompleted)

    async def work(self, at: float, padding: str) -> None:  # noqa: ARG002 - the payload
        """Record the delay since the call of the producer, and work."""
        self.picked_up.add(time.time() - at)
        if self.work_s:
            await asyncio.sleep(self.work_s)
        self.ended.add(time.time() - at)

    def note_completion(self, _: events.Event) -> None:
        """Count a job whose completion is committed."""
        self.completed += 1

    async def produce(self) -> None:
        """Insert jobs as the harness paces them, by the documented bulk call."""
        async for size in self.batches():
            began, at = time.monotonic(), time.time()
            jobs = [JobSpec(self.work, args=(at, self.padding)) for _ in range(size)]
            try:
                await self.scheduler.schedule_bulk(jobs)
            except DatabaseUnavailableError as error:
                print(f"[{SYSTEM}] {error}", file=sys.stderr)
                self.return_tokens(size)
                await asyncio.sleep(0.1)
                continue
            self.enqueued += size
            self.sent.add((time.monotonic() - began) / size)

    def return_tokens(self, size: int) -> None:
        """Let the next calls insert what a failed one should have; a call may still have been committed."""
        self.tokens += size
        self.has_tokens.set()

    async def batches(self) -> AsyncIterator[int]:
        """Yield how many jobs to insert next."""
        if self.mode == "fixed" and os.environ.get("PRODUCER_PACING", "harness") == "harness":
            while True:
                await self.has_tokens.wait()
                count = min(self.tokens, self.most)
                self.tokens -= count
                if not self.tokens:
                    self.has_tokens.clear()
                yield count
        credit, last = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(setting("PRODUCER_BATCH_MS", 25) / 1000)
            now = time.monotonic()
            credit, last = min(credit + self.target_rate * (now - last), 10 * self.most), now
            if self.mode == "depth-target":
                credit = setting("TARGET_DEPTH", 1000) - self.depth
            if (count := min(int(credit), self.most)) > 0:
                credit -= count
                yield count

    async def read_tokens(self) -> None:
        """Add up what the harness wants to be inserted: late tokens become one larger call."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        async for line in reader:
            word, _, number = line.decode().partition(" ")
            if word == "ENQUEUE" and int(number) > 0:
                self.tokens += int(number)
                self.has_tokens.set()

    @property
    def target_rate(self) -> float:
        """The jobs per second that the harness wants now."""
        file = os.environ.get("PRODUCER_RATE_CONTROL_FILE")
        with suppress(OSError, ValueError):
            return float(Path(file).read_text(encoding="utf-8")) if file else self.rate
        return self.rate

    async def count_waiting(self) -> None:
        """Count the due jobs that no worker has claimed; the first instance alone."""
        while INSTANCE == 0:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self.depth = await self.pool.fetchval(DEPTH)
            await asyncio.sleep(DEPTH_EVERY_S)

    async def report(self) -> None:
        """Write the metrics at whole multiples of the interval."""
        every = setting("SAMPLE_EVERY_S", 5)
        await asyncio.sleep(every - time.time() % every)
        before, last = (self.enqueued, self.completed), time.monotonic()
        while True:
            await asyncio.sleep(every - time.time() % every)
            now = time.monotonic()
            enqueued, completed = self.enqueued - before[0], self.completed - before[1]
            before, passed, last = (self.enqueued, self.completed), now - last, now
            rates = {"enqueue_rate": enqueued / passed, "completion_rate": completed / passed}
            overall = {"queue_depth": float(self.depth), "producer_target_rate": float(self.target_rate)}
            windows = (
                ({} if INSTANCE else overall, 0.0),
                (rates, float(every)),
                (self.sent.percentiles("producer"), WINDOW_S),
                (self.picked_up.percentiles("subscriber"), WINDOW_S),
                (self.picked_up.percentiles("claim"), WINDOW_S),
                (self.ended.percentiles("end_to_end"), WINDOW_S),
            )
            for metrics, window_s in windows:
                for metric, value in metrics.items():
                    emit(
                        t=instant(),
                        system=SYSTEM,
                        kind="adapter",
                        subject_kind="adapter",
                        subject="",
                        metric=metric,
                        value=value,
                        window_s=window_s,
                    )


def instant() -> str:
    """Return the time as the harness wants it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def main() -> None:
    """Run until SIGTERM."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    address = os.environ["DATABASE_URL"]
    async with asyncpg.create_pool(address, min_size=1, max_size=10) as pool:
        adapter = Adapter(pool)
        await adapter.scheduler.initialize_db()
        if os.environ.get("SCENARIO") == "migrate_only":
            return
        async with adapter.scheduler:
            emit(
                kind="descriptor",
                system=SYSTEM,
                event_tables=list(TABLES),
                extensions=[],
                version=pg_scheduler.__version__,
                schema_version=pg_scheduler.__version__,
                db_name=address.rpartition("/")[2],
                started_at=instant(),
            )
            tasks = [
                asyncio.create_task(each)
                for each in (
                    adapter.read_tokens(),
                    adapter.produce(),
                    adapter.count_waiting(),
                    adapter.report(),
                )
            ]
            await stopping.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
