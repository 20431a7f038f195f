"""A PostgreSQL cluster with failover: two nodes under Patroni, and one etcd.

Each test process uses its own address in 127.0.0.0/8, so ports are fixed. PostgreSQL refuses to run as root;
for root the nodes run as the user ``nobody``, with the capability to read root's files (Python and the
programs).
"""

from __future__ import annotations

import asyncio
import base64
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
from tests.support.users import AS_NOBODY_WHO_OPENS_ALL, HAS_SETPRIV, IS_ROOT, give_to_nobody

TTL_S: Final = 20
"""A leader that does not renew its key for so long loses it; Patroni's minimum."""

MIN_ASYNCPG: Final = (0, 32)
"""The first version that tries the next host when one is starting."""

TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 5.0
GUARD: Final = Path(__file__).with_name("guard.py")
SYNCHRONOUS: Final = "SELECT bool_or(sync_state = 'sync' AND state = 'streaming') FROM pg_stat_replication"
POSTGRES: Final = {
    "max_connections": 60,
    "wal_keep_size": "256MB",
    "wal_retrieve_retry_interval": "500ms",  # a standby reconnects sooner
    "fsync": "off",
}


def find_obstacle() -> str | None:
    """Return why this machine cannot run a cluster; None if it can."""
    return next(_obstacles(), None)


def _obstacles() -> Iterator[str]:
    if sys.platform != "linux":
        yield "the guard of the cluster's processes needs Linux"
    if tuple(map(int, asyncpg.__version__.split(".")[:2])) < MIN_ASYNCPG:
        yield f"asyncpg {asyncpg.__version__} does not skip a host that is starting"
    for name in ("etcd", "patroni"):
        if component(name) is None:
            yield f"{name} is missing; dev.py test fetches it if apt can read Debian's archive"
    for module in ("psutil", "psycopg2", "yaml"):
        if importlib.util.find_spec(module) is None:
            yield f"Patroni needs {module}, which dev.py installs"
    if IS_ROOT and not HAS_SETPRIV:
        yield "root needs setpriv to run PostgreSQL as the user nobody, but it is not installed"
    try:
        programs = find_binaries()
    except EmbeddedError as error:
        yield str(error)
        return
    for name in ("pg_basebackup", "pg_rewind"):
        if not (programs / name).exists():
            yield f"{name} is missing in {programs}"


class Node:
    """A node, like a machine of its own: Patroni and its PostgreSQL."""

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
        """The process id of its postmaster."""
        return int((self.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").split()[0])

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        command = [sys.executable, "-m", "patroni", str(self.folder / "patroni.json")]
        (self.folder / "patroni.json").write_text(json.dumps(self._settings()), encoding="utf-8")
        if IS_ROOT:
            give_to_nobody(self.folder)
            command = [*AS_NOBODY_WHO_OPENS_ALL, *command]
        package = component("patroni")
        assert package is not None
        environment = {
            "PYTHONPATH": str(package / "usr/lib/python3/dist-packages"),
            "LC_ALL": "C",
            "TZ": "UTC",
        }
        self._guard = start_guarded(command, self.folder / "log", environment)

    def kill(self) -> None:
        """Kill all of its processes at once, as the loss of the machine would."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.communicate()

    def stop(self) -> None:
        """Stop PostgreSQL, so that it removes its shared memory, then kill the rest."""
        if self._guard is not None:
            with suppress(OSError):
                os.kill(self.postmaster, signal.SIGQUIT)
                deadline = time.monotonic() + STOP_TIMEOUT_S
                while Path(f"/proc/{self.postmaster}").exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
            self.kill()

    async def request(self, path: str, content: dict[str, Any] | None = None) -> Any:
        """Send a request to the REST API of Patroni; return the answer, None if it is unavailable."""
        data = None if content is None else json.dumps(content).encode()
        http_request = urllib.request.Request(f"http://{self.host}:{self.rest}{path}", data)

        def answer() -> Any:
            with urllib.request.urlopen(http_request, timeout=30) as response:
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
                    "ttl": TTL_S,
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
    """Two nodes and etcd; use it as an asynchronous context manager."""

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
        """The DSN that leads to the current primary."""
        hosts = ",".join(f"{node.host}:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=primary"

    async def __aenter__(self) -> Cluster:
        try:
            self._etcd = self._start_etcd()
            for node in self.nodes:
                node.start()
            await self.wait_until_settled()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all processes and remove their files."""
        for node in self.nodes:
            node.stop()
        if self._etcd is not None:
            self._etcd.communicate()
        shutil.rmtree(self.folder)

    async def members(self) -> dict[str, str]:
        """Return the roles of the running nodes by name: leader, sync_standby or replica."""
        for node in self.nodes:
            if node.is_up and (status := await node.request("/cluster")) is not None:
                running = ("running", "streaming")
                return {each["name"]: each["role"] for each in status["members"] if each["state"] in running}
        return {}

    async def wait_until_settled(self) -> None:
        """Wait until there is a primary with a synchronous standby."""
        deadline = time.monotonic() + TIMEOUT_S
        while not await self._is_settled():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"the cluster is {await self.members()} after {TIMEOUT_S:g} s\n{self.logs()}"
                )
            await asyncio.sleep(0.1)

    async def _is_settled(self) -> bool:
        if sorted((await self.members()).values()) != ["leader", "sync_standby"]:
            return False
        # The state that Patroni reports may be older than a failover.
        try:
            connection = await asyncpg.connect(self.dsn, timeout=5)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InternalClientError):
            return False
        try:
            return bool(await connection.fetchval(SYNCHRONOUS))
        finally:
            await connection.close()

    async def primary(self) -> Node:
        """Return the node that is the primary."""
        members = await self.members()
        [found] = [node for node in self.nodes if members.get(node.name) == "leader"]
        return found

    async def lose_primary(self) -> Node:
        """Kill the node that is the primary, and return it; the other one is to be promoted.

        Patroni promotes only a standby that the key ``sync`` of etcd names, and its leader takes the name out
        for some seconds whenever the standby has not connected again. Such a primary is started again.
        """
        while True:
            primary = await self.primary()
            [other] = [node for node in self.nodes if node is not primary]
            primary.kill()
            if await asyncio.to_thread(self._synchronous_standby) == other.name:
                return primary
            primary.start()
            await self.wait_until_settled()

    def logs(self) -> str:
        """Return the end of what etcd and the nodes have written."""
        return "\n".join(file.read_text(encoding="utf-8")[-3000:] for file in self.folder.glob("*/log"))

    async def switch_over(self) -> None:
        """Swap the roles of the nodes, and wait until Patroni reports the end."""
        primary = await self.primary()
        [other] = [node for node in self.nodes if node is not primary]
        await primary.request("/switchover", {"leader": primary.name, "candidate": other.name})

    def _synchronous_standby(self) -> str | None:
        """Return the standby that has each commit, as etcd knows it."""
        key = base64.b64encode(b"/service/jobs/sync").decode()
        question = json.dumps({"key": key}).encode()
        with urllib.request.urlopen(f"http://{self.host}:2379/v3/kv/range", question, timeout=30) as response:
            [row] = json.load(response)["kvs"]
        name: str | None = json.loads(base64.b64decode(row["value"]))["sync_standby"]
        return name

    def _start_etcd(self) -> subprocess.Popen[bytes]:
        package = component("etcd")
        assert package is not None
        clients, peers = f"http://{self.host}:2379", f"http://{self.host}:2380"
        settings = {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
        }
        command = [str(package / "usr/bin/etcd"), *(f"--{name}={value}" for name, value in settings.items())]
        (self.folder / "etcd").mkdir(mode=0o700)
        return start_guarded(command, self.folder / "etcd" / "log", {})


def start_guarded(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command under the guard, which kills it when its standard input closes."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            cwd="/",
            env={"PATH": os.environ["PATH"], **environment},
            start_new_session=True,
        )
