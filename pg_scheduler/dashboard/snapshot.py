"""The parts of a page at an instant, and which of them a browser shows already."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

_CHANGING: Final = (
    re.compile(r"(<time\b[^>]*?)(?: title=\"[^\"]*\")?>[^<]*(?=</time>)"),
    re.compile(r"([?;&]after=)[^\"&]*"),
)
"""What is not compared: how an instant is shown, and the cursor of a following page, which has the time."""

_VERSIONS: Final = re.compile(r"(\d{1,15})((?:~[a-z0-9_]{1,40}-[0-9a-f]{8}){0,99})")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The parts of a page.

    Attributes:
        parts: Their HTML by their names.
        read: The HTML that states when they were read.
        at: When they were read.
    """

    parts: Mapping[str, str]
    read: str
    at: datetime

    @property
    def versions(self) -> str:
        """The instant, and a digest of each part, as a text that a browser returns."""
        digests = (f"~{name}-{_digest(html)}" for name, html in self.parts.items())
        return f"{_milliseconds(self.at)}{''.join(digests)}"

    def since(self, versions: str, now: datetime) -> dict[str, str]:
        """Return the parts that differ from those of a page; none if they are older than that page."""
        found = _VERSIONS.fullmatch(versions)
        if found is None:
            return dict(self.parts)
        if _milliseconds(self.at) < int(found[1]) <= _milliseconds(now):
            return {}
        known = dict(each.split("-") for each in found[2].split("~")[1:])
        return {name: html for name, html in self.parts.items() if known.get(name) != _digest(html)}


def _milliseconds(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def _digest(html: str) -> str:
    for pattern in _CHANGING:
        html = pattern.sub(r"\1", html)
    return sha256(html.encode()).hexdigest()[:8]
