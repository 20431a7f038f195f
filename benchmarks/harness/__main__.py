"""Run a checkout of the harness without Docker: ``python -m benchmarks.harness CHECKOUT run --systems ...``.

The harness stays as it is. Its functions that call Docker are replaced in this process: PostgreSQL is the
embedded one, with the settings of the harness, an adapter in Python is started with this interpreter, and one
for Node with the program among its packages.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pg_scheduler.base.dsn import address_parts
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.embedded.binaries import find_binaries

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
OURS: Final = "pg-scheduler"
NATIVE: Final = ("absurd", "pgboss", "pgmq", "pgque", "procrastinate")
"""Systems whose adapters are a ``main.py`` or a ``main.js`` without a build."""


def server_settings(text: str, port: int) -> dict[str, str]:
    """Return the settings of a postgresql.conf, for a server at this port of the machine."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    settings = dict(_pair(line) for line in lines if line)
    return settings | {"listen_addresses": "127.0.0.1", "port": str(port)}


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name.strip(), value.strip().strip("'")


class Native:
    """PostgreSQL and adapters without Docker.

    Args:
        orchestrator: The module ``bench_harness.orchestrator``.
        adapters: The module ``bench_harness.adapters``.
    """

    def __init__(self, orchestrator: Any, adapters: Any) -> None:
        self._orchestrator = orchestrator
        self._adapters = adapters
        self._server: EmbeddedPostgres | None = None

    def install(self) -> None:
        """Replace what calls Docker, and register the adapter of this library."""
        for name, function in {
            "start_postgres": self.start,
            "stop_postgres": self.remove,
            "_compose_start_postgres": self.start_again,
            "_compose_stop_postgres": self.stop,
        }.items():
            setattr(self._orchestrator, name, function)
        entry = self._adapters.AdapterEntry
        folders = {name: self._adapters.SCRIPT_DIR / f"{name}-bench" for name in NATIVE}
        for name, folder in (folders | {OURS: HERE / f"{OURS}-bench"}).items():
            self._adapters.ADAPTERS[name] = entry(folder, lambda _: None, self._launch)

    def _launch(self, manifest: Any, overrides: dict[str, str]) -> Any:
        folder = self._adapters.ADAPTERS[manifest.system].bench_dir
        environment = self._adapters._base_env(manifest, overrides)  # noqa: SLF001
        if control := overrides.get("PRODUCER_RATE_CONTROL_FILE_HOST"):
            environment["PRODUCER_RATE_CONTROL_FILE"] = control
        if manifest.system == OURS:
            environment["PYTHONPATH"] = str(ROOT)
        script = folder / "main.py"
        command = [sys.executable, str(script)]
        if not script.exists():
            command = [str(folder / "node_modules" / ".bin" / "node"), str(folder / "main.js")]
        return self._adapters.LaunchSpec(command, environment, str(folder))

    def start(self, _image: str) -> None:
        """Start a server with the role and the settings of the harness."""
        settings = (self._adapters.SCRIPT_DIR / "postgres.conf").read_text(encoding="utf-8")
        port = self._adapters.PG_PORT
        self._server = EmbeddedPostgres(settings=server_settings(settings, port))
        self._server.start()
        socket = address_parts(self._server.dsn())["host"]
        role = f"CREATE ROLE {self._adapters.PG_USER} SUPERUSER LOGIN PASSWORD '{self._adapters.PG_PASS}'"
        address = f"postgresql://postgres@/postgres?host={quote(socket)}&port={port}"
        subprocess.run([find_binaries() / "psql", address, "--quiet", f"--command={role}"], check=True)

    def stop(self, _image: str) -> None:
        """Stop the server, and keep its data."""
        assert self._server is not None
        self._server.stop()

    def start_again(self, _image: str) -> None:
        """Start the stopped server."""
        assert self._server is not None
        self._server.start()

    def remove(self, _image: str) -> None:
        """Stop the server, and remove its data."""
        assert self._server is not None
        self._server.close()


def main() -> int:
    """Run the command of the harness."""
    if len(sys.argv) < 3 or not (Path(sys.argv[1]) / "bench_harness").is_dir():
        sys.stderr.write(f"{__doc__}\n")
        return 2
    checkout = Path(sys.argv.pop(1)).resolve()
    sys.path.insert(0, str(checkout))
    orchestrator = importlib.import_module("bench_harness.orchestrator")
    Native(orchestrator, importlib.import_module("bench_harness.adapters")).install()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    return int(orchestrator.main())


if __name__ == "__main__":
    sys.exit(main())
