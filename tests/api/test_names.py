"""Which function runs for which name, here and on other nodes."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest

from pg_scheduler import JobStatus, NameConflictError, Scheduler, job
from pg_scheduler.events import JobCompleted
from tests.api.conftest import Make
from tests.support.worker import Recorder, now


def function(module: str, name: str, calls: list[Any]) -> Any:
    """A coroutine function as if another module had defined it."""

    async def template(*args: Any) -> None:
        calls.append((module, *args))

    made = FunctionType(template.__code__, template.__globals__, name, closure=template.__closure__)
    made.__module__, made.__qualname__ = module, name
    return made


@pytest.fixture
def calls() -> list[Any]:
    return []


async def until_seen_waiting(scheduler: Scheduler) -> None:
    """A claim pass has met what waits, and left it."""
    await scheduler.listen_for_jobs()


async def test_a_job_of_an_unknown_name_waits_until_it_is_registered(
    scheduler: Scheduler, seen: Recorder, calls: list[Any]
) -> None:
    job_id = await scheduler.schedule_job("app.mail.send", now(), {"args": ["x"]})
    await until_seen_waiting(scheduler)
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert (row.status, row.attempt) == (JobStatus.PENDING, 0)
    assert await scheduler.load_task_functions() == ["app.mail.send"]
    scheduler.register(function("app.mail", "send", calls))  # while it runs: taken at once
    await seen.until(JobCompleted, job_id=job_id)
    assert calls == [("app.mail", "x")]
    assert await scheduler.load_task_functions() == []


async def test_a_function_that_only_another_node_knows_runs_there(
    scheduler: Scheduler, make: Make, calls: list[Any]
) -> None:
    other = make()
    others = Recorder(other)
    other.register(function("app.mail", "send", calls))
    await other.start()
    await scheduler.schedule_job("app.mail.send", now(), {})
    await others.until(JobCompleted)


async def test_two_functions_of_one_name_in_different_modules_never_meet(
    scheduler: Scheduler, seen: Recorder, calls: list[Any]
) -> None:
    one, two = function("app.one", "send", calls), function("app.two", "send", calls)
    await scheduler.schedule(one, execution_time=now(), args=(1,))
    await scheduler.schedule(two, execution_time=now(), args=(2,))
    await seen.until(JobCompleted, 2)
    assert sorted(calls) == [("app.one", 1), ("app.two", 2)]
    assert {each.job_name for each in seen.of(JobCompleted)} == {"app.one.send", "app.two.send"}


async def test_a_bare_name_of_0_2_means_the_only_function_that_bears_it(
    scheduler: Scheduler, seen: Recorder, calls: list[Any]
) -> None:
    scheduler.register(function("app.one", "send", calls))
    await scheduler.schedule_job("send", now(), {})
    await seen.until(JobCompleted, job_name="send")
    scheduler.register(function("app.two", "send", calls))
    ambiguous = await scheduler.schedule_job("send", now(), {})
    await until_seen_waiting(scheduler)
    row = await scheduler.get_job(ambiguous)
    assert row is not None
    assert row.status is JobStatus.PENDING
    assert await scheduler.load_task_functions() == ["send"]
    assert calls == [("app.one",)]


async def test_an_exact_name_goes_before_a_bare_one(
    scheduler: Scheduler, seen: Recorder, calls: list[Any]
) -> None:
    scheduler.register(function("app.one", "send", calls))
    scheduler.register(function("app.two", "other", calls), name="send")
    await scheduler.schedule_job("send", now(), {})
    await seen.until(JobCompleted)
    assert calls == [("app.two",)]


async def test_aliases_keep_old_names_running(scheduler: Scheduler, seen: Recorder, calls: list[Any]) -> None:
    for name in ("mail.send", "old.name", "older.name"):
        await scheduler.schedule_job(name, now(), {"args": [name]})

    @scheduler.register(name="mail.send", aliases=["old.name", "older.name"])
    async def send(which: str) -> None:
        calls.append(which)

    await seen.until(JobCompleted, 3)
    assert sorted(calls) == ["mail.send", "old.name", "older.name"]
    new = await scheduler.schedule(send, execution_time=now(), args=("new",))
    row = await scheduler.get_job(new)
    assert row is not None
    assert row.job_name == "mail.send"


async def test_register_gives_the_function_back(make: Make) -> None:
    scheduler = make()

    async def work() -> None: ...

    assert scheduler.register(work) is work
    assert scheduler.register(name="x")(work) is work
    assert scheduler.register()(work) is work
    with pytest.raises(TypeError):
        scheduler.register(print)  # type: ignore[type-var]


async def test_two_functions_under_one_explicit_name_are_refused(make: Make, calls: list[Any]) -> None:
    scheduler = make()
    scheduler.register(function("app.one", "send", calls), name="mail", aliases=["post"])
    taken: list[dict[str, Any]] = [{"name": "mail"}, {"name": "post"}, {"aliases": ["mail"]}]
    for names in taken:
        with pytest.raises(NameConflictError) as raised:
            scheduler.register(function("app.two", "send", calls), **names)
        assert isinstance(raised.value, ValueError)
    make().register(function("app.two", "send", calls), name="mail")  # another Scheduler is another matter


async def test_what_job_decorates_is_known_to_every_scheduler(make: Make) -> None:
    done: list[str] = []

    @job(name=f"{__name__}.everywhere", aliases=[f"{__name__}.formerly"])
    async def everywhere(name: str) -> None:
        done.append(name)

    for name in ("everywhere", "formerly"):
        scheduler = make()
        seen = Recorder(scheduler)
        await scheduler.start()
        await scheduler.schedule_job(f"{__name__}.{name}", now(), {"args": [name]})
        await seen.until(JobCompleted)
        await scheduler.shutdown()
    assert done == ["everywhere", "formerly"]


async def test_a_name_never_makes_anything_imported(scheduler: Scheduler) -> None:
    import sys

    sys.modules.pop("this", None)
    await scheduler.schedule_job("this.s", now(), {})
    await until_seen_waiting(scheduler)
    assert "this" not in sys.modules
