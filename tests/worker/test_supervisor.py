"""Order of start and stop, and what a broken part does to the others."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, PoolClosedError, Scheduler, SchemaMissingError
from pg_scheduler.events import PassFinished, ServiceFaulted, WorkerStarted, WorkerStopped
from pg_scheduler.scheduler.runtime import Supervisor
from pg_scheduler.worker.heartbeat import Heartbeat
from tests.support.inside import worker_of
from tests.support.worker import PATIENCE, Gate, Recorder, holds, now


class Part:
    """Logs its starts and stops."""

    def __init__(self, name: str, log: list[str], *, on_start: object = None, on_stop: object = None) -> None:
        self._name = name
        self._log = log
        self._on_start = on_start
        self._on_stop = on_stop

    async def start(self) -> None:
        self._log.append(f"+{self._name}")
        if isinstance(self._on_start, BaseException):
            raise self._on_start

    async def stop(self) -> None:
        self._log.append(f"-{self._name}")
        if isinstance(self._on_stop, BaseException):
            raise self._on_stop


async def test_supervisor_stops_parts_in_reverse_order() -> None:
    log: list[str] = []
    supervisor = Supervisor([Part(name, log) for name in "abc"])
    await supervisor.start()
    await supervisor.stop()
    assert log == ["+a", "+b", "+c", "-c", "-b", "-a"]


@pytest.mark.parametrize(
    "fault", [DatabaseUnavailableError("away"), KeyError("mistake"), asyncio.CancelledError()]
)
async def test_supervisor_stops_the_started_parts_when_one_cannot_start(fault: BaseException) -> None:
    log: list[str] = []
    parts = [Part("a", log), Part("b", log, on_start=fault), Part("c", log)]
    with pytest.raises(type(fault)):
        await Supervisor(parts).start()
    assert log == ["+a", "+b", "-b", "-a"]


@pytest.mark.parametrize(
    "fault", [DatabaseUnavailableError("away"), SchemaMissingError("gone"), KeyError("mistake")]
)
async def test_supervisor_stops_all_parts_when_one_fails_to_stop(fault: Exception) -> None:
    log: list[str] = []
    parts = [Part("a", log), Part("b", log, on_stop=fault), Part("c", log)]
    supervisor = Supervisor(parts)
    await supervisor.start()
    with pytest.raises(type(fault)):
        await supervisor.stop()
    assert log[3:] == ["-c", "-b", "-a"]


async def test_supervisor_raises_the_first_error_with_notes_of_the_others() -> None:
    log: list[str] = []
    parts = [Part("a", log, on_stop=KeyError("a")), Part("b", log, on_stop=DatabaseUnavailableError("b"))]
    with pytest.raises(DatabaseUnavailableError, match="b") as raised:
        await Supervisor(parts).stop()
    assert raised.value.__notes__ == ["another part could not stop either: KeyError('a')"]


async def test_scheduler_starts_the_claimer_last_and_stops_the_heartbeat_last(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    seen = Recorder(scheduler)
    await scheduler.start()
    firsts = list(dict.fromkeys(each.service for each in seen.of(PassFinished)))
    assert firsts[:5] == ["listener", "heartbeat", "statistics_writer", "event_relay", "vacuum"]
    assert firsts[-1] == "claimer"
    kinds = [type(each) for each in seen.events]
    assert kinds.index(WorkerStarted) > kinds.index(PassFinished)
    await scheduler.shutdown()
    assert type(seen.events[-1]) is WorkerStopped


async def test_scheduler_wait_raises_the_error_that_ended_a_part(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(pool)
    seen = Recorder(scheduler)
    await scheduler.start()
    mistake = KeyError("a mistake")

    async def broken() -> float:
        raise mistake

    monkeypatch.setattr(worker_of(scheduler).planner, "run_once", broken)
    worker_of(scheduler).planner.wake()
    with pytest.raises(KeyError) as raised:
        await asyncio.wait_for(scheduler.wait(), PATIENCE)
    assert raised.value is mistake
    assert not holds(scheduler.is_running)
    assert [fault.service for fault in seen.of(ServiceFaulted)] == ["planner"]
    assert await scheduler.workers() == []
    with pytest.raises(KeyError):  # for everybody who asks later too
        await scheduler.wait()
    await scheduler.start()  # and a new start begins anew
    assert holds(scheduler.is_running)
    await scheduler.shutdown()
    await scheduler.wait()


async def test_scheduler_async_with_raises_the_error_that_ended_a_part(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> float:
        raise KeyError("a mistake")

    async def live() -> None:
        async with Scheduler(pool) as scheduler:
            monkeypatch.setattr(worker_of(scheduler).rescuer, "run_once", broken)
            worker_of(scheduler).rescuer.wake()
            await asyncio.wait([asyncio.ensure_future(scheduler.wait())])

    with pytest.raises(KeyError):
        await live()


async def test_scheduler_async_with_raises_the_error_of_its_block(pool: asyncpg.Pool) -> None:
    with pytest.raises(LookupError):
        async with Scheduler(pool) as scheduler:
            raise LookupError
    assert not holds(scheduler.is_running)


async def test_supervisor_start_raises_the_error_of_a_part_that_ends_while_others_start(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Heartbeat.run_first
    hearts: list[Heartbeat] = []

    async def note(self: Heartbeat) -> float:
        hearts.append(self)
        return await real(self)

    async def break_down(_heartbeat: Heartbeat) -> float:
        raise KeyError("a mistake")

    monkeypatch.setattr(Heartbeat, "run_first", note)
    monkeypatch.setattr(Heartbeat, "run_once", break_down)
    scheduler = Scheduler(pool)
    scheduler.subscribe(
        lambda event: hearts[0].wake() if getattr(event, "service", "") == "rescuer" else None, PassFinished
    )
    with pytest.raises(KeyError):
        await scheduler.start()
    assert not holds(scheduler.is_running)
    assert await scheduler.workers() == []


async def test_scheduler_stops_with_schema_missing_when_a_table_is_dropped(
    dsn: str, pool: asyncpg.Pool
) -> None:
    """Every part breaks at once, and results cannot be written: no part may be left behind."""
    scheduler = Scheduler(pool, shutdown_timeout=0.1)
    before = asyncio.all_tasks()
    gate = Gate()
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    await pool.execute("ALTER TABLE scheduled_jobs RENAME TO moved")
    gate.open.set()
    with pytest.raises(SchemaMissingError):
        await asyncio.wait_for(scheduler.wait(), PATIENCE)
    left = [task.get_name() for task in asyncio.all_tasks() - before]
    await pool.execute("ALTER TABLE moved RENAME TO scheduled_jobs")
    assert left == []
    assert not holds(scheduler.is_running)


async def test_scheduler_shutdown_stops_every_part_when_the_pool_is_terminated(
    dsn: str, pool: asyncpg.Pool
) -> None:
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    before = asyncio.all_tasks()
    await scheduler.start()
    pool.terminate()
    with pytest.raises(PoolClosedError):
        await scheduler.shutdown()
    assert not holds(scheduler.is_running)
    assert asyncio.all_tasks() == before
