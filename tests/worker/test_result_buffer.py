"""Completions can go along with a claim; each outcome has one owner, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from pg_scheduler import JobStatus
from pg_scheduler.events import EventBus, JobCancelled, JobCompleted, JobEvent, JobFailed
from pg_scheduler.worker.result_buffer import CompletionBatch, OutcomeBatch, ResultBuffer
from tests.support.inside import COMPLETE, NEVER, RELEASE, Claim, Outcome, Store
from tests.support.parts import Parts
from tests.support.worker import Recorder, claim, locked, new_job, statuses


async def mixed(parts: Parts) -> tuple[list[Claim], list[Claim]]:
    """First attempts of a and b, second ones of c and d."""
    again = await claim(parts.store, new_job("c"), new_job("d"))
    await parts.store.results.settle("me", [(each, RELEASE) for each in again])
    again = (await parts.store.claims.exchange("me", ["test.job"], 2)).jobs
    return await claim(parts.store, new_job("a"), new_job("b")), again


def take(results: ResultBuffer) -> list[Claim]:
    """Take a batch that is settled at once."""
    with results.completions() as batch:
        return batch.claims


async def test_result_buffer_batches_completions_in_order_by_attempt_number(parts: Parts) -> None:
    (a, b), (c, d) = await mixed(parts)
    for each in (a, c, b, d):
        parts.result_buffer.put(each, COMPLETE)
    assert [take(parts.result_buffer) for _ in range(3)] == [[a, b], [c, d], []]
    assert await parts.completer().run_once() == NEVER, "they belong to the batches"


async def test_result_buffer_batches_completions_of_sequences_by_attempt_number(parts: Parts) -> None:
    (a, b), (c, d) = await mixed(parts)
    results = parts.result_buffer
    for each in (a, c, b, d):
        results.put_sequenced(each)
    assert results.unwritten() == {"a": 1, "b": 1, "c": 2, "d": 2}
    with suppress(KeyError), results.sequenced() as batch:
        raise KeyError
    assert batch.claims == [a, b]
    for expected in ([c, d], [a, b], []):
        with results.sequenced() as batch:
            assert batch.claims == expected
    assert not results.unwritten()
    assert not results.has_sequenced


async def test_result_buffer_puts_a_batch_back_in_front_when_its_block_raises(
    parts: Parts, seen: Recorder
) -> None:
    (a, b), (c, d) = await mixed(parts)
    results = parts.result_buffer
    results.put(a, COMPLETE)
    with suppress(KeyError), results.completions() as first:
        for each in (c, b):
            results.put(each, COMPLETE)
        results.put(d, Outcome.fail("no"))
        raise KeyError
    assert first.claims == [a]
    with suppress(KeyError), results.completions() as first, results.completions() as second:
        raise KeyError
    assert (first.claims, second.claims) == ([c], [a, b])
    completer = parts.completer()
    while await completer.run_once() == 0:
        pass
    assert [event.job_id for event in seen.of(JobCompleted)] == ["a", "b", "c"]
    assert await statuses(parts.store, *"abcd") == ["completed"] * 3 + ["failed"]


async def test_result_buffer_limits_batches_and_alternates_between_attempt_numbers(parts: Parts) -> None:
    parts.result_buffer.batch_size = 2
    first = await claim(parts.store, *(new_job(str(n)) for n in range(5)))
    other = first[4]._replace(attempt=2)
    for each in (*first[:4], other):
        parts.result_buffer.put(each, COMPLETE)
    assert [take(parts.result_buffer) for _ in range(4)] == [first[:2], [other], first[2:4], []]


async def test_result_buffer_delays_only_completions_until_the_next_claim(
    parts: Parts, seen: Recorder
) -> None:
    """Nothing but a completion can go with one, and a failure must not wait for the next completion."""
    held = await claim(parts.store, new_job("a"), new_job("b"))
    completer = parts.completer()
    parts.result_buffer.claims_follow = True
    await completer.start()
    parts.result_buffer.put(held[0], COMPLETE)
    for _ in range(5):
        await asyncio.sleep(0)  # rounds of the loop, no time
    assert take(parts.result_buffer) == [held[0]], "the completer has not begun a pass"
    parts.result_buffer.put(held[0], COMPLETE)
    parts.result_buffer.put(held[1], Outcome.fail("no"))
    await seen.until(JobFailed, job_id="b")
    assert await statuses(parts.store, "a", "b") == ["completed", "failed"]  # that one went along
    await completer.stop()


@pytest.mark.parametrize("has_answer", [True, False])
async def test_result_buffer_wakes_the_completer_for_completions_that_a_claim_has_not_written(
    parts: Parts, seen: Recorder, *, has_answer: bool
) -> None:
    """While a backlog lasts, each claim is followed by another one, and no outcome must wait for the last."""
    (held,) = await claim(parts.store, new_job("a"))
    completer, results = parts.completer(), parts.result_buffer
    results.claims_follow = True
    await completer.start()
    for _ in range(5):
        await asyncio.sleep(0)  # rounds of the loop, in which its first pass ends
    results.put(held, COMPLETE)
    with suppress(KeyError), results.completions() as batch:
        batch.refused = {"a"}
        if not has_answer:
            raise KeyError
    await seen.until(JobCompleted, job_id="a")
    await completer.stop()


async def test_result_buffer_excludes_outcomes_that_another_batch_is_writing(
    parts: Parts, seen: Recorder, dsn: str
) -> None:
    """A claim in the middle of a slow write takes what came since, and nothing is lost."""
    held = await claim(parts.store, *(new_job(job_id) for job_id in "abc"))
    completer, results = parts.completer(), parts.result_buffer
    results.put(held[0], COMPLETE)
    results.put(held[1], Outcome.fail("no"))
    async with locked(dsn, "scheduled_jobs"):
        writing = asyncio.create_task(completer.run_once())
        done, _ = await asyncio.wait([writing], timeout=0.05)  # real time: it must have begun
        assert not done
        assert take(results) == []
        results.put(held[2], COMPLETE)
        with suppress(KeyError), results.completions() as batch:
            assert batch.claims == [held[2]]
            raise KeyError
    await writing
    assert await completer.run_once() == NEVER
    assert [event.job_id for event in seen.of(JobEvent)] == ["a", "b", "c"]
    assert await statuses(parts.store, *"abc") == ["completed", "failed", "completed"]


async def test_result_buffer_writes_a_refused_completion_again_or_publishes_why_not(
    parts: Parts, seen: Recorder
) -> None:
    held = await claim(parts.store, *(new_job(job_id) for job_id in "abc"))
    await parts.store.jobs.cancel("a")
    await parts.store.inserts.replace([new_job("b", priority=8)])
    completer = parts.completer()
    for each in held:
        parts.result_buffer.put(each, COMPLETE)
    with parts.result_buffer.completions() as batch:
        batch.refused = (await parts.store.claims.exchange("me", [], 0, completed=batch.claims)).refused
    assert seen.events == [JobCompleted("c", "test.job", 1)]
    assert await statuses(parts.store, *"abc") == ["cancelled", "running", "completed"]
    assert await completer.run_once() == NEVER
    cancelled = JobCancelled("a", "test.job", 1, reason="cancelled by a caller")
    assert seen.events[1:] == [cancelled, JobCompleted("b", "test.job", 1)]
    assert await statuses(parts.store, *"abc") == ["cancelled", "pending", "completed"]
    assert parts.calls == ["due"], "the claimer hears of the job that is pending again"


@pytest.mark.parametrize("keeps_completed", [True, False])
async def test_result_buffer_counts_completions_whose_rows_are_not_kept(
    store: Store, bus: EventBus, keeps_completed: bool
) -> None:
    parts = Parts(store, bus)
    parts.use_result_buffer(keeps_completed=keeps_completed)
    held = await claim(store, *(new_job(job_id) for job_id in "abc"))
    for each in held:
        parts.result_buffer.put(each, COMPLETE)
    with parts.result_buffer.completions() as batch:
        batch.refused = {"b"}
    assert parts.result_buffer.deleted[JobStatus.COMPLETED] == (0 if keeps_completed else 2)


async def test_result_buffer_unwritten_contains_every_outcome_until_its_batch_is_settled(
    parts: Parts,
) -> None:
    parts.result_buffer.batch_size = 1
    a, b, c, d = await claim(parts.store, *(new_job(job_id) for job_id in "abcd"))
    results = parts.result_buffer
    for each in (a, b):
        results.put(each, COMPLETE)
    for each in (c, d):
        results.put(each, Outcome.fail("no"))
    everything = {"a": 1, "b": 1, "c": 1, "d": 1}
    assert results.unwritten() == everything
    with suppress(KeyError), results.completions(), results.others():
        assert results.unwritten() == everything
        raise KeyError
    assert results.unwritten() == everything
    with results.completions(), results.others() as others:
        others.accepted = {"c"}
    assert results.unwritten() == {"b": 1, "d": 1}


class Moving(dict[CompletionBatch | OutcomeBatch, list[Claim]]):
    """Batches whose outcomes move just before or just after they are read."""

    def __init__(self, before: Callable[[], object], after: Callable[[], object]) -> None:
        super().__init__()
        self._before, self._after = before, after

    def values(self) -> Any:
        self._before()
        found = list(super().values())
        self._after()
        return found


@pytest.mark.parametrize("returns", [True, False])
async def test_result_buffer_unwritten_contains_outcomes_that_move_while_a_thread_reads_them(
    parts: Parts, returns: bool
) -> None:
    a, b = await claim(parts.store, new_job("a"), new_job("b"))
    results, batches = parts.result_buffer, ExitStack()

    def take_all() -> None:
        batches.enter_context(results.completions())
        batches.enter_context(results.others())

    def return_all() -> None:
        with suppress(KeyError), batches:
            raise KeyError

    results.put(a, COMPLETE)
    results.put(b, Outcome.fail("no"))
    results._in_batches = Moving(return_all, list) if returns else Moving(list, take_all)
    if returns:
        take_all()
    assert results.unwritten() == {"a": 1, "b": 1}
    batches.close()
