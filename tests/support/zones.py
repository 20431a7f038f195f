"""Folders of time zone data, as two releases of the IANA database would be on two machines."""

from __future__ import annotations

import struct
import zoneinfo
from pathlib import Path

from pg_scheduler.schedules.row import read_trigger
from pg_scheduler.triggers.zones import data_version

BERLIN = "Europe/Berlin"


def write_zones(folder: Path, version: str | None, hours: int) -> Path:
    """Write the data of a version, by which Berlin is these hours ahead of UTC; return the folder."""
    (folder / "Europe").mkdir(parents=True)
    (folder / BERLIN).write_bytes(_tzif(hours))
    if version is not None:
        (folder / "tzdata.zi").write_text(f"# version {version}\n", encoding="utf-8")
    return folder


def use_zones(folder: Path | None) -> None:
    """Make this process one that was started with these data; None for those of the machine."""
    zoneinfo.reset_tzpath(to=None if folder is None else [str(folder)])
    zoneinfo.ZoneInfo.clear_cache()
    read_trigger.cache_clear()
    data_version.cache_clear()


def _tzif(hours: int) -> bytes:
    """Return a compiled zone without changes, in version 2 of the format (RFC 8536)."""
    name = f"{hours:+03d}"
    block = struct.pack(">4sc15x6l", b"TZif", b"2", 0, 0, 0, 0, 1, len(name) + 1)
    block += struct.pack(">lbb", 3600 * hours, 0, 0) + name.encode() + b"\0"
    return block + block + f"\n<{name}>{-hours}\n".encode()
