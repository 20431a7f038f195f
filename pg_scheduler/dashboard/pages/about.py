"""The page about the dashboard itself: versions, rights, keys."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.rights import Right
from pg_scheduler.migrate import shipped_migrations
from pg_scheduler.version import __version__


@dataclass(frozen=True, slots=True)
class AboutPage:
    """Versions, and what the request may read."""

    release: str
    schema_version: int
    """The newest migration of this release."""
    python: str
    actor: str
    role: str
    rights: Sequence[str]
    """What the request may change."""
    names: Sequence[str] | None
    """The patterns of visible names; None for all."""
    sees_arguments: bool
    refresh_s: float


async def build(request: PageRequest) -> AboutPage:
    """Return the versions and rights."""
    return AboutPage(
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
