"""Time limits. Real time is the subject: hundredths of a second."""

from __future__ import annotations

import asyncio

import pytest

from pg_scheduler.services import deadlines as module
from pg_scheduler.services.deadlines import Deadlines
from tests.services.kit import PATIENCE

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


async def test_items_expire_in_the_order_of_their_limits() -> None:
    expired = Expired()
    deadlines = Deadlines(expired.note)
    deadlines.add("third", 0.03)
    deadlines.add("first", 0.01)
    deadlines.add("fourth", 0.03)
    deadlines.add("second", 0.02)
    deadlines.add("never", LONG)
    assert len(deadlines) == 5
    await expired.until("fourth")
    assert expired == ["first", "second", "third", "fourth"]
    assert len(deadlines) == 1
    deadlines.close()


async def test_none_expires_early_though_its_timer_was_set_for_another() -> None:
    expired = Expired()
    deadlines = Deadlines(expired.note)
    loop = asyncio.get_running_loop()
    deadlines.add("ended", 0.3)
    await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.1)  # real time passes
    deadlines.remove("ended", 0.3)
    began = loop.time()
    deadlines.add("late", 0.3)
    await expired.until("late")
    assert loop.time() - began >= 0.3 - 0.001  # the clock's resolution
    assert expired == ["late"]
    deadlines.close()


async def test_what_was_removed_does_not_expire_and_the_others_do() -> None:
    expired = Expired()
    deadlines = Deadlines(expired.note)
    for item in ("a", "b", "c"):
        deadlines.add(item, 0.01)
    deadlines.remove("a", 0.01)
    deadlines.remove("b", 0.01)
    deadlines.remove("b", 0.01)
    deadlines.remove("nobody", 7.0)
    await expired.until("c")
    assert expired == ["c"]
    deadlines.remove("c", 0.01)
    assert len(deadlines) == 0


async def test_an_item_may_come_again() -> None:
    expired = Expired()
    deadlines = Deadlines(expired.note)
    deadlines.add("a", 0.01)
    await expired.until("a")
    expired.clear()
    deadlines.add("a", 0.01)
    await expired.until("a")
    assert len(deadlines) == 0


async def test_one_that_was_removed_by_the_expiry_of_another_still_expires_once() -> None:
    """A callback may take out a neighbour, as a job does that cancels another."""
    seen: list[str] = []

    def note(item: str) -> None:
        seen.append(item)
        for other in ("a", "b"):
            deadlines.remove(other, 0.0)

    deadlines: Deadlines[str] = Deadlines(note)
    deadlines.add("a", 0.0)
    deadlines.add("b", 0.0)
    marker = Expired()
    after: Deadlines[str] = Deadlines(marker.note)
    after.add("end", 0.02)
    await marker.until("end")
    assert seen == ["a", "b"]
    assert len(deadlines) == 0


async def test_after_close_nothing_expires() -> None:
    expired = Expired()
    deadlines = Deadlines(expired.note)
    deadlines.add("a", 0.0)
    deadlines.add("b", 0.01)
    deadlines.close()
    deadlines.remove("a", 0.0)
    deadlines.add("marker", 0.02)
    await expired.until("marker")
    assert expired == ["marker"]
    deadlines.close()
    assert len(deadlines) == 0


@pytest.mark.parametrize("timeout", [LONG, None])
async def test_many_items_leave_nothing_behind(timeout: float | None) -> None:
    """Whether all have one timeout, or each one of its own."""
    deadlines: Deadlines[int] = Deadlines(lambda _item: None)
    for item in range(2000):
        deadlines.add(item, timeout or LONG + item)
        if item >= 50:
            deadlines.remove(item - 50, timeout or LONG + item - 50)
    for item in range(1950, 2000):
        deadlines.remove(item, timeout or LONG + item)
    assert len(deadlines) == 0
    assert len(deadlines._timers) == len(deadlines._by_timeout) <= (1 if timeout else module.IDLE_TIMERS)
    deadlines.close()


async def test_timers_that_watched_nothing_to_their_end_are_gone() -> None:
    marker = Expired()
    deadlines: Deadlines[str] = Deadlines(marker.note)
    for n in range(5):
        deadlines.add("a", 0.001 * n)
        deadlines.remove("a", 0.001 * n)
    deadlines.add("end", 0.02)
    await marker.until("end")
    assert (deadlines._timers, deadlines._by_timeout) == ({}, {})


async def test_the_longest_time_there_is() -> None:
    deadlines: Deadlines[str] = Deadlines(lambda _item: None)
    deadlines.add("a", 999_999_999)
    await asyncio.sleep(0)
    assert len(deadlines) == 1
    deadlines.close()


@pytest.mark.parametrize("timeout", [1e300, float("inf"), float("nan")])
async def test_what_is_longer_is_no_limit(timeout: float) -> None:
    deadlines: Deadlines[str] = Deadlines(lambda _item: None)
    deadlines.add("a", timeout)
    assert len(deadlines) == 0
    deadlines.remove("a", timeout)
