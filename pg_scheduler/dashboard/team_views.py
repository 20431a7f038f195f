"""The views that ``dashboard(views=)`` gives everybody: addresses of its lists, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs

from pg_scheduler.dashboard.access import Access
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.pages import PAGES, may_open
from pg_scheduler.dashboard.search_bar import terms_of
from pg_scheduler.inspect import parse_search

MAX_VIEWS: Final = 50
EXAMPLE: Final = '{"Failed": "/jobs?q=status:failed"}'


def check_views(views: Mapping[str, str]) -> Mapping[str, str]:
    """Return a copy of the argument ``views=``, after a check.

    Raises:
        TypeError: They are no mapping.
        ValueError: There are too many, a name is empty, an address is not that of a list, or its search is
            invalid.
    """
    if not isinstance(views, Mapping):
        raise TypeError(f"views must be addresses by name, not {type(views).__name__}; write {EXAMPLE}")
    if len(views) > MAX_VIEWS:
        raise ValueError(f"views must have at most {MAX_VIEWS} addresses, not {len(views)}")
    for name, address in dict[Any, Any](views).items():
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"each name of views must be a str that is not empty, not {name!r}")
        path, query = _parts(address) if isinstance(address, str) else ("", {})
        if path not in PAGES or not PAGES[path].label:
            raise ValueError(
                f"views[{name!r}] must be the address of a list of this dashboard, not {address!r}; "
                f"write its path and search, as in {EXAMPLE}"
            )
        if path == "/jobs":
            try:
                parse_search(query.get("q", ""), now=datetime.now(UTC), tz=UTC)
            except ValueError as error:
                raise ValueError(f"the search of views[{name!r}] is invalid: {error}") from error
    return dict(views)


def team_views(request: PageRequest) -> dict[str, str]:
    """Return the addresses of the views whose pages the request may see, and that name no hidden jobs."""
    return {
        name: request.base + address
        for name, address in request.settings.views.items()
        if _is_visible(address, request)
    }


def _is_visible(address: str, request: PageRequest) -> bool:
    """Return whether the request may open a view, and its search names no hidden jobs.

    Each term about names must have a name that the request sees.
    """
    path, query = _parts(address)
    if not may_open(path, request.access):
        return False
    q = query.get("q", "") if path == "/jobs" else ""
    try:
        request.check_search(q)
    except ValueError:
        return False
    # Several names in one term are separated by commas. Some lists have a parameter with the name of a task.
    name_terms = [term.value for term in terms_of(q) if term.field == "name" and not term.is_negated]
    if "task" in query:
        name_terms.append(query["task"])
    return all(
        any(_is_within(pattern, request.access) for pattern in patterns.split(",")) for patterns in name_terms
    )


def _is_within(pattern: str, access: Access) -> bool:
    """Return whether a pattern of names is within a visible pattern, or a visible pattern is within it.

    For example, ``mail.send`` is within ``mail.*``. In the second case, the search finds the visible names
    only.
    """
    # In a pattern, "*" stands for any text.
    expression = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    has_visible_pattern_within = any(map(expression.fullmatch, access.visible_names or ()))
    return access.sees_name(pattern) or has_visible_pattern_within


def _parts(address: str) -> tuple[str, dict[str, str]]:
    """Return the path of an address and its parameters."""
    path, _, query = address.partition("?")
    return path, {name: " ".join(texts) for name, texts in parse_qs(query).items()}
