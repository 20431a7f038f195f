"""The page of a job that waits for a limit: who holds it, the place in the queue, and what can be done."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
import pytest

from pg_scheduler.inspect import Inspector
from tests.dashboard.client import App, Page, follow, request, send
from tests.dashboard.test_actions import as_role, records
from tests.support.world import HOUR, MINUTE, World


@pytest.fixture
async def held(world: World, pool: asyncpg.Pool) -> None:
    """Three jobs that wait for a limit which another one has held for an hour."""
    await world.worker("w1", names=["board.sync"], identity="web-2")
    await world.job("sync-1", "board.sync", status="running", started=-HOUR - MINUTE)
    await world.start("limit:crm:", "sync-1", at=-HOUR, keep_s=7200)
    await world.jobs(3, "board.sync", job_id="wait{}".format, due=-MINUTE, expires_at=5 * MINUTE)
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:crm:' WHERE status = 'pending'")


@pytest.mark.usefixtures("held")
async def test_job_that_waits_for_a_limit_names_who_holds_it_and_its_place(build: Callable[..., App]) -> None:
    page = Page((await request(as_role(build, "admin"), "/job?id=wait3")).text)
    text = " ".join(page.text.split())
    assert "Waits for the limit “crm”" in text
    assert "Held by board.sync on web-2, started 60 min ago" in text
    assert "2 jobs before it in the queue of the limit" in text
    assert "/job?id=sync-1" in page.links()
    actions = {str(form["action"]) for form in page.all("form")}
    assert {"/actions/jobs/cancel?id=sync-1", "/actions/jobs/keep?id=wait3"} <= actions


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("options", [{"names": ("board.*",)}, {}])
async def test_holder_is_neither_named_nor_cancelled_without_the_rights(
    build: Callable[..., App], options: dict[str, tuple[str, ...]]
) -> None:
    answer = await request(as_role(build, "viewer", **options), "/job?id=wait3")
    assert "/actions/jobs/" not in answer.text
    assert ("sync-1" in answer.text) is not bool(options)
    data = (
        await request(
            as_role(build, "viewer", **options), "/job?id=wait3", headers={"accept": "application/json"}
        )
    ).data
    assert ("sync-1" in str(data)) is not bool(options)


@pytest.mark.usefixtures("held")
async def test_job_is_kept_without_expiry(build: Callable[..., App], pool: asyncpg.Pool) -> None:
    admin = as_role(build, "admin")
    answer = await send(admin, "/actions/jobs/keep?id=wait1")
    assert (answer.headers["location"], answer.did) == ("/job?id=wait1", "job_kept")
    assert "the job does not expire any more" in Page((await follow(admin, answer)).text).text
    row = await pool.fetchrow(
        "SELECT expires_at, misfire_grace_time FROM scheduled_jobs WHERE job_id = 'wait1'"
    )
    assert row is not None
    assert tuple(row) == (None, None)
    assert await records(pool) == [("ada", "dashboard", "keep_job", "wait1")]
    again = await send(admin, "/actions/jobs/keep?id=wait1")
    assert again.did == "job_not_kept"
    assert "/actions/jobs/keep" not in (await request(admin, "/job?id=wait1")).text
    limited = as_role(build, "admin", names=("other.*",))
    assert (await send(limited, "/actions/jobs/keep?id=wait3")).status == 404
    assert (await send(as_role(build, "viewer"), "/actions/jobs/keep?id=wait3")).status == 403


@pytest.mark.usefixtures("held")
async def test_explanation_names_the_holder_the_queue_and_the_expiry(pool: asyncpg.Pool) -> None:
    reasons = (await Inspector(pool).explain_job("wait3")).reasons
    (reason,) = [reason for reason in reasons if reason.code == "LIMIT-HELD"]
    assert "held by board.sync 'sync-1' for 60 min" in reason.text
    assert "2 jobs before it in the queue; expires at " in reason.text


@pytest.fixture
async def stopped(world: World, pool: asyncpg.Pool) -> None:
    """A sequence that has stopped at a failed job, before two others."""
    place = '{"sequence": {"key": "zsequence:board:acme", "on_failure": "stop"}}'
    await world.job("first", "board.sync", status="failed", ended=-HOUR)
    await world.jobs(2, "board.sync", job_id="next{}".format, due=-MINUTE)
    await pool.execute("UPDATE scheduled_jobs SET options = $1::text::jsonb", place)
    key = "zsequence:board:acme"
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = $1 WHERE status = 'pending'", key)
    await pool.execute("INSERT INTO scheduler_sequences VALUES ($1, 'first', now())", key)


@pytest.mark.usefixtures("stopped")
async def test_sequence_continues_behind_a_failed_job(build: Callable[..., App], pool: asyncpg.Pool) -> None:
    admin = as_role(build, "admin")
    page = Page((await request(admin, "/limits")).text)
    assert "1 sequence, 1 stopped, 2 waiting" in " ".join(page.text.split())
    assert "/actions/jobs/skip?id=first" in {str(form["action"]) for form in page.all("form")}
    assert "acme" not in (await request(as_role(build, "admin", sees_arguments=False), "/limits")).text
    assert "/actions/jobs/skip" not in (await request(as_role(build, "viewer"), "/limits")).text
    question = await send(admin, "/actions/jobs/skip?id=first")
    assert "Let the sequence continue behind this job?" in question.text
    answer = await send(admin, "/actions/jobs/skip?id=first", {"confirm": "yes"})
    assert (answer.headers["location"], answer.did) == ("/job?id=first", "job_skipped")
    assert await pool.fetchval("SELECT count(*) FROM scheduler_sequences") == 0
    assert (await send(admin, "/actions/jobs/skip?id=first", {"confirm": "yes"})).status == 409


@pytest.mark.usefixtures("stopped")
async def test_waiting_job_moves_to_the_front(build: Callable[..., App], pool: asyncpg.Pool) -> None:
    admin = as_role(build, "admin")
    page = Page((await request(admin, "/job?id=next2")).text)
    assert "stands still at the failed job" in " ".join(page.text.split())
    assert "/actions/jobs/front?id=next2" in {str(form["action"]) for form in page.all("form")}
    answer = await send(admin, "/actions/jobs/front?id=next2")
    assert (answer.headers["location"], answer.did) == ("/job?id=next2", "job_in_front")
    first = "SELECT job_id FROM scheduled_jobs WHERE blocked_on IS NOT NULL ORDER BY execution_time LIMIT 1"
    assert await pool.fetchval(first) == "next2"
    assert (await send(admin, "/actions/jobs/front?id=first")).status == 409
