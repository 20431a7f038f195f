"""The fixture of the tests that read the tables."""

from __future__ import annotations

from tests.support.world import world

__all__ = ["world"]
