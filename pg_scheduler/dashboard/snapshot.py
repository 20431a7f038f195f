"""The parts of a page at an instant, and which of them a browser shows already."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final, NamedTuple

_CHANGING: Final = (
    re.compile(r"(<time\b[^>]*?)(?: title=\"[^\"]*\")?>[^<]*(?=</time>)"),
    re.compile(r"([?;&]after=)[^\"&]*"),
)
"""What is not compared: how an instant is shown, and the cursor of a following page, which has the time."""

_ROW: Final = re.compile(
    r'<(tr|li|a|path)\b[^<>]*? data-key="([^"<>]*)"[^<>]*>(?:(?!<\1\b).)*?</\1>', re.DOTALL
)
"""A row: an element with a key that contains no other one of its name."""

_VERSIONS: Final = re.compile(r"(\d{1,15})((?:~[a-z0-9_]{1,40}-[0-9a-f]{8}){0,99})")


class _Row(NamedTuple):
    """A row of a part.

    Attributes:
        start: Its place.
        end: The place after it.
        key: Its name and key, as its tag has them.
        compared: What is compared of it.
        follows: Whether there is nothing between the row before and this one.
    """

    start: int
    end: int
    key: str
    compared: str
    follows: bool


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

    def is_shown(self, versions: str) -> bool:
        """Return whether a page with these versions shows all parts as they are here."""
        return self.versions.partition("~")[2] == versions.partition("~")[2]

    def since(self, versions: str, now: datetime) -> dict[str, str]:
        """Return the parts that differ from those of a page; none if they are older than that page."""
        match = _VERSIONS.fullmatch(versions)
        if match is None:
            return dict(self.parts)
        if _milliseconds(self.at) < int(match[1]) <= _milliseconds(now):
            return {}
        digests = dict(part.split("-") for part in match[2].split("~")[1:])
        return {name: html for name, html in self.parts.items() if digests.get(name) != _digest(html)}


def thinned(html: str, previous_html: str) -> str:
    """Return the HTML of a part in which one element stands for rows that follow each other in both versions.

    It has the name and the key of the first of these rows, and their number as ``data-same``.
    """
    previous_rows = list(_rows(previous_html))
    previous_indexes = {row.key: index for index, row in enumerate(previous_rows)}
    parts: list[str] = []
    # The rows in progress, for which one element will stand: the key of the first one, and their number.
    first_key, number = "", 0
    end, last_index = 0, -1
    for row in _rows(html):
        index = previous_indexes.get(row.key, -1)
        is_same = index >= 0 and previous_rows[index].compared == row.compared
        follows = index == last_index + 1 and row.follows and previous_rows[index].follows
        if is_same and number and follows:
            number += 1
        else:
            parts += [_stand_in(first_key, number), html[end : row.start]]
            number = int(is_same)
            first_key = row.key if is_same else ""
            if not is_same:
                parts.append(html[row.start : row.end])
        last_index, end = index, row.end
    return "".join([*parts, _stand_in(first_key, number), html[end:]])


def _rows(html: str) -> Iterator[_Row]:
    end = 0
    for match in _ROW.finditer(html):
        follows = not html[end : match.start()].strip()
        yield _Row(
            match.start(), match.end(), f'{match[1]} data-key="{match[2]}"', _compared(match[0]), follows
        )
        end = match.end()


def _stand_in(key: str, number: int) -> str:
    return f'<{key} data-same="{number}"></{key.partition(" ")[0]}>' if number else ""


def _milliseconds(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def _digest(html: str) -> str:
    return sha256(_compared(html).encode()).hexdigest()[:8]


def _compared(html: str) -> str:
    """Return what is compared of HTML."""
    for pattern in _CHANGING:
        html = pattern.sub(r"\1", html)
    return html
