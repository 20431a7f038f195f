"""Bulk runs: asked with their number, recorded, stopped and resumed from other applications."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.jobs.error_text import OTHER_ERRORS
from tests.dashboard.client import JSON, App, Page, request, send, stream
from tests.dashboard.test_live import url_of
from tests.support import inside
from tests.support.errors import recount_errors
from tests.support.inside import fingerprint_of
from tests.support.patience import PATIENCE
from tests.support.world import DAY, SECOND, World

Q = "name%3Abulk.*"
CANCEL = f"/actions/bulk/cancel?q={Q}"
RUN = {"verb": "cancel", "where": "x", "names": None, "rate": None, "to": None, "group": None}


async def fill(world: World, count: int, status: str = "pending", name: str = "bulk.mail") -> None:
    failure = {
        "ended": lambda n: -n * SECOND,
        "error_message": "BulkError: no answer after {} s".format,
        "attempt": 1,
    }
    await world.jobs(
        count,
        name,
        job_id="j{:05}".format,
        status=status,
        due=lambda n: DAY + n * SECOND,
        **(failure if status == "failed" else {}),
    )
    await world.pool.execute("VACUUM ANALYZE scheduled_jobs")


async def count(pool: asyncpg.Pool, status: str) -> int:
    found: int = await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = $1", status)
    return found


async def controls(pool: asyncpg.Pool) -> list[tuple[str, str, str]]:
    rows = await pool.fetch(
        "SELECT actor, via, action FROM scheduler_audit WHERE action LIKE '%bulk' ORDER BY id"
    )
    return [tuple(row) for row in rows]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - the database reports no event
            await asyncio.sleep(0.01)


def runs(app: App) -> Any:
    return app._operations.runs  # type: ignore[attr-defined]


def run_id(location: str) -> str:
    return location.partition("id=")[2].partition("&")[0]


@pytest.fixture
async def create(build: Callable[..., App]) -> AsyncIterator[Callable[..., App]]:
    """Return a function that builds an application; wait for their runs at the end."""
    apps: list[App] = []

    def create(actor: str = "ada", role: str = "admin", **arguments: Any) -> App:
        settings = {name: arguments.pop(name) for name in ("redact", "bounds") if name in arguments}
        app = build(authorize=lambda _: Access(actor, role, **arguments), **settings)  # type: ignore[arg-type]
        apps.append(app)
        return app

    yield create
    for app in apps:
        if hasattr(app, "_operations"):
            async with asyncio.timeout(PATIENCE):
                await runs(app).wait()


class Halted:
    """A run that waits for the lock of a job, by default one of its third batch."""

    def __init__(self, pool: asyncpg.Pool, app: App, url: str = CANCEL, job_id: str = "j00005") -> None:
        self.pool, self.app, self.url, self.job_id = pool, app, url, job_id
        self.id = ""
        self.is_released = False

    async def __aenter__(self) -> Halted:
        self._connection = await self.pool.acquire()
        self._transaction = self._connection.transaction()
        await self._transaction.start()
        await self._connection.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", self.job_id)
        answer = await send(self.app, self.url, {"confirm": "yes"})
        assert answer.status == 303, answer.text
        self.id = run_id(answer.headers["location"])
        await self.waiting(1)
        return self

    async def waiting(self, count: int) -> None:
        """Wait until so many sessions wait for a lock."""

        async def waits() -> bool:
            sql = (
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return await self.pool.fetchval(sql) == count  # type: ignore[no-any-return]

        await until(waits)

    async def release(self) -> None:
        if not self.is_released:
            self.is_released = True
            await self._transaction.rollback()
            await self.pool.release(self._connection)

    async def __aexit__(self, *_: object) -> None:
        await self.release()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    inside.replace(monkeypatch, bulk_batch=2)


# -- the question --------------------------------------------------------------------------------------


async def test_all_jobs_of_a_search_are_changed_after_a_question(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 700)
    app = create()
    page = Page((await request(app, f"/jobs?q={Q}")).text)
    assert {"row", "all"} <= {each.get("name") for each in page.all("input")}
    asked = Page((await send(app, CANCEL, {"rate": "5000"})).text)
    text = " ".join(asked.text.split())
    assert "Cancel 700 jobs?" in text
    assert "700 jobs found. name:bulk.*" in text
    assert len([link for link in asked.links() if link.startswith("/job?id=")]) == 3, "the first jobs"
    assert "At most this many jobs per second (empty: no limit)" in text
    assert "typed" not in {each.get("name") for each in asked.all("input")}
    assert await count(pool, "pending") == 700
    fields = {str(each["name"]): each["value"] for each in asked.all("input") if each.get("type") != "search"}
    assert fields == {"confirm": "yes", "rate": "5000", "shown": "700", "more": "no"}
    answer = await send(app, CANCEL, fields)
    run = run_id(answer.headers["location"])
    await runs(app).wait()
    assert await count(pool, "cancelled") == 700
    rows = await pool.fetch("SELECT * FROM scheduler_audit ORDER BY id")
    assert [row["action"] for row in rows] == ["start_bulk", "cancel_jobs", "cancel_jobs", "end_bulk"]
    assert {(row["actor"], row["via"], row["subject"]) for row in rows} == {("ada", "dashboard", run)}
    end = json.loads(rows[-1]["details"])
    assert (end["is_complete"], end["done"]) == (True, 700)
    page = Page((await request(app, f"/run?id={run}")).text)
    assert "Complete: 700 jobs cancelled" in page.text
    audit = Page((await request(app, "/audit")).text)
    assert audit.links().count(f"/run?id={run}") == 3, "the batches are one sentence"
    assert not [each for each in page.all("form") if "bulk" in str(each["action"])]
    listed = (await request(app, "/runs", headers=JSON)).data["items"]
    assert [(each["run_id"], each["which"], each["actor"]) for each in listed] == [
        (run, "name:bulk.*", "ada")
    ]


@pytest.mark.parametrize("typed", ["", "1201", "x"])
async def test_number_of_many_jobs_must_be_typed(
    typed: str, create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 1_200)
    app = create()
    asked = await send(app, CANCEL, {"confirm": "yes", "typed": typed})
    assert asked.status == (400 if typed == "x" else 200)
    assert await controls(pool) == []
    if typed != "x":
        page = Page(asked.text).text
        assert "Type 1200 to confirm" in page
        assert f"you typed {typed or 'nothing'}; 1,200 jobs match now" in page
        assert (await send(app, CANCEL, {"confirm": "yes", "typed": "1,200"})).status == 303
        await runs(app).wait()
        assert await count(pool, "cancelled") == 1_200


@pytest.mark.parametrize("shown", [3, 1_200])
async def test_number_that_was_shown_is_confirmed_unless_many_jobs_were_added(
    shown: int, create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, shown)
    app = create()
    asked = Page((await send(app, CANCEL)).text)
    fields = {str(each["name"]): each.get("value") for each in asked.all("input")}
    if "typed" in fields:
        assert fields["typed"] is None, "it has to be typed"
        fields["typed"] = f"{shown}"
    margin = max(shown // 10, 10)
    await world.jobs(margin + 1, "bulk.new", job_id="new{}".format, due=DAY)
    again = Page((await send(app, CANCEL, fields)).text)
    assert f"{shown + margin + 1:,} jobs found" in again.text
    assert f"; {shown:,} when you were asked." in again.text
    assert await controls(pool) == []
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'new1'")
    assert (await send(app, CANCEL, fields)).status == 303
    await runs(app).wait()
    assert await count(pool, "cancelled") == shown + margin


async def test_question_with_an_open_number_is_answered_with_it(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 2_000)
    app = create()
    asked = Page((await send(app, CANCEL)).text)
    assert "1,500 jobs found so far, and the search continues." in asked.text
    fields = {str(each["name"]): each.get("value") for each in asked.all("input")} | {"typed": "1500"}
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id > 'j01700'")
    assert (await send(app, CANCEL, {**fields, "typed": "1499"})).status == 200
    assert (await send(app, CANCEL, fields)).status == 303
    await runs(app).wait()
    assert await count(pool, "cancelled") == 1_700


async def test_bulk_moves_retries_and_deletes(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 3)
    app = create()
    for action in ("move", "cancel", "retry", "delete"):
        fields = {"confirm": "yes", "to": "2031-02-03T04:05"}
        assert (await send(app, f"/actions/bulk/{action}?q={Q}", fields)).status == 303
        await runs(app).wait()
        if action == "move":
            due = await pool.fetchval("SELECT min(execution_time)::text FROM scheduled_jobs")
            assert due.startswith("2031-02-03 04:05:00")
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


@pytest.mark.parametrize(
    ("url", "fields", "text"),
    [
        ("/actions/bulk/cancel", {}, "Where must not be empty"),
        ("/actions/bulk/cancel?q=colour%3Ared", {}, "colour"),
        (CANCEL, {"rate": "0"}, "Rate must be from 1"),
        (CANCEL, {"rate": "1e9"}, "whole number"),
        (f"/actions/bulk/move?q={Q}", {"to": "soon"}, "To must be a time"),
    ],
)
async def test_wrong_bulk_is_rejected(
    url: str, fields: dict[str, str], text: str, create: Callable[..., App], pool: asyncpg.Pool
) -> None:
    answer = await send(create(), url, {"confirm": "yes", **fields})
    assert answer.status == 400
    assert text in Page(answer.text).text
    assert await controls(pool) == []


# -- stopping and resuming -----------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
async def test_run_is_stopped_and_resumed_from_other_applications(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 9)
    first, second, third = create("ada"), create("bob"), create("cyd")
    async with Halted(pool, first) as halted:
        page = Page((await request(second, f"/run?id={halted.id}")).text)
        assert "Runs in another process, or its process has ended: 4 jobs cancelled" in page.text
        assert "/actions/bulk/stop" in str(page.all("form"))
        here = await request(first, f"/run?id={halted.id}")
        assert "Runs: 4 jobs cancelled" in here.text
        assert '<noscript><meta http-equiv="refresh"' in here.text
        answer = await send(second, f"/actions/bulk/stop?id={halted.id}")
        assert answer.did == "run_stopped"
        assert "Stops after the batch" in (await request(first, f"/run?id={halted.id}")).text
    await runs(first).wait()
    assert await count(pool, "cancelled") == 6
    page = Page((await request(third, f"/run?id={halted.id}")).text)
    assert "Stopped: 6 jobs cancelled" in page.text
    assert not [each for each in page.all("meta") if "http-equiv" in each]
    assert (await send(third, f"/actions/bulk/resume?id={halted.id}")).status == 303
    await runs(third).wait()
    assert await count(pool, "cancelled") == 9
    assert "Complete: 9 jobs cancelled" in (await request(first, f"/run?id={halted.id}")).text
    assert await controls(pool) == [
        ("ada", "dashboard", "start_bulk"),
        ("bob", "dashboard", "stop_bulk"),
        ("ada", "dashboard", "end_bulk"),
        ("cyd", "dashboard", "resume_bulk"),
        ("cyd", "dashboard", "end_bulk"),
    ]
    changed = await pool.fetch(
        "SELECT jsonb_array_elements_text(details -> 'jobs') FROM scheduler_audit"
        " WHERE action = 'cancel_jobs'"
    )
    assert len(changed) == 9
    again = await send(third, f"/actions/bulk/resume?id={halted.id}")
    assert again.status == 409


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
async def test_progress_of_a_run_is_streamed(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 9)
    app = create()
    async with Halted(pool, app) as halted:
        url = url_of((await request(app, f"/run?id={halted.id}")).text)
        async with asyncio.timeout(PATIENCE), stream(app, url) as read:
            await read()
            assert "Runs: 4 jobs cancelled" in await read()
            await halted.release()
            await runs(app).wait()
            while "Complete: 9 jobs cancelled" not in await read():
                pass
    async with asyncio.timeout(PATIENCE), stream(app, "/live?page=/run&id=missing") as read:
        await read()
        assert "there is no bulk run" in await read()
        assert await read() == ""


@pytest.mark.usefixtures("small_batches")
async def test_run_of_a_process_that_ended_is_resumed(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 9)
    first, second = create("ada"), create("bob")
    async with Halted(pool, first) as halted:
        (task,) = runs(first)._tasks
        task.cancel()
        await halted.release()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await count(pool, "cancelled") == 6, "the batch in progress is completed"
    assert "its process has ended" in (await request(second, f"/run?id={halted.id}")).text
    await pool.execute("UPDATE scheduler_bulk_runs SET answered_at = answered_at - interval '1 h'")
    assert (
        "Without new records, its process has probably ended"
        in (await request(second, f"/run?id={halted.id}")).text
    )
    assert (await send(second, f"/actions/bulk/resume?id={halted.id}")).status == 303
    await runs(second).wait()
    assert await count(pool, "cancelled") == 9
    assert [each[2] for each in await controls(pool)] == ["start_bulk", "resume_bulk", "end_bulk"]


@pytest.mark.usefixtures("small_batches")
async def test_run_that_is_resumed_elsewhere_ends_here(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 9)
    first, second = create("ada"), create("bob")
    async with Halted(pool, first) as halted:
        assert (await send(second, f"/actions/bulk/resume?id={halted.id}")).status == 303
    await runs(first).wait()
    await runs(second).wait()
    assert await count(pool, "cancelled") == 9
    assert await controls(pool) == [
        ("ada", "dashboard", "start_bulk"),
        ("bob", "dashboard", "resume_bulk"),
        ("bob", "dashboard", "end_bulk"),
    ]


@pytest.mark.usefixtures("small_batches")
async def test_batch_of_a_run_that_is_resumed_meanwhile_is_not_changed_twice(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 9)
    await pool.execute("""
        UPDATE scheduled_jobs SET status = 'completed', finished_at = now(), attempt = 1;
        CREATE FUNCTION complete() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN NEW.status := 'completed'; NEW.finished_at := now(); RETURN NEW; END
        $$;
        CREATE TRIGGER complete BEFORE UPDATE ON scheduled_jobs FOR EACH ROW
            WHEN (NEW.status = 'pending') EXECUTE FUNCTION complete()
    """)
    first, second = create("ada"), create("bob")
    async with Halted(pool, first, f"/actions/bulk/retry?q={Q}%20status%3Acompleted") as halted:
        assert (await send(second, f"/actions/bulk/resume?id={halted.id}")).status == 303
        await halted.waiting(2)
    await runs(first).wait()
    await runs(second).wait()
    changed = await pool.fetch(
        "SELECT jsonb_array_elements_text(details -> 'jobs') AS id FROM scheduler_audit"
        " WHERE action = 'retry_jobs'"
    )
    assert sorted(row["id"] for row in changed) == [f"j{number:05}" for number in range(1, 10)]
    assert [each[::2] for each in await controls(pool)] == [
        ("ada", "start_bulk"),
        ("bob", "resume_bulk"),
        ("bob", "end_bulk"),
    ]
    assert "Complete: 9 jobs retried" in (await request(first, f"/run?id={halted.id}")).text


@pytest.mark.usefixtures("small_batches")
async def test_run_that_has_ended_elsewhere_is_not_ended_again(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 9)
    first, second = create("ada"), create("bob")
    async with Halted(pool, first) as halted:
        assert (await send(second, f"/actions/bulk/resume?id={halted.id}")).status == 303
        await pool.execute("UPDATE scheduler_bulk_runs SET phase = 'stopped'")
    await runs(first).wait()
    await runs(second).wait()
    assert ("ada", "dashboard", "end_bulk") not in await controls(pool)


@pytest.mark.usefixtures("small_batches")
async def test_actor_of_a_resumed_run_is_known_after_many_batches(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 60)
    first, second, third = create("ada"), create("bob"), create("cyd")
    async with Halted(pool, first) as halted:
        assert (await send(second, f"/actions/bulk/stop?id={halted.id}")).status == 303
    await runs(first).wait()
    assert (await send(second, f"/actions/bulk/resume?id={halted.id}")).status == 303
    await runs(second).wait()
    started, resumed = await pool.fetch(
        "SELECT id, at FROM scheduler_audit WHERE action = ANY ('{start_bulk,resume_bulk}') ORDER BY id"
    )
    after = await pool.fetchval("SELECT count(*) FROM scheduler_audit WHERE id > $1", resumed["id"])
    assert after > 20
    shown = (await request(third, f"/run?id={halted.id}", headers=JSON)).data
    state = await runs(third).state(halted.id)
    assert state.created_at <= started["at"] < state.started_at <= resumed["at"]
    assert (shown["actor"], shown["phase"]) == ("bob", "complete")


@pytest.mark.usefixtures("small_batches")
async def test_bulk_move_is_followed_stopped_and_resumed_after_many_batches(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 60)
    first, second = create("ada"), create("bob")
    move = f"/actions/bulk/move?q={Q}"
    async with Halted(pool, first, move, "j00010") as halted:  # the 26th batch: the newest ids are first
        shown = (await request(second, f"/run?id={halted.id}", headers=JSON)).data
        assert (shown["phase"], shown["done"], shown["actor"]) == ("running", 50, "ada")
        assert (await send(second, f"/actions/bulk/stop?id={halted.id}")).status == 303
    await runs(first).wait()
    shown = (await request(second, f"/run?id={halted.id}", headers=JSON)).data
    assert (shown["phase"], shown["done"]) == ("stopped", 52)
    assert (await send(second, f"/actions/bulk/resume?id={halted.id}")).status == 303
    await runs(second).wait()
    shown = (await request(first, f"/run?id={halted.id}", headers=JSON)).data
    assert (shown["phase"], shown["done"], shown["actor"]) == ("complete", 60, "bob")


@pytest.mark.usefixtures("small_batches")
async def test_run_that_several_processes_continue_reports_the_jobs_that_all_of_them_changed(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 9)
    first, second, third = create("ada"), create("bob"), create("cyd")
    async with Halted(pool, first) as halted:
        for app in (second, third):
            assert (await send(app, f"/actions/bulk/stop?id={halted.id}")).status == 303
        before = await runs(second).state(halted.id)  # the batch in progress follows
    await runs(first).wait()
    for app in (second, third):
        await runs(app).resume(halted.id, before)
        await runs(app).wait()
        shown = (await request(app, f"/run?id={halted.id}", headers=JSON)).data
        assert (shown["phase"], shown["done"], shown["searched"]) == ("complete", 9, 9)
    assert await count(pool, "cancelled") == 9
    (end,) = await pool.fetch(
        "SELECT details FROM scheduler_audit WHERE action = 'end_bulk' AND details ->> 'is_complete' = 'true'"
    )
    assert json.loads(end["details"])["done"] == 9


async def test_run_that_the_server_refuses_ends_and_says_so(
    create: Callable[..., App], pool: asyncpg.Pool, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(world, 9)
    await pool.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
        CREATE TRIGGER refuse BEFORE INSERT ON scheduler_audit FOR EACH ROW
            WHEN (NEW.action = 'cancel_jobs') EXECUTE FUNCTION refuse()
    """)
    app = create()
    answer = await send(app, CANCEL, {"confirm": "yes"})
    await runs(app).wait()
    assert [each[2] for each in await controls(pool)] == ["start_bulk", "end_bulk"]
    page = await request(app, f"/run?id={run_id(answer.headers['location'])}")
    assert "refused a row (P0001, PL/pgSQL function refuse() line 1 at RAISE): RaiseError" in page.text
    assert "bulk run" in caplog.text


@pytest.mark.usefixtures("small_batches")
async def test_run_changes_the_jobs_besides_those_that_a_trigger_refuses(
    create: Callable[..., App], pool: asyncpg.Pool, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(world, 9)
    await pool.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
        CREATE TRIGGER refuse BEFORE UPDATE ON scheduled_jobs FOR EACH ROW
            WHEN (OLD.job_id IN ('j00002', 'j00003', 'j00008')) EXECUTE FUNCTION refuse()
    """)
    app = create()
    answer = await send(app, CANCEL, {"confirm": "yes"})
    await runs(app).wait()
    rows = await pool.fetch("SELECT job_id FROM scheduled_jobs WHERE status = 'pending' ORDER BY 1")
    assert [row[0] for row in rows] == ["j00002", "j00003", "j00008"]
    page = await request(app, f"/run?id={run_id(answer.headers['location'])}")
    assert "6 jobs cancelled" in page.text
    assert "first 'j00002', no further attempt: a trigger or a constraint" in caplog.text


@pytest.mark.usefixtures("small_batches")
async def test_number_of_runs_of_a_process_is_bounded(
    create: Callable[..., App], pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, bulk_runs=1)
    await fill(world, 9)
    app = create()
    async with Halted(pool, app):
        answer = await send(app, CANCEL, {"confirm": "yes"})
        assert answer.status == 409
        assert "1 bulk runs are in progress here" in answer.text
    await runs(app).wait()
    assert [each[2] for each in await controls(pool)] == ["start_bulk", "end_bulk"]


@pytest.mark.usefixtures("small_batches")
async def test_error_of_a_run_is_recorded_and_shown(
    create: Callable[..., App], scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 9)
    app = create()
    async with Halted(pool, app) as halted:
        run = halted.id
        assert (await send(app, f"/actions/bulk/stop?id={run}")).status == 303
    await runs(app).wait()
    state = await runs(app).state(run)
    await runs(app).resume(run, replace(state, cursor="nonsense"))
    await runs(app).wait()
    page = Page((await request(app, f"/run?id={run}")).text)
    assert "Stopped" in page.text
    assert "no position" in page.text


# -- rights --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
async def test_run_belongs_to_its_names_and_right(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 9)
    await world.job("x", "other.mail")
    limited = create("ada", names=("bulk.*",))
    url = "/actions/bulk/cancel?q=status%3Apending"
    assert "9 jobs found" in (await send(limited, url)).text
    assert (await send(limited, url, {"confirm": "yes"})).status == 303
    await runs(limited).wait()
    assert await count(pool, "cancelled") == 9
    assert await count(pool, "pending") == 1
    run = await pool.fetchval("SELECT subject FROM scheduler_audit LIMIT 1")
    stranger, same, viewer = (
        create("eve", names=("other.*",)),
        create("bob", names=("bulk.*",)),
        create("bob", "viewer", can={"retry"}),
    )
    shown = (await request(same, f"/run?id={run}", headers=JSON)).data
    assert (shown["done"], shown["searched"], shown["share"]) == (9, None, 1.0)
    assert shown["sentence"] == "Complete: 9 jobs cancelled.", "without the number of hidden jobs"
    assert (await request(viewer, f"/run?id={run}", headers=JSON)).data["searched"] == 10
    for app, status in ((stranger, 404), (same, 200), (viewer, 200)):
        assert (await request(app, f"/run?id={run}")).status == status
        assert len((await request(app, "/runs", headers=JSON)).data["items"]) == (status == 200)
    assert (await send(stranger, f"/actions/bulk/stop?id={run}")).status == 404
    assert (await send(stranger, f"/actions/bulk/resume?id={run}")).status == 404
    assert (await send(viewer, f"/actions/bulk/resume?id={run}")).status == 403
    assert (await send(viewer, f"/actions/bulk/stop?id={run}")).status == 403
    assert (await send(same, f"/actions/bulk/stop?id={run}")).status == 303


async def test_search_of_a_run_shows_no_hidden_value(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 1)
    where = "q=arg.token%3Ahunter2-secret"
    blind, redacted = create("bob", sees_arguments=False), create("bob", redact=["token"])
    for app in (blind, redacted):
        assert (await send(app, f"/actions/bulk/cancel?{where}", {"confirm": "yes"})).status == 400
    assert await controls(pool) == []
    app = create()
    answer = await send(app, f"/actions/bulk/cancel?{where}", {"confirm": "yes"})
    await runs(app).wait()
    run = run_id(answer.headers["location"])
    assert "hunter2-secret" in (await request(app, f"/run?id={run}")).text
    for app in (blind, redacted):
        for url in (f"/run?id={run}", "/runs", f"/audit?subject={run}", "/audit"):
            for headers in ({}, JSON):
                shown = await request(app, url, headers=headers)
                assert shown.status == 200
                assert "hunter2" not in shown.text, url


@pytest.mark.parametrize(
    "details",
    [
        {},
        {**RUN, "verb": "fly"},
        {**RUN, "where": 7},
        {**RUN, "rate": "fast"},
        {**RUN, "to": "soon"},
        {**RUN, "names": 7},
        {**RUN, "group": ["a", "b"]},
        {**RUN, "group": ["a", "b", "soon", "later"]},
    ],
)
async def test_row_that_was_written_by_hand_is_no_run(
    details: Any, create: Callable[..., App], pool: asyncpg.Pool
) -> None:
    await pool.execute(
        "INSERT INTO scheduler_bulk_runs"
        " (run_id, actor, created_by, jobs, created_at, started_at, last_at, answered_at)"
        " VALUES ('bulk:x', 'eve', 'eve', $1, now(), now(), now(), now())",
        json.dumps(details),
    )
    app = create()
    assert (await request(app, "/run?id=bulk%3Ax")).status == 404
    assert (await send(app, "/actions/bulk/resume?id=bulk%3Ax")).status == 404
    assert (await request(app, "/runs", headers=JSON)).data["items"] == []


# -- groups of errors ----------------------------------------------------------------------------------


async def test_retry_of_a_group_leaves_jobs_that_failed_after_the_page_was_read(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 9, "failed")
    await pool.execute("UPDATE scheduled_jobs SET finished_at = '2026-01-01Z' WHERE job_id < 'j00004'")
    await recount_errors(pool)
    app = create()
    page = Page((await request(app, "/errors?since=1h")).text)
    (action,) = [str(form["action"]) for form in page.all("form") if "errors/retry" in str(form["action"])]
    span = {str(each["name"]): str(each["value"]) for each in page.all("input") if each["type"] == "hidden"}
    assert set(span) == {"back", "last"}, "the menu of the user has the first"
    await pool.execute("UPDATE scheduled_jobs SET finished_at = now() WHERE job_id = 'j00009'")
    asked = Page((await send(app, action, span)).text)
    assert "8 jobs found: 5 of the last day, 3 older." in asked.text
    fields = {str(each["name"]): each["value"] for each in asked.all("input")}
    answer = await send(app, action, {**fields, "take": "day"})
    await runs(app).wait()
    assert (await count(pool, "pending"), await count(pool, "failed")) == (5, 4)
    run = run_id(answer.headers["location"])
    assert "bulk.mail: BulkError: no answer after # s" in (await request(app, f"/run?id={run}")).text
    again = Page((await send(app, action, span)).text)
    assert "3 jobs found, all older than a day." in again.text
    wrong = await send(app, action, {"last": "soon"})
    assert (wrong.status, "Last must be a time" in wrong.text) == (400, True)
    for text in ("9999-12-31T23:59:59.999999", "0001-01-01T00:00+14:00"):
        wrong = await send(app, action, {"last": text})
        assert (wrong.status, "Last must be between" in wrong.text) == (400, True)


async def test_question_of_a_group_lists_jobs_of_the_group_and_no_others(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 5, "failed")
    await world.jobs(20, "other.mail", job_id="other{}".format, due=DAY)
    await recount_errors(pool)
    app = create()
    page = Page((await request(app, "/errors?since=1h")).text)
    (action,) = [str(form["action"]) for form in page.all("form") if "errors/retry" in str(form["action"])]
    asked = Page((await send(app, action)).text)
    assert "Retry 5 jobs?" in asked.text
    jobs = [link for link in asked.links() if "/job?id=" in link]
    assert len(jobs) == 3
    assert all("id=j0000" in link for link in jobs), jobs


@pytest.mark.parametrize("take", ["all", "day"])
async def test_question_of_a_retry_says_what_it_takes_and_what_it_leaves(
    create: Callable[..., App], pool: asyncpg.Pool, world: World, take: str
) -> None:
    await fill(world, 400, "failed")
    await pool.execute(
        "UPDATE scheduled_jobs SET finished_at = now() - interval '30 h' WHERE job_id <= 'j00035'"
    )
    await recount_errors(pool)
    # A burst of another cause, in which the jobs of the group are few of those that failed last.
    await world.jobs(3000, "burst", status="failed", error_message="UpstreamError: 502 from host {}".format)
    app = create()
    page = Page((await request(app, "/errors?since=1d")).text)
    forms = [str(each["action"]) for each in page.all("form") if "errors/retry" in str(each["action"])]
    texts = {form: Page((await send(app, form)).text) for form in forms}
    ((form, asked),) = [(form, page) for form, page in texts.items() if "bulk.mail" in page.text]
    assert "400 jobs found: 365 of the last day, 35 older." in asked.text
    radios = [each["value"] for each in asked.all("input") if each.get("type") == "radio"]
    assert radios == ["all", "day"]
    assert "all 400 365 of the last day, which leaves 35" in " ".join(asked.text.split())
    fields = {str(each["name"]): each["value"] for each in asked.all("input") if each.get("type") == "hidden"}
    answer = await send(app, form, {**fields, "take": take})
    assert answer.status == 303, answer.text
    await runs(app).wait()
    assert await count(pool, "pending") == {"all": 400, "day": 365}[take]


@pytest.mark.parametrize("has_older", [True, False])
async def test_question_does_not_guess_that_jobs_are_older_when_counting_has_stopped(
    create: Callable[..., App], pool: asyncpg.Pool, world: World, has_older: bool
) -> None:
    await fill(world, 1600, "failed")
    if has_older:
        await pool.execute(
            "UPDATE scheduled_jobs SET finished_at = now() - interval '30 h' WHERE job_id = 'j00001'"
        )
    await recount_errors(pool)
    app = create()
    page = Page((await request(app, "/errors?since=1d")).text)
    (action,) = [str(form["action"]) for form in page.all("form") if "errors/retry" in str(form["action"])]
    question = Page((await send(app, action)).text)
    radios = [radio["value"] for radio in question.all("input") if radio.get("type") == "radio"]
    assert "1,500 jobs found so far, and the search continues" in question.text
    if has_older:
        assert "1,500+ of the last day, and there may be older ones." in question.text
        assert radios == ["all", "day"]
    else:
        assert "the search continues, all of the last day." in question.text
        assert radios == []


async def test_errors_that_are_counted_together_are_not_retried_together(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 2, "failed")
    other = fingerprint_of("bulk.mail", OTHER_ERRORS)
    await pool.execute("UPDATE scheduler_error_groups SET text = $1, fingerprint = $2", OTHER_ERRORS, other)
    app = create()
    page = Page((await request(app, f"/error?id={other}")).text)
    assert not [each for each in page.all("button") if str(each.get("id")).startswith("retry-")]
    answer = await send(app, f"/actions/errors/retry?group={other}")
    assert (answer.status, "search its jobs" in answer.text) == (409, True)


async def test_group_of_errors_is_retried_and_its_retries_cancelled(
    create: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 5, "failed")
    await pool.execute("UPDATE scheduled_jobs SET error_message = 'Other: \"x\"' WHERE job_id = 'j00005'")
    await recount_errors(pool)
    app = create()
    page = Page((await request(app, "/errors?since=all")).text)
    forms = [str(each["action"]) for each in page.all("form") if "errors/retry" in str(each["action"])]
    assert len(forms) == 2
    form = forms[0]
    assert (await send(create("eve", names=("x",)), form)).status == 404
    asked = Page((await send(app, form, {"rate": "500"})).text)
    question = "Retry all jobs of bulk.mail with the error 'BulkError: no answer after # s'? 4 jobs found,"
    assert f"{question} all of the last day." in asked.text
    answer = await send(app, form, {"rate": "500", "confirm": "yes"})
    assert answer.status == 303, answer.text
    await runs(app).wait()
    assert (await count(pool, "pending"), await count(pool, "failed")) == (4, 1)
    run = run_id(answer.headers["location"])
    assert "bulk.mail: BulkError" in (await request(app, f"/run?id={run}")).text
    await pool.execute(
        "UPDATE scheduled_jobs SET error_message = 'BulkError: no answer after 7 s' WHERE status = 'pending'"
    )
    (cancel, *_) = [
        str(each["formaction"]) for each in page.all("button") if str(each.get("id")).startswith("cancel-")
    ]
    assert (await send(app, cancel, {"confirm": "yes"})).status == 303
    await runs(app).wait()
    assert (await count(pool, "cancelled"), await count(pool, "failed")) == (4, 1)
    gone = await send(app, form)
    assert "0 jobs found" in gone.text
    await pool.execute("TRUNCATE scheduler_error_groups")
    assert (await send(app, form, {"confirm": "yes"})).status == 404
