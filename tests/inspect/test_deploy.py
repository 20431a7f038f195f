"""The check of a deployment: which jobs and schedules do not fit the code, and what it reads for that."""

from __future__ import annotations

from datetime import timedelta
from secrets import token_hex
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel, field_validator

from pg_scheduler import Limit, Scheduler, Share, job, periodic
from pg_scheduler.errors import ConfigurationError, SchemaMissingError, SchemaTooNewError
from pg_scheduler.inspect import DeployCode, DeployReport, Severity, check, deploy
from pg_scheduler.inspect.store import deploy as deploy_store
from pg_scheduler.inspect.store.deploy import DeployRepository
from pg_scheduler.migrate import migrate
from pg_scheduler.triggers import Every
from tests.support.catalogues import own_registrations
from tests.support.codecs import KeyedCodec
from tests.support.inside import store_of
from tests.support.statements import Statements
from tests.support.store import Pool
from tests.support.world import DAY, SECOND, World

HOUR = Every(timedelta(hours=1))
TRIGGER = '{"kind": "every", "every": "PT1H"}'


class Line(BaseModel):
    price: int

    @field_validator("price")
    @classmethod
    def check_price(cls, price: int) -> int:
        if price == 0:
            raise KeyError("no price")
        return price


@pytest.fixture
async def scheduler(pool: Pool) -> Scheduler:
    """A Scheduler of the new code, whose jobs count their calls."""
    scheduler = Scheduler(pool)

    @job(name="shop.plain", aliases=["shop.old"])
    async def plain(order: int, *, note: str = "") -> None:
        raise AssertionError("a check calls no job")

    @job(name="shop.price", typed=True)
    async def price(lines: list[Line]) -> None:
        raise AssertionError("a check calls no job")

    def key_of(account: int) -> str:
        if account > 100:
            raise LookupError(account)
        return str(account)

    @job(name="shop.limited", limits=[Limit("bank", max_running=1, key=key_of)])
    async def limited(account: int) -> None:
        raise AssertionError("a check calls no job")

    return scheduler


async def insert(world: World, name: str, *args: Any, job_id: str | None = None, **kwargs: Any) -> str:
    """Insert a job as the old code has stored it."""
    job_id = job_id or f"{name}:{args}:{kwargs}"
    await world.job(job_id, name, due=DAY, task_data={"args": args, "kwargs": kwargs})
    return job_id


async def add_prices(world: World, *lines: dict[str, Any]) -> None:
    """Add a hundred jobs with these lines, a fifth of which wait for others."""
    await world.jobs(
        100,
        "shop.price",
        job_id="job-{}".format,
        due=lambda n: n * SECOND,
        priority=lambda n: (1, 3, 5, 8)[n % 4],
        blocked_on=lambda n: None if n % 5 else "after",
        task_data={"args": [lines], "kwargs": {}},
    )


def found(report: DeployReport) -> list[tuple[DeployCode, str, str, int]]:
    return [(each.code, each.name, each.reason, each.count) for each in report.findings]


async def test_jobs_that_fit_are_no_finding(scheduler: Scheduler, pool: Pool, world: World) -> None:
    await insert(world, "shop.plain", 1)
    await insert(world, "shop.old", 1, note="x")
    await insert(world, "shop.price", [{"price": 1}])
    await insert(world, "shop.limited", 7)
    await pool.execute("UPDATE scheduled_jobs SET function = job_name, job_name = 'x' WHERE job_id ~ 'plain'")
    report = await check(scheduler)
    assert (report.findings, report.severity, report.jobs) == ((), Severity.OK, 4)
    assert report.summary == "no findings; examined all of 4 unfinished jobs and 0 schedules"


async def test_jobs_without_a_function_are_grouped_by_name_with_three_ids(
    scheduler: Scheduler, world: World
) -> None:
    for number in range(5):
        await insert(world, "shop.plane", job_id=f"job-{number}")
    await insert(world, "mail.send")
    report = await check(scheduler)
    mail, plane = report.findings
    assert (mail.name, plane.name, plane.count) == ("mail.send", "shop.plane", 5)
    assert {each.code for each in report.findings} == {DeployCode.NAME_UNKNOWN}
    assert report.severity is Severity.ERROR
    assert plane.ids == ("job-0", "job-1", "job-2")
    assert plane.reason == "no function is registered under this name"
    assert "or is 'shop.plain' its new name? then @job(name='shop.plain'" in plane.remedy
    assert "new name" not in mail.remedy


async def test_name_of_two_functions_has_the_reason(pool: Pool, world: World) -> None:
    scheduler = Scheduler(pool)
    for module in ("one", "two"):

        async def send() -> None: ...

        send.__qualname__, send.__module__ = "send", module
        scheduler.register(send)
    await insert(world, "send")
    report = await check(scheduler)
    reason = "2 functions have this name; it needs to be explicit"
    assert found(report) == [(DeployCode.NAME_UNKNOWN, "send", reason, 1)]


async def test_alerts_of_jobs_and_of_the_code_are_compared_with_the_tasks(pool: Pool, world: World) -> None:
    async def work() -> None: ...

    async def short(job_id: str, error: str) -> None: ...

    async def page(job_id: str, job_name: str, error: str | None, attempts: int) -> None: ...

    async def limited(**failure: object) -> None: ...

    def key_of(account: int) -> str:
        return str(account)

    scheduler = Scheduler(pool)
    scheduler.register(work, name="shop.work", on_failure="alert.page")
    scheduler.register(work, name="shop.other", on_failure="alert.pages")
    scheduler.register(short, name="alert.short")
    scheduler.register(page, name="alert.page")
    scheduler.register(limited, name="alert.limited", limits=[Limit("bank", key=key_of, max_running=1)])
    for number, alert in enumerate(("alert.page", "alert.old", "alert.old", "alert.short", "alert.limited")):
        await world.job(f"job-{number}", "shop.work", on_end={"on_failure": alert})
    report = await check(scheduler)
    assert [(each.code, each.name, each.count, each.ids) for each in report.findings] == [
        (DeployCode.ALERT, "shop.other", 0, ()),
        (DeployCode.ALERT, "shop.work", 1, ("job-4",)),
        (DeployCode.ALERT, "shop.work", 2, ("job-1", "job-2")),
        (DeployCode.ALERT, "shop.work", 1, ("job-3",)),
    ]
    unknown, key, old, misfit = (each.reason for each in report.findings)
    assert unknown == "on_failure='alert.pages': no function is registered under this name"
    assert key.startswith("on_failure='alert.limited': ")
    assert old == "on_failure='alert.old': no function is registered under this name"
    assert misfit.startswith("on_failure='alert.short': ")
    assert "job_name" in misfit
    assert report.severity is Severity.WARNING
    assert (await check(scheduler, name="mail.*")).findings == ()


async def test_clean_ups_of_jobs_and_of_the_code_are_compared_with_the_tasks(
    pool: Pool, world: World
) -> None:
    async def work() -> None: ...

    async def undo(
        job_id: str, job_name: str, reason: str | None, steps: list[dict[str, object]]
    ) -> None: ...

    async def page(job_id: str, job_name: str, error: str | None, attempts: int) -> None: ...

    scheduler = Scheduler(pool)
    scheduler.register(work, name="shop.work", on_cancel="shop.undo")
    scheduler.register(undo, name="shop.undo")
    scheduler.register(page, name="alert.page")
    await world.job("job-1", "shop.work", on_end={"on_cancel": "shop.undo"})
    assert (await check(scheduler)).findings == ()
    scheduler.register(work, name="shop.other", on_cancel="alert.page", on_failure="alert.page")
    await world.job("job-2", "shop.work", on_end={"on_cancel": "shop.old"})
    misfit, unknown = (await check(scheduler)).findings
    assert (misfit.code, misfit.name) == (DeployCode.ALERT, "shop.other")
    assert misfit.reason.startswith("on_cancel='alert.page': ")
    assert (unknown.name, unknown.ids) == ("shop.work", ("job-2",))
    assert unknown.reason == "on_cancel='shop.old': no function is registered under this name"


async def test_arguments_are_compared_with_the_signature(
    scheduler: Scheduler, pool: Pool, world: World
) -> None:
    await insert(world, "shop.plain")
    await insert(world, "shop.plain", 1, to="x")
    await insert(world, "shop.plain", 1, 2)
    await world.job("other", "shop.plain", due=DAY, task_data={"args": 7})
    assert {(reason, count) for _, _, reason, count in found(await check(scheduler))} == {
        (f"{_qualname('plain')} cannot be called with the arguments of the job: {problem}", 1)
        for problem in (
            "missing a required argument: 'order'",
            "got an unexpected keyword argument 'to'",
            "too many positional arguments",
        )
    } | {("task_data must have a list under 'args' and an object under 'kwargs'", 1)}


def _qualname(name: str) -> str:
    return f"scheduler.<locals>.{name}()"


async def test_arguments_of_typed_tasks_are_validated_and_grouped_whatever_their_place(
    scheduler: Scheduler, world: World
) -> None:
    await insert(world, "shop.price", [{"price": 1}, {"price": "x"}])
    await insert(world, "shop.price", [{"price": "y"}, {"price": "z"}], job_id="both")
    await insert(world, "shop.price", [{}])
    await insert(world, "shop.price", [{"price": 0}])
    invalid = "lines[].price: Input should be a valid integer, unable to parse string as an integer"
    assert found(await check(scheduler)) == [
        (DeployCode.ARGUMENTS, "shop.price", "KeyError: 'no price'", 1),
        (DeployCode.ARGUMENTS, "shop.price", "lines[].price: Field required", 1),
        (DeployCode.ARGUMENTS, "shop.price", invalid, 2),
    ]


async def test_key_functions_are_called_for_arguments_that_fit(scheduler: Scheduler, world: World) -> None:
    await insert(world, "shop.limited", 101)
    await insert(world, "shop.limited")
    arguments, key = sorted((await check(scheduler)).findings, key=lambda each: each.code)
    assert (arguments.code, arguments.count) == (DeployCode.ARGUMENTS, 1)
    assert (key.code, key.severity) == (DeployCode.KEY, Severity.ERROR)
    assert "the key function of the limit 'bank' raised LookupError" in key.reason


async def test_key_function_of_a_share_is_called_for_schedules_and_not_for_jobs_which_have_their_key(
    pool: Pool,
) -> None:
    async def export(tenant: str) -> None:
        raise AssertionError("a check calls no job")

    old, new = Scheduler(pool), Scheduler(pool)
    old.register(export, name="shop.export", share=Share(key=lambda tenant: tenant))
    new.register(export, name="shop.export", share=Share(key=lambda tenant: {"acme": 1}[tenant]))
    await old.enqueue("shop.export", args=("former",))
    for tenant in ("acme", "former"):
        await old.schedules.add("shop.export", HOUR, schedule_id=tenant, args=(tenant,))
    (finding,) = (await check(new)).findings
    assert (finding.code, finding.ids) == (DeployCode.SCHEDULE, ("former",))
    assert "the key function of the share 'shop.export' raised KeyError" in finding.reason


async def test_large_and_compressed_arguments_are_examined(
    scheduler: Scheduler, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_store, "MAX_READ_BYTES", 10_000)
    large = [{"price": number} for number in range(1000)]
    for number in range(20):
        await insert(world, "shop.price", [*large, {"price": "x" * number}], job_id=f"job-{number}")
    await insert(world, "shop.price", ["x" * 100_000])
    report = await check(scheduler)
    assert sorted(count for _, _, _, count in found(report)) == [1, 20]
    assert report.jobs == 21


async def test_encrypted_arguments_are_decoded_by_the_codec_of_the_scheduler(pool: Pool) -> None:
    old = Scheduler(pool, codec=KeyedCodec("one"))
    await old.enqueue("mail.send", args=(1,), job_id="fits")
    await old.enqueue("mail.send", args=(1, 2), job_id="misfit")
    await old.schedules.add("mail.send", HOUR, schedule_id="unreadable", args=(1,))
    without, with_key = Scheduler(pool), Scheduler(pool, codec=KeyedCodec("two", "one"))
    for scheduler in (without, with_key):
        scheduler.register(_mail, name="mail.send")
    report = await check(without)
    assert report.severity is Severity.WARNING
    assert {(each.code, each.reason, each.ids) for each in report.findings} == {
        (
            DeployCode.NOT_EXAMINED,
            "encrypted with xor, key one; this Scheduler has no codec: pass codec=",
            ("fits", "misfit"),
        ),
        (
            DeployCode.NOT_EXAMINED,
            "its arguments are encrypted, and cannot be read here",
            ("unreadable",),
        ),
    }
    (misfit,) = (await check(with_key)).findings
    assert (misfit.code, misfit.ids) == (DeployCode.ARGUMENTS, ("misfit",))


async def _mail(to: str) -> None:
    raise AssertionError("a check calls no job")


async def test_schedules_of_callers_are_checked_for_task_trigger_options_and_arguments(
    scheduler: Scheduler, pool: Pool
) -> None:
    for key, task in (("fits", "shop.plain"), ("unknown", "mail.send"), ("paused", "mail.send")):
        await scheduler.schedules.add(task, HOUR, schedule_id=key, args=(1,))
    for key in ("arguments", "trigger", "options", "finished"):
        await scheduler.schedules.add("shop.plain", HOUR, schedule_id=key, args=(1,))
    await scheduler.schedules.pause("paused")
    for key, change in (
        ("arguments", """task_data = '{"args": [], "kwargs": {}}'"""),
        ("trigger", """trigger = '{"kind": "shop.tides"}'"""),
        ("options", """options = '{"priority": 4}'"""),
        ("finished", "task = 'gone', finished_at = now(), next_fire_at = NULL"),
    ):
        await pool.execute(f"UPDATE scheduler_schedules SET {change} WHERE schedule_id = '{key}'")
    report = await check(scheduler)
    assert {each.code for each in report.findings} == {DeployCode.SCHEDULE}
    by_id = {key: each.reason for each in report.findings for key in each.ids}
    assert by_id.keys() == {"unknown", "paused", "arguments", "trigger", "options"}
    assert by_id["unknown"] == by_id["paused"] == deploy.UNKNOWN
    assert "missing a required argument: 'order'" in by_id["arguments"]
    assert "shop.tides" in by_id["trigger"]
    assert "options.priority must be 1, 3, 5 or 8, not 4" in by_id["options"]
    assert report.schedules == 6


async def test_schedules_of_the_code_are_checked_as_its_start_will_write_them(pool: Pool) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="hourly")
    async def hourly() -> None: ...

    async with Scheduler(pool):
        await pool.execute(
            "UPDATE scheduler_schedules SET task = 'gone', trigger = '{\"kind\": \"gone\"}'"
            " WHERE schedule_id = 'hourly'"
        )
    await pool.execute(
        "INSERT INTO scheduler_schedules SELECT (s).* FROM ("
        ' SELECT jsonb_populate_record(schedule, \'{"schedule_id": "of a former release"}\') AS s'
        " FROM scheduler_schedules AS schedule) AS copied"
    )
    report = await check(Scheduler(pool), name="*hourly*")
    assert (report.findings, report.schedules) == ((), 1)


async def test_pattern_selects_tasks_by_name(scheduler: Scheduler, world: World) -> None:
    await insert(world, "mail.send")
    await insert(world, "shop.gone")
    await scheduler.schedules.add("mail.send", HOUR, schedule_id="mail")
    report = await check(scheduler, name="shop.*")
    assert [each.name for each in report.findings] == ["shop.gone"]
    assert (report.jobs, report.schedules) == (2, 0)
    with pytest.raises(ValueError, match="name must not be empty; pass a pattern such as"):
        await check(scheduler, name="")  # it selects nothing, so a variable that is not set would hide all


async def test_jobs_beyond_most_are_a_warning_with_their_estimated_number(
    scheduler: Scheduler, pool: Pool, world: World
) -> None:
    await add_prices(world)
    report = await check(scheduler, most=30)
    reason = "examined 30 of an unknown number of unfinished jobs"
    assert found(report) == [(DeployCode.NOT_EXAMINED, "", reason, 1)]
    assert (report.severity, report.is_complete, report.total) == (Severity.WARNING, False, None)
    await pool.execute("ANALYZE scheduled_jobs")
    report = await check(scheduler, most=30)
    assert found(report)[0][2:] == ("examined 30 of about 100 unfinished jobs", 70)
    assert (await check(scheduler, most=100)).is_complete
    with pytest.raises(ConfigurationError, match="most must be between 1"):
        await check(scheduler, most=0)


async def test_other_objects_than_schedulers_are_rejected(pool: Pool) -> None:
    with pytest.raises(TypeError, match="scheduler must be a Scheduler"):
        await check(pool)  # type: ignore[arg-type]


async def test_every_unfinished_job_is_read_once_in_pages_and_no_finished_one(
    scheduler: Scheduler, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_store, "PAGE_ROWS", 7)
    await add_prices(world, {"price": "x"})
    await world.jobs(100, "gone", job_id="old-{}".format, status="failed")
    pages = [
        [each.job_id for each in page]
        async for page in DeployRepository(store_of(scheduler).statements).unfinished(is_migrated=True)
    ]
    assert max(map(len, pages)) == 7
    ids = [each for page in pages for each in page]
    assert sorted(ids) == sorted(f"job-{number}" for number in range(1, 101))
    report = await check(scheduler)
    assert [each.count for each in report.findings] == [100]


async def test_check_sends_reads_only_and_as_many_as_there_are_pages(
    dsn: str, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_store, "PAGE_ROWS", 10)
    statements = Statements()
    settings = {"default_transaction_read_only": "on"}
    await add_prices(World(scheduler.db_pool))
    async with asyncpg.create_pool(dsn, server_settings=settings, init=statements.listen) as pool:
        assert (await check(Scheduler(pool))).findings == ()
        sent = await statements.take()
    assert sent.named == {"check_waiting": 9, "check_blocked": 3, "list_schedules": 1}


async def test_findings_are_bounded_however_many_names_and_reasons_there_are(
    scheduler: Scheduler, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy, "MAX_GROUPS", 3)
    for number in range(10):
        await insert(world, f"gone.{number}")
    await insert(world, "gone.x" * 1000)
    report = await check(scheduler)
    others = "names and reasons beyond the first 3"
    assert [each.count for each in report.findings if each.reason == others] == [8]
    assert len(report.findings) == 4


async def test_table_of_0_2_is_checked_before_its_migration(pool: Pool, scheduler: Scheduler) -> None:
    @job(name="shop.checked_in_0_2")
    async def checked_in_0_2(order: int) -> None: ...

    scheduler.register(checked_in_0_2)
    async with pool.acquire() as connection:
        await migrate(connection, target=0)
        await connection.execute("DROP TABLE scheduler_migrations")
        await connection.executemany(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, task_data)"
            " VALUES ($1, $2, now(), $3, $4)",
            [
                ("1", "checked_in_0_2", "pending", '{"args": [1], "kwargs": {}}'),
                ("2", "checked_in_0_2", "running", '{"args": [], "kwargs": {}}'),
                ("3", "gone", "pending", None),
                ("4", "gone", "completed", None),
            ],
        )
    report = await check(scheduler)
    assert [(each.code, each.ids) for each in report.findings] == [
        (DeployCode.NAME_UNKNOWN, ("3",)),
        (DeployCode.ARGUMENTS, ("2",)),
    ]
    assert (report.jobs, report.schedules) == (3, 0)
    partial = await check(scheduler, most=2)
    assert "examined 2 of an unknown number of unfinished jobs" in [each.reason for each in partial.findings]


async def test_database_without_tables_and_a_newer_one_are_errors(pool: Pool, scheduler: Scheduler) -> None:
    await pool.execute(
        "INSERT INTO scheduler_migrations (version, name, checksum, needs) VALUES (99, 'later', 'x', 99)"
    )
    with pytest.raises(SchemaTooNewError):
        await check(scheduler)
    await pool.execute("DROP TABLE scheduled_jobs, scheduler_migrations CASCADE")
    with pytest.raises(SchemaMissingError):
        await check(Scheduler(pool))


async def test_large_arguments_are_read_a_bounded_number_of_bytes_at_a_time(
    dsn: str, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_store, "MAX_READ_BYTES", 15_000)
    statements = Statements()
    for number, size in enumerate([3000] * 10 + [50_000] * 2):
        await insert(World(scheduler.db_pool), "shop.plain", token_hex(size), job_id=f"job-{number}")
    async with asyncpg.create_pool(dsn, init=statements.listen) as pool:
        assert (await check(Scheduler(pool))).findings == ()
        assert (await statements.take()).named["check_payloads"] == 5 + 2


async def test_schedule_that_the_code_declares_no_longer_is_announced(pool: Pool) -> None:
    with own_registrations():
        periodic(every=timedelta(hours=1), dedup_key="old")(job(name="shop.old_report")(_nothing))
        async with Scheduler(pool):
            pass
    new = Scheduler(pool)
    (finding,) = (await check(new)).findings
    assert (finding.code, finding.severity) == (DeployCode.SCHEDULE_GONE, Severity.WARNING)
    assert (finding.name, finding.ids) == ("shop.old_report", ("old",))
    assert (await check(new, name="mail.*")).findings == ()
    await new.schedules.remove("old")
    assert (await check(new)).findings == ()


async def _nothing() -> None: ...
