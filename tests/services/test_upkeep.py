"""The rescuer, the expirer and the lookout, pass by pass."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.domain.outcome import Completed
from pg_scheduler.events import EventBus, JobExpired, JobsRescued
from pg_scheduler.services import expirer as expirer_module
from pg_scheduler.services import lookout as lookout_module
from pg_scheduler.services.base import NEVER
from pg_scheduler.store.store import Store
from tests.services.kit import Recorder, claim, new_job, new_worker, statuses
from tests.services.parts import Parts


@pytest.fixture
def parts(clocked: Store, bus: EventBus) -> Parts:
    return Parts(clocked, bus)


@pytest.fixture(autouse=True)
def _without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout_module, "JITTER", 0.0)
    monkeypatch.setattr(lookout_module, "SPREAD", 0.0)


# -- rescuer -------------------------------------------------------------------------------------------


async def test_the_jobs_of_a_dead_worker_are_given_back(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    dead = await claim(parts.store, new_job("a"), new_job("b"), worker_id="dead")
    await claim(parts.store, new_job("c"), worker_id="alive", lease=600)
    rescuer = parts.rescuer()
    assert await rescuer.run_once() == NEVER
    assert seen.events == []
    clock.advance(timedelta(seconds=61))
    await rescuer.run_once()
    assert seen.events == [JobsRescued(("a", "b"), ("dead",))]
    assert parts.calls == ["rescued"]
    assert await statuses(parts.store, *"abc") == ["pending", "pending", "running"]
    assert [worker.worker_id for worker in await parts.store.workers()] == ["alive"]
    job = await parts.store.get_job("a")
    assert job is not None
    assert (job.attempt, job.retry_count, job.worker_id) == (1, 0, None)
    assert await parts.store.finish("dead", [(dead[0], Completed())]) == set()  # too late


async def test_a_dead_worker_without_jobs_is_told_of_too(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    await parts.store.register(new_worker("dead"), 60)
    clock.advance(timedelta(seconds=61))
    await parts.rescuer().run_once()
    assert seen.events == [JobsRescued((), ("dead",))]
    assert parts.calls == []


async def test_a_row_whose_own_lease_is_over_is_given_back(parts: Parts, clock: FakeClock) -> None:
    await claim(parts.store, new_job("a"), worker_id="alive", lease=60)
    clock.advance(timedelta(seconds=61))
    await parts.store.renew("alive", {}, 600)  # it does not know that it holds "a": the answer was lost
    await parts.rescuer().run_once()
    assert await statuses(parts.store, "a") == ["pending"]


async def test_a_row_without_a_lease_has_the_threshold(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await parts.store.insert([new_job("a")])
    await pool.execute(
        "UPDATE scheduled_jobs "
        "SET status = 'running', worker_id = 'legacy', attempt = 1, last_heartbeat = $1",
        clock.now,
    )
    rescuer = parts.rescuer()
    clock.advance(timedelta(seconds=119))
    await rescuer.run_once()
    assert await statuses(parts.store, "a") == ["running"]
    clock.advance(timedelta(seconds=2))
    await rescuer.run_once()
    assert await statuses(parts.store, "a") == ["pending"]


async def test_a_job_set_to_running_by_hand_comes_back_after_one_lease(
    parts: Parts, clock: FakeClock
) -> None:
    await parts.store.insert([new_job("a")])
    await parts.store.set_status("a", JobStatus.RUNNING, 60)
    rescuer = parts.rescuer()
    await rescuer.run_once()
    assert await statuses(parts.store, "a") == ["running"]
    clock.advance(timedelta(seconds=61))
    await rescuer.run_once()
    assert await statuses(parts.store, "a") == ["pending"]


async def test_a_replacement_waiting_for_a_dead_worker_is_applied(parts: Parts, clock: FakeClock) -> None:
    await claim(parts.store, new_job("a"), worker_id="dead")
    await parts.store.replace([new_job("a", "test.other", task_data='{"args":[2],"kwargs":{}}')])
    clock.advance(timedelta(seconds=61))
    await parts.rescuer().run_once()
    job = await parts.store.get_job("a")
    assert job is not None
    assert (job.status, job.job_name, job.args, job.replacement) == ("pending", "test.other", (2,), False)


async def test_a_worker_in_doubt_about_itself_declares_nobody_dead(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    await claim(parts.store, new_job("a"), worker_id="me")
    clock.advance(timedelta(seconds=61))
    parts.trusted = False
    assert 0 < await parts.rescuer().run_once() < NEVER
    assert seen.events == []
    assert await statuses(parts.store, "a") == ["running"]


async def test_two_rescuers_share_the_work(parts: Parts, clock: FakeClock, seen: Recorder, dsn: str) -> None:
    await claim(parts.store, new_job("a"), worker_id="dead")
    clock.advance(timedelta(seconds=61))
    other = await asyncpg.connect(dsn)
    async with other.transaction():  # another rescuer is at it
        await other.execute("SELECT FROM scheduler_workers FOR UPDATE")
        await other.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        await parts.rescuer().run_once()
        assert seen.events == []
    await other.close()
    await parts.rescuer().run_once()
    assert len(seen.of(JobsRescued)) == 1


# -- expirer -------------------------------------------------------------------------------------------


async def test_only_pending_jobs_past_their_grace_expire(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    for job_id, grace in (("ten", 10), ("zero", 0), ("ever", None)):
        job = new_job(job_id, "nobody.knows", execution_time=clock.now, misfire_grace_time=grace)
        await parts.store.insert([job])
    await claim(parts.store, new_job("running", misfire_grace_time=10, execution_time=clock.now))
    expirer = parts.expirer()
    clock.advance(timedelta(seconds=10))
    assert await expirer.run_once() == NEVER
    assert [event.job_id for event in seen.of(JobExpired)] == ["zero"]
    clock.advance(timedelta(seconds=0.001))
    await expirer.run_once()
    assert [event.job_id for event in seen.of(JobExpired)] == ["zero", "ten"]
    assert seen.of(JobExpired)[1] == JobExpired("ten", "nobody.knows", 0)
    assert await statuses(parts.store, "ever", "running") == ["pending", "running"]
    row = await parts.store.get_job("ten")
    assert row is not None
    assert row.finished_at == clock.now


async def test_a_full_batch_is_followed_by_the_next_at_once(
    parts: Parts, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expirer_module, "BATCH", 2)
    await parts.store.insert([new_job(str(n), misfire_grace_time=0) for n in range(3)])
    clock.advance(timedelta(seconds=5))
    expirer = parts.expirer()
    assert [await expirer.run_once(), await expirer.run_once()] == [0, NEVER]
    assert (await parts.store.count_jobs(None)).expired == 3


# -- lookout -------------------------------------------------------------------------------------------


async def test_with_nothing_that_ends_it_looks_now_and_then(parts: Parts, clock: FakeClock) -> None:
    assert await parts.lookout().run_once() == lookout_module.INTERVAL
    await claim(parts.store, new_job("a", execution_time=clock.now), worker_id="alive")
    later = clock.now + timedelta(minutes=1)
    await parts.store.insert([new_job("later", execution_time=later, misfire_grace_time=0), new_job("ever")])
    assert await parts.lookout().run_once() == lookout_module.INTERVAL
    assert await parts.lookout(lease=20).run_once() == 10
    assert parts.calls == []


async def test_the_rescuer_is_woken_when_a_lease_is_over(parts: Parts, clock: FakeClock) -> None:
    await parts.store.register(new_worker("me"), 600)
    await claim(parts.store, new_job("a"), worker_id="dead")
    lookout, rescuer = parts.lookout(), parts.rescuer()
    clock.advance(timedelta(seconds=40))
    assert await lookout.run_once() == pytest.approx(20)
    clock.advance(timedelta(seconds=20.5))
    assert await lookout.run_once() == lookout_module.AGAIN
    assert parts.calls == ["lapsed"]
    await rescuer.run_once()
    assert await statuses(parts.store, "a") == ["pending"]
    assert await lookout.run_once() == lookout_module.INTERVAL
    assert parts.calls == ["lapsed", "rescued"]


async def test_a_running_row_that_nobody_renews_is_seen(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await claim(parts.store, new_job("a"), worker_id="alive", lease=60)
    await parts.store.insert([new_job("legacy", priority=1), new_job("by hand", priority=8)])
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', worker_id = 'old', attempt = 1, last_heartbeat = $1"
        " WHERE job_id = 'legacy'",
        clock.now - timedelta(seconds=100),
    )
    await parts.store.set_status("by hand", JobStatus.RUNNING, 10)
    lookout, rescuer = parts.lookout(), parts.rescuer()
    assert await lookout.run_once() == pytest.approx(10)
    clock.advance(timedelta(seconds=11))
    assert await lookout.run_once() == lookout_module.AGAIN
    await rescuer.run_once()
    assert await lookout.run_once() == pytest.approx(9)
    clock.advance(timedelta(seconds=10))
    await rescuer.run_once()
    assert await statuses(parts.store, "legacy", "by hand", "a") == ["pending", "pending", "running"]
    clock.advance(timedelta(seconds=40))
    await parts.store.renew("alive", {}, 600)  # it does not know that it holds "a": the answer was lost
    parts.calls.clear()
    await lookout.run_once()
    assert parts.calls == ["lapsed"]


async def test_the_expirer_is_woken_when_a_job_is_too_late(parts: Parts, clock: FakeClock) -> None:
    soon = clock.now + timedelta(seconds=5)
    await parts.store.insert([new_job("a", execution_time=soon, misfire_grace_time=10)])
    lookout, expirer = parts.lookout(), parts.expirer()
    assert await lookout.run_once() == pytest.approx(15)  # it is not even due yet
    clock.advance(timedelta(seconds=15.1))
    assert await lookout.run_once() == lookout_module.AGAIN
    assert parts.calls == ["expired"]
    await expirer.run_once()
    assert await statuses(parts.store, "a") == ["expired"]
    assert await lookout.run_once() == lookout_module.INTERVAL


async def test_rows_without_any_instant_and_infinite_ones_are_no_trouble(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await parts.store.insert([new_job("a"), new_job("b")])
    await pool.execute("UPDATE scheduled_jobs SET expires_at = 'infinity'")
    assert await parts.lookout().run_once() == lookout_module.INTERVAL
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', worker_id = 'x', attempt = 1 WHERE job_id = 'b'"
    )
    assert await parts.lookout().run_once() == lookout_module.AGAIN
    await parts.rescuer().run_once()
    assert await statuses(parts.store, "b") == ["pending"]
