"""The fixtures of ``tests/docs``, for the pages whose examples run here."""

from __future__ import annotations

from tests.docs.conftest import empty_catalogues, scheduler

__all__ = ["empty_catalogues", "scheduler"]
