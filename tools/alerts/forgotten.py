"""A module of the application that a deployment forgot to import."""

from __future__ import annotations

from pg_scheduler import job


@job(name="forgotten")
async def forgotten() -> None:
    """End at once."""
