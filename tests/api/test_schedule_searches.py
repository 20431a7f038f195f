"""Adding, changing and backfilling schedules leave the event loop free while they search for fire times."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, Scheduler
from pg_scheduler.schedules import calls as schedule_calls
from pg_scheduler.schedules.own_thread import search_in_own_thread
from pg_scheduler.triggers import Cron, During, Every, SearchLimitError, Trigger, trigger_kind
from tests.support import inside
from tests.support.worker import PATIENCE, now

NAME = "searching.mail"
HOUR = timedelta(hours=1)


@trigger_kind("tests.waiting")
@dataclass(frozen=True)
class Waiting(Trigger):
    """Fires every hour, and computes a fire time only while the event loop turns."""

    number: int = 0
    call_soon: ClassVar[Callable[..., object]]

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        turned = threading.Event()
        Waiting.call_soon(turned.set)
        if not turned.wait(PATIENCE):
            raise TimeoutError("the event loop is blocked")
        return instant + HOUR


@trigger_kind("tests.exhausted")
@dataclass(frozen=True)
class Exhausted(Trigger):
    """Has a common mistake of triggers: next() without a default."""

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        return next(fire for fire in [anchor] if fire > instant)


@trigger_kind("tests.exiting")
@dataclass(frozen=True)
class Exiting(Trigger):
    """Would end the process."""

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        sys.exit(3)


@pytest.fixture
async def scheduler(pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Waiting, "call_soon", loop.call_soon_threadsafe, raising=False)
    scheduler = Scheduler(pool)
    await scheduler.initialize_db()
    return scheduler


async def test_event_loop_turns_while_a_schedule_is_added_changed_and_backfilled(
    scheduler: Scheduler,
) -> None:
    schedules = scheduler.schedules
    await schedules.add(NAME, Waiting(), schedule_id="a")
    await schedules.add(NAME, Waiting(1), schedule_id="a", conflict_resolution=ConflictResolution.REPLACE)
    changed = await schedules.update("a", trigger=Waiting(2))
    assert changed.trigger == Waiting(2)
    jobs = await schedules.backfill("a", now() - 3 * HOUR, now() - HOUR, limit=5)
    assert len(jobs) == 2


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Any]]:
    """Return the functions that were called in threads."""
    called: list[Callable[..., Any]] = []

    async def note(trigger: str, search: Callable[[], Any], **options: Any) -> Any:
        called.append(search)
        return await search_in_own_thread(trigger, search, **options)

    monkeypatch.setattr(schedule_calls, "search_in_own_thread", note)
    return called


async def test_schedule_whose_search_is_quick_costs_no_thread(
    scheduler: Scheduler, threads: list[Callable[..., Any]]
) -> None:
    for number, trigger in enumerate((Cron("0 8 * * *"), Every(hours=1))):
        await scheduler.schedules.add(NAME, trigger, schedule_id=f"s{number}")
        await scheduler.schedules.update(f"s{number}", trigger=Cron("0 9 * * *"))
    assert threads == []
    await scheduler.schedules.add(NAME, Every(hours=1) & During(weekdays="mon"), schedule_id="combined")
    assert len(threads) == 1


async def test_search_needs_none_of_the_threads_that_may_wait_for_it(scheduler: Scheduler) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    is_done = threading.Event()
    waiting = loop.run_in_executor(None, is_done.wait, PATIENCE)
    schedules = scheduler.schedules
    await asyncio.wait_for(schedules.add(NAME, Waiting(), schedule_id="a"), PATIENCE / 2)
    await asyncio.wait_for(schedules.backfill("a", now() - 3 * HOUR, now() - HOUR), PATIENCE / 2)
    is_done.set()
    assert await waiting


async def test_trigger_that_raises_stop_iteration_is_an_error_of_the_call(scheduler: Scheduler) -> None:
    with pytest.raises(
        ValueError, match=r"Exhausted\(\) raised StopIteration; return None after its last fire"
    ):
        await asyncio.wait_for(scheduler.schedules.add(NAME, Exhausted()), PATIENCE)


async def test_trigger_that_exits_the_process_is_an_error_of_the_call(scheduler: Scheduler) -> None:
    with pytest.raises(ValueError, match="raised SystemExit: 3; raise a ValueError instead"):
        await scheduler.schedules.add(NAME, Exiting())
    assert await scheduler.schedules.list() == []


async def test_trigger_that_hangs_is_an_error_of_the_call(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, fire_time_search_wait_s=0.01)
    may_return = threading.Event()
    monkeypatch.setattr(Waiting, "call_soon", lambda _: may_return.wait(PATIENCE))
    with pytest.raises(SearchLimitError, match=r"has not returned after 0\.1 s; next_after\(\) must"):
        await scheduler.schedules.add(NAME, Waiting(9))
    may_return.set()
    assert await scheduler.schedules.list() == []


HANGING = """
import asyncio, threading
from pg_scheduler.schedules import own_thread
own_thread.WAIT_S = 0.01
try:
    asyncio.run(own_thread.search_in_own_thread("{}", threading.Event().wait))
except ValueError as error:
    print(error)
"""


FORK = """
import os
if os.fork() == 0:
    print(asyncio.run(own_thread.search_in_own_thread("{}", lambda: "searched")), flush=True)
    os._exit(0)
os.wait()
"""


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
def test_search_that_hangs_keeps_no_forked_process_from_searching() -> None:
    ended = run_program(HANGING + FORK)
    assert ended.stdout.splitlines()[1:] == ["searched"], ended.stderr


def test_search_that_hangs_does_not_delay_the_exit_of_the_process() -> None:
    ended = run_program(HANGING)
    assert "has not returned" in ended.stdout
    assert ended.stderr == ""
