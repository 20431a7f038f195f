"""The steps of a job on its page, and the form that sends a signal."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from tests.dashboard.client import JSON, App, Page, follow, request, send
from tests.dashboard.test_actions import as_role, records
from tests.dashboard.test_hostile import check
from tests.support.hostile_texts import HOSTILE
from tests.support.inside import row_of_retries
from tests.support.world import SECOND, World

LATEST = datetime(9999, 1, 1, tzinfo=UTC)
JOB = "/job?id=order"
FORM = "/signal-form?id=order"
SEND = "/actions/jobs/signal?id=order"


@pytest.fixture(autouse=True)
async def order(world: World) -> None:
    """Insert a job that has stored steps and waits for a signal."""
    await world.job("order", "board.order", due=LATEST, attempt=2, options={"steps": 1})
    await world.step("order", "charge", value={"card": "visa 4711", "amount": 9})
    await world.step("order", "token", value="hunter2")
    await world.step("order", "cool-off", "sleep", until=datetime(2026, 1, 1, tzinfo=UTC))
    await world.step("order", "approval", "signal", until=LATEST, ended=None)


@pytest.fixture
def operator(build: Callable[..., App]) -> App:
    return as_role(build, "operator")


async def steps(app: App) -> dict[str, Any]:
    found = (await request(app, JOB, headers=JSON)).data["steps"]
    return {each["name"]: each["value"] for each in found}


def keys_of(page: Page) -> list[str]:
    """Return the keys of the lines of steps."""
    keys = [str(row.get("data-key", "")) for row in page.all("tr")]
    return [key for key in keys if key.startswith(("step-", "child-"))]


async def value_of(pool: asyncpg.Pool, name: str) -> str | None:
    text: str | None = await pool.fetchval("SELECT value::text FROM scheduler_steps WHERE name = $1", name)
    return text


async def test_attempt_after_a_suspension_does_not_claim_to_have_waited_for_a_limit(
    pool: asyncpg.Pool, app: App
) -> None:
    error = {"attempt": 1, "outcome": "error", "message": "no", "started_at": None, "ended_at": None}
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', attempt = 4, started_at = now(), worker_id = 'w1',"
        " lease_until = now() + interval '1 hour', execution_time = now(), errors = $1::text::jsonb",
        json.dumps([error]),
    )
    words = " ".join(Page((await request(app, JOB)).text).text.split())
    assert "A step suspended its job before." in words
    assert "limit" not in words.partition("Timeline")[2].partition("Details")[0]


async def test_steps_are_on_the_page_of_the_job_in_the_order_in_which_they_began(
    app: App, world: World
) -> None:
    await world.pool.execute(
        "UPDATE scheduler_steps SET started_at = now() + interval '1 s' WHERE name = 'token'"
    )
    await world.pool.execute(
        "UPDATE scheduler_steps SET started_at = now() + interval '2 s' WHERE name = 'approval'"
    )
    page = Page((await request(app, JOB)).text)
    assert keys_of(page) == ["step-charge", "step-cool-off", "step-token", "step-approval"]
    words = " ".join(page.text.split())
    assert "Steps4 steps in the order in which they began" in words
    assert "approval signal waiting no timeout" in words
    assert "Waits for a signal" not in words
    assert words.count("Waits for the signal 'approval' without a timeout") == 1
    assert "9999" not in page.text
    assert await steps(app) == {
        "charge": {"card": "visa 4711", "amount": 9},
        "token": "hunter2",
        "cool-off": None,
        "approval": None,
    }


async def test_job_without_steps_has_no_card_of_them(app: App, pool: asyncpg.Pool) -> None:
    await pool.execute("UPDATE scheduled_jobs SET options = NULL")
    page = await request(app, JOB)
    assert "<h2>Steps</h2>" not in page.text
    assert await steps(app) == {}


async def test_step_of_an_unknown_kind_is_shown(app: App, world: World) -> None:
    await world.step("order", "label", "child", value=[1, 2], ended=None)
    words = " ".join(Page((await request(app, JOB)).text).text.split())
    assert "label 2 children waiting" in words
    assert (await steps(app))["label"] == [1, 2]


async def test_only_the_newest_of_many_steps_are_on_the_page(app: App, world: World) -> None:
    await world.step("order", "page-{}".format, count=120, started=lambda n: -n * SECOND)
    page = Page((await request(app, JOB)).text)
    keys = keys_of(page)
    assert (len(keys), "step-approval" in keys, "step-page-119" in keys) == (100, True, False)
    assert "24 older steps not shown: pg-scheduler jobs steps order" in page.text


# -- who sees what -----------------------------------------------------------------------------------------


async def test_values_are_hidden_by_their_keys_and_the_names_of_steps(build: Callable[..., App]) -> None:
    app = build(redact=["card", "token"])
    assert (await steps(app))["charge"] == {"card": "[hidden]", "amount": 9}
    assert (await steps(app))["token"] == "[hidden]"
    for url in (JOB, *(f"/value?id=order&part=step&name={name}" for name in ("charge", "token"))):
        answer = await request(app, url)
        assert answer.status == 200
        assert ("visa 4711" in answer.text, "hunter2" in answer.text) == (False, False)


async def test_messages_are_hidden_by_the_name_of_their_mailbox(
    build: Callable[..., App], world: World
) -> None:
    await world.step("order", "\x01mail:0001:token", "signal", value="hunter3", until=LATEST)
    app = build(redact=["token"])
    assert (await steps(app))["token#1"] == "[hidden]"
    assert "hunter3" not in (await request(app, JOB)).text


async def test_values_are_for_those_who_see_arguments(build: Callable[..., App]) -> None:
    app = build(authorize=lambda _: Access("ada", "admin", sees_arguments=False))
    assert set((await steps(app)).values()) == {None}
    for url in (JOB, FORM, "/live?page=/about"):
        assert "hunter2" not in (await request(app, url, headers=JSON)).text
    assert (await request(app, "/value?id=order&part=step&name=token")).status == 404
    page = Page((await request(app, JOB)).text)
    assert "hunter2" not in page.text
    assert not [each for each in page.links() if each.startswith("/value")]


async def test_values_of_other_jobs_are_for_those_who_see_all_names(
    build: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await world.step("order", "result:ab", "result", value={"job_id": "bonus-of-eve"})
    assert (await steps(build()))["result:ab"] == {"job_id": "bonus-of-eve"}
    app = build(authorize=lambda _: Access("bob", "admin", names=("board.*",)))
    assert await steps(app) == {
        **dict.fromkeys(["cool-off", "approval", "result:ab"]),
        "charge": {"card": "visa 4711", "amount": 9},
        "token": "hunter2",
    }
    assert "bonus" not in (await request(app, JOB)).text
    assert (await request(app, "/value?id=order&part=step&name=result:ab")).status == 404
    other = build(authorize=lambda _: Access("bob", "admin", names=("other.*",)))
    for url in (JOB, FORM, "/value?id=order&part=step&name=token"):
        assert (await request(other, url)).status == 404
    assert (await send(other, SEND, {"name": "approval"})).status == 404
    assert await value_of(pool, "approval") is None


async def test_whole_value_of_a_large_step_is_read_alone(app: App, world: World) -> None:
    await world.step("order", "scan", value="x" * 50_000)
    page = Page((await request(app, JOB)).text)
    assert "No value is shown: it is large" in page.text
    (link,) = [each for each in page.links() if each.endswith("&part=step&name=scan")]
    assert len(json.loads((await request(app, link)).body)) == 50_000
    for missing in ("nothing", ""):
        answer = await request(app, f"/value?id=order&part=step&name={missing}")
        assert answer.status == (404 if missing else 400)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_names_and_values_are_shown_as_text(text: str, operator: App, world: World) -> None:
    name = text[:60]
    await world.step("order", name, "signal", value={text: text}, until=LATEST)
    await world.step("order", f"w{name}", "signal", until=LATEST, ended=None)
    await world.step("order", f"k{name}", name[:10], value=text)
    for url in (JOB, FORM):
        check((await request(operator, url)).text)
    raw = await request(operator, f"/value?id=order&part=step&name={quote(name)}")
    assert json.loads(raw.body) == {text: text}


# -- signals -----------------------------------------------------------------------------------------------


async def test_form_sends_a_message_to_the_mailbox_that_the_job_waits_for(
    operator: App, pool: asyncpg.Pool, world: World
) -> None:
    await pool.execute("DELETE FROM scheduler_steps WHERE name = 'approval'")
    await world.step("order", "\x01mail:0001:items", "signal", value=1, until=LATEST)
    await world.step("order", "\x01mail:0002:items", "signal", until=LATEST, ended=None)
    words = " ".join(Page((await request(operator, JOB)).text).text.split())
    assert "'items#2' without a timeout" in words
    form = Page((await request(operator, FORM)).text)
    fields = {each["name"]: each for each in form.all("input")}
    assert fields["name"]["value"] == "items"
    assert "checked" in fields["mailbox"]
    for value in ("2", "3"):
        answer = await send(operator, SEND, {"name": "items", "value": value, "mailbox": "on"})
        assert (answer.status, answer.did) == (303, "signal_sent")
    assert await value_of(pool, "\x01mail:0002:items") == "2"
    assert await value_of(pool, "\x01mail:0003:items") == "3"
    assert "items#3" in await steps(operator)
    raw = await request(operator, f"/value?id=order&part=step&name={quote('items#3')}")
    assert json.loads(raw.body) == 3


async def test_form_sends_a_signal_that_is_recorded_without_its_value(
    operator: App, pool: asyncpg.Pool, scheduler: Scheduler
) -> None:
    page = Page((await request(operator, JOB)).text)
    (link,) = [each for each in page.links() if each.startswith("/signal-form")]
    form = await request(operator, link)
    page = Page(form.text)
    (name,) = [each for each in page.all("input") if each.get("name") == "name"]
    assert name["value"] == "approval"
    (target,) = [each["action"] for each in page.all("form") if "/signal" in str(each["action"])]
    answer = await send(operator, str(target), {"name": "approval", "value": '{"by": "ann"}'})
    assert (answer.status, answer.headers["location"], answer.did) == (303, JOB, "signal_sent")
    assert await value_of(pool, "approval") == '{"by": "ann"}'
    assert await records(pool) == [("ada", "dashboard", "signal_job", "order")]
    details = json.loads(await pool.fetchval("SELECT details::text FROM scheduler_audit"))
    assert details["name"] == "approval"
    assert "ann" not in json.dumps(details)
    shown = Page((await follow(operator, answer)).text)
    assert "the signal was sent" in shown.text
    job = await scheduler.get_job("order")
    assert job is not None
    assert job.execution_time.year < 9999
    again = await send(operator, SEND, {"name": "approval", "value": "1"})
    assert again.status == 409
    assert "nothing was sent: the job has a value for 'approval'" in Page(again.text).text
    assert len(await records(pool)) == 1


async def test_empty_value_is_null_and_any_name_may_be_sent_before_its_wait(
    operator: App, pool: asyncpg.Pool
) -> None:
    assert (await send(operator, SEND, {"name": "later"})).status == 303
    assert await value_of(pool, "later") == "null"


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"name": "approval", "value": "yes"}, 400, 'enter JSON, such as {"by": "ann"}'),
        ({"name": "approval", "value": "[" * 100_000}, 400, "enter JSON"),
        ({"name": "approval", "value": "7" * 100_001}, 400, "the limit is 100,000"),
        ({"name": "approval", "value": "NaN"}, 400, "approval"),
        ({"name": "approval", "value": '"\\ud800"'}, 400, "approval"),
        ({"name": "", "value": "1"}, 400, "must not be empty"),
        ({"name": "x" * 201, "value": "1"}, 400, "200"),
    ],
)
async def test_wrong_entry_is_answered_by_the_form_with_what_was_entered(
    fields: dict[str, str], status: int, text: str, operator: App, pool: asyncpg.Pool
) -> None:
    answer = await send(operator, SEND, fields)
    page = Page(answer.text)
    assert answer.status == status
    assert text in page.text
    assert "nothing was sent" in page.text
    assert [each.get("aria-invalid") for each in (*page.all("input"), *page.all("textarea"))].count(
        "true"
    ) == 1
    assert fields["value"][:50] in page.text
    assert await value_of(pool, "approval") is None
    assert await records(pool) == []


async def test_ended_or_missing_job_takes_no_signal(operator: App, pool: asyncpg.Pool) -> None:
    await pool.execute("UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now()")
    for answer in (await request(operator, FORM), await send(operator, SEND, {"name": "approval"})):
        assert answer.status == 409
        assert "The job is cancelled, so it accepts no signal any more" in Page(answer.text).text
    assert not [each for each in Page((await request(operator, JOB)).text).links() if "signal" in each]
    missing = await send(operator, "/actions/jobs/signal?id=nothing", {"name": "approval"})
    assert missing.status == 404


async def test_signals_need_their_right(build: Callable[..., App], pool: asyncpg.Pool) -> None:
    for app in (as_role(build, "viewer"), as_role(build, "admin", can={"retry", "cancel"})):
        assert "signal-form" not in (await request(app, JOB)).text
        assert (await request(app, FORM)).status == 403
        assert (await send(app, SEND, {"name": "approval", "value": "1"})).status == 403
    app = as_role(build, "viewer", can={"signal"})
    assert (await send(app, SEND, {"name": "approval", "value": "1"})).status == 303
    assert await value_of(pool, "approval") == "1"


ERRORS = [{"at": "2026-01-01T00:00:00Z", "attempt": 1, "error": "BankError: <b>closed</b>"}]


@pytest.mark.parametrize(
    ("until", "ended", "words"),
    [
        (datetime(2099, 1, 1, tzinfo=UTC), None, "refund step, 2 failures retrying BankError: <b>closed</b>"),
        (None, datetime(2026, 1, 1, tzinfo=UTC), "refund step, 2 failures failed BankError: <b>closed</b>"),
    ],
)
async def test_step_that_has_failed_is_shown_with_its_failures_and_the_last_error(
    until: datetime | None, ended: datetime | None, words: str, app: App, world: World
) -> None:
    row = row_of_retries("refund")
    await world.step("order", row, "retry", value={"count": 2, "errors": ERRORS}, until=until, ended=ended)
    page = Page((await request(app, JOB)).text)
    assert words in " ".join(page.text.split())
    assert "\x01" not in page.text


async def test_step_that_has_succeeded_after_failures_is_one_line(app: App, world: World) -> None:
    await world.step("order", row_of_retries("charge"), "retry", value={"count": 1, "errors": ERRORS})
    page = Page((await request(app, JOB)).text)
    assert sorted(keys_of(page)) == ["step-approval", "step-charge", "step-cool-off", "step-token"]
    assert "charge step, 1 failure stored" in " ".join(page.text.split())
    assert "closed" not in page.text
