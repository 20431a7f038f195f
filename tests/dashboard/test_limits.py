"""The pages of limits: what is in use, what waits, and who sees it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import asyncpg
import pytest

from pg_scheduler.dashboard import Access
from tests.dashboard.client import JSON, App, Page, request, stream
from tests.dashboard.test_hostile import check
from tests.support import inside
from tests.support.hostile_texts import HOSTILE
from tests.support.patience import PATIENCE
from tests.support.world import MINUTE, World


def declare(name: str, *tasks: str, **numbers: object) -> list[dict[str, object]]:
    none = {"by_key": False, "max_running": None, "max_starts": None, "per_s": None}
    return [{"name": name, "task": task, **none, **numbers} for task in tasks]


async def fill(world: World) -> None:
    """Add a shared limit of two teams, and one by key, for which five jobs wait."""
    limits = declare("stripe", "billing.charge", "payroll.pay", max_running=20)
    limits += declare(
        "account", "billing.charge", by_key=True, max_running=1, max_starts=5, per_s=10.0, spread=True
    )
    await world.worker(settings={"limits": limits})
    await world.job("run", "billing.charge", status="running")
    await world.start("limit:stripe:", "run")
    await world.start("limit:account:lovelace", "run", keep_s=600)
    await world.start("limit:account:cid", "run")
    for number, key in enumerate(("lovelace", "lovelace", "lovelace", "b*b", "b*b"), 1):
        await world.job(f"wait:{number}", "billing.charge", blocked_on=f"limit:account:{key}")


async def test_limit_without_starts_states_when_the_last_waiting_job_starts(world: World, app: App) -> None:
    await world.worker(settings={"limits": declare("bank", "bank.pay", max_running=2)})
    await world.attempts("bank.pay", 50, at=-10 * MINUTE, took_s=60)
    await world.job("run", "bank.pay", status="running")
    await world.start("limit:bank:", "run")
    for number in range(5):
        await world.job(f"wait:{number}", "bank.pay", blocked_on="limit:bank:")
    page = Page((await request(app, "/limit?name=bank")).text)
    text = " ".join(page.text.split())
    turn = r"5 jobs waiting: at the usual ~60 s, the last one starts in ~\d+ (s|min)"
    assert re.search(turn, text), text
    assert "KeyRunningWaitingRuns nowStarts next" in text, "no column of starts"
    assert "5 waiting jobs" not in text, "the sentence has their number"
    limits = " ".join(Page((await request(app, "/limits")).text).text.split())
    assert "LimitRunningWaiting bank bank.pay · at most 2 running" in limits, "no column of starts or keys"


async def test_limit_that_an_attempt_holds_for_long_names_that_instead_of_a_turn(
    world: World, build: Callable[..., App]
) -> None:
    await world.worker(settings={"limits": declare("bank", "bank.pay", max_running=1)})
    await world.attempts("bank.pay", 50, at=-10 * MINUTE, took_s=0.5)
    await world.job("run", "bank.pay", status="running", started=-5 * MINUTE)
    await world.start("limit:bank:", "run", at=-5 * MINUTE)
    await world.job("wait", "bank.pay", blocked_on="limit:bank:")
    page = Page((await request(build(), "/limit?name=bank")).text)
    text = " ".join(page.text.split())
    assert "1 job waiting: an attempt that holds the limit runs for 5 min, usually" in text
    assert "Show its job" in text
    assert page.links().count("/job?id=run") == 2
    assert re.search(r"bank\.pay no arguments for 5 min, usually ~\d+ ms", text), text
    assert "the last one starts" not in text


async def test_running_job_that_takes_far_longer_than_usual_is_marked(
    world: World, build: Callable[..., App]
) -> None:
    await world.worker(settings={"limits": declare("bank", "bank.pay", max_running=2)})
    await world.attempts("bank.pay", 50, at=-10 * MINUTE, took_s=60)
    await world.job("slow", "bank.pay", status="running", started=-50 * MINUTE)
    await world.job("quick", "bank.pay", status="running", started=-MINUTE)
    await world.job("wait", "bank.pay", blocked_on="limit:bank:")
    app = build()
    for job_id, is_long in (("slow", True), ("quick", False)):
        html = (await request(app, f"/job?id={job_id}")).text
        assert bool(re.search(r'<span class="warn-text">usually\s+~60 s', html)) is is_long, job_id
        assert "1 job waits for its limit bank" in " ".join(Page(html).text.split())
    html = (await request(app, "/")).text
    assert re.findall(r'<span class="sub( warn-text)?">usually', html).count(" warn-text") == 1


async def test_limit_has_the_finding_about_jobs_that_expired_while_they_waited(
    world: World, app: App
) -> None:
    limits = declare("bank", "bank.pay", max_running=1)
    limits += declare("account", "bank.pay", max_running=1, by_key=True)
    await world.worker(settings={"limits": limits})
    await world.attempts("bank.pay", 0, at=-MINUTE, expired=3)
    waited = {"expiry": "waited", "waited": {"for": "limit:bank:", "until": "12:00"}}
    for number in range(3):
        await world.job(f"gone:{number}", "bank.pay", status="expired", ended=-MINUTE, options=waited)
    text = " ".join(Page((await request(app, "/limit?name=bank")).text).text.split())
    assert "Jobs of bank.pay expire before they start" in text
    assert "3 waited for the limit 'bank'" in text
    other_text = (await request(app, "/limit?name=account")).text
    assert "expire before they start" not in other_text
    assert "No job runs or waits within this limit now." in other_text


async def test_limits_with_waiting_jobs_come_first_then_full_ones(world: World, app: App) -> None:
    limits = [
        *declare("a", "one", max_running=1),
        *declare("b", "two", max_running=1),
        *declare("c", "three", max_running=1),
    ]
    await world.worker(settings={"limits": limits})
    await world.job("run", "two", status="running")
    await world.start("limit:b:", "run")
    await world.job("wait", "three", blocked_on="limit:c:")
    answer = await request(app, "/limits")
    assert [row["name"] for row in (await request(app, "/limits", headers=JSON)).data["items"]] == [
        "c",
        "b",
        "a",
    ]
    assert "Next start" not in answer.text


async def test_limits_state_their_use_and_lead_to_the_jobs_that_wait(world: World, app: App) -> None:
    await fill(world)
    account, stripe = (await request(app, "/limits", headers=JSON)).data["items"]
    assert stripe["tasks"] == ["billing.charge", "payroll.pay"]
    ((one,), (other,)) = account["declared"], stripe["declared"]
    assert (other["running"], other["max_running"], other["spread"]) == (1, 20, False)
    assert (one["by_key"], one["running"], one["spread"]) == (True, None, True)
    assert (account["waiting"], account["full_keys"], stripe["full_keys"]) == (5, 2, None)
    page = Page((await request(app, "/limits")).text)
    assert "2 limits, 5 waiting jobs" in page.text
    assert "at most 5 in 10 s per key spread" in " ".join(page.text.split())
    assert "1 / 20" in page.text
    (waiting,) = [each for each in page.links() if each.startswith("/jobs?q=limit%3Aaccount")]
    assert len((await request(app, waiting, headers=JSON)).data["items"]) == 5
    answer = await request(app, "/limit?name=account")
    check(answer.text)
    searches = [each for each in Page(answer.text).links() if "limit%3A%22account%3A" in each]
    assert ["Outcomes per minute" in answer.text, "Lateness of starts" in answer.text] == [True, True]
    found = [len((await request(app, each, headers=JSON)).data["items"]) for each in searches]
    assert found == [3, 2, 0], "a search per key, that with most jobs first"
    keys = (await request(app, "/limit?name=account", headers=JSON)).data["keys"]
    states = [each["state"] for each in keys]
    assert [(each["key"], each["running"], each["waiting"]) for each in states] == [
        ("lovelace", 1, 3),
        ("b*b", 0, 2),
        ("cid", 1, 0),
    ]
    jobs = [[[job["job_id"] for job in each[part]] for part in ("holders", "queue")] for each in keys]
    assert jobs == [[["run"], ["wait:1", "wait:2"]], [[], ["wait:4", "wait:5"]], [["run"], []]]
    assert {"/job?id=run", "/job?id=wait%3A1"} <= set(Page(answer.text).links())
    assert "1 / 1" in Page(answer.text).text
    assert "3 keys, 5 waiting jobs" in Page(answer.text).text
    assert (await request(app, "/limit?name=nothing")).status == 404


async def test_numbers_of_limits_that_hidden_tasks_share_are_hidden(
    world: World, build: Callable[..., App]
) -> None:
    await fill(world)
    app = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    account, stripe = (await request(app, "/limits", headers=JSON)).data["items"]
    assert account["waiting"] == 5
    assert (stripe["declared"][0]["running"], stripe["waiting"], stripe["is_shared"]) == (None, None, True)
    for url in ("/limits", "/limit?name=stripe"):
        answer = await request(app, url)
        assert answer.status == 200
        assert "payroll" not in answer.text
        assert "and others" in Page(answer.text).text
    assert (await request(app, "/limit?name=stripe", headers=JSON)).data["keys"] == []
    other = build(authorize=lambda _: Access("eve", names=("mail.*",)))
    assert (await request(other, "/limits", headers=JSON)).data["items"] == []
    assert (await request(other, "/limit?name=account")).status == 404


async def test_keys_of_a_limit_are_hidden_with_arguments(world: World, build: Callable[..., App]) -> None:
    await fill(world)
    app = build(authorize=lambda _: Access("bob", sees_arguments=False), refresh=60.0)
    for headers in ({}, JSON):
        for url in ("/limits", "/limit?name=account", "/job?id=wait:1"):
            answer = await request(app, url, headers=headers)
            assert answer.status == 200
            assert "lovelace" not in answer.text, url
            assert "b*b" not in answer.text, url
    keys = [each["state"] for each in (await request(app, "/limit?name=account", headers=JSON)).data["keys"]]
    assert [(each["key"], each["running"], each["waiting"]) for each in keys] == [
        ("[hidden]", 1, 3),
        ("[hidden]", 0, 2),
        ("[hidden]", 1, 0),
    ]
    job = (await request(app, "/job?id=wait:1", headers=JSON)).data
    assert job["job"]["blocked_on"] == "limit:account:[hidden]"
    assert job["explanation"]["reasons"][0]["text"] == "Waits for a limit"
    assert (await request(app, "/limit?name=stripe", headers=JSON)).data["keys"][0]["state"]["key"] == ""
    async with asyncio.timeout(PATIENCE), stream(app, "/live?page=/job&id=wait:1") as read:
        await read()
        event = await read()
    assert "[hidden]" in event
    assert "limit:account:lovelace" not in event


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_limits_are_shown_as_text(text: str, world: World, app: App) -> None:
    limits = declare(text, text, max_running=text, max_starts=[text], per_s={text: text})
    await world.worker(settings={"limits": [*limits, text, None, {"name": [text]}]})
    answer = await request(app, "/limits")
    assert answer.status == 200
    check(answer.text)
    (link,) = [each for each in Page(answer.text).links() if "/limit?" in each]
    one = await request(app, link)
    assert one.status == 200
    check(one.text)


async def test_limits_and_tasks_announce_counts_that_stopped_at_a_bound(
    pool: asyncpg.Pool, world: World, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(world)
    await world.jobs(4, "billing.due")
    inside.replace(monkeypatch, blocked_rows=4)
    inside.replace(monkeypatch, backlog_rows=4)
    for url, summary in (
        ("/limits", "2 limits, 4+ waiting jobs among the first 20,000 blocked jobs and 500 keys"),
        ("/limit?name=account", "3+ keys, 4+ waiting jobs among the first 20,000 blocked jobs and 500 keys"),
        ("/tasks", "3+ tasks, 0 paused, 1+ running, waiting 7+: due 3+, blocked 4+"),
    ):
        answer = await request(app, url, headers=JSON)
        assert answer.data["is_capped"] is True
        assert summary in answer.data["summary"]
        assert summary in Page((await request(app, url)).text).text


# -- shares ------------------------------------------------------------------------------------------------


async def fill_shares(world: World) -> None:
    """Add a share of two teams with three tenants, one of another team, and one without workers."""
    names = {"exports": ("billing.export", "payroll.export"), "mail": ("billing.mail",)}
    shares = [{"task": task, "name": name} for name, tasks in names.items() for task in tasks]
    await world.worker(settings={"shares": shares})
    for key, jobs in (("exports:lovelace", 3), ("exports:b*b", 1), ("mail:ada", 2), ("former:x", 1)):
        await world.jobs(jobs, "billing.export", job_id=(key + "{}").format, blocked_on=f"share:{key}")
    await world.job("run", "billing.export", status="running")
    await world.start("share:exports:lovelace", "run", attempt=0, keep_s=1e9)


async def shares_of(app: App) -> dict[str, tuple[object, ...]]:
    found = (await request(app, "/limits", headers=JSON)).data["shares"]
    return {
        each["name"]: (each["tenants"], each["running"], each["admitted"], each["waiting"]) for each in found
    }


async def test_shares_are_on_the_page_of_limits_with_their_longest_queues(world: World, app: App) -> None:
    await fill_shares(world)
    assert await shares_of(app) == {
        "exports": (2, 1, 0, 4),
        "former": (1, 0, 0, 1),
        "mail": (1, 0, 0, 2),
    }
    answer = await request(app, "/limits")
    check(answer.text)
    words = " ".join(Page(answer.text).text.split())
    assert "3 shares, 4 tenants, 1 running, 0 admitted, 7 waiting" in words
    assert "lovelace 1 running, 0 admitted, 3 waitingb*b 0 running, 0 admitted, 1 waiting" in words
    assert "no live worker declares it" in words
    assert "No live worker declares a limit." in words


async def test_page_of_limits_has_no_part_about_shares_without_any(world: World, app: App) -> None:
    await fill(world)
    assert "Shares" not in Page((await request(app, "/limits")).text).text


async def test_tenants_are_for_those_who_see_arguments_and_numbers_for_those_who_see_all_tasks(
    world: World, build: Callable[..., App]
) -> None:
    await fill_shares(world)
    app = build(authorize=lambda _: Access("bob", sees_arguments=False))
    for headers in ({}, JSON):
        text = (await request(app, "/limits", headers=headers)).text
        assert ("lovelace" in text, "[hidden]" in text) == (False, True)
    app = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    assert await shares_of(app) == {"exports": (None, None, None, None), "mail": (1, 0, 0, 2)}
    text = (await request(app, "/limits")).text
    assert ("payroll" in text, "lovelace" in text, "and others" in text) == (False, False, True)
    assert "4 tenants" not in text
    app = build(authorize=lambda _: Access("bob", names=("other.*",)))
    assert await shares_of(app) == {}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_tenants_and_shares_are_shown_as_text(text: str, world: World, app: App) -> None:
    shares = [{"task": text, "name": text}, {"task": 7, "name": "n"}, {"name": 7}, None]
    await world.worker(settings={"shares": shares})
    await world.job("a", "b", blocked_on=f"share:{text[:50]}:{text[:50]}")
    answer = await request(app, "/limits")
    assert answer.status == 200
    check(answer.text)


async def test_limit_without_keys_lists_its_first_jobs_and_those_that_are_due(world: World, app: App) -> None:
    await world.worker(settings={"limits": declare("partner", "hook.send", max_starts=3, per_s=30.0)})
    await world.jobs(
        7,
        "hook.send",
        job_id="hook{}".format,
        due=-MINUTE,
        blocked_on="limit:partner:",
        task_data=lambda n: {"args": [f"order-{n}"], "kwargs": {}},
    )
    page = Page((await request(app, "/limit?name=partner")).text)
    text = " ".join(page.text.split())
    assert "7 waiting jobs" in text
    assert "1 key" not in text
    assert text.count("due 60 s ago") == 5
    assert text.count('"order-') == 5, "the arguments tell the jobs of one task apart"
    assert "2 more" in text
