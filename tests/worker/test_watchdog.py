"""A blocked event loop is detected from another thread, and the job that blocks it is named."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from pg_scheduler.events import EventBus, LoopBlocked
from pg_scheduler.worker import watchdog as module
from pg_scheduler.worker.in_flight import TASK_NAME_PREFIX, Attempt
from pg_scheduler.worker.watchdog import LoopWatchdog
from tests.support.inside import Claim
from tests.support.logs import records_of
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Recorder, now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The watchdog's monotonic clock, to be moved by hand."""
    moment = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    return moment


async def test_watchdog_reports_nothing_when_the_loop_responds(
    bus: EventBus, seen: Recorder, clock: list[float]
) -> None:
    watchdog = LoopWatchdog(bus, Parts.in_flight_of_nothing())
    watchdog.start()
    for _ in range(3):
        await asyncio.sleep(0)
        assert watchdog.ping()
        await asyncio.sleep(0)
        clock[0] += 10
        watchdog.check()
        assert not watchdog.is_blocked
    assert seen.events == []


async def test_watchdog_waits_for_a_second_check_before_it_reports_a_blocked_loop(
    bus: EventBus, clock: list[float]
) -> None:
    """A process that was suspended for minutes answers as soon as it runs again."""
    watchdog = LoopWatchdog(bus, Parts.in_flight_of_nothing())
    watchdog.start()
    clock[0] += 700
    watchdog.check()
    assert (watchdog.is_blocked, watchdog.is_blocked_for(600)) == (True, False)
    watchdog.check()
    assert watchdog.is_blocked_for(600)
    assert not watchdog.is_blocked_for(800)


async def test_watchdog_names_the_job_that_blocks_the_loop(bus: EventBus, seen: Recorder) -> None:
    in_flight = Parts.in_flight_of_nothing()
    claim = Claim("a", "test.job", "test.job", 1, now(), "{}", 5, 0, 0, None, None)
    in_flight.attempts["a"] = Attempt(claim)
    watchdog = LoopWatchdog(bus, in_flight)
    watchdog.blocked_after_s = 0.01
    watchdog.start()

    def check() -> None:
        watchdog.ping()
        time.sleep(0.02)  # real time: the loop waits for this thread meanwhile
        watchdog.check()
        watchdog.report()

    async def block() -> None:
        thread = threading.Thread(target=check)
        thread.start()
        thread.join()

    await asyncio.create_task(block(), name=TASK_NAME_PREFIX + "a")
    (blocked,) = await seen.until(LoopBlocked)
    assert (blocked.job_id, blocked.job_name) == ("a", "test.job")
    assert blocked.seconds >= 0.01
    assert "in block" in blocked.stack


async def test_watchdog_names_the_chunk_that_blocks_the_loop(
    bus: EventBus, seen: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    in_flight = Parts.in_flight_of_nothing()
    watchdog = LoopWatchdog(bus, in_flight)
    watchdog.blocked_after_s = 0.01
    watchdog.start()

    def check() -> None:
        watchdog.ping()
        time.sleep(0.02)  # real time: the loop waits for this thread meanwhile
        watchdog.check()
        watchdog.report()

    async def block() -> None:
        thread = threading.Thread(target=check)
        thread.start()
        thread.join()

    task = asyncio.create_task(block())
    in_flight.chunk_tasks[task] = "test.chunk"
    await task
    (blocked,) = await seen.until(LoopBlocked)
    assert (blocked.job_id, blocked.job_name) == (None, "test.chunk")
    (record,) = records_of(caplog)
    assert "by a chunk of jobs test.chunk" in record.getMessage()


@pytest.mark.parametrize("method", ["check", "find_blockage"])
async def test_watchdog_names_nothing_when_the_loop_resumes_while_its_code_is_looked_up(
    bus: EventBus,
    seen: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    in_flight = Parts.in_flight_of_nothing()
    watchdog = LoopWatchdog(bus, in_flight)
    watchdog.blocked_after_s = 0.01
    watchdog.start()
    loop, resumes, has_resumed = asyncio.get_running_loop(), threading.Event(), threading.Event()
    blockages = []

    def claim_of(_task: object) -> Claim:
        resumes.set()
        assert has_resumed.wait(PATIENCE)
        return Claim("next", "test.next", "test.next", 1, now(), "{}", 5, 0, 0, None, None)

    def look() -> None:
        watchdog.ping()
        loop.call_soon_threadsafe(has_resumed.set)
        time.sleep(0.02)
        blockages.append(getattr(watchdog, method)())
        watchdog.report()

    monkeypatch.setattr(in_flight, "claim_of", claim_of)
    thread = threading.Thread(target=look)

    async def block() -> None:
        thread.start()
        assert resumes.wait(PATIENCE)

    await asyncio.create_task(block())
    await asyncio.to_thread(thread.join)
    assert blockages == [None]
    assert records_of(caplog) == []
    await asyncio.sleep(0)
    assert seen.events == []


async def test_watchdog_reads_no_source_file_until_it_reports(
    bus: EventBus, clock: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The keeper renews the lease between the two: a disk that hangs must not delay that."""
    read: list[str] = []

    def read_line(filename: str, *_: object) -> str:
        read.append(filename)
        return "a line"

    watchdog = LoopWatchdog(bus, Parts.in_flight_of_nothing())
    watchdog.start()
    clock[0] += 10
    monkeypatch.setattr("linecache.getline", read_line)
    watchdog.check()
    watchdog.check()
    assert read == []
    watchdog.report()
    assert __file__ in read
    watchdog.report()
    (record,) = records_of(caplog)
    assert "a line" in record.getMessage()
    assert record.getMessage().startswith("event loop blocked for 10.0 s, not by a job:")


def test_watchdog_reports_a_closed_loop(bus: EventBus) -> None:
    async def make() -> LoopWatchdog:
        watchdog = LoopWatchdog(bus, Parts.in_flight_of_nothing())
        watchdog.start()
        return watchdog

    assert not asyncio.run(make()).ping()
