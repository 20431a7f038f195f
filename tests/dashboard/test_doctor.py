"""The page of the doctor: what it finds, for how long it is kept, and who sees what."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.findings import LINKS, FindingRow, folded
from pg_scheduler.dashboard.texts import timed
from pg_scheduler.inspect import Diagnosis, FindingCode, Inspector, Severity, Thresholds
from pg_scheduler.inspect.doctor import jobs, schedules, workers
from pg_scheduler.inspect.doctor.findings import count_severities, worst_of
from pg_scheduler.inspect.status import STATUS_CODES
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, Page, request, send
from tests.dashboard.test_actions import as_role
from tests.dashboard.test_hostile import check
from tests.support.hostile_texts import HOSTILE
from tests.support.inside import quarantine_error
from tests.support.world import HOUR, World

WITHOUT_PAGE: Final = {
    FindingCode.NAME_SHARED: "its subject is a list of tasks, each of which has a page",
    FindingCode.TZDATA: "its subject is the data of all hosts",
    FindingCode.SCHED_LOST: "a schedule without a row has no page",
    FindingCode.SCHED_HERD: "its subject is a second",
}
"""Codes of findings about jobs, workers and schedules without a link, each with the reason."""


def test_finding_about_an_object_has_a_link_to_its_page() -> None:
    """A person who reads the finding would else search for the object by hand."""
    modules = (jobs, schedules, workers)
    sources = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules]
    names = {name for source in sources for name in re.findall(r"\bFindingCode\.([A-Z_]+)\b", source)}
    assert len(names) > 20
    missing = {FindingCode[name] for name in names} - LINKS.keys()
    assert missing == WITHOUT_PAGE.keys(), "add a link to LINKS of dashboard/findings.py, or the reason here"


async def add_late_jobs(world: World, *names: str) -> None:
    await world.worker(names=["doctored.other"])
    for name in names:
        await world.job(name, name, due=-HOUR)


async def test_findings_have_evidence_remedy_and_an_entry_in_the_runbook(world: World, app: App) -> None:
    await add_late_jobs(world, "doctored.mail")
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
    shown = " ".join(page.text.split())
    # The title has the name of the task, so the shown evidence lacks it.
    before, _, after = found["evidence"].replace(" of 'doctored.mail'", "").partition("the oldest since ")
    assert f"{before[0].upper()}{before[1:]}the oldest since " in shown
    assert after.partition(" UTC")[2] in shown
    assert f"passed {len(data['made']) - len({each['code'] for each in data['findings']})}" in shown
    assert "Jobs of doctored.mail cannot start: no live worker has this task" in shown
    assert found["runbook"] in page.links()
    assert "/jobs?q=status%3Adue%20name%3Adoctored.mail" in page.links()


async def test_findings_of_several_tasks_state_their_remedy_once(world: World, app: App) -> None:
    names = [f"doctored.{number}" for number in range(4)]
    await world.worker(names=names, max_concurrent_jobs=5, running_jobs=5)
    for name in names:
        await world.job(name, name, due=-HOUR)
    text = " ".join(Page((await request(app, "/doctor")).text).text.split())
    assert text.count("Jobs of 4 tasks are late") == 1
    assert "Jobs of doctored." not in text
    assert all(f"{name} 1 due job not started" in text for name in names)
    assert text.count("Add workers, or raise max_concurrent_jobs=") == 1


async def test_page_of_a_job_replaces_the_commands_of_a_remedy(world: World, app: App) -> None:
    await world.worker(names=["doctored.mail"])
    await world.job("one", "doctored.mail", due=-HOUR)
    answer = await request(app, "/doctor")
    text = " ".join(Page(answer.text).text.split())
    assert "Open one of the jobs: its page states why it has not started" in text
    assert "pg-scheduler jobs explain" not in text
    assert "/jobs?q=status%3Adue%20name%3Adoctored.mail" in Page(answer.text).links()


async def test_steps_of_a_remedy_are_numbered_if_there_are_several(world: World, app: App) -> None:
    await world.worker(names=["doctored.mail"])
    await world.job("one", "doctored.mail", due=-HOUR)
    await world.job("two", "doctored.other", due=-HOUR)
    html = (await request(app, "/doctor")).text
    text = " ".join(Page(html).text.split())
    assert "Import the module of the function in a worker" in text
    lists = re.findall(r'<(ol|ul) class="steps">(.*?)</\1>', html, re.DOTALL)
    assert {tag for tag, _ in lists} == {"ol", "ul"}
    assert all((steps.count("<li>") > 1) is (tag == "ol") for tag, steps in lists)


async def test_overview_has_findings_of_several_tasks_once_and_opens_three(world: World, app: App) -> None:
    await add_late_jobs(world, *(f"doctored.mail-{number}" for number in range(4)))
    page = Page((await request(app, "/")).text)
    text = " ".join(page.text.split())
    assert "Jobs of 4 tasks cannot start: no live worker has these tasks" in text
    for number in range(3):
        assert f"doctored.mail-{number}: 1 due job not started, the oldest since" in text
        assert f"/task?id=doctored.mail-{number}" in page.links()
    assert "1 other task NAME-UNKNOWN" in text
    assert "Jobs of doctored.mail-0 cannot start" not in text
    assert "4 things need attention" in text
    assert "doctored.mail-3 1 due job" in " ".join(Page((await request(app, "/doctor")).text).text.split())


def test_findings_of_different_codes_are_folded_apart() -> None:
    def row(code: FindingCode, name: str) -> FindingRow:
        return FindingRow(
            code=code.value, severity=Severity.WARNING, title=name, meaning="", subject=name, name=name,
            evidence="", remedy=None, runbook="", link=None,
        )  # fmt: skip

    rows = [
        row(FindingCode.LATE, "a"),
        row(FindingCode.STUCK, "1"),
        row(FindingCode.LATE, "b"),
        row(FindingCode.STUCK, "2"),
        row(FindingCode.FAILING, "c"),
    ]
    assert [row.title for row in folded(rows)] == ["Jobs of 2 tasks are late", "1", "2", "c"]


async def test_quarantined_jobs_are_retried_from_their_finding(
    world: World, build: Callable[..., App]
) -> None:
    await world.jobs(
        5,
        lambda n: f"board.{n % 2}",
        status="failed",
        attempt=3,
        crash_count=3,
        error_message="quarantined: 3 workers died",
    )
    viewer, admin = build(), as_role(build, "admin")
    assert "Retry them" not in Page((await request(viewer, "/doctor")).text).text
    page = Page((await request(admin, "/doctor")).text)
    (action,) = [
        str(each["action"])
        for each in page.all("form")
        if "bulk" in str(each["action"]) and "board.1" in str(each)
    ]
    assert '<span class="word">pg-scheduler</span> jobs' in (await request(admin, "/doctor")).text
    asked = await send(admin, action, {})
    assert "3 jobs found" in asked.text
    answer = await send(admin, action, {"confirm": "yes", "shown": "3", "rate": "", "all": "yes"})
    assert answer.headers["location"].startswith("/run?id=bulk-")


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
    text = Page((await request(app, "/doctor")).text).text
    assert "Checked" in text
    assert "Checked in" not in text


async def test_restricted_requests_see_no_subjects_and_no_evidence(
    world: World, build: Callable[..., App]
) -> None:
    await add_late_jobs(world, "payroll.run", "payroll.mail")
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


async def test_restricted_requests_see_the_own_evidence_of_quarantined_jobs(
    world: World, build: Callable[..., App]
) -> None:
    for name in ("billing.invoice", "payroll.run"):
        await world.job(name, name, status="failed", crash_count=3, error_message=quarantine_error(3))
    app = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for headers in ({}, JSON):
        assert "payroll" not in (await request(app, "/doctor", headers=headers)).text
    data = (await request(app, "/doctor", headers=JSON)).data
    (invoice,) = [finding for finding in data["findings"] if finding["subject"] == "billing.invoice"]
    assert invoice["code"] == "QUARANTINE"
    assert invoice["evidence"].startswith("1 quarantined job of 'billing.invoice', the last one at ")
    assert invoice["evidence"].endswith(": billing.invoice")
    assert invoice["title"] == "Workers died while they ran billing.invoice"
    html = (await request(app, "/doctor")).text
    assert "Workers died while they ran <code>billing.invoice</code>" in html


async def test_restricted_requests_see_steps_without_names(world: World, build: Callable[..., App]) -> None:
    await add_late_jobs(world, "payroll.run", "doctored.others")
    app = build(authorize=lambda _: Access("bob", names=("doctored.others",)))
    text = Page((await request(app, "/doctor")).text).text
    assert "Import its module in a worker, or declare the former name with aliases=" in text
    assert "@job(name='doctored.other'" not in text
    assert "@job(name='doctored.other'" in Page((await request(build(), "/doctor")).text).text


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


async def test_steps_can_be_copied(world: World, scheduler: Scheduler, app: App) -> None:
    await world.worker(names=["doctored.other"])
    await scheduler.schedules.add("doctored.gone", Every(timedelta(hours=1)), schedule_id="the one")
    page = Page((await request(app, "/doctor")).text)
    commands = {each["id"] for each in page.all("pre")}
    copied = {each.get("data-copy") for each in page.all("button")} - {None}
    assert commands == copied
    assert "pg-scheduler schedules pause 'the one'" in page.text


def test_instants_of_evidence_are_relative() -> None:
    now = datetime(2030, 1, 1, 12, tzinfo=UTC)
    found = timed("since 2030-01-01 11:58:00 UTC, <b> 2030-99-01 11:58:00 UTC", now)
    assert found == (
        'since <time data-ago datetime="2030-01-01T11:58:00+00:00" title="2030-01-01 11:58:00 UTC">'
        "2 min ago</time>, &lt;b&gt; 2030-99-01 11:58:00 UTC"
    )
    once = timed("expired at 2030-01-01 11:58:00 UTC, 2 min ago, with 4 jobs", now)
    assert once.startswith('expired <time data-ago datetime="2030-01-01T11:58:00+00:00"')
    assert once.endswith("2 min ago</time>, with 4 jobs")
    assert once.count("2 min ago") == 1


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_names_are_shown_as_text(text: str, world: World, app: App) -> None:
    await add_late_jobs(world, text[:200])
    answer = await request(app, "/doctor")
    assert answer.status == 200
    check(answer.text)
    json.loads((await request(app, "/doctor", headers=JSON)).body)


async def test_findings_call_a_worker_by_its_name(pool: asyncpg.Pool, world: World, app: App) -> None:
    await world.worker("3dc3fde2", identity="node-4", health={"is_listening": False})
    await pool.execute("UPDATE scheduler_workers SET started_at = now() - interval '1 hour'")
    data = (await request(app, "/doctor", headers=JSON)).data
    (found,) = [each for each in data["findings"] if each["code"] == "WORKER-NO-LISTEN"]
    assert (found["subject"], found["title"]) == ("3dc3fde2", "Worker node-4 receives no notifications")
    page = Page((await request(app, "/doctor")).text)
    assert "Worker node-4 receives no notifications" in page.text
    assert "/worker?id=3dc3fde2" in page.links()
    text = " ".join(page.text.split())
    assert "WORKER-NO-LISTEN Use a pool with max_size of 4 or more, or direct_dsn= behind a pooler" in text
    hints = [each["title"] for each in data["findings"] if each["severity"] == "info"]
    folded = text.partition("Other checks info")[2].partition("passed")[0]
    assert hints
    assert all(hint in folded for hint in hints), "the summary of the closed part names them"


async def test_remedy_without_a_worker_has_the_command_that_starts_one(app: App) -> None:
    page = Page((await request(app, "/doctor")).text)
    assert "pg-scheduler worker myapp.jobs" in page.text
    assert page.text.count("No live worker runs jobs") == 1, "the title, and no evidence that repeats it"


async def test_severity_is_that_of_the_listed_findings(world: World, build: Callable[..., App]) -> None:
    await world.worker(names=["doctor.mail"])
    admin = build(authorize=lambda _: Access("ada", "admin"))
    severities = []
    for job_id in ("gone", "other"):
        data = (await request(admin, "/doctor", headers=JSON)).data
        severities.append(data["severity"])
        assert data["severity"] == worst_of(Severity(row["severity"]) for row in data["findings"])
        # After an action, what needs attention is read again, and the other checks are not.
        await world.job(job_id, "doctor.gone", due=-HOUR)
        await send(admin, "/actions/tasks/pause?id=doctor.mail", {})
    assert severities[0] != severities[1]


async def test_side_bar_overview_and_doctor_name_the_same_number(
    world: World, build: Callable[..., App]
) -> None:
    """The page of the doctor had seven findings where the side bar and the overview had four."""
    await world.worker(names=["doctor.mail"], health={"clock_offset_s": 99.0})
    for name in ("doctor.gone", "doctor.lost"):
        await world.job(name, name, due=-HOUR)
    admin = build(authorize=lambda _: Access("ada", "admin"))
    for muted, number in ((0, 2), (1, 1)):
        doctor = (await request(admin, "/doctor", headers=JSON)).data
        overview = (await request(admin, "/", headers=JSON)).data
        attention = [
            row["subject"]
            for row in doctor["findings"]
            if row["code"] in STATUS_CODES and not row["is_muted"]
        ]
        assert (doctor["problems"], overview["number_of_problems"], len(attention)) == (number,) * 3, muted
        unmuted = [Severity(row["severity"]) for row in doctor["findings"] if not row["is_muted"]]
        assert doctor["summary"].startswith(f"{count_severities(unmuted)}; "), muted
        assert doctor["severity"] == worst_of(unmuted), muted
        text = f"{number} {'things need' if number > 1 else 'thing needs'} attention"
        for url in ("/doctor", "/"):
            page = Page((await request(admin, url)).text)
            assert text in page.text, url
            assert f"({number}) " in page.text, "the title has the number of the side bar"
        muting = "/actions/doctor/mute?id=NAME-UNKNOWN%20doctor.gone"
        assert (await send(admin, muting, {"days": 7, "note": "later"})).status == 303
        admin = build(authorize=lambda _: Access("ada", "admin"))  # what requests share is read again
