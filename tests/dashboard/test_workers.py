"""The pages of workers: dead ones of a day, groups, the lanes of their slots."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.lanes import MAX_BARS, MAX_LANES, lanes_of
from pg_scheduler.inspect.workers import Attempt
from tests.dashboard.client import JSON, App, Page, request
from tests.support.world import MINUTE, SECOND, World

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)

DIED = {"hostname": "vm", "pid": 7, "version": "1.2.3", "release": "2026.11", "role": "both", "slots": 5}


async def record_death(world: World, worker_id: str, age: timedelta, **details: Any) -> None:
    await world.audit(
        "declare_dead",
        worker_id,
        at=-age,
        actor="w0",
        via="worker",
        details={"worker": DIED, **details},
    )


async def ids(app: App, url: str) -> list[str]:
    found = (await request(app, url, headers=JSON)).data["items"]
    return [each["worker"]["worker_id"] for each in found]


async def test_workers_that_died_within_a_day_are_listed(
    pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    await world.worker()
    await world.worker("drains", wanted="drain")
    await world.worker("back")
    started = {"started_at": "2030-01-01T00:00:00+00:00", "identity": "spot-4", "pid": "odd"}
    await record_death(world, "died", 9 * MINUTE, count=7)
    await record_death(world, "died", 3 * MINUTE, worker=DIED | started, count=2)
    await record_death(world, "back", MINUTE)
    await record_death(world, "old", timedelta(hours=25))
    await record_death(world, "odd", 4 * MINUTE, worker=["odd"], count="odd")
    app = build()
    assert await ids(app, "/workers") == ["w1", "drains", "back", "died", "odd"]
    assert await ids(app, "/workers?state=live") == ["w1", "drains", "back"]
    assert await ids(app, "/workers?state=draining") == ["drains"]
    assert await ids(app, "/workers?state=dead") == ["died", "odd"]
    data = (await request(app, "/workers?state=dead", headers=JSON)).data
    assert data["counts"] == {"": 5, "live": 3, "draining": 1, "dead": 2}
    assert data["summary"] == "3 live, 2 dead within a day, 3 of 6 slots busy"
    died = data["items"][0]
    assert (died["reclaimed"], died["release"], died["worker"]["max_concurrent_jobs"]) == (2, "2026.11", 5)
    text = " ".join(Page((await request(app, "/workers?state=dead")).text).text.split())
    assert "spot-4" in text
    assert "2 jobs reclaimed" in text
    page = await request(app, "/worker?id=died")
    assert "died 3 min ago; 2 jobs were reclaimed" in " ".join(Page(page.text).text.split())
    limited = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for url in ("/workers?state=dead", "/worker?id=died"):
        assert "reclaimed" not in (await request(limited, url)).text
    for wrong in ("state=odd", "group=odd"):
        assert (await request(app, f"/workers?{wrong}")).status == 400


async def test_page_of_a_worker_that_has_ended_shows_its_jobs(
    world: World, build: Callable[..., App]
) -> None:
    await world.job("a", "payroll.run", status="completed", worker_id="gone", attempt=1, started=-SECOND)
    page = await request(build(), "/worker?id=gone")
    assert "/jobs?q=worker%3Agone" in Page(page.text).links()
    assert "It has shut down" in page.text
    limited = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    assert (await request(limited, "/worker?id=gone")).status == 404
    assert (await request(build(), "/worker?id=never")).status == 404


async def test_thread_that_runs_on_is_on_the_pages_of_its_job_and_of_its_worker(
    world: World, build: Callable[..., App]
) -> None:
    since = (datetime.now(UTC) - 4 * MINUTE).isoformat()
    values = {"job_id": "a", "job_name": "ml.embed", "attempt": 1, "reason": "cancelled", "in_thread": True}
    released = {**values, "job_id": "c", "since": since, "has_slot": False}
    health = {
        "abandoned": [{**values, "since": since}, released, {**values, "job_id": "", "since": since}, "odd"]
    }
    await world.worker("w1", identity="web-2", health=health)
    await world.worker("dead", lease=-MINUTE, health=health)
    await world.job("a", "ml.embed", status="cancelled")
    await world.job("b", "ml.embed", status="cancelled")
    await world.job("c", "ml.embed", status="cancelled")
    sentence = "Cancelled 4 min ago; its thread has run on since, in a slot of web-2"
    text = " ".join(Page((await request(build(), "/job?id=a")).text).text.split())
    assert sentence in text, text
    assert "has run on" not in (await request(build(), "/job?id=b")).text
    text = " ".join(Page((await request(build(), "/job?id=c")).text).text.split())
    assert "its thread has run on since, outside of the slots of web-2" in text
    page = Page((await request(build(), "/worker?id=w1")).text)
    text = " ".join(page.text.split())
    assert "2 attempts that were to stop run on" in text
    assert "its thread runs on, in a slot" in text
    assert "its thread runs on; its slot is free" in text
    assert "/job?id=a" in page.links()
    limited = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for url in ("/worker?id=w1", "/workers"):
        for headers in ({}, JSON):
            assert "ml.embed" not in (await request(limited, url, headers=headers)).text


def crash(worker_id: str, age: timedelta) -> dict[str, Any]:
    ended_at = datetime.now(UTC) - age
    times = {"started_at": (ended_at - MINUTE).isoformat(), "ended_at": ended_at.isoformat()}
    return {"attempt": 1, "outcome": "crashed", "worker_id": worker_id, **times}


async def test_dead_worker_shows_what_it_was_running_and_what_crashed_others(
    world: World, build: Callable[..., App]
) -> None:
    await record_death(world, "spot", 4 * MINUTE, worker=DIED | {"identity": "spot-9"}, count=25, jobs=[
        "poison", "unlucky", "done", "deleted", "salary", 7,
    ])  # fmt: skip
    await record_death(world, "other", 20 * MINUTE, worker=DIED | {"identity": "spot-7"})
    await record_death(world, "odd", 4 * MINUTE, jobs="odd")
    both = [crash("other", 21 * MINUTE), crash("spot", 5 * MINUTE), crash("nameless", 3 * MINUTE)]
    failed = {"status": "failed", "error_message": "quarantined", "worker_id": "nameless", "attempt": 3}
    await world.job("poison", "legacy.crash", **failed, errors=both)
    await world.job("unlucky", "mail.send", errors=[crash("spot", 5 * MINUTE)])
    await world.job("done", "mail.send", status="completed", worker_id="w2", attempt=2)
    await world.job("salary", "payroll.run")
    data = (await request(build(), "/worker?id=spot", headers=JSON)).data
    assert [(job["job_id"], job["state"], job["others"]) for job in data["lost"]] == [
        ("poison", "failed", ["spot-7", "nameless"]),
        ("done", "completed", []),
        ("unlucky", "due", []),
        ("salary", "due", []),
    ]
    assert {bar["job_id"] for bar in data["lanes"]["bars"]} == {"poison", "unlucky"}
    text = " ".join(Page((await request(build(), "/worker?id=spot")).text).text.split())
    assert "It was running 4 of 25 jobs" in text
    assert "crashed 2 other workers: spot-7, nameless" in text
    limited = build(authorize=lambda _: Access("bob", names=("mail.*",)))
    for headers in ({}, JSON):
        html = (await request(limited, "/worker?id=spot", headers=headers)).text
        assert "mail.send" in html
        assert not {word for word in ("payroll", "legacy", "poison", "salary") if word in html}
    assert (await request(build(), "/worker?id=odd", headers=JSON)).data["lost"] == []


async def test_dead_workers_have_their_names_in_the_audit_and_in_attempts(world: World, app: App) -> None:
    await world.worker("4f1c", identity="web-1")
    await record_death(world, "0ddc", MINUTE, worker=DIED | {"identity": "spot-9"}, count=1)
    await world.audit("drain_worker", "4f1c", actor="ada")
    await world.audit("drain_worker", "0ddc", actor="ada")
    await world.job("a", errors=[crash("0ddc", 2 * MINUTE)], attempt=1)
    text = " ".join(Page((await request(app, "/audit")).text).text.split())
    assert "declared the worker spot-9 dead, 1 job reclaimed" in text
    assert "drained the worker web-1" in text
    assert "drained the worker spot-9" in text
    text = " ".join(Page((await request(app, "/job?id=a")).text).text.split())
    assert "Worker spot-9" in text
    assert "0ddc" not in text


async def test_worker_whose_row_has_odd_instants_is_shown(pool: asyncpg.Pool, world: World, app: App) -> None:
    await world.worker()
    for instant in ("infinity", "-infinity"):
        await pool.execute(
            f"UPDATE scheduler_workers SET started_at = '{instant}', last_beat = '{instant}',"
            f" lease_until = '{instant}'"
        )
        for url in ("/workers", "/worker?id=w1"):
            assert (await request(app, url)).status == 200


async def test_workers_are_grouped_by_address(world: World, app: App) -> None:
    for number, release in enumerate(("2", "1", "2")):
        metadata = json.dumps({"release": release})
        await world.worker(f"w{number}", metadata=metadata, hostname=f"vm-{number}")
    await world.worker("w3")
    page = Page((await request(app, "/workers?group=release")).text)
    text = " ".join(page.text.split())
    assert "2 2 workers, 2 of 4 slots busy" in text
    headings = [attrs["data-key"] for attrs in page.all("tbody")]
    assert headings == ["1", "2", "no release"]
    assert [attrs["data-key"] for attrs in Page((await request(app, "/workers")).text).all("tbody")] == [""]


async def test_worker_page_shows_its_attempts_and_running_jobs(
    world: World, build: Callable[..., App]
) -> None:
    await world.worker()
    ended = {"due": -9 * MINUTE, "started": -8 * MINUTE, "ended": -3 * MINUTE}
    await world.job("failed", "billing.run", status="failed", worker_id="w1", attempt=1, **ended)
    progress = {"done": 1, "total": 4, "note": "secret frame 7"}
    await world.job(
        "runs", "payroll.run", status="running", due=-9 * MINUTE, started=-4 * MINUTE, progress=progress
    )
    data = (await request(build(), "/worker?id=w1", headers=JSON)).data
    bars = {each["job_id"]: (each["tone"], each["lane"]) for each in data["lanes"]["bars"]}
    assert bars == {"failed": ("bad", 0), "runs": ("run", 1)}
    (job,) = data["jobs"]
    assert (job["progress"], job["note"]) == (0.25, "secret frame 7")
    page = await request(build(), "/worker?id=w1")
    assert "payroll.run: runs for 4 min" in page.text
    assert "billing.run: failed after 5 min" in page.text
    assert "/job?id=failed" in Page(page.text).links()
    (oldest,) = [each["oldest"] for each in (await request(build(), "/workers", headers=JSON)).data["items"]]
    assert oldest["job_name"] == "payroll.run"
    blind = build(authorize=lambda _: Access("bob", sees_arguments=False))
    assert "secret" not in (await request(blind, "/worker?id=w1")).text
    limited = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for url in ("/worker?id=w1", "/workers"):
        for headers in ({}, JSON):
            assert "payroll" not in (await request(limited, url, headers=headers)).text


def attempt(job_id: str, start: timedelta, length: timedelta | None, outcome: str = "completed") -> Attempt:
    started_at = NOW - start
    return Attempt(job_id, "work", outcome, started_at, None if length is None else started_at + length)


def test_attempts_that_overlap_have_lanes_of_their_own() -> None:
    found = lanes_of(
        [
            attempt("b", 30 * MINUTE, 10 * MINUTE, "timeout"),
            attempt("a", 90 * MINUTE, 70 * MINUTE),
            attempt("c", 15 * MINUTE, None, "running"),
            attempt("gone", 90 * MINUTE, MINUTE),
        ],
        NOW,
    )
    assert [(each.job_id, each.lane, each.x, each.width, each.tone) for each in found.bars] == [
        ("a", 0, 0, 66.67, "ok"),
        ("b", 1, 50, 16.67, "bad"),
        ("c", 0, 75, 25, "run"),
    ]
    assert (found.count, found.summary) == (2, "3 attempts")


def test_attempt_of_the_last_seconds_before_a_death_is_drawn() -> None:
    died_at = NOW + 10 * SECOND
    last = Attempt("a", "work", "crashed", NOW + SECOND, NOW + 40 * SECOND)
    assert lanes_of([last], died_at).summary == "0 attempts"
    lanes = lanes_of([last], died_at, is_over=True)
    assert [(bar.job_id, bar.tone, bar.x + bar.width) for bar in lanes.bars] == [("a", "bad", 100)]


def test_short_attempts_are_counted_by_minute() -> None:
    found = lanes_of(
        [
            *(attempt(f"a{n}", 30 * MINUTE - n * SECOND, SECOND) for n in range(4)),
            attempt("b", 20 * MINUTE, SECOND, "failed"),
            attempt("c", timedelta(0), None, "running"),
        ],
        NOW,
    )
    assert found.bars == []
    assert [(each.x, each.height, each.failed_height) for each in found.minutes] == [
        (50, 100, 0),
        (66.67, 25, 25),
    ]
    assert found.minutes[1].title == "1 attempt, 1 failed"


def test_lanes_are_bounded() -> None:
    found = lanes_of([attempt(f"{n}", 30 * MINUTE, MINUTE + n * SECOND) for n in range(999)], NOW)
    assert (found.count, len(found.bars)) == (MAX_LANES, MAX_LANES)
    assert found.summary == f"999 attempts, bars for the {MAX_LANES} longest"
    assert sum(int(each.title.split()[0]) for each in found.minutes) == 999 - MAX_LANES
    lanes = lanes_of([attempt("a", 5 * MINUTE, MINUTE), attempt("b", 2 * MINUTE, SECOND)], NOW)
    assert lanes.summary == "2 attempts, a bar for the longest"
    lanes = lanes_of([attempt(f"{n}", n * 6 * SECOND, 6 * SECOND) for n in range(1, 500)], NOW)
    assert (lanes.count, len(lanes.bars)) == (1, MAX_BARS)


async def test_page_without_a_live_worker_says_how_to_start_one(
    pool: asyncpg.Pool, world: World, app: App
) -> None:
    command = "pg-scheduler worker myapp.jobs"
    assert command in (await request(app, "/workers")).text
    await world.worker("dead")
    assert command not in (await request(app, "/workers")).text
    await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 minute'")
    html = (await request(app, "/workers")).text
    assert command in html
    assert "/worker?id=dead" in Page(html).links()


async def test_worker_page_counts_the_slots_of_the_jobs_that_it_lists(world: World, app: App) -> None:
    await world.worker("w1", running_jobs=0, max_concurrent_jobs=7)
    await world.jobs(2, "work", status="running")
    text = " ".join(Page((await request(app, "/worker?id=w1")).text).text.split())
    assert "2 / 7" in text, "its last heartbeat was before these jobs"


async def test_metadata_of_tasks_is_shown_to_those_who_see_arguments(
    world: World, build: Callable[..., App]
) -> None:
    metadata = {"shop.bill": {"team": "billing", "token": "x7"}}
    await world.worker(settings={"lease_seconds": 60, "task_metadata": metadata})

    async def settings_of(access: Access) -> Any:
        app = build(authorize=lambda _: access, redact=("token",))
        return (await request(app, "/worker?id=w1", headers=JSON)).data["item"]["worker"]["settings"]

    settings = await settings_of(Access("ada"))
    assert settings["task_metadata"]["shop.bill"]["team"] == "billing"
    assert settings["task_metadata"]["shop.bill"]["token"] != "x7"
    assert await settings_of(Access("bob", sees_arguments=False)) == {"lease_seconds": 60}
    await world.worker("odd", settings={"task_metadata": [metadata]})
    app = build(authorize=lambda _: Access("ada"))
    odd = (await request(app, "/worker?id=odd", headers=JSON)).data["item"]["worker"]["settings"]
    assert odd == {}


def test_lanes_state_the_failures_and_the_highest_column() -> None:
    attempts = [attempt(f"{n}", 5 * MINUTE, n * 0.001 * SECOND) for n in range(1, 4)]
    lanes = lanes_of([*attempts, attempt("d", 2 * MINUTE, SECOND, "failed")], NOW)
    assert (lanes.summary, lanes.failed, lanes.highest) == ("4 attempts", "1", "3")
    assert (lanes_of([], NOW).failed, lanes_of([], NOW).highest) == ("", "")
