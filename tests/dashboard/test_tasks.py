"""The figures of tasks: what started, failed and how long it took in the last hour, and by whom."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Scheduler, job, periodic
from pg_scheduler.dashboard import Access
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, Page, request, stream
from tests.dashboard.test_limits import declare
from tests.dashboard.test_live import parts_of
from tests.dashboard.test_overview import add_figures
from tests.support.patience import PATIENCE
from tests.support.world import HOUR, MINUTE, SECOND, World


async def test_tasks_have_the_figures_of_the_last_hour(
    world: World, app: App, build: Callable[..., App]
) -> None:
    await add_figures(world, ["figures.mail", "figures.report"])
    await world.worker("w2", names=["figures.idle"])
    by_starts = (await request(app, "/tasks", headers=JSON)).data["items"]
    assert [task["started"] for task in by_starts] == [5, 5, 0], "idle tasks are the last"
    idle, mail, _ = (await request(app, "/tasks?sort=name", headers=JSON)).data["items"]
    assert (mail["name"], mail["failed"], round(60 * mail["per_minute"])) == ("figures.mail", 1, 5)
    assert 0 < mail["run_p50_s"] <= mail["run_p95_s"] < 1
    assert (idle["failed"], idle["per_minute"], idle["run_p50_s"]) == (0, 0, None)
    rows = Page((await request(app, "/tasks")).text).text
    assert "those of the period 1h" in rows
    assert "0.1" in rows
    limited = build(authorize=lambda _: Access("bob", names=("figures.idle",)))
    assert [each["name"] for each in (await request(limited, "/tasks", headers=JSON)).data["items"]] == [
        "figures.idle"
    ]


async def test_bars_of_an_hour_have_equally_many_minutes(world: World, app: App) -> None:
    await world.worker(names=["figures.mail"])
    for minute in range(61):
        await world.attempts("figures.mail", 10, at=-minute * MINUTE)
    (on_tasks,) = (await request(app, "/tasks", headers=JSON)).data["items"]
    (on_overview,) = (await request(app, "/", headers=JSON)).data["tasks"]
    for task in (on_tasks, on_overview):
        # A minute may end between the writing and the reading, so the last bar may lack one.
        assert task["starts"][:-1] == [50] * 11
        assert task["starts"][-1] in {40, 50}


async def test_failures_and_waiting_jobs_have_one_colour_on_the_overview_and_on_tasks(
    world: World, app: App
) -> None:
    await world.worker(names=["figures.few", "figures.many"])
    await world.attempts("figures.few", 100, at=-2 * MINUTE, failed=4)
    await world.attempts("figures.many", 100, at=-2 * MINUTE, failed=5)
    await world.job("few", "figures.few", blocked_on="limit:bank:")
    await world.job("lost", "figures.lost", due=-MINUTE)
    for url in ("/", "/tasks"):
        text = (await request(app, url)).text
        rows = {
            name: text.partition(f'data-key="{name}"')[2].partition("</tr>")[0]
            for name in ("figures.few", "figures.many", "figures.lost")
        }
        assert {name: "bad-text" in row for name, row in rows.items() if name != "figures.lost"} == {
            "figures.few": False,
            "figures.many": True,
        }, url
        assert {name: "warn-text" in row for name, row in rows.items()} == {
            "figures.few": False,
            "figures.many": False,
            "figures.lost": True,
        }, url


async def test_page_of_a_task_names_the_workers_that_claim_it(world: World, app: App) -> None:
    await add_figures(world, ["figures.mail"])
    await world.worker("w2", names=["figures.mail"], identity="node-2")
    await world.worker("w3", names=["figures.other"])
    await world.worker("w4", names=None)
    data = (await request(app, "/task?id=figures.mail", headers=JSON)).data
    assert data["workers"] == {"w1": "w1", "w2": "node-2"}
    assert data["task"]["failed"] == 1
    links = Page((await request(app, "/task?id=figures.mail")).text).links()
    assert {"/worker?id=w1", "/worker?id=w2"} <= set(links)


async def heartbeat() -> None: ...


async def beat() -> None: ...


def chosen(access: Access, _request: object) -> Access:
    return access


async def add_ended_job(world: World, name: str, function: str) -> None:
    """Insert a completed job of a periodic function, as the planner enqueues them."""
    await world.job(name, name, function=function, status="completed", started=-2 * SECOND)


async def test_settings_state_that_enqueue_sets_no_grace_time(
    world: World, scheduler: Scheduler, app: App
) -> None:
    await add_figures(world, ["mail.send"])
    scheduler.register(heartbeat, name="mail.send")
    text = " ".join(Page((await request(app, "/task?id=mail.send")).text).text.split())
    assert "Start within5 min of the due time; no limit for enqueue()" in text


async def test_given_name_of_a_periodic_job_is_its_task(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    function = f"{__name__}.heartbeat"
    periodic(every=timedelta(hours=1), job_name="ops.heartbeat", dedup_key="beats")(heartbeat)
    async with scheduler:
        await add_figures(world, ["ops.heartbeat"])
        await add_ended_job(world, "ops.heartbeat", function)
        await world.job("next", "ops.heartbeat", function=function, due=HOUR)
        items = {each["name"]: each for each in (await request(app, "/tasks", headers=JSON)).data["items"]}
        assert function not in items, "it has one row"
        task = items["ops.heartbeat"]
        assert (task["started"], task["failed"]) == (5, 1)
        data: dict[str, Any] = {}
        for name in ("ops.heartbeat", function):
            data = (await request(app, f"/task?id={name}", headers=JSON)).data
            assert (data["task"]["name"], data["task"]["started"]) == ("ops.heartbeat", 5)
            assert function in data["task"]["other_names"]
            assert data["settings"]["max_retries"] == 0
            assert [schedule["schedule_id"] for schedule in data["schedules"]] == ["beats"]
            found = (await request(app, f"/jobs?q={quote(data['where'])}", headers=JSON)).data
            assert {job["job_id"] for job in found["items"]} == {"ops.heartbeat", "next"}
        (listed,) = (await request(app, "/schedules", headers=JSON)).data["items"]
        assert (listed["schedule_id"], listed["task"]) == ("beats", "ops.heartbeat")


async def test_task_has_the_figures_and_jobs_of_its_other_names(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    function = f"{__name__}.beat"
    periodic(every=timedelta(hours=1))(beat)
    async with scheduler:
        await add_figures(world, ["periodic_beat"])
        await add_ended_job(world, "periodic_beat", function)
        data = (await request(app, "/task?id=periodic_beat", headers=JSON)).data
        assert (data["task"]["name"], data["task"]["started"]) == (function, 5)
        found = (await request(app, f"/jobs?q={quote(data['where'])}", headers=JSON)).data
        assert [found_job["job_id"] for found_job in found["items"]] == ["periodic_beat"]
        assert "periodic_beat" in data["task"]["other_names"]


async def test_task_with_a_schedule_has_a_page_while_no_worker_lives(scheduler: Scheduler, app: App) -> None:
    await scheduler.schedules.add("mail.send", Every(hours=1), schedule_id="hourly")
    data = (await request(app, "/task?id=mail.send", headers=JSON)).data
    assert data["task"]["name"] == "mail.send"
    assert [schedule["schedule_id"] for schedule in data["schedules"]] == ["hourly"]


async def test_task_that_a_worker_skips_is_no_task_under_the_names_of_its_function(
    pool: asyncpg.Pool, build: Callable[..., App]
) -> None:
    async def unclaimed() -> None: ...

    scheduler = Scheduler(pool, only=["*unclaimed*"], skip=["ops.*"])  # other tests register functions too
    scheduler.register(unclaimed, name="ops.skipped")
    async with scheduler:
        (worker,) = await scheduler.workers()
        assert worker.names == ()
        for url in ("/tasks", "/schedule-form"):
            assert "unclaimed" not in (await request(build(), url)).text


async def test_jobs_and_pauses_of_other_names_count_for_their_task(
    world: World, scheduler: Scheduler, app: App
) -> None:
    aliases = json.dumps({"aliases": {"mail.old": "mail.new"}})
    await world.worker(names=["mail.new", "mail.old"], settings=aliases)
    await world.job("a", "mail.old", due=-HOUR)
    await world.job("b", "mail.new")
    await scheduler.tasks.pause("mail.old", note="renamed")
    (task,) = (await request(app, "/tasks", headers=JSON)).data["items"]
    assert (task["name"], task["due"], task["workers"], task["note"]) == ("mail.new", 2, 1, "renamed")
    assert (
        "1 task, 1 paused, 0 running, waiting 2: due 2, blocked 0"
        in Page((await request(app, "/tasks")).text).text
    )


async def test_name_given_by_job_stays_that_of_the_task(scheduler: Scheduler) -> None:
    periodic(every=timedelta(hours=1), job_name="ops.hourly")(job(name="ops.beat")(beat))
    tasks = {info.name: info for info in await scheduler.tasks.list()}
    assert "ops.hourly" in tasks["ops.beat"].aliases
    assert "ops.hourly" not in tasks


async def test_tasks_are_sorted_by_their_columns(world: World, app: App) -> None:
    await add_figures(world, ["sort.busy"])
    await world.worker("w2", names=["sort.idle", "sort.late"])
    await world.job("late", "sort.late", due=-HOUR)
    for sort, first in (
        ("name", "sort.busy"),
        ("-name", "sort.late"),
        ("-starts", "sort.busy"),
        ("-failed", "sort.busy"),
        ("-p95", "sort.busy"),
        ("-slowest", "sort.busy"),
        ("-waiting", "sort.late"),
        ("-oldest", "sort.late"),
    ):
        answer = await request(app, f"/tasks?sort={sort}", headers=JSON)
        assert answer.data["items"][0]["name"] == first, sort
    assert (await request(app, "/tasks?sort=size")).status == 400
    assert (await request(app, "/tasks?range=2h")).status == 400
    page = Page((await request(app, "/tasks?sort=-waiting")).text)
    assert "/tasks?range=1h&sort=waiting" in page.links()
    assert [each["aria-sort"] for each in page.all("th") if "aria-sort" in each] == ["descending"]


async def test_state_of_a_task_says_why_it_starts_no_jobs(
    world: World, scheduler: Scheduler, app: App
) -> None:
    limits = declare("full", "state.limited", max_running=1)
    names = ["state.limited", "state.paused", "state.runs"]
    await world.worker(names=names, settings={"limits": limits})
    await scheduler.tasks.pause("state.paused", note="later")
    await world.job("lonely", "state.lonely")
    await world.job("limited", "state.limited", blocked_on="limit:full:")
    await world.job("one", "state.limited", status="running")
    await world.start("limit:full:", "one")
    items = (await request(app, "/tasks", headers=JSON)).data["items"]
    assert {each["name"]: each["state"] for each in items} == {
        "state.limited": "limit full",
        "state.lonely": "no worker",
        "state.paused": "paused",
        "state.runs": None,
    }
    for name, text in (("limited", "wait for full"), ("lonely", "No live worker"), ("paused", "later")):
        assert text in " ".join(Page((await request(app, f"/task?id=state.{name}")).text).text.split())


async def test_kind_of_waiting_jobs_without_a_number_is_left_out(world: World, app: App) -> None:
    await add_figures(world, ["export", "idle"])
    await world.jobs(3, "export", blocked_on="limit:warehouse:")
    for url in ("/tasks", "/task?id=export", "/task?id=idle"):
        page = " ".join(Page((await request(app, url)).text).text.partition("Waiting")[2].split())
        assert "due 0" not in page, url
        assert ("3 blocked" in page) is (url == "/task?id=export"), url
        assert ("blocked 3" in page) is (url == "/tasks"), url


async def test_blocked_jobs_of_a_task_wait_in_all_places(world: World, app: App) -> None:
    await add_figures(world, ["export"])
    await world.jobs(21, "export", blocked_on="limit:warehouse:")
    await world.jobs(2, "export", due=-MINUTE)
    (task,) = (await request(app, "/tasks", headers=JSON)).data["items"]
    assert (task["due"], task["blocked"]) == (2, 21)
    for url in ("/tasks", "/task?id=export", "/"):
        page = Page((await request(app, url)).text)
        assert "2 due, 21 blocked" in page.text, url
        (target,) = {link for link in page.links() if "status%3Adue%2Cblocked" in link and "name" in link}
        assert len((await request(app, target, headers=JSON)).data["items"]) == 23


async def test_page_of_a_task_shows_no_arguments_of_its_schedules(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await world.worker(names=["secret.task"])
    await scheduler.schedules.add(
        "secret.task", Every(timedelta(hours=1)), schedule_id="mine", kwargs={"token": "hunter2"}
    )
    for access in (Access("ada"), Access("bob", names=("secret.*",), sees_arguments=False)):
        for headers in ({}, JSON):
            app = build(authorize=partial(chosen, access))
            answer = await request(app, "/task?id=secret.task", headers=headers)
            assert "mine" in answer.text
            assert "hunter2" not in answer.text
    limited = build(authorize=partial(chosen, Access("bob", names=("secret.*",))))
    changes = (await request(limited, "/task?id=secret.task", headers=JSON)).data["changes"]
    assert changes is None, "the audit needs all names"


@pytest.mark.slow
async def test_state_of_a_task_is_updated_without_its_charts(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await world.worker(names=["live.task"])
    app = build(refresh=0.5)
    async with asyncio.timeout(PATIENCE), stream(app, "/live?page=/task&id=live.task") as read:
        await read()
        assert set(parts_of(await read())) == {"state", "pages", "read"}
        await scheduler.tasks.pause("live.task", note="until noon")
        assert "until noon" in parts_of(await read())["state"]


async def test_tasks_are_filtered_by_a_part_of_any_name(world: World, app: App) -> None:
    await add_figures(world, ["figures.mail", "figures.report"])
    await world.worker("w2", names=["figures.<b>"])
    names = [each["name"] for each in (await request(app, "/tasks?q=MAIL", headers=JSON)).data["items"]]
    assert names == ["figures.mail"]
    page = Page((await request(app, "/tasks?q=mail&range=6h&sort=-failed")).text)
    assert "/tasks?range=1d&sort=-failed&q=mail" in page.links()
    assert {"range": "6h", "sort": "-failed", "q": "mail"}.items() <= {
        str(each["name"]): each["value"] for each in page.all("input") if each.get("value")
    }.items()
    none = Page((await request(app, f"/tasks?q={quote('<i>')}")).text)
    assert "No task has this text in its name." in none.text
    assert "/tasks?range=1h&sort=-starts" in none.links()


async def test_page_of_a_task_has_its_newest_failures_by_their_end(
    world: World, build: Callable[..., App]
) -> None:
    """A list of the last runs of all results would need an index of ends, so there is none."""
    await add_figures(world, ["figures.mail"])
    await world.jobs(
        30,
        "figures.mail",
        job_id="job-{:02}".format,
        status=lambda n: "completed" if n % 2 else "failed",
        error_message=lambda n: None if n % 2 else f"ValueError: no {n}",
        started=-HOUR,
        ended=lambda n: -n * MINUTE,
        task_data={"args": [], "kwargs": {"account": 7, "token": "hunter2"}},
    )
    app = build(redact=["token"])
    answer = await request(app, "/task?id=figures.mail")
    data = (await request(app, "/task?id=figures.mail", headers=JSON)).data
    assert [run["job_id"] for run in data["failures"]] == [f"job-{n:02}" for n in range(2, 21, 2)]
    assert {"runs", "slowest", "values"}.isdisjoint(data)
    assert "no 2" in Page(answer.text).text
    assert "hunter2" not in answer.text
    blind = build(authorize=lambda _: Access("bob", sees_arguments=False))
    assert (
        "account" not in (await request(blind, "/task?id=figures.mail")).text.partition("Newest failures")[2]
    )


async def test_task_is_run_by_the_form_of_a_new_job(world: World, build: Callable[..., App]) -> None:
    await add_figures(world, ["figures.mail"])
    await world.jobs(
        2,
        "figures.mail",
        job_id="job-{}".format,
        status="completed",
        started=-SECOND,
        ended=lambda n: -n * MINUTE,
    )
    await world.job(
        "job-3", "figures.mail", status="completed", task_data={"args": [], "kwargs": {"token": "hunter2"}}
    )
    app = build(authorize=lambda _: Access("ada", "admin"), redact=["token"])
    page = Page((await request(app, "/task?id=figures.mail")).text)
    assert "/job-form?task=figures.mail" in page.links()
    assert (await request(app, "/job-form?task=figures.mail")).status == 200
    operator = build(authorize=lambda _: Access("bob", "operator"))
    assert "/job-form" not in (await request(operator, "/task?id=figures.mail")).text


async def test_pages_of_tasks_and_jobs_show_all_that_a_limit_counts(world: World, app: App) -> None:
    limits = declare("gateway", "limited.run", max_running=2, max_starts=9, per_s=60.0)
    await world.worker(names=["limited.run"], settings={"limits": limits})
    await world.job("run", "limited.run")
    texts = [
        " ".join(Page((await request(app, url)).text).text.split())
        for url in ("/task?id=limited.run", "/job?id=run")
    ]
    assert "at most 2 running, at most 9 starts in 60 s" in texts[0]
    for text in texts:
        assert "0 / 2" in text, "no job runs"
        assert "0 / 9" in text, "none has started"


async def test_page_of_a_task_without_attempts_has_a_line_and_no_charts(world: World, app: App) -> None:
    await world.worker(names=["idle.mail"])
    await world.job("waits", "idle.mail", due=-MINUTE)
    page = Page((await request(app, "/task?id=idle.mail")).text)
    text = " ".join(page.text.split())
    assert "No attempt in the last hour" in text
    assert "/task?id=idle.mail&range=6h" in page.links()
    assert "Outcomes per minute" not in text
    assert "Newest failures" not in text, "there are no errors"
    longest = " ".join(Page((await request(app, "/task?id=idle.mail&range=90d")).text).text.split())
    assert "No attempt in the last 90 days" in longest
    assert "Show" not in longest.partition("No attempt in the last 90 days")[2].partition("Its jobs")[0]
    assert "No attempt in the last hour; now 1 due, the oldest for 60 s" in text
    assert "Duration p50" not in text, "tiles without values are left out"
    assert re.search(r"Its jobs Due 1 Running 0 Scheduled Blocked 0 Sleeping", text), (
        "also those without jobs"
    )
    await world.job("runs", "idle.mail", status="running")
    running = " ".join(Page((await request(app, "/task?id=idle.mail&range=7d")).text).text.split())
    assert "No attempt has ended in the last 7 days; now 1 running, 1 due" in running, "one has started"
    await world.attempts("idle.mail", 3, at=-MINUTE)
    assert "Outcomes per minute" in Page((await request(app, "/task?id=idle.mail&range=6h")).text).text


async def test_shares_of_all_and_of_no_attempts_have_no_decimals(world: World, app: App) -> None:
    await world.attempts("all.fail", 3, at=-MINUTE, failed=3)
    await world.attempts("none.fails", 3, at=-MINUTE)
    await world.attempts("one.fails", 3, at=-MINUTE, failed=1)
    await world.worker(names=["all.fail", "none.fails", "one.fails"])
    html = (await request(app, "/tasks")).text
    shares = re.findall(r'data-label="failed"[^>]*>([^<]*)<', html)
    assert sorted(map(str.strip, shares)) == ["0 %", "100 %", "33.3 %"]
