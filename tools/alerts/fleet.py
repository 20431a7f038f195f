"""The processes of a run: Prometheus, and for each way to run workers its database, workers and exporter."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError

from tools.alerts.application import CORRECTED, SLOTS, SMALL_POOL
from tools.environment import ROOT

WAYS: Final = {
    "web": "a Scheduler in a web process, with an endpoint of its own",
    "worker": "pg-scheduler worker --metrics-port",
    "processes": "pg-scheduler worker --processes 2 --metrics-port",
}
"""The ways to run workers; `pg-scheduler exporter` is a further process of each."""

WORKERS: Final = 2
APPLICATION: Final = "tools.alerts.application"
WEB: Final = "tools.alerts.web"
FORGOTTEN: Final = "tools.alerts.forgotten"

FOR: Final = "4s"
"""What replaces the durations after ``for:``."""

SCALED: Final = {
    "oldest_transaction_seconds) > 1800": "oldest_transaction_seconds) > 20",
    "table_bytes[6h], 86400) > 10e9": "table_bytes[2m], 86400) > 1e9",
}
"""The parts of expressions that would take half an hour, or gigabytes; the others are as shipped."""


def debian_prometheus() -> list[str]:
    """Return the command of the Prometheus that ``dev.py test`` has fetched from Debian's archive.

    It runs with the C library of its packages.
    """
    root = Path(os.environ.get("PG_SCHEDULER_DEBIAN") or Path(sys.prefix, "debian")) / "prometheus"
    if not root.is_dir():
        sys.exit(f"there is no {root}; python3 dev.py test fetches it, or pass --prometheus PROGRAM")
    libraries = next(root.rglob("libc.so.6")).parent
    folders = f"{libraries}:{root / 'usr' / libraries.relative_to(root)}"
    loader = str(next(libraries.glob("ld-linux*")))
    return [loader, "--library-path", folders, str(root / "usr/bin/prometheus")]


def shipped_rules() -> str:
    """Return the alerting rules of the package."""
    file = files("pg_scheduler") / "ops" / "alerts" / "pg_scheduler.rules.yaml"
    return file.read_text(encoding="utf-8")


def scaled_rules() -> str:
    """Return the alerting rules, with short durations after ``for:`` and the scaled parts."""
    rules = re.sub(r"(?m)^(\s+)for: \S+", rf"\1for: {FOR}", shipped_rules())
    for shipped, scaled in SCALED.items():
        assert shipped in rules, f"the rules have no {shipped!r}"
        rules = rules.replace(shipped, scaled)
    return rules


def free_ports(number: int) -> list[int]:
    """Return ports that follow one another, on which nothing listens."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        if first + number < 65_536 and all(_is_free(first + place) for place in range(number)):
            return [first + place for place in range(number)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@dataclass(slots=True)
class Processes:
    """Processes that end with the run. Their output goes into files of a folder."""

    folder: Path
    all: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, name: str, command: Sequence[str], variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **variables},
                cwd=ROOT,
            )
        self.all.append(process)
        return process

    def end(self) -> None:
        """End all that run."""
        for process in self.all:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Let a process end; kill it if it takes long."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(slots=True)
class Service:
    """The workers of one way, with their database and exporter."""

    way: str
    dsn: str
    processes: Processes
    ports: list[int]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    exporter: subprocess.Popen[bytes] | None = None
    forgotten: subprocess.Popen[bytes] | None = None

    @property
    def corrected(self) -> Path:
        """The file that makes the faulty functions correct."""
        return self.processes.folder / f"{self.way}.corrected"

    def _variables(self) -> dict[str, str]:
        return {"PG_SCHEDULER_DSN": self.dsn, CORRECTED: str(self.corrected)}

    def start_exporter(self) -> None:
        """Start the exporter."""
        command = [*PROGRAM, "exporter", "--port", str(self.ports[-1])]
        self.exporter = self.processes.start(f"{self.way}-exporter", command, self._variables())

    def start_workers(self, *, is_small: bool = False) -> None:
        """Start the workers that do not run; small ones have too few connections to listen."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        wanted = 1 if self.way == "processes" else WORKERS
        for place in range(wanted):
            if len(self.workers) == wanted:
                break
            port = str(self.ports[place])
            if not _is_free(self.ports[place]):
                continue
            if self.way == "web":
                size = SMALL_POOL if is_small else 10
                command = [sys.executable, "-m", WEB, port, str(size)]
            else:
                target = f"{APPLICATION}:small" if is_small else APPLICATION
                command = [*PROGRAM, "worker", target, "--metrics-port", port]
                command += [] if is_small else ["--slots", str(SLOTS)]
                command += ["--processes", str(WORKERS)] if self.way == "processes" else []
            self.workers.append(self.processes.start(f"{self.way}-worker", command, self._variables()))

    def start_forgotten(self) -> None:
        """Start a worker with the module that the others do not import."""
        command = [*PROGRAM, "worker", FORGOTTEN]
        self.forgotten = self.processes.start(f"{self.way}-forgotten", command, self._variables())

    def stop_forgotten(self) -> None:
        """Stop it, since its free slots count too."""
        if self.forgotten is not None:
            stop(self.forgotten)

    def stop_workers(self) -> None:
        """Stop the workers."""
        for worker in self.workers:
            stop(worker)

    def kill_worker(self) -> None:
        """Kill one worker, as the kernel does without memory; a supervisor starts another one."""
        os.kill(self.pids()[0], signal.SIGKILL)

    def pids(self) -> list[int]:
        """Return the processes that run jobs."""
        alive = [worker.pid for worker in self.workers if worker.poll() is None]
        if self.way != "processes":
            return alive
        words = [Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii") for pid in alive]
        return [int(word) for text in words for word in text.split()]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of pg-scheduler."""
        variables = {**os.environ, **self._variables()}
        command = [*PROGRAM, *words]
        return subprocess.run(
            command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
        )

    def commands_of(self, alert: str, name: str | None, subject: str | None) -> list[list[str]]:
        """Return the commands of the page of an alert, with the name and the id that the alert gives.

        Where the page wants an id from the list of its first command, the first one is taken. Commands that
        start a worker or an exporter are left to the caller, as those of other programs are.
        """
        page = self._page(alert, name, subject)
        if subject is None and re.search(r"\bID\b", page):
            lists = [words for words in _commands(page) if words[:2] == ["jobs", "list"]]
            ids = self.run(*lists[0], "-o", "ids").stdout.split() if lists else []
            page = self._page(alert, name, ids[0] if ids else "none")
        return [words for words in _commands(page) if words[0] not in {"worker", "exporter"}]

    def _page(self, alert: str, name: str | None, subject: str | None) -> str:
        options = [] if subject is None else ["--id", subject]
        ran = self.run("runbook", alert, *([] if name is None else [name]), *options)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


PROGRAM: Final = [sys.executable, "-m", "pg_scheduler"]


def _commands(page: str) -> list[list[str]]:
    lines = re.findall(r"^\$ pg-scheduler (.*)$", page, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


class Prometheus:
    """A Prometheus with the scaled rules, which scrapes all services every 5 s."""

    def __init__(self, program: Sequence[str], services: Sequence[Service], processes: Processes) -> None:
        folder = processes.folder
        (folder / "rules.yaml").write_text(scaled_rules(), encoding="utf-8")
        jobs = {
            "pg_scheduler": {service.way: service.ports[-1:] for service in services},
            "pg_scheduler_worker": {service.way: service.ports[:-1] for service in services},
        }
        config = {
            "global": {"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "3s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                {
                    "job_name": job,
                    "static_configs": [
                        {"targets": [f"127.0.0.1:{port}" for port in ports], "labels": {"way": way}}
                        for way, ports in targets.items()
                    ],
                }
                for job, targets in jobs.items()
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}/api/v1/alerts"
        options = {
            "config.file": folder / "prometheus.yml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": f"127.0.0.1:{port}",
        }
        command = [*program, *(f"--{name}={value}" for name, value in options.items())]
        processes.start("prometheus", command, {})

    def firing(self) -> list[dict[str, Any]]:
        """Return the alerts that fire, with their labels and annotations; none before it is ready."""
        try:
            with urllib.request.urlopen(self._url, timeout=20) as answer:  # noqa: S310 - the URL of this class
                alerts = json.load(answer)["data"]["alerts"]
        except (URLError, ConnectionError, TimeoutError):
            return []
        return [alert for alert in alerts if alert["state"] == "firing"]
