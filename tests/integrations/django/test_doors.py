"""The methods of the Scheduler that take a function take a task of Django too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import asyncpg
import pytest

from pg_scheduler import ConfigurationError, JobSpec, Scheduler, call, current_job, job
from pg_scheduler.triggers import Every
from tests.support.cases import each_case
from tests.support.django import require_tasks, working
from tests.support.inside import catalogue

require_tasks()

from pg_scheduler.integrations.django import worker  # noqa: E402 - only where Django is
from pg_scheduler.integrations.django.runner import paths_in  # noqa: E402

HOUR = timedelta(hours=1)


@pytest.fixture
def scheduler(pool: asyncpg.Pool) -> Scheduler:
    return Scheduler(pool)


Door: TypeAlias = Callable[[Scheduler, Any], Awaitable[Any]]


async def enqueue(scheduler: Scheduler, task: Any) -> None:
    await scheduler.enqueue(task, args=("ada",))


async def enqueue_call(scheduler: Scheduler, task: Any) -> None:
    await scheduler.enqueue(call(task, "ada"))


async def schedule(scheduler: Scheduler, task: Any) -> None:
    await scheduler.schedule(task, execution_time=datetime.now(UTC), args=("ada",))


async def schedule_bulk(scheduler: Scheduler, task: Any) -> None:
    await scheduler.schedule_bulk([JobSpec(task, datetime.now(UTC), ("ada",))])


async def run_now(scheduler: Scheduler, task: Any) -> None:
    await scheduler.schedules.add(task, Every(hours=1), args=("ada",), run_now=True)


async def trigger(scheduler: Scheduler, task: Any) -> None:
    added = await scheduler.schedules.add(call(task, "ada"), Every(hours=1))
    await scheduler.schedules.trigger(added.schedule_id)


async def trigger_updated(scheduler: Scheduler, task: Any) -> None:
    added = await scheduler.schedules.add("elsewhere", Every(hours=1), args=("ada",))
    await scheduler.schedules.update(added.schedule_id, func=task)
    await scheduler.schedules.trigger(added.schedule_id)


DOORS: list[Door] = [
    enqueue,
    enqueue_call,
    schedule,
    schedule_bulk,
    run_now,
    trigger,
    trigger_updated,
]


@pytest.mark.parametrize("door", DOORS)
async def test_task_becomes_a_job_of_its_queue_with_its_options(
    shop: Any, pool: asyncpg.Pool, scheduler: Scheduler, door: Door
) -> None:
    path = shop.send.module_path
    await door(scheduler, shop.send)
    await door(scheduler, shop.send.using(queue_name="default", priority=-5, max_retries=4))
    first, second = await pool.fetch("SELECT * FROM scheduled_jobs ORDER BY created_at")
    assert (first["job_name"], first["priority"], first["max_retries"]) == (f"{path}@mail", 3, 0)
    assert (second["job_name"], second["priority"], second["max_retries"]) == (f"{path}@default", 8, 4)


async def test_options_of_the_call_win_over_those_of_the_task(
    shop: Any, pool: asyncpg.Pool, scheduler: Scheduler
) -> None:
    task = shop.send.using(job_id="one", metadata={"a": 1, "b": 1}, timeout=5, max_retries=4)
    await scheduler.enqueue(task, args=("ada",), metadata={"b": 2}, timeout=None)
    (row,) = await pool.fetch("SELECT * FROM scheduled_jobs")
    assert (row["job_id"], row["timeout_seconds"], row["max_retries"]) == ("one", None, 4)
    stored = await scheduler.get_job("one")
    assert stored is not None
    assert stored.metadata == {"a": 1, "b": 2, "django_priority": 20}


async def test_option_of_a_single_job_is_refused_where_it_can_have_no_effect(
    shop: Any, scheduler: Scheduler
) -> None:
    due = shop.send.using(run_after=datetime.now(UTC) + HOUR)
    with pytest.raises(ConfigurationError, match=r"has a run_after, .* pass delay="):
        await scheduler.enqueue(due, args=("ada",))
    with pytest.raises(ConfigurationError, match="has job_id, unique, which only a single job can have"):
        await scheduler.schedules.add(
            shop.send.using(job_id="one", unique="key"), Every(hours=1), args=("ada",)
        )


async def test_schedules_of_a_task_are_found_by_it_its_path_and_its_name(
    shop: Any, scheduler: Scheduler
) -> None:
    path = shop.send.module_path
    for task in (shop.send, path, f"{path}@mail"):
        await scheduler.schedules.add(task, Every(hours=1), args=("ada",))
    for task in (shop.send, path, f"{path}@mail"):
        assert len(await scheduler.schedules.list(task=task)) == 3


async def test_arguments_that_a_task_does_not_accept_raise_at_the_call(
    shop: Any, scheduler: Scheduler
) -> None:
    for task in (shop.send, shop.send.module_path):
        with pytest.raises(TypeError, match="cannot be called with the arguments"):
            await scheduler.schedules.add(task, Every(hours=1))


async def test_child_of_a_job_can_be_a_task(shop: Any) -> None:
    @job(name="tests.parent_of_a_task")
    async def parent() -> int:
        return int(await current_job().steps.child("sum", call(shop.add, 1, other=2)))

    async with working() as (scheduler, _):
        assert await scheduler.run_job(parent) == 3
        assert await scheduler.run_job(shop.add, args=(4,)) == 5


@each_case(
    ("queues", "excluded", "runs"),
    [
        ([], [], True),
        (["mail"], [], True),
        (["default"], [], False),
        ([], ["mail"], False),
        ([], ["default"], True),
    ],
)
async def test_worker_of_the_declared_queue_runs_the_plain_path(
    shop: Any,
    monkeypatch: pytest.MonkeyPatch,
    queues: list[str],
    excluded: list[str],
    *,
    runs: bool,
) -> None:
    monkeypatch.setattr(worker.selection, "queues", queues)
    monkeypatch.setattr(worker.selection, "excluded", excluded)
    path = shop.send.module_path
    async with working() as (scheduler, _):
        names = next(iter(await scheduler.workers())).names
        assert (path in (names or ())) is runs
        if runs:
            job_id = await scheduler.enqueue(path, args=("ada",))
            assert (await scheduler.get_job_result(job_id)).value == "sent to ada"
            assert shop.send.get_result(job_id).task.queue_name == "mail"


async def test_plain_path_of_a_function_with_a_job_belongs_to_that_function(shop: Any) -> None:
    path = shop.add.module_path

    async def other() -> None: ...

    assert catalogue.resolve(path) is catalogue.resolve(f"{path}@default")
    catalogue.register(other, name=path)
    task = catalogue.resolve(path)
    assert task is not None
    assert task.func is other
    assert path not in paths_in(["default"])
