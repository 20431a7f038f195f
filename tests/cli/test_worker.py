"""The command worker, as a program with real signals."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import signal
import socket
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from pg_scheduler import PollingConfig, Scheduler
from pg_scheduler.cli.worker.stop import SAME_SIGNAL_S, wait_until_drained
from pg_scheduler.inspect.store.grants import Role, grant_statements
from tests.api.test_roles import add_dead_worker
from tests.cli.conftest import Run
from tests.cli.programs import Start, add, has_text, starter, status, until
from tests.conftest import run_on
from tests.docs.snippets import ROOT
from tests.support.inside import ExitCode, set_server_start_grace
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.slow

JOBS = "tests.cli.worker_jobs"
HELD = 2500
"""Connections to the ports of a worker."""


@pytest.fixture
def start(dsn: str, tmp_path: Path) -> Start:
    return starter(dsn, tmp_path)


@pytest.fixture
async def scheduler(pool: asyncpg.Pool[asyncpg.Record]) -> Scheduler:
    return Scheduler(pool)


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


async def test_drain_runs_what_is_due_and_ends(start: Start, scheduler: Scheduler, tmp_path: Path) -> None:
    ids = [await add(scheduler, "cliworker.write", tmp_path / str(n)) for n in range(3)]
    later = await scheduler.schedule_job("cliworker.write", datetime(2099, 1, 1, tzinfo=UTC), {"args": ["x"]})
    unknown = await add(scheduler, "cliworker.nobody")
    with start(JOBS, "--drain", "--log-format", "json") as program:
        assert await program.end() == ExitCode.DONE, program.text
    assert [await status(scheduler, each) for each in ids] == ["completed"] * 3
    assert [await status(scheduler, each) for each in (later, unknown)] == ["pending"] * 2
    records = [json.loads(line) for line in program.text.splitlines()]
    assert {"no job is due: stopping after the running jobs"} < {each["message"] for each in records}
    own = [each for each in records if each["logger"] == "shop"]
    assert {each["job_id"] for each in own} == set(ids)
    assert all(each["level"] == "INFO" and each["time"].endswith("+00:00") for each in own)


async def test_drain_runs_what_the_ends_of_short_jobs_make_due(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    chain: list[str] = []
    for number in range(6):
        args = {"args": [str(tmp_path / f"chain {number}")]}
        chain.append(
            await scheduler.schedule_job("cliworker.write", datetime.now(UTC), args, after=chain[-1:])
        )
    batch = [await add(scheduler, "cliworker.write", tmp_path / f"batch {number}") for number in range(5)]
    args = {"args": [str(tmp_path / "callback")]}
    callback = await scheduler.schedule_job("cliworker.write", datetime.now(UTC), args, after=batch)
    with start(JOBS, "--drain") as program:
        assert await program.end() == ExitCode.DONE, program.text
    ids = [*chain, *batch, callback]
    assert [await status(scheduler, job_id) for job_id in ids] == ["completed"] * 12


@pytest.mark.parametrize("ended", ["killed", "expired"])
async def test_drain_waits_until_the_jobs_of_dead_workers_are_reclaimed(
    pool: asyncpg.Pool[asyncpg.Record], ended: str
) -> None:
    async def work() -> None: ...

    # No poll finds the dead worker.
    polling = PollingConfig(idle_start_interval=600, max_interval=600, semaphore_full_interval=600)
    scheduler = Scheduler(pool, polling_config=polling)
    scheduler.register(work, name="cliworker.work")
    set_server_start_grace(scheduler, 0.0)
    async with scheduler, asyncio.timeout(PATIENCE):
        assert await wait_until_drained(scheduler) == "no job is due"
        await add_dead_worker(pool, "dead", "pod", "elsewhere")
        await pool.execute("UPDATE scheduled_jobs SET job_name = 'cliworker.work'")
        if ended == "expired":
            expire = "UPDATE scheduler_workers SET liveness_key = NULL, lease_until = now()"
            await pool.execute(f"{expire} WHERE worker_id = 'dead'")
        assert await wait_until_drained(scheduler) == "no job is due"
        statuses = await pool.fetch("SELECT DISTINCT status FROM scheduled_jobs")
        assert [row["status"] for row in statuses] == ["completed"]


async def test_defaults_of_a_project_are_those_of_the_supervisor_alone(start: Start, tmp_path: Path) -> None:
    """Its processes take its options from their arguments: they cannot listen on the same port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        f"[tool.pg-scheduler.worker]\ndrain = true\nprocesses = 2\nhealth-port = {port}\n", encoding="utf-8"
    )
    with start(JOBS, cwd=project) as program:
        assert await program.end() == ExitCode.DONE, program.text
    assert f"probes at http://127.0.0.1:{port}/readyz" in program.text
    assert "cannot be used" not in program.text


async def test_first_signal_lets_running_jobs_finish(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    job_id = await add(scheduler, "cliworker.wait", begun, gate)
    with start(f"{JOBS}:context") as program:
        await until(lambda: has_text(begun))
        program.process.send_signal(signal.SIGTERM)
        await program.read_until("SIGTERM received: stopping after the running jobs")
        gate.touch()
        assert await program.end() == ExitCode.DONE, program.text
    assert await status(scheduler, job_id) == "completed"
    assert await scheduler.workers() == []


async def test_second_signal_cancels_and_releases_running_jobs(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    job_id = await add(scheduler, "cliworker.wait", begun, tmp_path / "never")
    with start(JOBS) as program:
        await until(lambda: has_text(begun))
        program.process.send_signal(signal.SIGINT)
        await program.read_until("SIGINT received: stopping")
        await asyncio.sleep(SAME_SIGNAL_S)  # until it counts as another request
        program.process.send_signal(signal.SIGINT)
        assert await program.end() == ExitCode.INTERRUPTED
    assert "running jobs were cancelled and released" in program.text
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert (job.status.value, job.retry_count, job.worker_id) == ("pending", 0, None)


@pytest.mark.parametrize(("signals", "code"), [(1, ExitCode.DONE), (3, ExitCode.INTERRUPTED)])
async def test_worker_with_a_job_that_suppresses_its_cancellation_ends_before_the_job_is_pending(
    start: Start, scheduler: Scheduler, tmp_path: Path, signals: int, code: ExitCode
) -> None:
    begun = tmp_path / "begun"
    job_id = await add(scheduler, "cliworker.stay", begun, tmp_path / "never")
    async with Scheduler(scheduler.db_pool, only=["cliworker.nobody"]):  # it reclaims orphaned jobs
        with start(f"{JOBS}:impatient") as program:
            await until(lambda: has_text(begun))
            for _ in range(signals):
                program.process.send_signal(signal.SIGTERM)
                await program.read_until("SIGTERM received: stopping")
                await asyncio.sleep(SAME_SIGNAL_S)  # until the next one counts as another request
            await program.read_until("ignores its cancellation")

            async def has_ended() -> bool:
                is_running = await status(scheduler, job_id) == "running"
                has_ended = program.process.poll() is not None  # later than the row was read
                assert is_running or has_ended
                return has_ended

            await until(has_ended)
            assert program.process.returncode == code, program.text

        async def is_pending() -> bool:
            return await status(scheduler, job_id) == "pending"

        await until(is_pending)
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert [error.outcome for error in job.errors] == ["lost"]


async def test_worker_ends_while_a_thread_of_asyncio_runs_on(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    await add(scheduler, "cliworker.stay_in_thread", begun, tmp_path / "never")
    with start(f"{JOBS}:impatient") as program:
        await until(lambda: has_text(begun))
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text


async def test_application_may_clean_up_for_the_time_that_the_shutdown_leaves(start: Start) -> None:
    with start(f"{JOBS}:tidy") as program:
        await program.read_until("started")
        program.process.send_signal(signal.SIGTERM)
        await program.read_until("tidied up")
        assert await program.end() == ExitCode.DONE, program.text


async def test_each_process_serves_metrics_at_a_port_of_its_own(start: Start) -> None:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        second.bind(("127.0.0.1", port + 1))
    with start(JOBS, "--processes", "2", "--metrics-port", str(port)) as program:
        for number in range(2):
            address = f"http://127.0.0.1:{port + number}/metrics"
            await program.read_until(f"metrics at {address}")
            assert "pg_scheduler_workers_declared_dead_total" in await asyncio.to_thread(fetch, address)


async def test_usr1_stops_claiming_until_the_worker_is_resumed(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    from pg_scheduler.inspect import Inspector

    with start(JOBS, "--slots", "3", "--metrics-port", "0") as program:
        await program.read_until("started")
        program.process.send_signal(signal.SIGUSR1)
        await program.read_until("no more jobs are claimed")

        async def is_draining() -> bool:
            (worker,) = await scheduler.workers()
            assert worker.max_concurrent_jobs == 3
            return worker.state == "draining"

        await until(is_draining)
        assert "pg_scheduler_slots 3.0" in await asyncio.to_thread(
            fetch, (await program.read_until("metrics at")).split()[-1]
        )
        job_id = await add(scheduler, "cliworker.write", tmp_path / "x")
        (worker,) = await scheduler.workers()
        assert await status(scheduler, job_id) == "pending"
        assert await Inspector(scheduler).resume_workers([worker.worker_id, "other"]) == [worker.worker_id]
        await until(lambda: has_text(tmp_path / "x"))
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text


async def test_usr1_during_the_start_stops_claiming(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    (tmp_path / "slow_start.py").write_text(
        f"""
import pathlib, time
pathlib.Path({str(begun)!r}).write_text("begun")
while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)
from tests.cli.worker_jobs import *
""",
        encoding="utf-8",
    )
    with start("slow_start", cwd=tmp_path) as program:
        await until(lambda: has_text(begun))
        program.process.send_signal(signal.SIGUSR1)
        gate.touch()
        await program.read_until("no more jobs are claimed")

        async def is_draining() -> bool:
            return [worker.state for worker in await scheduler.workers()] == ["draining"]

        await until(is_draining)
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["one", "several"])
async def test_usr1_while_the_command_is_imported_stops_claiming_from_the_first_job_on(
    start: Start, scheduler: Scheduler, tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        """
import os, signal, sys
class Early:
    def find_spec(self, name, *_):
        if name == "typer" and "PG_SCHEDULER_REPORT_FD" not in os.environ:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGUSR1)
sys.meta_path.insert(0, Early())
""",
        encoding="utf-8",
    )
    job_id = await add(scheduler, "cliworker.write", tmp_path / "x")
    with start(JOBS, *options, cwd=tmp_path) as program:

        async def are_draining() -> bool:
            states = [worker.state for worker in await scheduler.workers()]
            return states == ["draining"] * (2 if options else 1)

        await until(are_draining)
        assert await status(scheduler, job_id) == "pending"
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text


async def test_drain_by_usr1_holds_for_the_process_that_follows_a_recycled_one(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    with start(JOBS, "--processes", "2", "--max-age", "3s") as program:
        await program.read_until("process 2 is pid")
        program.process.send_signal(signal.SIGUSR1)

        async def draining() -> set[str]:
            workers = await scheduler.workers()
            names = {worker.worker_id for worker in workers if worker.state == "draining"}
            return names if len(names) == 2 else set()

        before = await until(draining)
        job_id = await add(scheduler, "cliworker.write", tmp_path / "x")

        async def have_followed() -> bool:
            return not before & await draining() and bool(await draining())

        await until(have_followed)
        assert await status(scheduler, job_id) == "pending", "the following processes have claimed nothing"
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text


@pytest.mark.usefixtures("hangup_by_default")
async def test_hangup_shuts_down_gracefully_and_is_no_second_signal(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    job_id = await add(scheduler, "cliworker.wait", begun, gate)
    with start(JOBS) as program:
        await until(lambda: has_text(begun))
        for _ in range(2):
            program.process.send_signal(signal.SIGHUP)
            await program.read_until("SIGHUP received: stopping after the running jobs")
        gate.touch()
        assert await program.end() == ExitCode.DONE, program.text
    assert await status(scheduler, job_id) == "completed"


async def test_usr2_logs_slots_and_stacks_while_the_event_loop_is_blocked(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    job_id = await add(scheduler, "cliworker.block", begun, gate)
    with start(JOBS, "--names", "cliworker.b*") as program:
        await until(lambda: has_text(begun))
        program.process.send_signal(signal.SIGUSR2)
        await program.read_until("1 of 25 slots busy")
        await program.read_until(f"job cliworker.block (id {job_id}, attempt 1)")
        await program.read_until("thread MainThread")
        await program.read_until(", in block")
        gate.touch()
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (("--max-jobs", "1"), "1 job has started"),
        (("--max-rss", "1"), "MB of memory in use"),
        (("--max-age", "0.1s"), "0.1 s since the start"),
    ],
)
async def test_worker_ends_when_a_limit_is_reached(
    start: Start, scheduler: Scheduler, tmp_path: Path, option: tuple[str, str], reason: str
) -> None:
    await add(scheduler, "cliworker.write", tmp_path / "x")
    with start(JOBS, *option) as program:
        assert await program.end() == ExitCode.DONE
    assert reason in program.text


async def test_supervisor_restarts_a_killed_process_and_answers_one_port(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    with start(JOBS, "--processes", "2", "--health-port", "0") as program:
        url = (await program.read_until("probes at ")).split()[-1]

        def ready(text: str) -> bool:
            try:
                with urllib.request.urlopen(f"{url}?verbose", timeout=5) as answer:
                    return text in answer.read().decode()
            except urllib.error.HTTPError:
                return False

        await until(lambda: asyncio.to_thread(ready, "[+]processes ok: 2 of 2 running"))
        before = {worker.pid for worker in await scheduler.workers()}
        job_id = await add(scheduler, "cliworker.wait", begun, gate)
        await until(lambda: has_text(begun))
        killed = int(begun.read_text(encoding="utf-8"))
        begun.unlink()
        os.kill(killed, signal.SIGKILL)
        await program.read_until("ended with SIGKILL; it is started again in 0.5 s")

        async def pids() -> set[int]:
            found = {worker.pid for worker in await scheduler.workers() if worker.pid != killed}
            return found if len(found) == 2 else set()

        after = await until(pids)
        assert len(before & after) == 1
        await until(lambda: has_text(begun))  # reclaimed
        gate.touch()
        await until(lambda: asyncio.to_thread(ready, "[+]processes ok"))
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text
    assert await status(scheduler, job_id) == "completed"
    assert await scheduler.workers() == []


async def test_supervisor_notifies_systemd_for_its_processes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"pg_scheduler-{os.getpid()}-{id(monkeypatch)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(f"\0{name}")
        notifications.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")

        async def receive(line: str) -> str:
            while line not in (text := await asyncio.to_thread(notifications.recv, 65_536)).decode().split(
                "\n"
            ):
                pass
            return text.decode()

        with start(JOBS, "--processes", "2", "--slots", "3") as program:
            text = await receive("READY=1")
            assert "STATUS=0 of 6 slots" in text
            assert "WATCHDOG=1" in text
            program.process.send_signal(signal.SIGTERM)
            await receive("STOPPING=1")
            assert await program.end() == ExitCode.DONE, program.text


async def test_worker_exits_with_5_while_the_database_is_unavailable(start: Start) -> None:
    dsn = "postgresql://app:s3cr3t-w0rd@127.0.0.1:1/app"
    with start(JOBS, "--dsn", dsn, "--health-port", "0") as program:
        assert await program.end() == ExitCode.UNAVAILABLE
    assert "s3cr3t-w0rd" not in program.text
    assert "probes at" not in program.text, "they begin when the database has responded"


async def test_worker_that_verifies_creates_no_table(
    start: Start, pool: asyncpg.Pool[asyncpg.Record]
) -> None:
    await pool.execute("DROP TABLE scheduler_tasks")
    with start(JOBS, "--migrations", "verify", "--drain") as program:
        assert await program.end() == ExitCode.SCHEMA
    assert "scheduler_tasks; with migrations='verify' nothing is changed; run pg-scheduler" in program.text
    assert await pool.fetchval("SELECT to_regclass('scheduler_tasks')") is None
    with start(JOBS, "--migrations", "apply", "--drain") as program:
        assert await program.end() == ExitCode.DONE
    with start(JOBS, "--migrations", "skip") as program:
        assert await program.end() == ExitCode.USAGE
    assert "migrations must be 'apply' or 'verify', not 'skip'" in program.text


async def test_taken_health_port_exits_with_4(start: Start) -> None:
    server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with start(JOBS, "--health-port", str(port)) as program:
            assert await program.end() == ExitCode.REFUSED
    assert f"--health-port {port} cannot be used" in program.text


@pytest.mark.skipif(sys.platform != "linux", reason="limits the files of another process")
async def test_held_connections_to_its_ports_take_no_files_from_a_worker(
    start: Start, scheduler: Scheduler, pool: asyncpg.Pool[asyncpg.Record], tmp_path: Path
) -> None:
    """Without a bound, the ports would use up the 128 files: no job could open one, and no connection."""
    with start(JOBS, "--health-port", "0", "--metrics-port", "0") as program, ExitStack() as stack:
        probe = (await program.read_until("probes at")).split()[-1]
        metrics = (await program.read_until("metrics at")).split()[-1]
        first = await add(scheduler, "cliworker.write", tmp_path / "first")
        await until(lambda: has_text(tmp_path / "first"))
        resource.prlimit(program.process.pid, resource.RLIMIT_NOFILE, (128, 128))
        closed = select.poll()
        for number in range(HELD):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", urlsplit((probe, metrics)[number % 2]).port))
            closed.register(client, select.POLLIN)
        await until(lambda: len(closed.poll(0)) > HELD / 4)  # others replaced them
        assert await pool.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'pg_scheduler worker'"
        )
        jobs = [await add(scheduler, "cliworker.write", tmp_path / f"{n}") for n in range(20)]
        for job_id in [first, *jobs]:
            await until(partial(has_completed, scheduler, job_id))
        assert await asyncio.to_thread(fetch, probe) == "ok\n"
        assert "pg_scheduler_slots" in await asyncio.to_thread(fetch, metrics)


async def has_completed(scheduler: Scheduler, job_id: str) -> bool:
    return await status(scheduler, job_id) == "completed"


async def test_worker_without_functions_logs_a_warning(start: Start) -> None:
    with start("json") as program:
        assert "no function is registered; name the modules" in await program.read_until("no function")


async def test_changed_source_starts_the_worker_again_also_after_a_mistake(
    start: Start, tmp_path: Path, pool: asyncpg.Pool
) -> None:
    module = tmp_path / "cli_reloaded.py"

    def write(number: int, code: str) -> None:
        module.write_text(f"from pg_scheduler import job\n{code}\n", encoding="utf-8")
        os.utime(module, (number, number))  # two changes within the resolution of the clock differ

    async def has_claimed(name: str) -> None:
        statement = "SELECT EXISTS (SELECT FROM scheduler_workers WHERE $1 = ANY (names))"
        async with asyncio.timeout(PATIENCE):
            while not await pool.fetchval(statement, name):  # noqa: ASYNC110 - a process raises no event
                await asyncio.sleep(0.02)  # until the process has come so far

    write(1, "@job(name='clireload.one')\nasync def one(): ...")
    with start("cli_reloaded", "--reload", cwd=tmp_path) as program:
        await has_claimed("clireload.one")
        write(2, "oops(")
        await program.read_until("waiting for a change")
        write(3, "@job(name='clireload.two')\nasync def two(): ...")
        await has_claimed("clireload.two")
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == 0, program.text
        assert program.text.count("cli_reloaded.py has changed") == 2


async def test_new_source_file_starts_the_worker_again(
    start: Start, tmp_path: Path, pool: asyncpg.Pool
) -> None:
    package = tmp_path / "cli_growing"
    every_module = (
        "import importlib, pkgutil\n"
        "for each in pkgutil.iter_modules(__path__, f'{__name__}.'):\n"
        "    importlib.import_module(each.name)\n"
    )

    async def has_claimed(name: str) -> bool:
        statement = "SELECT EXISTS (SELECT FROM scheduler_workers WHERE $1 = ANY (names))"
        return bool(await pool.fetchval(statement, name))

    def write(path: Path, code: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".new").write_text(code, encoding="utf-8")
        path.with_suffix(".new").rename(path)  # so that it appears with its content

    def job_named(name: str) -> str:
        return f"from pg_scheduler import job\n@job(name='{name}')\nasync def run(): ...\n"

    with start("cli_growing", "--reload", cwd=tmp_path) as program:
        await program.read_until("waiting for a change")
        write(package / "__init__.py", every_module)
        await program.read_until("no function is registered")
        write(package / "one.py", job_named("cligrowing.one"))
        await until(lambda: has_claimed("cligrowing.one"))
        write(package / "deep" / "__init__.py", job_named("cligrowing.two"))
        await until(lambda: has_claimed("cligrowing.two"))
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == 0, program.text


def execute_on(dsn: str, statements: str) -> None:
    async def execute(connection: asyncpg.Connection) -> None:
        await connection.execute(statements)

    run_on(dsn, execute)


@pytest.fixture
def limited(dsn: str) -> Iterator[str]:
    """A role without privileges."""
    role = f"limited_{uuid.uuid4().hex}"
    execute_on(dsn, f"CREATE ROLE {role} LOGIN")
    yield role
    execute_on(dsn, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


class TestCheck:
    @pytest.fixture(autouse=True)
    def settings(self, monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
        monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
        monkeypatch.setattr("tests.cli.worker_jobs.DSN", dsn, raising=True)
        monkeypatch.syspath_prepend(ROOT)

    @pytest.mark.parametrize("target", [JOBS, f"{JOBS}:plain", f"{JOBS}:coroutine", f"{JOBS}:context"])
    def test_check_lists_the_tasks_of_every_kind_of_target(self, call: Run, target: str) -> None:
        ran = call("worker", "--check", target)
        assert ran.code == 0, ran.err
        rows = {row["name"]: row for row in ran.checked("registered_task")}
        assert rows["cliworker.write"]["executor"] == "async"
        assert "cliworker.old" in rows["cliworker.write"]["aliases"]
        assert "the tables can be used" in ran.err

    def test_tasks_of_a_target_are_listed_with_their_aliases(self, call: Run) -> None:
        ran = call("tasks", "list", "--target", JOBS)
        rows = {row["name"]: row for row in ran.checked("registered_task")}
        assert "cliworker.old" in rows["cliworker.write"]["aliases"]

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            (f"{JOBS}:plane", "did you mean plain?"),
            (f"{JOBS}:number", "is an object of type int; name a Scheduler"),
            (f"{JOBS}:nothing", "returned None; it must return a Scheduler"),
            (f"{JOBS}:with_argument", "must be callable without arguments"),
            (f"{JOBS}:write", f"is a job function, which workers call for its jobs; name its module, {JOBS}"),
            ("pg_scheduler.triger.cron", "did you mean pg_scheduler.triggers?"),
            ("tests/cli/worker_jobs.py", "write package.module, not a path"),
            (f"{JOBS}:", "must be package.module:attribute or package.module"),
            (":plain", "must be package.module:attribute or package.module"),
        ],
    )
    def test_wrong_target_exits_with_2_and_names_the_remedy(
        self, call: Run, target: str, message: str
    ) -> None:
        ran = call("worker", "--check", target)
        assert (ran.code, ran.out) == (ExitCode.USAGE, "")
        assert message in ran.err

    def test_module_that_raises_shows_its_traceback(
        self, call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "cliworker_broken.py").write_text("def f():\n    return 1 / 0\nf()\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        ran = call("worker", "--check", "cliworker_broken")
        assert ran.code == ExitCode.USAGE
        assert "return 1 / 0" in ran.err
        assert "importlib" not in ran.err
        assert "cliworker_broken cannot be imported: ZeroDivisionError" in ran.err

    @pytest.mark.parametrize("error", ["ValueError", "KeyError"])
    def test_callable_that_raises_shows_its_traceback(
        self, call: Run, monkeypatch: pytest.MonkeyPatch, error: str
    ) -> None:
        monkeypatch.setattr("tests.cli.worker_jobs.ERROR", error)
        ran = call("worker", "--check", f"{JOBS}:broken")
        assert ran.code == ExitCode.USAGE
        assert "raise vars(builtins)[ERROR]" in ran.err
        assert "target.py" not in ran.err
        assert f"{JOBS}:broken has failed: {error}: " in ran.err

    def test_names_that_match_no_task_exit_with_2(self, call: Run) -> None:
        ran = call("worker", "--check", JOBS, "--names", "cliworker.*,shop.nope")
        assert ran.code == ExitCode.USAGE
        assert "--names matches no registered task: shop.nope" in ran.err
        ran = call("worker", "--check", JOBS, "--names", "cliworker.blok")
        assert "--names matches no registered task: cliworker.blok; did you mean cliworker.block?" in ran.err
        assert call("worker", "--check", JOBS, "--names", "cliworker.*").code == 0

    def test_missing_tables_exit_with_6(self, call: Run, empty_dsn: str) -> None:
        assert call("worker", "--check", JOBS, "--dsn", empty_dsn).code == ExitCode.SCHEMA

    @pytest.mark.parametrize("schema", ["public", None])
    @pytest.mark.parametrize("role", [None, *Role])
    def test_role_without_the_privileges_of_a_worker_exits_with_4_and_the_remedy(
        self, call: Run, dsn: str, limited: str, role: Role | None, schema: str | None
    ) -> None:
        limited_dsn = dsn.replace("postgres@", f"{limited}@", 1)
        words = ("worker", "--check", JOBS, "--dsn", limited_dsn, *(["--schema", schema] if schema else []))
        if role is not None:
            execute_on(dsn, "; ".join(grant_statements(role, "public", limited)))
        ran = call(*words)
        if role is Role.WORKER:
            assert ran.code == ExitCode.DONE, ran.err
            return
        assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
        assert f"the role '{limited}' lacks privileges of a worker on" in ran.err
        grants = ran.err.partition("as the owner of the tables: ")[2]
        execute_on(dsn, grants)
        assert call(*words).code == ExitCode.DONE

    def test_role_that_may_not_use_the_schema_exits_with_4_and_the_remedy(
        self, call: Run, empty_dsn: str, limited: str
    ) -> None:
        assert call("migrate", "--schema", "jobs", "--dsn", empty_dsn).code == ExitCode.DONE
        limited_dsn = empty_dsn.replace("postgres@", f"{limited}@", 1)
        ran = call("worker", "--check", JOBS, "--dsn", limited_dsn, "--schema", "jobs")
        assert ran.code == ExitCode.REFUSED
        assert f'GRANT USAGE ON SCHEMA "jobs" TO "{limited}"' in ran.err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--max-age", "soon"), "--max-age must be a duration such as 90s, 15m, 1h30m or 2d"),
            (("--max-age", "0s"), "--max-age must be more than 0s"),
            (
                ("--metrics-port", "65535", "--processes", "2"),
                "--metrics-port 65535 leaves no port for each of 2 processes",
            ),
            (("--log-format", "xml"), "--log-format must be text or json, not 'xml'"),
            (("--slots", "0"), "max_concurrent_jobs must be greater than or equal to 1, not 0"),
            (("--schema", "jobs", f"{JOBS}:plain"), "is connected by its own pool; omit --schema"),
            ((f"{JOBS}:plain", f"{JOBS}:context"), "both name a Scheduler"),
        ],
    )
    def test_wrong_options_exit_with_2(self, call: Run, options: tuple[str, ...], message: str) -> None:
        ran = call("worker", "--check", JOBS, *options)
        assert (ran.code, ran.out) == (ExitCode.USAGE, "")
        assert message in ran.err
