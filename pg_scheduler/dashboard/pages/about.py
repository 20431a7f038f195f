"""The page about the dashboard itself: versions, rights, keys."""

from __future__ import annotations

import platform
from typing import get_args

from pg_scheduler.dashboard.access import Right
from pg_scheduler.dashboard.context import PageRequest, View
from pg_scheduler.migrate import shipped_migrations
from pg_scheduler.version import __version__


async def build(request: PageRequest) -> View:
    """Return the versions, and what the request may read and change."""
    return View(
        release=__version__,
        schema_version=shipped_migrations()[-1].version,
        python=platform.python_version(),
        actor=request.access.actor,
        role=request.access.role,
        rights=[right for right in get_args(Right) if request.may(right)],
        names=request.access.visible_names,
        sees_arguments=request.access.sees_arguments,
        refresh_s=request.settings.refresh_s,
    )
