"""The calendar: fire times by day and hour, clock changes, collisions, bounds."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.pages import calendar
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.calendar import plan_fires
from pg_scheduler.triggers import At, Cron, Every, FixedDelay
from tests.dashboard.client import JSON, App, Page, request
from tests.dashboard.test_hostile import check
from tests.dashboard.test_pages import insert_schedule
from tests.support import inside
from tests.support.hostile_texts import HOSTILE
from tests.support.patience import PATIENCE

WEEK = "/calendar?start=2027-03-22&zone=Europe/Berlin"


def busy(day: dict[str, Any]) -> list[int]:
    """Return the hours of a day in which schedules fire."""
    return [number for number, hour in enumerate(day["hours"]) if hour["count"]]


async def add(scheduler: Scheduler, schedule_id: str, trigger: At | Cron | Every | FixedDelay) -> None:
    await scheduler.schedules.add(f"calendar.{schedule_id[0]}", trigger, schedule_id=schedule_id)


async def test_week_shows_fire_times_by_hour_and_what_a_clock_change_does(
    scheduler: Scheduler, app: App
) -> None:
    await add(scheduler, "nightly", Cron("30 2 * * *", "Europe/Berlin"))
    await add(scheduler, "paused", Cron("0 5 * * *"))
    await scheduler.schedules.pause("paused")
    data = (await request(app, WEEK, headers=JSON)).data
    assert [day["day"] for day in data["days"]] == [f"2027-03-{day}" for day in range(22, 29)]
    assert [day["count"] for day in data["days"]] == [1] * 7
    assert [busy(day) for day in data["days"]] == [[2]] * 6 + [[3]]
    assert data["days"][0]["hours"][2] == {
        "count": 1,
        "names": ["nightly"],
        "others": 0,
        "is_collision": False,
        "owner": "nightly",
        "is_usual": False,
        "times": [],
    }
    assert [day["clock_changes"] for day in data["days"]] == [[]] * 6 + [
        ["nightly: 02:30 does not exist on 2027-03-28 in Europe/Berlin; it fires at 2027-03-28 03:00"]
    ]
    answer = await request(app, WEEK)
    check(answer.text)
    text = Page(answer.text).text
    assert re.findall(
        r'href="[^"]*hour=2\b[^"]*#hour"[^>]*>\s*<span class="clip"><bdi>(\w+)</bdi>', answer.text
    ) == (["nightly"] * 6)
    assert "Sun 03-28 nightly: 02:30 does not exist" in text
    links = [each["href"] for each in Page(answer.text).all("a")]
    day = "/calendar?span=day&start=2027-03-28&zone=Europe%2FBerlin"
    assert links.count(day) == 2, "in the head, and of the clock change"
    assert "7 fire times of 1 schedule" in text
    utc = (await request(app, "/calendar?start=2027-03-22", headers=JSON)).data
    assert [busy(day) for day in utc["days"]] == [[1]] * 7
    # The zone of the calendar has another clock than that of the schedule, so its time is added.
    (change,) = utc["days"][-1]["clock_changes"]
    assert change.endswith("it fires at 2027-03-28 03:00 (01:00 in UTC)")
    assert utc["paused"] == ["paused"]
    assert "1 schedule · paused, without fire times: paused" in text


async def test_next_fire_times_have_their_days(scheduler: Scheduler, app: App) -> None:
    await add(scheduler, "nightly", Cron("30 2 * * *", "Europe/Berlin"))
    data = (await request(app, "/calendar?zone=Europe/Berlin", headers=JSON)).data
    text = " ".join(Page((await request(app, "/calendar?zone=Europe/Berlin")).text).text.split())
    for fire in data["next"]:
        assert fire["local"] in {"02:30", "03:00"}
        assert f"{date.fromisoformat(fire['day']):%a %m-%d} {fire['local']} nightly" in text
    assert len({fire["day"] for fire in data["next"]}) == len(data["next"]) > 1


async def test_hour_of_the_address_lists_its_fire_times(scheduler: Scheduler, app: App) -> None:
    await add(scheduler, "nightly", Cron("30 2 * * *", "Europe/Berlin"))
    page = Page((await request(app, WEEK)).text)
    (cell, *_) = [each for each in page.all("a") if "hour=" in (each.get("href") or "")]
    assert cell["title"] == "nightly"
    (fire,) = (await request(app, (cell["href"] or "").partition("#")[0], headers=JSON)).data["fires"]
    assert (fire["local"], fire["schedule_id"]) == ("02:30", "nightly")
    sunday = "/calendar?span=day&start=2027-03-28&zone=Europe/Berlin&hour="
    (fire,) = (await request(app, f"{sunday}3", headers=JSON)).data["fires"]
    assert (fire["local"], fire["task"]) == ("03:00", "calendar.n")
    assert "No schedule fires in this hour" in (await request(app, f"{sunday}2")).text


async def test_calendar_is_filtered_by_task(scheduler: Scheduler, app: App) -> None:
    await add(scheduler, "nightly", Cron("30 2 * * *"))
    await add(scheduler, "other", Cron("30 4 * * *"))
    data = (await request(app, f"{WEEK}&task=calendar.o", headers=JSON)).data
    assert [day["hours"][6 if number == 6 else 5]["names"] for number, day in enumerate(data["days"])] == [
        ["other"]
    ] * 7
    assert [day["count"] for day in data["days"]] == [1] * 7


async def test_day_lists_the_schedules_of_its_hours(scheduler: Scheduler, app: App) -> None:
    await add(scheduler, "nightly", Cron("30 2 * * *"))
    await add(scheduler, "quarters", Cron("*/20 2 * * *"))
    data = (await request(app, "/calendar?span=day&start=2027-03-25", headers=JSON)).data
    assert [day["day"] for day in data["days"]] == ["2027-03-25"]
    assert (data["before"], data["after"]) == ("2027-03-24", "2027-03-26")
    text = " ".join(Page((await request(app, "/calendar?span=day&start=2027-03-25")).text).text.split())
    assert "02:00, 02:20, 02:40 quarters; 02:30 nightly" in text


async def test_schedules_of_each_hour_are_named_once_and_leave_others_their_names(
    scheduler: Scheduler, app: App
) -> None:
    await add(scheduler, "hourly", Cron("15 * * * *"))
    await add(scheduler, "nightly", Cron("30 2 * * *"))
    data = (await request(app, WEEK, headers=JSON)).data
    assert data["hourly"] == ["hourly"]
    hours = data["days"][0]["hours"]
    assert (hours[0]["is_usual"], hours[0]["count"], hours[0]["owner"]) == (True, 1, "")
    assert [hour["owner"] for hour in hours if not hour["is_usual"]] == ["nightly"]
    answer = await request(app, WEEK)
    assert "every hour, a dot below: hourly" in " ".join(Page(answer.text).text.split())
    month = (await request(app, f"{WEEK}&span=month", headers=JSON)).data
    assert month["hourly"] == []


async def test_week_begins_today_and_keeps_its_days_when_an_hour_is_chosen(
    scheduler: Scheduler, app: App
) -> None:
    await add(scheduler, "nightly", Cron("30 2 * * *"))
    data = (await request(app, "/calendar", headers=JSON)).data
    assert (data["days"][0]["day"], len(data["days"])) == (data["today"], 7)
    page = Page((await request(app, "/calendar")).text)
    last = [link for link in page.links() if "hour=" in link][-1].partition("#")[0]
    chosen = (await request(app, last, headers=JSON)).data
    assert chosen["days"] == data["days"]
    assert (chosen["day"], chosen["fires"][0]["schedule_id"]) == (data["days"][-1]["day"], "nightly")
    assert (await request(app, "/calendar?day=2027-13-01")).status == 400


async def test_event_loop_turns_while_the_page_is_made(
    scheduler: Scheduler, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(scheduler, "nightly", Cron("30 2 * * *"))
    loop, make_days = asyncio.get_running_loop(), calendar._days

    def days(*arguments: Any) -> Any:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(PATIENCE), "the event loop is blocked"
        return make_days(*arguments)

    monkeypatch.setattr(calendar, "_days", days)
    assert len((await request(app, WEEK, headers=JSON)).data["days"]) == 7


async def test_month_has_whole_weeks_and_leads_to_its_days(scheduler: Scheduler, app: App) -> None:
    await add(scheduler, "nightly", Cron("30 2 * * *", "Europe/Berlin"))
    url = "/calendar?span=month&start=2027-10-15&zone=Europe/Berlin"
    data = (await request(app, url, headers=JSON)).data
    days = [day["day"] for day in data["days"]]
    assert (days[0], days[-1], len(days)) == ("2027-09-27", "2027-10-31", 35)
    assert (data["before"], data["after"]) == ("2027-09-30", "2027-11-01")
    assert "occurs twice on 2027-10-31" in data["days"][-1]["clock_changes"][0]
    page = Page((await request(app, url)).text)
    (day,) = {each for each in page.links() if "span=day" in each and "2027-10-31" in each}
    assert [each["day"] for each in (await request(app, day, headers=JSON)).data["days"]] == ["2027-10-31"]


async def test_minutes_in_which_many_schedules_fire_are_collisions(scheduler: Scheduler, app: App) -> None:
    for number in range(6):
        await add(scheduler, f"c{number}", Cron("0 9 * * mon"))
    await add(scheduler, "other", Cron("0 10 * * *"))
    (found,) = (await request(app, WEEK, headers=JSON)).data["collisions"]
    assert (found["local"], found["count"]) == ("Mon 2027-03-22 10:00", 6)
    assert found["schedules"] == ["c0", "c1", "c2", "c3", "c4"]
    hours = (await request(app, WEEK, headers=JSON)).data["days"][0]["hours"]
    assert [number for number, hour in enumerate(hours) if hour["is_collision"]] == [10]
    assert "Collisions" in Page((await request(app, WEEK)).text).text


async def test_frequent_schedules_are_named_and_not_listed(scheduler: Scheduler, app: App) -> None:
    await add(scheduler, "often", Every(timedelta(seconds=1)))
    await add(scheduler, "hourly", Cron("0 * * * *", "Europe/Berlin"))
    data = (await request(app, WEEK, headers=JSON)).data
    assert data["frequent"] == {"often": "every second"}
    assert data["summary"] == (
        "167 fire times of 1 schedule; 1 schedule too frequent to be listed (more than 48 times in 24 h)"
    )


async def test_schedule_is_frequent_in_a_day_a_week_and_a_month_alike(
    pool: asyncpg.Pool, scheduler: Scheduler
) -> None:
    for name, minutes in (("half", 30), ("twenty", 20)):
        await add(scheduler, name, Every(timedelta(minutes=minutes)))
    schedules, since = await Inspector(pool).schedules(), datetime(2099, 1, 1, tzinfo=UTC)
    for days in (1, 7, 42):
        half, twenty = (await plan_fires(schedules, since, since + timedelta(days=days))).items
        assert (half.is_frequent, len(half.fires)) == (False, 48 * days), days
        assert twenty.is_frequent, days


async def test_fire_times_that_follow_the_ends_of_jobs_are_not_computed(
    scheduler: Scheduler, app: App
) -> None:
    await add(scheduler, "delay", FixedDelay(timedelta(hours=1)))
    data = (await request(app, WEEK, headers=JSON)).data
    assert data["problems"] == {
        "delay": "its fire times depend on when its jobs end: 1 hour after the previous job ended"
    }
    assert data["summary"] == "0 fire times of 0 schedules"


async def test_cell_names_a_schedule_that_fires_in_few_hours_and_no_hourly_one(
    scheduler: Scheduler, app: App
) -> None:
    await add(scheduler, "nightly", Cron("30 2 * * *", "Europe/Berlin"))
    html = (await request(app, WEEK)).text
    assert "<bdi>nightly</bdi>" in html
    await add(scheduler, "hourly", Cron("0 * * * *"))
    app_later = await request(app, f"{WEEK}&task=calendar.h")
    assert not re.findall(r'#hour"[^>]*>\s*<span class="clip">', app_later.text)
    assert "Today" in Page(app_later.text).text


async def test_calendar_lists_the_next_fire_times_of_the_present_period(
    scheduler: Scheduler, app: App
) -> None:
    await add(scheduler, "hourly", Cron("0 * * * *"))
    data = (await request(app, "/calendar?span=day", headers=JSON)).data
    assert all(fire["at"] >= data["days"][0]["day"] for fire in data["next"])
    assert (await request(app, WEEK, headers=JSON)).data["next"] == []


async def test_calendar_leaves_out_what_exceeds_its_bounds(
    pool: asyncpg.Pool, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await add(scheduler, f"s{number}", Cron("0 * * * *"))
    schedules = await Inspector(pool).schedules()
    since = datetime(2027, 1, 1, tzinfo=UTC)
    plan = await plan_fires(schedules, since, since + timedelta(days=7))
    assert [len(item.fires) for item in plan.items] == [168] * 3
    inside.replace(monkeypatch, calendar_fires=200)
    plan = await plan_fires(schedules, since, since + timedelta(days=7))
    assert (len(plan.items), plan.left_out) == (2, 1)
    inside.replace(monkeypatch, calendar_seconds=-1.0)
    assert (await plan_fires(schedules, since, since + timedelta(days=7))).left_out == 3


async def test_calendar_has_no_more_fire_times_of_a_schedule_than_its_remaining_runs(
    pool: asyncpg.Pool, scheduler: Scheduler
) -> None:
    await scheduler.schedules.add("calendar.r", Cron("0 * * * *"), schedule_id="runs", max_runs=30)
    since = datetime(2027, 1, 1, tzinfo=UTC)
    (item,) = (await plan_fires(await Inspector(pool).schedules(), since, since + timedelta(days=7))).items
    assert len(item.fires) == 30


async def test_calendar_has_the_fire_times_after_a_pause_that_ends_by_itself(
    pool: asyncpg.Pool, scheduler: Scheduler
) -> None:
    since = datetime(2099, 1, 5, tzinfo=UTC)
    for number, until in enumerate((None, since + timedelta(hours=3), since + timedelta(days=9))):
        await add(scheduler, f"p{number}", Cron("0 * * * *"))
        await scheduler.schedules.pause(f"p{number}", until=until)
    near, far = (await plan_fires(await Inspector(pool).schedules(), since, since + timedelta(hours=5))).items
    assert near.fires == [since + timedelta(hours=3), since + timedelta(hours=4)]
    assert (far.schedule_id, far.fires) == ("p2", [])


async def test_fire_times_respect_the_end_and_rare_triggers_cost_little(
    pool: asyncpg.Pool, scheduler: Scheduler
) -> None:
    at = datetime(2027, 3, 24, 12, tzinfo=UTC)
    await add(scheduler, "once", At(at))
    await scheduler.schedules.add("calendar.e", Cron("0 0 * * *"), schedule_id="ends", end=at)
    schedules = await Inspector(pool).schedules()
    ends, once = (await plan_fires(schedules, at - timedelta(days=2), at + timedelta(days=9))).items
    assert once.fires == [at]
    assert len(ends.fires) == 2


async def test_calendar_begins_when_a_schedule_was_added_and_marks_past_hours(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App
) -> None:
    since = datetime(2024, 1, 1, tzinfo=UTC)
    await add(scheduler, "hourly", Cron("0 * * * *"))
    await pool.execute("UPDATE scheduler_schedules SET created_at = $1", since + timedelta(hours=3))
    (item,) = (await plan_fires(await Inspector(pool).schedules(), since, since + timedelta(hours=5))).items
    assert item.fires == [since + timedelta(hours=3), since + timedelta(hours=4)]
    past = Page((await request(app, "/calendar?start=2024-01-01")).text)
    assert "grey is past" in past.text
    cells = [str(each.get("class")).split() for each in past.all("td")]
    assert all("past" in each for each in cells)
    coming = Page((await request(app, "/calendar?start=2099-01-01")).text)
    assert "grey is past" not in coming.text
    assert not any("past" in str(each.get("class")).split() for each in coming.all("td"))


@pytest.mark.parametrize(
    "query",
    [
        "zone=Mars/Base",
        "zone=../etc/passwd",
        "span=year",
        "start=1-1",
        "start=9999-12-31",
        "start=x" * 9,
        "hour=24",
    ],
)
async def test_invalid_parameters_are_rejected(query: str, app: App) -> None:
    answer = await request(app, f"/calendar?{query}")
    assert answer.status == 400
    check(answer.text)


async def test_restricted_requests_see_fire_times_of_their_names(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    for name in ("billing", "payroll"):
        for number in range(5):
            await scheduler.schedules.add(name, Cron("0 9 * * *"), schedule_id=f"{name}-{number}")
        await scheduler.schedules.add(name, Every(timedelta(seconds=1)), schedule_id=f"{name}-often")
    app = build(authorize=lambda _: Access("bob", names=("billing",)))
    for headers in ({}, JSON):
        answer = await request(app, WEEK, headers=headers)
        assert "payroll" not in answer.text
        assert "billing-0" in answer.text
    assert (await request(app, WEEK, headers=JSON)).data["collisions"][0]["count"] == 5


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_schedules_are_shown_as_text(text: str, pool: asyncpg.Pool, app: App) -> None:
    await insert_schedule(pool, text)
    await pool.execute("UPDATE scheduler_schedules SET paused_at = NULL")
    check((await request(app, "/calendar?span=month")).text)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    answer = await request(app, f"/calendar?span=day&start={tomorrow}&hour=12")
    assert answer.status == 200
    check(answer.text)
    assert any("/schedule?id=" in each for each in Page(answer.text).links())
