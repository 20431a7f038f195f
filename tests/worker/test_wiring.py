"""Every signal wakes what the table says."""

from __future__ import annotations

import inspect

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.scheduler.wiring import wiring
from pg_scheduler.worker.service import Service
from pg_scheduler.worker.signals import Condition, Signal, Signals
from tests.support.inside import worker_of
from tests.support.worker import holds


def test_signal_calls_its_receivers_in_the_order_of_the_table() -> None:
    called: list[int] = []
    signal = Signal("now")
    signal()
    signal.connect(lambda: called.append(1), lambda: called.append(2))
    signal.connect(lambda: called.append(3))
    signal()
    assert called == [1, 2, 3]


def test_condition_is_set_before_its_receivers_are_called_and_until_it_is_cleared() -> None:
    seen: list[bool] = []
    condition = Condition("up")
    condition.connect(lambda: seen.append(condition.is_set))
    condition()
    assert seen == [True]
    condition.clear()
    assert not holds(condition.is_set)


async def test_wiring_has_every_signal_once(pool: asyncpg.Pool) -> None:
    async with Scheduler(pool) as scheduler:
        runtime = worker_of(scheduler)
        wired = [signal for signal, _ in wiring(runtime)]
        assert wired == [signal for _, signal in runtime.node.signals]
        for signal, receivers in wiring(runtime):
            assert receivers
            assert signal._receivers == receivers, "connected as the table says"


async def test_loss_of_notifications_wakes_every_service_that_polls_more_often_without_them(
    pool: asyncpg.Pool,
) -> None:
    async with Scheduler(pool) as scheduler:
        runtime = worker_of(scheduler)
        polling = {
            part.wake
            for part in runtime.parts
            if isinstance(part, Service)
            and "notifications_up.is_set"
            in inspect.getsource(getattr(type(part), "_obey", type(part).run_once))
        }
        signals = runtime.node.signals
        assert polling == {runtime.heartbeat.wake, runtime.planner.wake, runtime.pauses.wake}
        assert polling == set(signals.notifications_lost._receivers)
        assert polling < set(signals.notifications_up._receivers)


def test_signals_of_two_workers_are_independent() -> None:
    assert not {signal for _, signal in Signals()} & {signal for _, signal in Signals()}
