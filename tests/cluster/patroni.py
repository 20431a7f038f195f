"""A cluster of PostgreSQL that fails over: two nodes under Patroni, with one etcd.

Every process of the tests has an address of its own in 127.0.0.0/8, so ports are fixed. PostgreSQL refuses to
run as root; then its nodes run as nobody, with the right to read what is root's: Python, and the programs.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import asyncpg

from pg_scheduler.embedded import EmbeddedError, find_binaries
from tests.support.debian import component

TTL: Final = 20
"""Seconds after which a leader that is silent is not one any more; Patroni takes no less."""

FAILS_OVER: Final = (0, 32)
"""The first asyncpg that goes on to the next host when one is starting."""

PATIENCE: Final = 60.0
STOP: Final = 5.0
GUARD: Final = Path(__file__).with_name("guard.py")
NOBODY: Final = 65534
AS_NOBODY: Final = (
    "setpriv",
    *(f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
)
SYNCHRONOUS: Final = "SELECT bool_or(sync_state = 'sync' AND state = 'streaming') FROM pg_stat_replication"
POSTGRES: Final = {
    "max_connections": 60,
    "wal_keep_size": "256MB",
    "wal_retrieve_retry_interval": "500ms",  # a standby is back sooner
    "fsync": "off",
}


def missing() -> str | None:
    """Why there can be no cluster here; None when there can."""
    return next(_reasons(), None)


def _reasons() -> Iterator[str]:
    if sys.platform != "linux":
        yield "a cluster's processes are guarded by means of Linux"
    if tuple(map(int, asyncpg.__version__.split(".")[:2])) < FAILS_OVER:
        yield f"asyncpg {asyncpg.__version__} does not look past a host that is starting"
    for name in ("etcd", "patroni"):
        if component(name) is None:
            yield f"there is no {name}: dev.py test fetches it where apt knows Debian's archive"
    for module in ("psutil", "psycopg2", "yaml"):
        if importlib.util.find_spec(module) is None:
            yield f"Patroni needs {module}, which is in the lock of dev.py"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        yield "root runs PostgreSQL as nobody by means of setpriv, which is not here"
    try:
        programs = find_binaries()
    except EmbeddedError as error:
        yield str(error)
        return
    for name in ("pg_basebackup", "pg_rewind"):
        if not (programs / name).exists():
            yield f"there is no {name} in {programs}"


class Node:
    """A machine, as it were: Patroni and the PostgreSQL that it looks after."""

    def __init__(self, name: str, host: str, number: int, folder: Path) -> None:
        self.name = name
        self.host = host
        self.port = 5432 + number
        self.rest = 8008 + number
        self.folder = folder
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def is_up(self) -> bool:
        return self._guard is not None

    @property
    def postmaster(self) -> int:
        """The process id of its PostgreSQL."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        """Switch it on."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        words = [sys.executable, "-m", "patroni", str(self.folder / "patroni.json")]
        (self.folder / "patroni.json").write_text(json.dumps(self._settings()))
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
            words = [*AS_NOBODY, *words]
        found = component("patroni")
        assert found is not None
        environment = {"PYTHONPATH": str(found / "usr/lib/python3/dist-packages"), "LC_ALL": "C", "TZ": "UTC"}
        self._guard = guarded(words, self.folder / "log", environment)

    def lose(self) -> None:
        """Switch it off: SIGKILL to all that it runs, at once."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.communicate()

    def stop(self) -> None:
        """Switch it off so that nothing is left of it, shared memory included."""
        if self._guard is not None:
            with suppress(OSError):
                os.kill(self.postmaster, signal.SIGQUIT)
                deadline = time.monotonic() + STOP
                while Path(f"/proc/{self.postmaster}").exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
            self.lose()

    async def ask(self, path: str, content: dict[str, Any] | None = None) -> Any:
        """Ask its Patroni something, or for something; None when it cannot be had."""
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"http://{self.host}:{self.rest}{path}", data)

        def answer() -> Any:
            with urllib.request.urlopen(request, timeout=30) as response:
                text = response.read().decode()
                return json.loads(text) if text.startswith("{") else text

        try:
            return await asyncio.to_thread(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{self.name}: {path}: {error.read().decode()}") from error
        except OSError:
            return None

    def _settings(self) -> dict[str, Any]:
        return {
            "scope": "jobs",
            "name": self.name,
            "restapi": {"listen": f"{self.host}:{self.rest}"},
            "etcd3": {"host": f"{self.host}:2379"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL,
                    "loop_wait": 1,
                    "retry_timeout": 5,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": POSTGRES},
                },
                "initdb": ["no-sync", "no-instructions", {"encoding": "UTF8"}, {"locale": "C"}],
            },
            "postgresql": {
                "listen": f"{self.host}:{self.port}",
                "data_dir": str(self.folder / "data"),
                "bin_dir": str(find_binaries()),
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "postgres"},
                    "rewind": {"username": "postgres"},
                },
                "parameters": {"unix_socket_directories": str(self.folder)},
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.0/8 trust",
                    "host replication all 127.0.0.0/8 trust",
                ],
            },
        }


class Cluster:
    """Both nodes and the etcd; use it as an asynchronous context manager."""

    def __init__(self, scratch: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="patroni-", dir=scratch))
        self.folder.chmod(0o711)
        pid = os.getpid()
        self.host = f"127.{1 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"
        self.nodes = [
            Node(name, self.host, number, self.folder / name) for number, name in enumerate(("one", "two"))
        ]
        self._etcd: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """Leads to the node that is the primary, whichever that is."""
        hosts = ",".join(f"{node.host}:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=primary"

    async def __aenter__(self) -> Cluster:
        try:
            self._etcd = self._start_etcd()
            for node in self.nodes:
                node.start()
            await self.settled()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave nothing behind."""
        for node in self.nodes:
            node.stop()
        if self._etcd is not None:
            self._etcd.communicate()
        shutil.rmtree(self.folder)

    async def members(self) -> dict[str, str]:
        """What the nodes are to each other, by name, as far as they run: leader, sync_standby, replica."""
        for node in self.nodes:
            if node.is_up and (told := await node.ask("/cluster")) is not None:
                running = ("running", "streaming")
                return {each["name"]: each["role"] for each in told["members"] if each["state"] in running}
        return {}

    async def settled(self) -> None:
        """Wait until there is a primary, and a standby that has all that was promised and may take over."""
        deadline = time.monotonic() + PATIENCE
        while not await self._is_settled():
            if time.monotonic() > deadline:
                logs = "\n".join(file.read_text()[-3000:] for file in self.folder.glob("*/log"))
                raise AssertionError(f"the cluster is {await self.members()} after {PATIENCE:g} s\n{logs}")
            await asyncio.sleep(0.1)

    async def _is_settled(self) -> bool:
        if sorted((await self.members()).values()) != ["leader", "sync_standby"]:
            return False
        # Patroni may not know yet what has just happened.
        try:
            connection = await asyncpg.connect(self.dsn, timeout=5)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InternalClientError):
            return False
        try:
            return bool(await connection.fetchval(SYNCHRONOUS))
        finally:
            await connection.close()

    async def primary(self) -> Node:
        """Who it is."""
        members = await self.members()
        [found] = [node for node in self.nodes if members.get(node.name) == "leader"]
        return found

    async def switch_over(self) -> None:
        """Swap the roles on purpose; returns when Patroni says that it is done."""
        primary = await self.primary()
        [other] = [node for node in self.nodes if node is not primary]
        await primary.ask("/switchover", {"leader": primary.name, "candidate": other.name})

    def _start_etcd(self) -> subprocess.Popen[bytes]:
        found = component("etcd")
        assert found is not None
        clients, peers = f"http://{self.host}:2379", f"http://{self.host}:2380"
        settings = {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
        }
        words = [str(found / "usr/bin/etcd"), *(f"--{name}={value}" for name, value in settings.items())]
        (self.folder / "etcd").mkdir(mode=0o700)
        return guarded(words, self.folder / "etcd" / "log", {})


def guarded(words: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a program that ends, with all that it starts, when its standard input closes."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), *words],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            cwd="/",
            env={"PATH": os.environ["PATH"], **environment},
            start_new_session=True,
        )
