"""The enqueuers of families, deadlines, streams, mailboxes, sequences, chunks and debounced jobs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg

from pg_scheduler import ConflictResolution, JobSpec, Scheduler
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.inspect import Inspector
from tools.chaos import workflow_jobs
from tools.chaos.broken import BROKEN_CONNECTION
from tools.chaos.durable_load import LOCK_FAILED, REPEAT_S, RESUME_S, STATUS
from tools.chaos.feature_load import FeatureLoad
from tools.chaos.load import BOUNDED, BROKEN, CANCELLED, PLAIN, Request, Sent, Share
from tools.chaos.workflow_calls import Broadcast, DebouncedCall, Reading, WorkflowCalls
from tools.chaos.workflow_jobs import ALWAYS, AUDIENCE, END, ITEMS, NAME, NEWS, ONCE, WAYS, WORDS

FAMILY_RATE: Final = 0.5
HARVEST_RATE: Final = 0.3
BOUNDED_RATE: Final = 1.0
UNRELIABLE_RATE: Final = 0.5
SPEAKER_RATE: Final = 0.5
LISTENER_RATE: Final = 0.5
BROADCAST_RATE: Final = 0.2
SEQUENCE_RATE: Final = 1.0
DEBOUNCED_RATE: Final = 0.3
CHUNK_RATE: Final = 1.0
"""Calls of each kind per second."""

CANCEL_SHARE: Final = 0.2
TURNS: Final = 4
KEYS: Final = 3
CHUNK_JOBS: Final = 8
"""How often a job of a call is cancelled, the jobs of a call of a sequence, the keys of sequences and chunks
that calls share, and the jobs of a call of chunks.
"""

MAX_MESSAGES: Final = 6
AUDIENCE_SIZE: Final = 3
MAX_VERSIONS: Final = 12

UNFINISHED: Final = "SELECT count(*) FROM scheduled_jobs WHERE job_id = ANY ($1) AND finished_at IS NULL"


class WorkflowLoad(FeatureLoad):
    """Schedules these too.

    Args:
        client: As for `Load`.
        rate: As for `Load`.
        seed: As for `Load`.
        pool: As for `DurableLoad`.

    Attributes:
        calls: The calls that belong to no single job.
    """

    def __init__(self, client: Scheduler, rate: int, seed: int, pool: asyncpg.Pool) -> None:
        super().__init__(client, rate, seed, pool)
        self.calls = WorkflowCalls()
        self._inspector = Inspector(client)
        self._keys = [self._new_key() for _ in range(KEYS)]
        self._places = itertools.count(step=TURNS)

    def shares(self) -> list[Share]:
        """See `Load`."""
        calls = (
            (self._family, FAMILY_RATE),
            (self._harvest, HARVEST_RATE),
            (self._bounded, BOUNDED_RATE),
            (self._unreliable, UNRELIABLE_RATE),
            (self._speaker, SPEAKER_RATE),
            (self._listener, LISTENER_RATE),
            (self._audience, BROADCAST_RATE),
            (self._stopping, SEQUENCE_RATE / 2),
            (self._skipping, SEQUENCE_RATE / 2),
            (self._debounced, DEBOUNCED_RATE),
            (self._gather, CHUNK_RATE),
        )
        return [*super().shares(), *((call, min(0.01, rate / self.rate), 1) for call, rate in calls)]

    async def _schedule(self, function: Callable[..., Any], kind: str, **options: Any) -> tuple[str, Request]:
        """Schedule a job with an id of its own, until that is confirmed."""
        job_id = self._new_id()
        self.requests[job_id] = request = Request(kind)
        due = datetime.now(UTC)
        await self._until_answered(
            lambda: self.client.schedule(
                function,
                execution_time=due,
                job_id=job_id,
                misfire_grace_time=None,
                conflict_resolution=ConflictResolution.IGNORE,
                **options,
            )
        )
        request.confirmed = True
        return job_id, request

    async def _schedule_all(self, specs: list[JobSpec]) -> tuple[str, ...]:
        """Schedule jobs with ids of their own in one call, and again until that is confirmed.

        They need further calls, which nothing would make for jobs of a call without an answer.
        """
        await self._until_answered(lambda: self.client.schedule_bulk(specs))
        job_ids = tuple(spec.job_id for spec in specs if spec.job_id is not None)
        for job_id in job_ids:
            self.requests[job_id].confirmed = True
        return job_ids

    async def _until(self, is_done: Callable[[], Awaitable[bool]]) -> None:
        """Call until the answer is True, for a limited time; the checker reports jobs that never end."""
        deadline = time.monotonic() + RESUME_S
        while time.monotonic() < deadline:
            with suppress(DatabaseUnavailableError, *BROKEN_CONNECTION):
                if await is_done():
                    return
            await asyncio.sleep(1)

    # -- families ------------------------------------------------------------------------------------------

    async def _family(self) -> None:
        """Schedule a family, and cancel all of it before, while or after it begins."""
        job_id, request = await self._schedule(workflow_jobs.family, CANCELLED)
        await asyncio.sleep(self.random.choice((0, self.random.uniform(0, 4))))
        await self._until_answered(lambda: self.client.cancel_job(job_id, children=True))
        request.cancelled = True  # it cannot end in another way

    async def _harvest(self) -> None:
        """Schedule a family that fails with a child, and retry both by one call."""
        job_id, _ = await self._schedule(workflow_jobs.harvest, PLAIN)

        async def is_done() -> bool:
            status = await self._pool.fetchval(STATUS, job_id, timeout=10)
            if status == "failed":
                async with self._pool.acquire(timeout=10) as connection, connection.transaction():
                    if await connection.fetchval(LOCK_FAILED, job_id, timeout=10):
                        await self.client.retry_job(job_id, children=True, connection=connection)
            return status in ("completed", None)

        await self._until(is_done)

    # -- deadlines and retries of steps --------------------------------------------------------------------

    async def _bounded(self) -> None:
        """Schedule a job that only its deadline ends."""
        seconds, began = self.random.uniform(0.5, 5), time.monotonic()
        _, request = await self._schedule(
            workflow_jobs.bounded,
            BOUNDED,
            args=(self.random.choice(WAYS),),
            deadline=timedelta(seconds=seconds),
        )
        request.deadline = began + seconds

    async def _unreliable(self) -> None:
        """Schedule a job with a step that uses up its retries."""
        await self._schedule(workflow_jobs.unreliable, PLAIN)

    # -- streams, mailboxes and broadcasts -----------------------------------------------------------------

    async def _speaker(self) -> None:
        """Schedule a job with a stream, and read its value and the stream while it runs."""
        is_numbered = self.random.random() < 0.5
        job_id, _ = await self._schedule(workflow_jobs.speak, PLAIN, kwargs={"is_numbered": is_numbered})
        self.calls.readings[job_id] = reading = Reading(time.monotonic())

        async def read_name() -> None:
            reading.name = await self.client.get_value(job_id, NAME)

        async def read_words() -> None:
            last = reading.items[-1][0] if reading.items else 0
            async for item in self.client.stream(job_id, WORDS, after=last):
                reading.items.append((item.number, item.value))

        await self._until_answered(read_name)
        await self._until_answered(read_words)
        reading.ended = time.monotonic()

    async def _listener(self) -> None:
        """Schedule a job that receives messages, and send them before, while and after it waits."""
        job_id, request = await self._schedule(workflow_jobs.listen, PLAIN)
        texts = [f"item {number}" for number in range(self.random.randint(1, MAX_MESSAGES))]
        for text in (*texts, END):
            await asyncio.sleep(self.random.choice((0, 0, self.random.uniform(0, 2))))
            await self._send(job_id, request, text)

    async def _send(self, job_id: str, request: Request, text: str) -> None:
        """Send a message; each call has a value of its own, since a repeated one may be a second message."""
        values = (f"{text} {number}" for number in itertools.count())

        async def send() -> None:
            sent = Sent(ITEMS, next(values))
            request.messages += (sent,)
            sent.is_stored = await self.client.send(job_id, ITEMS, sent.value)

        await self._until_answered(send)

    async def _audience(self) -> None:
        """Schedule jobs that wait for one value, and broadcast until it has reached all of them."""
        group = self._new_key()
        specs = [self._now(workflow_jobs.attend, metadata={"group": group}) for _ in range(AUDIENCE_SIZE)]
        self.requests |= {str(spec.job_id): Request(PLAIN) for spec in specs}
        job_ids = await self._schedule_all(specs)
        numbers = itertools.count()

        async def is_done() -> bool:
            if not await self._pool.fetchval(UNFINISHED, job_ids, timeout=10):
                return True
            broadcast = Broadcast(f"news {next(numbers)} for {group}", job_ids)
            self.calls.broadcasts.append(broadcast)
            broadcast.reached = await self.client.broadcast(
                NEWS, broadcast.value, job_name=AUDIENCE, metadata={"group": group}
            )
            return False

        await self._until(is_done)

    # -- sequences and debounced jobs ----------------------------------------------------------------------

    def _new_key(self) -> str:
        return self._new_id().removeprefix("own-")

    async def _turns(
        self, function: Callable[..., Any], key: str, first: int, fails: list[str]
    ) -> tuple[str, ...]:
        """Schedule jobs of a key in one call; their ids ascend, as their due times are the same."""
        due, called_at, batch = datetime.now(UTC), time.monotonic(), self._new_id()
        specs = []
        for number, how in enumerate(fails):
            job_id = f"{batch}-{number}"
            kind, sequence = BROKEN if how == ALWAYS else PLAIN, (key, first + number)
            self.requests[job_id] = Request(kind, sequence=sequence, called_at=called_at)
            specs.append(JobSpec(function, due, args=(key, how), job_id=job_id, misfire_grace_time=None))
        return await self._schedule_all(specs)

    async def _stopping(self) -> None:
        """Schedule a sequence in which one job fails at times, and retry or skip that."""
        how = self.random.choice((ONCE, ALWAYS, ""))
        failing = self.random.randrange(TURNS)
        fails = [how if number == failing else "" for number in range(TURNS)]
        job_id = (await self._turns(workflow_jobs.stopping, self._new_key(), 0, fails))[failing]
        request = self.requests[job_id]

        async def is_done() -> bool:
            status = await self._pool.fetchval(STATUS, job_id, timeout=10)
            if status != "failed":
                return status in ("completed", None)
            if request.resumed_at is None:
                request.resumed_at = time.monotonic()
            if how == ALWAYS:
                await self._inspector.skip_job(job_id)
                return True
            async with self._pool.acquire(timeout=10) as connection, connection.transaction():
                if await connection.fetchval(LOCK_FAILED, job_id, timeout=10):
                    assert await self.client.retry_job(job_id, connection=connection)
            return False

        if how:
            await self._until(is_done)

    async def _skipping(self) -> None:
        """Schedule more jobs of a key whose sequence continues after a failure; cancel one at times.

        One call at a time has a key, so the order of all its jobs is known.
        """
        number = self.random.randrange(KEYS)
        key = self._keys[number]
        self._keys[number] = self._new_key()
        fails = self.random.choices(("", ONCE, ALWAYS), (8, 1, 1), k=TURNS)
        job_ids = await self._turns(workflow_jobs.skipping, key, next(self._places), fails)
        self._keys[number] = key
        plain = [job_id for job_id in job_ids if self.requests[job_id].kind == PLAIN]
        if plain and self.random.random() < CANCEL_SHARE:
            request = self.requests[job_id := self.random.choice(plain)]
            request.kind = CANCELLED
            await self._cancel_later(job_id, request)

    async def _gather(self) -> None:
        """Schedule jobs of some keys for chunks, of which some fail."""
        due, specs = datetime.now(UTC), []
        for fails in self.random.choices(("", ONCE, ALWAYS), (8, 1, 1), k=CHUNK_JOBS):
            job_id, is_broken = self._new_id(), fails == ALWAYS
            self.requests[job_id] = Request(BROKEN if is_broken else PLAIN)
            spec = JobSpec(
                workflow_jobs.gather,
                due,
                args=([f"key {self.random.randrange(KEYS)}", fails],),
                job_id=job_id,
                misfire_grace_time=None,
            )
            if is_broken:
                spec.max_retries = 1
            specs.append(spec)
        await self.client.schedule_bulk(specs)
        for spec in specs:
            self.requests[str(spec.job_id)].confirmed = True

    async def _debounced(self) -> None:
        """Call for new versions of a document, each after the answer to the previous one."""
        key = self._new_key()
        self.calls.debounced[key] = calls = []
        for version in range(1, self.random.randint(2, MAX_VERSIONS)):
            call = DebouncedCall(version, time.monotonic())
            calls.append(call)
            try:
                job_id = await self.client.enqueue(workflow_jobs.index, args=(key, version))
            except DatabaseUnavailableError as fault:
                self.faults[type(fault.__cause__).__name__] += 1
                await asyncio.sleep(REPEAT_S)
            else:
                call.ended = time.monotonic()
                self.requests.setdefault(job_id, Request(PLAIN)).confirmed = True
            await asyncio.sleep(self.random.choice((0.1, 0.3, 0.7)))
