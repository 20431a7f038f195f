"""Every service survives 500 starts and stops from ten tasks at once, on a real database."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import Scheduler, periodic
from pg_scheduler.admission.pause_watcher import PauseWatcher
from pg_scheduler.events import PassFinished, ServiceFaulted, ServiceRetrying
from pg_scheduler.statistics.errors import ErrorCounter
from pg_scheduler.statistics.service import StatisticsWriter
from pg_scheduler.worker.due_times import DueTimeCorrector
from pg_scheduler.worker.looks import LookWriter
from pg_scheduler.worker.service import Service
from tests.support.inside import Meter
from tests.support.parts import Parts
from tests.support.worker import Recorder, holds

BUILDERS: dict[str, Callable[[Parts], Service]] = {
    "notifier": Parts.notifier,
    "admission": lambda parts: parts.admission(parts.executor()),
    "unblocker": Parts.unblocker,
    "feeder": Parts.feeder,
    "sequencer": Parts.sequencer,
    "pause_watcher": lambda parts: PauseWatcher(parts, parts.store.pauses),
    "due_time_corrector": DueTimeCorrector,
    "claimer": Parts.claimer,
    "completer": Parts.completer,
    "error_counter": lambda parts: ErrorCounter(parts, parts.store.errors),
    "event_relay": Parts.relay,
    "expirer": Parts.expirer,
    "head_scanner": lambda parts: parts.head_scanner(parts.claimer()),
    "heartbeat": Parts.heartbeat,
    "listener": Parts.listener,
    "deadline_scanner": Parts.scanner,
    "planner": Parts.planner,
    "progress_writer": lambda parts: parts.progress,
    "rescuer": Parts.rescuer,
    "statistics_writer": lambda parts: StatisticsWriter(parts, Meter(), parts.store.statistics),
    "vacuum": Parts.vacuum,
    "look_writer": LookWriter,
}

CALLS = 500
CALLERS = 10


def test_lifecycle_stress_test_covers_every_service() -> None:
    def names(kind: type[object]) -> set[str]:
        own = [each for each in kind.__subclasses__() if each.__module__.startswith("pg_scheduler.")]
        below: set[str] = set().union(*map(names, own))
        # A subclass may keep the name of its service, as those of the test kits do.
        return below | ({vars(kind)["name"]} if "name" in vars(kind) else set())

    assert names(Service) == set(BUILDERS)


@pytest.mark.parametrize("name", BUILDERS)
async def test_service_survives_500_starts_and_stops_from_10_tasks(
    name: str, parts: Parts, seen: Recorder
) -> None:
    @periodic(every=timedelta(days=1), dedup_key="daily")
    async def daily() -> None: ...

    service = BUILDERS[name](parts)
    before = asyncio.all_tasks()
    chance = random.Random(name)
    plan = [[chance.random() for _ in range(CALLS // CALLERS)] for _ in range(CALLERS)]

    async def caller(choices: list[float]) -> None:
        for choice in choices:
            if choice < 0.4:
                await service.start()
            elif choice < 0.8:
                await service.stop()
            elif choice < 0.9:
                service.wake()
            else:  # given up at some point of its way
                call = asyncio.create_task(service.start() if choice < 0.95 else service.stop())
                await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait([call])

    async with asyncio.TaskGroup() as callers:
        for choices in plan:
            callers.create_task(caller(choices))

    await service.stop()
    await service.start()
    assert holds(service.is_running)
    passes = len(seen.of(PassFinished, service=name))
    service.wake()
    await seen.until(PassFinished, passes + 1, service=name)
    await service.stop()
    assert not holds(service.is_running)
    assert asyncio.all_tasks() == before
    assert not seen.of(ServiceFaulted)
    assert not seen.of(ServiceRetrying)
    assert await parts.store.workers.list_workers() == []


@pytest.mark.slow
async def test_scheduler_survives_starts_and_stops_from_10_tasks(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    seen = Recorder(scheduler)
    before = asyncio.all_tasks()
    chance = random.Random(1)

    async def caller() -> None:
        for _ in range(8):
            await (scheduler.start() if chance.random() < 0.5 else scheduler.shutdown())

    async with asyncio.TaskGroup() as callers:
        for _ in range(CALLERS):
            callers.create_task(caller())
    await scheduler.start()
    assert holds(scheduler.is_running)
    assert [worker.worker_id for worker in await scheduler.workers()] == [scheduler.worker_id]
    await scheduler.shutdown()
    assert not holds(scheduler.is_running)
    assert asyncio.all_tasks() == before
    assert await scheduler.workers() == []
    assert not seen.of(ServiceFaulted)
    assert not seen.of(ServiceRetrying)
