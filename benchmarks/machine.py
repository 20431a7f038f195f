"""Describe the machine and the server of a run."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import asyncpg

SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "max_connections": "200",
}
"""Durable, as in production; ``max_wal_size`` keeps checkpoints out of the measurements."""

SHOWN: Final = (*SETTINGS, "wal_sync_method", "autovacuum", "autovacuum_naptime", "data_directory")


async def describe(connection: asyncpg.Connection, commit: str) -> dict[str, Any]:
    """Return the description."""
    settings = {name: str(await connection.fetchval(f"SHOW {name}")) for name in SHOWN}
    folder = settings.pop("data_directory")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "asyncpg": asyncpg.__version__,
        "uvloop": _uvloop(),
        "postgresql": str(await connection.fetchval("SHOW server_version")),
        "disk": _filesystem(folder),
        "settings": settings,
        "commit": commit,
        "load_before": os.getloadavg()[0],
    }


def _uvloop() -> str | None:
    try:
        return version("uvloop")
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _filesystem(folder: str) -> str:
    """Return the file system of the data; on tmpfs every commit would be too cheap."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return "unknown"
    return max(
        ((point, kind) for point, kind in mounts if Path(folder).is_relative_to(point)),
        key=lambda mount: len(mount[0]),
        default=("", "unknown"),
    )[1]


def processor_seconds(postmaster: int | None) -> float:
    """Return the processor time of a server, ended sessions included; 0 if it is unknown."""
    if postmaster is None:
        return 0.0
    ticks = 0
    for pid, parent, own, reaped in _processes():
        if pid == postmaster:
            ticks += own + reaped
        elif parent == postmaster:
            ticks += own
    return ticks / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, int, int, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # the process has just ended
            continue
        user, system, user_reaped, system_reaped = map(int, fields[11:15])
        yield int(folder.name), int(fields[1]), user + system, user_reaped + system_reaped
