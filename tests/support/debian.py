"""What ``dev.py test`` has fetched from Debian's archive."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = Path(os.environ.get("PG_SCHEDULER_DEBIAN") or Path(sys.prefix, "debian"))
"""Where it puts it: a folder of unpacked packages for each component."""


def component(name: str) -> Path | None:
    """The root of the unpacked packages, if they could be had."""
    found = FOLDER / name
    return found if found.is_dir() else None
