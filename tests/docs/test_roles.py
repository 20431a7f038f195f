"""The roles of the database page, created by its statements: what each may and may not do."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    JobConflictError,
    JobNotFoundError,
    JobPriority,
    JobSpec,
    NotRunningError,
    Scheduler,
    SchemaForbiddenError,
    VacuumConfig,
    periodic,
)
from pg_scheduler.cli.errors import UsageError
from pg_scheduler.cli.servers import doctor_webhook
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.database.migrations.plan import table_names
from pg_scheduler.database.migrations.records import RECORDS
from pg_scheduler.events import JobCompleted, JobStarted, ListenerConnected
from pg_scheduler.inspect import Inspector, Severity
from pg_scheduler.inspect.store.grants import Role, grant_statements, privileges_of
from pg_scheduler.inspect.store.senders import sender_script
from pg_scheduler.migrate import migrate, shipped_migrations
from pg_scheduler.schedules.job_builder import advisory_lock_key
from pg_scheduler.telemetry.cluster import ClusterCollector
from pg_scheduler.telemetry.webhook import DoctorWebhook
from pg_scheduler.triggers import Cron, Every
from tests.dashboard.client import request, send
from tests.docs.snippets import ROOT
from tests.docs.test_files import FILES
from tests.support.codecs import KeyedCodec
from tests.support.inside import ExitCode, run_command, store_of, worker_of
from tests.support.prometheus import Exposition
from tests.support.transactions import KINDS, application, settled
from tests.support.worker import Recorder
from tools.reference.extension import complete_grants
from tools.reference.grants import sql_of

OWNER, WORKER, ENQUEUER, SENDER, EXPORTER, VIEWER, OPERATOR = ROLES = (
    "jobs_owner",
    "jobs_worker",
    "jobs_enqueuer",
    "jobs_sender",
    "jobs_exporter",
    "jobs_viewer",
    "jobs_operator",
)
DENIED = asyncpg.InsufficientPrivilegeError
PASSWORD = "open sesame"


INSERT = "INSERT INTO jobs.scheduled_jobs"
VALUES = "(job_id, job_name, execution_time) VALUES ('{}', 'x', now())"


async def work(*args: object) -> None: ...


class Roles:
    """The roles, under unique names, because roles belong to the whole server."""

    def __init__(self, dsn: str, stack: AsyncExitStack) -> None:
        self._dsn = dsn
        self._stack = stack
        self._suffix = uuid.uuid4().hex

    def name(self, role: str) -> str:
        return f"{role}_{self._suffix}"

    async def grant(self, connection: asyncpg.Pool, file: str) -> None:
        """Run a block of the complete database page."""
        role = file.removesuffix(".sql")
        if role in {"owner", "admin", "signals"}:
            code = FILES[f"docs/operations/database.md {file}"].code
        else:
            code = sql_of(Role(role))
            assert f"```sql\n{code}```" in complete_grants()["operations/database"]
        database = await connection.fetchval("SELECT current_database()")
        code = code.replace("DATABASE app", f"DATABASE {database}")
        for role in ROLES:
            code = code.replace(role, self.name(role))
        await connection.execute(code)

    def dsn(self, role: str) -> str:
        """Return the DSN of a role."""
        parts = urlsplit(self._dsn)
        address = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"{self.name(role)}:{quote(PASSWORD)}@{address}").geturl()

    async def connect(self, role: str) -> asyncpg.Pool:
        """Return a pool that connects as a role."""
        pool = await asyncpg.create_pool(
            self._dsn, min_size=0, max_size=6, user=self.name(role), password=PASSWORD
        )
        self._stack.push_async_callback(asyncio.wait_for, pool.close(), 20)
        return pool


@pytest.fixture
async def roles(empty_dsn: str) -> AsyncIterator[Roles]:
    """Create the roles and their grants as the page describes, in a database that the owner migrates."""
    superuser = await asyncpg.create_pool(empty_dsn, min_size=0, max_size=1)
    async with AsyncExitStack() as stack:
        roles = Roles(empty_dsn, stack)
        try:
            for role in ROLES:
                await superuser.execute(f"CREATE ROLE {roles.name(role)} LOGIN PASSWORD '{PASSWORD}'")
            await roles.grant(superuser, "owner.sql")
            owner = await roles.connect(OWNER)
            await Scheduler(owner, schema="jobs").initialize_db()
            await roles.grant(owner, "worker.sql")
            await roles.grant(owner, "enqueuer.sql")
            await roles.grant(owner, "exporter.sql")
            await roles.grant(owner, "viewer.sql")
            await roles.grant(owner, "operator.sql")
            yield roles
        finally:
            await stack.aclose()
            for role in ROLES:
                await superuser.execute(f"DROP OWNED BY {roles.name(role)} CASCADE")
                await superuser.execute(f"DROP ROLE {roles.name(role)}")
            await superuser.close()


def now() -> datetime:
    return datetime.now(UTC)


async def test_owner_can_migrate_an_up_to_date_schema(roles: Roles) -> None:
    owner = await roles.connect(OWNER)
    await Scheduler(owner, schema="jobs").initialize_db()
    assert await owner.fetchval("SELECT count(*) FROM jobs.scheduler_migrations") > 0


async def test_worker_role_can_call_every_method(roles: Roles) -> None:
    pool = await roles.connect(WORKER)
    vacuum = VacuumConfig(track_metrics=True)
    scheduler = Scheduler(pool, schema="jobs", vacuum_config=vacuum, shutdown_timeout=1)
    seen = Recorder(scheduler)

    @periodic(every=timedelta(hours=1), use_advisory_lock=True, dedup_key="sweep")
    async def sweep() -> None: ...

    with pytest.raises(NotRunningError):
        await scheduler.recover_orphaned_jobs()
    async with scheduler, asyncio.timeout(30):
        assert seen.of(ListenerConnected)
        later = now() + timedelta(hours=1)
        for resolution in (ConflictResolution.RAISE, ConflictResolution.REPLACE, ConflictResolution.IGNORE):
            await scheduler.schedule(
                work, execution_time=later, job_id="later", conflict_resolution=resolution
            )
            await scheduler.schedule_bulk([JobSpec(work, now()) for _ in range(150)])
        await seen.until(JobCompleted, 450)
        job_id = await scheduler.trigger_periodic_job("sweep")
        await seen.until(JobCompleted, job_id=job_id)
        assert scheduler.disable_periodic_job("sweep")
        assert scheduler.enable_periodic_job("sweep")
        assert await scheduler.update_job_status("later", "pending")
        assert await scheduler.cancel_job("later")
        await scheduler.recover_orphaned_jobs()
        await scheduler.run_vacuum()
        await scheduler.get_vacuum_stats()
        await scheduler.get_total_vacuum_stats()
        assert (await scheduler.count_jobs()).completed == 451
        assert len(await scheduler.list_jobs(limit=1000)) == 452
        assert len(await scheduler.workers()) == 1
        await scheduler.load_task_functions()


async def test_worker_role_cannot_change_the_schema(roles: Roles) -> None:
    pool = await roles.connect(WORKER)
    for statement in (
        "DROP TABLE jobs.scheduled_jobs",
        "ALTER TABLE jobs.scheduled_jobs ADD COLUMN more text",
        "ALTER TABLE jobs.scheduled_jobs DROP CONSTRAINT scheduled_jobs_states",
        "CREATE INDEX ON jobs.scheduled_jobs (job_name)",
        "TRUNCATE jobs.scheduled_jobs",
        "CREATE TABLE jobs.more ()",
        "CREATE SCHEMA more",
        "DROP SCHEMA jobs CASCADE",
        "DELETE FROM jobs.scheduler_migrations",
        "UPDATE jobs.scheduler_migrations SET checksum = ''",
    ):
        with pytest.raises(DENIED):
            await pool.execute(statement)


async def test_worker_role_cannot_create_the_tables(roles: Roles) -> None:
    pool = await roles.connect(WORKER)
    message = r"'elsewhere' has no tables .*permission denied for database .* initialize_db\(\) as the role"
    with pytest.raises(SchemaForbiddenError, match=message) as caught:
        await Scheduler(pool, schema="elsewhere").start()
    assert isinstance(caught.value.__cause__, DENIED)
    assert 'pass migrations="verify" to the Schedulers of this role' in str(caught.value)
    assert str(caught.value).count("initialize_db()") == 1, "the call that failed is not the remedy"


async def test_worker_role_gets_an_error_with_the_missing_migrations_on_an_older_schema(roles: Roles) -> None:
    owner = await roles.connect(OWNER)
    async with owner.acquire() as connection:
        await migrate(connection, schema="jobs", target=0)
    pool = await roles.connect(WORKER)
    for call in (Scheduler.start, Scheduler.initialize_db):
        with pytest.raises(SchemaForbiddenError, match=r"lack the migrations 0001.*denied for schema jobs"):
            await call(Scheduler(pool, schema="jobs"))


async def test_worker_role_starts_again_after_the_owner_recreated_a_dropped_table(roles: Roles) -> None:
    owner = await roles.connect(OWNER)
    await owner.execute("DROP TABLE jobs.scheduled_jobs, jobs.vacuum_stats")
    pool = await roles.connect(WORKER)
    message = r"missing in schema 'jobs': scheduled_jobs, vacuum_stats, .* initialize_db\(\) as the role"
    with pytest.raises(SchemaForbiddenError, match=message):
        await Scheduler(pool, schema="jobs").start()

    await Scheduler(owner, schema="jobs").initialize_db()
    with pytest.raises(SchemaForbiddenError, match="denied for table scheduled_jobs"):
        await Scheduler(pool, schema="jobs").start()
    await roles.grant(owner, "worker.sql")
    async with Scheduler(pool, schema="jobs") as scheduler:
        assert scheduler.is_running


async def test_role_without_grants_gets_an_error_that_names_the_documentation(roles: Roles) -> None:
    owner = await roles.connect(OWNER)
    await owner.execute(
        f"REVOKE ALL ON jobs.scheduled_jobs, jobs.scheduler_migrations FROM {roles.name(WORKER)}"
    )
    pool = await roles.connect(WORKER)
    scheduler = Scheduler(pool, schema="jobs")
    with pytest.raises(SchemaForbiddenError, match=r"denied for table scheduler_migrations.* under Roles"):
        await scheduler.start()
    with pytest.raises(SchemaForbiddenError, match=r"denied for table scheduled_jobs.* under Roles"):
        await scheduler.schedule(work, execution_time=now())


async def test_scheduler_stops_with_schema_forbidden_when_a_grant_is_revoked(roles: Roles) -> None:
    owner = await roles.connect(OWNER)
    pool = await roles.connect(WORKER)
    scheduler = Scheduler(pool, schema="jobs", shutdown_timeout=0.1)
    await scheduler.start()
    await owner.execute(f"REVOKE UPDATE ON jobs.scheduled_jobs FROM {roles.name(WORKER)}")
    worker_of(scheduler).node.signals.due()
    async with asyncio.timeout(20):
        with pytest.raises(SchemaForbiddenError, match=r"denied for table scheduled_jobs.* under Roles"):
            await scheduler.wait()
    assert not scheduler.is_running


async def test_enqueuer_role_can_schedule(roles: Roles) -> None:
    pool = await roles.connect(ENQUEUER)
    scheduler = Scheduler(pool, schema="jobs")
    workers = await roles.connect(WORKER)
    listener = await workers.acquire()
    received: asyncio.Queue[object] = asyncio.Queue()
    channel = await store_of(scheduler).locks.channel()

    def receive(*message: object) -> None:
        received.put_nowait(message)

    await listener.add_listener(channel, receive)

    @periodic(every=timedelta(hours=1), dedup_key="sweep")
    async def sweep() -> None: ...

    async with asyncio.timeout(30):
        await scheduler.schedule(work, execution_time=now(), args=("secret",))
        await received.get()
        job = {"execution_time": now(), "job_id": "own"}
        assert await scheduler.schedule(work, **job) == "own"  # type: ignore[arg-type]
        with pytest.raises(JobConflictError, match="pending"):
            await scheduler.schedule(work, **job)  # type: ignore[arg-type]
        ignore = ConflictResolution.IGNORE
        assert await scheduler.schedule(work, **job, conflict_resolution=ignore) == "own"  # type: ignore[arg-type]
        await scheduler.schedule_job("app.work", now(), {"args": [1]}, job_id="by name")
        await scheduler.enqueue(work, delay=60, metadata={"tenant": 7})
        assert await scheduler.trigger_periodic_job("sweep")
        for resolution in (ConflictResolution.RAISE, ignore):
            specs = [JobSpec(work, now()) for _ in range(150)]
            specs.append(JobSpec(work, now(), job_id=f"bulk {resolution}"))
            assert None not in await scheduler.schedule_bulk(specs, conflict_resolution=resolution)
        async with pool.acquire() as connection, connection.transaction():
            await scheduler.schedule(work, execution_time=now(), connection=connection)
            await scheduler.schedule_bulk([JobSpec(work, now())] * 150, connection=connection)
        await asyncio.gather(*[scheduler.schedule(work, execution_time=now()) for _ in range(10)])
        await scheduler.shutdown()
    await listener.remove_listener(channel, receive)
    assert await listener.fetchval("SELECT count(*) FROM jobs.scheduled_jobs WHERE status = 'pending'") == 468
    await workers.release(listener)


@pytest.mark.parametrize("notify", ["hint", "commit", "never"])
@pytest.mark.parametrize("kind", KINDS)
async def test_enqueuer_role_can_schedule_on_each_kind_of_connection(
    roles: Roles, kind: str, notify: str
) -> None:
    """Which statement inserts a job depends on its options, and on who owns the connection."""
    due: dict[str, Any] = {"execution_time": now()}
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        (name, (work,), {**(due if name == "schedule" else {}), **options})
        for name in ("enqueue", "schedule")
        for options in [
            dict[str, Any](),
            {"priority": JobPriority.HIGH, "max_retries": 3, "timeout": 5.0},
            {"metadata": {"tenant": 7}},
            {"job_id": f"{name}:own"},
            {"job_id": f"{name}:own", "conflict_resolution": ConflictResolution.IGNORE},
        ]
    ]
    calls += [("schedule_job", ("app.work", now(), {"args": [1]}), {})]
    calls += [("enqueue", (work,), {"delay": 60}), ("enqueue", (work,), {"misfire_grace_time": 60})]
    calls += [("schedule_bulk", ([JobSpec(work, now()) for _ in range(count)],), {}) for count in (1, 2, 150)]
    pool, count = await roles.connect(ENQUEUER), 0
    async with application(kind, roles.dsn(ENQUEUER), pool, schema="jobs", notify=notify) as app:
        for name, arguments, options in calls:
            job_ids = await app.call(name, *arguments, **options)
            assert job_ids, (name, options)
            is_new = "conflict_resolution" not in options
            count += len(job_ids) if name == "schedule_bulk" else is_new
        await settled(app.commit())
    owner = await roles.connect(OWNER)
    assert await owner.fetchval("SELECT count(*) FROM jobs.scheduled_jobs") == count


async def test_enqueuer_role_can_insert_the_columns_of_a_plain_row(roles: Roles) -> None:
    pool = await roles.connect(ENQUEUER)
    columns = "(job_id, job_name, execution_time, task_data)"
    statement = (
        f"{INSERT} {columns} VALUES ('own', 'app.work', now(), '{{}}') ON CONFLICT (job_id) DO NOTHING"
    )
    assert [await pool.execute(statement) for _ in range(2)] == ["INSERT 0 1", "INSERT 0 0"]


async def test_enqueuer_role_can_call_the_function_that_adds_jobs(roles: Roles) -> None:
    pool = await roles.connect(ENQUEUER)
    add = "SELECT jobs.scheduler_add_job('app.work', '[7]', job_id => 'own', options => $1)"
    options = {"priority": "high", "max_retries": 3, "misfire_grace_time": 60, "metadata": {"tenant": 7}}
    assert await pool.fetchval(add, json.dumps(options)) == "own"
    assert await pool.fetchval(add, '{"on_conflict": "ignore"}') == "own"
    with pytest.raises(asyncpg.UniqueViolationError):
        await pool.fetchval(add, "{}")
    for extra in ('{"unique": "k"}', '{"keep_result": 60}'):
        with pytest.raises(DENIED):
            await pool.fetchval(add, extra)


async def test_enqueuer_role_can_cancel_by_the_function_with_the_privileges_for_that(roles: Roles) -> None:
    owner = await roles.connect(OWNER)
    role = roles.name(ENQUEUER)
    pool = await roles.connect(ENQUEUER)
    await pool.fetchval("SELECT jobs.scheduler_add_job('app.work', job_id => 'own')")
    with pytest.raises(DENIED):
        await pool.fetchval("SELECT jobs.scheduler_cancel_job('own')")
    await owner.execute(f"GRANT SELECT, UPDATE ON jobs.scheduled_jobs TO {role}")
    await owner.execute(f"GRANT SELECT ON jobs.scheduler_after, jobs.scheduler_workers TO {role}")
    assert await pool.fetchval("SELECT jobs.scheduler_cancel_job('own')") is True


async def test_exporter_role_can_read_the_metrics_and_change_nothing(roles: Roles) -> None:
    pool = await roles.connect(EXPORTER)
    registry = CollectorRegistry()
    registry.register(ClusterCollector(Inspector(pool, schema="jobs")))
    scraped = Exposition((await asyncio.to_thread(generate_latest, registry)).decode())
    assert scraped.get("pg_scheduler_cluster_collect_errors_total", schema="jobs") == 0
    assert scraped.by("pg_scheduler_cluster_table_bytes", "table")["scheduled_jobs"] > 0
    for statement in (f"{INSERT} {VALUES.format('own')}", "DELETE FROM jobs.scheduler_totals"):
        with pytest.raises(DENIED):
            await pool.execute(statement)


@pytest.mark.parametrize("role", [WORKER, OPERATOR])
async def test_role_that_writes_the_audit_sends_findings_once(
    roles: Roles, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    async def deliver(_: DoctorWebhook, message: Any) -> bool:
        sent.append([finding["code"] for finding in message["appeared"]])
        return True

    monkeypatch.setattr(DoctorWebhook, "_deliver", deliver)
    scheduler = Scheduler(await roles.connect(role), schema="jobs")
    for _ in range(2):
        webhook = DoctorWebhook(scheduler, "https://example.org", only=["WORKER-NONE"])
        await webhook._check_role()
        await webhook.run_once()
    assert sent == [["WORKER-NONE"]], "no restart sends it again"


@pytest.mark.parametrize("role", [EXPORTER, VIEWER])
async def test_role_that_cannot_write_the_audit_is_refused_for_a_webhook(
    roles: Roles, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(await roles.connect(role), schema="jobs")
    with pytest.raises(ConfigurationError, match="may not read and write the table scheduler_audit"):
        async with DoctorWebhook(scheduler, "https://example.org/secret"):
            pass
    monkeypatch.setenv("PG_SCHEDULER_WEBHOOK_URL", "https://example.org/secret")
    with pytest.raises(UsageError, match="connect as the role of the workers") as raised:
        async with doctor_webhook(scheduler):
            pass
    assert "secret" not in str(raised.value)


PAGE = ROOT / "docs/operations/database.md"
COMMANDS = {
    "jobs list": (),
    "jobs show": ("seen",),
    "jobs steps": ("seen",),
    "jobs errors": (),
    "jobs export": (),
    "jobs wait": ("seen",),
    "jobs result": ("seen",),
    "jobs explain": ("seen",),
    "status": (),
    "doctor": (),
    "check": ("tests.cli.worker_jobs",),
    "workers list": (),
    "workers show": ("w1",),
    "schedules list": (),
    "schedules show": ("nightly",),
    "schedules preview": ("nightly",),
    "tasks list": (),
    "limits list": (),
    "limits show": ("api",),
    "limits shares": (),
    "limits tenants": ("exports",),
    "sequences list": (),
    "stats": (),
    "jobs runs": (),
    "audit": (),
    "vacuum --stats": (),
}
ALLOWED = {ExitCode.DONE, ExitCode.NEGATIVE, ExitCode.NOT_FOUND}


def rows_of_the_page() -> list[tuple[list[str], list[str]]]:
    """Return the commands of each row of the table of the viewer, and the tables that they need."""
    text = PAGE.read_text(encoding="utf-8").partition("| The viewer can |")[2].partition("\n\n")[0]
    found = []
    for line in text.splitlines()[2:]:
        names, tables = (re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|"))
        group = names[0].partition(" ")[0]
        words = [each if each in COMMANDS else f"{group} {each}" for each in names]
        found.append((words, tables))
    return found


@pytest.mark.slow
async def test_viewer_role_can_use_each_command_with_the_tables_of_its_row(roles: Roles) -> None:
    owner, viewer = await roles.connect(OWNER), roles.name(VIEWER)
    scheduler = Scheduler(owner, schema="jobs")
    await scheduler.schedule(work, execution_time=now() + timedelta(hours=1), job_id="seen")
    await scheduler.cancel_job("seen")
    await scheduler.schedules.add(work, Every(hours=1), schedule_id="nightly")
    options = ("--dsn", roles.dsn(VIEWER), "--schema", "jobs")
    rows = rows_of_the_page()
    assert sorted(each for names, _ in rows for each in names) == sorted(COMMANDS)
    for names, tables in rows:
        if tables:
            granted = ", ".join(f"jobs.{table}" for table in ("scheduler_migrations", *tables))
            await owner.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA jobs FROM {viewer}")
            await owner.execute(f"GRANT SELECT ON {granted} TO {viewer}")
        else:
            await roles.grant(owner, "viewer.sql")
        for name in names:
            code = await asyncio.to_thread(run_command, [*name.split(), *COMMANDS[name], *options])
            assert code in ALLOWED, name


async def test_viewer_role_gets_exit_code_4_and_the_table_when_it_lacks_a_privilege(
    roles: Roles, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = await roles.connect(OWNER)
    await Scheduler(owner, schema="jobs").schedule(work, execution_time=now(), job_id="seen")
    options = ("--dsn", roles.dsn(VIEWER), "--schema", "jobs")
    for command in (["jobs", "cancel", "seen"], ["tasks", "pause", "work"]):
        assert await asyncio.to_thread(run_command, [*command, *options]) == ExitCode.REFUSED
        assert "permission denied for table schedule" in capsys.readouterr().err
    await owner.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA jobs FROM {roles.name(VIEWER)}")
    for command in (["status"], ["jobs", "list"], ["jobs", "cancel", "seen"]):
        assert await asyncio.to_thread(run_command, [*command, *options]) == ExitCode.REFUSED
        assert "permission denied for table scheduler_migrations" in capsys.readouterr().err
    assert await asyncio.to_thread(run_command, ["doctor", *options]) == ExitCode.NEGATIVE


@pytest.mark.slow
async def test_operator_role_can_make_the_changes_of_its_actions(roles: Roles) -> None:
    owner = await roles.connect(OWNER)
    pool = await roles.connect(OPERATOR)
    worker = Scheduler(await roles.connect(WORKER), schema="jobs")
    worker.register(work, name="app.operated", on_failure="app.alert", keep_result=timedelta(hours=1))
    await owner.execute(
        "INSERT INTO jobs.scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs,"
        " running_jobs, names, started_at, last_beat, lease_until)"
        " VALUES ('w1', 'host', 1, '1', 1, 0, '{app.operated}', now(), now(), now() + interval '1 hour')"
    )
    await worker.schedules.add("app.operated", Every(hours=1), schedule_id="hourly")
    later = now() + timedelta(hours=1)
    for job_id in ("a", "b", "moved"):
        await worker.schedule(work, execution_time=later, job_id=job_id)
    await worker.schedule(work, execution_time=later, job_id="after", after=["a"])
    app = dashboard(Scheduler(pool, schema="jobs"), authorize=lambda _: Access("ada", "admin"))

    async def act(path: str, **fields: str) -> int:
        return (await send(app, f"/actions/{path}", fields)).status

    span = {"start": "2031-01-01T00:00", "end": "2031-01-01T02:00"}
    operations: list[tuple[str, dict[str, str]]] = [
        ("jobs/move?id=moved", {"to": "2031-01-01T00:00"}),
        ("jobs/signal?id=moved", {"name": "approval", "value": "true"}),
        ("schedules/trigger?id=hourly", {}),
        ("schedules/backfill?id=hourly", {**span, "confirm": "yes"}),
        ("schedules/pause?id=hourly", {"note": "x"}),
        ("schedules/resume?id=hourly", {"from": "pause"}),
        ("tasks/pause?id=app.operated", {"note": "x"}),
        ("tasks/resume?id=app.operated", {}),
        ("workers/drain?id=w1", {"confirm": "yes"}),
        ("workers/resume?id=w1", {}),
        ("jobs/cancel?id=a", {}),
        ("jobs/retry?id=a", {}),
        ("bulk/cancel?q=name%3Aapp.operated", {"confirm": "yes"}),
    ]
    for path, fields in operations:
        assert await act(path, **fields) == 303, path
    await app._operations.runs.wait()  # type: ignore[attr-defined]
    assert (
        await owner.fetchval("SELECT status FROM jobs.scheduled_jobs WHERE job_id = 'after'") == "cancelled"
    )
    for page in ("/", "/jobs", "/job?id=a", "/errors", "/schedules", "/tasks", "/workers", "/audit", "/runs"):
        assert (await request(app, page)).status == 200, page
    every = {"kind": "interval", "interval": "2h"}
    further = [
        ("jobs/delete?id=moved", {"confirm": "yes"}),
        ("schedules/add", {"task": "app.operated", **every, "schedule_id": "new"}),
        ("schedules/update?id=hourly", {**every, "version": "1"}),
        ("schedules/remove?id=hourly", {"confirm": "yes"}),
    ]
    assert [await act(path, **fields) for path, fields in further] == [503, 503, 303, 503]
    await roles.grant(owner, "admin.sql")
    further[2][1]["version"] = "2"
    assert [await act(path, **fields) for path, fields in further] == [303] * 4
    for statement in (
        "DELETE FROM jobs.scheduler_workers",
        "DELETE FROM jobs.scheduler_audit",
        "UPDATE jobs.scheduler_audit SET actor = 'eve'",
        "TRUNCATE jobs.scheduled_jobs",
    ):
        with pytest.raises(DENIED):
            await pool.execute(statement)


def test_worker_and_viewer_have_privileges_on_every_table_of_the_migrations() -> None:
    for role in (Role.WORKER, Role.VIEWER):
        assert set(privileges_of(role)) == {*table_names(shipped_migrations()), RECORDS}


@pytest.mark.parametrize("role", [role for role in Role if role not in (Role.ADMIN, Role.SENDER)])
def test_page_has_the_grants_that_the_doctor_prints(role: Role) -> None:
    page = complete_grants()["operations/database"]
    blocks = [
        statements_of(code) for code in re.findall(r"^```sql\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ]
    assert blocks.count(statements_of(printed_grants(role))) == 1


def test_page_has_the_further_grants_of_the_admin() -> None:
    code = FILES["docs/operations/database.md admin.sql"].code.replace("jobs_operator", "jobs_admin")
    operator = printed_grants(Role.OPERATOR).replace("jobs_operator", "jobs_admin")
    assert statements_of(code) | statements_of(operator) == statements_of(printed_grants(Role.ADMIN))


@pytest.mark.slow
async def test_operator_role_can_backfill_where_a_job_was_cancelled_but_not_delete_jobs(roles: Roles) -> None:
    owner = Scheduler(await roles.connect(OWNER), schema="jobs")
    operator = Scheduler(await roles.connect(OPERATOR), schema="jobs")
    start, end = datetime(2031, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, 3, tzinfo=UTC)
    every_hour = Cron("0 * * * *")
    await owner.schedules.add("app.operated", every_hour, schedule_id="hourly")
    jobs = await operator.schedules.backfill("hourly", start=start, end=end - timedelta(hours=1))
    assert len(jobs) == 2
    assert await operator.cancel_job(jobs[0])
    assert len(await operator.schedules.backfill("hourly", start=start, end=end)) == 1
    # The jobs of a schedule that was removed, and was added again under its id, are those of another one.
    await owner.schedules.remove("hourly", cancel_jobs=True)
    await owner.schedules.add("app.operated", every_hour, schedule_id="hourly")
    with pytest.raises(SchemaForbiddenError, match="denied for table scheduled_jobs"):
        await operator.schedules.backfill("hourly", start=start, end=end)
    admin = await roles.connect(OPERATOR)
    await roles.grant(await roles.connect(OWNER), "admin.sql")
    assert len(await Scheduler(admin, schema="jobs").schedules.backfill("hourly", start=start, end=end)) == 3


def printed_grants(role: Role) -> str:
    return "; ".join(grant_statements(role, "jobs", f"jobs_{role.value}"))


def statements_of(text: str) -> set[str]:
    """Return the statements of a script, apart from their layout."""
    plain = re.sub(r"\s+", "", text.replace('"', "").replace("( ", "("))
    return {each for each in plain.split(";") if each}


@pytest.mark.parametrize("role", [VIEWER, OPERATOR, EXPORTER])
async def test_role_that_needs_no_more_is_only_mentioned_by_the_doctor(roles: Roles, role: str) -> None:
    pool = await roles.connect(role)
    (finding,) = (await Inspector(pool, schema="jobs").doctor(only=["RIGHTS"])).findings
    assert finding.severity is Severity.INFO
    assert finding.evidence.endswith(f"those of the role {role.removeprefix('jobs_')}, and no others")
    owner = await roles.connect(OWNER)
    assert finding.remedy is not None
    await owner.execute(finding.remedy)
    assert (await Inspector(pool, schema="jobs").doctor(only=["RIGHTS"])).findings == ()


async def test_role_with_further_privileges_is_mentioned_until_they_are_revoked(roles: Roles) -> None:
    pool, owner = await roles.connect(WORKER), await roles.connect(OWNER)
    inspector = Inspector(pool, schema="jobs")
    assert (await inspector.doctor(only=["RIGHTS"])).findings == ()
    worker = roles.name(WORKER)
    await owner.execute(
        f"GRANT TRUNCATE ON jobs.scheduled_jobs, jobs.scheduler_after TO {worker};"
        f"GRANT INSERT ON jobs.scheduler_migrations TO {worker}; GRANT CREATE ON SCHEMA jobs TO {worker}"
    )
    (finding,) = (await inspector.doctor(only=["RIGHTS"])).findings
    assert finding.severity is Severity.INFO
    assert "has further privileges: INSERT, TRUNCATE, CREATE ON SCHEMA; a worker needs" in finding.evidence
    assert finding.remedy is not None
    await owner.execute(finding.remedy)
    assert (await inspector.doctor(only=["RIGHTS"])).findings == ()


async def test_owner_is_mentioned_with_the_statements_that_make_a_worker(roles: Roles) -> None:
    owner = await roles.connect(OWNER)
    (finding,) = (await Inspector(owner, schema="jobs").doctor(only=["RIGHTS"])).findings
    assert finding.severity is Severity.INFO
    assert "owns 23 tables; a worker needs to read and write rows only" in finding.evidence
    assert finding.remedy is not None
    assert finding.remedy.endswith("; ".join(grant_statements(Role.WORKER, "jobs", "jobs_worker")))


CALLS: list[Callable[[Scheduler], object]] = [
    lambda scheduler: scheduler.schedule(
        work, execution_time=now(), job_id="other", conflict_resolution=ConflictResolution.REPLACE
    ),
    lambda scheduler: scheduler.enqueue(work, after=["other"]),
    lambda scheduler: scheduler.enqueue(work, unique="key"),
    lambda scheduler: scheduler.enqueue(work, keep_result=timedelta(hours=1)),
    lambda scheduler: scheduler.get_job_result("other", wait=False),
    lambda scheduler: scheduler.schedules.add(work, Every(hours=1)),
    lambda scheduler: scheduler.tasks.pause("app.work"),
    lambda scheduler: scheduler.get_job("other"),
    lambda scheduler: scheduler.list_jobs(),
    lambda scheduler: scheduler.count_jobs(),
    lambda scheduler: scheduler.cancel_job("other"),
    lambda scheduler: scheduler.signal("other", "go"),
    lambda scheduler: scheduler.cancel_jobs(job_name="app.work"),
    lambda scheduler: scheduler.update_job_status("other", "cancelled"),
    lambda scheduler: scheduler.workers(),
    lambda scheduler: scheduler.run_vacuum(),
    lambda scheduler: scheduler.start(),
]


async def test_enqueuer_role_can_only_schedule(roles: Roles) -> None:
    pool = await roles.connect(ENQUEUER)
    scheduler = Scheduler(pool, schema="jobs")
    await scheduler.schedule(work, execution_time=now(), job_id="other", args=("secret",))
    for call in CALLS:
        with pytest.raises(SchemaForbiddenError, match="under Roles"):
            await call(scheduler)  # type: ignore[misc]
    for statement in (
        "SELECT task_data FROM jobs.scheduled_jobs",
        "SELECT job_id FROM jobs.scheduled_jobs WHERE task_data::text LIKE '%secret%'",
        "SELECT FROM jobs.scheduled_jobs FOR UPDATE",
        "DELETE FROM jobs.scheduled_jobs",
        "UPDATE jobs.scheduled_jobs SET status = 'running', worker_id = 'me', attempt = 1",
        f"{INSERT} (job_name, execution_time, status) VALUES ('x', now(), 'running')",
        f"{INSERT} (job_name, execution_time, attempt) VALUES ('x', now(), 7)",
        f"{INSERT} {VALUES.format('other')} ON CONFLICT (job_id) DO UPDATE SET job_name = 'x'",
        f"{INSERT} {VALUES.format('mine')} RETURNING task_data",
        "TRUNCATE jobs.scheduled_jobs",
        "DROP TABLE jobs.scheduled_jobs",
        "SELECT FROM jobs.scheduler_workers",
        "INSERT INTO jobs.scheduler_schedules DEFAULT VALUES",
        "SELECT FROM jobs.scheduler_migrations",
        "SELECT FROM jobs.vacuum_stats",
    ):
        with pytest.raises(DENIED):
            await pool.execute(statement)


async def test_enqueuer_role_cannot_hold_the_advisory_lock_of_a_schedule(roles: Roles) -> None:
    enqueuer, workers = await roles.connect(ENQUEUER), await roles.connect(WORKER)
    may_end = asyncio.Event()
    worker = Scheduler(workers, schema="jobs")
    worker.register(may_end.wait, name="long")
    seen = Recorder(worker)
    async with worker:
        await enqueuer.execute(
            f"{INSERT} (job_id, job_name, execution_time, lock_key) VALUES ('taker', 'long', now(), $1)",
            advisory_lock_key("nightly"),
        )
        await seen.until(JobStarted, job_id="taker")
        locked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND objid = $1"
        key = advisory_lock_key("nightly") & 0xFFFFFFFF
        assert await workers.fetchval(locked, key) == 0
        may_end.set()


async def test_sender_calls_the_functions_of_the_page(roles: Roles) -> None:
    owner = await roles.connect(OWNER)
    role = roles.name(SENDER)
    await owner.execute(sender_script("jobs", role, ["orders.*"], ["approved"]))
    pool = await roles.connect(SENDER)
    code = FILES["docs/operations/database.md sender.sql"].code.replace("webhook", role)
    answers = [await pool.fetchval(call) for call in code.strip().split("\n")]
    assert answers == ["order:7", True, True]


async def test_enqueuer_role_sends_signals_with_the_privileges_for_that(roles: Roles) -> None:
    owner = await roles.connect(OWNER)
    await roles.grant(owner, "signals.sql")
    pool = await roles.connect(ENQUEUER)
    for codec in (None, KeyedCodec("k1")):
        scheduler = Scheduler(pool, schema="jobs", codec=codec)
        job_id = await scheduler.enqueue(work, delay=60)
        assert await scheduler.signal(job_id, "go", "secret") is True
        assert await scheduler.signal(job_id, "go") is False
        with pytest.raises(JobNotFoundError):
            await scheduler.signal("no such job", "go")
        assert await scheduler.send(job_id, "mailbox", "secret") is True
        with pytest.raises(SchemaForbiddenError):
            await scheduler.broadcast("go")
        await owner.execute("UPDATE jobs.scheduler_steps SET until = now(), ended_at = NULL")
        assert await scheduler.signal(job_id, "go") is True
    for statement in (
        "SELECT task_data FROM jobs.scheduled_jobs",
        "UPDATE jobs.scheduled_jobs SET status = 'running', worker_id = 'me', attempt = 1",
        "DELETE FROM jobs.scheduled_jobs",
    ):
        with pytest.raises(DENIED):
            await pool.execute(statement)


async def test_command_that_adds_jobs_is_one_of_the_operator(
    roles: Roles, capsys: pytest.CaptureFixture[str]
) -> None:
    for role, code in ((ENQUEUER, ExitCode.REFUSED), (OPERATOR, ExitCode.DONE)):
        command = ["--schema", "jobs", "jobs", "add", "mail.send", "--dsn", roles.dsn(role)]
        assert await asyncio.to_thread(run_command, command) == code, capsys.readouterr().err
