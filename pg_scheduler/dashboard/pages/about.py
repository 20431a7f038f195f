"""The page about the dashboard itself: versions, rights, keys."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final, get_args

from pg_scheduler.dashboard.access import Right
from pg_scheduler.dashboard.context import PageRequest, View
from pg_scheduler.migrate import shipped_migrations
from pg_scheduler.version import __version__

RIGHTS_BY_OBJECT: Final[Mapping[str, Mapping[Right, str]]] = {
    "jobs": {
        "add": "add",
        "retry": "retry",
        "cancel": "cancel",
        "move": "move",
        "signal": "signal",
        "delete": "delete",
        "look": "look at the stack and log",
    },
    "tasks": {"task_pause": "pause"},
    "schedules": {
        "schedule_add": "add",
        "schedule_update": "edit",
        "schedule_remove": "remove",
        "schedule_pause": "pause",
        "schedule_trigger": "run now",
        "backfill": "backfill",
    },
    "workers": {"drain": "drain"},
    "findings and errors": {"mute": "mute"},
}
"""What each right permits, in words, by the objects that it is about."""


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
        _rights={
            name: [words for right, words in rights.items() if request.may(right)]
            for name, rights in RIGHTS_BY_OBJECT.items()
        },
    )
