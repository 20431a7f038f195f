"""Chunks in an executor: which jobs share a call, the slots, and jobs that leave."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import threading
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Chunk, ProcessExecutor, ThreadExecutor
from pg_scheduler.base.messages import STACK, Look
from pg_scheduler.events import (
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobLost,
    JobStarted,
    ThreadAbandoned,
)
from pg_scheduler.jobs.call import RaisedError
from pg_scheduler.jobs.deadlines import deadline_text
from pg_scheduler.jobs.payload import encode
from pg_scheduler.worker import chunks
from pg_scheduler.worker.chunks import MIN_OPEN, Seat
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.looks import LookWriter, frames_of
from tests.support.inside import AttemptRunner, Completer, Revocation, TaskOptions
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Gate, Recorder, claim, new_job
from tests.worker.test_looks import seen_of

LONG_S = 600.0


class Calls:
    """A function of chunks that notes them, and waits in its call until it may end."""

    def __init__(self, *, opens: bool = True) -> None:
        self.chunks: list[Chunk[Any]] = []
        self.began = asyncio.Event()
        self.open = asyncio.Event()
        self.cleans_up = asyncio.Event()
        self.may_clean_up = asyncio.Event()
        self.may_clean_up.set()
        self.cancelled = 0
        if opens:
            self.open.set()

    async def job(self, chunk: Chunk[Any]) -> None:
        self.chunks.append(chunk)
        self.began.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.cleans_up.set()
            await self.may_clean_up.wait()
            raise

    @property
    def items(self) -> list[list[Any]]:
        return [[job.item for job in chunk] for chunk in self.chunks]

    async def wait_begun(self, count: int = 1) -> Chunk[Any]:
        async with asyncio.timeout(PATIENCE):
            while len(self.chunks) < count:
                self.began.clear()
                await self.began.wait()
        return self.chunks[-1]


class Bench:
    """Runs jobs of a task with chunks, and writes their results with a completer."""

    def __init__(self, parts: Parts, seen: Recorder, func: Callable[..., Any], **settings: Any) -> None:
        options: dict[str, Any] = {}
        for option in ("chunk", "chunk_wait", "chunk_by"):
            if option in settings:
                options[option] = settings.pop(option)
        self.name = settings.pop("executor_name", None)
        if self.name is not None:
            options["executor"] = self.name
        self.parts = parts
        self.seen = seen
        self.completer: Completer = parts.completer()
        self.executor: Executor = parts.executor(self.completer, **settings)
        defaults: dict[str, Any] = {"chunk": 10, "chunk_wait": LONG_S}
        parts.tasks.register(func, name="test.chunk", options=TaskOptions(**(defaults | options)))
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def submit(self, *job_ids: str, **values: Any) -> None:
        """Start jobs that are claimed together; the argument of each is its id."""
        jobs = [
            new_job(each, "test.chunk", **{"task_data": encode((each,), {}), **values}) for each in job_ids
        ]
        for held in await claim(self.parts.store, *jobs):
            self.tasks[held.job_id] = self.executor.submit(held)
        await asyncio.sleep(0)

    async def end(self, *job_ids: str) -> None:
        """Wait for the attempts of jobs, by default all, and write their outcomes."""
        tasks = [self.tasks[job_id] for job_id in job_ids or self.tasks]
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        await self.completer.run_once()
        assert not self.parts.faults

    def outcomes(self) -> dict[str, type[JobEvent]]:
        """The class of the last event of each job."""
        return {event.job_id: type(event) for event in self.seen.events if isinstance(event, JobEvent)}


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def held() -> Calls:
    """Calls that do not end by themselves."""
    return Calls(opens=False)


# -- which jobs share a call ---------------------------------------------------------------------------


async def test_full_chunk_is_called_at_once(parts: Parts, seen: Recorder, calls: Calls) -> None:
    bench = Bench(parts, seen, calls.job, chunk=3)
    await bench.submit("a", "b")
    assert calls.chunks == []
    assert seen.of(JobStarted) == [], "their function has not begun"
    await bench.submit("c")
    await bench.end()
    assert calls.items == [["a", "b", "c"]]
    assert bench.outcomes() == dict.fromkeys("abc", JobCompleted)
    assert len(seen.of(JobStarted)) == 3
    assert bench.executor.free == 5


async def test_chunk_is_called_when_its_time_is_over(parts: Parts, seen: Recorder, calls: Calls) -> None:
    bench = Bench(parts, seen, calls.job, chunk_wait=0.05)
    await bench.submit("a", "b")
    await bench.end()
    assert calls.items == [["a", "b"]]


async def test_without_a_wait_the_jobs_of_one_claim_are_a_chunk(
    parts: Parts, seen: Recorder, calls: Calls
) -> None:
    bench = Bench(parts, seen, calls.job, chunk=3, chunk_wait=0)
    await bench.submit("a", "b", "c", "d", "e")
    await bench.end()
    assert calls.items == [["a", "b", "c"], ["d", "e"]]


async def test_chunk_has_jobs_of_one_key(parts: Parts, seen: Recorder, calls: Calls) -> None:
    bench = Bench(parts, seen, calls.job, chunk=2, chunk_wait=0.05, chunk_by=lambda item: item[0])
    await bench.submit("a1", "b1", "a2", "c1")
    await bench.end()
    assert sorted(calls.items) == [["a1", "a2"], ["b1"], ["c1"]]


async def test_key_function_that_raises_fails_its_own_job(parts: Parts, seen: Recorder, calls: Calls) -> None:
    bench = Bench(parts, seen, calls.job, chunk_wait=0, chunk_by=lambda item: {"a": 1}[item])
    await bench.submit("a", "b")
    await bench.end()
    assert bench.outcomes() == {"a": JobCompleted, "b": JobFailed}
    (failed,) = seen.of(JobFailed)
    assert "key function of the chunks of 'test.chunk' raised KeyError" in failed.error


async def test_function_that_was_registered_again_gets_a_chunk_of_its_own(
    parts: Parts, seen: Recorder, calls: Calls
) -> None:
    bench = Bench(parts, seen, calls.job)
    await bench.submit("a")
    parts.tasks.register(calls.job, options=TaskOptions(chunk=2))
    await bench.submit("b", "c")
    await bench.end("b", "c")
    assert calls.items == [["b", "c"]]
    bench.executor.chunks.call_open()
    await bench.end()
    assert calls.items == [["b", "c"], ["a"]]


async def test_shutdown_calls_open_chunks_at_once(parts: Parts, seen: Recorder, calls: Calls) -> None:
    bench = Bench(parts, seen, calls.job)
    await bench.submit("a", "b")
    await asyncio.wait_for(bench.executor.stop(), PATIENCE)
    assert calls.items == [["a", "b"]]
    await bench.end()
    assert bench.outcomes() == dict.fromkeys("ab", JobCompleted)


async def test_job_that_begins_during_a_shutdown_waits_for_no_other(
    parts: Parts, seen: Recorder, held: Calls
) -> None:
    bench = Bench(parts, seen, held.job)
    await bench.submit("a")
    stopping = asyncio.create_task(bench.executor.stop())
    await held.wait_begun()
    await bench.submit("b")
    await held.wait_begun(2)
    held.open.set()
    await asyncio.wait_for(stopping, PATIENCE)
    await bench.end()
    assert bench.outcomes() == dict.fromkeys("ab", JobCompleted)


# -- slots ---------------------------------------------------------------------------------------------


async def test_waiting_jobs_take_no_slot_and_each_call_takes_one(
    parts: Parts, seen: Recorder, held: Calls
) -> None:
    bench = Bench(parts, seen, held.job, chunk=3, slots=2)
    await bench.submit("a", "b")
    assert bench.executor.free == 2
    await bench.submit("c", "d")
    await held.wait_begun()
    assert bench.executor.free == 1
    held.open.set()
    await bench.end("a", "b", "c")
    assert bench.executor.free == 2
    bench.executor.chunks.call_open()
    await bench.end()
    assert bench.executor.free == 2


async def test_one_slot_suffices_for_a_full_chunk(parts: Parts, seen: Recorder, held: Calls) -> None:
    bench = Bench(parts, seen, held.job, chunk=3, slots=1)
    for job_id in "ab":
        await bench.submit(job_id)
        assert bench.executor.free == 1
    await bench.submit("c")
    await held.wait_begun()
    assert bench.executor.free == 0
    held.open.set()
    await bench.end()
    assert bench.executor.free == 1


async def test_claims_begin_again_when_a_job_joins(parts: Parts, seen: Recorder, calls: Calls) -> None:
    bench = Bench(parts, seen, calls.job, slots=1)
    await bench.submit("a")
    assert parts.calls.count("slot_free") == 1
    await bench.submit("b")
    assert parts.calls.count("slot_free") == 2
    bench.executor.chunks.call_open()
    await bench.end()


async def test_closed_chunk_waits_for_a_slot_that_no_claim_gets(
    parts: Parts, seen: Recorder, held: Calls, gate: Gate
) -> None:
    bench = Bench(parts, seen, held.job, chunk=2, slots=2)
    parts.tasks.register(gate.job, name="test.plain")
    plain_tasks = {}
    for job_id in ("x", "y"):
        (plain,) = await claim(parts.store, new_job(job_id, "test.plain"))
        plain_tasks[job_id] = bench.executor.submit(plain)
    await bench.submit("a", "b")
    await asyncio.sleep(0)
    assert held.chunks == [], "both slots run other code"
    assert bench.executor.free == 0
    parts.in_flight.revoke("x", 1, Revocation.CANCELLED)
    await plain_tasks["x"]
    assert bench.executor.free == 0, "the chunk has the slot"
    held.open.set()
    await bench.end()
    assert held.items == [["a", "b"]]
    assert bench.executor.free == 1
    gate.open.set()
    await plain_tasks["y"]


async def test_closed_chunk_leaves_their_slots_to_the_jobs_of_a_claim_that_is_under_way(
    parts: Parts, seen: Recorder, held: Calls
) -> None:
    bench = Bench(parts, seen, held.job, chunk=2, slots=2)
    bench.executor.expected = 2
    await bench.submit("a", "b")
    await asyncio.sleep(0)
    assert held.chunks == [], "the claim may bring two jobs"
    assert bench.executor.free == 1, "no further claim gets the slot of the chunk"
    bench.executor.expect_fewer(2)
    await held.wait_begun()
    held.open.set()
    await bench.end()
    assert bench.executor.free == 2


async def test_claim_gives_its_jobs_their_slots_before_a_chunk_is_called(
    parts: Parts, seen: Recorder, held: Calls, gate: Gate
) -> None:
    bench = Bench(parts, seen, held.job, chunk=1, slots=1)
    parts.tasks.register(gate.job, name="test.plain")
    plain_claims = await claim(parts.store, new_job("x", "test.plain"))
    bench.executor.expected = 1
    await bench.submit("a")
    bench.executor.expect_fewer(1)
    (plain_task,) = map(bench.executor.submit, plain_claims)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert held.chunks == [], "the only slot is that of the claimed job"
    gate.open.set()
    await plain_task
    await held.wait_begun()
    held.open.set()
    await bench.end()


async def test_oldest_chunk_is_called_when_there_are_too_many(
    parts: Parts, seen: Recorder, held: Calls
) -> None:
    bench = Bench(parts, seen, held.job, slots=1, chunk_by=lambda item: item[0])
    keys = [chr(ord("a") + number) for number in range(MIN_OPEN)]
    await bench.submit(*(f"{key}1" for key in keys), "a2")
    assert held.chunks == [], "with one slot too, a chunk of each key is open"
    await bench.submit("z1")
    await held.wait_begun()
    assert held.items == [["a1", "a2"]]
    held.open.set()
    bench.executor.chunks.call_open()
    await bench.end()
    assert bench.executor.free == 1


async def test_oldest_chunk_is_called_when_too_many_jobs_wait(
    parts: Parts, seen: Recorder, held: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MAX_GATHERED", 3)
    bench = Bench(parts, seen, held.job, chunk_by=lambda item: item[0])
    await bench.submit("a1", "a2", "b1")
    # A job that leaves makes room.
    parts.in_flight.revoke("b1", 1, Revocation.CANCELLED)
    await bench.end("b1")
    await bench.submit("c1")
    assert bench.executor.chunks.calls() == []
    await bench.submit("c2")
    await held.wait_begun()
    assert held.items == [["a1", "a2"]]
    await bench.submit("d1")
    assert len(bench.executor.chunks.calls()) == 1, "the called ones do not count"
    held.open.set()
    bench.executor.chunks.call_open()
    await bench.end()


async def test_crashed_job_has_a_chunk_of_its_own(parts: Parts, seen: Recorder, calls: Calls) -> None:
    """Other crashed jobs wait for its end, and its function may end the process of fresh ones."""
    bench = Bench(parts, seen, calls.job, slots=2)
    await bench.submit("a")
    (crashed,) = await claim(parts.store, new_job("b", "test.chunk", task_data=encode(("b",), {})))
    parts.in_flight.crashed_claim = crashed
    await bench.executor.submit(crashed)
    assert calls.items == [["b"]]
    await bench.submit("c")
    bench.executor.chunks.call_open()
    await bench.end()
    assert calls.items == [["b"], ["a", "c"]]
    assert bench.executor.free == 2


@pytest.mark.parametrize("is_first", [True, False])
async def test_chunk_closes_before_the_deadline_of_a_job(
    parts: Parts, seen: Recorder, calls: Calls, is_first: bool
) -> None:
    """Otherwise a job would miss its deadline only because it waits for others."""
    bench = Bench(parts, seen, calls.job)
    deadline = deadline_text(datetime.now(UTC) + timedelta(seconds=100))
    options = [json.dumps({"deadline": deadline}), None]
    held_claims = await claim(
        parts.store,
        *(new_job(each, "test.chunk", task_data=encode((each,), {})) for each in "ab"),
    )
    for held_claim, text in zip(held_claims, options if is_first else options[::-1], strict=True):
        bench.tasks[held_claim.job_id] = bench.executor.submit(held_claim._replace(options=text))
        await asyncio.sleep(0)
    assert parts.in_flight.attempts["a"].chunk is parts.in_flight.attempts["b"].chunk
    chunk: Any = parts.in_flight.attempts["a"].chunk
    assert 0 < chunk.closes_at - asyncio.get_running_loop().time() <= 50
    bench.executor.chunks.call_open()
    await bench.end()


async def test_attempt_that_was_replaced_in_a_chunk_gives_no_slot_twice(
    parts: Parts, seen: Recorder, calls: Calls
) -> None:
    bench = Bench(parts, seen, calls.job, slots=3)
    await bench.submit("a", "b")
    older = parts.in_flight.attempts["a"]
    newer = bench.executor.take_slot(older.claim._replace(attempt=2))
    assert bench.executor.free == 2, "the newer attempt has not joined yet, and the older one has no slot"
    newer_task = bench.executor.begin(newer)
    await asyncio.sleep(0)
    await bench.end("a")
    assert bench.executor.free == 3
    assert [event.attempt for event in seen.of(JobLost)] == [1]
    bench.executor.chunks.call_open()
    await newer_task
    await bench.end()
    assert calls.items == [["b", "a"]]
    assert bench.executor.free == 3


# -- jobs that leave -----------------------------------------------------------------------------------


async def test_job_that_is_cancelled_before_the_call_leaves_the_chunk(
    parts: Parts, seen: Recorder, calls: Calls
) -> None:
    bench = Bench(parts, seen, calls.job, chunk=3)
    await bench.submit("a", "b")
    parts.in_flight.revoke("a", 1, Revocation.CANCELLED)
    await bench.end("a")
    assert bench.outcomes()["a"] is JobCancelled
    await bench.submit("c")
    assert calls.chunks == [], "its place is free again"
    await bench.submit("d")
    await bench.end()
    assert calls.items == [["b", "c", "d"]]


async def test_chunk_that_all_jobs_have_left_is_not_called(
    parts: Parts, seen: Recorder, calls: Calls
) -> None:
    bench = Bench(parts, seen, calls.job)
    await bench.submit("a", "b")
    parts.in_flight.revoke_all(Revocation.CANCELLED)
    await bench.end()
    assert bench.outcomes() == dict.fromkeys("ab", JobCancelled)
    assert calls.chunks == []
    assert bench.executor.free == 5
    await bench.submit("c")
    bench.executor.chunks.call_open()
    await bench.end("c")
    assert calls.items == [["c"]]


async def test_function_is_not_called_if_all_jobs_leave_at_that_moment(
    parts: Parts, seen: Recorder, calls: Calls
) -> None:
    bench = Bench(parts, seen, calls.job)
    await bench.submit("a", "b")
    parts.in_flight.revoke_all(Revocation.CANCELLED)
    bench.executor.chunks.call_open()
    await bench.end()
    assert calls.chunks == []
    assert bench.executor.free == 5


async def test_call_that_is_cancelled_before_its_first_step_ends_its_jobs(
    parts: Parts, seen: Recorder, calls: Calls
) -> None:
    """As by other code that cancels every task of the event loop."""
    bench = Bench(parts, seen, calls.job)
    await bench.submit("a", "b")
    bench.executor.chunks.call_open()
    for call in bench.executor.chunks.calls():
        call.cancel()
    await bench.end()
    assert bench.outcomes() == dict.fromkeys("ab", JobFailed)
    assert calls.chunks == []
    assert bench.executor.free == 5


async def test_queued_chunk_that_all_jobs_have_left_frees_its_slot(
    parts: Parts, seen: Recorder, calls: Calls, gate: Gate
) -> None:
    bench = Bench(parts, seen, calls.job, chunk=1, slots=1)
    parts.tasks.register(gate.job, name="test.plain")
    (plain,) = await claim(parts.store, new_job("x", "test.plain"))
    plain_task = bench.executor.submit(plain)
    await bench.submit("a")
    parts.in_flight.revoke("a", 1, Revocation.CANCELLED)
    await bench.end("a")
    assert (bench.executor.free, bench.executor.chunks.queued) == (0, 0)
    gate.open.set()
    await plain_task
    assert bench.executor.free == 1
    assert calls.chunks == []


@pytest.mark.parametrize("reason", [Revocation.CANCELLED, Revocation.LOST])
async def test_job_that_leaves_during_the_call_ends_with_the_call_and_its_outcome_is_ignored(
    parts: Parts, seen: Recorder, held: Calls, reason: Revocation
) -> None:
    """Until then the function may work on it, so nothing may clean up after the job."""
    bench = Bench(parts, seen, held.job)
    await bench.submit("a", "b")
    bench.executor.chunks.call_open()
    chunk = await held.wait_begun()
    parts.in_flight.revoke("a", 1, reason)
    await asyncio.sleep(0)
    first, second = chunk
    assert (first.has_left, second.has_left) == (True, False)
    chunk.complete(first)
    with pytest.raises(RuntimeError, match="job 'a' has an outcome"):
        chunk.fail(first, ValueError("late"))
    await asyncio.sleep(0)
    assert not bench.tasks["a"].done()
    assert bench.executor.free == 4, "only the call has a slot"
    held.open.set()
    await bench.end()
    assert held.cancelled == 0
    assert bench.outcomes() == {
        "a": JobCancelled if reason is Revocation.CANCELLED else JobLost,
        "b": JobCompleted,
    }
    assert bench.executor.free == 5


async def test_call_is_cancelled_when_the_last_job_leaves_which_waits_for_its_end(
    parts: Parts, seen: Recorder, held: Calls
) -> None:
    held.may_clean_up.clear()
    bench = Bench(parts, seen, held.job, slots=2)
    await bench.submit("a", "b")
    bench.executor.chunks.call_open()
    await held.wait_begun()
    parts.in_flight.revoke("a", 1, Revocation.CANCELLED)
    await asyncio.sleep(0)
    parts.in_flight.revoke("b", 1, Revocation.CANCELLED)
    async with asyncio.timeout(PATIENCE):
        await held.cleans_up.wait()
    assert not any(task.done() for task in bench.tasks.values())
    assert bench.executor.free == 1, "the call has its slot, and the jobs none"
    held.may_clean_up.set()
    await bench.end()
    assert held.cancelled == 1
    assert bench.outcomes() == dict.fromkeys("ab", JobCancelled)
    assert bench.executor.free == 2


async def test_jobs_that_time_out_together_wait_for_the_end_of_the_call(
    parts: Parts, seen: Recorder, held: Calls
) -> None:
    """Otherwise all but one could be retried while the call still works on them."""
    held.may_clean_up.clear()
    bench = Bench(parts, seen, held.job)
    await bench.submit("a", "b", "c", timeout_seconds=0.05)
    await asyncio.sleep(0.1)  # real time: it does not count before the call
    assert not any(task.done() for task in bench.tasks.values())
    bench.executor.chunks.call_open()
    async with asyncio.timeout(PATIENCE):
        await held.cleans_up.wait()
    await asyncio.sleep(0)
    assert not any(task.done() for task in bench.tasks.values())
    held.may_clean_up.set()
    await bench.end()
    assert {event.error for event in seen.of(JobFailed)} == {
        "TimeoutError: the job ran longer than its timeout of 0.05 seconds"
    }
    assert len(seen.of(JobFailed)) == 3


async def test_job_that_times_out_before_the_others_is_not_repeated_during_the_call(
    parts: Parts, seen: Recorder, held: Calls
) -> None:
    bench = Bench(parts, seen, held.job)
    await bench.submit("a", timeout_seconds=0.01)
    await bench.submit("b")
    bench.executor.chunks.call_open()
    chunk = await held.wait_begun()
    first, second = chunk
    async with asyncio.timeout(PATIENCE):
        while not first.has_left:  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    assert not bench.tasks["a"].done()
    # A further interruption of the job that has left is none of the call, which belongs to the other one.
    parts.in_flight.revoke("a", 1, Revocation.CANCELLED)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not second.has_left
    held.open.set()
    await bench.end()
    assert held.cancelled == 0
    assert bench.outcomes() == {"a": JobCancelled, "b": JobCompleted}


async def test_jobs_of_a_call_time_out_at_one_moment(parts: Parts, seen: Recorder, held: Calls) -> None:
    bench = Bench(parts, seen, held.job)
    await bench.submit("a", "b", "c", timeout_seconds=60.0)
    bench.executor.chunks.call_open()
    await held.wait_begun()
    (limits,) = bench.executor._runner._timeouts._by_timeout.values()
    assert len(limits) == 3
    assert len(set(limits.values())) == 1
    held.open.set()
    await bench.end()


async def test_shutdown_ends_a_call_whose_jobs_have_left_or_have_outcomes(
    parts: Parts, seen: Recorder, held: Calls
) -> None:
    bench = Bench(parts, seen, held.job, shutdown_timeout=0.0)
    await bench.submit("a", "b")
    bench.executor.chunks.call_open()
    chunk = await held.wait_begun()
    parts.in_flight.revoke("a", 1, Revocation.CANCELLED)
    await asyncio.sleep(0)
    chunk.complete(chunk.jobs[1])
    await bench.end("b")
    assert not bench.tasks["a"].done()
    await asyncio.wait_for(bench.executor.stop(), PATIENCE)
    assert held.cancelled == 1
    await bench.end()
    assert bench.outcomes() == {"a": JobCancelled, "b": JobCompleted}


async def test_further_cancellation_interrupts_the_cleanup_of_the_call(
    parts: Parts, seen: Recorder, held: Calls
) -> None:
    held.may_clean_up.clear()
    bench = Bench(parts, seen, held.job, shutdown_timeout=0.0)
    await bench.submit("a", timeout_seconds=0.01)
    bench.executor.chunks.call_open()
    async with asyncio.timeout(PATIENCE):
        await held.cleans_up.wait()
    await asyncio.wait_for(bench.executor.stop(), PATIENCE)
    assert bench.tasks["a"].done()


async def test_outcome_that_came_before_a_cancellation_counts(
    parts: Parts, seen: Recorder, held: Calls
) -> None:
    bench = Bench(parts, seen, held.job)
    await bench.submit("a", "b")
    bench.executor.chunks.call_open()
    chunk = await held.wait_begun()
    chunk.complete(chunk.jobs[0])
    parts.in_flight.revoke("a", 1, Revocation.SHUTDOWN)
    await bench.end("a")
    assert bench.outcomes()["a"] is JobCompleted
    held.open.set()
    await bench.end()


async def test_call_that_continues_after_all_outcomes_is_cancelled_after_the_time_limit(
    parts: Parts, seen: Recorder
) -> None:
    cancelled = asyncio.Event()

    async def job(chunk: Chunk[str]) -> None:
        for each in chunk:
            chunk.complete(each)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    bench = Bench(parts, seen, job, chunk=2)
    await bench.submit("a", "b", timeout_seconds=0.05)
    await bench.end()
    assert bench.executor.free == 4
    async with asyncio.timeout(PATIENCE):
        await cancelled.wait()
    await asyncio.sleep(0)
    assert bench.executor.free == 5
    assert bench.outcomes() == dict.fromkeys("ab", JobCompleted)


async def test_shutdown_waits_for_a_call_that_continues_after_all_outcomes(
    parts: Parts, seen: Recorder
) -> None:
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def job(chunk: Chunk[str]) -> None:
        chunk.complete(chunk.jobs[0])
        await may_end.wait()
        ended.set()

    bench = Bench(parts, seen, job, chunk=1)
    await bench.submit("a")
    await bench.end()
    stopping = asyncio.create_task(bench.executor.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    may_end.set()
    await asyncio.wait_for(stopping, PATIENCE)
    assert ended.is_set()


async def test_shutdown_cancels_a_call_that_continues_after_all_outcomes(
    parts: Parts, seen: Recorder
) -> None:
    cancelled = asyncio.Event()

    async def job(chunk: Chunk[str]) -> None:
        chunk.complete(chunk.jobs[0])
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    bench = Bench(parts, seen, job, chunk=1, shutdown_timeout=0.0)
    await bench.submit("a")
    await bench.end()
    await asyncio.wait_for(bench.executor.stop(), PATIENCE)
    assert cancelled.is_set()


# -- errors that no job has ----------------------------------------------------------------------------


async def _raises_after_outcomes(chunk: Chunk[str]) -> None:
    for job in chunk:
        chunk.complete(job)
    raise OSError("the commit failed")


async def _cancels_itself_after_outcomes(chunk: Chunk[str]) -> None:
    for job in chunk:
        chunk.complete(job)
    raise asyncio.CancelledError


async def _raises_in_its_cleanup(chunk: Chunk[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("the cleanup failed")


async def _continues_after_outcomes(chunk: Chunk[str]) -> None:
    for job in chunk:
        chunk.complete(job)
    await asyncio.Event().wait()


def _raises_in_a_thread(chunk: Chunk[str]) -> None:
    for job in chunk:
        chunk.complete(job)
    raise OSError("the commit failed")


@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (_raises_after_outcomes, ("raised an exception that fails no job", OSError)),
        (_raises_in_a_thread, ("raised an exception that fails no job", OSError)),
        (_cancels_itself_after_outcomes, ("raised an exception that fails no job", asyncio.CancelledError)),
        (_raises_in_its_cleanup, ("raised an exception that fails no job", OSError)),
        (_continues_after_outcomes, ("is cancelled: it continues after the time limits", None)),
    ],
)
async def test_error_that_no_job_has_is_logged(
    parts: Parts,
    seen: Recorder,
    caplog: pytest.LogCaptureFixture,
    func: Callable[..., Any],
    expected: tuple[str, type[BaseException] | None],
) -> None:
    problem, error = expected
    bench = Bench(parts, seen, func, chunk=2)
    await bench.submit("a", "b", timeout_seconds=0.05)
    async with asyncio.timeout(PATIENCE):
        while bench.executor.chunks.calls():  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.001)
    await bench.end()
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert problem in record.getMessage()
    assert "test.chunk" in record.getMessage()
    assert (record.exc_info[0] if record.exc_info else None) is error


async def test_time_limit_of_a_call_that_is_cancelled_already_is_no_error(
    parts: Parts, seen: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def clean_up_until_the_limit(chunk: Chunk[str]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()  # the time limit ends it

    bench = Bench(parts, seen, clean_up_until_the_limit, chunk=2)
    await bench.submit("a", "b", timeout_seconds=0.2)
    await begun.wait()
    parts.in_flight.revoke_all(Revocation.CANCELLED)
    await bench.end()
    assert not [each for each in caplog.records if each.levelno == logging.ERROR]


async def test_end_of_a_call_that_was_cancelled_is_no_error(
    parts: Parts, seen: Recorder, held: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(parts, seen, held.job)
    await bench.submit("a", "b")
    bench.executor.chunks.call_open()
    await held.wait_begun()
    parts.in_flight.revoke_all(Revocation.CANCELLED)
    await bench.end()
    assert held.cancelled == 1
    assert not [each for each in caplog.records if each.levelno == logging.ERROR]


def _interrupts_in_a_thread(chunk: Chunk[str]) -> None:
    raise KeyboardInterrupt("of a library")


async def _fails_with_an_interrupt(chunk: Chunk[str]) -> None:
    for job in chunk:
        chunk.fail(job, KeyboardInterrupt("of a library"))


@pytest.mark.parametrize("func", [_interrupts_in_a_thread, _fails_with_an_interrupt])
async def test_keyboard_interrupt_of_a_chunk_ends_only_its_jobs(
    parts: Parts, seen: Recorder, func: Callable[..., Any]
) -> None:
    """Also where no event loop handles SIGINT, so that a KeyboardInterrupt in a task looks like Ctrl-C."""
    bench = Bench(parts, seen, func, chunk=2)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        await bench.submit("a", "b")
        await bench.end()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert {event.error for event in seen.of(JobFailed)} == {"KeyboardInterrupt: of a library"}
    assert len(seen.of(JobFailed)) == 2


def test_keyboard_interrupt_stays_within_its_wrapper() -> None:
    nothing: Any = None
    seat = Seat(nothing, nothing, nothing)
    seat.error = KeyboardInterrupt("of a library")
    raised: BaseException | None = None
    # Not by pytest.raises(): a KeyboardInterrupt would end pytest.
    try:
        seat.outcome()
    except BaseException as error:  # noqa: BLE001 - a KeyboardInterrupt, without the guard
        raised = error
    assert isinstance(raised, RaisedError)
    assert raised.error is seat.error


# -- threads -------------------------------------------------------------------------------------------


class Thread:
    """A plain function of chunks that gives outcomes, and hangs until it is let go."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.open = threading.Event()
        self.saw_cancellation = False
        self.chunk: Chunk[Any] | None = None

    def job(self, chunk: Chunk[Any]) -> None:
        self.chunk = chunk
        chunk.complete(chunk.jobs[0])
        self.began.set()
        assert self.open.wait(PATIENCE)
        self.saw_cancellation = chunk.is_cancelled
        chunk.raise_if_cancelled()

    async def wait_begun(self) -> None:
        assert await asyncio.to_thread(self.began.wait, PATIENCE)


async def sees_cancellation(chunk: Chunk[Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not chunk.is_cancelled:  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0)


async def test_outcomes_of_a_thread_count_at_once(parts: Parts, seen: Recorder) -> None:
    thread = Thread()
    bench = Bench(parts, seen, thread.job, chunk=3)
    await bench.submit("a", "b", "c")
    await thread.wait_begun()
    await bench.end("a")
    assert bench.outcomes() == {"a": JobCompleted, "b": JobStarted, "c": JobStarted}
    assert bench.executor.free == 4
    thread.open.set()
    await bench.end()
    assert bench.outcomes() == dict.fromkeys("abc", JobCompleted)
    assert not thread.saw_cancellation
    assert bench.executor.free == 5


async def test_thread_sees_that_all_jobs_have_left(parts: Parts, seen: Recorder) -> None:
    thread = Thread()
    bench = Bench(parts, seen, thread.job, chunk=3)
    await bench.submit("a", "b", "c")
    await thread.wait_begun()
    await bench.end("a")
    parts.in_flight.revoke("b", 1, Revocation.CANCELLED)
    await asyncio.sleep(0)
    assert thread.chunk is not None
    assert thread.chunk.jobs[1].has_left
    assert not thread.chunk.is_cancelled
    parts.in_flight.revoke("c", 1, Revocation.CANCELLED)
    await sees_cancellation(thread.chunk)
    assert not bench.tasks["b"].done()
    assert not bench.tasks["c"].done()
    thread.open.set()
    await bench.end()
    assert thread.saw_cancellation
    assert bench.outcomes() == {"a": JobCompleted, "b": JobCancelled, "c": JobCancelled}


async def test_stuck_thread_of_a_chunk_releases_its_slot(parts: Parts, seen: Recorder) -> None:
    thread = Thread()
    executors = {"thread": ThreadExecutor(threads=1)}
    bench = Bench(
        parts, seen, thread.job, chunk=3, slots=2, stop_grace=0.0, max_stuck_threads=1, executors=executors
    )
    await bench.submit("a", "b", "c")
    await thread.wait_begun()
    await bench.end("a")
    for job_id in "bc":
        AttemptRunner.time_out(parts.in_flight.attempts[job_id])
    (event,) = await seen.until(ThreadAbandoned)
    assert not event.has_slot
    assert bench.executor.free == 2
    # Their jobs stay with this worker until the thread returns.
    assert parts.in_flight.held() == {"b": 1, "c": 1}
    thread.open.set()
    await bench.end()
    assert bench.executor.free == 2
    assert bench.outcomes() == {"a": JobCompleted, "b": JobFailed, "c": JobFailed}


async def test_stuck_thread_whose_jobs_have_outcomes_releases_its_slot(parts: Parts, seen: Recorder) -> None:
    thread = Thread()
    bench = Bench(parts, seen, thread.job, chunk=1, slots=1, stop_grace=0.0, max_stuck_threads=1)
    await bench.submit("a", timeout_seconds=0.05)
    await thread.wait_begun()
    await bench.end("a")
    (event,) = await seen.until(ThreadAbandoned)
    assert not event.has_slot
    assert bench.executor.free == 1
    (call,) = bench.executor.chunks.calls()
    thread.open.set()
    await asyncio.wait_for(call, PATIENCE)
    await asyncio.sleep(0)
    assert bench.executor.free == 1


async def test_shutdown_leaves_the_jobs_of_a_stuck_thread_to_it(parts: Parts, seen: Recorder) -> None:
    thread = Thread()
    bench = Bench(parts, seen, thread.job, chunk=3, shutdown_timeout=0.0, stop_grace=0.01)
    await bench.submit("a", "b", "c")
    await thread.wait_begun()
    await bench.end("a")
    await asyncio.wait_for(bench.executor.stop(), PATIENCE)
    assert parts.in_flight.held() == {"b": 1, "c": 1}
    thread.open.set()
    while parts.in_flight.held():  # noqa: ASYNC110 - nothing reports it
        await asyncio.sleep(0)


async def test_executor_of_processes_under_another_name_is_refused(parts: Parts, seen: Recorder) -> None:
    thread = Thread()
    bench = Bench(
        parts, seen, thread.job, chunk=1, executors={"cpu": ProcessExecutor(processes=1)}, executor_name="cpu"
    )
    await bench.submit("a")
    await bench.end()
    (failed,) = seen.of(JobFailed)
    assert "the executor 'cpu' runs jobs in processes" in failed.error


async def test_executor_that_is_missing_is_named(parts: Parts, seen: Recorder) -> None:
    bench = Bench(parts, seen, Thread().job, chunk=1, executors={}, executor_name="gpu")
    await bench.submit("a")
    await bench.end()
    (failed,) = seen.of(JobFailed)
    assert "this Scheduler has no executor 'gpu'" in failed.error


# -- what people see -----------------------------------------------------------------------------------


async def test_look_shows_what_a_job_in_a_chunk_waits_for(
    parts: Parts, pool: asyncpg.Pool, seen: Recorder, held: Calls
) -> None:
    bench = Bench(parts, seen, held.job, chunk=1_000)
    await bench.submit("a", "b")
    chunk = parts.in_flight.attempts["b"].chunk
    assert chunk is not None
    assert chunk.state == "waits in a chunk of 2 jobs of at most 1,000, up to 600 s for further jobs"
    parts.looks.append(Look("me", STACK, "b"))
    writer = LookWriter(parts)
    await writer.run_once()
    assert (await seen_of(pool, "b"))["stack"]["text"] == chunk.state
    bench.executor.chunks.call_open()
    await held.wait_begun()
    assert str(chunk.state) == "None", "it waits for nothing"
    parts.looks.append(Look("me", STACK, "b"))
    await writer.run_once()
    assert "await self.open.wait()" in (await seen_of(pool, "b"))["stack"]["text"]
    held.open.set()
    await bench.end()
    await writer.drain()


async def test_look_shows_where_the_thread_of_a_chunk_is(parts: Parts, seen: Recorder) -> None:
    thread = Thread()
    bench = Bench(parts, seen, thread.job, chunk=2)
    await bench.submit("a", "b")
    await thread.wait_begun()
    await bench.end("a")
    frames = frames_of(parts.in_flight.attempts["b"])
    assert frames is not None
    assert "job" in {place.function for place in frames}
    thread.open.set()
    await bench.end()


# -- memory --------------------------------------------------------------------------------------------


async def test_chunk_leaves_nothing_to_the_garbage_collector(parts: Parts, seen: Recorder) -> None:
    chunks: list[weakref.ref[Any]] = []

    async def job(chunk: Chunk[str]) -> None:
        await asyncio.sleep(0)
        chunks.append(weakref.ref(chunk))

    bench = Bench(parts, seen, job, chunk=2)
    gc.disable()
    try:
        await bench.submit("a", "b")
        await bench.end()
        bench.tasks.clear()
        assert [chunk() for chunk in chunks] == [None]
    finally:
        gc.enable()
