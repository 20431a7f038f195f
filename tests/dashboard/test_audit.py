"""The pages of the audit, and about the dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.pages.audit import VERBS
from pg_scheduler.inspect.audit import ACTIONS
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, Page, request
from tests.dashboard.test_hostile import check
from tests.support import inside
from tests.support.hostile_texts import HOSTILE
from tests.support.world import World

SECRET = "hunter2-secret"


async def fill(scheduler: Scheduler, world: World) -> None:
    """Record a new schedule with secret arguments, a pause, and a search for a secret."""
    await scheduler.schedules.add(
        "board.mail",
        Every(timedelta(hours=1)),
        schedule_id="hourly",
        args=(SECRET,),
        kwargs={"token": SECRET, "plain": "shown"},
        metadata={"token": SECRET},
    )
    await scheduler.tasks.pause("board.mail", note="broken")
    await world.audit("cancel_jobs", details={"where": f"arg.token:{SECRET}", "count": 7})


def actions_of(data: Any) -> list[str]:
    return [each["record"]["action"] for each in data["items"]]


async def test_audit_lists_and_filters_records(
    scheduler: Scheduler, pool: asyncpg.Pool, world: World, app: App
) -> None:
    await fill(scheduler, world)
    data = (await request(app, "/audit", headers=JSON)).data
    assert actions_of(data) == ["cancel_jobs", "pause_task", "add_schedule"]
    page = Page((await request(app, "/audit")).text)
    assert "/schedule?id=hourly" in page.links()
    assert "3 records, newest first" in page.text
    schedule = Page((await request(app, "/schedule?id=hourly")).text)
    link = next(each for each in schedule.links() if "/audit?" in each)
    assert actions_of((await request(app, link, headers=JSON)).data) == ["add_schedule"]
    for query, expected in (
        ("action=pause_task", ["pause_task"]),
        ("subject=hourly", ["add_schedule"]),
        ("via=cli", ["cancel_jobs"]),
        ("actor=nobody", []),
    ):
        assert actions_of((await request(app, f"/audit?{query}", headers=JSON)).data) == expected
    chosen = Page((await request(app, "/audit?action=pause_task")).text)
    assert "action" in {each.get("name") for each in chosen.all("select")}, "no name of an action is typed"
    assert "Pause task" in chosen.text
    assert "pause_task" in {each["value"] for each in chosen.all("option") if "selected" in each}
    await pool.execute("UPDATE scheduler_audit SET at = now() - interval '2 h' WHERE action = 'pause_task'")
    data = (await request(app, "/audit?since=1h", headers=JSON)).data
    assert actions_of(data) == ["cancel_jobs", "add_schedule"]
    for wrong in ("after=x", "actor=%00", "since=2h"):
        assert (await request(app, f"/audit?{wrong}")).status == 400


async def test_records_are_sentences_that_lead_to_their_subjects(world: World, app: App) -> None:
    change = {"before": {"described": "every hour"}, "after": {"described": "every minute"}}
    for action, subject, details in (
        ("retry_jobs", "bulk-7", {"count": 64}),
        ("cancel_jobs", None, {"count": 2, "where": "name:mail.send"}),
        ("delete_jobs", "mail:9", {"count": 1}),
        ("pause_task", "mail.send", {"note": "provider is down"}),
        ("update_schedule", "hourly", change),
        ("declare_dead", "w1", {"count": 1, "worker": {"hostname": "vm"}}),
        ("some_future_action", "thing", {}),
    ):
        await world.audit(action, subject, actor="dana", via="dashboard", details=details)
    page = Page((await request(app, "/audit")).text)
    text = " ".join(page.text.split())
    for sentence in (
        "dana retried 64 jobs (bulk run)",
        "dana cancelled 2 jobs found by name:mail.send",
        "dana deleted the job mail:9",
        "dana paused the task mail.send: “provider is down”",
        "dana changed the schedule hourly",
        "every hour every minute",
        "dana declared the worker w1 dead, 1 job reclaimed",
        "dana some future action thing",
    ):
        assert sentence in text
    links = set(page.links())
    expected = ("/run?id=bulk-7", "/jobs?q=name%3Amail.send", "/job?id=mail%3A9", "/task?id=mail.send")
    assert {*expected, "/schedule?id=hourly", "/worker?id=w1"} <= links


async def test_batches_of_a_bulk_run_are_one_sentence(world: World, app: App) -> None:
    for action, subject, count in (
        ("start_bulk", "bulk-7", 0),
        ("retry_jobs", "bulk-7", 500),
        ("retry_jobs", "bulk-8", 3),
        ("pause_task", "mail.send", 0),
        ("retry_jobs", "bulk-7", 500),
        ("retry_jobs", "bulk-7", 64),
        ("end_bulk", "bulk-7", 0),
    ):
        await world.audit(action, subject, actor="dana", via="dashboard", details={"count": count})
    text = " ".join(Page((await request(app, "/audit")).text).text.split())
    assert text.count("dana retried") == 2
    assert "dana retried 1,064 jobs (bulk run, 3 batches)" in text
    assert "dana retried 3 jobs (bulk run)" in text
    assert "dana started the bulk run" in text
    exported = (await request(app, "/export?page=audit&format=jsonl")).text
    assert len(exported.splitlines()) == 7, "each record"


async def test_audit_is_exported(
    scheduler: Scheduler, pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    await fill(scheduler, world)
    await pool.execute("UPDATE scheduler_audit SET actor = '=cmd()' WHERE action = 'pause_task'")
    answer = await request(build(), "/export?page=audit&format=csv&action=pause_task")
    assert answer.headers["content-disposition"] == 'attachment; filename="audit.csv"'
    head, row = answer.text.splitlines()
    assert head == "id,at,actor,via,action,subject,details"
    assert ",'=cmd()," in row
    hidden = build(authorize=lambda _: Access("bob", sees_arguments=False))
    lines = (await request(hidden, "/export?page=audit&format=jsonl")).text
    assert [json.loads(line)["action"] for line in lines.splitlines()][:2] == ["cancel_jobs", "pause_task"]
    assert SECRET not in lines
    limited = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    assert (await request(limited, "/export?page=audit")).status == 403


async def test_audit_is_continued(
    scheduler: Scheduler, world: World, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, audit_page=2)
    await fill(scheduler, world)
    first = Page((await request(app, "/audit?actor=")).text)
    (following,) = [each["href"] for each in first.all("a") if each.get("rel") == "next"]
    assert len((await request(app, following or "", headers=JSON)).data["items"]) == 1


async def test_audit_hides_values(scheduler: Scheduler, world: World, build: Callable[..., App]) -> None:
    await fill(scheduler, world)
    apps = [
        build(redact=lambda key: key in {"token", "0"}),
        build(authorize=lambda _: Access("bob", sees_arguments=False)),
    ]
    for app in apps:
        for headers in ({}, JSON):
            answer = await request(app, "/audit", headers=headers)
            assert answer.status == 200
            assert SECRET not in answer.text
            assert "hourly" in answer.text
    assert "shown" in (await request(apps[0], "/audit")).text
    assert SECRET in (await request(build(), "/audit")).text


async def test_audit_needs_all_names(build: Callable[..., App]) -> None:
    app = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    answer = await request(app, "/audit")
    assert answer.status == 403
    Page(answer.text)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_records_are_shown_as_text(text: str, world: World, app: App) -> None:
    for action in (text, "add_schedule", "cancel_job"):
        await world.audit(action, text, actor=text, via=text, details={text: text, "where": text})
    for url in ("/audit", f"/audit?subject={quote(text)}&actor={quote(text)}"):
        answer = await request(app, url)
        assert answer.status == 200
        check(answer.text)
        assert len((await request(app, url, headers=JSON)).data["items"]) == 3


async def test_each_page_has_a_key_of_its_own(app: App) -> None:
    html = (await request(app, "/about")).text
    by_key = {attrs["data-key"]: attrs["title"] for attrs in Page(html).all("a") if "data-key" in attrs}
    listed = re.findall(r"<kbd>g</kbd>\s*<kbd>(.)</kbd></dt><dd>([^<]+)</dd>", html)
    assert len({key for key, _ in listed}) == len(listed)
    assert dict(listed) == {key: title for key, title in by_key.items() if title != "About"}


async def test_about_states_rights(build: Callable[..., App]) -> None:
    app = build(authorize=lambda _: Access("<b>bob", names=("billing.*", "<i>"), sees_arguments=False))
    answer = await request(app, "/about")
    check(answer.text)
    page = Page(answer.text)
    assert "billing.*, <i>" in page.text
    assert "hidden" in page.text
    data = (await request(app, "/about", headers=JSON)).data
    assert (data["role"], data["sees_arguments"], data["refresh_s"]) == ("viewer", False, 2.0)


def test_each_action_of_the_audit_has_a_sentence() -> None:
    assert set(VERBS) == set(ACTIONS)


async def test_records_are_in_the_order_of_their_times(pool: asyncpg.Pool, world: World, app: App) -> None:
    """Transactions that overlap can get ids in another order than their times."""
    for action in ("pause_task", "resume_task", "cancel_jobs"):
        await world.audit(action, "mail.send")
    await pool.execute("UPDATE scheduler_audit SET at = now() + interval '1 s' WHERE action = 'pause_task'")
    data = (await request(app, "/audit", headers=JSON)).data
    assert actions_of(data) == ["pause_task", "cancel_jobs", "resume_task"]


async def test_ways_of_records_are_chosen_from_a_list(app: App) -> None:
    page = Page((await request(app, "/audit?via=an+older+way")).text)
    assert {"cli", "dashboard", "an older way"} <= {each["value"] for each in page.all("option")}
    assert "via" in {each.get("name") for each in page.all("select")}
