"""Run a PgBouncer in transaction mode."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.debian import component
from tests.support.users import IS_ROOT, give_to_nobody

SERVER_CONNECTIONS = 3
"""Connections to PostgreSQL, shared by all clients."""

SETTINGS = """\
[databases]
* = {target}

[pgbouncer]
unix_socket_dir = {folder}
listen_port = 6432
auth_type = any
pool_mode = transaction
default_pool_size = {servers}
max_client_conn = 100
log_connections = 0
log_disconnections = 0
log_stats = 0
{more}
"""


def find_program(suite: str) -> list[str] | None:
    """Return the command of the PgBouncer of a Debian release, with its own libraries; None if missing."""
    root = component(f"pgbouncer-{suite}")
    if root is None:
        return None
    libraries = max(root.rglob("libc.so.6")).parent
    folders = [libraries, *(root / base / libraries.name for base in ("usr/lib", "lib"))]
    loader = next(libraries.glob("ld-linux*"))
    return [str(loader), "--library-path", ":".join(map(str, folders)), str(root / "usr/sbin/pgbouncer")]


@contextmanager
def bouncer(program: list[str], dsn: str, settings: str = "") -> Iterator[str]:
    """Run PgBouncer in front of a database and yield the DSN of the database through it."""
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as folder:
        give_to_nobody(folder)  # it refuses to run as root
        file = Path(folder, "pgbouncer.ini")
        file.write_text(
            SETTINGS.format(target=_target(dsn), folder=folder, servers=SERVER_CONNECTIONS, more=settings),
            encoding="utf-8",
        )
        command = [*program, *(["-u", "nobody"] if IS_ROOT else []), str(file)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            output = ""
            for line in process.stderr:
                output += line
                if "process up" in line:
                    break
            else:
                raise AssertionError(f"PgBouncer did not start: {output}")
            try:
                name = urlsplit(dsn).path
                yield f"postgresql://nobody@{name}?host={quote(folder)}&port=6432"
            finally:
                process.terminate()
                process.communicate(timeout=20)


def _target(dsn: str) -> str:
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    values = {
        "host": parts.hostname or query["host"][0],
        "port": parts.port or query["port"][0],
        "user": unquote(parts.username or "postgres"),
        "password": unquote(parts.password or ""),
    }
    quoted = {name: str(value).replace("'", "''") for name, value in values.items() if value}
    return " ".join(f"{name}='{value}'" for name, value in quoted.items())
