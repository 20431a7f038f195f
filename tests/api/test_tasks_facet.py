"""scheduler.tasks: listing tasks, pausing and resuming them, on several nodes and without notifications."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobPriority, JobStatus, Limit, RetryPolicy, Scheduler, TaskInfo, job
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobCompleted, JobExpired, PassFinished, TaskPaused, TaskResumed
from pg_scheduler.jobs.validation import check_timeout
from pg_scheduler.jobs.worker_report import ReportedSettings
from pg_scheduler.triggers.search import INSTANT
from tests.api.conftest import Make, Pools
from tests.support.inside import worker_of
from tests.support.worker import PATIENCE, Gate, Recorder, now

pytestmark = pytest.mark.usefixtures("own_catalogue")

START = datetime(2040, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def work(*args: Any) -> None: ...


async def until_claimed(scheduler: Scheduler, seen: Recorder, name: str, claimed: bool) -> None:
    """Wait until a node claims a name, or does not."""
    async with asyncio.timeout(PATIENCE):
        while True:
            passes = len(seen.of(PassFinished, service="pause_watcher"))
            if (name in worker_of(scheduler).node.routing.names()) is claimed:
                return
            await seen.until(PassFinished, passes + 1, service="pause_watcher")


async def status_of(scheduler: Scheduler, job_id: str) -> JobStatus:
    found = await scheduler.get_job(job_id)
    assert found
    return found.status


async def test_jobs_of_a_paused_task_wait_on_all_nodes_until_it_is_resumed(
    make: Make, open_gate: Gate
) -> None:
    nodes = [make(identity=identity) for identity in ("one", "two")]
    seen = [Recorder(node) for node in nodes]
    for node in nodes:
        node.register(open_gate.job, name="mail.send", aliases=["send_mail"])
        node.register(work, name="other")
        await node.start()
    assert await nodes[0].tasks.pause("send_mail", note="no server")
    for node, events in zip(nodes, seen, strict=True):
        await until_claimed(node, events, "mail.send", False)
        await until_claimed(node, events, "send_mail", False)
    waiting = [await nodes[1].enqueue(name) for name in ("mail.send", "send_mail")]
    for node, events in zip(nodes, seen, strict=True):  # each node has claimed since
        other = await node.enqueue("other")
        await asyncio.wait(
            [asyncio.ensure_future(each.until(JobCompleted, job_id=other)) for each in seen],
            return_when=asyncio.FIRST_COMPLETED,
        )
        await node.listen_for_jobs()
        assert not events.of(TaskResumed)
    assert [await status_of(nodes[0], job_id) for job_id in waiting] == [JobStatus.PENDING] * 2
    assert seen[0].of(TaskPaused) == [TaskPaused("mail.send", None, "no server", "one")]
    assert await nodes[1].tasks.resume("mail.send")
    async with asyncio.timeout(PATIENCE):
        while len(open_gate.calls) < 2:  # noqa: ASYNC110 - on either node
            await asyncio.sleep(0)
    assert seen[1].of(TaskResumed) == [TaskResumed("mail.send", actor="two")]


async def test_running_jobs_of_a_paused_task_go_on(scheduler: Scheduler, seen: Recorder, gate: Gate) -> None:
    scheduler.register(gate.job, name="gate")
    job_id = await scheduler.enqueue("gate")
    await gate.wait_begun()
    await scheduler.tasks.pause("gate")
    await until_claimed(scheduler, seen, "gate", False)
    gate.open.set()
    await seen.until(JobCompleted, job_id=job_id)


async def test_pause_is_remembered_by_a_node_that_starts_later(make: Make, gate: Gate) -> None:
    enqueuer = make()
    job_id = await enqueuer.enqueue("gate")
    assert await enqueuer.tasks.pause("gate")
    worker = make()
    worker.register(gate.job, name="gate")
    await worker.start()
    await worker.listen_for_jobs()
    assert await status_of(worker, job_id) is JobStatus.PENDING
    assert not gate.calls


@pytest.mark.slow
async def test_pause_takes_effect_by_polling_when_notifications_do_not_arrive(
    pools: Pools, make: Make, open_gate: Gate
) -> None:
    """A pool of two connections cannot spare one for LISTEN."""
    worker = make(await pools(2))
    worker.register(open_gate.job, name="gate")
    seen = Recorder(worker)
    await worker.start()
    caller = make()
    assert await caller.tasks.pause("gate")
    await until_claimed(worker, seen, "gate", False)
    assert await caller.tasks.resume("gate")
    await until_claimed(worker, seen, "gate", True)


async def test_pause_ends_by_itself_and_one_node_reports_it(make: Make, open_gate: Gate) -> None:
    nodes = [make(), make()]
    seen = [Recorder(node) for node in nodes]
    until = now() + timedelta(seconds=0.5)
    assert await nodes[0].tasks.pause("gate", until=until)
    job_id = await nodes[0].enqueue("gate")
    for node in nodes:
        node.register(open_gate.job, name="gate")
        await node.start()
    done = [asyncio.ensure_future(each.until(JobCompleted, job_id=job_id)) for each in seen]
    await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
    found = await nodes[0].get_job(job_id)
    assert found
    assert found.started_at
    assert found.started_at >= until
    for node, events in zip(nodes, seen, strict=True):
        await until_claimed(node, events, "gate", True)
    (resumed,) = [event for each in seen for event in await resumed_of(each, seen)]
    assert resumed == TaskResumed("gate", actor=None)
    assert not await nodes[0].tasks.resume("gate")


async def resumed_of(one: Recorder, seen: list[Recorder]) -> list[TaskResumed]:
    async with asyncio.timeout(PATIENCE):
        while not any(each.of(TaskResumed) for each in seen):  # noqa: ASYNC110 - on either node
            await asyncio.sleep(0)
    return one.of(TaskResumed)


async def test_jobs_of_a_paused_task_expire_with_the_reason(
    make: Make, pool: asyncpg.Pool, gate: Gate
) -> None:
    clock = FakeClock(START)
    scheduler = make(clock=clock, misfire_grace_time=10)
    scheduler.register(gate.job, name="gate")
    seen = Recorder(scheduler)
    await scheduler.tasks.pause("gate")
    await scheduler.start()
    job_id = await scheduler.schedule_job("gate", START, {})
    clock.advance(timedelta(seconds=11))
    worker_of(scheduler).node.signals.grace_expired()
    await seen.until(JobExpired, job_id=job_id)
    found = await scheduler.get_job(job_id)
    assert found
    assert "; the task gate was paused; its misfire grace time" in str(found.error_message)


# -- calls ---------------------------------------------------------------------------------------------


async def test_pause_and_resume_return_false_when_nothing_changes(make: Make) -> None:
    scheduler = make(clock=FakeClock(START))
    seen = Recorder(scheduler)
    tasks = scheduler.tasks
    assert tasks is scheduler.tasks
    assert not await tasks.resume("unknown")
    assert await tasks.pause("unknown")
    assert not await tasks.pause("unknown")
    assert await tasks.pause("unknown", note="why")
    assert await tasks.pause("unknown", note="why", until=START + HOUR)
    assert not await tasks.pause("unknown", note="why", until=START + HOUR)
    assert await tasks.resume("unknown")
    assert not await tasks.resume("unknown")
    assert (len(seen.of(TaskPaused)), len(seen.of(TaskResumed))) == (3, 1)


async def test_resume_ends_a_pause_that_another_process_made_by_an_alias(make: Make) -> None:
    one, other = make(), make()
    assert await one.tasks.pause("old")
    other.register(work, name="new", aliases=["old"])
    assert [(info.name, info.is_paused) for info in await other.tasks.list()] == [("new", True)]
    assert await other.tasks.resume("new")
    assert await one.tasks.list() == []


async def test_new_pause_begins_when_the_former_one_has_ended(make: Make) -> None:
    clock = FakeClock(START)
    scheduler = make(clock=clock)
    await scheduler.tasks.pause("gone", until=START + HOUR)
    clock.advance(2 * HOUR)
    assert await scheduler.tasks.list() == []
    assert not await scheduler.tasks.resume("gone")
    await scheduler.tasks.pause("gone", until=START + HOUR * 3)
    clock.advance(2 * HOUR)
    await scheduler.tasks.pause("gone", note="again")
    (info,) = await scheduler.tasks.list()
    assert (info.paused_at, info.paused_until, info.note) == (START + 4 * HOUR, None, "again")


async def test_pause_ends_at_the_instant_until_which_it_lasts(make: Make) -> None:
    clock = FakeClock(START)
    scheduler = make(clock=clock)
    await scheduler.tasks.pause("gone", until=START + HOUR)
    clock.advance(HOUR - INSTANT)
    assert [info.name for info in await scheduler.tasks.list()] == ["gone"]
    clock.advance(INSTANT)
    assert await scheduler.tasks.list() == []
    assert not await scheduler.tasks.resume("gone")


async def test_pause_until_the_end_of_the_calendar_is_read_as_it_was_given(make: Make) -> None:
    scheduler = make()
    for until in (datetime(9999, 12, 31, 12, tzinfo=UTC), datetime.max.replace(tzinfo=UTC) - INSTANT):
        assert await scheduler.tasks.pause("gone", until=until)
        assert not await scheduler.tasks.pause("gone", until=until)
        (info,) = await scheduler.tasks.list()
        assert info.paused_until == until


async def test_longest_timeout_of_a_task_is_listed_and_reported(make: Make) -> None:
    timeouts: list[float | timedelta] = [timedelta.max, 1e300, 10**300]
    for number, timeout in enumerate(timeouts):
        scheduler = make()
        scheduler.register(work, name=f"task {number}", timeout=timeout)
        (info,) = await scheduler.tasks.list()
        assert info.timeout == timedelta.max
        await scheduler.start()
        (worker,) = await scheduler.workers()
        reported = ReportedSettings(worker.settings).options_of(f"task {number}")
        assert reported is not None
        assert check_timeout(reported.values["timeout"]) == check_timeout(timedelta.max)
        await scheduler.shutdown()


async def test_list_returns_registered_tasks_and_paused_names(make: Make) -> None:
    @job(
        name="mail.send",
        aliases=["send_mail"],
        timeout=5,
        misfire_grace_time=None,
        max_retries=2,
        retry=RetryPolicy(never=(KeyError,)),
        priority=JobPriority.HIGH,
        executor="thread",
        typed=True,
        keep_result=HOUR,
        metadata={"team": {"name": "mail"}},
        limits=[Limit("smtp", max_running=2)],
        on_failure="alerts.page",
    )
    def send() -> None: ...

    scheduler = make(clock=FakeClock(START), identity="ops", misfire_grace_time=60)
    scheduler.register(work, name="app.work", timeout=None)
    await scheduler.tasks.pause("mail.send", note="no server", until=START + HOUR)
    await scheduler.tasks.pause("elsewhere.run")
    hour, normal = timedelta(hours=1), JobPriority.NORMAL
    assert await scheduler.tasks.list() == [
        TaskInfo("app.work", (f"{work.__module__}.work",), True, None, 60, 0, normal, executor="async"),
        TaskInfo("elsewhere.run", (), False, hour, 60, 0, normal, (), START, None, None, "ops"),
        TaskInfo(
            "mail.send",
            ("send_mail", f"{send.__module__}.{send.__qualname__}"),
            True,
            timedelta(seconds=5),
            None,
            2,
            JobPriority.HIGH,
            (Limit("smtp", max_running=2),),
            START,
            START + HOUR,
            "no server",
            "ops",
            retry=RetryPolicy(never=(KeyError,)),
            executor="thread",
            typed=True,
            keep_result=HOUR,
            metadata={"team": {"name": "mail"}},
            on_failure="alerts.page",
        ),
    ]
    (unnamed,) = [info async for info in infos(make())]
    assert unnamed.actor == "ops"


async def infos(scheduler: Scheduler) -> Any:
    for info in await scheduler.tasks.list():
        if info.name == "elsewhere.run":
            yield info


@pytest.mark.parametrize(
    ("arguments", "error", "rule"),
    [
        ({"name": ""}, ValueError, "job name '' is empty"),
        ({"name": 5}, TypeError, "job name must be a str, not int: 5"),
        ({"name": "é" * 1001}, ValueError, "must have at most 2000 bytes of UTF-8, not 2002"),
        ({"name": "a", "note": 5}, TypeError, "note must be a str"),
        ({"name": "a", "note": "\x00"}, ValueError, "contains a NUL"),
        ({"name": "a", "until": START.replace(tzinfo=None)}, ValueError, "has no time zone"),
        ({"name": "a", "until": START}, ValueError, "has passed; it must be after 2040-01-01T00:00:00"),
    ],
)
async def test_pause_raises_when_a_value_is_invalid(
    make: Make, arguments: dict[str, Any], error: type[Exception], rule: str
) -> None:
    scheduler = make(clock=FakeClock(START))
    with pytest.raises(error, match=rule):
        await scheduler.tasks.pause(**arguments)
    assert await scheduler.tasks.list() == []
