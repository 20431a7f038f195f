"""The pages of jobs and of one job."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Job, RetryPolicy, Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.errors import JobFailedError
from tests.dashboard.client import JSON, App, Page, request, stream
from tests.dashboard.conftest import read_all
from tests.support import inside
from tests.support.inside import Connections, Histogram, JobFigures, Store
from tests.support.patience import PATIENCE
from tests.support.world import World


async def add(scheduler: Scheduler, name: str = "board.mail", **options: Any) -> str:
    """Add a job by name; workers that know the name are not needed."""
    due = options.pop("due", datetime.now(UTC) + timedelta(hours=1))
    data = {"kwargs": options.pop("kwargs", {})}
    return await scheduler.schedule_job(name, due, data, **options)


async def test_jobs_page_shows_jobs_and_what_was_searched(scheduler: Scheduler, app: App) -> None:
    await add(scheduler, job_id="mail:1")
    await add(scheduler, "board.report", job_id="report/1")
    answer = await request(app, "/jobs?q=name:board.*")
    page = Page(answer.text)
    assert answer.status == 200
    assert "2 jobs, by id, descending" in page.text
    assert {"/job?id=mail%3A1", "/job?id=report%2F1"} <= set(page.links())
    data = (await request(app, "/jobs?q=name:board.mail", headers=JSON)).data
    assert [(each["job_id"], each["name"], each["status"]) for each in data["items"]] == [
        ("mail:1", "board.mail", "pending")
    ]
    assert data["summary"] == "searched all of 2 jobs, 1 found"


async def test_search_that_finds_nothing_offers_terms_that_find_the_words(
    scheduler: Scheduler, pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    await world.worker("a1b2c3", identity="node-3")
    await add(scheduler, job_id="mail:1")
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'failed', error_message = 'Declined: the card is declined',"
        " worker_id = 'a1b2c3', finished_at = now()"
    )
    app = build()

    async def meant(q: str, app: App = app) -> dict[str, str]:
        answer = await request(app, f"/jobs?q={quote(q)}", headers=JSON)
        offered: dict[str, str] = answer.data["meant"]
        links = Page((await request(app, f"/jobs?q={quote(q)}")).text).links()
        assert {f"/jobs?q={quote(each)}" for each in offered.values()} <= set(links)
        return offered

    word = await meant("status:failed declined")
    assert word == {
        "error:~declined": "status:failed error:~declined",
        "name:*declined*": "status:failed name:*declined*",
    }
    assert 'error:~"card is"' in await meant("card is")
    assert list(await meant("node-3")) == ["error:~node-3", "name:*node-3*", "worker:a1b2c3"]
    assert await meant("worker:node-3") == {"worker:a1b2c3": "worker:a1b2c3"}
    assert await meant("-node-3 status:expired") == {}
    for q in (word["error:~declined"], "worker:a1b2c3", 'error:~"card is"', "name:*mai*"):
        found = (await request(app, f"/jobs?q={quote(q)}", headers=JSON)).data
        assert ([each["job_id"] for each in found["items"]], found["meant"]) == (["mail:1"], {}), q
    limited = build(authorize=lambda _: Access("bob", names=("board.*",)))
    assert list(await meant("node-3", limited)) == ["error:~node-3", "name:*node-3*"], "no ids of workers"


async def test_search_of_a_value_without_its_argument_offers_the_arguments_that_have_it(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    for number in range(4):
        kwargs = {"account": number, "city": "Rome", "user": {"id": 91 if number == 3 else 7}}
        await add(scheduler, job_id=f"job-{number}", kwargs=kwargs if number else {"city": "Rome"})

    async def meant(q: str, app: App) -> list[str]:
        answer = await request(app, f"/jobs?q={quote(q)}", headers=JSON)
        links = {f"/jobs?q={quote(each)}" for each in answer.data["meant"].values()}
        assert links <= set(Page((await request(app, f"/jobs?q={quote(q)}")).text).links())
        return [each for each in answer.data["meant"] if each.startswith("arg")]

    app = build()
    assert await meant("92", app) == ["arg.city:92", "arg.account:92", "arg.user.id:92"]
    hides_some = build(redact=["token"])
    assert await meant("91", hides_some) == ["arg.user.id:91", "arg.city:91", "arg.account:91"]
    assert await meant("status:failed 91", app) == [], "no failed job has arguments"
    answer = await request(app, "/jobs?q=status:scheduled+arg:91", headers=JSON)
    assert "such as arg.user:91" in answer.data["error"]
    assert answer.data["meant"]["arg.user.id:91"] == "status:scheduled arg.user.id:91"
    found = (await request(app, "/jobs?q=arg.user.id:91", headers=JSON)).data["items"]
    assert [each["job_id"] for each in found] == ["job-3"]
    redacted = build(redact=["user", "city"])
    assert await meant("arg:91", redacted) == await meant("91", redacted) == ["arg.account:91"]
    hidden = build(authorize=lambda _: Access("bob", sees_arguments=False))
    assert await meant("91", hidden) == await meant("arg:91", hidden) == []


async def test_jobs_page_continues_a_search(
    scheduler: Scheduler, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, jobs_page=2)
    for number in range(5):
        await add(scheduler, job_id=f"mail:{number}")
    url, found = "/jobs?q=status:pending", list[str]()
    for _ in range(3):
        page = Page((await request(app, url)).text)
        found += [link for link in page.links() if "/job?" in link]
        following = [attrs["href"] for attrs in page.all("a") if attrs.get("rel") == "next"]
        url = following[0] or "" if following else ""
    assert len(set(found)) == 5
    assert url == ""
    assert "of about" in (await request(app, "/jobs?q=status:pending", headers=JSON)).data["summary"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("q=statsu:failed", "did you mean"),
        ("q=%22", "the quote is not closed"),
        ("q=%00", "no text of the database"),
        ("after=nonsense", "after"),
        ("q=" + "x" * 5000, "shorten it"),
    ],
)
async def test_invalid_search_is_explained_beside_the_search_box(query: str, text: str, app: App) -> None:
    answer = await request(app, f"/jobs?{query}")
    assert answer.status == 400
    assert text in Page(answer.text).text
    assert (await request(app, f"/jobs?{query}", headers=JSON)).data["error"]


async def test_job_page_states_until_when_calls_may_postpone_the_job(world: World, app: App) -> None:
    since = datetime(2030, 1, 1, tzinfo=UTC)
    debounce = {"since": since.timestamp(), "max_wait": 3600}
    await world.job("a", due=since + timedelta(minutes=1), options={"debounce": debounce})
    text = " ".join(Page((await request(app, "/job?id=a")).text).text.split())
    assert "each call with its unique key postpones it, at the latest until 2030-01-01 01:00:00 UTC" in text


async def test_job_page_explains_a_waiting_job(scheduler: Scheduler, app: App) -> None:
    await add(scheduler, job_id="mail:1", kwargs={"to": "ada"}, metadata={"tags": ["billing"]})
    answer = await request(app, "/job?id=mail:1")
    page = Page(answer.text)
    title = page.text.partition("Waits until ")[2].partition("NOT-DUE")[0]
    assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, in \d+ \w+\s", title)
    assert "Due in" not in title
    assert "Would start" not in title, "it is the due time"
    assert "Ahead: expires 5 min after its due time" in " ".join(page.text.split())
    assert "NOT-DUE" in page.text
    assert "NO-WORKER" in page.text
    assert '"to": "ada"' in page.text
    assert "billing" in page.text
    data = (await request(app, "/job?id=mail:1", headers=JSON)).data
    assert (data["job"]["kwargs"], data["job"]["metadata"]) == ({"to": "ada"}, {"tags": ["billing"]})
    assert data["explanation"]["verdict"] == "waiting"


async def test_job_page_shows_attempts_errors_and_result(pool: asyncpg.Pool) -> None:
    attempts = 0

    async def flaky(amount: int) -> dict[str, int]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ValueError("no answer from the bank")
        return {"paid": amount}

    scheduler = Scheduler(pool, retry_policy=RetryPolicy(base=timedelta(milliseconds=10)))
    scheduler.register(flaky, name="board.flaky")
    app = dashboard(lambda: scheduler, authorize=read_all)
    await scheduler.start()
    try:
        async with asyncio.timeout(PATIENCE):
            await scheduler.run_job(flaky, args=(7,), max_retries=2, job_id="pay:1")
    finally:
        await scheduler.shutdown()
    data = (await request(app, "/job?id=pay:1", headers=JSON)).data
    assert (data["explanation"]["verdict"], data["has_result"], data["result"]) == (
        "completed",
        True,
        {"paid": 7},
    )
    titles = [event["title"] for event in data["timeline"]]
    assert [title.partition(" after")[0] for title in titles] == [
        "created",
        "attempt 1: error",
        "due",
        "attempt 2 started",
        "completed",
    ]
    assert "no answer from the bank" in data["timeline"][1]["error"]
    assert "Traceback" in data["timeline"][1]["traceback"]
    text = Page((await request(app, "/job?id=pay:1")).text).text
    assert "no answer from the bank" in text
    assert '"paid": 7' in text
    assert text.index("Result") < text.index("Arguments")


async def test_job_page_shows_the_remedy_as_a_shell_command(world: World, app: App) -> None:
    await world.job("mail 9", "board.mail", status="failed", error_message="no route")
    command = "pg-scheduler jobs retry 'mail 9'"
    text = Page((await request(app, "/job?id=mail%209")).text).text
    assert command in text
    (reason,) = (await request(app, "/job?id=mail%209", headers=JSON)).data["explanation"]["reasons"]
    assert reason["command"] == command


async def test_command_of_a_job_has_its_texts_without_escapes(scheduler: Scheduler, app: App) -> None:
    await add(scheduler, "почта.отправить", job_id="mail:1", kwargs={"кому": "Ада"})
    data = (await request(app, "/job?id=mail:1", headers=JSON)).data
    assert data["command"] == (
        """pg-scheduler jobs add 'почта.отправить' '--kwargs={"кому": "Ада"}' --priority=normal"""
    )


async def test_job_that_waits_for_others_promises_no_expiry(scheduler: Scheduler, app: App) -> None:
    await add(scheduler, job_id="load")
    due = datetime.now(UTC) - timedelta(minutes=10)
    await add(scheduler, job_id="join", due=due, after=["load"], misfire_grace_time=120)
    data = (await request(app, "/job?id=join", headers=JSON)).data
    assert [(each["title"], each["at"] is None) for each in data["timeline"] if each["is_ahead"]] == [
        ("starts once the jobs that it waits for have ended", True),
        ("expires 2 min after that, unless it has started", True),
    ]


async def test_attempts_continue_after_a_retry_by_hand(pool: asyncpg.Pool) -> None:
    may_complete = False

    async def declined() -> None:
        if not may_complete:
            raise ValueError("declined")

    scheduler = Scheduler(pool)
    scheduler.register(declined, name="board.declined")
    app = dashboard(scheduler, authorize=read_all)
    async with scheduler, asyncio.timeout(PATIENCE):
        with pytest.raises(JobFailedError):
            await scheduler.run_job(declined, job_id="pay:1")
        failed = (await request(app, "/job?id=pay:1", headers=JSON)).data
        may_complete = True
        await scheduler.retry_job("pay:1")
        await scheduler.get_job_result("pay:1")
    assert failed["job"]["attempt"] == 1
    assert failed["explanation"]["reasons"][0]["text"].startswith("failed: ")
    data = (await request(app, "/job?id=pay:1", headers=JSON)).data
    assert data["job"]["attempt"] == 2
    times = [event["at"] for event in data["timeline"][1:]]
    assert times == sorted(times)
    assert [event["title"].partition(" after")[0] for event in data["timeline"]] == [
        "created",
        "attempt 1: error",
        "due",
        "attempt 2 started",
        "completed",
    ]
    (row,) = (await request(app, "/jobs", headers=JSON)).data["items"]
    assert (row["attempt"], row["max_attempts"]) == (2, 2)


@pytest.mark.parametrize("url", ["/job?id=nothing", "/job?id=%00", "/job?id=" + "x" * 3000, "/nothing"])
async def test_missing_pages_answer_404(url: str, app: App) -> None:
    answer = await request(app, url)
    assert answer.status == 404
    Page(answer.text)
    assert (await request(app, url, headers=JSON)).data["status"] == 404


async def test_job_page_without_an_id_answers_400(app: App) -> None:
    assert (await request(app, "/job")).status == 400


async def test_names_restrict_what_is_visible(
    scheduler: Scheduler, build: Callable[..., App], world: World
) -> None:
    await add(scheduler, "billing.invoice", job_id="open")
    await add(scheduler, "payroll.secret", job_id="closed")
    await world.worker(names=["billing.invoices", "payroll.secret"])
    restricted = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for headers in ({}, JSON):
        for url in ("/jobs", "/jobs?q=id:closed", "/jobs?q=payroll*", "/jobs?q=name:*", "/job?id=open"):
            answer = await request(restricted, url, headers=headers)
            assert answer.status == 200
            shown = answer.text.replace("payroll*", "").replace("payroll%2A", "")
            assert "payroll" not in shown, url
            assert "/job?id=closed" not in shown, url
    hidden = await request(restricted, "/job?id=closed", headers=JSON)
    missing = await request(restricted, "/job?id=absent", headers=JSON)
    assert hidden.status == missing.status == 404
    answers = [json.loads(each.text.replace("closed", "absent")) for each in (hidden, missing)]
    assert [each.pop("read")["oldest_s"] for each in answers] == [0.0, 0.0]
    assert answers[0] == answers[1]
    for url in ("/jobs", "/jobs?q=name:*", "/worker?id=w1"):
        summary = (await request(restricted, url, headers=JSON)).data["summary"]
        assert summary.endswith(" found"), "the number of all jobs is hidden"
        assert "searched" not in summary
    nothing = build(authorize=lambda _: Access("eve", names=()))
    assert (await request(nothing, "/jobs", headers=JSON)).data["items"] == []


SECRET = "hunter2-secret"


async def test_statement_of_the_session_that_locks_a_row_is_hidden_with_arguments(
    scheduler: Scheduler,
    build: Callable[..., App],
    pool: asyncpg.Pool,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside.replace(monkeypatch, shown_lock_age_s=0.0)
    await add(scheduler, "billing.invoice", job_id="locked", due=datetime.now(UTC))
    await world.worker(names=["billing.invoice"])
    limited = build(authorize=lambda _: Access("bob", sees_arguments=False))
    async with pool.acquire() as other, other.transaction():
        await other.execute(f"SELECT '{SECRET}' FROM scheduled_jobs WHERE job_id = 'locked' FOR UPDATE")
        for headers in ({}, JSON):
            assert SECRET in (await request(build(), "/job?id=locked", headers=headers)).text
            answer = (await request(limited, "/job?id=locked", headers=headers)).text
            assert SECRET not in answer
            assert "a transaction has locked its row" in answer.lower()


async def test_numbers_of_a_limit_are_hidden_with_names(
    scheduler: Scheduler, build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    await add(scheduler, "billing.invoice", job_id="limited")
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:stripe:' WHERE job_id = 'limited'")
    restricted = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    texts = []
    for app in (build(), restricted):
        reasons = (await request(app, "/job?id=limited", headers=JSON)).data["explanation"]["reasons"]
        texts += [each["text"] for each in reasons if each["code"] == "LIMIT"]
    assert "stripe" in texts[0]
    assert texts[1:] == ["Waits for a limit"]


async def test_names_that_took_the_slots_of_an_expired_job_are_hidden(
    scheduler: Scheduler, build: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await world.worker()
    due: datetime = await pool.fetchval("SELECT now() - interval '10 minutes'")
    await add(scheduler, "billing.invoice", job_id="late", due=due, misfire_grace_time=540)
    await pool.execute("UPDATE scheduled_jobs SET status = 'expired', finished_at = now()")
    store = Store(Connections(pool), clock=FakeClock(due + timedelta(minutes=5)))
    figures = JobFigures(started=1, durations=Histogram(total=1200.0))
    assert await store.statistics.add("w1", 1, {"payroll.secret": figures})
    restricted = build(authorize=lambda _: Access("bob", names=("billing.*",)), refresh=60.0)
    for headers in ({}, JSON):
        assert "payroll.secret" in (await request(build(), "/job?id=late", headers=headers)).text
        answer = (await request(restricted, "/job?id=late", headers=headers)).text
        assert "payroll" not in answer
        assert "expired: it did not start in time" in answer.lower()
        assert "misfire grace time" in answer
    async with asyncio.timeout(PATIENCE), stream(restricted, "/live?page=/job&id=late") as read:
        await read()
        event = await read()
    assert "expired: it did not start in time" in event.lower()
    assert "payroll" not in event


async def test_redacted_values_are_in_no_answer(scheduler: Scheduler, build: Callable[..., App]) -> None:
    await add(
        scheduler,
        kwargs={
            "user": {"name": "ada", "Password": SECRET},
            "list": [{"token": SECRET}],
            "plain": "shown",
        },
        job_id="login",
        metadata={"token": SECRET, "tags": ["x"]},
    )
    app = build(redact=["password", "TOKEN"], links=lambda job: {"trace": f"/trace/{job.metadata['token']}"})
    for headers in ({}, JSON):
        for url in ("/jobs", "/job?id=login"):
            answer = await request(app, url, headers=headers)
            assert answer.status == 200
            assert SECRET not in answer.text
    assert "shown" in (await request(app, "/job?id=login")).text
    for term in (
        f"arg.user.Password:{SECRET}",
        "arg.user.Password:h*",
        "arg.user:*hunter*",
        "arg.user:~hunter",
        'arg.user:"{""}"',
        f"metadata.token:{SECRET}",
        f"-metadata.token:{SECRET}",
        f"any:{SECRET}",
        "-any:~hunter",
    ):
        assert (await request(app, f"/jobs?q={quote(term)}")).status == 400, term
    assert (await request(app, "/jobs?q=arg.plain:shown", headers=JSON)).data["items"]


async def test_redaction_by_a_function_receives_numbers_of_arguments(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    async def login(user: str, password: str) -> None: ...

    scheduler.register(login, name="board.positional")
    await scheduler.schedule(
        login, execution_time=datetime.now(UTC) + timedelta(hours=1), args=("ada", SECRET), job_id="login"
    )
    app = build(redact=lambda key: key == "1")
    data = (await request(app, "/job?id=login", headers=JSON)).data
    assert data["job"]["args"] == ["ada", "[hidden]"]
    assert SECRET not in (await request(app, "/job?id=login")).text


async def test_arguments_are_in_no_answer_for_those_who_may_not_see_them(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await add(scheduler, job_id="login", kwargs={"to": SECRET}, metadata={"tags": [SECRET], "x": SECRET})

    def text(job: Job) -> str:
        return f"{job.kwargs} {job.metadata}"

    app = build(
        authorize=lambda _: Access("bob", sees_arguments=False),
        format_arguments=text,
        links=lambda job: {text(job): f"/{text(job)}"},
    )
    for headers in ({}, JSON):
        for url in ("/jobs", "/job?id=login"):
            assert SECRET not in (await request(app, url, headers=headers)).text
    for term in ("arg.to:x", "metadata.x:y", "tag:z", f"any:{SECRET}", "-any:~hunter"):
        assert (await request(app, f"/jobs?q={term}")).status == 400
    assert SECRET in (await request(build(format_arguments=text), "/job?id=login")).text


async def test_log_of_a_failed_attempt_is_shown_to_those_who_see_arguments(
    scheduler: Scheduler, build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    await add(scheduler, job_id="logged")
    attempt = {
        "attempt": 1,
        "outcome": "error",
        "message": "no route",
        "log": ["connecting", f"with {SECRET}"],
    }
    await pool.execute("UPDATE scheduled_jobs SET errors = $1 WHERE job_id = 'logged'", json.dumps([attempt]))
    text = Page((await request(build(), "/job?id=logged")).text).text
    assert f"connecting\nwith {SECRET}" in text
    data = (await request(build(), "/job?id=logged", headers=JSON)).data
    assert [each["log"] for each in data["timeline"]][1] == ["connecting", f"with {SECRET}"]
    blind = build(authorize=lambda _: Access("bob", sees_arguments=False))
    for headers in ({}, JSON):
        answer = (await request(blind, "/job?id=logged", headers=headers)).text
        assert "no route" in answer
        assert "connecting" not in answer


async def test_job_page_shows_the_trace_in_which_the_job_was_created(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    metadata = {"trace": {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}}
    await scheduler.schedule_job("board.traced", datetime.now(UTC), {}, job_id="traced", metadata=metadata)
    await add(scheduler, job_id="plain")

    def links(job: Job) -> dict[str, str]:
        trace = job.metadata.get("trace", {}).get("traceparent", "")
        return {"viewer": f"/traces/{trace.split('-')[1]}"} if trace else {}

    app = build(links=links)
    page = await request(app, "/job?id=traced")
    assert f"/traces/{trace_id}" in Page(page.text).links()
    assert f"<dd>{trace_id}</dd>" in page.text
    assert trace_id not in (await request(app, "/job?id=plain")).text
    hidden = build(authorize=lambda _: Access("bob", sees_arguments=False))
    assert trace_id not in (await request(hidden, "/job?id=traced")).text


async def test_links_that_are_no_pages_are_omitted(scheduler: Scheduler, build: Callable[..., App]) -> None:
    await add(scheduler, job_id="mail:1")
    links = {
        "trace": "https://example.org/trace?a=1&b=2",
        "local": "/orders/1",
        "script": "javascript:alert(1)",
        "other host": "//evil.example",
        "backslash": "/\\evil.example",
        "data": "data:text/html,x",
    }
    answer = await request(build(links=lambda _: links), "/job?id=mail:1")
    assert {link for link in Page(answer.text).links() if link in links.values()} == {
        "https://example.org/trace?a=1&b=2",
        "/orders/1",
    }


async def test_jobs_of_a_page_are_sorted_by_any_column(world: World, app: App) -> None:
    for job_id, attempt, done, tags in (("b", 1, 1, ["x"]), ("a", 3, 2, []), ("c", 2, None, ["w"])):
        await world.job(
            job_id,
            "board.sorted",
            attempt=attempt,
            progress=None if done is None else {"done": done, "total": 3},
            task_data={"args": [], "kwargs": {}, "metadata": {"tags": tags}},
        )
    for sort, expected in (
        ("job", "abc"),
        ("attempt", "bca"),
        ("-attempt", "acb"),
        ("progress", "bac"),
        ("-progress", "abc"),
        ("tags", "cba"),
        ("-tags", "bca"),
    ):
        data = (await request(app, f"/jobs?sort={sort}", headers=JSON)).data
        assert "".join(each["job_id"] for each in data["items"]) == expected, sort
    names = (
        "name",
        "status",
        "due",
        "ended",
        "error",
        "ran",
        "when",
        "worker",
        "schedule",
        "created",
        "priority",
    )
    for sort in (*names, *(f"-{each}" for each in names)):
        answer = await request(app, f"/jobs?sort={sort}")
        assert answer.status == 200, sort
    page = Page((await request(app, "/jobs?sort=error")).text)
    (sorted_by,) = [each["aria-sort"] for each in page.all("th") if "aria-sort" in each]
    assert sorted_by == "ascending"
    assert {"/jobs?cols=&sort=-error", "/jobs?sort=-error"} & set(page.links()), "the other direction"
    assert "/jobs?sort=status" in page.links()
    for sort in ("x", "--error", "-"):
        assert (await request(app, f"/jobs?sort={sort}")).status == 400
