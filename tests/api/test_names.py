"""Resolving job names to registered functions, on one worker and several."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest

from pg_scheduler import JobStatus, NameConflictError, Scheduler, job
from pg_scheduler.events import JobCompleted, PassFinished
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support.worker import Recorder, now


def function(module: str, name: str, calls: list[Any]) -> Any:
    """Return a coroutine function that appears to be defined in another module."""

    async def template(*args: Any) -> None:
        calls.append((module, *args))

    made = FunctionType(template.__code__, template.__globals__, name, closure=template.__closure__)
    made.__module__, made.__qualname__ = module, name
    return made


@pytest.fixture
def calls() -> list[Any]:
    return []


async def run_claim_pass(scheduler: Scheduler) -> None:
    """Run a claim pass, which leaves jobs of unknown names pending."""
    await scheduler.listen_for_jobs()


async def test_job_of_an_unknown_name_stays_pending_until_the_name_is_registered(
    scheduler: Scheduler, seen: Recorder, calls: list[Any]
) -> None:
    job_id = await scheduler.schedule_job("app.mail.send", now(), {"args": ["x"]})
    await run_claim_pass(scheduler)
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert (row.status, row.attempt) == (JobStatus.PENDING, 0)
    assert await scheduler.load_task_functions() == ["app.mail.send"]
    scheduler.register(function("app.mail", "send", calls))  # while the Scheduler runs: claimed at once
    await seen.until(JobCompleted, job_id=job_id)
    assert calls == [("app.mail", "x")]
    assert await scheduler.load_task_functions() == []


async def test_schedule_of_an_unknown_name_fires_when_a_running_worker_registers_it(
    scheduler: Scheduler, make: Make, seen: Recorder, calls: list[Any]
) -> None:
    """The planner has read the schedules before, and would read them again in two minutes only."""
    scheduler.register(function("app.web", "serve", calls))
    passes = len(seen.of(PassFinished, service="planner"))
    send, client = function("app.mail", "send", calls), make()
    await client.schedules.add(send, Every(days=1), start=now(), schedule_id="mail", args=("x",))
    await seen.until(PassFinished, passes + 1, service="planner")
    assert calls == []
    scheduler.register(send)
    await seen.until(JobCompleted)
    assert calls == [("app.mail", "x")]


async def test_job_runs_on_the_worker_that_registers_its_name(
    scheduler: Scheduler, make: Make, calls: list[Any]
) -> None:
    other = make()
    others = Recorder(other)
    other.register(function("app.mail", "send", calls))
    await other.start()
    await scheduler.schedule_job("app.mail.send", now(), {})
    await others.until(JobCompleted)


async def test_functions_of_the_same_name_in_different_modules_do_not_collide(
    scheduler: Scheduler, seen: Recorder, calls: list[Any]
) -> None:
    one, two = function("app.one", "send", calls), function("app.two", "send", calls)
    await scheduler.schedule(one, execution_time=now(), args=(1,))
    await scheduler.schedule(two, execution_time=now(), args=(2,))
    await seen.until(JobCompleted, 2)
    assert sorted(calls) == [("app.one", 1), ("app.two", 2)]
    assert {each.job_name for each in seen.of(JobCompleted)} == {"app.one.send", "app.two.send"}


async def test_bare_name_resolves_only_when_one_function_has_it(
    scheduler: Scheduler, seen: Recorder, calls: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.register(function("app.one", "send", calls))
    await scheduler.schedule_job("send", now(), {})
    await seen.until(JobCompleted, job_name="send")
    scheduler.register(function("app.two", "send", calls))
    ambiguous = await scheduler.schedule_job("send", now(), {})
    await run_claim_pass(scheduler)
    row = await scheduler.get_job(ambiguous)
    assert row is not None
    assert row.status is JobStatus.PENDING
    assert await scheduler.load_task_functions() == ["send"]
    assert "'send'; pass it to one of app.one.send, app.two.send by aliases=" in caplog.text
    assert calls == [("app.one",)]


async def test_exact_name_takes_precedence_over_a_bare_name(
    scheduler: Scheduler, seen: Recorder, calls: list[Any]
) -> None:
    scheduler.register(function("app.one", "send", calls))
    scheduler.register(function("app.two", "other", calls), name="send")
    await scheduler.schedule_job("send", now(), {})
    await seen.until(JobCompleted)
    assert calls == [("app.two",)]


async def test_alias_resolves_jobs_stored_under_an_old_name(
    scheduler: Scheduler, seen: Recorder, calls: list[Any]
) -> None:
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


async def test_register_returns_the_function_and_rejects_others(make: Make) -> None:
    scheduler = make()

    async def work() -> None: ...

    assert scheduler.register(work) is work
    assert scheduler.register(name="x")(work) is work
    assert scheduler.register()(work) is work
    with pytest.raises(TypeError):
        scheduler.register(print)


async def test_register_rejects_a_name_or_alias_that_another_function_has(
    make: Make, calls: list[Any]
) -> None:
    scheduler = make()
    scheduler.register(function("app.one", "send", calls), name="mail", aliases=["post"])
    taken: list[dict[str, Any]] = [{"name": "mail"}, {"name": "post"}, {"aliases": ["mail"]}]
    for names in taken:
        with pytest.raises(NameConflictError) as raised:
            scheduler.register(function("app.two", "send", calls), **names)
        assert isinstance(raised.value, ValueError)
    make().register(
        function("app.two", "send", calls), name="mail"
    )  # the names of another Scheduler are independent


async def test_job_decorator_registers_with_every_scheduler(make: Make) -> None:
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


async def test_worker_never_imports_a_module_named_in_a_row(scheduler: Scheduler) -> None:
    import sys

    sys.modules.pop("this", None)
    await scheduler.schedule_job("this.s", now(), {})
    await run_claim_pass(scheduler)
    assert "this" not in sys.modules
