"""The one contract of every service, on a service that does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

import asyncpg
import pytest

from pg_scheduler.errors import ConnectionRejectedError, DatabaseUnavailableError
from pg_scheduler.events import EventBus, PassFinished, ServiceFaulted, ServiceRetrying
from pg_scheduler.worker.service import BackoffOptions, Service, Wakeup
from tests.support.inside import NEVER
from tests.support.worker import PATIENCE, Recorder, holds


class Idle(Service):
    """Calls a function in each pass, and sleeps until woken."""

    name: ClassVar[str] = "idle"

    def __init__(self, events: EventBus, work: Callable[[], Awaitable[float]] | None = None) -> None:
        super().__init__(events)
        self.passes = 0
        self.prepared = 0
        self.drained = 0
        self._work = work
        self._passed = asyncio.Event()

    async def prepare(self) -> None:
        self.prepared += 1

    async def run_once(self) -> float:
        self.passes += 1
        self._passed.set()
        return NEVER if self._work is None else await self._work()

    async def drain(self) -> None:
        self.drained += 1

    async def until_passes(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.passes < count:
                self._passed.clear()
                await self._passed.wait()


async def test_wakeup_ends_the_next_sleep_when_it_is_set_before() -> None:
    wakeup = Wakeup()
    wakeup.set()
    async with asyncio.timeout(PATIENCE):
        await wakeup.wait(NEVER)


class Sleeper(Idle):
    """Makes its first pass when it is woken."""

    begins_asleep = True


async def test_start_of_a_service_that_begins_asleep_waits_for_no_pass() -> None:
    service = Sleeper(EventBus())
    await service.start()
    assert service.passes == 0
    service.wake()
    await service.until_passes(1)
    await service.stop()


async def test_start_of_a_service_that_was_woken_before_waits_for_its_pass() -> None:
    may_end = asyncio.Event()

    async def work() -> float:
        await may_end.wait()
        return NEVER

    service = Sleeper(EventBus(), work)
    service.wake()
    start = asyncio.create_task(service.start())
    await service.until_passes(1)
    await asyncio.sleep(0.05)
    assert not start.done()
    may_end.set()
    await asyncio.wait_for(start, PATIENCE)
    await service.stop()


async def test_first_pass_attends_to_what_woke_the_service_before_its_start() -> None:
    service = Idle(EventBus())
    service.wake()
    await service.start()
    await asyncio.sleep(0.05)
    assert service.passes == 1
    await service.stop()


async def test_wakeup_ends_one_sleep_only() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    await wakeup.wait(NEVER)
    sleeper = asyncio.create_task(wakeup.wait(NEVER))
    done, _ = await asyncio.wait([sleeper], timeout=0.02)  # real time: it must still sleep
    assert not done
    wakeup.set()
    await sleeper


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.001])
async def test_wakeup_wait_returns_when_the_timeout_expires(seconds: float) -> None:
    async with asyncio.timeout(PATIENCE):
        await Wakeup().wait(seconds)


async def test_service_makes_another_pass_when_it_is_woken_during_one(bus: EventBus) -> None:
    async def work() -> float:
        if service.passes == 2:
            service.wake()
        return NEVER

    service = Idle(bus, work)
    await service.start()
    service.wake()
    await service.until_passes(3)
    await service.stop()
    assert service.passes == 3


async def test_service_reports_an_outage_but_no_lock_of_another_transaction(
    bus: EventBus, seen: Recorder
) -> None:
    locked = DatabaseUnavailableError("locked")
    locked.__cause__ = asyncpg.LockNotAvailableError("locked")
    faults = [locked, DatabaseUnavailableError("gone")]
    reported: list[int] = []

    async def work() -> float:
        if faults:
            raise faults.pop(0)
        return NEVER

    service = Idle(bus, work)
    service.on_outage = lambda: reported.append(service.passes)
    await service.start()
    assert reported == [2]
    await service.stop()


async def test_service_start_returns_after_the_first_pass(bus: EventBus) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> float:
        inside.set()
        await go_on.wait()
        return NEVER

    service = Idle(bus, work)
    starting = asyncio.create_task(service.start())
    await inside.wait()
    assert not starting.done()
    go_on.set()
    await starting
    assert holds(service.is_running)
    assert service.prepared == 1
    await service.stop()
    assert not holds(service.is_running)


async def test_service_publishes_passes_with_their_delays(bus: EventBus, seen: Recorder) -> None:
    async def work() -> float:
        return 0.001

    service = Idle(bus, work)
    await service.start()
    await seen.until(PassFinished, 3, service="idle", next_in=0.001)
    await service.stop()


async def test_service_varies_the_delay_by_at_most_its_jitter(bus: EventBus, seen: Recorder) -> None:
    class Jittery(Idle):
        jitter: ClassVar[float] = 0.5

    async def work() -> float:
        return 0.001

    service = Jittery(bus, work)
    await service.start()
    passes = await seen.until(PassFinished, 20)
    await service.stop()
    delays = [each.next_in for each in passes]
    assert all(0.0005 <= delay <= 0.0015 for delay in delays)
    assert len(set(delays)) > 1


async def test_service_backs_off_longer_until_a_pass_succeeds(
    bus: EventBus, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def work() -> float:
        if service.passes not in {6, 8}:
            raise DatabaseUnavailableError("away")
        return 0

    service = Idle(bus, work)
    service.backoff = BackoffOptions(first_s=0.001, longest_s=0.004)
    await service.start()
    assert holds(service.is_running)
    retries = await seen.until(ServiceRetrying, 7)
    await service.stop()
    assert not seen.of(ServiceFaulted)
    delays = [each.next_in for each in retries]
    for delay, longest in zip(delays, [0.001, 0.002, 0.004, 0.004, 0.004, 0.001, 0.001], strict=False):
        assert longest / 2 <= delay <= longest
    assert all(isinstance(each.error, DatabaseUnavailableError) for each in retries)


async def test_service_retry_ends_the_backoff(
    bus: EventBus, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def work() -> float:
        if service.passes in {1, 3}:
            raise DatabaseUnavailableError("away")
        return NEVER

    service = Idle(bus, work)
    service.backoff = BackoffOptions(first_s=3600.0)
    starting = asyncio.create_task(service.start())
    await seen.until(ServiceRetrying)
    service.wake()  # work that comes in does not bring it back
    service.retry()
    await starting
    service.retry()  # it does not wait for the database: this is forgotten
    await service.until_passes(3)
    await seen.until(ServiceRetrying, 2)
    service.retry()
    await service.until_passes(4)
    await service.stop()
    assert service.passes == 4


async def test_service_publishes_a_fault_and_ends_when_a_pass_raises(bus: EventBus, seen: Recorder) -> None:
    mistake = KeyError("a mistake")

    async def work() -> float:
        if service.passes == 2:
            raise mistake
        return NEVER

    service = Idle(bus, work)
    await service.start()
    service.wake()
    (event,) = await seen.until(ServiceFaulted)
    assert event.error is mistake
    assert not holds(service.is_running)
    assert service.passes == 2
    await service.stop()
    assert service.drained == 1


async def test_service_start_raises_the_error_of_the_first_pass(bus: EventBus, seen: Recorder) -> None:
    async def work() -> float:
        raise KeyError("a mistake")

    service = Idle(bus, work)
    with pytest.raises(KeyError):
        await service.start()
    assert not holds(service.is_running)
    await service.stop()
    assert not seen.of(ServiceFaulted)


async def test_service_retries_rejected_connections_only_after_its_first_pass(
    bus: EventBus, seen: Recorder
) -> None:
    async def work() -> float:
        if is_rejected:
            raise ConnectionRejectedError("password authentication failed")
        return NEVER

    is_rejected = True
    service = Idle(bus, work)
    with pytest.raises(ConnectionRejectedError):
        await service.start()
    assert service.passes == 1
    assert not seen.of(ServiceRetrying)
    is_rejected = False
    await service.start()
    is_rejected = True
    service.wake()
    (event,) = await seen.until(ServiceRetrying)
    assert isinstance(event.error, ConnectionRejectedError)
    await service.stop()


async def test_service_start_raises_the_error_of_prepare_and_succeeds_later(bus: EventBus) -> None:
    class Picky(Idle):
        async def prepare(self) -> None:
            await super().prepare()
            if self.prepared == 1:
                raise DatabaseUnavailableError("away")

    service = Picky(bus)
    with pytest.raises(DatabaseUnavailableError):
        await service.start()
    await service.stop()
    assert (service.passes, service.drained) == (0, 1)  # it may have got half-way
    await service.start()
    assert holds(service.is_running)
    await service.stop()


async def test_service_stop_waits_for_the_current_pass(bus: EventBus) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()
    ended = asyncio.Event()

    async def work() -> float:
        if service.passes == 1:
            return 0
        inside.set()
        await go_on.wait()
        assert service.drained == 0
        ended.set()
        return 0

    service = Idle(bus, work)
    await service.start()
    await inside.wait()
    stopping = asyncio.create_task(service.stop())
    done, _ = await asyncio.wait([stopping], timeout=0.02)  # real time: it must wait
    assert not done
    assert not ended.is_set()
    go_on.set()
    await stopping
    assert ended.is_set()
    assert (service.passes, service.drained) == (2, 1)


async def test_service_start_and_stop_are_idempotent(bus: EventBus) -> None:
    service = Idle(bus)
    await service.stop()
    await service.start()
    await service.start()
    assert (service.prepared, service.passes) == (1, 1)
    await service.stop()
    await service.stop()
    assert service.drained == 1
    await service.start()
    assert (service.prepared, service.passes) == (2, 2)
    await service.stop()


async def test_service_stop_ends_the_loop_after_a_cancelled_start(bus: EventBus) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> float:
        inside.set()
        await go_on.wait()
        return NEVER

    service = Idle(bus, work)
    starting = asyncio.create_task(service.start())
    await inside.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    go_on.set()
    await service.stop()
    assert not holds(service.is_running)
    assert service.drained == 1


async def test_service_publishes_a_fault_after_a_cancelled_start(bus: EventBus, seen: Recorder) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> float:
        inside.set()
        await go_on.wait()
        raise KeyError("a mistake")

    service = Idle(bus, work)
    starting = asyncio.create_task(service.start())
    await inside.wait()
    starting.cancel()
    await asyncio.wait([starting])
    go_on.set()
    (fault,) = await seen.until(ServiceFaulted)
    assert isinstance(fault.error, KeyError)
    await service.stop()


async def test_service_stop_ends_the_loop_after_a_cancelled_stop(bus: EventBus) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> float:
        if service.passes == 1:
            return 0
        inside.set()
        await go_on.wait()
        return 0

    service = Idle(bus, work)
    await service.start()
    await inside.wait()
    stopping = asyncio.create_task(service.stop())
    await asyncio.wait([stopping], timeout=0.01)  # until it waits for the pass
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled()
    go_on.set()
    await service.stop()
    assert (service.passes, service.drained) == (2, 1)


async def test_service_start_runs_the_loop_after_a_cancelled_stop(bus: EventBus) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> float:
        if service.passes == 2:
            inside.set()
            await go_on.wait()
        return 0 if service.passes == 1 else NEVER

    service = Idle(bus, work)
    await service.start()
    await inside.wait()
    stopping = asyncio.create_task(service.stop())
    await asyncio.wait([stopping], timeout=0.01)  # until it waits for the pass
    stopping.cancel()
    await asyncio.wait([stopping])
    starting = asyncio.create_task(service.start())
    go_on.set()
    await starting
    passes = service.passes
    service.wake()
    await service.until_passes(passes + 1)
    assert holds(service.is_running)
    await service.stop()


async def test_service_stop_drains_after_the_loop_was_cancelled_from_outside(
    bus: EventBus, seen: Recorder
) -> None:
    service = Idle(bus)
    await service.start()
    (loop,) = [task for task in asyncio.all_tasks() if task.get_name() == "pg_scheduler idle"]
    loop.cancel()  # as asyncio.run() does at its end
    await asyncio.wait([loop])
    await service.stop()
    assert service.drained == 1
    assert not seen.of(ServiceFaulted)


async def test_service_wake_does_not_shorten_the_backoff(
    bus: EventBus, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that comes in while the database is away must not make it be asked without a pause."""

    async def work() -> float:
        if service.passes == 1:
            return NEVER
        raise DatabaseUnavailableError("away")

    service = Idle(bus, work)
    service.backoff = BackoffOptions(first_s=1000.0)
    await service.start()
    service.wake()
    await seen.until(ServiceRetrying, 1)
    for _ in range(10):
        service.wake()
        await asyncio.sleep(0)
    assert service.passes == 2
    async with asyncio.timeout(PATIENCE):  # but a stop is not kept waiting
        await service.stop()


async def test_service_start_waits_for_a_pass_that_succeeds(
    bus: EventBus, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def work() -> float:
        if service.passes < 3:
            raise DatabaseUnavailableError("away")
        return NEVER

    service = Idle(bus, work)
    service.backoff = BackoffOptions(first_s=0.001)
    await service.start()
    assert service.passes == 3
    await service.stop()


async def test_service_stop_cancels_a_pass_that_does_not_end(bus: EventBus) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()
    service = Idle(bus)

    async def work() -> float:
        if service.passes == 1:
            return 0
        began.set()
        try:
            await asyncio.Event().wait()  # as for a lock
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 0

    service._work = work
    service.stop_timeout_s = 0.01
    await service.start()
    async with asyncio.timeout(PATIENCE):
        await began.wait()
        await service.stop()
    assert (cancelled.is_set(), service.drained) == (True, 1)


async def test_service_goes_on_when_the_application_refuses_a_row(bus: EventBus, seen: Recorder) -> None:
    async def work() -> float:
        if service.passes <= 2:
            raise asyncpg.CheckViolationError("not this one")
        return NEVER

    service = Idle(bus, work)
    service.backoff = BackoffOptions(first_s=0.001)
    await service.start()
    await service.until_passes(3)
    await service.stop()
    assert len(seen.of(ServiceRetrying)) == 2
    assert not seen.of(ServiceFaulted)


async def test_service_that_waits_for_a_lock_retries_soon_and_names_its_holder(
    bus: EventBus, seen: Recorder
) -> None:
    async def work() -> float:
        try:
            raise asyncpg.LockNotAvailableError("locked")  # noqa: TRY301 - the cause of the other one
        except asyncpg.LockNotAvailableError as error:
            raise DatabaseUnavailableError("locked") from error

    async def find_holders() -> list[str]:
        return ["pid 7"]

    service = Idle(bus, work)
    service.backoff = BackoffOptions(first_s=0.001, longest_s=3600.0, longest_for_lock_s=0.002)
    service.find_holders = find_holders
    starting = asyncio.create_task(service.start())
    retries = await seen.until(ServiceRetrying, 5)
    # The start waits for a pass that succeeds.
    starting.cancel()
    await asyncio.wait([starting])
    await service.stop()
    assert all(retry.next_in <= 0.002 for retry in retries)
    assert {retry.holders for retry in retries} == {("pid 7",)}
