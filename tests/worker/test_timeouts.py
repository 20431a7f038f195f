"""Time limits. Real time is the subject: hundredths of a second."""

from __future__ import annotations

import asyncio
import time

import pytest

from pg_scheduler.worker.runners import timeouts as module
from pg_scheduler.worker.runners.timeouts import TimeoutQueue
from tests.support.patience import PATIENCE

LONG = 3600.0


class Expired(list[str]):
    """What expired, in order, and a way to wait for the last."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def note(self, item: str) -> None:
        self.append(item)
        self._changed.set()

    async def until(self, item: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while item not in self:
                self._changed.clear()
                await self._changed.wait()


@pytest.mark.slow
async def test_timeouts_expire_in_order() -> None:
    expired = Expired()
    timeouts = TimeoutQueue(expired.note)
    timeouts.add("third", 1.1)
    timeouts.add("first", 0.1)
    timeouts.add("fourth", 1.1)
    timeouts.add("second", 0.6)
    timeouts.add("never", LONG)
    assert len(timeouts) == 5
    await expired.until("fourth")
    assert expired == ["first", "second", "third", "fourth"]
    assert len(timeouts) == 1
    timeouts.close()


async def test_timeout_does_not_expire_early_when_its_timer_was_set_for_another() -> None:
    expired = Expired()
    timeouts = TimeoutQueue(expired.note)
    loop = asyncio.get_running_loop()
    timeouts.add("ended", 0.3)
    await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.1)  # real time passes
    timeouts.remove("ended", 0.3)
    began = loop.time()
    timeouts.add("late", 0.3)
    await expired.until("late")
    assert loop.time() - began >= 0.3 - 0.001  # the clock's resolution
    assert expired == ["late"]
    timeouts.close()


async def test_timeout_does_not_expire_when_it_was_removed() -> None:
    expired = Expired()
    timeouts = TimeoutQueue(expired.note)
    for item in ("a", "b", "c"):
        timeouts.add(item, 0.01)
    timeouts.remove("a", 0.01)
    timeouts.remove("b", 0.01)
    timeouts.remove("b", 0.01)
    timeouts.remove("nobody", 7.0)
    await expired.until("c")
    assert expired == ["c"]
    timeouts.remove("c", 0.01)
    assert len(timeouts) == 0


async def test_timeout_can_be_set_again_for_the_same_item() -> None:
    expired = Expired()
    timeouts = TimeoutQueue(expired.note)
    timeouts.add("a", 0.01)
    await expired.until("a")
    expired.clear()
    timeouts.add("a", 0.01)
    await expired.until("a")
    assert len(timeouts) == 0


async def test_timeout_expires_once_when_a_callback_removes_it() -> None:
    """A callback may take out a neighbour, as a job does that cancels another."""
    seen: list[str] = []

    def note(item: str) -> None:
        seen.append(item)
        for other in ("a", "b"):
            timeouts.remove(other, 0.0)

    timeouts: TimeoutQueue[str] = TimeoutQueue(note)
    timeouts.add("a", 0.0)
    timeouts.add("b", 0.0)
    marker = Expired()
    after: TimeoutQueue[str] = TimeoutQueue(marker.note)
    after.add("end", 0.02)
    await marker.until("end")
    assert seen == ["a", "b"]
    assert len(timeouts) == 0


async def test_timeouts_do_not_expire_after_close() -> None:
    expired = Expired()
    timeouts = TimeoutQueue(expired.note)
    timeouts.add("a", 0.0)
    timeouts.add("b", 0.01)
    timeouts.close()
    timeouts.remove("a", 0.0)
    timeouts.add("marker", 0.02)
    await expired.until("marker")
    assert expired == ["marker"]
    timeouts.close()
    assert len(timeouts) == 0


@pytest.mark.parametrize("timeout", [LONG, None])
async def test_timeouts_keep_few_timers_for_many_items(timeout: float | None) -> None:
    """Whether all have one timeout, or each one of its own."""
    timeouts: TimeoutQueue[int] = TimeoutQueue(lambda _item: None)
    for item in range(2000):
        timeouts.add(item, timeout or LONG + item)
        if item >= 50:
            timeouts.remove(item - 50, timeout or LONG + item - 50)
    for item in range(1950, 2000):
        timeouts.remove(item, timeout or LONG + item)
    assert len(timeouts) == 0
    assert len(timeouts._timers) == len(timeouts._by_timeout) <= (1 if timeout else module.MAX_IDLE_TIMERS)
    timeouts.close()


async def test_timeouts_remove_a_timer_that_ends_without_items() -> None:
    marker = Expired()
    timeouts: TimeoutQueue[str] = TimeoutQueue(marker.note)
    for n in range(5):
        timeouts.add("a", 0.001 * n)
        timeouts.remove("a", 0.001 * n)
    timeouts.add("end", 0.02)
    await marker.until("end")
    assert (timeouts._timers, timeouts._by_timeout) == ({}, {})


async def test_timeout_accepts_the_longest_timeout_of_a_job() -> None:
    timeouts: TimeoutQueue[str] = TimeoutQueue(lambda _item: None)
    timeouts.add("a", 999_999_999)
    await asyncio.sleep(0)
    assert len(timeouts) == 1
    timeouts.close()


@pytest.mark.parametrize("timeout", [1e300, float("inf"), float("nan")])
async def test_timeout_is_no_limit_when_it_is_too_long_or_nan(timeout: float) -> None:
    timeouts: TimeoutQueue[str] = TimeoutQueue(lambda _item: None)
    timeouts.add("a", timeout)
    assert len(timeouts) == 0
    timeouts.remove("a", timeout)


@pytest.mark.parametrize("shift", [1e6, -1e6])
async def test_timeouts_do_not_expire_when_a_job_replaces_the_clock(
    monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    expired = Expired()
    timeouts = TimeoutQueue(expired.note)
    timeouts.add("long", LONG)
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + shift)
    timeouts.add("short", 0.05)
    await expired.until("short")
    await asyncio.sleep(0)
    assert expired == ["short"]
    timeouts.close()
