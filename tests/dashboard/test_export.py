"""All jobs of a search in a file; suggestions of searches; the command that adds such a job."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from pg_scheduler.dashboard import Access
from tests.dashboard.client import JSON, App, Page, request
from tests.dashboard.test_hostile import insert
from tests.dashboard.test_limits import declare
from tests.dashboard.test_overview import add_figures
from tests.support import inside
from tests.support.hostile_texts import HOSTILE
from tests.support.world import World

SECRET = "hunter2-secret"


async def fill(world: World, number: int = 7) -> None:
    data = {"args": [1], "kwargs": {"token": SECRET}, "metadata": {"tags": ["x"]}}
    for name in ("billing.invoice", "payroll.run"):
        await world.jobs(number, name, job_id=(name + "{}").format, task_data=data)


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_export_has_every_job_of_a_search(
    world: World, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, export_page=3)
    await fill(world)
    answer = await request(app, "/export?q=name:billing.*")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == 'attachment; filename="jobs.jsonl"'
    rows = lines_of(answer.text)
    assert {row["job_id"] for row in rows} == {f"billing.invoice{n}" for n in range(1, 8)}
    assert (rows[0]["args"], rows[0]["kwargs"], rows[0]["tags"]) == ([1], {"token": SECRET}, ["x"])
    found = list(csv.DictReader(io.StringIO((await request(app, "/export?format=csv")).text)))
    assert len(found) == 14
    assert list(found[0]) == list(rows[0])
    assert json.loads(found[0]["kwargs"]) == {"token": SECRET}
    page = Page((await request(app, "/jobs?q=name:billing.*")).text)
    links = [each for each in page.links() if "/export?" in each]
    assert [len((await request(app, each)).text.splitlines()) for each in links] == [8, 7]
    head = await request(app, "/export?format=csv", method="HEAD")
    assert (head.status, head.body) == (200, b"")


async def test_export_contains_what_the_request_may_see(world: World, build: Callable[..., App]) -> None:
    await fill(world)
    app = build(authorize=lambda _: Access("bob", names=("billing.*",), sees_arguments=False))
    for form in ("csv", "jsonl"):
        answer = await request(app, f"/export?format={form}")
        assert "payroll" not in answer.text
        assert SECRET not in answer.text
        assert "kwargs" not in answer.text
        assert "billing.invoice7" in answer.text
    redacted = await request(build(redact=["token"]), "/export")
    assert SECRET not in redacted.text
    assert {row["kwargs"]["token"] for row in lines_of(redacted.text)} == {"[hidden]"}
    assert (await request(app, "/export?q=arg.token:x")).status == 400


@pytest.mark.parametrize("query", ["format=xls", "q=status:nothing", "q=%22"])
async def test_invalid_exports_are_rejected(query: str, app: App) -> None:
    assert (await request(app, f"/export?{query}")).status == 400


@pytest.mark.parametrize("text", [*HOSTILE, "=HYPERLINK(1)", "@sum", "-1+1"], ids=range(len(HOSTILE) + 3))
async def test_exported_texts_are_whole_and_no_formulas(text: str, world: World, app: App) -> None:
    await insert(world, 1, text)
    (row,) = lines_of((await request(app, "/export")).text)
    assert row["args"] == [text]
    assert row["name"] == text[:800]
    (found,) = csv.DictReader(io.StringIO((await request(app, "/export?format=csv")).text, newline=""))
    assert json.loads(found["args"]) == [text]
    assert found["name"].removeprefix("'") == text[:800]
    assert not found["name"].startswith(("=", "@", "-"))


async def test_terms_with_visible_names_are_offered(
    pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    await add_figures(world, ["billing.gone", "payroll.gone"])
    await pool.execute("DELETE FROM scheduler_workers")
    settings = json.dumps({"aliases": {"billing.app.invoice": "billing.invoice"}})
    await world.worker(names=["billing.invoice", "billing.app.invoice", "payroll.run"], settings=settings)
    app = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    found = (await request(app, "/jobs", headers=JSON)).data["completions"]
    texts = [text for text, *_ in found]
    assert {each for each in texts if each.startswith("name:")} == {
        "name:billing.invoice",
        "name:billing.gone",
    }, "no alias, and no name that is not visible"
    assert "status:failed" in texts
    page = Page((await request(app, "/jobs")).text)
    assert [each["value"] for each in page.all("option")] == texts


async def test_job_page_has_the_command_that_adds_such_a_job_its_limits_and_changes(
    pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    await fill(world, 1)
    limits = declare("stripe", "billing.invoice", max_running=20) + declare("bank", "payroll.run")
    await world.worker(settings={"limits": limits})
    await world.audit("move_jobs", "billing.invoice1")
    url = "/job?id=billing.invoice1"
    data = (await request(build(), url, headers=JSON)).data
    assert shlex.split(data["command"]) == [
        "pg-scheduler", "jobs", "add", "billing.invoice", "--args=[1]",
        f'--kwargs={{"token": "{SECRET}"}}', '--metadata={"tags": ["x"]}', "--priority=normal",
    ]  # fmt: skip
    assert [each["name"] for each in data["limits"]] == ["stripe"]
    assert [(each["actor"], each["action"]) for each in data["changes"]] == [("ada", "move_jobs")]
    text = Page((await request(build(), url)).text).text
    assert "pg-scheduler jobs add billing.invoice" in text
    assert "ada moved it to another time on the command line" in text
    for arguments in ({"redact": ["token"]}, {"authorize": lambda _: Access("b", sees_arguments=False)}):
        assert (await request(build(**arguments), url, headers=JSON)).data["command"] is None
    closed = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    assert (await request(closed, url, headers=JSON)).data["changes"] == []


async def test_export_ends_with_an_error_when_the_web_server_stops(
    world: World, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, export_page=3)
    inside.replace(monkeypatch, export_is_stopping=lambda: True)
    await fill(world)
    with pytest.raises(RuntimeError, match="this export is incomplete; export again from the next process"):
        await request(app, "/export")
    # Nothing is missing from the last page.
    assert len(lines_of((await request(app, "/export?q=id:billing.invoice1")).text)) == 1
