"""The version of the time zone data, read from real folders."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from pg_scheduler.triggers import zones
from tests.support.zones import use_zones


def data_version() -> str | None:
    """Return the version that a process which starts now would find."""
    zones.data_version.cache_clear()
    return zones.data_version()


@pytest.fixture
def zone_folder(tmp_path: Path) -> Iterator[Path]:
    """Let ``zoneinfo`` read its data from this folder."""
    (tmp_path / "Europe").mkdir()
    use_zones(tmp_path)
    yield tmp_path
    use_zones(None)


def test_data_version_is_that_of_the_folder_that_zones_are_read_from(zone_folder: Path) -> None:
    (zone_folder / "tzdata.zi").write_text("# version 2031c\n# redo posix_only\n", encoding="utf-8")
    assert data_version() == "2031c"
    (zone_folder / "tzdata.zi").write_text("# version unknown\n", encoding="utf-8")
    assert data_version() is None
    (zone_folder / "tzdata.zi").write_bytes(b"\xff")
    assert data_version() is None
    (zone_folder / "tzdata.zi").write_bytes(b"")
    assert data_version() is None
    (zone_folder / "tzdata.zi").unlink()
    assert data_version() is None


def test_data_version_without_such_a_folder_is_that_of_the_package(zone_folder: Path) -> None:
    (zone_folder / "Europe").rmdir()
    assert data_version() == (None if find_spec("tzdata") is None else import_module("tzdata").IANA_VERSION)
