"""Whether models tell long stories, as in the nightly workflow."""

from __future__ import annotations

import os
from typing import Final

import pytest

LONG: Final = os.environ.get("PG_SCHEDULER_PROTOCOL") == "long"
"""Whether models draw new stories, more and longer ones, operations play in all orders, and all cases run."""

NIGHTLY: Final = pytest.mark.skipif(not LONG, reason="takes long, so it runs in the nightly workflow")
"""Marks a test that runs in the nightly workflow only, which sets `LONG`."""
