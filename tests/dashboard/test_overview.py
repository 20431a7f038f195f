"""The overview: its sentence, numbers and charts; what requests share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.charts import TONES, Chart, Mark, Series, finished, small_bars, small_line
from pg_scheduler.dashboard.pages.overview_parts import change_since
from pg_scheduler.dashboard.texts import plain
from pg_scheduler.inspect import Inspector, ReadSettings, Severity
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, Page, request
from tests.dashboard.test_hostile import check
from tests.support import inside
from tests.support.cases import each_case
from tests.support.errors import count_since
from tests.support.hostile_texts import HOSTILE
from tests.support.inside import Connections, Histogram, JobFigures, Store, dashboard_files
from tests.support.world import HOUR, MINUTE, SECOND, World

LATE = Histogram((0,) * 20 + (4,) + (0,) * 27, 3.0)
FIGURES = JobFigures(5, 5, (4, 1, 0, 0, 0, 0, 0, 0, 0), LATE, LATE)


async def add_figures(world: World, names: list[str]) -> None:
    await world.worker(names=names)
    assert await Store(Connections(world.pool)).statistics.add("w1", 1, dict.fromkeys(names, FIGURES))


async def test_overview_of_a_fresh_installation_shows_the_next_step(app: App) -> None:
    answer = await request(app, "/")
    assert answer.status == 200
    page = Page(answer.text)
    assert "No worker has started yet" in page.text
    assert "pg-scheduler worker myapp.jobs" in page.text
    classes = {class_name for _, attrs in page.elements for class_name in (attrs.get("class") or "").split()}
    assert classes.isdisjoint({"findings", "tile", "chart", "slot"}), "neither an alarm nor empty charts"
    data = (await request(app, "/", headers=JSON)).data
    assert (data["is_new"], data["workers"], data["due"], data["errors"]) == (True, 0, 0, [])


@pytest.mark.parametrize("columns", [{}, {"blocked_on": "after"}, {"status": "failed"}])
async def test_overview_without_workers_shows_the_problem_once_there_are_jobs(
    columns: dict[str, str], world: World, app: App
) -> None:
    await world.job("1", "a", **columns)
    page = Page((await request(app, "/")).text)
    assert "1 thing needs attention" in page.text
    words = " ".join(page.text.split())
    assert re.search(r"1 thing needs attention ?1 error ?All checks", words)
    assert "No live worker runs jobs" in page.text
    assert any(link.endswith("runbook.html#worker-none") for link in page.links())
    assert any(link.startswith("/doctor#worker-none-") for link in page.links())
    data = (await request(app, "/", headers=JSON)).data
    assert data["sentence"].startswith("WORKER-NONE: no live worker runs jobs; start a worker.")


async def test_overview_states_that_all_is_well(world: World, scheduler: Scheduler, app: App) -> None:
    await add_figures(world, ["board.mail"])
    await scheduler.schedules.add("board.mail", Every(timedelta(hours=1)), schedule_id="hourly")
    answer = await request(app, "/")
    page = Page(answer.text)
    assert "All is well: 1 worker, nothing late" in page.text
    assert "attention" not in page.text
    assert "hourly" in page.text
    charts = (await request(app, "/", headers=JSON)).data["charts"]
    assert [chart["title"] for chart in charts] == [
        "Outcomes per minute",
        "Lateness of starts",
        "Duration of attempts",
    ]
    completed, failed = charts[0]["series"]
    assert (sum(completed["values"]), sum(failed["values"])) == (4, 1)
    assert len(charts[0]["times"]) == 61
    plots = [attrs for attrs in page.all("div") if "data-chart" in attrs]
    assert len(plots) == 3
    assert all(attrs["aria-hidden"] == "true" for attrs in plots), "the sentences and the tables say it"
    for chart_of_page in charts:
        assert f"{chart_of_page['title']}, at " in page.text
    for span in ("6h", "1d", "7d", "30d", "90d"):
        outcomes = (await request(app, f"/?range={span}", headers=JSON)).data["charts"][0]
        assert sum(outcomes["series"][0]["values"]) > 0, span
    assert (await request(app, "/?range=2h")).status == 400
    assert (await request(app, "/?path=x&self=y&page=z")).status == 200


def test_slot_of_a_chart_has_how_often_something_was_and_the_rate() -> None:
    begin, rates = datetime(2026, 1, 1, tzinfo=UTC), [Series("completed", [82 / 30, 1 / 30, 0.0])]
    chart = Chart("a", "Outcomes", "/min", [begin + place * 30 * MINUTE for place in range(3)], rates)
    values = [[("Completed", "82, 2.7/min")], [("Completed", "1, 0.033/min")], [("Completed", "0")]]
    assert [slot.values for slot in chart.slots] == values
    assert [row.values for row in chart.rows()] == [["0"], ["1, 0.033/min"], ["82, 2.7/min"]]
    chart = Chart("a", "Outcomes", "/min", [begin, begin + MINUTE], [Series("completed", [82.0, 1.0])])
    assert [slot.values for slot in chart.slots] == [[("Completed", "82")], [("Completed", "1")]]


def test_axis_of_durations_has_minutes_and_hours_and_a_lonely_value_is_a_dot() -> None:
    begin, durations = datetime(2026, 1, 1, tzinfo=UTC), [Series("p50", [400.0, None, 9.0, 9.0, None])]
    times = [begin + place * MINUTE for place in range(5)]
    chart = Chart("a", "Duration", "s", times, durations, is_log=True)
    assert [tick.label for tick in chart.y_ticks] == [
        "1 ms",
        "10 ms",
        "100 ms",
        "1 s",
        "10 s",
        "60 s",
        "10 min",
    ]
    (line,) = chart.lines
    assert line.dots.startswith("M.5 ")
    assert "M.5 " not in line.path


async def test_charts_state_that_workers_count_nothing(world: World, build: Callable[..., App]) -> None:
    await world.worker("silent", settings='{"statistics": false}')
    text = "The charts lack attempts: statistics are off (statistics=False): silent on host."
    assert text in Page((await request(build(), "/")).text).text
    limited = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for path in ("/", "/tasks"):
        assert f"attempts: {text.partition(': ')[2]}" in Page((await request(build(), path)).text).text
        closed = Page((await request(limited, path)).text).text
        assert "attempts: some workers count nothing." in closed
        assert "silent" not in closed


async def test_table_of_a_chart_has_an_address_of_its_own(world: World, app: App) -> None:
    await add_figures(world, ["board.mail", "board.other"])
    page = Page((await request(app, "/?range=6h")).text)
    assert len(page.all("tr")) < 10, "the overview has no tables of charts"
    tables = {link for link in page.links() if link.startswith("/chart?")}
    assert tables == {f"/chart?id={name}&range=6h" for name in ("outcomes", "lateness", "duration")}
    table = Page((await request(app, "/chart?id=outcomes&range=6h")).text)
    assert len(table.all("tr")) == 1 + 73, "each slot is a row"
    for url, completed in (("/chart?id=outcomes", 8), ("/chart?id=outcomes&name=board.mail", 4)):
        data = (await request(app, url, headers=JSON)).data
        assert sum(data["chart"]["series"][0]["values"]) == completed, url
    for url, status in (("/chart", 400), ("/chart?id=x", 404), ("/chart?id=outcomes&range=2h", 400)):
        assert (await request(app, url)).status == status, url


async def test_restricted_table_has_the_figures_of_visible_names_only(
    world: World, build: Callable[..., App]
) -> None:
    await add_figures(world, ["billing.invoice", "payroll.run"])
    app = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for url in ("/chart?id=outcomes", "/chart?id=outcomes&name=billing.*"):
        data = (await request(app, url, headers=JSON)).data
        assert sum(data["chart"]["series"][0]["values"]) == 4, url
    for name in ("payroll.run", "*", "payroll.*"):
        assert (await request(app, f"/chart?id=outcomes&name={name}")).status == 404, name


async def test_slots_lead_to_the_jobs_that_ended_in_them(
    pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    await add_figures(world, ["board.mail"])
    app = build()
    page = Page((await request(app, "/")).text)
    slots = [attrs for attrs in page.all("a") if (attrs.get("class") or "").startswith("slot")]
    assert len(slots) == 3 * 61
    assert {attrs["tabindex"] for attrs in slots} == {"-1"}, "183 stops would be before the other links"
    (failing,) = {attrs["href"] for attrs in slots[:61] if "failed" in (attrs["href"] or "")}
    at = datetime.fromisoformat((failing or "").partition("finished%3A")[2].replace("%3A", ":"))
    for job_id, status, seconds in (
        ("first", "failed", 0),
        ("last", "failed", 59),
        ("before", "failed", -1),
        ("after", "failed", 60),
        ("other", "completed", 1),
    ):
        await world.job(job_id, "board.mail", status=status, ended=at + seconds * SECOND)
    job_list = (await request(app, failing or "", headers=JSON)).data
    assert {job["job_id"] for job in job_list["items"]} == {"first", "last"}


async def test_charts_have_marks_where_releases_first_started(
    pool: asyncpg.Pool, world: World, app: App
) -> None:
    await add_figures(world, ["board.mail"])
    for release, minutes in (("v1", 90), ("v2", 40), ("v3", 10)):
        await world.audit("start_release", release, at=-minutes * MINUTE, actor="w", via="worker")
    data = (await request(app, "/", headers=JSON)).data
    assert [release["label"] for release in data["releases"]] == ["v3", "v2"], "those of the last hour"
    assert data["charts"][0]["marks"] == data["releases"]
    page = Page((await request(app, "/")).text)
    flags = [attrs["title"] for attrs in page.all("i") if (attrs.get("class") or "").startswith("flag")]
    assert flags == ["v2", "v3"] * 3
    assert len([attrs for attrs in page.all("a") if "released" in (attrs.get("class") or "")]) == 3 * 2


async def test_errors_state_the_release_in_which_they_began(world: World, app: App) -> None:
    for release, minutes in (("v1", 90), ("v2", 40)):
        await world.audit("start_release", release, at=-minutes * MINUTE, actor="w", via="worker")
    for name, minutes in (("old", 60), ("new", 30), ("first", 120)):
        await world.job(name, f"board.{name}", status="failed", ended=-minutes * MINUTE)
        first_release = {"old": "v1", "new": "v2"}.get(name)
        await world.pool.execute(
            "UPDATE scheduler_error_groups SET first_release = $1 WHERE job_name = $2",
            first_release,
            f"board.{name}",
        )
    await count_since(world.pool)
    text = " ".join(Page((await request(app, "/errors")).text).text.split())
    for name, release in (("old", ""), ("new", "new in v2"), ("first", "")):
        row = text.partition(f"board.{name} ")[2].partition("board.")[0]
        assert ("new in" in row) == bool(release), row
        assert release in row


async def test_largest_groups_of_errors_come_first(world: World, app: App) -> None:
    for name, number, minutes in (("few", 1, 5), ("many", 3, 20)):
        for job in range(number):
            await world.job(f"{name}-{job}", f"board.{name}", status="failed", ended=-minutes * MINUTE)
    await count_since(world.pool)
    groups = (await request(app, "/", headers=JSON)).data["errors"]
    assert [(group["job_name"], group["count"]) for group in groups] == [("board.many", 3), ("board.few", 1)]


def test_table_of_a_chart_has_the_share_of_failures_and_what_is_not_complete() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    series = [Series("completed", [90.0, 80.0, 98.0, 0.0]), Series("failed", [0.0, 20.0, 2.0, 0.0])]
    times = [begin + place * MINUTE for place in range(4)]
    marks = [Mark(begin + 70 * SECOND, "v2")]
    chart = Chart("a", "Outcomes", "/min", times, series, marks=marks)
    rows = [(row.label, row.failed_share, row.is_outlier, row.is_open, row.releases) for row in chart.rows()]
    assert rows == [
        ("00:03", None, False, True, []),
        ("00:02", 0.02, False, False, []),
        ("00:01", 0.2, True, False, ["v2"]),
        ("00:00", 0.0, False, False, []),
    ]
    assert not Chart("b", "Lateness", "s", times, [Series("p50", [1.0] * 4)], is_log=True).has_failures


async def test_chart_names_each_outcome_as_it_is_counted(pool: asyncpg.Pool, world: World, app: App) -> None:
    await world.worker(names=["board.mail"])
    figures = JobFigures(5, 5, (0, 0, 0, 0, 0, 3, 0, 2, 0), LATE, LATE)
    assert await Store(Connections(pool)).statistics.add("w1", 1, {"board.mail": figures})
    chart = (await request(app, "/", headers=JSON)).data["charts"][0]
    totals = {series["label"]: sum(series["values"]) for series in chart["series"]}
    assert totals == {"released": 3, "expired": 2}, "without outcomes that did not occur"


async def test_newest_errors_contain_no_cancelled_jobs(world: World, app: App) -> None:
    for status in ("failed", "expired", "cancelled"):
        await world.job(status, f"board.{status}", status=status, error_message=f"{status} by ada")
    errors = (await request(app, "/", headers=JSON)).data["errors"]
    assert {group["example"] for group in errors} == {"failed by ada", "expired by ada"}
    for state in ("failed", "expired"):
        groups = (await request(app, f"/errors?state={state}", headers=JSON)).data["items"]
        assert [group["status"] for group in groups] == [state]


async def test_next_fire_times_name_the_task(scheduler: Scheduler, app: App) -> None:
    await scheduler.schedules.add("board.tick", Every(timedelta(hours=1)), schedule_id="0f3a")
    for url in ("/", "/schedule?id=0f3a"):
        text = Page((await request(app, url)).text).text
        assert "board.tick" in text.partition("Definition")[0], url


async def test_heading_of_the_page_is_not_repeated_in_its_title(
    build: Callable[..., App], world: World
) -> None:
    async def title(app: App, path: str) -> str:
        return (await request(app, path)).text.partition("<title>")[2].partition("</title>")[0]

    assert await title(build(), "/jobs") == "(1) Jobs", "no worker: a finding"
    await world.worker()
    assert await title(build(), "/jobs") == "Jobs"
    assert await title(build(), "/tasks") == "Tasks \N{EN DASH} Jobs"
    assert await title(build(title="Q&A"), "/jobs") == "Jobs \N{EN DASH} Q&amp;A"


async def test_overview_states_what_is_late_and_draws_how_long(
    pool: asyncpg.Pool, world: World, app: App
) -> None:
    await add_figures(world, ["board.mail"])
    for name in ("board.mail", "board.gone"):
        await world.job(name, name, due=-10 * MINUTE)
    data = (await request(app, "/", headers=JSON)).data
    assert data["sentence"].startswith(
        "NAME-UNKNOWN: 1 due job of 'board.gone' not started, the oldest since"
    )
    assert data["sentence"].endswith("There is 1 other problem.")
    assert [problem["code"] for problem in data["problems"]] == ["NAME-UNKNOWN", "LATE"]
    assert all(problem["remedy"] for problem in data["problems"])
    oldest = data["charts"][1]["series"][-1]
    assert oldest["label"] == "oldest waiting"
    ages = [value for value in oldest["values"] if value is not None]
    assert 10 <= len(ages) <= 12
    assert ages == sorted(ages)
    assert 595 < ages[-1] < 700
    assert 'class="l-old open"' in (await request(app, "/")).text


async def test_slots_in_use_are_the_running_jobs_of_the_page(world: World, app: App) -> None:
    await world.worker(max_concurrent_jobs=50, running_jobs=1, names=["board.mail"])  # as of its heartbeat
    await world.jobs(2, "board.mail", status="running")
    data = (await request(app, "/", headers=JSON)).data
    assert (data["slots_busy"], data["running"], data["slots"], len(data["running_jobs"])) == (2, 2, 50, 2)
    (tile,) = [item for item in data["tiles"] if item["label"] == "Slots in use"]
    assert (tile["value"], tile["unit"], tile["note"]) == ("2", "of 50", "4 %")
    assert data["worker_jobs"] == {"w1": 2}
    bars = [attrs for attrs in Page((await request(app, "/")).text).all("progress") if attrs["max"] == "50"]
    assert [attrs["value"] for attrs in bars] == ["2"]


@pytest.mark.parametrize("role", ["scheduler", "observer"])
async def test_workers_whose_role_runs_no_jobs_have_no_slots(
    role: str, pool: asyncpg.Pool, world: World, app: App
) -> None:
    await add_figures(world, ["board.mail"])
    before = (await request(app, "/", headers=JSON)).data
    await world.worker("web", max_concurrent_jobs=25, running_jobs=0, names=[], role=role)
    data = (await request(app, "/", headers=JSON)).data
    assert data["sentence"] == before["sentence"] == "All is well: 1 worker, nothing late."
    assert data["slots"] == before["slots"]
    assert (await request(app, "/workers", headers=JSON)).data["summary"] == "2 live, 1 of 2 slots busy"
    worker = (await request(app, "/worker?id=web", headers=JSON)).data["item"]["worker"]
    assert worker["max_concurrent_jobs"] == 0
    assert (await Inspector(pool).status()).sentences[0].startswith("All is well: 1 worker, 1 of 2 slots")


async def test_overview_states_when_it_was_read_beside_its_heading(app: App) -> None:
    html = (await request(app, "/")).text
    assert [attrs["id"] for attrs in Page(html).all("span") if attrs.get("id") == "read"] == ["read"]
    head = Page(f"<div>{html.partition('<h1>')[2].partition('<div')[0]}</div>".replace("</h1>", "", 1))
    assert " ".join(head.text.split()) == "Overviewupdated just now"
    assert [attrs["data-ago"] for attrs in head.all("time")] == [None], "the script counts it"
    footer = Page((await request(app, "/jobs")).text)
    assert [attrs["id"] for attrs in footer.all("span") if attrs.get("id") == "read"] == ["read"]


async def test_tiles_count_blocked_jobs_as_waiting_and_others_as_scheduled(
    pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    async def shown() -> list[list[str]]:
        tiles = (await request(build(), "/", headers=JSON)).data["tiles"]
        return [[values[key] for key in ("label", "value", "unit", "terms")] for values in tiles[3::2]]

    await add_figures(world, ["board.mail"])
    await world.job("1", "board.mail", due=HOUR)
    await world.job("2", "board.mail", blocked_on="limit:bank:")
    await world.job("3", "board.mail")
    scheduled = ["Scheduled", "1", "", "status:scheduled"]
    assert await shown() == [["Waiting", "2", "1 due, 1 blocked", "status:due,blocked"], scheduled]
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = NULL")
    assert await shown() == [["Waiting", "2", "2 due, 0 blocked", "status:due,blocked"], scheduled]
    some = build(authorize=lambda _: Access("bob", names=("board.*",)))
    labels = [tile["label"] for tile in (await request(some, "/", headers=JSON)).data["tiles"]]
    assert labels == ["Completed", "Failed attempts", "Lateness p95", "Waiting", "Slots in use"]


async def test_errors_of_the_overview_have_their_class_and_message(
    pool: asyncpg.Pool, world: World, app: App
) -> None:
    await add_figures(world, ["board.mail"])
    for number, text in enumerate(("acme.Declined: no", "not started", "quarantined: 3 workers died: x")):
        await world.job(str(number), "board.mail", status="failed", error_message=text)
    words = " ".join(Page((await request(app, "/")).text).text.split())
    for text in ("Declined no", "not started", "Quarantined 3 workers died: x"):
        assert f"{text} board.mail" in words


async def test_fire_time_that_has_passed_by_a_minute_is_overdue(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App
) -> None:
    await scheduler.schedules.add("board.tick", Every(timedelta(hours=1)), schedule_id="late")
    await scheduler.schedules.add("board.tick", Every(timedelta(hours=1)), schedule_id="next")
    await scheduler.schedules.add("board.tick", Every(timedelta(hours=1)), schedule_id="often")
    await pool.execute(
        "UPDATE scheduler_schedules SET next_fire_at = now() - interval '1 s'"
        " * CASE schedule_id WHEN 'late' THEN 102 ELSE 8 END WHERE schedule_id <> 'next'"
    )
    answer = await request(app, "/")
    page = Page(answer.text)
    (late,) = [attrs for attrs in page.all("time") if "data-late" in attrs]
    assert late["datetime"]
    assert "overdue by 102 s" in " ".join(page.text.split())
    assert '<span class="bad-text">overdue' in answer.text
    assert len([attrs for attrs in page.all("time") if "data-until" in attrs]) == 2
    assert re.search(r'data-until="[^"]*"[^>]*>now</time>', answer.text)


async def test_tiles_have_the_change_since_the_period_before(
    pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    async def tiles() -> list[tuple[str, ...]]:
        items = (await request(build(), "/", headers=JSON)).data["tiles"][:3]
        return [tuple(item[key] for key in ("label", "value", "unit", "note", "mood")) for item in items]

    await add_figures(world, ["board.mail"])
    (completed, failed, late) = await tiles()
    assert completed[:1] + completed[2:] == ("Completed", "/h", "", ""), "nothing is known of the hour before"
    assert failed == ("Failed attempts", "20", "% of attempts", "", "")
    assert late == ("Lateness p95", "~750", "ms", "", "")
    await pool.execute("UPDATE scheduler_stats SET bucket = bucket - interval '90 min'")
    long = Histogram((0,) * 22 + (8,) + (0,) * 25, 10.0)
    better = JobFigures(8, 8, (8, 0, 0, 0, 0, 0, 0, 0, 0), long, long)
    assert await Store(Connections(pool)).statistics.add("w1", 2, {"board.mail": better})
    (completed, failed, late) = await tiles()
    assert (completed[3][:1], completed[4]) == ("\N{BLACK UP-POINTING TRIANGLE}", "")
    assert failed[1:] == ("0", "% of attempts", "\N{BLACK DOWN-POINTING TRIANGLE} 20.0 pt", "ok")
    assert (late[3][:1], late[4]) == ("\N{BLACK UP-POINTING TRIANGLE}", "bad")


async def test_tasks_are_those_with_the_most_attempts_and_those_that_cannot_start(
    pool: asyncpg.Pool, world: World, app: App
) -> None:
    names = [f"board.task-{number}" for number in range(12)]
    await world.worker(names=names)
    figures = {name: JobFigures.added(*[FIGURES] * (number + 1)) for number, name in enumerate(names)}
    assert await Store(Connections(pool)).statistics.add("w1", 1, figures)
    await world.job("1", "board.gone")
    tasks = (await request(app, "/", headers=JSON)).data["tasks"]
    assert [task["name"] for task in tasks] == [*reversed(names[-7:]), "board.gone"]
    assert tasks[0]["failed"] == pytest.approx(0.2)
    assert (sum(tasks[0]["starts"]), sum(tasks[0]["failures"])) == (60, 12)
    assert (tasks[-1]["workers"], tasks[-1]["due"], tasks[-1]["failed"]) == (0, 1, None)
    page = Page((await request(app, "/")).text)
    assert "no worker" in page.text
    assert "/jobs?q=status%3Adue%20name%3Aboard.gone" in page.links()


async def test_running_jobs_have_what_the_request_may_see(world: World, build: Callable[..., App]) -> None:
    await world.worker(names=["board.copy"], identity="copier")
    await world.job(
        "1",
        "board.copy",
        status="running",
        started=-MINUTE,
        task_data={"args": ["a.mp4"], "kwargs": {"token": "hunter2"}},
        progress={"done": 1, "total": 4, "note": "frame 7"},
    )
    (job,) = (await request(build(redact=["token"]), "/", headers=JSON)).data["running_jobs"]
    assert (job["name"], job["progress"], job["note"], job["worker_name"]) == (
        "board.copy",
        0.25,
        "frame 7",
        "copier",
    )
    assert '"a.mp4"' in job["arguments"]
    assert "hunter2" not in job["arguments"]
    text = Page((await request(build(), "/")).text).text
    assert "frame 7" in text
    assert "about 3 min left" in " ".join(text.split())
    closed = build(authorize=lambda _: Access("bob", sees_arguments=False))
    for headers in ({}, JSON):
        answer = (await request(closed, "/", headers=headers)).text
        assert "board.copy" in answer
        assert "hunter2" not in answer
        assert "a.mp4" not in answer
        assert "frame 7" not in answer
    other = build(authorize=lambda _: Access("eve", names=("billing.*",)))
    assert (await request(other, "/", headers=JSON)).data["running_jobs"] == []


async def test_overview_names_paused_tasks(
    scheduler: Scheduler, pool: asyncpg.Pool, world: World, app: App
) -> None:
    await add_figures(world, ["board.mail"])
    await scheduler.tasks.pause("board.mail", note="maintenance")
    await world.job("1", "board.mail", due=-10 * MINUTE)
    data = (await request(app, "/", headers=JSON)).data
    assert data["paused"] == {"board.mail": "maintenance"}
    assert data["problems"] == []


@pytest.mark.parametrize("seconds", [35, 7200])
async def test_overview_judges_as_status_does(
    seconds: int, pool: asyncpg.Pool, world: World, app: App
) -> None:
    await add_figures(world, ["board.mail"])
    await world.job("1", "board.mail", due=-seconds * SECOND)
    status = await Inspector(pool).status()
    data = (await request(app, "/", headers=JSON)).data
    assert (data["problems"] == []) is (status.severity is Severity.OK) is (seconds == 35)
    if seconds == 35:
        assert data["sentence"] == "All is well: 1 worker, nothing late."
        assert status.sentences[0].startswith("All is well: 1 worker, ")
    else:
        assert [data["sentence"]] == [f"{sentence}." for sentence in status.sentences]
        assert data["sentence"].startswith("LATE: 1 due job of 'board.mail' not started, the oldest for 2 h;")


async def test_overview_states_how_many_jobs_the_pause_of_a_task_holds(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    await add_figures(world, ["board.mail"])
    await world.job("1", "board.mail", due=-HOUR)
    await scheduler.tasks.pause("board.mail")
    data = (await request(app, "/", headers=JSON)).data
    assert data["problems"] == [], "the pause explains it"
    sentence = "All is well: 1 worker, nothing late, 1 due job of paused tasks."
    assert (data["sentence"], data["is_well"]) == (sentence, True)
    (of_status,) = (await Inspector(scheduler).status()).sentences
    assert of_status.endswith(" slots busy, nothing late, 1 due job of paused tasks.")


async def test_restricted_overview_counts_visible_names_only(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await add_figures(world, ["billing.invoice", "payroll.run", "(other)"])
    for name in ("payroll.run", "billing.invoice"):
        await scheduler.schedules.add(name, Every(timedelta(hours=1)), schedule_id=f"{name}-hourly")
        await world.job(name, name, due=-HOUR)
        await world.job(f"{name}1", name, blocked_on="limit:payroll:1")
        await world.job(f"{name}2", name, status="failed", error_message=f"no {name}")
    both = build()
    await request(both, "/")
    app = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for headers in ({}, JSON):
        answer = await request(app, "/", headers=headers)
        assert "payroll" not in answer.text
        assert "billing.invoice" in answer.text
    data = (await request(app, "/", headers=JSON)).data
    assert (data["due"], data["blocked"], data["totals"]) == (1, 1, None)
    assert [(problem["code"], problem["subject"]) for problem in data["problems"]] == [
        ("LATE", "billing.invoice")
    ]
    assert data["sentence"].startswith(
        "LATE: 1 due job of 'billing.invoice' not started, the oldest for 60 min;"
    )
    assert "slots free; " in data["sentence"]
    assert sum(data["charts"][0]["series"][0]["values"]) == 4
    assert sum((await request(both, "/", headers=JSON)).data["charts"][0]["series"][0]["values"]) == 12


@pytest.mark.slow
async def test_restricted_overview_has_the_evidence_of_visible_names_only(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await world.worker(names=["board.mail"])
    hour = Every(timedelta(hours=1))
    await scheduler.schedules.add("secret.task", hour, schedule_id="secret-hourly")
    limited = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for path in ("/", "/doctor"):
        for headers in ({}, JSON):
            assert "secret" in (await request(build(), path, headers=headers)).text
            assert "secret" not in (await request(limited, path, headers=headers)).text
    assert (await request(limited, "/", headers=JSON)).data["sentence"].startswith("All is well")
    await scheduler.schedules.add("billing.task", hour, schedule_id="billing-hourly")
    mine = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for path, key in (("/", "problems"), ("/doctor", "findings")):
        problems = (await request(mine, path, headers=JSON)).data[key]
        (problem,) = [item for item in problems if item["subject"] is not None]
        assert (problem["code"], problem["subject"]) == ("SCHED-UNKNOWN", "billing.task")
        assert "the task 'billing.task' of 1 schedule (billing-hourly)" in problem["evidence"]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_rows_are_shown_as_text(
    text: str, pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    text = text[:200]
    await add_figures(world, [text])
    await world.job(f"1{text}", text, status="failed", error_message=text)
    await world.job(f"2{text}", text, due=-HOUR)
    await scheduler.schedules.add("board.mail", Every(timedelta(hours=1)), schedule_id=text)
    answer = await request(app, "/")
    assert answer.status == 200
    check(answer.text)


async def test_newest_errors_are_found_without_their_index(
    pool: asyncpg.Pool, world: World, app: App
) -> None:
    await world.job("1", "board.mail", status="failed", error_message="no route")
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    (group,) = (await request(app, "/", headers=JSON)).data["errors"]
    assert group["text"] == "no route"


# -- charts --------------------------------------------------------------------------------------------

START = datetime(2030, 1, 1, tzinfo=UTC)


def chart(values: list[float | None], *others: list[float | None], **changes: Any) -> Chart:
    times = [START + timedelta(minutes=number) for number in range(len(values))]
    series = [
        Series(label, numbers)
        for label, numbers in zip(("completed", "failed"), (values, *others), strict=False)
    ]
    return Chart("id", "Title", changes.pop("unit", "s"), times, series, **changes)


def points_of(path: str) -> list[tuple[float, float]]:
    """Return the points of the lines of a path, and the starts of single points."""
    points = []
    for part in path.split("M")[1:]:
        line = re.split("[Vhz]", part)[0]
        numbers = [float(digits) for digits in re.findall(r"-?(?:\d*\.)?\d+", line)]
        x, y = 0.0, 0.0
        for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
            x, y = x + dx, y + dy
            points.append((x, y))
    return points


VALUES: list[list[float | None]] = [
    [],
    [1.0],
    [None, None],
    [0.0, 0.0],
    [1e-9, 1e9, 3.0],
    [5.0] * 61,
    [None, 2.0, None, 4.0],
    [0.01, 604_800.0],
]


@each_case("is_log", [False, True])
@each_case("values", VALUES)
def test_lines_and_bars_stay_within_the_plot(values: list[float | None], is_log: bool) -> None:
    drawn = chart(values, values, is_log=is_log)
    for line in drawn.lines:
        for x, y in points_of(line.path + line.open_path):
            assert -1e-9 <= x <= len(values)
            assert -1e-9 <= y <= 100 + 1e-9
    for slot in drawn.slots:
        for bar in slot.bars:
            assert 0 <= bar.top <= bar.top + bar.height <= 100.1
    places = [tick.at for tick in drawn.y_ticks]
    assert (places[0], places[-1]) == (100, 0)
    assert places == sorted(places, reverse=True)
    assert 2 <= len(places) <= 12
    assert len(list(drawn.rows())) == len(drawn.slots) == len(values)
    assert drawn.summary.startswith("Title")


def test_large_numbers_have_no_exponent_and_the_axis_has_thousands() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    times = [now + timedelta(hours=hour) for hour in range(3)]
    chart = Chart("x", "Outcomes", "/h", times, [Series("completed", [45_720.4, 54_000.0, 9.0])])
    assert [text for _, text in chart.legend] == ["54,000/h"]
    assert chart.legend_label == f"{chart.times[-2]:%H:%M}", "the slot of this value, which is a rate"
    assert chart.text_of(45_720.4) == "45,720"
    assert chart.text_of(258.52) == "258.5"
    assert {tick.label for tick in chart.y_ticks} >= {"0", "20 k"}


@each_case("value", [0.0, 1.0, 2.0, 3.0, 7.0])
def test_axis_of_whole_numbers_has_whole_labels(value: float) -> None:
    labels = [tick.label for tick in chart([value], [0.0], unit="").y_ticks]
    assert all(label.isdigit() for label in labels), labels
    assert len(labels) >= 2


@pytest.mark.parametrize(
    ("rate", "text"), [(274.8, "275/min"), (10.0, "10/min"), (0.6, "0.6/min"), (0, "0/min")]
)
def test_legend_has_rates_with_their_unit(rate: float, text: str) -> None:
    now = datetime(2026, 1, 1, 18, 15, tzinfo=UTC)
    times = [now + timedelta(minutes=5 * place) for place in range(3)]
    drawn = Chart("x", "Outcomes", "/min", times, [Series("completed", [1.0, rate, 9.0])])
    assert [value for _, value in drawn.legend] == [text]


def test_no_label_of_the_axis_is_near_the_word_now() -> None:
    """On a phone, a label is as wide as a tenth of the axis, and so is this word."""
    now = datetime(2026, 1, 1, 18, 27, tzinfo=UTC)
    times = [now - timedelta(minutes=59 - minute) for minute in range(60)]
    drawn = Chart("x", "Outcomes", "/min", times, [Series("completed", [1.0] * 60)])
    places = [place for place, slot in enumerate(drawn.slots) if slot.tick]
    assert times[52].minute == 20, "would have a label"
    assert max(places) == 42


def test_legend_has_the_age_of_the_oldest_waiting_job_as_of_now() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    times = [now + timedelta(hours=hour) for hour in range(3)]
    series = [Series("p50", [1.0, 2.0, 3.0]), Series("oldest waiting", [None, None, 62.0])]
    chart = Chart("x", "Lateness", "s", times, series, is_log=True)
    assert [text for _, text in chart.legend] == ["~2 s", "62 s"]


def test_bars_are_stacked_in_the_order_of_the_series() -> None:
    (slot,) = chart([6.0], [2.0]).slots
    assert [(bar.tone, bar.top, bar.height) for bar in slot.bars] == [("calm", 25, 75), ("bad", 0, 25)]
    assert slot.values == [("Completed", "6 s"), ("Failed", "2 s")]
    assert slot.has_failures
    assert not chart([6.0], [0.0]).slots[0].has_failures


def test_last_slot_is_marked_as_not_complete() -> None:
    drawn = chart([1.0, 2.0, 3.0], unit="/min")
    assert [slot.is_open for slot in drawn.slots] == [False, False, True]
    assert [slot.label for slot in drawn.slots] == ["00:00", "00:01", "00:02, so far"]
    (line,) = chart([1.0, 2.0, 3.0], is_log=True).lines
    assert len(points_of(line.path)) == 2
    assert len(points_of(line.open_path)) == 2


def test_lines_have_gaps_where_there_are_no_values() -> None:
    (line,) = chart([1.0, 1.0, None, 1.0, None], is_log=True).lines
    assert (line.path.count("M"), line.dots.count("M")) == (1, 1), "a line and a single value"


@pytest.mark.parametrize(
    ("minutes", "flags"),
    [
        ([10], [("r0",)]),
        ([10, 12], [("r0", "r1")]),
        ([10, 40], [("r0",), ("r1",)]),
        ([20, 55, 59], [("r0",), ("r1", "r2")]),
        ([-1, 60], []),
        ([50, 50, 50], [("r0", "r1", "r2")]),
    ],
)
def test_flags_of_releases_do_not_overlap(minutes: list[int], flags: list[tuple[str, ...]]) -> None:
    marks = [Mark(START + timedelta(minutes=at), f"r{place}") for place, at in enumerate(minutes)]
    drawn = chart([1.0] * 60, marks=marks)
    assert [tuple(flag.labels) for flag in drawn.flags] == flags
    spans = [
        (at - 22, at) if flag.is_left else (at, at + 22) for flag in drawn.flags for at in [flag.slot / 0.6]
    ]
    assert all(start >= 0 and end <= 100 for start, end in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


@pytest.mark.parametrize("width", [1, 5, 30, 120, 480, 1440])
def test_axis_of_time_has_some_labels(width: int) -> None:
    number = {1: 61, 5: 73, 30: 49, 120: 85, 480: 91, 1440: 91}[width]
    times = [START + timedelta(minutes=width * place) for place in range(number)]
    drawn = Chart("id", "Title", "", times, [Series("completed", [1.0] * number)])
    assert 3 <= sum(bool(slot.tick) for slot in drawn.slots) <= 8


@each_case("values", VALUES)
def test_small_charts_stay_within_their_boxes(values: list[float | None]) -> None:
    for x, y in points_of(small_line(values)):
        assert -1e-9 <= x <= len(values) - 1 + 1e-9
        assert -1e-9 <= y <= 30
    counts = [value or 0 for value in values]
    bars = small_bars(counts, [count / 4 for count in counts])
    heights = re.findall(r"[ V]([\d.]+)", bars.passed + bars.failed)
    assert all(0 <= float(height) <= 22 for height in heights)
    assert (bars.passed == bars.failed == "") is (not any(counts))


def test_unknown_values_are_gaps_of_a_small_line() -> None:
    """They were drawn as 0, so a time without starts looked like one without lateness."""
    assert small_line([None, None]) == ""
    assert small_line([4.0, 4.0, None, None, None, 4.0]).count("z") == 2
    assert max(x for x, _ in points_of(small_line([4.0, 4.0, None, None, None, 4.0]))) == 5
    assert [x for x, _ in points_of(small_line([None, 4.0, None]))][:2] == [0.5, 1.5]


async def test_tile_has_no_value_for_a_time_without_starts(world: World, app: App) -> None:
    await add_figures(world, ["board.mail"])
    await world.pool.execute("UPDATE scheduler_stats SET bucket = bucket - interval '20 minutes'")
    tiles = {tile["label"]: tile for tile in (await request(app, "/", headers=JSON)).data["tiles"]}
    assert set(tiles["Failed attempts"]["values"]) > {None}
    assert None not in tiles["Completed"]["values"], "nothing completed is a number"


@each_case(
    ("value", "before", "text"),
    [(3, 0, ""), (1.001, 1, ""), (3, 2, "▲ 50 %"), (1, 2, "▼ 50 %"), (9, 1, "▲ 800 %"), (2000, 1, "▲ >10x")],
)
def test_change_of_a_tile_has_a_cap(value: float, before: float, text: str) -> None:
    assert change_since(value, before) == (text, "")
    assert change_since(value, before, is_bad_up=True)[0] == text


def test_jobs_that_expired_are_red_in_charts_as_their_badges_are() -> None:
    css = dashboard_files()["dashboard.css"].content.decode()
    assert f".f-{TONES['expired']} {{ fill: var(--bad);" in css


def test_lowest_bar_without_a_failure_has_no_part_in_the_colour_of_failures() -> None:
    assert small_bars([1, 1000]).failed == ""
    assert small_bars([1, 1000], [0, 0]).failed == ""
    assert small_bars([1, 1000], [1, 0]).failed != ""


def test_term_of_a_slot_names_its_minutes() -> None:
    assert finished(START, START + timedelta(minutes=1)) == "finished:2030-01-01T00:00Z"
    assert finished(START, START + timedelta(hours=2)) == "finished:2030-01-01T00:00Z..2030-01-01T01:59Z"


# -- what requests share -------------------------------------------------------------------------------


def test_json_of_the_overview_has_no_geometry() -> None:
    assert set(json.loads(json.dumps(plain(chart([1.0]))))) == {
        "id", "title", "unit", "times", "series", "is_log", "marks"
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "unread"),
    [("scheduled_jobs", ["backlog", "running"]), ("scheduler_stats", ["charts", "tasks"])],
)
async def test_overview_shows_the_other_parts_when_the_server_cancels_a_read(
    table: str,
    unread: list[str],
    world: World,
    build: Callable[..., App],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside.replace(monkeypatch, dashboard_read_settings=ReadSettings(statement_timeout_s=1))
    inside.replace(monkeypatch, dashboard_cache_slowdown=10**6)  # what was read is kept for long
    path = "/?range=6h" if "charts" in unread else "/"  # statistics of another range are not kept
    app = build()
    await add_figures(world, ["board.mail"])
    await Scheduler(world.pool).schedules.add("board.mail", Every(timedelta(hours=1)), schedule_id="hourly")
    await request(app, "/")  # reads the checks, which are kept
    async with world.pool.acquire() as connection, connection.transaction():
        await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        answer = await request(app, path)
        data = (await request(app, path, headers=JSON)).data
    text = Page(answer.text).text
    assert answer.status == 200
    assert "The database did not answer in time for a part of this page" in text
    assert "hourly" in text, "schedules do not need the locked table"
    assert data["unread"] == unread
    assert not data["is_well"]
    assert "All is well" not in data["sentence"]
    assert ("No job is running" in text) == ("running" not in unread)
    assert (data["due"] is None) == ("backlog" in unread)
    assert (data["charts"] == []) == ("charts" in unread)
