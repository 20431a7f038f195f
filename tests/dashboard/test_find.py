"""The page that finds jobs, tasks, schedules and workers by name, and offers actions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Limit, Scheduler, job
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.texts import marked
from tests.dashboard.client import JSON, App, Page, request, send
from tests.dashboard.test_hostile import check
from tests.dashboard.test_pages import fill
from tests.support.hostile_texts import HOSTILE
from tests.support.world import World


async def find(app: App, q: str) -> list[tuple[str, str]]:
    data = (await request(app, f"/find?q={quote(q)}", headers=JSON)).data
    return [(each["kind"], each["name"]) for each in data["items"]]


async def test_objects_are_found_by_a_part_of_their_name(
    world: World, scheduler: Scheduler, app: App
) -> None:
    await fill(world, scheduler)
    assert await find(app, "PAYROLL") == [
        ("task", "payroll.run"),
        ("error", "TimeoutError: payroll.run after # s"),
        ("schedule", "payroll.run-nightly"),
    ]
    assert await find(app, "payroll.run-due") == [("job", "payroll.run-due")]
    assert await find(app, "host") == [("worker", "host-1")]
    assert await find(app, "") == []
    page = Page((await request(app, "/find?q=payroll")).text)
    for link in ("/task?id=payroll.run", "/schedule?id=payroll.run-nightly", "/jobs?q=payroll"):
        assert link in page.links()
        assert (await request(app, link)).status == 200


async def test_hidden_names_are_not_found(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    app = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for q in ("payroll", "payroll.run-due", "r"):
        assert not [name for _, name in await find(app, q) if "payroll" in name]
    assert await find(app, "billing.invoice-due") == [("job", "billing.invoice-due")]


async def test_many_objects_of_a_kind_leave_room_for_others(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    await fill(world, scheduler)
    await world.paused_task("payroll.task-{}".format, count=100)
    kinds = [kind for kind, _ in await find(app, "payroll")]
    assert kinds == ["task"] * 8 + ["error", "schedule"]


@pytest.mark.parametrize(("role", "adds"), [("viewer", False), ("operator", False), ("admin", True)])
async def test_actions_follow_the_rights(role: Any, adds: bool, build: Callable[..., App]) -> None:
    app = build(authorize=lambda _: Access("ada", role))
    names = [name for _, name in await find(app, ">")]
    assert ("Add a schedule" in names) is adds
    assert await find(app, "> THEME") == [("action", "Change the theme")]
    assert "Add a schedule" not in [name for _, name in await find(build(read_only=True), ">")]


async def actions(app: App, q: str) -> dict[str, tuple[str, str]]:
    """Return the addresses of links and of forms by the names of what is found."""
    data = (await request(app, f"/find?q={quote(q)}", headers=JSON)).data
    return {each["name"]: (each["url"], each["action"]) for each in data["items"]}


async def test_actions_to_objects_are_found_by_words(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    await scheduler.tasks.resume("payroll.run")
    app = build(authorize=lambda _: Access("ada", "operator"))
    found = await actions(app, "> run payroll")
    run = "Run schedule payroll.run-nightly"
    retry = "Retry TimeoutError: payroll.run after # s of payroll.run (3)…"
    schedule = "Pause schedule payroll.run-nightly…"
    assert list(found) == [run, "Pause task payroll.run…", retry, schedule]
    assert found[run] == ("", "/actions/schedules/trigger?id=payroll.run-nightly")
    pause = await actions(app, ">PAUSE payroll.run")
    pause.pop(retry, None)
    assert pause == {
        "Pause task payroll.run…": ("/task?id=payroll.run#menu-pause", ""),
        "Pause schedule payroll.run-nightly…": ("/schedule-pause?id=payroll.run-nightly", ""),
    }
    page = Page((await request(app, "/find?q=%3Epause+payroll.run")).text)
    form = pause["Pause task payroll.run…"][0]
    assert form in page.links()
    assert 'id="menu-pause"' in (await request(app, form.partition("#")[0])).text
    await send(app, "/actions/tasks/pause?id=payroll.run")
    await scheduler.schedules.pause("payroll.run-nightly")
    fresh = build(authorize=lambda _: Access("ada", "operator"))
    assert set(await actions(fresh, "> resume payroll")) == {
        "Resume task payroll.run",
        "Resume schedule payroll.run-nightly…",
    }
    drain = await actions(app, "> drain host-1")
    assert list(drain) == ["Drain worker host-1…"]
    assert "Drain host-1?" in (await send(app, drain["Drain worker host-1…"][1])).text


async def test_actions_to_objects_follow_rights_and_names(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    for access, verbs in (
        (Access("ada"), set()),
        (Access("ada", can={"task_pause"}), {"Resume task"}),
        (Access("ada", can={"schedule_trigger"}), {"Run schedule"}),
        (Access("ada", can={"schedule_pause"}), {"Pause schedule"}),
        (Access("ada", can={"drain"}), {"Drain worker"}),
        (Access("ada", "admin", names=("other.*",)), set()),
        (Access("ada", can={"retry"}), {"Retry TimeoutError:"}),
        (
            Access("ada", "admin", names=("payroll.*",)),
            {"Resume task", "Retry TimeoutError:", "Run schedule", "Pause schedule"},
        ),
    ):
        app = build(authorize=lambda _, access=access: access)
        found = [name for q in ("> payroll", "> host-1") for name in await actions(app, q)]
        assert {" ".join(name.split()[:2]) for name in found} == verbs, access
        assert not access.names or await actions(app, "> schedule billing") == {}
    admin = build(authorize=lambda _: Access("ada", "admin"), read_only=True)
    assert await actions(admin, "> payroll") == {}


async def test_errors_are_found_with_their_retry(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    app = build(authorize=lambda _: Access("ada", "operator"))
    error = ("error", "TimeoutError: billing.invoice after # s")
    assert await find(app, "timeouterror billing") == [error]
    data = (await request(app, "/find?q=timeouterror+billing", headers=JSON)).data
    assert data["items"][0]["note"] == "billing.invoice, 3 failed jobs"
    assert (await request(app, data["items"][0]["url"])).status == 200
    retry = await actions(app, "> retry timeouterror billing")
    (page, _), *others = retry.values()
    assert list(retry) == ["Retry TimeoutError: billing.invoice after # s of billing.invoice (3)…"]
    assert not others
    address, _, button = page.partition("#")
    assert f'id="{button}"' in (await request(app, address)).text


async def test_limits_are_found_by_those_who_see_a_task_of_them(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    @job(name="billing.sync", limits=[Limit("salesforce", max_running=1)])
    async def sync() -> None: ...

    scheduler.register(sync)
    await scheduler.start()
    assert ("limit", "salesforce") in await find(build(), "sales")
    team = build(authorize=lambda _: Access("bob", names=("mail.*",)))
    assert await find(team, "sales") == []


@pytest.mark.parametrize(
    ("q", "name", "meant"),
    [
        ("billing.invioce", "billing.invoice", "billing.invoice"),
        ("invocie", "billing.invoice", "invoice"),
        ("> paus schedule payrol", "Pause schedule payroll.run-nightly…", ""),
        ("> pasue schedule pyaroll", "Pause schedule payroll.run-nightly…", "> pause schedule payroll"),
    ],
)
async def test_typing_errors_are_forgiven(
    q: str, name: str, meant: str, *, world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    app = build(authorize=lambda _: Access("ada", "operator"))
    data = (await request(app, f"/find?q={quote(q)}", headers=JSON)).data
    assert name in [each["name"] for each in data["items"]]
    assert data["meant"] == meant


async def test_word_that_is_similar_to_nothing_finds_nothing(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    app = build(authorize=lambda _: Access("bob", "admin", names=("billing.*",)))
    for q in ("xyzxyz", "4711", "payrol.run", "> pause payrol", "billing xyzxyz"):
        data = (await request(app, f"/find?q={quote(q)}", headers=JSON)).data
        assert (data["items"], data["meant"]) == ([], ""), q


async def test_correction_of_a_long_index_is_fast(pool: asyncpg.Pool, world: World, app: App) -> None:
    await world.paused_task("team{0}.task-{0:04}x".format, count=3_000)
    await request(app, "/about")
    started = time.perf_counter()
    assert await find(app, "taem9.tsak-9999") != [("task", "")]
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("text", [*HOSTILE, "\0", "x" * 5000], ids=range(len(HOSTILE) + 2))
async def test_hostile_texts_are_shown_as_text(text: str, world: World, app: App) -> None:
    await world.paused_task("task")
    for q in (text, f"> {text}"):
        answer = await request(app, f"/find?q={quote(q)}")
        assert answer.status == 200
        check(answer.text)


async def test_page_counts_what_it_lists_marks_the_words_and_names_what_can_be_found(
    world: World, scheduler: Scheduler, app: App
) -> None:
    await fill(world, scheduler)
    html = (await request(app, "/find?q=PAYROLL")).text
    text = " ".join(Page(html).text.split())
    assert "Find3 foundSearch jobs for “PAYROLL”" in text
    assert "<bdi><mark>payroll</mark>.run-nightly</bdi>" in html
    assert "payroll.run, 3 failed jobs" in text
    await world.paused_task("payroll.task-{}".format, count=100)
    empty = Page((await request(app, "/find")).text)
    assert "a job by its whole id" in " ".join(empty.text.split())
    assert "/jobs" in empty.links()
    examples = [link for link in empty.links() if link.startswith("/find?q=")]
    assert len(examples) == 4
    for link in examples:
        assert "Nothing has this text" not in (await request(app, link)).text


def test_marked_words_are_escaped() -> None:
    assert marked("<b>a&b", "B> a&") == "&lt;<mark>b&gt;</mark><mark>a&amp;</mark>b"
    assert marked("<b>", ">") == "&lt;b&gt;"
