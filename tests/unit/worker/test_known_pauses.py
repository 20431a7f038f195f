"""When what a worker knows about pauses is stale, and how often it reads then."""

from __future__ import annotations

import asyncio
import time

import pytest

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.worker import known_pauses
from pg_scheduler.worker.known_pauses import MAX_GAP_S, MAX_READS, KnownPauses
from pg_scheduler.worker.signals import Condition
from tests.support.worker import holds


class Clock:
    """A clock that stands still, unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Reads:
    """A reader that counts its calls, and can fail, wait, or do something else meanwhile."""

    def __init__(self) -> None:
        self.count = 0
        self.fault: Exception | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self) -> None:
        self.count += 1
        await self.may_end.wait()
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(known_pauses, "read_clock", clock)
    return clock


@pytest.fixture
def notifications_up() -> Condition:
    condition = Condition("up")
    condition()
    return condition


@pytest.fixture
async def pauses(clock: Clock, notifications_up: Condition) -> KnownPauses:
    return KnownPauses(notifications_up)


async def test_pauses_are_read_before_the_first_use_and_when_they_are_stale(pauses: KnownPauses) -> None:
    reads = Reads()
    assert pauses.is_fresh(), "nothing could read them"
    pauses.begin(reads)
    for count in range(1, 4):
        assert not pauses.is_fresh()
        await pauses.refresh()
        await pauses.refresh()
        assert pauses.is_fresh()
        assert reads.count == count
        pauses.mark_stale()
    pauses.end()
    assert pauses.is_fresh()


async def test_gap_in_the_passes_of_the_event_loop_makes_pauses_stale(
    pauses: KnownPauses, clock: Clock
) -> None:
    reads = Reads()
    pauses.begin(reads)
    await pauses.refresh()
    clock.now += MAX_GAP_S
    assert pauses.is_fresh()
    clock.now += MAX_GAP_S + 0.01
    assert not pauses.is_fresh(), "whoever looks first"
    assert not pauses.is_fresh()
    await pauses.refresh()
    assert holds(pauses.is_fresh())
    pauses.end()


async def test_statement_that_took_too_long_makes_pauses_stale(pauses: KnownPauses) -> None:
    pauses.begin(Reads())
    await pauses.refresh()
    pauses.mark_stale_since(time.monotonic())
    assert pauses.is_fresh()
    pauses.mark_stale_since(time.monotonic() - MAX_GAP_S - 0.01)
    assert not pauses.is_fresh()
    pauses.end()


async def test_age_of_the_last_read_counts_while_no_notifications_arrive(
    pauses: KnownPauses, clock: Clock, notifications_up: Condition
) -> None:
    pauses.begin(Reads())
    await pauses.refresh()
    notifications_up.clear()
    assert pauses.is_fresh()
    for _ in range(4):
        assert pauses.is_fresh()
        clock.now += 0.3
    assert not pauses.is_fresh()
    await pauses.refresh()
    assert holds(pauses.is_fresh())
    pauses.end()


async def test_callers_share_one_read(pauses: KnownPauses) -> None:
    reads = Reads()
    pauses.begin(reads)
    reads.may_end.clear()
    async with asyncio.TaskGroup() as callers:
        for _ in range(5):
            callers.create_task(pauses.refresh())
        await asyncio.sleep(0)
        reads.may_end.set()
    assert reads.count == 1
    pauses.end()


async def test_what_happens_during_a_read_makes_it_stale(pauses: KnownPauses) -> None:
    reads = Reads()
    pauses.begin(reads)
    reads.may_end.clear()
    refreshing = asyncio.create_task(pauses.refresh())
    await asyncio.sleep(0)
    pauses.mark_stale()
    reads.may_end.set()
    await refreshing
    assert reads.count == 2
    assert pauses.is_fresh()
    pauses.end()


async def test_event_loop_that_is_always_blocked_delays_a_caller_for_a_few_reads_only(
    pauses: KnownPauses,
) -> None:
    count = 0

    async def read() -> None:
        nonlocal count
        count += 1
        pauses.mark_stale()

    pauses.begin(read)
    await pauses.refresh()
    assert count == MAX_READS
    assert not pauses.is_fresh()
    pauses.end()


async def test_failed_read_raises_and_leaves_pauses_stale(pauses: KnownPauses) -> None:
    reads = Reads()
    reads.fault = DatabaseUnavailableError("gone")
    pauses.begin(reads)
    with pytest.raises(DatabaseUnavailableError):
        await pauses.refresh()
    assert not pauses.is_fresh()
    reads.fault = None
    await pauses.refresh()
    assert holds(pauses.is_fresh())
    pauses.end()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system has no such clock")
def test_clock_continues_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.0}.__getitem__)
    assert known_pauses.read_clock() == 7.0
