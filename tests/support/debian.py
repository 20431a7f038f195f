"""What ``dev.py test`` has fetched from Debian's archive."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("PG_SCHEDULER_DEBIAN") or Path(sys.prefix, "debian"))
"""Where it puts it: a folder of unpacked packages for each component."""


def component(name: str) -> Path | None:
    """The root of the unpacked packages, if they could be had."""
    found = FOLDER / name
    return found if found.is_dir() else None


def required(name: str) -> Path:
    """The same; the test is skipped if they could not be had."""
    found = component(name)
    if found is None:
        pytest.skip(f"Debian's package {name} could not be downloaded")
    return found


def program(root: Path, path: str) -> list[str]:
    """Return the command of a program of a component, with its own C library."""
    libraries = next(root.rglob("libc.so.6")).parent
    folders = f"{libraries}:{root / 'usr' / libraries.relative_to(root)}"
    return [str(next(libraries.glob("ld-linux*"))), "--library-path", folders, str(root / path)]
