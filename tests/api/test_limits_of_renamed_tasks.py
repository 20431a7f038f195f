"""A limit or a share that has the name of a task is that of the task, also after the task was renamed."""

from __future__ import annotations

from datetime import timedelta

from pg_scheduler import Limit, Share
from pg_scheduler.events import JobBlocked, JobCompleted
from tests.api.conftest import Make
from tests.support.worker import Gate, Recorder

OLD, NEW = "billing.send", "billing.issue"


async def test_renamed_task_keeps_its_limit_by_the_old_name_while_both_versions_run(
    make: Make, gate: Gate
) -> None:
    old, new = make(), make()
    old.register(gate.job, name=OLD, limits=[Limit(max_running=1)])
    new.register(gate.job, name=NEW, aliases=[OLD], limits=[Limit(OLD, max_running=1)])
    await old.start()
    await old.enqueue(OLD)
    await gate.wait_begun()
    seen = Recorder(new)
    await new.start()
    (blocked,) = await seen.until(JobBlocked, job_id=await new.enqueue(NEW))
    assert blocked.blocked_on == f"limit:{OLD}:"
    assert gate.most == 1
    gate.open.set()


async def test_renamed_task_keeps_its_rate_by_the_old_name(make: Make, gate: Gate) -> None:
    gate.open.set()
    hour = timedelta(hours=1)
    old, new = make(), make()
    old.register(gate.job, name=OLD, limits=[Limit(max_starts=1, per=hour)])
    new.register(gate.job, name=NEW, aliases=[OLD], limits=[Limit(OLD, max_starts=1, per=hour)])
    seen = Recorder(new)
    await old.start()
    await old.enqueue(OLD)
    await gate.wait_begun()
    await old.shutdown()
    await new.start()
    await seen.until(JobBlocked, job_id=await new.enqueue(NEW))


async def test_jobs_of_a_renamed_task_take_turns_in_a_share_by_the_old_name(make: Make, gate: Gate) -> None:
    gate.open.set()
    old, new = make(), make(max_concurrent_jobs=1)
    old.register(gate.job, name=OLD, share=Share(key=lambda tenant: tenant))
    new.register(gate.job, name=NEW, aliases=[OLD], share=Share(OLD, key=lambda tenant: tenant))
    for _ in range(30):
        await old.enqueue(OLD, args=("large",))
    seen = Recorder(new)
    job_id = await new.enqueue(NEW, args=("small",))
    await new.start()
    await seen.until(JobCompleted, job_id=job_id)
    assert gate.calls.index(("small",)) <= 4
