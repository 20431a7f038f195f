"""The page of a schedule: clock changes, its last results, and how it was changed."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar
from urllib.parse import quote, urlencode

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.pages.schedule_form import preview
from pg_scheduler.dashboard.pages.schedules import ShownSchedule
from pg_scheduler.triggers import Cron, Every, Trigger, trigger_kind
from tests.dashboard.client import JSON, App, Page, request, send
from tests.dashboard.test_actions import as_role
from tests.dashboard.test_hostile import check
from tests.support import inside
from tests.support.hostile_texts import HOSTILE
from tests.support.inside import fire_time_job_id
from tests.support.patience import PATIENCE
from tests.support.world import World

SECRET = "hunter2-secret"
URL = "/schedule?id=nightly"


async def add_nightly(pool: asyncpg.Pool, scheduler: Scheduler, first: str, last: str) -> list[datetime]:
    """Add a schedule that fires at 02:30 in Berlin; return its fire times between two instants."""
    trigger = Cron("30 2 * * *", "Europe/Berlin")
    await scheduler.schedules.add("strip.mail", trigger, schedule_id="nightly", kwargs={"token": SECRET})
    since, until = (datetime.fromisoformat(f"{day}T00:00+00:00") for day in (first, last))
    await pool.execute(
        "UPDATE scheduler_schedules SET created_at = $1, last_fire_at = $2, next_fire_at = $3",
        since,
        trigger.upcoming(1, after=until - timedelta(days=1))[0],
        trigger.upcoming(1, after=until)[0],
    )
    return [fire for fire in trigger.upcoming(500, after=since) if fire < until]


async def insert_job(world: World, job_id: str, status: str, name: str = "strip.mail") -> None:
    await world.job(job_id, name, status=status)


@trigger_kind("tests.dashboard.hostile")
@dataclass(frozen=True)
class Hostile(Trigger):
    """Exits the process or hangs, when the test permits it."""

    exits: bool
    is_armed: ClassVar[threading.Event] = threading.Event()
    may_return: ClassVar[threading.Event] = threading.Event()

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        if self.is_armed.is_set():
            if self.exits:
                sys.exit(3)
            self.may_return.wait(PATIENCE)
        return instant + timedelta(hours=1)


@pytest.mark.parametrize("exits", [True, False], ids=["exits", "hangs"])
async def test_pages_are_answered_when_a_trigger_of_the_application_exits_or_hangs(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App, exits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_nightly(pool, scheduler, "2027-03-25", "2027-04-01")
    await scheduler.schedules.add("strip.mail", Hostile(exits), schedule_id="hostile")
    await pool.execute("UPDATE scheduler_schedules SET last_fire_at = next_fire_at")
    inside.replace(monkeypatch, fire_time_search_wait_s=0.01)
    Hostile.may_return.clear()
    Hostile.is_armed.set()
    try:
        reason = "raised SystemExit: 3" if exits else "has not returned"
        page = await request(app, "/schedule?id=hostile", headers=JSON)
        assert reason in page.data["problem"]
        week = await request(app, "/calendar?start=2027-03-25", headers=JSON)
        assert reason in week.data["problems"]["hostile"]
        assert week.data["days"][4]["count"] == 1, "the other schedule"
        items = (await request(app, "/schedules", headers=JSON)).data["items"]
        assert {item["schedule_id"]: bool(item["results"]) for item in items} == {
            "hostile": False,
            "nightly": True,
        }
        with pytest.raises(ValueError, match=reason):
            await preview(Hostile(exits), datetime.now(UTC))
    finally:
        Hostile.is_armed.clear()
        Hostile.may_return.set()


async def test_fire_times_state_what_clock_changes_do_to_them(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App, build: Callable[..., App]
) -> None:
    await add_nightly(pool, scheduler, "2027-01-01", "2027-03-20")
    fires = (await request(app, URL, headers=JSON)).data["fire_times"]
    marked = {fire["local"]: fire["clock_change"] for fire in fires if fire["clock_change"]}
    assert marked == {
        "Sun 2027-03-28 03:00:00 CEST": (
            "02:30 does not exist on 2027-03-28 in Europe/Berlin; it fires at 2027-03-28 03:00"
        )
    }
    page = Page((await request(app, URL)).text)
    assert "02:30 does not exist on 2027-03-28" in page.text
    # It last fired at this time by the clock of its own zone, which is neither UTC nor that of the machine.
    assert "Fri 2027-03-19 02:30:00 CET" in page.text
    pause = "/schedule-pause?id=nightly&until=2027-04-01T00:00"
    marks = [fire["clock_change"] for fire in (await request(app, pause, headers=JSON)).data["affected"]]
    assert len(list(filter(None, marks))) == 1, "a fire time of the pause is moved too"
    operator = build(authorize=lambda _: Access("ada", "operator"))
    assert "02:30 does not exist on 2027-03-28" in Page((await request(operator, pause)).text).text


def test_next_fire_time_has_the_zone_and_seconds_if_it_is_near() -> None:
    noon = datetime(2027, 7, 1, 12, tzinfo=UTC)

    def next_local(wait: timedelta) -> str | None:
        schedule = ShownSchedule.__new__(ShownSchedule)
        object.__setattr__(schedule, "zone", "Europe/Berlin")
        object.__setattr__(schedule, "next_fire_at", noon + wait)
        return schedule.next_local(noon)

    assert next_local(timedelta(seconds=20)) == "14:00:20 CEST"
    assert next_local(timedelta(minutes=-2)) == "13:58:00 CEST"
    assert next_local(timedelta(hours=22)) == "Fri 12:00 CEST"
    for days in (7, -7):
        assert next_local(timedelta(days=days)) == f"2027-{noon + timedelta(days=days):%m-%d} 14:00 CEST"


async def test_list_shows_the_last_20_results_of_each_schedule(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App, build: Callable[..., App]
) -> None:
    fires = await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    await insert_job(world, fire_time_job_id("nightly", fires[-1]), "failed")
    await insert_job(world, fire_time_job_id("nightly", fires[-3]), "completed", "strip.hidden")
    (schedule,) = (await request(app, "/schedules", headers=JSON)).data["items"]
    statuses = [each["status"] for each in schedule["results"]]
    assert statuses == ["failed", None, "completed", *[None] * 17]
    page = (await request(app, "/schedules")).text
    assert 'aria-label="Last results of nightly, the oldest first: no job, ' in page
    assert (page.count('<rect class="failed"'), page.count('<rect class="completed"')) == (1, 1)
    assert page.count('<rect class="gap"') == 18
    limited = build(authorize=lambda _: Access("ada", names=("strip.mail",)))
    (schedule,) = (await request(limited, "/schedules", headers=JSON)).data["items"]
    assert [each["status"] for each in schedule["results"]] == ["failed", *[None] * 18]


async def test_list_of_many_schedules_reads_500_jobs_at_most(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, history_search_s=60.0)
    inside.replace(monkeypatch, schedules_page=100)
    await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    for count, each in ((25, 20), (30, 16), (100, 5)):
        await pool.execute(
            "INSERT INTO scheduler_schedules SELECT (jsonb_populate_record(one,"
            " jsonb_build_object('schedule_id', 'copy-' || n))).* FROM scheduler_schedules AS one,"
            " generate_series(2, $1) AS n WHERE schedule_id = 'nightly' ON CONFLICT DO NOTHING",
            count,
        )
        items = (await request(app, "/schedules", headers=JSON)).data["items"]
        assert [len(schedule["results"]) for schedule in items] == [each] * count


async def test_page_of_a_job_shows_the_results_of_its_schedule(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App, build: Callable[..., App]
) -> None:
    fires = await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    for fire in fires[-2:]:
        await insert_job(world, fire_time_job_id("nightly", fire), "completed")
    await pool.execute("""UPDATE scheduled_jobs SET options = '{"schedule_id": "nightly"}'""")
    url = f"/job?id={quote(fire_time_job_id('nightly', fires[-1]))}"
    data = (await request(app, url, headers=JSON)).data
    assert [each["status"] for each in data["schedule_results"]] == ["completed"] * 2 + [None] * 18
    assert 'aria-label="Last results of the schedule, the newest first"' in (await request(app, url)).text
    await pool.execute("UPDATE scheduler_schedules SET task = 'strip.hidden'")
    limited = build(authorize=lambda _: Access("ada", names=("strip.mail",)))
    assert (await request(limited, url, headers=JSON)).data["schedule_results"] == []


async def test_list_shows_no_missing_jobs_before_the_last_change_of_a_trigger(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    fires = await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    await insert_job(world, fire_time_job_id("nightly", fires[-5]), "completed")
    await scheduler.schedules.update("nightly", trigger=Cron("30 2 * * 1-7", "Europe/Berlin"))
    await scheduler.schedules.update("nightly", max_runs=1000)

    async def statuses(changed_at: datetime) -> list[str | None]:
        await pool.execute(
            "UPDATE scheduler_audit SET at = $1 WHERE action = 'update_schedule'"
            " AND id = (SELECT min(id) FROM scheduler_audit WHERE action = 'update_schedule')",
            changed_at,
        )
        (schedule,) = (await request(app, "/schedules", headers=JSON)).data["items"]
        return [each["status"] for each in schedule["results"]]

    assert await statuses(fires[-1] + timedelta(hours=1)) == ["completed"]
    assert await statuses(fires[-2]) == [None, None, "completed"]


async def test_trigger_that_raises_leaves_only_its_results_out(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App
) -> None:
    await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    await scheduler.schedules.add("strip.mail", Every(days=1), schedule_id="other")
    await pool.execute(
        'UPDATE scheduler_schedules SET trigger = \'{"kind": "unknown"}\', last_fire_at = now()'
        " WHERE schedule_id = 'other'"
    )
    found = {
        each["schedule_id"]: each for each in (await request(app, "/schedules", headers=JSON)).data["items"]
    }
    assert (len(found["nightly"]["results"]), found["other"]["results"]) == (20, [])


async def test_strip_shows_the_last_results_of_fire_times_and_requested_jobs(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    fires = await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    for fire, status in zip(fires[-3:], ("completed", "failed", "cancelled"), strict=True):
        await insert_job(world, fire_time_job_id("nightly", fire), status)
    manual = await scheduler.schedules.trigger("nightly")
    data = (await request(app, URL, headers=JSON)).data
    assert [each["status"] for each in data["results"]] == [
        "pending", "cancelled", "failed", "completed", *[None] * 16
    ]  # fmt: skip
    assert data["results"][0]["job_id"] == manual
    assert data["results"][0]["is_manual"] is True
    assert data["results"][1]["at"] == fires[-1].isoformat().replace("+00:00", "Z")
    answer = await request(app, URL)
    check(answer.text)
    links = [each for each in Page(answer.text).all("a") if "failed" in (each.get("aria-label") or "")]
    assert (await request(app, links[0]["href"] or "")).status == 200


@pytest.mark.parametrize("status", ["failed", "expired", "cancelled", "completed"])
async def test_page_shows_the_error_of_the_last_run_unless_it_completed_or_was_cancelled(
    world: World, scheduler: Scheduler, app: App, build: Callable[..., App], status: str
) -> None:
    fires = await add_nightly(world.pool, scheduler, "2026-01-01", "2026-02-20")
    await insert_job(world, fire_time_job_id("nightly", fires[-2]), "failed")
    await insert_job(world, fire_time_job_id("nightly", fires[-1]), status)
    await world.pool.execute("UPDATE scheduled_jobs SET error_message = 'ValueError: no row ' || status")
    await scheduler.schedules.trigger("nightly")  # its job has not ended
    error = f"ValueError: no row {status}" if status in ("failed", "expired") else None
    assert (await request(app, URL, headers=JSON)).data["last_error"] == error
    text = " ".join(Page((await request(app, URL)).text).text.split())
    title = "The last 2 runs failed, the newest" if status == "failed" else f"The last run {status}"
    assert (title in text) == (error is not None)
    assert error is None or error in text
    await world.pool.execute("UPDATE scheduled_jobs SET error_message = 'JobConflictError: job b has it'")
    limited = build(authorize=lambda _: Access("ada", names=("strip.mail",)))
    assert "job b" not in (await request(limited, URL)).text


async def test_strip_shows_fire_times_after_many_requested_jobs(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App
) -> None:
    fires = await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    for _ in range(40):
        await scheduler.schedules.trigger("nightly")
    await pool.execute("UPDATE scheduler_audit SET at = '2026-01-01' WHERE action = 'trigger_schedule'")
    data = (await request(app, URL, headers=JSON)).data
    assert [result["at"] for result in data["results"]] == [
        fire.isoformat().replace("+00:00", "Z") for fire in fires[:-21:-1]
    ]


async def test_strip_shows_jobs_of_the_triggers_before(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    fires = await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    for fire in fires[-2:]:
        await insert_job(world, fire_time_job_id("nightly", fire), "completed")
    await scheduler.schedules.update("nightly", trigger=Every(timedelta(days=400)))
    data = (await request(app, URL, headers=JSON)).data
    assert [each["at"][:10] for each in data["results"]] == ["2026-02-19", "2026-02-18"], (
        "a fire time of another trigger without a job is not sure"
    )


async def test_changes_are_shown_as_differences(
    pool: asyncpg.Pool, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    await scheduler.schedules.update("nightly", trigger=Every(timedelta(hours=1)), kwargs={"token": "other"})
    await scheduler.schedules.pause("nightly", note="too loud")
    paused, updated, added = (await request(build(), URL, headers=JSON)).data["changes"]
    assert paused["record"]["action"] == "pause_schedule"
    assert paused["record"]["details"]["note"] == "too loud"
    assert (added["record"]["action"], added["changes"]) == ("add_schedule", [])
    differences = {each["key"]: (each["before"], each["after"]) for each in updated["changes"]}
    assert differences["described"] == ("at 02:30 every day, Europe/Berlin", "every hour")
    assert SECRET in differences["arguments"][0]
    closed = build(authorize=lambda _: Access("bob", sees_arguments=False))
    redacted = build(redact=["token"])
    for app in (closed, redacted):
        for headers in ({}, JSON):
            answer = await request(app, URL, headers=headers)
            assert SECRET not in answer.text
            assert "every hour" in answer.text


async def test_changes_are_hidden_from_requests_that_see_some_names(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    fires = await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    await insert_job(world, fire_time_job_id("nightly", fires[-1]), "completed", "payroll.run")
    await scheduler.schedules.pause("nightly", note="x")
    data = (await request(build(authorize=lambda _: Access("b", names=("strip.*",))), URL, headers=JSON)).data
    assert data["changes"] is None
    assert {each["status"] for each in data["results"]} == {None}, "a job of a hidden name"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_records_are_shown_as_text(
    text: str, pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    details = [
        {
            "before": {"trigger": {"kind": text}, text: text},
            "after": {"trigger": text, "metadata": {text: text}},
        },
        {"before": text, "after": [text], "job_id": {text: text}, "note": {text: [text]}},
        {"job_id": text},
    ]
    for action in ("update_schedule", "trigger_schedule", text[:60]):
        for detail in details:
            await world.audit(action, "nightly", actor=text, via="api", details=detail)
    answer = await request(app, URL)
    assert answer.status == 200
    check(answer.text)
    json.loads((await request(app, URL, headers=JSON)).body)


async def test_paused_schedule_shows_who_paused_it_and_when_it_would_fire(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App, build: Callable[..., App]
) -> None:
    fires = await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    await scheduler.schedules.pause("nightly", note="ops is on holiday")
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = $1", fires[-3])
    actor = await pool.fetchval("SELECT actor FROM scheduler_audit WHERE action = 'pause_schedule'")
    (row,) = (await request(app, "/schedules", headers=JSON)).data["items"]
    one = (await request(app, URL, headers=JSON)).data
    for found in (row, one):
        assert (found["paused_by"], found["note"]) == (actor, "ops is on holiday")
        assert datetime.fromisoformat(found["after_pause_at"]) > datetime.now(UTC), "not one of the pause"
    assert one["fire_times"][0]["at"] == one["after_pause_at"]
    for url in ("/schedules", URL):
        page = Page((await request(app, url)).text)
        assert "if resumed" in page.text or "if it were resumed" in page.text
        assert page.all("s"), "what it would do is struck through"
        assert f"by {actor}" in page.text
    page = Page((await request(as_role(build, "admin"), URL)).text)
    buttons = {button["id"]: button.get("class") or "" for button in page.all("button") if button.get("id")}
    assert "primary" in buttons["pause-schedule"], "it resumes the schedule"
    assert "primary" not in buttons["trigger"]
    limited = build(authorize=lambda _: Access("bob", names=("strip.*",)))
    for url in ("/schedules", URL):
        for headers in ({}, JSON):
            text = (await request(limited, url, headers=headers)).text
            assert actor not in text, "the audit is hidden"
            assert "ops is on holiday" in text


async def test_overview_lists_no_fire_time_of_a_paused_schedule(scheduler: Scheduler, app: App) -> None:
    await scheduler.schedules.add("strip.mail", Every(timedelta(hours=1)), schedule_id="hourly")
    await scheduler.schedules.add("strip.mail", Every(timedelta(hours=1)), schedule_id="quiet")
    await scheduler.schedules.pause("quiet")
    fires = (await request(app, "/", headers=JSON)).data["next_fires"]
    assert [each["schedule_id"] for each in fires] == ["hourly"]


async def test_retired_schedule_is_marked_and_not_overdue(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App
) -> None:
    await scheduler.schedules.add("mail.send", Every(timedelta(hours=1)), schedule_id="hourly")
    await pool.execute(
        "UPDATE scheduler_schedules SET retired_at = now(), next_fire_at = now() - interval '1 hour'"
    )
    for path in ("/schedules", "/schedule?id=hourly"):
        text = (await request(app, path)).text
        assert ("retired" in text, ">overdue<" in text) == (True, False)
    assert (await request(app, "/", headers=JSON)).data["next_fires"] == []
    assert ">retired<" in (await request(app, "/task?id=mail.send")).text


async def test_schedules_are_filtered_by_the_address(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App, build: Callable[..., App]
) -> None:
    await add_nightly(pool, scheduler, "2027-01-01", "2027-03-20")
    await scheduler.schedules.add("mail.send", Every(timedelta(hours=1)), schedule_id="hourly")
    await scheduler.schedules.pause("hourly")

    async def listed(query: str, app: App = app) -> tuple[list[str], dict[str, int]]:
        data = (await request(app, f"/schedules?{query}", headers=JSON)).data
        return [each["schedule_id"] for each in data["items"]], data["counts"]

    assert await listed("state=paused") == (
        ["hourly"],
        {"all": 2, "active": 1, "failing": 0, "overdue": 0, "paused": 1, "finished": 0, "retired": 0},
    )
    assert (await listed("task=strip.mail"))[0] == ["nightly"]
    assert (await listed("q=HOUR"))[0] == ["hourly"]
    limited = build(authorize=lambda _: Access("bob", names=("strip.*",)))
    assert (await listed("", limited))[1]["all"] == 1, "other names are not counted"
    assert (await request(app, "/schedules?state=late")).status == 400


async def test_pages_to_pause_and_resume_show_the_fire_times_that_they_affect(
    pool: asyncpg.Pool, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    fires = await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    operator = build(authorize=lambda _: Access("ada", "operator"))
    url = "/schedule-pause?id=nightly"
    asked = Page((await request(operator, url)).text)
    assert len(asked.all("s")) == 8, "these get no job"
    assert "one job, for the last of them" in asked.text
    assert [each["action"] for each in asked.all("form") if "/actions/" in (each.get("action") or "")] == [
        "/actions/schedules/pause?id=nightly"
    ]
    await scheduler.schedules.pause("nightly", note="too loud")
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = $1", fires[-3])
    data = (await request(operator, url, headers=JSON)).data
    passed = [each["at"][:16] for each in data["affected"][:3]]
    assert passed == [f"{each:%Y-%m-%dT%H:%M}" for each in fires[-3:]]
    assert (data["args"], data["kwargs"]) == ([], {}), "the page does not need them"
    resumed = Page((await request(operator, url)).text)
    assert {each["value"] for each in resumed.all("input") if each.get("type") == "radio"} == {"now", "pause"}
    assert "too loud" in resumed.text
    viewer = build(authorize=lambda _: Access("eve"))
    assert "You may not pause and resume schedules" in (await request(viewer, url)).text
    limited = build(authorize=lambda _: Access("bob", "operator", names=("billing.*",)))
    assert (await request(limited, url)).status == 404


async def test_schedule_is_paused_until_a_time_and_shown_with_its_end(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    operator = build(authorize=lambda _: Access("ada", "operator"))
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) + timedelta(days=1)
    await scheduler.schedules.add("strip.mail", Cron("0 12 * * *"), schedule_id="noon", start=noon)
    until = noon + timedelta(days=2, hours=1)
    entered = {"note": "moving", "until": f"{until:%Y-%m-%dT%H:%M}", "at_end": "pause"}
    asked = Page((await request(operator, f"/schedule-pause?{urlencode({'id': 'noon', **entered})}")).text)
    assert len(asked.all("s")) == 3
    assert all(f"{noon + timedelta(days=number):%Y-%m-%d} 12:00:00 UTC" in asked.text for number in range(3))
    assert f"{until + timedelta(days=1):%Y-%m-%d}" not in asked.text
    assert {"moving", entered["until"]} <= {each.get("value") for each in asked.all("input")}
    assert (await request(operator, "/schedule-pause?id=noon&until=soon")).status == 400
    past = await send(operator, "/actions/schedules/pause?id=noon", {"until": "2020-01-01T00:00"})
    assert (past.status, "has passed" in past.text) == (400, True)
    await send(operator, "/actions/schedules/pause?id=noon", entered)
    schedule = await scheduler.schedules.get("noon")
    assert schedule is not None
    assert (schedule.paused_until, schedule.keeps_fire_times, schedule.note) == (until, True, "moving")
    for url, words in (
        ("/schedules", "after the pause"),
        ("/schedule?id=noon", "times after the pause"),
    ):
        page = Page((await request(operator, url)).text)
        assert until.isoformat() in {each.get("datetime") for each in page.all("time")}
        assert words in page.text
        assert not page.all("s"), "it will fire then"
    data = (await request(operator, "/schedule?id=noon", headers=JSON)).data
    following = until + timedelta(hours=23)
    assert datetime.fromisoformat(data["after_pause_at"]) == following
    audit = Page((await request(build(), "/audit")).text)
    assert f"paused the schedule noon until {until:%Y-%m-%d %H:%M:%S} UTC: “moving”" in audit.text
    await send(operator, "/actions/schedules/resume?id=noon", {})
    schedule = await scheduler.schedules.get("noon")
    assert schedule is not None
    assert (schedule.paused_at, schedule.paused_until) == (None, None)


async def test_selection_has_the_actions_that_can_succeed_and_keeps_the_filter(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    for schedule_id in ("hourly", "quiet"):
        await scheduler.schedules.add("strip.mail", Every(timedelta(hours=1)), schedule_id=schedule_id)
    await scheduler.schedules.pause("quiet")
    operator = build(authorize=lambda _: Access("ada", "operator"))
    page = Page((await request(operator, "/schedules?task=strip.mail&q=u")).text)
    actions = {each["value"]: each["data-actions"] for each in page.all("input") if each.get("name") == "row"}
    assert actions == {"hourly": "trigger pause", "quiet": "trigger resume"}
    (target,) = [each["formaction"] for each in page.all("button") if each.get("id") == "pause-selected"]
    answer = await send(operator, str(target), {"row": "hourly"})
    assert answer.headers["location"].startswith("/schedules?task=strip.mail&q=u")


async def test_schedules_show_that_their_task_is_paused(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App
) -> None:
    await add_nightly(pool, scheduler, "2026-01-01", "2026-02-20")
    until = datetime.now(UTC) + timedelta(days=1)
    await scheduler.tasks.pause("strip.mail", until=until, note="the bank is closed")
    page = (await request(app, URL)).text
    check(page)
    text = " ".join(Page(page).text.split())
    assert "task paused" in text
    assert "Its task is paused by " in text
    assert f"until {until:%Y-%m-%d %H:%M:%S} UTC: the bank is closed. Its jobs wait." in text
    assert "/task?id=strip.mail" in page
    assert "task paused" in Page((await request(app, "/schedules")).text).text


@pytest.mark.parametrize(
    ("trigger", "number", "is_dense", "has_parts"),
    [
        (Cron("0 * * * *"), 24, False, False),
        (Cron("*/15 * * * *"), 96, False, False),
        (Cron("* * * * *"), 1440, False, True),
        (Every(seconds=10), 1500, True, True),
    ],
)
async def test_line_of_the_day_covers_its_24_hours(
    scheduler: Scheduler, app: App, trigger: Trigger, number: int, *, is_dense: bool, has_parts: bool
) -> None:
    """Ticks ended after 200 fire times, which is 3.3 hours of a schedule that fires every minute."""
    await scheduler.schedules.add("mail.send", trigger, schedule_id="nightly")
    data = (await request(app, URL, headers=JSON)).data
    assert (data["fires_in_day"], data["is_dense"]) == (number, is_dense)
    assert all((tick["end"] is not None) == has_parts for tick in data["ticks"])
    if has_parts and not is_dense:
        assert sum(tick["number"] for tick in data["ticks"]) == number
        assert max(tick["number"] for tick in data["ticks"]) == 15
    page = Page((await request(app, URL)).text)
    if has_parts:  # a line of equally high ticks shows nothing
        assert "fire times in the next 24 hours, evenly" in page.text
        assert "day-line" not in {attrs.get("class") for attrs in page.all("svg")}
        return
    places = [float(str(attrs["x1"]).rstrip("%")) for attrs in page.all("line") if attrs["class"] == "tick"]
    assert places == sorted(places)
    assert 0 <= places[0] < 5
    assert 95 < places[-1] <= 100
    assert f"{number:,}{'+' if is_dense else ''} fire times in the next 24 hours" in page.text
    assert "evenly" not in page.text


async def test_firing_is_no_change_of_a_schedule(pool: asyncpg.Pool, scheduler: Scheduler, app: App) -> None:
    added_at = datetime(2026, 1, 2, tzinfo=UTC)

    async def changed_at() -> str | None:
        shown: str | None = (await request(app, URL, headers=JSON)).data["changed_at"]
        return shown

    await scheduler.schedules.add("mail.send", Cron("* * * * *"), schedule_id="nightly")
    await pool.execute("UPDATE scheduler_schedules SET created_at = $1, updated_at = now()", added_at)
    await scheduler.schedules.trigger("nightly")
    assert await changed_at() == "2026-01-02T00:00:00Z", "neither a firing nor a requested job is a change"
    await scheduler.schedules.pause("nightly", note="later")
    at = await pool.fetchval("SELECT max(at) FROM scheduler_audit WHERE action = 'pause_schedule'")
    assert await changed_at() == at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    await pool.execute("UPDATE scheduler_schedules SET version = 2")
    await pool.execute("DELETE FROM scheduler_audit")
    assert await changed_at() is None, "it was changed, and the record of that is deleted"
