"""Exit codes of commands that cannot connect or lose the connection: 5 if it can succeed later, else 4."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import asyncpg
import pytest

from pg_scheduler import embedded
from pg_scheduler.cli import connections as cli_connections
from pg_scheduler.inspect.store import connections
from pg_scheduler.inspect.store import doctor as doctor_store
from tests.cli.conftest import Run
from tests.conftest import FAST, Connection, held_connection, run_on
from tests.support.inside import ExitCode, address_parts
from tests.support.patience import PATIENCE
from tests.support.users import without_right_to_enter_all

ROLES = """
    CREATE ROLE secretive LOGIN PASSWORD 'right';
    CREATE ROLE encrypted LOGIN;
    CREATE ROLE crowded LOGIN CONNECTION LIMIT 0;
"""
RULES = """\
local all secretive scram-sha-256
hostssl all encrypted all trust
local all crowded,postgres trust
"""


@pytest.fixture(scope="module")
def strict(scratch: Path | None) -> Iterator[embedded.EmbeddedPostgres]:
    """A server that asks one role for a password, and another one for TLS."""
    with embedded.EmbeddedPostgres(settings=FAST, scratch=scratch) as server:

        async def prepare(connection: Connection) -> None:
            await connection.execute(ROLES)
            rules = Path(await connection.fetchval("SHOW hba_file"))
            rules.write_text(RULES, encoding="utf-8")  # noqa: ASYNC240 - before the test
            await connection.execute("SELECT pg_reload_conf()")

        run_on(server.dsn(), prepare)
        until_rejected(dsn_of(server, "encrypted"), asyncpg.InvalidAuthorizationSpecificationError)
        yield server


def until_rejected(dsn: str, error: type[Exception]) -> None:
    """Wait until the server rejects connections with this error."""

    async def nothing(_: Connection) -> None: ...

    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            run_on(dsn, nothing)
        except error:
            return
        time.sleep(0.01)  # until the server has received its signal
    raise TimeoutError(dsn)


def dsn_of(server: embedded.EmbeddedPostgres, user: str, database: str = "postgres") -> str:
    return urlsplit(server.dsn(database))._replace(netloc=f"{user}@").geturl()


@pytest.mark.parametrize(
    ("user", "database", "error", "code"),
    [
        ("secretive:wrong", "postgres", "28P01", ExitCode.REFUSED),
        ("encrypted", "postgres", "28000", ExitCode.REFUSED),
        ("postgres", "nothing", "3D000", ExitCode.REFUSED),
        ("crowded", "postgres", "TooManyConnectionsError", ExitCode.UNAVAILABLE),
    ],
)
def test_connection_that_the_server_rejects(
    call: Run, strict: embedded.EmbeddedPostgres, *, user: str, database: str, error: str, code: ExitCode
) -> None:
    ran = call("jobs", "list", "--dsn", dsn_of(strict, user, database))
    assert (ran.code, error in ran.err) == (code, True), ran.err


def test_role_without_privileges_is_refused(call: Run, dsn: str, server: embedded.Server) -> None:
    async def create(connection: Connection) -> None:
        await connection.execute("DROP ROLE IF EXISTS cli_powerless; CREATE ROLE cli_powerless LOGIN")

    run_on(server.dsn(), create)
    ran = call("jobs", "list", "--dsn", dsn.replace("postgres@", "cli_powerless@"))
    assert (ran.code, "permission denied" in ran.err) == (ExitCode.REFUSED, True), ran.err


@contextmanager
def locked(dsn: str, table: str) -> Iterator[int]:
    """Lock a whole table within the block, and yield the process id of the session."""
    pids: list[int] = []

    async def lock(connection: Connection) -> None:
        await connection.execute("SET application_name = 'the migration'; BEGIN")
        await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        await connection.execute("SELECT pg_sleep(0.6)")  # transactions that began just now are not named
        pids.append(await connection.fetchval("SELECT pg_backend_pid()"))

    with held_connection(dsn) as execute:
        execute(lock)
        yield pids[0]


@pytest.mark.parametrize("table", ["scheduled_jobs", "scheduler_migrations", "scheduler_workers"])
@pytest.mark.parametrize(
    "command", ["status", "doctor", "jobs list", "jobs show a", "workers list", "health", "stats", "audit"]
)
def test_command_that_meets_the_lock_of_a_table_ends_soon_and_names_the_session(
    call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch, table: str, command: str
) -> None:
    monkeypatch.setattr(cli_connections, "VERIFY_LOCK_TIMEOUT_MS", 200)
    monkeypatch.setattr(doctor_store, "VERIFY_LOCK_TIMEOUT_MS", 200)
    with locked(dsn, table) as pid:
        began = time.monotonic()
        ran = call(*command.split(), "--dsn", dsn)
        assert time.monotonic() - began < PATIENCE
    assert ran.code == ExitCode.UNAVAILABLE, ran
    assert f"these sessions have locks on the tables: pid {pid}, application 'the migration'" in ran.err
    assert "the DSN is" in ran.err


def test_server_that_shuts_down_is_unavailable(call: Run, scratch: Path | None) -> None:
    with embedded.EmbeddedPostgres(settings=FAST, scratch=scratch) as server, asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(server.dsn()))
        assert server.pid is not None
        os.kill(server.pid, signal.SIGTERM)  # it waits for the end of this session
        until_rejected(server.dsn(), asyncpg.CannotConnectNowError)
        ran = call("jobs", "list", "--dsn", server.dsn())
        runner.run(connection.close())
    assert (ran.code, "CannotConnectNowError" in ran.err) == (ExitCode.UNAVAILABLE, True), ran.err


def test_session_that_an_administrator_ends_is_unavailable(call: Run, dsn: str) -> None:
    locked = threading.Event()

    async def terminate(connection: Connection) -> None:
        async with connection.transaction():
            await connection.execute("LOCK TABLE scheduled_jobs IN ACCESS EXCLUSIVE MODE")
            locked.set()
            statement = (
                "SELECT pg_terminate_backend(pid) FROM pg_locks "
                "WHERE NOT granted AND relation = 'scheduled_jobs'::regclass"
            )
            async with asyncio.timeout(PATIENCE):
                while not await connection.fetchval(statement):  # noqa: ASYNC110 - a session raises no event
                    await asyncio.sleep(0.01)

    thread = threading.Thread(target=run_on, args=(dsn, terminate))
    thread.start()
    assert locked.wait(PATIENCE)
    ran = call("jobs", "list", "--dsn", dsn)
    thread.join(PATIENCE)
    reason = re.compile("administrator command|connection was closed")  # the latter by older asyncpg
    assert (ran.code, bool(reason.search(ran.err))) == (ExitCode.UNAVAILABLE, True), ran.err


COMMON = (
    "connect_timeout=10&channel_binding=prefer&keepalives=1&keepalives_idle=30&gssencmode=disable&pgbouncer=true"
    "&load_balance_hosts=random&fallback_application_name=web&tcp_user_timeout=5000&requiressl=0&client_encoding=utf8"
)
"""Options that asyncpg would send to the server, which rejects them."""


def with_options(dsn: str, options: str) -> str:
    return f"{dsn}{'&' if '?' in dsn else '?'}{options}"


@pytest.mark.parametrize(
    "command", ["status", "jobs list", "migrate --check", "worker --check tests.cli.worker_jobs"]
)
def test_dsn_with_options_of_libpq_and_of_hosting_services_works(call: Run, dsn: str, command: str) -> None:
    ran = call(
        *command.split(), "--dsn", with_options(dsn, COMMON), "--direct-dsn", with_options(dsn, COMMON)
    )
    assert ran.code == ExitCode.DONE, ran.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "sslrootcert of the DSN.*/nowhere/ca.pem"),
        ("sslcert=/nowhere/app.pem", "sslcert of the DSN.*/nowhere/app.pem"),
        ("service=none", "the service 'none', which is not defined in"),
        ("schema=public", "has the option schema: .*--schema"),
        ("pool_size=5", "has the option pool_size: "),
        ("gssencmode=require", "has the option gssencmode: "),
        ("nonsense=1", "42704.*nonsense.*remove it"),
    ],
)
@pytest.mark.parametrize("command", ["jobs list", "worker tests.cli.worker_jobs"])
def test_option_of_the_dsn_that_cannot_be_used_is_named(
    call: Run, dsn: str, command: str, options: str, expected: str
) -> None:
    ran = call(*command.split(), "--dsn", with_options(dsn, options))
    code = ExitCode.REFUSED if options == "nonsense=1" else ExitCode.USAGE
    assert (ran.code, bool(re.search(expected, ran.err))) == (code, True), ran.err


def test_service_of_the_environment_is_used(
    call: Run, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = dict(parse_qsl(urlsplit(dsn).query))
    values = {**query, **address_parts(dsn), "user": urlsplit(dsn).username or "postgres"}
    values["dbname"] = values.pop("database")
    services = tmp_path / "services.conf"
    services.write_text(
        "\n".join(["[prod]", *(f"{name}={value}" for name, value in values.items())]), encoding="utf-8"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGSERVICE", "prod")
    assert call("status").code == ExitCode.DONE
    monkeypatch.setenv("PGSERVICE", "test")
    ran = call("status")
    assert (ran.code, f"not defined in {services}" in ran.err) == (ExitCode.USAGE, True), ran.err


def test_unknown_host_is_unavailable(call: Run) -> None:
    ran = call("jobs", "list", "--dsn", "postgresql://app@pg-scheduler.invalid/app")
    assert (ran.code, "gaierror" in ran.err) == (ExitCode.UNAVAILABLE, True), ran.err


@pytest.mark.parametrize("command", ["status", "migrate plan", "worker tests.cli.worker_jobs"])
def test_message_has_the_dsn_of_a_server_that_is_unavailable(call: Run, command: str) -> None:
    ran = call(*command.split(), "--dsn", "postgresql://u:secret@127.0.0.1:1/x")
    assert ran.code == ExitCode.UNAVAILABLE
    assert ran.err.endswith("; the DSN is postgresql://u:***@127.0.0.1:1/x, from --dsn\n")


def test_server_that_does_not_answer_is_unavailable(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ran = call("jobs", "list", "--dsn", f"postgresql://app@127.0.0.1:{silent.getsockname()[1]}/app")
    assert (ran.code, "TimeoutError" in ran.err) == (ExitCode.UNAVAILABLE, True), ran.err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_server_whose_certificate_is_not_trusted_is_refused(call: Run, tmp_path: Path) -> None:
    for name in ("own", "root"):
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
        files = ["-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / f"{name}.crt")]
        subprocess.run([*command, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")

    def greet(connection: socket.socket) -> None:
        connection.sendall(b"S")  # as PostgreSQL answers a request for TLS
        with suppress(OSError):  # the client ends the connection
            context.wrap_socket(connection, server_side=True).close()

    with answering(greet) as port:
        mode = f"sslmode=verify-ca&sslrootcert={tmp_path / 'root.crt'}"
        ran = call("jobs", "list", "--dsn", f"postgresql://app@127.0.0.1:{port}/app?{mode}")
    assert (ran.code, "the certificate of the server is not trusted" in ran.err) == (ExitCode.REFUSED, True)


def test_server_without_the_tls_that_the_dsn_demands_is_unavailable(call: Run) -> None:
    """The driver reports it by the class of a lost connection."""

    def deny(connection: socket.socket) -> None:
        connection.sendall(b"N")  # as PostgreSQL answers a request for TLS without ssl = on
        connection.recv(1)

    with answering(deny) as port:
        ran = call("jobs", "list", "--dsn", f"postgresql://app@127.0.0.1:{port}/app?sslmode=require")
    assert (ran.code, "rejected SSL upgrade" in ran.err) == (ExitCode.UNAVAILABLE, True), ran.err


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve one connection, once it has requested TLS; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(8)
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
    thread.join(PATIENCE)


def test_home_folder_that_cannot_be_entered_is_named_with_the_remedy(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs with another user than the image was made for."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    command = ("status", "--dsn", "postgresql://app@127.0.0.1:1/app")
    assert call(*command).code == ExitCode.UNAVAILABLE  # it may enter the folder, and finds no server
    home.chmod(0)
    with without_right_to_enter_all():
        ran = call(*command)
    assert ran.code == ExitCode.USAGE
    assert f"{home}/.postgresql, which this process may not enter; set HOME to" in ran.err
