"""The list of jobs: tabs, terms, columns and rows, the selection, and the completion of terms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Job, Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, Page, request, send
from tests.dashboard.test_actions import as_role
from tests.dashboard.test_jobs import SECRET, add
from tests.support.inside import quarantine_error
from tests.support.world import HOUR, MINUTE, SECOND, World


async def fill(world: World, count: int = 8) -> None:
    await world.jobs(
        count,
        lambda n: ("list.mail", "list.report")[n % 2],
        job_id="j{:03}".format,
        status="failed",
        worker_id="w1",
        due=-HOUR,
        started=-10 * MINUTE,
        ended=lambda n: -10 * MINUTE + n * 1.25 * SECOND,
        error_message="ValueError: no answer {}".format,
        attempt=3,
        retry_count=2,
        max_retries=2,
        task_data=lambda n: {
            "args": [f"https://example.org/{n % 3}"],
            "kwargs": {"account": n % 4, "token": "hunter2-secret"},
            "metadata": {"tags": ["billing"], "tenant": "acme"},
        },
    )
    await world.pool.execute("VACUUM ANALYZE scheduled_jobs")


async def page_of(app: App, url: str) -> Page:
    answer = await request(app, url)
    assert answer.status == 200, answer.text
    return Page(answer.text)


async def data_of(app: App, url: str) -> Any:
    return (await request(app, url, headers=JSON)).data


async def head_of(app: App, url: str) -> str:
    summary = re.search(r'id="summary"[^>]*><span[^>]*>([^<]*)<', (await request(app, url)).text)
    assert summary is not None
    return summary[1].strip()


def heads(page: Page) -> int:
    return len(page.all("th"))


async def test_row_of_a_waiting_job_states_that_its_task_is_paused(
    scheduler: Scheduler, app: App, build: Callable[..., App]
) -> None:
    await add(scheduler, job_id="one")
    name = "board.mail"
    assert (await data_of(app, "/jobs"))["items"][0]["paused_task"] is None
    await scheduler.tasks.pause(name)
    app = build()
    page = await page_of(app, "/jobs?q=status:scheduled")
    assert "task paused" in page.text
    assert f"/task?id={name}" in page.links()
    await scheduler.cancel_job("one")
    assert "task paused" not in (await page_of(app, "/jobs?q=status:cancelled")).text
    await scheduler.tasks.resume(name)
    await add(scheduler, job_id="two")
    assert "task paused" not in (await page_of(build(), "/jobs")).text


# -- states and terms ----------------------------------------------------------------------------------


async def test_tabs_show_the_number_of_jobs_of_each_state(
    scheduler: Scheduler, world: World, app: App
) -> None:
    await fill(world)
    await add(scheduler, job_id="later")
    data = await data_of(app, "/jobs?q=status:failed")
    tabs = {label: (count, is_current) for label, count, _, is_current in data["tabs"]}
    assert tabs["Failed"] == ("8", True)
    assert tabs["Scheduled"] == ("1", False)
    assert tabs["All"] == ("~8", False)
    assert tabs["Running"] == ("0", False)
    page = await page_of(app, "/jobs?q=status:failed")
    assert "/jobs?q=status%3Ascheduled" in page.links()
    assert data["total"] == "8"


async def test_tab_of_the_list_has_the_number_of_the_list(world: World, app: App) -> None:
    """The counts of tabs are older than the list, so 'Running 8' was above '11 found'."""

    async def shown(url: str) -> tuple[str, str]:
        data = (await request(app, url, headers=JSON)).data
        ((_, count, _, _),) = [tab for tab in data["tabs"] if tab[3]]
        return count, data["total"]

    assert await shown("/jobs?q=status:running") == ("0", "0")
    await world.jobs(3, "list.mail", status="running")
    assert await shown("/jobs?q=status:running") == ("3", "3")
    await world.jobs(57, "list.mail", status="running")
    assert await shown("/jobs?q=status:running") == ("50+", "50+")


async def test_tabs_keep_the_other_terms_and_then_count_nothing(world: World, app: App) -> None:
    await fill(world)
    data = await data_of(app, "/jobs?q=name:list.mail+status:failed")
    assert [tab for tab in data["tabs"] if tab[3]] == [["Failed", "", "name:list.mail status:failed", True]]
    assert {count for _, count, _, _ in data["tabs"]} == {""}
    for q, current in (("", "All"), ("status:failed,expired", None), ("-status:failed", None)):
        data = await data_of(app, f"/jobs?q={q}")
        assert [label for label, _, _, is_current in data["tabs"] if is_current] == (
            [current] if current else []
        )


async def test_numbers_of_all_jobs_are_hidden_with_names(world: World, build: Callable[..., App]) -> None:
    await fill(world, 60)
    app = build(authorize=lambda _: Access("bob", names=("list.mail",)))
    data = await data_of(app, "/jobs?q=status:failed")
    assert {count for _, count, _, _ in data["tabs"]} == {""}
    assert (data["found"], data["total"]) == (30, "30"), "those that are visible"
    assert "60" not in json.dumps([data["tabs"], data["summary"]])


async def test_head_states_how_many_jobs_there_are_and_their_order(
    pool: asyncpg.Pool, world: World, app: App
) -> None:
    await fill(world, 60)
    newest, all_jobs, by_id = (
        "the newest end first",
        "newest first; those with chosen ids follow",
        "by id, descending",
    )
    for url, head in {
        "/jobs?q=status:failed": newest,
        "/jobs": all_jobs,
        "/jobs?q=status:failed&sort=due": "",
        "/jobs?q=status:failed+list.mail": f"30 jobs, {newest}",
        "/jobs?q=list.mail": f"30 jobs, {by_id}",
        "/jobs?q=list.mail&sort=due": "30 jobs",
        "/jobs?q=status:due": "0 jobs",
    }.items():
        assert await head_of(app, url) == head, url
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id > 'j020'")
    assert await head_of(app, "/jobs") == f"20 jobs, {all_jobs}"


async def test_head_of_failed_jobs_counts_those_that_are_quarantined(world: World, app: App) -> None:
    await fill(world, 3)
    await world.job(
        "poison", status="failed", ended=-SECOND, crash_count=3, error_message=quarantine_error(3)
    )
    assert (
        await head_of(app, "/jobs?q=status:failed") == "4 jobs, 1 of them quarantined, the newest end first"
    )


async def test_list_of_pending_jobs_states_what_each_waits_for_and_when_it_is_due(
    world: World, app: App
) -> None:
    await world.job("due", "list.mail", due=-MINUTE)
    await world.job("later", "list.mail", due=HOUR)
    await world.job("full", "list.mail", due=-MINUTE, blocked_on="limit:bank:")
    await world.job("held", "list.report", due=-MINUTE)
    await world.paused_task("list.report")
    page = await page_of(app, "/jobs?q=status:pending")
    text = " ".join(page.text.split())
    assert "State Waits for Due" in text
    assert "task list.report, paused by" in text
    assert "limit bank" in text
    assert "a slot due 60 s ago" in text
    assert "its due time in 60 min" in text
    assert "Error, retries" in (await page_of(app, "/jobs?q=status:due,failed")).text


async def test_each_term_has_a_link_to_the_search_without_it(world: World, app: App) -> None:
    await fill(world)
    page = await page_of(app, "/jobs?q=status:failed+-tag:%22a%20b%22+list&sort=due&cols=worker")
    removed = [each for each in page.all("a") if str(each.get("aria-label")).startswith("Remove ")]
    assert [each["href"] for each in removed] == [
        "/jobs?q=-tag%3A%22a%20b%22%20any%3A~list&sort=due&cols=worker",
        "/jobs?q=status%3Afailed%20any%3A~list&sort=due&cols=worker",
        "/jobs?q=status%3Afailed%20-tag%3A%22a%20b%22&sort=due&cols=worker",
    ]
    assert "not tag" in page.text


async def test_form_without_a_script_adds_a_term(world: World, app: App) -> None:
    await fill(world)
    page = await page_of(app, "/jobs?q=status:failed")
    kept = [
        each["value"] for each in page.all("input") if each.get("name") == "q" and each["type"] == "hidden"
    ]
    assert kept.count("status:failed") >= 1
    data = await data_of(app, "/jobs?q=status%3Afailed&q=name%3Alist.mail")
    assert (data["q"], len(data["items"])) == ("status:failed name:list.mail", 4)


async def test_invalid_search_stays_in_its_field(app: App) -> None:
    page = Page((await request(app, "/jobs?q=status:failed&q=statsu:x")).text)
    (field,) = [each for each in page.all("input") if each.get("id") == "q"]
    assert (field["value"], field["aria-invalid"]) == ("status:failed statsu:x", "true")
    assert not [each for each in page.all("a") if str(each.get("aria-label")).startswith("Remove ")]


async def test_unknown_field_names_the_one_of_arguments(app: App) -> None:
    assert "for an argument, write arg.account:" in (await request(app, "/jobs?q=account:113")).text


# -- columns and rows ----------------------------------------------------------------------------------


async def test_columns_follow_the_state(
    scheduler: Scheduler, pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    app = build()
    await fill(world)
    await world.worker("w7", identity="copier")
    await add(scheduler, job_id="later")
    await world.job(
        "runs",
        "list.import",
        status="running",
        worker_id="w7",
        progress={"done": 1, "total": 4, "note": "half of it"},
    )
    failed = await page_of(app, "/jobs?q=status:failed")
    assert "Error" in failed.text
    assert "ValueError: no answer 8" in failed.text
    assert "2 of 2 retries used" in failed.text
    assert "10 s" in failed.text, "the length of the eighth"
    running = await page_of(app, "/jobs?q=status:running")
    assert "Runs for" in running.text
    assert "25 %" in running.text
    assert "/worker?id=w7" in running.links()
    assert "half of it" in running.text
    assert "copier" in running.text
    assert [each["data-late"] for each in running.all("time") if "data-late" in each] == [None]
    hidden = await page_of(build(authorize=lambda _: Access("bob", sees_arguments=False)), "/jobs?q=w7")
    assert "half of it" not in hidden.text
    scheduled = await page_of(app, "/jobs?q=status:scheduled")
    assert "in 60 min" in scheduled.text
    assert "sort=error" not in str(scheduled.links())


async def test_address_chooses_the_columns(world: World, app: App) -> None:
    await fill(world)
    page = await page_of(app, "/jobs?q=status:failed&cols=worker&cols=priority")
    assert heads(page) == 3
    assert {"/worker?id=w1"} <= set(page.links())
    assert "ValueError" not in page.text.replace("error:", "")
    boxes = [each for each in page.all("input") if each.get("name") == "cols" and "checked" in each]
    assert [each["value"] for each in boxes] == ["worker", "priority"]
    assert (await request(app, "/jobs?cols=nothing")).status == 400


async def test_row_shows_arguments_as_far_as_the_request_sees_them(
    world: World, build: Callable[..., App]
) -> None:
    await fill(world, 1)
    shown = '"https://example.org/1", token=hidden, account=1'

    def text(job: Job) -> str:
        return f"account {job.kwargs['account']} with {job.kwargs['token']}"

    for arguments, expected in (
        ({"redact": ["token"]}, shown),
        ({"redact": lambda key: key in {"0", "token"}}, "hidden, token=hidden, account=1"),
        ({"redact": ["token"], "format_arguments": text}, "account 1 with [hidden]"),
        ({"authorize": lambda _: Access("bob", sees_arguments=False)}, None),
    ):
        app = build(**arguments)
        (row,) = (await data_of(app, "/jobs"))["items"]
        assert row["arguments"] == expected
        answer = await request(app, "/jobs")
        assert SECRET not in answer.text
        assert (expected or "arguments hidden") in Page(answer.text).text


async def test_row_of_a_job_with_many_arguments_is_short(world: World, app: App) -> None:
    kwargs = {"rows": [{"n": n} for n in range(5000)], "text": "x" * 50_000}
    await world.job("large", "list.large", task_data={"args": [], "kwargs": kwargs})
    answer = await request(app, "/jobs?q=id:large")
    assert "rows=[5,000 items]" in answer.text
    assert len(answer.body) < 40_000
    (row,) = (await data_of(app, "/jobs?q=id:large"))["items"]
    assert len(row["arguments"]) <= 121


async def test_blocked_job_has_links_to_what_it_waits_for(
    scheduler: Scheduler, pool: asyncpg.Pool, build: Callable[..., App]
) -> None:
    for number in range(5):
        await add(scheduler, "list.load", job_id=f"load-{number}")
    await add(scheduler, "list.join", job_id="join", after=[f"load-{number}" for number in range(5)])
    await add(scheduler, "list.pay", job_id="pay")
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:stripe:42' WHERE job_id = 'pay'")
    page = await page_of(build(), "/jobs?q=status:blocked")
    assert [each["href"] for each in page.all("a") if "data-blocker" in each] == [
        f"/job?id=load-{number}" for number in range(3)
    ]
    assert "and others" in page.text
    assert "/limit?name=stripe" in page.links()
    closed = build(authorize=lambda _: Access("bob", names=("list.join",)))
    page = await page_of(closed, "/jobs?q=status:blocked")
    assert "other jobs" in page.text
    assert "load-" not in (await request(closed, "/jobs?q=status:blocked", headers=JSON)).text


async def test_job_that_waits_for_its_turn_names_the_share(
    scheduler: Scheduler, pool: asyncpg.Pool, build: Callable[..., App]
) -> None:
    await add(scheduler, "list.export", job_id="export")
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'share:exports:acme' WHERE job_id = 'export'")
    page = await page_of(build(), "/jobs?q=status:blocked")
    assert "share exports" in page.text
    assert "other jobs" not in page.text


# -- the selection -------------------------------------------------------------------------------------


def actions(page: Page) -> set[str]:
    return {str(each["id"]) for each in page.all("button") if "formaction" in each}


async def test_list_offers_the_actions_that_the_state_and_the_rights_allow(
    scheduler: Scheduler, world: World, build: Callable[..., App]
) -> None:
    await fill(world)
    await add(scheduler, job_id="later")
    admin = as_role(build, "admin")
    for q, role, expected in (
        ("status:failed", admin, {"retry", "delete"}),
        ("status:scheduled", admin, {"cancel", "run", "move", "delete"}),
        ("", admin, {"retry", "cancel", "run", "move", "delete"}),
        ("status:failed", as_role(build, "operator"), {"retry"}),
        ("status:failed", as_role(build, "viewer"), set[str]()),
    ):
        assert actions(await page_of(role, f"/jobs?q={q}")) == expected, q
    page = await page_of(admin, "/jobs")
    allowed = {each["value"]: each["data-actions"] for each in page.all("input") if each.get("name") == "row"}
    assert allowed["later"] == "cancel delete move"
    assert allowed["j001"] == "retry delete"


async def test_press_without_a_selection_shows_the_list_with_a_message(
    scheduler: Scheduler, world: World, build: Callable[..., App]
) -> None:
    await fill(world)
    await scheduler.schedules.add("list.mail", Every(hours=1), schedule_id="hourly")
    app = as_role(build, "admin")
    for url, back in (
        ("/actions/jobs/retry?q=status%3Afailed&sort=due", "/jobs?q=status%3Afailed&sort=due"),
        ("/actions/jobs/delete", "/jobs"),
        ("/actions/schedules/pause", "/schedules"),
    ):
        answer = await send(app, url)
        assert (answer.status, answer.headers["location"]) == (303, back)
        cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
        assert "select rows first" in Page((await request(app, back, headers=cookie)).text).text
        program = await send(app, url, headers=JSON)
        assert (program.status, program.data["text"]) == (400, "select a row first")


@pytest.mark.parametrize("action", ["cancel", "retry", "run", "move", "delete"])
async def test_all_jobs_that_match_are_changed_after_a_question(
    action: str, scheduler: Scheduler, world: World, build: Callable[..., App]
) -> None:
    await fill(world)
    for number in range(3):
        await add(scheduler, "list.mail", job_id=f"later-{number}")
    app = as_role(build, "admin")
    number = 4 if action == "retry" else 7 if action == "delete" else 3
    fields = {"all": "yes", "row": "j002", "to": "2031-02-03T04:05"}
    asked = Page((await send(app, f"/actions/jobs/{action}?q=name%3Alist.mail", fields)).text)
    assert f"{number} jobs found" in asked.text
    (form,) = [each for each in asked.all("form") if each.get("method") == "post"]
    sent = {
        str(each["name"]): each.get("value") or "" for each in asked.all("input") if each.get("name") != "q"
    }
    answer = await send(app, str(form["action"]), {**sent, "rate": "1000"})
    assert answer.headers["location"].startswith("/run?id="), answer.text
    await app._operations.runs.wait()  # type: ignore[attr-defined]
    run = answer.headers["location"]
    data = await data_of(app, run)
    assert (data["done"], data["rate"]) == (number, 1000)
    if action in {"run", "move"}:
        assert data["to"].startswith("2031") is (action == "move")


# -- completion ----------------------------------------------------------------------------------------


async def completions(app: App, typed: str, q: str = "") -> dict[str, int | None]:
    answer = await request(app, f"/complete?q={quote(q)}&term={quote(typed)}", headers=JSON)
    assert answer.status == 200, answer.text
    return {each["text"]: each["jobs"] for each in answer.data}


async def test_terms_are_completed_with_their_numbers(world: World, app: App) -> None:
    await fill(world)
    assert (await completions(app, "sta")) == {"status:": None}
    assert (await completions(app, "-status:fa")) == {"-status:failed": None}
    assert (await completions(app, "arg")) == {"arg.0:": 8, "arg.account:": 8, "arg.token:": 8}
    assert (await completions(app, "arg.account:")) == {f"arg.account:{n}": 2 for n in range(4)}
    assert (await completions(app, "arg.account:", "name:list.mail")) == {
        "arg.account:0": 2,
        "arg.account:2": 2,
    }
    assert (await completions(app, "name:")) == {"name:list.mail": 4, "name:list.report": 4}
    assert (await completions(app, "list.r")) == {"name:list.report": 4}
    assert (await completions(app, "rep")) == {"name:list.report": 4}
    assert (await completions(app, "-ACC")) == {"-arg.account:": 8}
    assert (await completions(app, "tag:")) == {"tag:billing": 8}
    assert (await completions(app, "metadata.")) == {"metadata.tenant:": 8}
    assert (await completions(app, "error:")) == {"error:ValueError*": 8}
    assert (await completions(app, "worker:")) == {"worker:w1": 8}
    for typed in ('arg.0:"https://example.org/1', "arg.0:https"):
        for text in await completions(app, typed):
            found = await data_of(app, f"/jobs?q={quote(text)}")
            assert found["items"], text
    for typed, q in (
        ("statsu:x", ""),
        ('"', ""),
        ("arg.:", ""),
        ("name:", 'x"'),
        ("x" * 5000, ""),
        ("%00", ""),
    ):
        assert isinstance(await completions(app, typed, q), dict)


async def test_value_is_completed_though_the_newest_jobs_do_not_have_it(
    pool: asyncpg.Pool, world: World, app: App
) -> None:
    await fill(world, 300)
    await pool.execute(
        "UPDATE scheduled_jobs SET task_data = jsonb_set(task_data::jsonb, '{kwargs,account}', '987')"
        " WHERE job_id = 'j001'"
    )
    assert (await completions(app, "arg.account:98")) == {"arg.account:987": 1}


async def test_completion_shows_nothing_that_is_hidden(world: World, build: Callable[..., App]) -> None:
    await fill(world)
    redacted = build(redact=["token", "tenant"])
    assert (await completions(redacted, "arg.")) == {"arg.0:": 8, "arg.account:": 8}
    assert (await completions(redacted, "metadata.")) == {}
    assert (await completions(redacted, "arg.token:h")) == {}
    assert set(await completions(redacted, "arg.account:")) == {f"arg.account:{n}" for n in range(4)}
    blind = build(authorize=lambda _: Access("bob", sees_arguments=False))
    for typed in ("arg.", "metadata.", "tag:", "arg.token:h"):
        assert (await completions(blind, typed)) == {}, typed
    closed = build(authorize=lambda _: Access("bob", names=("list.mail",)))
    assert (await completions(closed, "name:")) == {"name:list.mail": 4}
    assert (await completions(closed, "arg.account:")) == {"arg.account:0": 2, "arg.account:2": 2}
    for app in (redacted, blind):
        for url in ("/jobs", "/complete?term=arg.token:", "/complete?q=arg.token:h*&term=arg."):
            assert SECRET not in (await request(app, url)).text


async def test_sample_of_one_request_is_not_shown_to_another(world: World, build: Callable[..., App]) -> None:
    await fill(world)
    rights = [
        Access("ada"),
        Access("bob", names=("list.mail",)),
        Access("eve", sees_arguments=False),
        Access("mia", names=()),
    ]
    app = build(authorize=lambda _: rights[0])
    found = []
    while rights:
        found.append((len(await completions(app, "name:")), len(await completions(app, "arg."))))
        rights.pop(0)
    assert found == [(2, 3), (1, 3), (2, 0), (0, 0)]


async def test_retry_that_is_ahead_is_not_counted_as_used(world: World, build: Callable[..., App]) -> None:
    await world.job("again", "list.mail", due=HOUR, retry_count=2, max_retries=2, attempt=2)
    page = await page_of(as_role(build, "admin"), "/jobs?q=status:retrying")
    assert "retry 2 of 2 is next" in page.text
    assert "retries used" not in page.text


async def test_phones_keep_the_progress_of_running_jobs(world: World, app: App) -> None:
    """They leave out cells of the class ``less``."""
    await world.job("import", status="running", started=-MINUTE, progress={"done": 1, "total": 4})
    await world.job("plain", status="running", started=-MINUTE)
    html = (await request(app, "/jobs?q=status:running")).text
    cells = dict(re.findall(r'<tr data-key="(\w+)".*?<td class="fit (done[ \w]*)">', html, re.DOTALL))
    assert cells == {"import": "done", "plain": "done less"}
