"""What people come for, done in a browser by mouse and keys, and how long that takes them.

The time is that of the keystroke-level model: 1.35 s to decide, 1.1 s to point and 0.2 s to press for a
click, 0.28 s for a key, and one decision for a journey without a click. Reading is not counted. Each journey
starts on the overview at 1440 x 900, never scrolls, and is compared with the first dashboard of this project.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final, NamedTuple

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from pg_scheduler import Scheduler
from tests.browser.conftest import Open
from tests.browser.fixed_demo import NOW, WORKERS, open_fixed_demo
from tests.browser.person import job_link
from tests.support.inside import NO_TIMEOUT
from tests.support.world import SECOND, World

logger = logging.getLogger(__name__)

SCREEN: Final = {"width": 1440, "height": 900}
CLICK_S: Final = 1.35 + 1.1 + 0.2
KEY_S: Final = 0.28
DECISION_S: Final = 1.35

TRACEBACK: Final = """\
Traceback (most recent call last):
  File "/srv/shop/jobs/payments.py", line 88, in charge
    reply = await bank.post("/charges", json=order.as_charge())
  File "/srv/venv/lib/python3.12/site-packages/httpx/_client.py", line 1859, in post
    return await self.request(
           ^^^^^^^^^^^^^^^^^^^
  File "/srv/venv/lib/python3.12/site-packages/httpx/_client.py", line 1540, in request
    return await self.send(request, auth=auth, follow_redirects=follow_redirects)
  File "/srv/venv/lib/python3.12/site-packages/httpx/_client.py", line 1629, in send
    response = await self._send_handling_auth(
  File "/srv/venv/lib/python3.12/site-packages/httpx/_transports/default.py", line 118, in map_exceptions
    raise mapped_exc(message) from exc
httpx.ReadTimeout: no answer within 30 s

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/venv/lib/python3.12/site-packages/pg_scheduler/worker/runner.py", line 201, in run
    return await function(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/shop/jobs/payments.py", line 91, in charge
    raise BankUnavailable(order.id) from error
BankUnavailable: the bank does not answer for order 113
"""
RESULT_ID: Final = "0195c0aa-898b-7cb9-9534-9c3edbfb00aa"
"""That of a job with a result, as people paste it from a log or type it."""

RESULT: Final = """
    INSERT INTO scheduler_results (job_id, status, value, attempts, finished_at, expires_at)
    VALUES ($1, 'completed', '{"rows": 2000, "rejected": [17, 40]}', 1, $2, $2::timestamptz + interval '1 h')
"""
RELEASE: Final = """
    UPDATE scheduler_workers SET metadata = jsonb_build_object('release', $2::text) WHERE worker_id = $1
"""


class Effort(NamedTuple):
    """Clicks and keys."""

    clicks: int
    keys: int

    @property
    def seconds(self) -> float:
        return self.clicks * CLICK_S + self.keys * KEY_S + (0 if self.clicks else DECISION_S)


BEFORE: Final = {
    "see why a job waits": Effort(2, 0),
    "retry all failures of a task": Effort(3, 0),
    "pause a schedule": Effort(4, 13),
    "add a schedule": Effort(14, 81),
    "see what a worker does": Effort(2, 0),
    "find a slow task": Effort(3, 0),
    "follow a deploy": Effort(4, 0),
    "search by argument": Effort(5, 44),
    "read a traceback": Effort(3, 0),
    "open a result": Effort(3, 37),
    "open a job by keys": Effort(0, 9),
    "find who holds a limit": Effort(5, 0),
    "find the task that a release made slower": Effort(4, 0),
    "pause a task": Effort(4, 0),
    "pause a task by keys": Effort(0, 25),
    "change a schedule": Effort(4, 20),
    "follow a workflow to a child": Effort(3, 0),
    "find all jobs of a customer": Effort(3, 10),
    "free a stuck worker": Effort(3, 0),
}
"""The journeys on the first dashboard, or on one that has followed it, as they were counted on it.

On the latter, nobody arrived who followed a workflow or looked for a customer.
"""


class Hand:
    """One hand on a mouse and two on a keyboard: counts what it does on a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0
        self.keys = 0

    @property
    def effort(self) -> Effort:
        return Effort(self.clicks, self.keys)

    async def click(self, target: Locator) -> None:
        """Click something that is on the screen."""
        await self.sees(target)
        await target.click()
        self.clicks += 1

    async def arrive(self, url: str) -> None:
        """Wait until the page at an address is shown, as a person does before pressing keys."""
        await expect(self.page).to_have_url(re.compile(url))
        await self.page.wait_for_load_state()

    async def press(self, *keys: str) -> None:
        """Press keys."""
        for key in keys:
            await self.page.keyboard.press(key)
            self.keys += 1

    async def type(self, text: str) -> None:
        """Type a text."""
        await self.page.keyboard.type(text)
        self.keys += len(text)

    async def sees(self, target: Locator) -> None:
        """Check that the whole element is on the screen, without scrolling the page or the element."""
        await expect(target).to_be_visible()
        await expect(target).to_be_in_viewport(ratio=1)
        height, content = await target.evaluate("each => [each.clientHeight, each.scrollHeight]")
        assert content <= height or height == 0, f"{target} has to be scrolled"
        assert await self.page.evaluate("window.scrollY") == 0


async def add_refunds(world: World, ended: datetime) -> None:
    """Add jobs that failed since the bank did not answer."""
    text = "BankUnavailable: the bank does not answer for order 113"
    error = {
        "attempt": 1,
        "started_at": (ended - 2 * SECOND).isoformat(),
        "ended_at": ended.isoformat(),
        "worker_id": "8e2ee8b3",
        "outcome": "error",
        "error_type": "BankUnavailable",
        "message": text,
        "traceback": TRACEBACK,
    }
    await world.jobs(
        40,
        "shop.refund",
        job_id="bank-{}".format,
        status="failed",
        attempt=1,
        due=ended,
        started=ended - 2 * SECOND,
        ended=ended,
        error_message=text,
        errors=[error],
        task_data=lambda n: {"args": [], "kwargs": {"account": 110 + n, "order": n}},
    )


async def add_order(world: World) -> None:
    """Add a workflow whose step "label" waits for a child."""
    suspended = {"attempt": 1, "kind": "child"}
    options = {"steps": 1, "definition": "1", "suspended": suspended}
    await world.job("order:2", "shop.order", due=NOW, attempt=1, options=options, blocked_on="after")
    await world.step(
        "order:2", "charge", value={"payment": 7}, started=NOW - 9 * SECOND, ended=NOW - 8 * SECOND
    )
    await world.step(
        "order:2",
        "label",
        "child",
        value="order:2:label",
        started=NOW - 8 * SECOND,
        ended=None,
        until=NO_TIMEOUT,
    )
    of_step = {"job": "order:2", "step": "label", "definition": "1"}
    await world.job("order:2:label", "shop.label", due=NOW + 60 * SECOND, options={"child_of": of_step})


@pytest_asyncio.fixture(loop_scope="session")
async def scheduler(pool: asyncpg.Pool, world: World) -> Scheduler:
    """The shop of the demo, with what its journeys look for."""
    scheduler = await open_fixed_demo(pool)
    await add_refunds(world, NOW - 30 * SECOND)
    imported_at = NOW - 90 * SECOND
    await world.job(
        RESULT_ID,
        "shop.import",
        status="completed",
        attempt=1,
        due=imported_at,
        started=imported_at,
        ended=imported_at,
        task_data={"args": [], "kwargs": {"rows": ["x" * 100] * 2000}},
    )
    await pool.execute(RESULT, RESULT_ID, imported_at)
    waits_for = [await scheduler.enqueue("shop.stock", args=(n,), job_id=f"load-{n}") for n in range(5)]
    await scheduler.enqueue("shop.invoices", job_id="join", after=waits_for)
    await add_order(world)
    customer = {"customer": 4711, "account": 4711}
    for number, (name, value) in enumerate(customer.items()):
        await world.job(
            f"{name}-4711",
            "shop.refund",
            status="completed",
            ended=NOW - (600 + number) * SECOND,
            task_data={"args": [], "kwargs": {name: value}},
        )
    for worker_id, release in zip(WORKERS.values(), ("2027.12", "2027.11"), strict=True):
        await pool.execute(RELEASE, worker_id, release)
    await pool.execute("VACUUM ANALYZE scheduled_jobs")
    return scheduler


@pytest_asyncio.fixture(loop_scope="session")
async def hand(open_page: Open, request: pytest.FixtureRequest) -> AsyncIterator[Hand]:
    """A hand on the overview, whose journey must be no longer than before."""
    name = request.function.__name__.removeprefix("test_person_can_").replace("_", " ")
    hand = Hand(await open_page("/", viewport=SCREEN))
    yield hand
    before = BEFORE[name]
    logger.info("%s: %d clicks, %d keys, %.1f s", name, *hand.effort, hand.effort.seconds)
    assert hand.clicks + hand.keys > 0
    assert hand.clicks <= before.clicks
    assert hand.keys <= before.keys
    assert hand.effort.seconds <= before.seconds


async def test_person_can_see_why_a_job_waits(hand: Hand) -> None:
    page = hand.page
    await hand.click(page.locator("#tiles").get_by_role("link", name=re.compile("^Waiting")))
    await hand.click(page.locator("tbody tr", has_text="shop.report").get_by_role("link").first)
    cause = page.locator("#explanation")
    await hand.sees(cause)
    await expect(cause).to_contain_text("the warehouse is being moved")


async def test_job_that_waits_for_others_links_to_them(open_page: Open) -> None:
    hand = Hand(await open_page("/jobs?q=status:blocked", viewport=SCREEN))
    await hand.click(job_link(hand.page, "join"))
    cause = hand.page.locator("#explanation")
    await hand.sees(cause)
    await expect(cause.get_by_role("link", name="shop.stock")).to_have_count(5)


async def test_person_can_retry_all_failures_of_a_task(hand: Hand) -> None:
    page = hand.page
    await hand.click(page.locator("#errors").get_by_role("link", name="BankUnavailable"))
    await hand.click(page.get_by_role("button", name="Retry…"))
    await hand.click(page.get_by_role("dialog").get_by_role("button", name=re.compile("Retry")))
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Bulk run")
    await expect(page.locator("main")).to_contain_text("40 jobs")


async def test_person_can_pause_a_schedule(hand: Hand, scheduler: Scheduler) -> None:
    page = hand.page
    await hand.click(page.get_by_role("navigation").get_by_role("link", name="Schedules", exact=True))
    await hand.click(page.get_by_role("link", name="morning-mail", exact=True))
    await hand.click(page.get_by_role("button", name="Pause…"))
    await hand.sees(page.get_by_role("dialog").get_by_role("listitem").filter(has=page.locator("s")).first)
    await expect(page.get_by_role("textbox", name="Note")).to_be_focused()
    await hand.type("until Monday")
    await hand.press("Enter")
    await expect(page.locator(".status.paused").first).to_be_visible()
    schedule = await scheduler.schedules.get("morning-mail")
    assert schedule is not None
    assert schedule.note == "until Monday"


async def test_person_can_add_a_schedule(hand: Hand, scheduler: Scheduler) -> None:
    page = hand.page
    await hand.click(page.get_by_role("navigation").get_by_role("link", name="Schedules", exact=True))
    await hand.click(page.get_by_role("link", name="Add schedule"))
    await hand.arrive("form")
    await hand.type("shop.r")
    await expect(page.get_by_label("Task", exact=True)).to_have_value("shop.report")
    await hand.press("Tab", "Tab")
    await hand.type("0 8 * * 1-5")
    await hand.press("Tab")
    await hand.type("Europe/Berlin")
    await hand.press("Tab")
    await hand.type('{"month":3}')
    await expect(page.locator("#shown .fires li").first).to_contain_text("08:00")
    await hand.sees(page.locator("#shown .fires li").first)
    await hand.press("Tab")
    await hand.press("Enter")
    await expect(page.get_by_role("heading", level=1)).not_to_contain_text("Add")
    (added,) = [each for each in await scheduler.schedules.list() if each.task == "shop.report"]
    assert added.kwargs == {"month": 3}
    assert added.trigger is not None
    assert "Berlin" in str(added.trigger)
    assert hand.effort.seconds <= 25


async def test_person_can_see_what_a_worker_does(hand: Hand) -> None:
    page = hand.page
    await hand.click(page.get_by_role("navigation").get_by_role("link", name="Workers", exact=True))
    await hand.click(page.get_by_role("link", name="node-3"))
    await hand.sees(page.locator("svg.lanes"))
    await hand.sees(page.locator("#jobs").get_by_role("row", name=re.compile("row 248 of 400")).first)


async def test_person_can_find_a_slow_task(hand: Hand) -> None:
    page = hand.page
    await hand.click(page.get_by_role("navigation").get_by_role("link", name="Tasks", exact=True))
    await hand.click(page.get_by_role("columnheader", name="p95").get_by_role("link"))
    await expect(page).to_have_url(re.compile("sort="))
    slowest = page.locator("tbody tr").first.get_by_role("link").first
    name = await slowest.inner_text()
    await hand.click(slowest)
    await expect(page.get_by_role("heading", level=1)).to_have_text(name)
    await expect(page.get_by_role("heading", name="Newest failures")).to_be_visible()


async def test_person_can_follow_a_deploy(hand: Hand) -> None:
    page = hand.page
    await expect(page.locator("#outcomes")).to_contain_text("2027.12")  # its flag
    await expect(page.locator("#errors")).to_contain_text("new in 2027.12")
    await hand.click(page.get_by_role("navigation").get_by_role("link", name="Workers", exact=True))
    await hand.click(page.get_by_role("link", name="Release", exact=True))
    for release in ("2027.11", "2027.12"):
        await hand.sees(page.get_by_role("rowheader", name=release))
    await hand.click(page.get_by_role("navigation").get_by_role("link", name="Errors", exact=True))
    await hand.sees(page.get_by_text("new in 2027.12").first)


async def test_person_can_search_by_argument(hand: Hand) -> None:
    page = hand.page
    await hand.click(page.get_by_role("navigation").get_by_role("link", name="Jobs", exact=True))
    await hand.click(page.get_by_role("navigation", name="State").get_by_role("link", name="Failed"))
    await hand.arrive("failed")
    await hand.press("/")
    await hand.type("acc")
    await expect(page.get_by_role("option", name="arg.account:")).to_be_visible()
    await hand.press("ArrowDown", "Enter")
    await hand.type("113")
    await expect(page.locator("#q")).to_have_value("arg.account:113")
    await hand.press("Enter")
    await expect(page.locator("#summary")).to_contain_text("1 job")
    await hand.sees(job_link(page, "bank-3"))
    assert hand.clicks <= 3


async def test_person_can_read_a_traceback(hand: Hand) -> None:
    page = hand.page
    await hand.click(page.locator("#errors").get_by_role("link", name="BankUnavailable"))
    await hand.sees(page.locator(".traceback"))
    await expect(page.locator(".traceback .raised").last).to_contain_text("for order 113")


@pytest.mark.parametrize("path", ["/errors", "/jobs?q=name:shop.refund"])
async def test_traceback_is_on_the_first_screen_wherever_it_is_found(path: str, open_page: Open) -> None:
    hand = Hand(await open_page(path, viewport=SCREEN))
    await hand.click(hand.page.locator("tbody tr", has_text="BankUnavailable").get_by_role("link").first)
    await hand.sees(hand.page.locator(".traceback"))


async def test_person_can_open_a_result(hand: Hand) -> None:
    page = hand.page
    await hand.click(page.get_by_role("combobox", name="Find"))
    await hand.type(RESULT_ID)
    await hand.click(page.get_by_role("option", name=RESULT_ID))
    await expect(page.get_by_role("heading", level=1)).to_have_text("shop.import")
    await hand.sees(page.locator("#result"))
    await expect(page.locator("#result")).to_contain_text("rejected")


async def test_person_can_open_a_job_by_keys(hand: Hand) -> None:
    await hand.press("g", "j")
    await hand.arrive("/jobs$")
    await hand.press("j", "j", "x", "j", "Enter")
    await hand.arrive(r"/job\?id=")


async def test_person_can_find_who_holds_a_limit(hand: Hand) -> None:
    page = hand.page
    await hand.click(page.locator("#tiles").get_by_role("link", name=re.compile("^Waiting")))
    await hand.click(page.locator("tbody tr", has_text="shop.charge").get_by_role("link").first)
    holder = page.locator(".holders li").first
    await hand.sees(holder)
    await expect(holder).to_contain_text("Held by shop.charge on node-")


async def test_person_can_find_the_task_that_a_release_made_slower(hand: Hand) -> None:
    page = hand.page
    card = page.locator("#release")
    await expect(card).to_contain_text("Release 2027.12")
    await hand.click(card.get_by_role("link", name="Compare"))
    first = page.locator("table.compared tbody tr").first
    await hand.sees(first)
    await expect(first).to_contain_text("shop.charge")
    await expect(first).to_contain_text("worse")


async def test_person_can_pause_a_task(hand: Hand, scheduler: Scheduler) -> None:
    page = hand.page
    await hand.click(page.get_by_role("navigation").get_by_role("link", name="Tasks", exact=True))
    await hand.click(page.locator("#tasks").get_by_role("link", name="shop.charge", exact=True))
    await hand.click(page.get_by_role("button", name="Pause…"))
    await hand.sees(page.locator("#price"))
    await hand.click(page.locator("#pause-now"))
    await expect(page.locator(".status.paused").first).to_be_visible()
    (task,) = [task for task in await scheduler.tasks.list() if task.name == "shop.charge"]
    assert (task.is_paused, task.suspends_expiry) == (True, True)


async def test_person_can_pause_a_task_by_keys(hand: Hand) -> None:
    page = hand.page
    await hand.press("Control+k")
    await hand.type("> pause charge")
    await expect(page.locator("#found").get_by_role("option").first).to_be_visible()
    await hand.press("ArrowDown", "Enter")
    await expect(page.locator("#price")).to_contain_text("due job")  # before anything is paused
    await expect(page.locator(".status.paused")).to_have_count(0)


async def test_person_can_change_a_schedule(hand: Hand, scheduler: Scheduler) -> None:
    page = hand.page
    await hand.click(page.get_by_role("navigation").get_by_role("link", name="Schedules", exact=True))
    await hand.click(page.get_by_role("link", name="morning-mail", exact=True))
    await hand.click(page.get_by_role("link", name="Edit", exact=False).first)
    await hand.click(page.get_by_label("Cron expression"))
    await hand.press("Control+a")
    await hand.type("0 7 * * *")
    await expect(page.locator("#shown .fires li").first).to_contain_text("07:00")
    await hand.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("morning-mail")
    schedule = await scheduler.schedules.get("morning-mail")
    assert schedule is not None
    assert "7" in str(schedule.trigger)


async def test_person_can_follow_a_workflow_to_a_child(hand: Hand) -> None:
    page = hand.page
    await hand.click(page.get_by_role("navigation").get_by_role("link", name="Workflows", exact=True))
    await hand.click(job_link(page, "order:2"))
    await hand.click(job_link(page, "order:2:label").first)
    await expect(page.locator("main")).to_contain_text("Started by the step label of order:2")


async def test_person_can_find_all_jobs_of_a_customer(hand: Hand) -> None:
    page = hand.page
    await hand.press("/")
    await hand.type("4711")
    await hand.press("Enter")
    await hand.arrive("4711")
    for name in ("customer", "account"):
        await hand.sees(job_link(page, f"{name}-4711"))
    await hand.click(page.get_by_role("link", name=re.compile(r"arg\.customer")))
    await hand.sees(job_link(page, "customer-4711"))
    await expect(job_link(page, "account-4711")).to_have_count(0)


async def test_person_can_free_a_stuck_worker(hand: Hand) -> None:
    page = hand.page
    job = page.locator("#running").get_by_role("link", name="shop.import").first
    await job.scroll_into_view_if_needed()
    await job.click()
    hand.clicks += 1
    await hand.click(page.get_by_role("button", name="Cancel…"))
    await hand.click(page.get_by_role("dialog").get_by_role("button", name=re.compile("Cancel")).first)
    await expect(page.locator("main")).to_contain_text(re.compile("cancel", re.IGNORECASE))


async def test_health_is_one_sentence_on_the_first_screen(open_page: Open) -> None:
    hand = Hand(await open_page("/", viewport=SCREEN))
    await hand.sees(hand.page.get_by_role("heading", name=re.compile("need attention|All is well")))
    assert hand.effort == Effort(0, 0)
