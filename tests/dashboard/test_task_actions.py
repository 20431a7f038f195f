"""Pause and resume tasks, drain and resume workers, act on schedules: each with its record in the audit."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.inspect import Inspector
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, Page, follow, request, send
from tests.dashboard.test_actions import as_role, records
from tests.support import inside
from tests.support.world import HOUR, MINUTE, World


@pytest.fixture
def admin(build: Callable[..., App]) -> App:
    return as_role(build, "admin")


async def add(scheduler: Scheduler, schedule_id: str = "hourly", task: str = "board.mail") -> None:
    await scheduler.schedules.add(task, Every(HOUR), schedule_id=schedule_id)


# -- tasks ---------------------------------------------------------------------------------------------


async def test_pause_whose_jobs_cannot_be_counted_is_reported_as_a_pause(
    admin: App, pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise DatabaseUnavailableError("the statement took too long")

    inside.replace(monkeypatch, count_of_expiring=fail)
    await world.worker(names=["board.mail"])
    answer = await send(admin, "/actions/tasks/pause?id=board.mail", {})
    assert (answer.headers["location"], answer.did) == ("/task?id=board.mail", "task_paused_uncounted")
    assert await pool.fetchval("SELECT paused_at IS NOT NULL FROM scheduler_tasks")
    assert " were not counted" in Page((await follow(admin, answer)).text).text


async def test_expiring_jobs_of_all_names_of_a_task_are_counted(
    scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    async def task() -> None:
        pass

    scheduler.register(task, name="board.renamed", aliases=["board.former"])
    for name in ("board.renamed", "board.former", "board.other"):
        await world.job(name, name, expires_at=MINUTE)
    for name in ("board.renamed", "board.former"):
        assert (await Inspector(scheduler).count_expiring(name, None)).jobs == 2
    assert (await Inspector(pool).count_expiring("board.former", None)).jobs == 1


@pytest.mark.parametrize(
    "end",
    [{"until": "2020-01-01T09:30"}, {"until": "soon"}, {"until": "2031-01-01T09:30", "zone": "Mars/Base"}],
)
async def test_refused_pause_of_a_task_keeps_what_was_typed(
    end: dict[str, str], admin: App, pool: asyncpg.Pool, world: World
) -> None:
    await world.worker(names=["board.mail"])
    answer = await send(admin, "/actions/tasks/pause?id=board.mail", {**end, "note": "a <b>mail</b>"})
    page = Page(answer.text)
    fields = {
        str(each["name"]): each for each in page.all("input") if each.get("name") in {"until", "zone", "note"}
    }
    assert answer.status == 400
    assert {name: fields[name]["value"] for name in end} == end
    assert fields["note"]["value"] == "a <b>mail</b>"
    assert fields["until"]["aria-describedby"] == "wrong-until"
    assert re.search("has passed|must be a time|time zone", page.text)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_tasks") == 0


@pytest.mark.parametrize(
    ("fields", "until"),
    [
        ({"until": "2031-01-01T09:30", "zone": "Asia/Tokyo"}, "2031-01-01T00:30:00+00:00"),
        ({"until": "2031-01-01T09:30"}, "2031-01-01T09:30:00+00:00"),
        ({"until": "2031-01-01T09:30", "for": "+1h"}, "2031-01-01T09:30:00+00:00"),
        ({"for": "+4h", "zone": "Asia/Tokyo"}, "2030-12-31T21:00:00+00:00"),
        ({"for": "tomorrow 08:00", "zone": "Asia/Tokyo"}, "2031-01-01T23:00:00+00:00"),
        ({"for": "tomorrow 08:00", "zone": "America/New_York"}, "2031-01-01T13:00:00+00:00"),
    ],
)
async def test_pause_ends_at_a_time_of_the_zone_or_after_a_length(
    fields: dict[str, str], until: str, pool: asyncpg.Pool, world: World
) -> None:
    clock = FakeClock(datetime(2030, 12, 31, 17, tzinfo=UTC))
    app = dashboard(Scheduler(pool, clock=clock), authorize=lambda _: Access("ada", role="admin"))
    await world.worker(names=["board.mail"])
    await pool.execute("UPDATE scheduler_workers SET lease_until = '2031-01-01'")
    assert (await send(app, "/actions/tasks/pause?id=board.mail", fields)).status == 303
    found = await pool.fetchval("SELECT paused_until FROM scheduler_tasks")
    assert found == datetime.fromisoformat(until)


async def test_task_is_paused_and_resumed(admin: App, pool: asyncpg.Pool, world: World) -> None:
    await world.worker(names=["board.mail"])
    until = datetime.now(UTC).replace(microsecond=0) + HOUR
    await world.jobs(3, "board.mail", job_id="n{}".format, expires_at=lambda n: n * 25 * MINUTE)
    fields = {"until": f"{until:%Y-%m-%dT%H:%M:%S}", "note": "the server <b>is</b> down"}
    answer = await send(admin, "/actions/tasks/pause?id=board.mail", fields)
    assert (answer.headers["location"], answer.did) == ("/task?id=board.mail", "task_paused.2")
    row = await pool.fetchrow("SELECT * FROM scheduler_tasks")
    assert row is not None
    assert (row["name"], row["paused_until"], row["note"], row["actor"]) == (
        "board.mail",
        until,
        fields["note"],
        "ada",
    )
    page = Page((await follow(admin, answer)).text)
    assert "the task is paused; waiting jobs that would expire during the pause: 2" in page.text
    assert "the server <b>is</b> down" in page.text
    answer = await send(admin, "/actions/tasks/resume?id=board.mail")
    assert (answer.headers["location"], answer.did) == ("/task?id=board.mail", "task_resumed")
    assert await pool.fetchval("SELECT count(*) FROM scheduler_tasks WHERE paused_at IS NOT NULL") == 0
    again = await send(admin, "/actions/tasks/resume?id=board.mail")
    assert (again.headers["location"], again.did) == ("/task?id=board.mail", "task_not_paused")
    assert await records(pool) == [
        ("ada", "dashboard", "pause_task", "board.mail"),
        ("ada", "dashboard", "resume_task", "board.mail"),
    ]


async def test_form_of_a_pause_says_how_many_jobs_expire_before_it_is_sent(
    admin: App, build: Callable[..., App], world: World, pool: asyncpg.Pool
) -> None:
    await world.worker(names=["board.mail"])
    await world.jobs(3, "board.mail", job_id="due{}".format, expires_at=5 * MINUTE)
    await world.jobs(2, "board.mail", job_id="later{}".format, due=2 * HOUR, expires_at=3 * HOUR)
    await world.job("endless", "board.mail")
    await world.job("blocked", "board.mail", expires_at=5 * MINUTE)
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:smtp:' WHERE job_id = 'blocked'")
    page = Page((await request(admin, "/task?id=board.mail")).text)
    text = page.text
    assert "5 due jobs wait; 4 expire by " in text
    assert re.findall("(hour|hours|day|is resumed) ([0-9]+) expire", text) == [
        ("hour", "4"), ("hours", "6"), ("day", "6"), ("is resumed", "6"),
    ]  # fmt: skip
    (suspends,) = (each for each in page.all("input") if each.get("name") == "suspend_expiry")
    assert "checked" in suspends
    viewer = as_role(build, "viewer")
    assert "pause-task" not in (await request(viewer, "/task?id=board.mail")).text


async def test_pause_of_the_form_suspends_expiry_and_undo_restores_that(
    admin: App, pool: asyncpg.Pool, world: World
) -> None:
    await world.worker(names=["board.mail"])
    answer = await send(admin, "/actions/tasks/pause?id=board.mail", {"suspend_expiry": "yes"})
    assert answer.did == "task_paused_suspending"
    assert await pool.fetchval("SELECT suspends_expiry FROM scheduler_tasks")
    page = Page((await follow(admin, answer)).text)
    assert "the task is paused; its jobs do not expire during the pause" in page.text
    answer = await send(admin, "/actions/tasks/resume?id=board.mail")
    assert answer.did == "task_resumed"
    assert await pool.fetchval("SELECT count(*) FROM scheduler_tasks") == 0
    assert "suspend_expiry" in answer.headers["set-cookie"], "what undo sends"


async def test_pause_needs_a_known_visible_task_and_a_later_time(
    build: Callable[..., App], pool: asyncpg.Pool, world: World, admin: App
) -> None:
    await world.worker(names=["board.mail", "billing.invoice"])
    limited = as_role(build, "admin", names=("billing.*",))
    assert (await send(limited, "/actions/tasks/pause?id=board.mail")).status == 404
    assert (await send(limited, "/actions/tasks/resume?id=board.mail")).status == 404
    assert (await request(limited, "/task?id=board.mail")).status == 404
    assert (await send(admin, "/actions/tasks/pause?id=board.mial")).status == 404
    for until in ("2001-01-01T00:00", "soon"):
        assert (await send(admin, "/actions/tasks/pause?id=board.mail", {"until": until})).status == 400
    assert await records(pool) == []
    assert (await send(limited, "/actions/tasks/pause?id=billing.invoice")).status == 303


async def test_alias_of_an_invisible_task_cannot_be_paused(
    scheduler: Scheduler, build: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    async def work() -> None: ...

    scheduler.register(work, name="board.aliased", aliases=["billing.alias"])
    await world.worker(names=["board.aliased", "billing.alias"])
    limited = as_role(build, "admin", names=("billing.*",))
    assert (await send(limited, "/actions/tasks/pause?id=billing.alias")).status == 404
    assert await pool.fetchval("SELECT count(*) FROM scheduler_tasks") == 0


async def test_reader_of_a_former_name_learns_of_the_pause_but_not_who_made_it(
    scheduler: Scheduler, build: Callable[..., App], world: World
) -> None:
    async def work() -> None: ...

    declaring = Scheduler(scheduler.db_pool)
    declaring.register(work, name="board.renamed", aliases=["billing.former"])
    await declaring.tasks.pause("board.renamed", note="a secret")
    await world.worker(names=["billing.former"])  # of the previous release
    await world.job("late", "billing.former", due=-HOUR)
    limited, everyone = as_role(build, "admin", names=("billing.*",)), as_role(build, "admin")
    task_rows = {}
    for app in (limited, everyone):
        tasks = (await request(app, "/tasks", headers=JSON)).data["items"]
        (task_rows[app],) = (task for task in tasks if task["name"] == "billing.former")
        assert task_rows[app]["paused_at"] is not None
    assert (task_rows[limited]["note"], task_rows[limited]["actor"]) == (None, None)
    assert task_rows[everyone]["note"] == "a secret"
    for path in ("/", "/tasks", "/task?id=billing.former", "/job?id=late", "/audit"):
        for headers in ({}, JSON):
            text = (await request(limited, path, headers=headers)).text
            for hidden in ("a secret", "board.renamed", "by None"):
                assert hidden not in text, (path, hidden)
    for path in ("/tasks", "/task?id=billing.former", "/job?id=late"):
        assert "a secret" in (await request(everyone, path)).text, path
    for verb in ("pause", "resume"):
        assert (await send(limited, f"/actions/tasks/{verb}?id=billing.former")).status == 404
    assert (await send(everyone, "/actions/tasks/resume?id=billing.former")).status == 303
    assert not [task.name for task in await declaring.tasks.list() if task.is_paused]


# -- workers -------------------------------------------------------------------------------------------


async def test_worker_is_drained_and_resumed(
    admin: App, build: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await world.worker("w1")
    page = await request(admin, "/worker?id=w1")
    assert "/actions/workers/drain?id=w1" in page.text
    limited = as_role(build, "admin", names=("billing.*",))
    assert "/actions/workers/drain?id=w1" in (await request(admin, "/workers")).text
    assert (await send(limited, "/actions/workers/drain?id=w1")).status == 403
    for url in ("/worker?id=w1", "/workers"):
        assert "/actions/" not in (await request(limited, url)).text
    question = await send(admin, "/actions/workers/drain?id=w1")
    assert "Drain w1? It completes its 1 running job and claims no more" in question.text
    assert await pool.fetchval("SELECT wanted FROM scheduler_workers") is None
    answer = await send(admin, "/actions/workers/drain?id=w1", {"confirm": "yes"})
    assert (answer.headers["location"], answer.did) == ("/worker?id=w1", "worker_drained")
    assert await pool.fetchval("SELECT wanted FROM scheduler_workers") == "drain"
    assert "/actions/workers/resume?id=w1" in (await request(admin, "/worker?id=w1")).text
    assert (await send(admin, "/actions/workers/resume?id=w1")).status == 303
    assert await pool.fetchval("SELECT wanted FROM scheduler_workers") is None
    for fields in ({}, {"confirm": "yes"}):
        assert (await send(admin, "/actions/workers/drain?id=w2", fields)).status == 404
    assert [each[:3] for each in await records(pool)] == [
        ("ada", "dashboard", "drain_worker"),
        ("ada", "dashboard", "resume_worker"),
    ]


# -- schedules -----------------------------------------------------------------------------------------


async def test_schedule_is_paused_resumed_triggered_backfilled_and_removed(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    await add(scheduler)
    address = "/actions/schedules/{}?id=hourly"
    answer = await send(admin, address.format("pause"), {"note": "contract ended"})
    assert (answer.headers["location"], answer.did) == ("/schedule?id=hourly", "schedule_paused")
    schedule = await scheduler.schedules.get("hourly")
    assert schedule is not None
    assert schedule.note == "contract ended"
    assert schedule.paused_at is not None
    page = await follow(admin, answer)
    assert "the schedule is paused" in page.text
    assert (await send(admin, address.format("resume"), {"from": "now"})).status == 303
    assert (await send(admin, address.format("trigger"))).status == 303
    span = {"start": "2031-01-01T00:00", "end": "2031-01-01T03:00"}
    asked = await send(admin, address.format("backfill"), span)
    assert "hourly has 3 fire times from 2031-01-01 00:00:00 UTC to 2031-01-01 03:00:00 UTC" in asked.text
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1
    answer = await send(admin, address.format("backfill"), {**span, "confirm": "yes"})
    assert (answer.headers["location"], answer.did) == ("/schedule?id=hourly", "schedule_backfilled.3")
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 4
    asked = await send(admin, address.format("remove"))
    assert "Delete this schedule?" in asked.text
    assert await scheduler.schedules.get("hourly") is not None
    answer = await send(admin, address.format("remove"), {"confirm": "yes"})
    assert (answer.headers["location"], answer.did) == ("/schedules", "schedule_removed")
    assert await scheduler.schedules.get("hourly") is None
    verbs = ("pause", "resume", "trigger", "backfill", "remove")
    assert (await records(pool))[1:] == [("ada", "dashboard", f"{verb}_schedule", "hourly") for verb in verbs]


async def test_pause_until_the_past_keeps_what_was_entered(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    await add(scheduler)
    fields = {"until": "2020-01-01T00:00", "note": "contract ended", "at_end": "pause"}
    answer = await send(admin, "/actions/schedules/pause?id=hourly", fields)
    assert answer.status == 400
    assert 'value="contract ended"' in answer.text
    assert 'value="2020-01-01T00:00" aria-invalid="true"' in answer.text
    assert 'id="wrong-until"' in answer.text
    assert await pool.fetchval("SELECT paused_at IS NULL FROM scheduler_schedules")


@pytest.mark.parametrize("action", ["pause", "resume", "trigger", "backfill", "remove"])
async def test_names_restrict_which_schedules_an_action_touches(
    action: str, scheduler: Scheduler, build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    await add(scheduler, "other", "mail.send")
    before = await pool.fetchrow("SELECT * FROM scheduler_schedules")
    limited = as_role(build, "admin", names=("billing.*",))
    fields = {"confirm": "yes", "start": "2031-01-01", "end": "2031-01-02"}
    for schedule_id in ("other", "missing"):
        answer = await send(limited, f"/actions/schedules/{action}?id={schedule_id}", fields)
        assert answer.status == 404
    assert await pool.fetchrow("SELECT * FROM scheduler_schedules") == before
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, 400),
        ({"start": "2031-01-01"}, 400),
        ({"start": "x", "end": "2031-01-02"}, 400),
        ({"start": "2031-01-01", "end": "2032-01-01"}, 400),
        ({"start": "2031-01-01", "end": "9999-01-01"}, 400),
    ],
)
async def test_backfill_is_bounded(
    fields: dict[str, str], code: int, scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    await add(scheduler)
    assert (await send(admin, "/actions/schedules/backfill?id=hourly", fields)).status == code
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_schedule_of_code_is_removed_only_if_no_worker_can_declare_it(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool, world: World
) -> None:
    await add(scheduler)
    await pool.execute("UPDATE scheduler_schedules SET owner = 'code'")
    await world.worker("w1", names=["board.mail"])
    refused = await send(admin, "/actions/schedules/remove?id=hourly", {"confirm": "yes"})
    assert refused.status == 409
    assert "defined in code" in refused.text
    assert "repeat the change" not in refused.text
    page = (await request(admin, "/schedule?id=hourly")).text
    assert "Defined in code" in page
    assert 'id="remove"' not in page
    await pool.execute("UPDATE scheduler_schedules SET owner = 'api'")
    assert 'id="remove"' in (await request(admin, "/schedule?id=hourly")).text
    await pool.execute("UPDATE scheduler_schedules SET owner = 'code'")
    await pool.execute("UPDATE scheduler_workers SET names = '{}'")
    assert (await send(admin, "/actions/schedules/remove?id=hourly", {"confirm": "yes"})).status == 303
    assert await scheduler.schedules.get("hourly") is None


async def test_trigger_does_not_name_the_job_that_has_the_unique_key(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    async def work() -> None: ...

    scheduler.register(work, name="board.unique", unique="secret-key")
    await scheduler.enqueue(work, delay=HOUR)
    await add(scheduler, "unique", "board.unique")
    limited = as_role(build, "operator", names=("board.*",))
    refused = await send(limited, "/actions/schedules/trigger?id=unique")
    assert refused.status == 409
    assert "secret-key" not in refused.text


# -- several schedules ---------------------------------------------------------------------------------


async def test_selected_schedules_are_paused_resumed_and_triggered(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    rows = ["a/1 &b", "second"]
    for schedule_id in [*rows, "third"]:
        await add(scheduler, schedule_id)
    page = Page((await request(admin, "/schedules")).text)
    boxes = [each["value"] for each in page.all("input") if each.get("name") == "row"]
    assert boxes == ["a%2F1%20%26b", "second", "third"], "percent-encoded, as the form sends them"

    async def act(action: str, **fields: object) -> str:
        answer = await send(admin, f"/actions/schedules/{action}", {"row": boxes[:2], **fields})
        assert answer.status == 303, answer.text
        return " ".join(Page((await follow(admin, answer)).text).text.split())

    assert "2 schedules paused" in await act("pause", note="stocktaking")
    found = [await scheduler.schedules.get(each) for each in [*rows, "third"]]
    assert [each and each.note for each in found] == ["stocktaking", "stocktaking", None]
    both = await act("pause", row=["second", "third", "missing"])
    assert "1 schedule paused, 1 left as they are (paused before), 1 not found" in both
    assert "2 schedules resumed" in await act("resume")
    asked = await send(admin, "/actions/schedules/trigger", {"row": rows})
    assert "Run 2 schedules now?" in Page(asked.text).text
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0
    assert "2 schedules triggered" in await act("trigger", confirm="yes")
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 2
    subjects = [(action, subject) for _, _, action, subject in await records(pool)][3:]
    assert subjects == [
        *(("pause_schedule", each) for each in rows),
        ("pause_schedule", "third"),
        *(("resume_schedule", each) for each in rows),
        *(("trigger_schedule", each) for each in rows),
    ]
    nothing = await send(admin, "/actions/schedules/pause")
    assert (nothing.status, nothing.headers["location"]) == (303, "/schedules")
    assert "select rows first" in (await follow(admin, nothing)).text
    assert len(await records(pool)) == 3 + len(subjects), "nothing was changed"


async def test_rights_and_names_are_checked_for_each_selected_schedule(
    scheduler: Scheduler, build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    async def work() -> None: ...

    scheduler.register(work, name="billing.unique", unique="secret-key")
    await scheduler.enqueue(work, delay=HOUR)
    await add(scheduler, "mine", "billing.invoice")
    await add(scheduler, "taken", "billing.unique")
    await add(scheduler, "other", "mail.send")
    limited = as_role(build, "operator", names=("billing.*",))
    rows = {"row": ["other", "taken", "mine", "missing", "x" * 300]}
    for action, expected in (("trigger", "1.1.3"), ("pause", "2.0.3"), ("resume", "2.0.3")):
        answer = await send(limited, f"/actions/schedules/{action}", {**rows, "confirm": "yes"})
        assert (answer.headers["location"], answer.did) == ("/schedules", f"schedules_{action}.{expected}")
    assert {subject for _, _, _, subject in (await records(pool))[3:]} == {"mine", "taken"}
    viewer = as_role(build, "viewer", can={"schedule_trigger"})
    assert (await send(viewer, "/actions/schedules/pause", rows)).status == 403
    html = (await request(viewer, "/schedules")).text
    assert 'id="trigger-selected"' in html
    assert 'id="pause-selected"' not in html
    assert "Select mine" not in (await request(as_role(build, "viewer"), "/schedules")).text


async def test_outage_amid_selected_schedules_states_what_was_done(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    for schedule_id, task in enumerate(("board.one", "board.large", "board.down", "board.last")):
        await add(scheduler, f"s{schedule_id}", task)
    await pool.execute(
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.job_name = 'board.down' THEN
                PERFORM pg_terminate_backend(pg_backend_pid());
            ELSIF NEW.job_name = 'board.large' THEN
                RAISE EXCEPTION 'too large' USING ERRCODE = '23514', CONSTRAINT = 'scheduled_jobs_payload';
            ELSIF NEW.job_name = 'board.protected' THEN
                RAISE EXCEPTION 'protected';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION refuse()
        """
    )
    rows = [f"s{number}" for number in range(4)]
    answer = await send(admin, "/actions/schedules/trigger", {"row": rows[:2], "confirm": "yes"})
    page = Page((await follow(admin, answer)).text)
    assert "1 schedule triggered, 1 failed" in page.text, "it is no conflict of a unique key"
    await add(scheduler, "protected", "board.protected")
    answer = await send(admin, "/actions/schedules/trigger", {"row": ["protected", "s0"], "confirm": "yes"})
    assert "1 schedule triggered, 1 failed" in Page((await follow(admin, answer)).text).text
    stopped = await send(admin, "/actions/schedules/trigger", {"row": rows, "confirm": "yes"})
    assert stopped.status == 503
    assert "before: 1 schedule triggered, 1 failed" in Page(stopped.text).text
    assert "'s2' may have been changed or not" in Page(stopped.text).text
    names = await pool.fetch("SELECT job_name FROM scheduled_jobs ORDER BY 1")
    assert [name for (name,) in names] == ["board.one"] * 3
