"""The page of the doctor: what it finds, for how long it is kept, and who sees what."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from pg_scheduler.dashboard import Access
from pg_scheduler.inspect import Diagnosis, FindingCode, Inspector, Thresholds
from tests.dashboard.client import JSON, App, Page, request
from tests.dashboard.test_hostile import HOSTILE, check
from tests.inspect.workers import add_worker


async def add_late_jobs(pool: asyncpg.Pool, *names: str) -> None:
    await add_worker(pool, names=["doctored.other"])
    for name in names:
        await pool.execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time)"
            " VALUES ($1, $1, now() - interval '1 h')",
            name,
        )


async def test_findings_have_evidence_remedy_and_an_entry_in_the_runbook(
    pool: asyncpg.Pool, app: App
) -> None:
    await add_late_jobs(pool, "doctored.mail")
    data = (await request(app, "/doctor", headers=JSON)).data
    found = {each["code"]: each for each in data["findings"]}["NAME-UNKNOWN"]
    assert found["subject"] == "doctored.mail"
    assert "doctored.mail" in found["evidence"]
    assert found["remedy"]
    assert found["runbook"].endswith("/operations/runbook.html#name-unknown")
    unmade = {code for codes in data["not_made"].values() for code in codes}
    assert {*data["made"], *unmade} == set(FindingCode)
    answer = await request(app, "/doctor")
    check(answer.text)
    page = Page(answer.text)
    assert found["evidence"] in page.text
    assert found["runbook"] in page.links()
    assert data["summary"] in page.text


async def test_a_diagnosis_is_shared_by_all_requests_of_a_minute(
    pool: asyncpg.Pool, build: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    doctor = Inspector.doctor

    async def count(self: Inspector, **arguments: Any) -> Any:
        nonlocal made
        made += "only" not in arguments  # the overview makes some of the checks
        return await doctor(self, **arguments)

    monkeypatch.setattr(Inspector, "doctor", count)
    app = build()
    await request(app, "/")
    assert made == 0, "only who asks for the page examines"
    first, second = [(await request(app, "/doctor", headers=JSON)).data for _ in range(2)]
    assert first == second
    assert made == 1
    assert "Checked" in Page((await request(app, "/doctor")).text).text


async def test_restricted_requests_see_no_subjects_and_no_evidence(
    pool: asyncpg.Pool, build: Callable[..., App]
) -> None:
    await add_late_jobs(pool, "payroll.run", "payroll.mail")
    await request(build(), "/doctor")
    app = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for headers in ({}, JSON):
        answer = await request(app, "/doctor", headers=headers)
        assert "payroll" not in answer.text
        assert "NAME-UNKNOWN" in answer.text
    data = (await request(app, "/doctor", headers=JSON)).data
    codes = [each["code"] for each in data["findings"]]
    assert codes.count("NAME-UNKNOWN") == 1, "several findings of a code are one without subjects"
    assert all(each["remedy"] and each["evidence"] is None for each in data["findings"])


async def test_statements_of_other_sessions_are_hidden_with_arguments(
    pool: asyncpg.Pool, dsn: str, build: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def doctor(self: Inspector, **_: object) -> Diagnosis:
        return await examine(self, only=["XMIN-HELD"], thresholds=Thresholds(held_s=0))

    examine = Inspector.doctor
    monkeypatch.setattr(Inspector, "doctor", doctor)
    texts = {}
    for sees in (True, False):
        app = build(authorize=lambda _, sees=sees: Access("bob", sees_arguments=sees))
        other = await asyncpg.connect(dsn)
        try:
            async with other.transaction(isolation="repeatable_read"):
                await other.execute("SELECT 'hunter2-secret'")
                texts[sees] = (await request(app, "/doctor")).text
        finally:
            await other.close()
    assert "hunter2-secret" in texts[True]
    assert "hunter2-secret" not in texts[False]
    assert "XMIN-HELD" in texts[False]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_names_are_shown_as_text(text: str, pool: asyncpg.Pool, app: App) -> None:
    await add_late_jobs(pool, text[:200])
    answer = await request(app, "/doctor")
    assert answer.status == 200
    check(answer.text)
    json.loads((await request(app, "/doctor", headers=JSON)).body)
