"""The page of one job: one cause, its attempts, its values, and the jobs around it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, Page, request, send
from tests.dashboard.conftest import read_all
from tests.dashboard.test_actions import as_role, insert, status
from tests.dashboard.test_job_actions import buttons
from tests.dashboard.test_jobs import SECRET, add
from tests.dashboard.test_limits import declare
from tests.dashboard.test_schedule import add_nightly
from tests.support.codecs import KeyedCodec
from tests.support.errors import count_errors
from tests.support.inside import fire_time_job_id, quarantine_error
from tests.support.world import HOUR, MINUTE, SECOND, World

INSERT = """
    INSERT INTO scheduled_jobs SELECT * FROM jsonb_populate_recordset(NULL::scheduled_jobs, $1::text::jsonb)
"""
TRACEBACK = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/httpx/_client.py", line 7, in send
    await send()
  File "/app/acme/bank.py", line 41, in capture
    raise Declined("no")
acme.Declined: no"""


def entry(claim: int, **changes: Any) -> dict[str, Any]:
    at = datetime(2026, 1, 1, 12, claim, tzinfo=UTC)
    values = {
        "attempt": claim,
        "outcome": "error",
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(seconds=2)).isoformat(),
        "worker_id": "0192f0c1-7a52-7cc3-b3a4-5d6f1e0a9b77",
        "error_type": "acme.Declined",
        "message": "card of account 113 declined",
        "traceback": TRACEBACK,
    }
    return {**values, **changes}


async def test_positional_arguments_have_the_names_of_the_parameters_that_a_worker_reports(
    scheduler: Scheduler, app: App, build: Callable[..., App], world: World
) -> None:
    await scheduler.enqueue("board.charge", job_id="pay", args=(113, "card", 2, 3))
    page = Page((await request(app, "/job?id=pay")).text)
    assert not [attrs for attrs in page.all("span") if "data-name" in attrs], "no worker reports them"
    parameters = [("account", True), ("by", False), ("note", False)]
    settings = {"parameters": {"board.charge": parameters}, "positional": {"board.charge": 2}}
    await world.worker(names=["board.charge"], settings=settings)
    page = Page((await request(build(), "/job?id=pay")).text)
    assert [attrs["data-name"] for attrs in page.all("span") if "data-name" in attrs] == ["account", "by"]
    await scheduler.enqueue("board.charge", job_id="refund", args=(113, "card"), kwargs={"note": None})
    page = Page((await request(build(), "/job?id=refund")).text)
    names = [attrs["data-name"] for attrs in page.all("span") if "data-name" in attrs]
    assert names == ["account", "by", "note"]
    (rows,) = [attrs for attrs in page.all("div") if attrs.get("id") == "arguments-json"]
    assert rows["class"] == "json named"
    await scheduler.schedules.add("board.charge", Every(HOUR), args=(113,), schedule_id="hourly")
    page = Page((await request(build(), "/schedule?id=hourly")).text)
    assert [attrs["data-name"] for attrs in page.all("span") if "data-name" in attrs] == ["account"]
    await scheduler.schedules.add("board.charge", Every(HOUR), schedule_id="bare")
    bare = Page((await request(app, "/schedule?id=bare")).text).text
    assert "no arguments" in bare
    assert "Last runs" in bare
    assert "gaps: no job" not in bare, "there is no chart"


async def insert_failed(pool: asyncpg.Pool, job_id: str = "pay:1", **columns: Any) -> None:
    """Insert a job that used its retries; a limit sent back the claim between the first two attempts."""
    values = {
        "job_id": job_id,
        "job_name": "board.charge",
        "execution_time": "2026-01-01T12:04:00Z",
        "created_at": "2026-01-01T12:00:00Z",
        "status": "failed",
        "attempt": 4,
        "retry_count": 2,
        "max_retries": 2,
        "error_message": "acme.Declined: card of account 113 declined",
        "errors": [entry(1), entry(3), entry(4)],
        "started_at": "2026-01-01T12:04:00Z",
        "finished_at": "2026-01-01T12:04:02Z",
        "worker_id": "0192f0c1-7a52-7cc3-b3a4-5d6f1e0a9b77",
        "task_data": {"args": [], "kwargs": {}},
        "priority": 5,
        "crash_count": 0,
        **columns,
    }
    await pool.execute(INSERT, json.dumps([values]))


async def read_page(app: App, url: str) -> Page:
    answer = await request(app, url)
    assert answer.status == 200, answer.text
    return Page(answer.text)


async def test_cause_of_a_failure_is_stated_once_and_attempts_have_no_holes(
    pool: asyncpg.Pool, app: App
) -> None:
    await insert_failed(pool)
    page = await read_page(app, "/job?id=pay:1")
    words = " ".join(page.text.split())
    assert "Failed for good: all 3 attempts raised Declined" in words
    assert words.count("same error as attempt 3") == 2
    assert [attrs["data-key"] for attrs in page.all("details") if attrs.get("class") == "attempt"] == [
        "attempt-4",
        "attempt-3",
        "attempt-1",
    ]
    assert [
        attrs.get("open", "closed") for attrs in page.all("details") if attrs.get("class") == "attempt"
    ] == [
        None,
        "closed",
        "closed",
    ]
    assert "attempt 4 of" not in words.lower()
    assert "2 of 2 used" in words
    assert "It waited for a limit before." in words


async def test_traceback_has_its_own_frames_and_folds_those_of_libraries(
    pool: asyncpg.Pool, app: App
) -> None:
    await insert_failed(pool, errors=[entry(1)], attempt=1)
    page = await read_page(app, "/job?id=pay:1")
    assert "1 frame of httpx" in page.text
    assert {"k", "nf"} <= {name for attrs in page.all("span") for name in (attrs.get("class") or "").split()}
    assert TRACEBACK in page.text, "as it is, to be copied"
    assert len([attrs for attrs in page.all("div") if attrs.get("class") == "own"]) == 1


async def test_job_that_postponed_itself_has_the_state_of_the_list_on_its_page(
    pool: asyncpg.Pool, app: App
) -> None:
    changes: dict[str, Any] = dict.fromkeys(("started_at", "finished_at", "worker_id", "error_message"))
    changes |= {"status": "pending", "retry_count": 0, "errors": [entry(1, outcome="snoozed")]}
    await insert_failed(pool, execution_time="2100-01-01T00:00:00Z", **changes)
    (listed,) = (await request(app, "/jobs", headers=JSON)).data["items"]
    page = await read_page(app, "/job?id=pay:1")
    assert listed["state"] == "scheduled"
    assert "Scheduled: board.charge" in page.text


async def test_retry_that_is_next_does_not_count_as_used(pool: asyncpg.Pool, app: App) -> None:
    changes: dict[str, Any] = dict.fromkeys(("started_at", "finished_at", "worker_id"))
    changes |= {"status": "pending", "retry_count": 1, "max_retries": 5, "errors": [entry(1)], "attempt": 1}
    await insert_failed(pool, execution_time="2100-01-01T00:00:00Z", **changes)
    words = " ".join((await read_page(app, "/job?id=pay:1")).text.split())
    assert "Waits for retry 1 of 5, in " in words
    assert "Retries1 of 5 is next" in words
    assert "Ahead: 4 retries left after it" in words
    assert "of 5 used" not in words


async def test_quarantine_is_stated_once(pool: asyncpg.Pool, app: App) -> None:
    await insert_failed(pool, error_message=quarantine_error(3), crash_count=3, errors=[])
    page = await read_page(app, "/job?id=pay:1")
    words = " ".join(page.text.split())
    assert "Quarantined: 3 workers died while they ran this job" in words
    assert words.count("Quarantined: ") == 2, "in the title of the page, and in that of the cause"
    assert "Read the logs of its workers and correct the function before you retry it" in words
    assert "retry_job()" not in words
    assert "no arguments" in words


@pytest.mark.parametrize(
    "columns", [{"error_message": quarantine_error(1)}, {"error_message": "E.", "status": "expired"}]
)
async def test_no_sentence_ends_with_two_full_stops(
    columns: dict[str, Any], pool: asyncpg.Pool, app: App
) -> None:
    await insert_failed(pool, **columns)
    page = await read_page(app, "/job?id=pay:1")
    assert ".." not in page.text
    assert ".," not in page.text


async def test_other_jobs_with_the_same_error_are_counted(
    pool: asyncpg.Pool, build: Callable[..., App]
) -> None:
    ended = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
    for number in range(3):
        error = f"acme.Declined: card of account {number} declined"
        await insert_failed(pool, f"pay:{number}", finished_at=ended, error_message=error)
    await insert_failed(pool, "other", job_name="payroll.run", finished_at=ended)
    await count_errors(pool)
    app = build(authorize=lambda _: Access("bob", names=("board.*",)))
    page = await read_page(app, "/job?id=pay:1")
    assert "2 other failures of this task with the same error" in page.text
    data = (await request(app, "/job?id=pay:1", headers=JSON)).data
    assert data["siblings"]["count"] == 3
    assert f"/error?id={data['siblings']['fingerprint']}" in page.links()


async def test_running_job_shows_progress_how_long_it_takes_and_the_name_of_its_worker(
    pool: asyncpg.Pool, world: World, app: App
) -> None:
    worker_id = "0192f0c1-7a52-7cc3-b3a4-5d6f1e0a9b77"
    await world.worker(worker_id, names=["board.charge"], identity="node-7")
    since = datetime.now(UTC) - timedelta(minutes=10)
    await insert_failed(
        pool,
        status="running",
        error_message=None,
        errors=[],
        attempt=1,
        retry_count=0,
        started_at=since.isoformat(),
        execution_time=since.isoformat(),
        finished_at=None,
        lease_until=(datetime.now(UTC) + timedelta(minutes=1)).isoformat(),
        progress={"done": 1, "total": 4, "note": "quarter"},
    )
    for number, minutes in enumerate((20, 30, 40)):
        begin = since - timedelta(hours=number + 2)
        await insert_failed(
            pool,
            f"before:{number}",
            status="completed",
            errors=[],
            error_message=None,
            started_at=begin.isoformat(),
            finished_at=(begin + timedelta(minutes=minutes)).isoformat(),
        )
    page = await read_page(app, "/job?id=pay:1")
    words = " ".join(page.text.split())
    assert re.search(r"Started \d+ min ago on node-7 25 % 25 % ?quarter · at this rate", words)
    assert "Runbook: RUNNING" not in words
    assert re.search(r"at this rate it ends in (29|30|31) min", words)
    assert "node-7" in words
    assert worker_id not in words
    assert not [attrs for attrs in page.all("a") if "after" in (attrs.get("aria-label") or "")], (
        "no index has the ends of completed jobs, so no list can have the last ones"
    )


@pytest.mark.parametrize(
    ("runs_for", "done", "left"),
    [(27, 9, timedelta(seconds=3)), (200, 5, timedelta(seconds=200))],
)
async def test_estimate_of_the_end_is_as_exact_as_it_is_near(
    world: World, app: App, runs_for: int, done: int, left: timedelta
) -> None:
    """It was rounded up to a minute, so a job with 3 s left was said to be done in up to 60 s."""
    progress = {"done": done, "total": 10}
    await world.job("run", status="running", started=-timedelta(seconds=runs_for), progress=progress)
    now = datetime.now(UTC)
    attrs, *_ = [
        attrs
        for attrs in (await read_page(app, "/job?id=run")).all("time")
        if "data-until" in attrs and datetime.fromisoformat(str(attrs["datetime"])) < now + timedelta(hours=1)
    ]
    end = datetime.fromisoformat(str(attrs["datetime"]))
    if left < timedelta(minutes=2):
        assert timedelta() < end - now < left + timedelta(seconds=2)
    else:
        assert (end.microsecond, end.second % 15) == (0, 0)
        assert left - timedelta(seconds=20) < end - now < left + timedelta(seconds=20)


async def test_slow_job_states_when_it_times_out(world: World, app: App) -> None:
    await world.attempts("embed", 50, at=-HOUR, took_s=0.05)
    for job_id, age in (("slow", 12 * MINUTE), ("fresh", timedelta())):
        await world.job(job_id, "embed", status="running", started=-age, timeout_seconds=1200)
        html = (await request(app, f"/job?id={job_id}")).text
        assert ('<span class="warn-text">times out' in html) == (job_id == "slow")
    text = " ".join((await read_page(app, "/job?id=slow")).text.split())
    assert "times out in 8 min" in text
    assert "usually" in text
    assert "Timeline" not in text, "one bar states nothing more"


async def test_dependencies_are_links_in_both_directions(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await add(scheduler, "board.load", job_id="load")
    await add(scheduler, "payroll.run", job_id="pay")
    await add(scheduler, "board.join", job_id="join", after=["load", "pay"])
    await add(scheduler, "board.report", job_id="report", after=["join"])
    page = await read_page(build(), "/job?id=join")
    assert {"/job?id=load", "/job?id=pay", "/job?id=report"} <= set(page.links())
    assert "Waits for 2 other jobs" in page.text
    assert "jobs that have ended are not shown" in page.text
    assert "Waits for board.join" in (await read_page(build(), "/job?id=report")).text
    assert "/job?id=join" in (await read_page(build(), "/job?id=load")).links()
    restricted = build(authorize=lambda _: Access("bob", names=("board.*",)))
    for headers in ({}, JSON):
        answer = await request(restricted, "/job?id=join", headers=headers)
        assert "payroll" not in answer.text
        assert "/job?id=pay" not in answer.text
    page = await read_page(restricted, "/job?id=join")
    assert "Waits for other jobs" in page.text
    assert {"/job?id=load", "/job?id=report"} <= set(page.links())
    assert "and other jobs" in page.text


async def test_buttons_are_those_that_can_succeed(scheduler: Scheduler, build: Callable[..., App]) -> None:
    admin = as_role(build, "admin")
    await add(scheduler, job_id="late", due=datetime.now(UTC) - timedelta(hours=1), misfire_grace_time=None)
    await add(scheduler, job_id="first")
    await add(scheduler, job_id="second", after=["first"])
    assert buttons((await request(admin, "/job?id=late")).text) == {"cancel", "move", "delete"}
    assert buttons((await request(admin, "/job?id=first")).text) == {"cancel", "run", "move"}
    assert (await send(admin, "/actions/jobs/delete?id=first", {"confirm": "yes"})).status == 303
    assert await scheduler.get_job("first") is not None, "a job waits for it"
    (primary,) = [
        attrs["id"]
        for attrs in (await read_page(admin, "/job?id=first")).all("button")
        if "primary" in (attrs.get("class") or "")
    ]
    assert primary == "run"


async def test_large_arguments_are_cut_on_the_page_and_whole_behind_a_link(
    scheduler: Scheduler, app: App
) -> None:
    rows = [{"number": number, "text": "x" * 80} for number in range(2_000)]
    await add(scheduler, job_id="large", kwargs={"rows": rows})
    answer = await request(app, "/job?id=large")
    assert len(answer.body) < 120_000
    page = Page(answer.text)
    assert "Show all" in page.text
    link = "/value?id=large&part=arguments"
    assert link in page.links()
    assert json.loads((await request(app, link)).text) == {"rows": rows}


async def test_values_are_raw_json_for_those_who_may_see_them(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await add(scheduler, job_id="login", kwargs={"to": "ada", "token": SECRET}, metadata={"tags": ["x"]})
    app = build(redact=["token"])
    for part, expected in (("arguments", {"to": "ada", "token": "[hidden]"}), ("metadata", {"tags": ["x"]})):
        answer = await request(app, f"/value?id=login&part={part}")
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.text) == expected
        assert (await request(app, f"/value?id=login&part={part}", method="HEAD")).body == b""
    for url in ("/value?id=login&part=result", "/value?id=login&part=x", "/value?id=none&part=metadata"):
        assert (await request(app, url)).status == 404
    assert (await request(app, "/value?id=login")).status == 400
    for access in (Access("bob", sees_arguments=False), Access("bob", names=("billing.*",))):
        closed = build(authorize=lambda _, access=access: access)
        assert (await request(closed, "/value?id=login&part=arguments")).status == 404


async def test_limits_of_the_task_show_their_use(pool: asyncpg.Pool, world: World, app: App) -> None:
    limits = declare("stripe", "board.charge", max_running=6)
    await world.worker(settings={"limits": limits})
    await insert(world, "waiting", "board.charge")
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:stripe:'")
    page = await read_page(app, "/job?id=waiting")
    assert "Waits for the limit “stripe”" in page.text
    assert "0 / 6" in page.text
    assert page.links().count("/limit?name=stripe") >= 2


async def test_cause_of_a_failure_counts_all_attempts_if_their_errors_have_no_class(
    pool: asyncpg.Pool, app: App
) -> None:
    texts = {claim: f"card declined, code {claim}" for claim in (1, 3, 4)}
    errors = [entry(claim, error_type=None, message=text) for claim, text in texts.items()]
    await insert_failed(pool, error_message=texts[4], errors=errors)
    words = " ".join((await read_page(app, "/job?id=pay:1")).text.split())
    assert "Failed for good: all 3 attempts failed" in words


async def test_cause_of_a_failure_names_the_class_of_the_last_attempt_if_others_raised_another_one(
    pool: asyncpg.Pool, app: App
) -> None:
    await insert_failed(pool, errors=[entry(1, error_type="acme.Busy"), entry(3), entry(4)])
    words = " ".join((await read_page(app, "/job?id=pay:1")).text.split())
    assert "Failed for good: the last of 3 attempts raised Declined" in words


@pytest.mark.parametrize(("key", "text"), [("", "1 running."), ("7", "For the key '7': 1 running.")])
async def test_cause_of_a_limit_names_it_once_and_states_its_use(
    key: str, text: str, pool: asyncpg.Pool, world: World, app: App
) -> None:
    limits = declare("bank", "board.charge", max_running=1, by_key=bool(key))
    await world.worker(names=["board.charge"], settings={"limits": limits})
    await insert(world, "pay", "board.charge")
    await pool.execute(
        "UPDATE scheduled_jobs SET blocked_on = 'limit:bank:' || $1::text, execution_time = now()", key
    )
    await world.job("run", "board.charge", status="running")
    await world.start(f"limit:bank:{key}", "run")
    words = " ".join((await read_page(app, "/job?id=pay")).text.split())
    assert f"Waits for the limit “bank” {text}" in words
    assert words.count("aits for the limit") == 1


async def test_cancellation_of_a_running_job_asks_first(
    pool: asyncpg.Pool, build: Callable[..., App]
) -> None:
    await insert_failed(
        pool, status="running", finished_at=None, error_message=None, lease_until="2099-01-01Z"
    )
    admin = as_role(build, "admin")
    asked = await send(admin, "/actions/jobs/cancel?id=pay:1")
    assert (asked.status, await status(pool, "pay:1")) == (200, "running")
    assert "Cancel this job?" in Page(asked.text).text
    closed = as_role(build, "admin", names=("payroll.*",))
    assert (await send(closed, "/actions/jobs/cancel?id=pay:1")).status == 404
    answer = await send(admin, "/actions/jobs/cancel?id=pay:1", {"confirm": "yes"})
    assert (answer.status, await status(pool, "pay:1")) == (303, "cancelled")


async def test_page_of_a_job_without_history_or_values_is_shown(pool: asyncpg.Pool, app: App) -> None:
    await insert_failed(pool, errors=None, started_at=None, error_message=None, task_data={})
    page = await read_page(app, "/job?id=pay:1")
    assert "Failed" in page.text
    assert (await request(app, "/job?id=pay:1", headers=JSON)).data["siblings"] is None


async def test_name_of_a_task_may_be_that_of_a_period(pool: asyncpg.Pool, app: App) -> None:
    await insert_failed(pool, "a:1", job_name="1h")
    assert (await request(app, "/tasks?range=1h")).status == 200
    assert (await request(app, "/job?id=a:1")).status == 200


async def test_last_runs_are_those_of_a_schedule(
    pool: asyncpg.Pool, scheduler: Scheduler, world: World, app: App
) -> None:
    fires = await add_nightly(pool, scheduler, "2026-01-01", "2026-01-20")
    ids = [fire_time_job_id("nightly", fire) for fire in fires[-3:]]
    for job_id in ids:
        options = {"schedule_id": "nightly"}
        await world.job(job_id, "strip.mail", status="completed", started=-SECOND, options=options)
    await world.jobs(2, "strip.mail", job_id="single{}".format, status="completed", started=-SECOND)
    for job_id, expected in ((ids[0], ids), ("single1", [])):
        runs = (await request(app, f"/job?id={quote(job_id)}", headers=JSON)).data["last_runs"]["items"]
        assert {run["job_id"] for run in runs} == set(expected)


async def test_batch_of_jobs_does_not_say_that_nobody_changed_them(
    pool: asyncpg.Pool, build: Callable[..., App]
) -> None:
    for number in range(3):
        await insert_failed(pool, f"pay:{number}")
    admin = as_role(build, "admin")
    rows = {"row": [f"pay:{number}" for number in range(3)]}
    assert (await send(admin, "/actions/jobs/retry", rows)).status == 303
    assert await status(pool, "pay:1") == "pending"
    page = await read_page(admin, "/job?id=pay:1")
    assert "Changes of several jobs at once have one record without their ids" in page.text


async def test_job_of_a_paused_task_has_a_button_that_resumes_the_task(
    scheduler: Scheduler, build: Callable[..., App], world: World
) -> None:
    await world.worker(names=["board.mail"])
    await world.job("mail:1", "board.mail", due=-SECOND)
    await scheduler.tasks.pause("board.mail")
    answer = await request(as_role(build, "admin"), "/job?id=mail:1")
    assert "Resume board.mail" in Page(answer.text).text
    assert 'action="/actions/tasks/resume?id=board.mail"' in answer.text
    for_readers = await request(as_role(build, "viewer"), "/job?id=mail:1")
    assert "Its task is paused" in Page(for_readers.text).text
    assert "/actions/tasks/resume" not in for_readers.text
    assert (await send(as_role(build, "admin"), "/actions/tasks/resume?id=board.mail")).status == 303
    assert "Resume board.mail" not in (await request(as_role(build, "admin"), "/job?id=mail:1")).text


async def test_encoded_arguments_are_shown_through_a_scheduler_with_the_codec(pool: asyncpg.Pool) -> None:
    async def mail(to: str) -> None: ...

    with_codec, without = Scheduler(pool, codec=KeyedCodec("k1")), Scheduler(pool)
    later = datetime.now(UTC) + timedelta(hours=1)
    job_id = await with_codec.schedule(mail, execution_time=later, args=("ada@example.org",))
    await with_codec.schedules.add(mail, Every(hours=1), args=("ada@example.org",), schedule_id="s")
    for path in (f"/job?id={job_id}", "/jobs?columns=name,arguments", "/schedule?id=s"):
        decoded_text, encoded_text = [
            (await request(dashboard(scheduler, authorize=read_all), path)).text
            for scheduler in (with_codec, without)
        ]
        assert "ada@example.org" in decoded_text, path
        assert "ada@example.org" not in encoded_text, path
        assert "encrypted with xor, key k1" in encoded_text, path
        assert "encrypted with" not in decoded_text, path
