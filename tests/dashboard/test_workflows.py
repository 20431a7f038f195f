"""Workflows: jobs with steps, their children, what they wait for, and what people can do about that."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Job, JobStatus, RetryPolicy, call, current_job
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.dashboard.graph import Node, PlacedNode
from pg_scheduler.inspect import Bounds, Inspector
from pg_scheduler.testing import TestScheduler
from tests.dashboard.client import JSON, App, Page, request, send
from tests.dashboard.test_actions import records
from tests.dashboard.test_steps import keys_of
from tests.support.world import DAY, HOUR, MINUTE, NOW, SECOND, World

LATEST = datetime(9999, 1, 1, tzinfo=UTC)


async def charge(order: int) -> dict[str, Any]:
    return {"payment": order}


async def label(order: int) -> str:
    return f"label-{order}"


async def order(number: int) -> None:
    steps = current_job().steps
    await steps.run("charge", charge, number)
    await steps.child("label", call(label, number))
    await steps.sleep("delivery", 14 * DAY)


async def part(number: int) -> int:
    return number


async def fan(number: int) -> None:
    steps = current_job().steps
    await asyncio.gather(*(steps.child(f"part-{n}", call(part, n), delay=DAY) for n in range(3)))


async def unstable(number: int) -> None:
    raise TimeoutError


async def parent(number: int) -> None:
    await current_job().steps.child("invoice", call(unstable, number))


async def approval(number: int) -> None:
    await current_job().steps.wait("approved")


@pytest.fixture
async def kit(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool) as kit:
        for function in (label, order, part, fan, approval, parent):
            kit.scheduler.register(function, name=f"flow.{function.__name__}")
        retry = RetryPolicy(base=10 * MINUTE, maximum=HOUR)
        kit.scheduler.register(unstable, name="flow.unstable", max_retries=3, retry=retry)
        yield kit


@pytest.fixture
def app(kit: TestScheduler) -> App:
    return dashboard(kit.scheduler, authorize=lambda _: Access("ada", "admin"))


async def start(kit: TestScheduler, name: str = "order", job_id: str = "order:1") -> None:
    await kit.scheduler.enqueue(f"flow.{name}", args=(1,), job_id=job_id)
    await kit.drain()


async def page_of(app: App, url: str) -> Page:
    answer = await request(app, url)
    assert answer.status == 200, answer.text
    return Page(answer.text)


async def test_suspended_job_has_attempts_behind_it_and_no_useless_button(
    kit: TestScheduler, app: App
) -> None:
    await start(kit)
    data = (await request(app, "/job?id=order:1", headers=JSON)).data
    titles = [(event["title"], event["is_ahead"]) for event in data["timeline"]]
    assert titles == [
        ("created", False),
        ("attempt 1: suspended", False),
        ("attempt 2: suspended", False),
        ("continues after its sleep", True),
    ]
    assert not {"run", "move"} & set(data["actions"])
    page = await page_of(app, "/job?id=order:1")
    assert not {"run", "move"} & {button.get("id") for button in page.all("button")}
    text = " ".join(page.text.split())
    assert "Continues" not in text, "the line after it has the end of the sleep"
    assert text.count("Sleeps in the step 'delivery' until ") == 1
    assert re.search(r"Sleeps in the step 'delivery' until [^,]+ UTC, in \d+ d", text)
    assert text.lower().count("sleeps") == 1, "the graph does not repeat it"
    assert "after its sleep" not in text
    assert "Would start" not in text


async def test_job_that_waits_for_its_child_names_the_child_and_its_next_retry(
    kit: TestScheduler, app: App
) -> None:
    await start(kit, "parent", "parent:1")
    html = (await request(app, "/job?id=parent:1")).text
    text = " ".join(Page(html).text.split())
    assert re.search(r"Waits for its child invoice \(retry 1 of 3 in [\d.]+ min\)", text)
    assert "Waits for other jobs" not in text
    assert "Runbook: AFTER" not in text
    cause, _, steps = text.partition("Workflowwaits for invoice")
    assert "flow.unstable retrying" in cause
    assert "invoice child parent:1:invoice retrying" in steps
    assert "without a timeout" not in text, "its wait has no end that could be shown"
    assert '<rect class="retrying warn"' in html, "the bar has the color of the state"
    assert '<rect class="running' not in html


async def test_job_that_waits_for_several_children_names_them_or_states_their_number(
    world: World, app: App
) -> None:
    async def title_of(job_id: str) -> str:
        answer = await request(app, f"/job?id={job_id}")
        (title,) = re.findall("<h2>(Waits for .*?)</h2>", answer.text)
        return str(title)

    for job_id, ids_by_step in {
        "few": {"card": ["few:card"], "label": ["few:label"]},
        "fan": {"parts": [f"fan:{number}" for number in range(5)]},
        "mixed": {"card": ["mixed:card"], "parts": [f"mixed:{number}" for number in range(2)]},
    }.items():
        options = {"steps": 1, "suspended": {"attempt": 1, "kind": "child"}}
        await world.job(job_id, "flow.order", attempt=1, options=options, blocked_on="after")
        for step, ids in ids_by_step.items():
            await world.step(job_id, step, "child", value=ids, ended=None, until=LATEST)
            for child_id in ids:
                status = "completed" if child_id in {"fan:0", "fan:1"} else "pending"
                await world.job(child_id, "flow.part", status=status)
    assert await title_of("few") == "Waits for its 2 children card, label"
    assert await title_of("fan") == "Waits for 3 of the 5 children of parts"
    assert await title_of("mixed") == "Waits for its 3 children"


async def test_child_has_the_same_duration_in_the_graph_and_in_the_table(world: World, app: App) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    await world.job("order", "flow.order", status="completed", attempt=1, options={"steps": 1})
    await world.step(
        "order", "label", "child", value=["order:label"], started=begin, ended=begin + 9 * SECOND
    )
    await world.job("order:label", "flow.label", status="completed", started=begin, ended=begin + 4 * SECOND)
    html = (await request(app, "/job?id=order")).text
    assert "flow.label · 9 s" in html
    assert "flow.label · 9 s, ran 4 s" in html, "the tooltip of the graph"
    assert "its child ran 4 s" in html, "the tooltip of the table"
    assert "flow.label · 4 s" not in html


async def test_bar_of_a_child_has_the_color_of_its_state(world: World, app: App) -> None:
    await world.job("order", "flow.order", status="failed", attempt=1, options={"steps": 1})
    await world.step("order", "label", "child", value=["order:label"], started=-MINUTE)
    await world.job("order:label", "flow.label", status="failed", started=-MINUTE, ended=NOW)
    html = (await request(app, "/job?id=order")).text
    assert '<rect class="failed bad"' in html
    assert '<rect class="completed' not in html


async def test_page_links_children_and_parents_both_ways(kit: TestScheduler, app: App) -> None:
    await start(kit)
    page = await page_of(app, "/job?id=order:1")
    assert "/job?id=order%3A1%3Alabel" in page.links()
    child = await page_of(app, "/job?id=order:1:label")
    assert "/job?id=order%3A1" in child.links()
    assert "Started by the step label of order:1" in " ".join(child.text.split())
    data = (await request(app, "/job?id=order:1", headers=JSON)).data
    assert [step["name"] for step in data["steps"]] == ["charge", "label", "delivery"]
    assert [row["job_id"] for row in data["children"]["label"]] == ["order:1:label"]
    assert (await request(app, "/job?id=order:1:label", headers=JSON)).data["owner"]["job_id"] == "order:1"


async def test_child_whose_row_was_deleted_keeps_its_state_and_value(
    kit: TestScheduler, app: App, pool: asyncpg.Pool
) -> None:
    await start(kit)
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'order:1:label'")
    text = " ".join((await page_of(app, "/job?id=order:1")).text.split())
    assert 'label child order:1:label completed "label-1"' in text


async def test_jobs_of_hidden_names_are_not_seen_through_steps(kit: TestScheduler) -> None:
    await start(kit)
    hidden = dashboard(kit.scheduler, authorize=lambda _: Access("bob", "admin", names=("flow.order",)))
    answer = await request(hidden, "/job?id=order:1")
    assert answer.status == 200
    assert "flow.label" not in answer.text
    assert "order%3A1%3Alabel" not in answer.text
    assert "label-1" not in answer.text
    assert "There are further children" in Page(answer.text).text
    only_child = dashboard(kit.scheduler, authorize=lambda _: Access("bob", "admin", names=("flow.label",)))
    answer = await request(only_child, "/job?id=order:1:label")
    assert answer.status == 200
    assert "flow.order" not in answer.text
    assert "Started by" not in answer.text


async def test_jobs_before_and_after_are_a_graph(kit: TestScheduler, app: App) -> None:
    for job_id, after in (("first", []), ("second", []), ("third", ["first", "second"]), ("last", ["third"])):
        await kit.scheduler.enqueue("flow.part", args=(1,), job_id=job_id, after=after, delay=DAY)
    page = await page_of(app, "/job?id=third")
    links = [link for link in page.links() if link.startswith("/job?")]
    assert {"/job?id=first", "/job?id=second", "/job?id=last"} <= set(links)
    (graph,) = [svg for svg in page.all("svg") if svg.get("class") == "flow-graph"]
    assert str(graph["aria-label"]).count("flow.part") == 4


async def test_jobs_before_a_job_stand_in_the_order_of_their_dependencies(world: World, app: App) -> None:
    for job_id in ("extract", "load:1", "load:2", "publish"):
        blocked_on = None if job_id == "extract" else "after"
        await world.job(
            job_id, "etl", due=HOUR, blocked_on=blocked_on, task_data={"args": [f"source {job_id}"]}
        )
    for load in ("load:1", "load:2"):
        await world.edge("extract", load)
        await world.edge(load, "publish")
    await world.edge("extract", "publish")
    page = await page_of(app, "/job?id=publish")
    (graph,) = [svg for svg in page.all("svg") if svg.get("class") == "flow-graph"]
    assert str(graph["aria-label"]).count("etl") == 4
    boxes = [box["x"] for box in page.all("rect") if box.get("class") == "box"]
    assert boxes == ["2", "206", "206", "410"], "extract, two loads, publish"
    assert len([path for path in page.all("path") if str(path.get("d")).startswith("M162")]) == 2
    assert len([path for path in page.all("path") if str(path.get("d")).startswith("M366")]) == 2
    assert '"source load:1"' in page.text
    page = await page_of(app, "/job?id=extract")
    boxes = [box["x"] for box in page.all("rect") if box.get("class") == "box"]
    assert boxes == ["2", "206", "206", "410"]


async def test_many_children_are_counted_and_those_that_need_a_look_come_first(
    world: World, app: App
) -> None:
    ids = [f"fan:parts:{number}" for number in range(1_200)]
    await world.job("fan", "flow.fan", options={"steps": 1}, attempt=1, blocked_on="after")
    await world.step("fan", "parts", "child", value=ids, ended=None, until=LATEST)
    await world.jobs(
        1_200,
        "flow.part",
        job_id=lambda n: ids[n - 1],
        status=lambda n: "failed" if n % 300 == 7 else "completed",
        error_message=lambda n: "no" if n % 300 == 7 else None,
    )
    page = await page_of(app, "/job?id=fan")
    text = " ".join(page.text.split())
    assert "996+ of 1,000+" in text, "200 children were not read"
    assert "4+ failed" in text
    links = [link for link in page.links() if "fan%3Aparts%3A" in link]
    assert len(links) < 20
    assert "There are further children" in text
    (everything,) = [link for link in page.links() if "step=parts" in link and link.startswith("/job")]
    links = (await page_of(app, everything.partition("#")[0])).links()
    assert len([link for link in links if "fan%3Aparts%3A" in link]) >= 1_000


# -- steps that failed, ended or came early ----------------------------------------------------------------


async def bank(order: int) -> None:
    raise ConnectionError("bank: refund refused")


async def slow(order: int) -> None:
    await asyncio.sleep(60)


async def refund(number: int) -> None:
    steps = current_job().steps
    await steps.run("check", charge, number)
    await steps.run("bank", bank if number else slow, number)


def graph_of_page(page: Page) -> str:
    (graph,) = [svg for svg in page.all("svg") if svg.get("class") == "flow-graph"]
    return str(graph["aria-label"])


async def test_step_that_failed_is_in_the_graph_the_table_and_the_list(kit: TestScheduler, app: App) -> None:
    retry = RetryPolicy(base=10 * MINUTE, maximum=HOUR)
    kit.scheduler.register(refund, name="flow.refund", max_retries=1, retry=retry)
    await start(kit, "refund", "refund:1")
    for state in ("retrying", "failed"):
        page = await page_of(app, "/job?id=refund:1")
        text = " ".join(page.text.split())
        assert "2 steps, bank failed" in text
        assert f"bank step {state} ConnectionError: bank: refund refused" in text
        assert graph_of_page(page).startswith(f"check: stored, then bank: {state}")
        (row,) = (await request(app, f"/workflows?state={state}", headers=JSON)).data["items"]
        assert (row["step"], row["kind"]) == ("bank", "failed")
        assert (row["until"] is not None) == (state == "retrying")
        if state == "retrying":
            await kit.scheduler.run_job_now("refund:1")
            await kit.drain()
    job = await job_of(kit, "refund:1")
    assert [error.step for error in job.errors] == ["bank", "bank"]


async def test_step_that_a_timeout_stopped_is_named(kit: TestScheduler, app: App) -> None:
    kit.scheduler.register(refund, name="flow.refund", timeout=0.1)
    await kit.scheduler.enqueue("flow.refund", args=(0,), job_id="refund:0")
    await kit.drain()
    job = await job_of(kit, "refund:0")
    assert [(error.outcome, error.step) for error in job.errors] == [("timeout", "bank")]
    assert "2 steps, bank failed" in " ".join((await page_of(app, "/job?id=refund:0")).text.split())


async def test_step_that_failed_follows_the_step_before_it(world: World, app: App) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    times = {"started_at": begin.isoformat(), "ended_at": (begin + 4 * SECOND).isoformat()}
    await world.job(
        "refund",
        "flow.refund",
        status="failed",
        attempt=1,
        options={"steps": 1},
        errors=[{"attempt": 1, "outcome": "error", "message": "no", "step": "bank", **times}],
        started=begin,
        ended=begin + 4 * SECOND,
    )
    await world.step("refund", "check", started=begin + 3 * SECOND, ended=begin + 3 * SECOND)
    page = await page_of(app, "/job?id=refund")
    assert keys_of(page) == ["step-check", "step-bank"]
    assert [box["x"] for box in page.all("rect") if box.get("class") == "box"] == ["2", "206"]


async def test_step_that_the_job_caught_and_other_code_are_not_named(kit: TestScheduler) -> None:
    async def caught(number: int) -> None:
        try:
            await current_job().steps.run("bank", bank, number)
        except ConnectionError:
            raise ValueError("no bank") from None

    kit.scheduler.register(caught, name="flow.caught")
    await start(kit, "caught", "caught")
    assert [error.step for error in (await job_of(kit, "caught")).errors] == [None]


async def test_step_of_a_cancelled_job_does_not_sleep(kit: TestScheduler, app: App) -> None:
    await start(kit)
    await kit.scheduler.cancel_job("order:1")
    page = await page_of(app, "/job?id=order:1")
    text = " ".join(page.text.split())
    assert "delivery sleep not finished" in text
    assert "sleeping" not in text.lower()
    assert "in 14 d" not in text
    assert graph_of_page(page).endswith("delivery: not_finished")
    assert "current" not in [str(group.get("class")) for group in page.all("g")]


async def test_signal_that_came_early_is_in_parallel_to_the_step_that_ran(world: World, app: App) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    times = {"started": begin, "worker_id": "w1"}
    await world.job("early", "flow.order", status="completed", attempt=1, options={"steps": 1}, **times)
    await world.step("early", "approved", "signal", started=begin + SECOND, ended=begin + SECOND, value=1)
    await world.step("early", "charge", started=begin + 3 * SECOND, ended=begin + 3 * SECOND)
    await world.step("early", "label", started=begin + 4 * SECOND, ended=begin + 4 * SECOND)
    soon = begin + 4.0002 * SECOND
    await world.step("early", "stamp", started=soon, ended=soon)
    page = await page_of(app, "/job?id=early")
    text = " ".join(page.text.split())
    assert keys_of(page) == ["step-charge", "step-approved", "step-label", "step-stamp"]
    assert "approved signal, came early" in text
    assert "≤ 3 s" in text, "the signal is not the begin of the step"
    assert "≤ 1 s" in text
    assert "≤ <" not in text
    boxes = [box for box in page.all("rect") if box.get("class") == "box"]
    assert [box["x"] for box in boxes] == ["2", "2", "206", "410"]


# -- actions -----------------------------------------------------------------------------------------------


async def job_of(kit: TestScheduler, job_id: str) -> Job:
    job = await kit.scheduler.get_job(job_id)
    assert job is not None
    return job


async def test_sleep_is_ended_after_a_question(kit: TestScheduler, app: App, pool: asyncpg.Pool) -> None:
    await start(kit)
    target = "/actions/jobs/wake?id=order:1"
    page = await page_of(app, "/job?id=order:1")
    assert [form["action"] for form in page.all("form") if "/wake" in str(form["action"])] == [
        "/actions/jobs/wake?id=order%3A1"
    ]
    assert "end_sleep" not in page.text, "the page has a button for it"
    assert "End the sleep of this job now?" in Page((await send(app, target, {})).text).text
    assert (await job_of(kit, "order:1")).suspended_by == "sleep"
    answer = await send(app, target, {"confirm": "yes"})
    assert (answer.status, answer.did) == (303, "sleep_ended")
    await kit.drain()
    assert (await job_of(kit, "order:1")).status is JobStatus.COMPLETED
    assert await records(pool) == [("ada", "dashboard", "wake_job", "order:1")]
    assert (await send(app, target, {"confirm": "yes"})).status == 409


async def test_sleeping_workflow_is_cancelled_after_a_question(kit: TestScheduler, app: App) -> None:
    await start(kit)
    assert "Cancel…</button>" in (await request(app, "/job?id=order:1")).text
    target = "/actions/jobs/cancel?id=order:1"
    asked = " ".join(Page((await send(app, target, {})).text).text.split())
    assert "Cancel this workflow, which sleeps in delivery?" in asked
    assert "2 steps of it ended" in asked
    assert "would not end" not in asked
    assert (await job_of(kit, "order:1")).suspended_by == "sleep"
    assert (await send(app, target, {"confirm": "yes"})).did == "cancel.1.0.0"
    await start(kit, "fan", "fan:1")
    asked = Page((await send(app, "/actions/jobs/cancel?id=fan:1", {})).text).text
    assert "3 child jobs of it would not end with it" in " ".join(asked.split())
    assert "Cancel 3 child jobs too" in asked


async def test_run_now_of_an_old_page_ends_the_sleep(kit: TestScheduler, app: App) -> None:
    await start(kit)
    assert (await send(app, "/actions/jobs/run?id=order:1", {})).did == "sleep_ended"
    await kit.drain()
    assert (await job_of(kit, "order:1")).status is JobStatus.COMPLETED


async def test_job_is_cancelled_and_retried_with_its_children(kit: TestScheduler, app: App) -> None:
    await start(kit, "fan", "fan:1")
    family = ("fan:1", "fan:1:part-0", "fan:1:part-1", "fan:1:part-2")
    target = "/actions/jobs/cancel?id=fan:1"
    question = Page((await send(app, target, {})).text)
    (box,) = [field for field in question.all("input") if field.get("type") == "checkbox"]
    assert (box["name"], box["value"], "checked" in box) == ("children", "yes", False)
    answer = await send(app, target, {"confirm": "yes", "children": "yes"})
    assert (answer.status, answer.headers["location"]) == (303, "/job?id=fan%3A1")
    assert answer.did == "cancel.4.0.0"
    for job_id in family:
        assert (await job_of(kit, job_id)).status is JobStatus.CANCELLED, job_id
    assert "Retry now…</button>" in (await request(app, "/job?id=fan:1")).text
    target = "/actions/jobs/retry?id=fan:1"
    question = Page((await send(app, target, {})).text)
    assert "3 child jobs of it ended without success" in " ".join(question.text.split())
    (box,) = [field for field in question.all("input") if field.get("type") == "checkbox"]
    assert "checked" in box
    assert (await send(app, target, {"confirm": "yes", "children": "yes"})).did == "retry.4.0.0"
    for job_id in family:
        assert (await job_of(kit, job_id)).status is JobStatus.PENDING, job_id


async def test_job_is_cancelled_and_retried_without_its_children(kit: TestScheduler, app: App) -> None:
    await start(kit, "fan", "fan:1")
    assert (await send(app, "/actions/jobs/cancel?id=fan:1", {"confirm": "yes"})).did == "cancel.1.0.0"
    assert (await job_of(kit, "fan:1:part-0")).status is JobStatus.PENDING
    await kit.scheduler.cancel_job("fan:1", children=True)
    assert (await send(app, "/actions/jobs/retry?id=fan:1", {"confirm": "yes"})).did == "retry.1.0.0"
    assert (await job_of(kit, "fan:1:part-0")).status is JobStatus.CANCELLED


async def test_ended_job_is_repeated_from_a_step(kit: TestScheduler, app: App) -> None:
    await start(kit)
    await kit.scheduler.cancel_job("order:1")
    text = " ".join((await page_of(app, "/job?id=order:1")).text.split())
    assert "was cancelled while it slept in delivery" in text
    page = await page_of(app, "/job?id=order:1")
    assert [option["value"] for option in page.all("option") if "value" in option][:3] == [
        "charge", "label", "delivery",
    ]  # fmt: skip
    answer = await send(app, "/actions/jobs/repeat?id=order:1", {"from_step": "label"})
    assert (answer.status, answer.did) == (303, "retry.1.0.0")
    names = [step.name for step in (await Inspector(kit.scheduler).steps("order:1")).items]
    assert "charge" in names
    assert "delivery" not in names
    assert (await send(app, "/actions/jobs/repeat?id=order:1", {})).status == 400


def allow(access: Access, _request: object) -> Access:
    return access


async def test_actions_need_their_rights(kit: TestScheduler) -> None:
    await start(kit)
    for access in (Access("eve", "viewer"), Access("bob", "admin", names=("other.*",))):
        app = dashboard(kit.scheduler, authorize=partial(allow, access))
        for verb in ("wake", "run", "cancel", "retry", "repeat"):
            fields = {"confirm": "yes", "children": "yes", "from_step": "label"}
            assert (await send(app, f"/actions/jobs/{verb}?id=order:1", fields)).status in {403, 404}, verb
    assert (await job_of(kit, "order:1")).suspended_by == "sleep"


async def test_list_of_sleeping_jobs_offers_no_action_without_effect(kit: TestScheduler, app: App) -> None:
    await start(kit)
    (row,) = (await request(app, "/jobs?q=status:sleeping", headers=JSON)).data["items"]
    assert row["actions"] == ["cancel", "delete"]
    page = await page_of(app, "/jobs?q=status:sleeping")
    assert not [button for button in page.all("button") if button.get("id") in {"run", "move"}]


# -- the list ----------------------------------------------------------------------------------------------


async def listed(app: App, url: str = "/workflows") -> list[str]:
    answer = await request(app, url, headers=JSON)
    assert answer.status == 200, answer.text
    return [row["job_id"] for row in answer.data["items"]]


async def test_workflows_are_listed_by_what_they_wait_for(kit: TestScheduler, app: App, world: World) -> None:
    await start(kit)
    await start(kit, "approval", "approval:1")
    await start(kit, "approval", "approval:2")
    await start(kit, "fan", "fan:1")
    await world.job("plain", "flow.order", status="failed", error_message="no")
    await world.job("broken", "flow.order", status="failed", error_message="no", options={"steps": 1})
    await world.step("broken", "charge")
    await world.job("again", "flow.order", due=HOUR, retry_count=1, attempt=1, options={"steps": 1})
    await world.step("again", "charge")
    assert await listed(app, "/workflows?state=sleeping") == ["order:1"]
    assert await listed(app, "/workflows?state=retrying") == ["again"]
    assert await listed(app, "/workflows?state=awaiting") == ["approval:1", "approval:2"]
    assert await listed(app, "/workflows?state=children") == ["fan:1"]
    assert await listed(app, "/workflows?state=failed") == ["broken"]
    assert await listed(app, "/workflows?state=awaiting&name=approved") == ["approval:1", "approval:2"]
    assert await listed(app, "/workflows?state=awaiting&name=other") == []
    assert await listed(app, "/workflows?state=awaiting&task=flow.order") == []
    assert sorted(await listed(app)) == ["again", "approval:1", "approval:2", "broken", "fan:1", "order:1"]
    data = (await request(app, "/workflows", headers=JSON)).data
    assert {label: number for label, number, *_ in data["tabs"] if number} == {
        "Running": "0", "Awaiting": "2", "Sleeping": "1", "Blocked": "1", "Retrying": "1", "Failed": "1",
    }  # fmt: skip
    assert ["approved", "2", "awaiting"] in data["steps"]
    text = " ".join((await page_of(app, "/workflows?state=sleeping")).text.split())
    assert "flow.order order:1 1 sleeping delivery sleep in 14 d" in text
    assert (await request(app, "/workflows?state=odd")).status == 400


async def test_other_failed_jobs_hide_no_workflow(kit: TestScheduler, world: World) -> None:
    await kit.scheduler.initialize_db()
    await world.jobs(300, "flow.part", status="failed", error_message="no", ended=lambda n: -n * SECOND)
    passed = {"status": "failed", "error_message": "no", "options": {"steps": 0}, "ended": -HOUR}
    await world.job("passed", "flow.order", **passed)
    await world.step("passed", "after:1", "result")
    for number in range(3):
        await world.job(f"old:{number}", "flow.order", **{**passed, "ended": -(number + 2) * HOUR})
        await world.step(f"old:{number}", "charge")
    wide = dashboard(kit.scheduler, authorize=lambda _: Access("ada", "admin"))
    assert await listed(wide, "/workflows?state=failed") == ["old:0", "old:1", "old:2"]
    assert len(await listed(wide)) == 3
    data = (await request(wide, "/workflows", headers=JSON)).data
    assert (data["tabs"][-1][:2], data["further"]) == (["Failed", "3"], [])
    bounds = Bounds(rows=200, milliseconds=60_000)
    narrow = dashboard(kit.scheduler, authorize=lambda _: Access("ada", "admin"), bounds=bounds)
    for address in ("/workflows", "/workflows?state=failed"):
        answer = await request(narrow, address)
        assert re.search(r"200 of about \d+ jobs examined", answer.text), address
        (following,) = (link for link in Page(answer.text).links() if "after=" in link)
        assert sorted(await listed(narrow, following)) == ["old:0", "old:1", "old:2"]
        data = (await request(narrow, address, headers=JSON)).data
        assert data["tabs"][-1][:2] == ["Failed", ""]
    access = Access("bob", "admin", names=("flow.order",))
    limited = dashboard(kit.scheduler, authorize=lambda _: access, bounds=bounds)
    text = (await request(limited, "/workflows?state=failed")).text
    assert "examined" not in text, "the number of other jobs is hidden"
    assert "the list continues" in text


async def test_long_list_continues_and_hides_what_may_not_be_seen(
    kit: TestScheduler, app: App, world: World
) -> None:
    await kit.scheduler.initialize_db()
    mark = {"steps": 1, "suspended": {"attempt": 1, "kind": "signal", "steps": ["go"]}}
    await world.jobs(
        130, lambda n: f"flow.{n % 2}", job_id="wait:{:03}".format, attempt=1, due=LATEST, options=mark
    )
    for number in range(1, 131):
        await world.step(f"wait:{number:03}", "go", "signal", until=LATEST, ended=None)
    found, address = list[str](), "/workflows?state=awaiting"
    while address:
        found += await listed(app, address)
        following = (await request(app, address, headers=JSON)).data["next"]
        address = f"/workflows?state=awaiting&after={quote(following)}" if following else ""
    assert sorted(set(found)) == sorted(found)
    assert len(found) == 130
    limited = dashboard(kit.scheduler, authorize=lambda _: Access("bob", "admin", names=("flow.1",)))
    answer = await request(limited, "/workflows?state=awaiting")
    assert "flow.0" not in answer.text
    assert (await request(limited, "/workflows", headers=JSON)).data["steps"] == []
    assert (await request(app, "/workflows?state=awaiting&after=nonsense")).status == 400


def test_id_of_a_job_is_cut_to_the_width_of_its_node() -> None:
    node = Node("mail.send", "01a21e77-b23d-750c-a1da-6da1f0f62b0b", "completed")
    assert PlacedNode(node, 0, 0).note == "01a21e77-b23d-750c-a…"


async def test_tabs_of_an_empty_list_have_numbers_unless_these_are_hidden(
    app: App, build: Callable[..., App]
) -> None:
    numbers = {
        tab: number for _, number, tab, _ in (await request(app, "/workflows", headers=JSON)).data["tabs"]
    }
    assert {tab for tab, number in numbers.items() if number != "0"} == {""}
    page = Page((await request(app, "/workflows")).text)
    assert "No workflow runs, waits or has failed." in page.text
    limited = build(authorize=lambda _: Access("bob", names=("mail.*",)))
    hidden = (await request(limited, "/workflows", headers=JSON)).data["tabs"]
    assert {tab for _, number, tab, _ in hidden if number == ""} == {"", "awaiting", "sleeping", "children"}
