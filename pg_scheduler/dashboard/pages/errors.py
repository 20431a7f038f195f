"""The page of errors: the newest unsuccessful jobs, grouped by name and text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pg_scheduler.dashboard.charts import Mark
from pg_scheduler.dashboard.context import PageRequest, RejectedError
from pg_scheduler.dashboard.pages.history import read_releases
from pg_scheduler.inspect import ErrorGroup
from pg_scheduler.inspect.texts import quoted, term

MAX_GROUPS: Final = 1000
SHOWN_GROUPS: Final = 100

SPANS: Final[Mapping[str, timedelta | None]] = {
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
    "all": None,
}
"""The age up to which errors are read, by the parameter ``since``."""


@dataclass(frozen=True, slots=True)
class ErrorsPage:
    """Groups of errors, that of the newest error first."""

    since: str
    items: Sequence[ErrorGroup]
    summary: str
    is_complete: bool
    releases: Sequence[Mark] = ()
    """When releases first started, the newest first."""

    def retrying(self, group: ErrorGroup) -> str:
        """Return the search for jobs that wait for a retry after the error of a group."""
        error = "*".join(quoted(part) for part in group.text.split("#") if part)
        return f"status:pending {term('name', group.job_name)} error:~{error}"

    @property
    def spans(self) -> Sequence[str]:
        """The values of ``since`` to choose from."""
        return list(SPANS)

    def began_in(self, group: ErrorGroup) -> str | None:
        """Return the release that had started last when the first error of a group was found."""
        return next((each.label for each in self.releases if each.at <= group.first_at), None)


async def build(request: PageRequest) -> ErrorsPage:
    """Group the newest errors."""
    since = request.parameters.get("since") or "1d"
    if since not in SPANS:
        raise RejectedError(f"since must be one of {', '.join(SPANS)}, not {since[:50]!r}")
    span = SPANS[since]
    found = await request.inspector.error_groups(
        since=None if span is None else request.now - span, limit=MAX_GROUPS
    )
    releases = await read_releases(request.inspector, None)
    items = [group for group in found.items if request.access.sees_name(group.job_name)]
    summary = found.summary
    if request.access.visible_names is not None:
        summary = f"{len(items):,} groups that you may see" + (
            "" if found.is_complete else "; the search is not complete"
        )
        if found.missing_index is not None:
            summary += f", by id; the index {found.missing_index} is missing"
    if len(items) > SHOWN_GROUPS:
        summary = f"{summary}; the newest {SHOWN_GROUPS} are shown"
    return ErrorsPage(since, items[:SHOWN_GROUPS], summary, found.is_complete, releases)
