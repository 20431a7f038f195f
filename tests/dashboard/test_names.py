"""One name for each task: lists, forms and suggestions leave out the other names that workers accept."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable

import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from tests.dashboard.client import JSON, App, Page, request, send
from tests.dashboard.test_navigation import Bar
from tests.support.world import World


@pytest.fixture
def app(build: Callable[..., App]) -> App:
    return build(authorize=lambda _: Access("ada", "admin"))


async def offered_by(app: App) -> list[str]:
    """Return the tasks that the form of a schedule offers."""
    form = (await request(app, "/schedule-form")).text
    tasks = form.partition('<select id="task"')[2].partition("</select>")[0]
    return re.findall('<option value="([^"]*)"', tasks)


def reported(**aliases: str) -> str:
    """Return the settings of a worker that reports these aliases."""
    return json.dumps({"aliases": {alias.replace("_", "."): task for alias, task in aliases.items()}})


@pytest.fixture
async def started(scheduler: Scheduler) -> AsyncIterator[Scheduler]:
    """Return a started Scheduler with a task that has an alias besides the automatic ones."""

    async def send_mail() -> None: ...

    scheduler.register(send_mail, name="names.send", aliases=["names.former"])
    async with scheduler:
        yield scheduler


async def test_form_offers_and_search_suggests_no_alias(started: Scheduler, app: App) -> None:
    offered = set(await offered_by(app))
    suggested = {
        each["text"]
        for typed in ("name:names.", "name:send_mail")
        for each in (await request(app, f"/complete?term={typed}", headers=JSON)).data
    }
    (worker,) = await started.workers()
    others = {"names.former", "send_mail"}
    assert others <= set(worker.names or ()), "the worker claims them"
    assert "names.send" in offered
    assert "name:names.send" in suggested
    for each in (offered, {term.removeprefix("name:") for term in suggested}):
        assert not {name for name in each if name in others or name.endswith(".send_mail")}


async def test_overview_side_bar_and_find_count_jobs_of_an_alias_for_its_task(world: World, app: App) -> None:
    await world.worker(names=["names.new", "names.old"], settings=reported(names_old="names.new"))
    await world.job("1", "names.old")
    await world.job("2", "names.new")
    data = (await request(app, "/", headers=JSON)).data
    assert [(each["name"], each["due"]) for each in data["tasks"]] == [("names.new", 2)]
    found = (await request(app, "/find?q=names", headers=JSON)).data["items"]
    assert [each["name"] for each in found] == ["names.new"]
    found = (await request(app, "/find?q=old", headers=JSON)).data["items"]
    assert [each["name"] for each in found] == ["names.new"]
    assert Bar((await request(app, "/about")).text).counts["tasks"] == "1"


async def test_schedule_of_an_alias_is_added(started: Scheduler, app: App) -> None:
    fields = {"task": "names.former", "schedule_id": "mine", "kind": "interval", "interval": "1h"}
    assert (await send(app, "/actions/schedules/add", fields)).status == 303
    schedule = await started.schedules.get("mine")
    assert schedule is not None
    assert schedule.task == "names.former"


async def test_worker_lists_each_task_once_with_its_other_names(started: Scheduler, app: App) -> None:
    data = (await request(app, f"/worker?id={started.worker_id}", headers=JSON)).data
    assert data["names"].count("names.send") == 1
    assert {"names.former", "send_mail"} <= set(data["other_names"]["names.send"])
    assert not set(data["names"]) & set(data["other_names"]["names.send"])
    page = Page((await request(app, f"/worker?id={started.worker_id}")).text)
    assert "/task?id=names.send" in page.links()
    assert not [link for link in page.links() if "former" in link]
    assert "also known as" in page.text


async def test_newest_worker_decides_which_name_is_the_main_one(world: World, app: App) -> None:
    names = ["a.old", "a.new"]
    await world.worker("w1", names=names, settings=reported(a_new="a.old"))
    await world.worker("w2", names=names, settings=reported(a_old="a.new"))
    assert await offered_by(app) == ["a.new"]


async def test_alias_is_a_name_if_its_task_is_invisible_or_not_claimed(
    world: World, build: Callable[..., App], app: App
) -> None:
    names = ["billing.alias", "ops.task", "billing.lonely"]
    settings = reported(billing_alias="ops.task", billing_lonely="ops.elsewhere")
    await world.worker(names=names, settings=settings)
    limited = build(authorize=lambda _: Access("bob", "admin", names=("billing.*",)))
    assert await offered_by(limited) == ["billing.alias", "billing.lonely"]
    assert await offered_by(app) == ["billing.lonely", "ops.task"]


@pytest.mark.parametrize(
    "settings", ['{"aliases": ["x"]}', '{"aliases": {"work": 7}}', '{"aliases": null}', "[]"]
)
async def test_settings_written_by_hand_hide_no_name(settings: str, world: World, app: App) -> None:
    await world.worker(settings=settings)
    assert await offered_by(app) == ["work"]


def restricted(build: Callable[..., App], names: str) -> App:
    return build(authorize=lambda _: Access("bob", "admin", names=(names,)))


async def test_pause_of_a_task_needs_its_main_name_that_only_workers_know(
    build: Callable[..., App], world: World
) -> None:
    """The process of the dashboard has registered nothing."""
    await world.worker(names=["ops.task", "shop.alias"], settings=reported(shop_alias="ops.task"))
    await world.job("a", "shop.alias")
    bob = restricted(build, "shop.*")
    assert (await send(bob, "/actions/tasks/pause?id=shop.alias")).status == 404
    root = build(authorize=lambda _: Access("root", "admin"))
    assert (await send(root, "/actions/tasks/pause?id=ops.task", {"note": "a secret"})).status == 303
    (row,) = (await request(root, "/jobs", headers=JSON)).data["items"]
    assert row["paused_task"] == "ops.task", "the pause is that of the alias too"
    for url in ("/job?id=a", "/jobs", "/task?id=shop.alias"):
        for headers in ({}, JSON):
            answer = (await request(bob, url, headers=headers)).text
            assert "secret" not in answer, url
            assert "ops.task" not in answer, url
    reason = (await request(bob, "/job?id=a", headers=JSON)).data["explanation"]["reasons"][0]
    assert (reason["code"], reason["text"], reason["command"]) == ("TASK-PAUSED", "Its task is paused", None)


async def test_holder_of_a_unique_key_is_hidden(build: Callable[..., App], world: World) -> None:
    await world.job("secret", "ops.task", unique_key="key")
    await world.job("old", "shop.task", status="failed", unique_key="key")
    fields = {"args": "[]", "kwargs": "{}"}
    answer = await send(restricted(build, "shop.*"), "/actions/jobs/add?id=old", fields)
    assert answer.status == 409
    assert "secret" not in answer.text
    assert "another job has the unique key of this one" in answer.text


async def test_errors_of_other_jobs_are_hidden_in_bulk_runs(build: Callable[..., App], world: World) -> None:
    error = "JobFailedError: job 'ops.task' failed: ValueError: a secret"
    await world.job("a", "shop.task", status="failed", error_message=error)
    bob = restricted(build, "shop.*")
    (group,) = (await request(bob, "/errors?since=all", headers=JSON)).data["items"]
    retry = f"/actions/errors/retry?group={group['fingerprint']}&since=all"
    question = await send(bob, retry)
    assert "Retry all jobs of shop.task with the error" in question.text
    run = (await send(bob, retry, {"confirm": "yes"})).headers["location"]
    for url in (retry, run, "/runs"):
        for headers in ({}, JSON):
            answer = question if url == retry else await request(bob, url, headers=headers)
            assert "secret" not in answer.text, url
            assert "ops.task" not in answer.text, url
