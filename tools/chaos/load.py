"""The enqueuers: a steady stream of jobs of every kind, and a record of the answers.

A call that raised leaves open whether the job was inserted; such a job must end correctly only if its row
exists. The enqueuers do not wait for blocked calls: while many calls are in flight, further ones are left
out, so an outage reduces the load and does not delay it.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pg_scheduler import ConflictResolution, JobConflictError, JobPriority, JobSpec, Scheduler
from pg_scheduler.errors import DatabaseUnavailableError, JobNotFoundError
from tools.chaos import jobs

PLAIN: Final = "plain"
BROKEN: Final = "broken"
EXPIRING: Final = "expiring"
REPLACED: Final = "replaced"
CANCELLED: Final = "cancelled"
CALLBACK: Final = "callback"
IN_VAIN: Final = "in vain"
"""A callback that requires the completion of a job that fails."""
ROLLED_BACK: Final = "rolled back"
"""A job whose transaction was rolled back."""
BOUNDED: Final = "bounded"
"""A job that fails when its deadline has passed."""

TICK_S: Final = 0.25
MAX_CALLS_IN_FLIGHT: Final = 600
BATCH_SIZE: Final = 10
"""Jobs that one callback waits for, on average."""

LIMITED_RATE: Final = 1.0
"""Calls per second for the limited task, each for as many jobs as may run at once."""

RATED_RATE: Final = 0.2
RATED_JOBS: Final = jobs.MAX_STARTS + 2
"""Calls per second for the task with a limited rate, each for more jobs than may start at once."""

KEYED_RATE: Final = 0.4
KEYED_JOBS: Final = 3
LIMIT_KEYS: Final = 4
"""Calls per second for the task with a limit per key, each for a few jobs of one key."""

UNIQUE_RATE: Final = 5.0
UNIQUE_KEYS: Final = 4
"""Calls per second for unique jobs, and the number of their keys: most calls meet an unfinished job."""

Share = tuple[Callable[[], Coroutine[Any, Any, None]], float, int]

KEEP: Final = timedelta(days=30)
PRIORITIES: Final = (JobPriority.CRITICAL, JobPriority.HIGH, JobPriority.NORMAL, JobPriority.LOW)


@dataclass(slots=True)
class Sent:
    """A signal and the answer to its call; ``is_stored`` is None if it raised."""

    name: str
    value: str
    is_stored: bool | None = None


@dataclass(slots=True)
class Request:
    """A requested job and the answers to its calls.

    ``confirmed`` is true if schedule() returned. ``cancelled`` is what cancel_job() returned, None if it
    raised or was not called. ``versions`` are the versions of the arguments that the last attempt may have.
    ``keeps`` is true if the job keeps its result. ``after`` are the jobs that a callback waits for. ``key``
    is the key of a limit per key. ``effects`` are those of a completed durable job. ``polled`` is true if a
    worker may find the job only by its next poll. ``retries`` counts the calls of retry_job(), which
    lets a job run again that has completed. ``messages`` are those of its mailbox, in the order of the
    calls. ``sequence`` is its key in a sequence and its place in that. By the monotonic clock, ``called_at``
    is when it was scheduled, ``resumed_at`` when a caller began to retry or skip it after it had failed, and
    ``deadline`` when it must have ended.
    """

    kind: str
    confirmed: bool = False
    cancelled: bool | None = None
    versions: frozenset[int] = frozenset({0})
    keeps: bool = False
    after: tuple[str, ...] = ()
    key: int | None = None
    effects: tuple[str, ...] = ()
    signals: tuple[Sent, ...] = ()
    polled: bool = False
    retries: int = 0
    messages: tuple[Sent, ...] = ()
    sequence: tuple[str, int] | None = None
    called_at: float = 0.0
    resumed_at: float | None = None
    deadline: float | None = None


class Load:
    """Schedules jobs at a constant rate until it is stopped.

    Args:
        client: A Scheduler that is not started.
        rate: Jobs per second.
        seed: The seed of the stream.
    """

    def __init__(self, client: Scheduler, rate: int, seed: int) -> None:
        self.client = client
        self.rate = rate
        self.random = random.Random(f"load {seed}")
        self.requests: dict[str, Request] = {}
        self.faults: Counter[str] = Counter()
        self._calls: set[asyncio.Task[None]] = set()
        self._streams: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the streams."""
        for call, share, size in self.shares():
            per_tick = self.rate * share * TICK_S / size
            self._streams.append(asyncio.create_task(self._stream(call, per_tick)))

    def shares(self) -> list[Share]:
        """Return the calls, with the share of the rate and the jobs of each."""
        return [
            (self._bulk, 0.6, max(self.rate * 6 // 40, 1)),
            (self._single, 0.3, 1),
            (self._replace, 0.05, 1),
            (self._cancel, 0.05, 1),
            (self._value, 0.03, 1),
            (self._process, 0.002, 1),
            (self._batch, 0.05, BATCH_SIZE),
            (self._limited, min(0.01, LIMITED_RATE / self.rate), 1),
            (self._rated, min(0.0016, RATED_RATE / self.rate), 1),
            (self._keyed, min(0.003, KEYED_RATE / self.rate), 1),
            (self._unique, min(0.02, UNIQUE_RATE / self.rate), 1),
        ]

    def __str__(self) -> str:
        return f"{len(self.requests):,} jobs requested, {len(self._calls)} calls in flight"

    async def stop(self) -> None:
        """Stop the streams and wait for the calls in flight."""
        for stream in self._streams:
            stream.cancel()
        await asyncio.wait(self._streams)
        for stream in self._streams:
            if not stream.cancelled():
                stream.result()
        if self._calls:
            await asyncio.wait(self._calls)

    async def _stream(self, call: Callable[[], Coroutine[Any, Any, None]], per_tick: float) -> None:
        due = 0.0
        while True:
            due += per_tick
            while due >= 1:
                due -= 1
                if len(self._calls) < MAX_CALLS_IN_FLIGHT:
                    task = asyncio.create_task(self._guarded(call()))
                    self._calls.add(task)
                    task.add_done_callback(self._ended)
            await asyncio.sleep(TICK_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        task.result()

    async def _guarded(self, call: Awaitable[None]) -> None:
        try:
            await call
        except DatabaseUnavailableError as fault:
            self.faults[type(fault.__cause__).__name__] += 1
        except JobNotFoundError as missing:
            # A job that it is to follow has completed, and was deleted while the clock was years ahead.
            self.faults[type(missing).__name__] += 1

    def _soon(self, most: float) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.random.uniform(0, most))

    def _priority(self) -> JobPriority:
        return self.random.choices(PRIORITIES, (1, 2, 6, 3))[0]

    def _new_id(self) -> str:
        return f"own-{uuid.UUID(int=self.random.getrandbits(128))}"

    async def _single(self) -> None:
        kind, function, retries, grace = self.random.choices(
            (
                (PLAIN, jobs.quick, 0, None),
                (PLAIN, jobs.slow, 0, None),
                (PLAIN, jobs.flaky, 2, None),
                (BROKEN, jobs.broken, 1, None),
                (EXPIRING, jobs.quick, 0, 1),
            ),
            (14, 3, 1, 1, 1),
        )[0]
        own = self._new_id() if self.random.random() < 0.5 else None
        request = Request(kind)
        if own:
            self.requests[own] = request
        job_id = await self.client.schedule(
            function,
            execution_time=self._soon(self.random.choice((0, 0, 2))),
            job_id=own,
            priority=self._priority(),
            max_retries=retries,
            misfire_grace_time=grace,
        )
        request.confirmed = True
        self.requests[job_id] = request

    async def _bulk(self) -> None:
        size = max(self.rate * 6 // 40, 1)
        named = self.random.random() < 0.3
        specs = [
            JobSpec(
                jobs.slow if self.random.random() < 0.05 else jobs.quick,
                self._soon(self.random.choice((0, 1))),
                priority=self._priority(),
                job_id=self._new_id() if named else None,
                misfire_grace_time=None,
            )
            for _ in range(size)
        ]
        await self._bulk_of(specs)

    async def _bulk_of(self, specs: list[JobSpec], key: int | None = None) -> None:
        for spec in specs:
            if spec.job_id is not None:
                self.requests[spec.job_id] = Request(PLAIN, key=key)
        for job_id in await self.client.schedule_bulk(specs):
            assert job_id is not None
            self.requests.setdefault(job_id, Request(PLAIN)).confirmed = True

    async def _replace(self) -> None:
        """Schedule a job and replace its definition before, while or after it runs."""
        job_id = self._new_id()
        self.requests[job_id] = request = Request(REPLACED, versions=frozenset({1, 2}))
        await self.client.schedule(
            self.random.choice((jobs.quick, jobs.slow)),
            execution_time=self._soon(0.5),
            args=(1,),
            job_id=job_id,
            misfire_grace_time=None,
        )
        request.confirmed = True
        await asyncio.sleep(self.random.uniform(0, 1.5))
        await self.client.schedule(
            jobs.quick,
            execution_time=self._soon(0.5),
            args=(2,),
            job_id=job_id,
            misfire_grace_time=None,
            conflict_resolution=ConflictResolution.REPLACE,
        )
        request.versions = frozenset({2})

    async def _cancel(self) -> None:
        """Schedule a job and cancel it before, while or after it runs."""
        job_id = self._new_id()
        self.requests[job_id] = request = Request(CANCELLED)
        await self.client.schedule(
            self.random.choice((jobs.quick, jobs.slow)),
            execution_time=self._soon(0.5),
            job_id=job_id,
            misfire_grace_time=None,
        )
        request.confirmed = True
        await asyncio.sleep(self.random.uniform(0, 1.5))
        request.cancelled = await self.client.cancel_job(job_id)

    async def _value(self) -> None:
        """Schedule a job that returns a value or an error, on the event loop or in a thread."""
        kind, function = self.random.choices(
            ((PLAIN, jobs.value), (PLAIN, jobs.thread_value), (BROKEN, jobs.broken_value)), (2, 2, 1)
        )[0]
        await self._keep(function, kind, keeps=self.random.random() < 0.8)

    async def _process(self) -> None:
        """Schedule a job for a child process, which dies in some first attempts."""
        dies = self.random.random() < 0.2
        await self._keep(jobs.process_value, PLAIN, keeps=True, kwargs={"dies": dies})

    async def _keep(
        self, function: Callable[..., Any], kind: str, *, keeps: bool, kwargs: dict[str, Any] | None = None
    ) -> None:
        job_id = self._new_id()
        self.requests[job_id] = request = Request(kind, keeps=keeps)
        await self.client.schedule(
            function,
            execution_time=self._soon(self.random.choice((0, 2))),
            kwargs=kwargs,
            job_id=job_id,
            priority=self._priority(),
            max_retries=1 if kind == BROKEN else 0,
            misfire_grace_time=None,
            keep_result=KEEP if keeps else None,
        )
        request.confirmed = True

    def _now(self, function: Callable[..., Any], **options: Any) -> JobSpec:
        return JobSpec(function, datetime.now(UTC), job_id=self._new_id(), misfire_grace_time=None, **options)

    async def _limited(self) -> None:
        """Schedule three jobs of a limited task at once."""
        await self._bulk_of([self._now(jobs.limited) for _ in range(jobs.MAX_RUNNING)])

    async def _rated(self) -> None:
        """Schedule more jobs than may start within the time span of their limit; some fail at first."""
        fails = [self.random.random() < 0.1 for _ in range(RATED_JOBS)]
        await self._bulk_of([self._now(jobs.rated, kwargs={"fails": each}, max_retries=1) for each in fails])

    async def _keyed(self) -> None:
        """Schedule jobs of one key, which run one by one."""
        key = self.random.randrange(LIMIT_KEYS)
        await self._bulk_of([self._now(jobs.keyed, args=(key,)) for _ in range(KEYED_JOBS)], key)

    async def _unique(self) -> None:
        """Schedule a unique job, which may be rejected, kept out or replace the unfinished one."""
        try:
            job_id = await self.client.schedule(
                jobs.unique,
                execution_time=self._soon(0.5),
                args=(self.random.randrange(UNIQUE_KEYS),),
                kwargs={"fails": self.random.random() < 0.2},
                max_retries=1,
                misfire_grace_time=None,
                conflict_resolution=self.random.choice(list(ConflictResolution)),
            )
        except JobConflictError:
            return
        self.requests.setdefault(job_id, Request(REPLACED)).confirmed = True

    async def _batch(self) -> None:
        """Schedule jobs, and a callback after all of them before, while or after they run."""
        fails = self.random.random() < 0.3
        functions: list[Callable[..., Any]] = self.random.choices(
            (jobs.quick, jobs.slow), (4, 1), k=self.random.randint(1, 2 * BATCH_SIZE)
        )
        if fails:
            functions[-1] = jobs.broken
        specs = [
            JobSpec(
                function,
                self._soon(self.random.choice((0, 1))),
                priority=self._priority(),
                job_id=self._new_id(),
                max_retries=1 if function is jobs.broken else 0,
                misfire_grace_time=None,
            )
            for function in functions
        ]
        parents = tuple(spec.job_id for spec in specs if spec.job_id is not None)
        for spec, job_id in zip(specs, parents, strict=True):
            self.requests[job_id] = Request(BROKEN if spec.func is jobs.broken else PLAIN)
        await self.client.schedule_bulk(specs)
        for job_id in parents:
            self.requests[job_id].confirmed = True
        await asyncio.sleep(self.random.choice((0, 0, 1)))
        requires_completion = self.random.random() < 0.5
        child = self._new_id()
        kind = IN_VAIN if fails and requires_completion else CALLBACK
        self.requests[child] = request = Request(kind, after=parents)
        await self.client.schedule(
            jobs.quick,
            execution_time=datetime.now(UTC),
            job_id=child,
            priority=self._priority(),
            misfire_grace_time=None,
            after=parents,
            after_outcome="completed" if requires_completion else "ended",
        )
        request.confirmed = True
