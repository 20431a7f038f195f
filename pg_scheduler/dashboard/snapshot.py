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
"""Parts of the HTML that are not compared, because time changes them: how an instant is shown, and the cursor
of the following page, which contains the time."""

_ROW: Final = re.compile(
    r'<(tr|li|a|path)\b[^<>]*? data-key="([^"<>]*)"[^<>]*>(?:(?!<\1\b).)*?</\1>', re.DOTALL
)
"""A row: an element with ``data-key`` that contains no other element of the same name."""

_VERSIONS: Final = re.compile(r"(\d{1,15})((?:~[a-z0-9_]{1,40}-[0-9a-f]{8}){0,99})")


class _Row(NamedTuple):
    """A row of a part.

    Attributes:
        start: Its place in the HTML of the part.
        end: The place after it.
        key: The name of its element and its ``data-key``, as its tag contains them.
        compared: Its HTML, without what is not compared.
        is_adjacent: Whether there is nothing between the previous row and this one.
    """

    start: int
    end: int
    key: str
    compared: str
    is_adjacent: bool


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
        """Return the parts that differ from those of a page with these versions.

        There are none if the page is newer than this snapshot. A text that is no versions stands for a page
        that shows no part yet.
        """
        match = _VERSIONS.fullmatch(versions)
        if match is None:
            return dict(self.parts)
        # The time of a page cannot be in the future, so such a time does not count.
        if _milliseconds(self.at) < int(match[1]) <= _milliseconds(now):
            return {}
        digests = dict(part.split("-") for part in match[2].split("~")[1:])
        return {name: html for name, html in self.parts.items() if digests.get(name) != _digest(html)}


def thinned(html: str, previous_html: str) -> str:
    """Return the HTML of a part in which one element replaces each run of rows that the browser has already.

    The rows of a run are the same in both versions, and follow one another in both. The element has the name
    and the key of the first row of the run, and the number of its rows as ``data-same``.
    """
    previous_rows = list(_rows(previous_html))
    previous_indexes = {row.key: index for index, row in enumerate(previous_rows)}
    parts: list[str] = []
    # The run in progress: the key of its first row, and the number of its rows.
    first_key, number = "", 0
    end, last_index = 0, -1
    for row in _rows(html):
        index = previous_indexes.get(row.key, -1)
        is_same = index >= 0 and previous_rows[index].compared == row.compared
        # In both versions, the row comes right after the one before it.
        follows = index == last_index + 1 and row.is_adjacent and previous_rows[index].is_adjacent
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
    """Yield the rows in the HTML of a part."""
    end = 0
    for match in _ROW.finditer(html):
        is_adjacent = not html[end : match.start()].strip()
        yield _Row(
            match.start(), match.end(), f'{match[1]} data-key="{match[2]}"', _compared(match[0]), is_adjacent
        )
        end = match.end()


def _stand_in(key: str, number: int) -> str:
    """Return the element that replaces a run of rows; an empty text for a run without rows."""
    return f'<{key} data-same="{number}"></{key.partition(" ")[0]}>' if number else ""


def _milliseconds(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def _digest(html: str) -> str:
    return sha256(_compared(html).encode()).hexdigest()[:8]


def _compared(html: str) -> str:
    """Return HTML without what is not compared."""
    for pattern in _CHANGING:
        html = pattern.sub(r"\1", html)
    return html
