"""Files that contain what the library writes, with which tests compare it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

IS_RENEWING: Final = bool(os.environ.get("PG_SCHEDULER_RENEW"))
"""Whether ``dev.py renew`` or ``dev.py screenshots`` runs the tests."""


def golden(file: Path, text: str) -> str:
    """Return what a file contains; ``dev.py renew`` writes the text into it first."""
    if IS_RENEWING:
        file.write_text(text, encoding="utf-8")
    return file.read_text(encoding="utf-8")
