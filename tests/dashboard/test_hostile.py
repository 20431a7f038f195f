"""Names, ids, arguments and errors that try to be markup, to reorder text or to be too long."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler.dashboard.texts import plain, unbroken, visible
from tests.dashboard.client import JSON, App, Page, request
from tests.dashboard.test_security import check_headers, check_policy
from tests.support.cases import each_case
from tests.support.hostile_texts import HOSTILE, LONG
from tests.support.world import World


async def insert(world: World, number: int, text: str) -> None:
    """Insert a job whose every text is hostile."""
    data = {"args": [text], "kwargs": {text: {text: text}}, "metadata": {"tags": [text], text: text}}
    error = {
        "attempt": 1,
        "outcome": text,
        "error_type": text,
        "message": text,
        "traceback": text,
        "log": [text, text],
    }
    await world.job(
        f"{number}{text}"[:255],
        text[:800],
        status="failed",
        attempt=1,
        worker_id=text[:800],
        task_data=data,
        error_message=f"{text}\n{LONG}",
        errors=[error],
        progress={"done": 1, "total": 3, "note": text[:200]},
        options={"schedule_id": text[:200], "fire_time": "2030-01-01T00:00:00+00:00"},
    )


def check(html: str) -> None:
    check_policy(html)
    page = Page(html)
    assert not page.all("img")
    assert all("onload" not in each for _, each in page.elements)
    assert not set(html) & set("\u202e\u2066\u200b\ufeff\u061c\x1b\x07\u2028\u2029")
    assert all(not link.startswith("javascript:") for link in page.links())
    assert str(7 * 123457) not in html


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_values_are_shown_as_text(text: str, app: App, world: World) -> None:
    await insert(world, 1, text)
    listed = (await request(app, "/jobs", headers=JSON)).data["items"]
    assert len(listed) == 1
    html = await request(app, "/jobs")
    check(html.text)
    (link,) = [each for each in Page(html.text).links() if "/job?" in each]
    job = await request(app, link)
    assert job.status == 200
    check_headers(job)
    check(job.text)
    data = (await request(app, link, headers=JSON)).data
    assert data["job"]["args"] == [text]
    assert [each["log"] for each in data["timeline"] if each["log"]] == [[text, text]]
    assert "Log (2 lines)" in job.text
    assert data["job"]["kwargs"] == {text: {text: text}}
    assert data["job"]["error_message"].startswith(text)
    searches = [each for each in Page(job.text).links() if "/jobs?q=" in each]
    assert len(searches) >= 2, "of its tag and of its schedule"
    for search in searches:
        answer = await request(app, search)
        assert answer.status == 200
        check(answer.text)
        assert len((await request(app, search, headers=JSON)).data["items"]) == 1


@each_case("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_parameters_are_shown_as_text(text: str, app: App) -> None:
    for url in (f"/jobs?q={quote(text)}", f"/job?id={quote(text)}", f"/jobs?after={quote(text)}"):
        answer = await request(app, url)
        assert answer.status in {200, 400, 404}
        check_headers(answer)
        check(answer.text)


async def test_rows_written_by_hand_are_shown(app: App, pool: asyncpg.Pool) -> None:
    deep = '{"args": [' + "[" * 900 + "]" * 900 + "]}"
    documents = ['"text"', "[]", '{"args": 7, "kwargs": []}', deep, '{"args": [1e400]}', "null"]
    for number, document in enumerate(documents):
        await pool.execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, created_at, task_data)"
            " VALUES ($1, 'board.byhand', '9999-12-31', '-infinity', $2)",
            f"job-{number}",
            document,
        )
    for headers in ({}, JSON):
        assert (await request(app, "/jobs", headers=headers)).status == 200
        for number in range(len(documents)):
            assert (await request(app, f"/job?id=job-{number}", headers=headers)).status == 200


def test_visible_escapes_what_hides_or_reorders() -> None:
    assert visible("a\u202eb\x00\u200d\n") == "a\\u202eb\\x00\u200d\n"


def test_command_is_not_broken_within_its_words() -> None:
    html = unbroken("jobs errors --since 15m <b>-1\u202e")
    assert html == (
        'jobs errors <span class="word">--since</span> 15m <span class="word">&lt;b&gt;-1\\u202e</span>'
    )
    assert "span" not in unbroken(f"jobs show {'x-' * 40}"), "a phone has no room for it"


def test_plain_values_are_json() -> None:
    values: Any = [float("inf"), float("nan"), {1: (2,)}, {3}, 10**30, None, True, object]
    text = json.dumps(plain(values), allow_nan=False)
    assert json.loads(text)[:3] == ["inf", "nan", {"1": [2]}]
