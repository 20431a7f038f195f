"""A private PostgreSQL server for demos, tests and development.

The server needs no installation and no privileges. Its programs come from a wheel, which the
extra ``embedded`` installs, or from the machine. Its data is in a temporary folder or in a given one, and it
listens on a socket that only its owner can open. It ends with this process, even if this process is killed
(see `supervisor_process`). Several servers can run at once. This module imports neither asyncpg nor the rest
of the library.

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
from typing import Any, Literal, Protocol, Self
from urllib.parse import quote, urlsplit

from pg_scheduler.embedded.binaries import DSN_VARIABLE, EmbeddedError, find_binaries

StopMode = Literal["smart", "fast", "immediate"]


class Server(Protocol):
    """A PostgreSQL server."""

    def dsn(self, database: str = "postgres") -> str:
        """Return the DSN of one of its databases."""


class ExternalPostgres:
    """A server that this process did not start.

    Args:
        address: A URL such as ``postgresql://user@host/database``.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def dsn(self, database: str | None = None) -> str:
        """Return the DSN of a database; the address as it was given if ``database`` is None."""
        if database is None:
            return self.address
        return urlsplit(self.address)._replace(path="/" + quote(database, safe="")).geturl()


class EmbeddedPostgres:
    """A private server; use it as a context manager.

    Args:
        data: The folder of the data, which is created if it is missing and kept at the end. None for a
            temporary folder, which is removed at the end.
        settings: Parameters as in postgresql.conf, e.g. ``{"fsync": "off"}`` for tests.
        binaries: The folder that contains ``postgres`` and ``initdb``; None to search for it.
        scratch: The folder in which the temporary folder is created; None for the system's default. In
            ``/dev/shm``, if it has room, creating a database is fifty times as fast as on many disks.
        environment: Variables for the server's processes, e.g. ``{"LD_PRELOAD": ...}``. From this process
            they inherit only ``PATH`` and ``LD_LIBRARY_PATH``.

    Attributes:
        pid: The process id of the postmaster; None before the first start and after `close`.
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
        self.settings = {"port": "5432"} | dict(settings or {})
        self.binaries = Path(binaries) if binaries is not None else None
        self.scratch = Path(scratch) if scratch is not None else None
        self.environment = dict(environment or {})
        self.pid: int | None = None
        # The folder of the socket; None before the first start and after close().
        self._home: str | None = None
        # The folders that the supervisor removes at the end.
        self._temporary: list[str] = []
        # The process that runs the server, and the lock of the messages to it.
        self._supervisor: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server and remove temporary data."""
        self.close()

    def dsn(self, database: str = "postgres") -> str:
        """Return the DSN of a database, for asyncpg and clients based on libpq.

        Raises:
            EmbeddedError: The server was not started yet, or it was closed.
        """
        if self._home is None:
            raise EmbeddedError("the embedded server has no address yet; call start() first")
        address = f"host={quote(self._home)}&port={self.settings['port']}"
        return f"postgresql://postgres@/{quote(database, safe='')}?{address}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections.

        After `stop` or `kill` it restarts at the same address with its data. If it runs, nothing happens.

        Raises:
            EmbeddedError: No server programs were found, or they failed; the message contains their output.
        """
        if self._supervisor is not None:
            reply = self._send(do="start")
        else:
            self._supervisor = self._start_supervisor()
            try:
                # The first message to a new supervisor describes the server; all others are commands.
                self._send(**self._configuration())
                reply = self._send(do="start")
            except EmbeddedError:
                self.close()
                raise
        self._home, self.pid, self._temporary = reply["home"], reply["pid"], reply["temporary"]

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and keep its data for a later `start`.

        Args:
            mode: ``smart`` waits until all clients have disconnected, ``fast`` disconnects them,
                ``immediate`` writes no checkpoint either, so that the next start has to recover.
        """
        self._send(do="stop", mode=mode)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it at the same address."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill all server processes (SIGKILL), which acts like a power failure; `start` recovers the data."""
        self._send(do="kill")

    def freeze(self) -> None:
        """Suspend all server processes (SIGSTOP). Connections stay open, but do not respond until `thaw`."""
        self._send(do="freeze")

    def thaw(self) -> None:
        """Resume a frozen server (SIGCONT)."""
        self._send(do="thaw")

    def close(self) -> None:
        """Stop the server and remove temporary data; a second call has no effect."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            # The supervisor also ends when its pipe closes. But a process that this one has forked may hold
            # the pipe open, so the supervisor gets a signal.
            supervisor.terminate()
            supervisor.communicate()
        # The supervisor has removed these folders, unless it was killed.
        for folder in self._temporary:
            shutil.rmtree(folder, ignore_errors=True)
        self.pid = self._home = None

    def _start_supervisor(self) -> subprocess.Popen[str]:
        """Start the process that runs the server, and that stops it when this process ends."""
        script = Path(__file__).with_name("supervisor_process.py")
        # The script needs the standard library only: -I and -S ignore PYTHON* variables and site-packages. In
        # a session of its own, Ctrl-C does not reach the supervisor, which has to end after this process.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _configuration(self) -> dict[str, Any]:
        """Return the first message to the supervisor: the fields of its ``Configuration``."""
        binaries = self.binaries or find_binaries()
        return {
            "binaries": str(binaries.absolute()),
            "data": str(self.data) if self.data else None,
            "scratch": str(self.scratch) if self.scratch else None,
            "settings": self.settings,
            "environment": self.environment,
        }

    def _send(self, **command: Any) -> dict[str, Any]:
        """Send a command to the supervisor, and return its reply."""
        if self._supervisor is None or self._supervisor.stdin is None or self._supervisor.stdout is None:
            raise EmbeddedError("the embedded server is not running; call start() first")
        # Each reply belongs to the command before it, so only one thread at a time may send.
        with self._lock:
            try:
                self._supervisor.stdin.write(json.dumps(command) + "\n")
                self._supervisor.stdin.flush()
                line = self._supervisor.stdout.readline()
            except BrokenPipeError:
                line = ""
        # The end of the pipe is read as an empty line.
        if not line:
            raise EmbeddedError(
                "the supervisor process of the embedded server has ended; call close(), then start()"
            )
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise EmbeddedError(reply["error"])
        return reply


def server_dsn() -> str | None:
    """Return the DSN in ``PG_SCHEDULER_TEST_DSN``, or None if it is not set."""
    return os.environ.get(DSN_VARIABLE) or None


@contextmanager
def server(
    data: str | os.PathLike[str] | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> Iterator[Server]:
    """Yield the server of ``PG_SCHEDULER_TEST_DSN`` if it is set, an embedded one otherwise.

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
