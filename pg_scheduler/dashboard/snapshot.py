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
        time_of_page, digests_of_page = int(match[1]), match[2]
        # The page is newer than this snapshot, which another process may have made. A time in the future does
        # not count, because no page can have it.
        if _milliseconds(self.at) < time_of_page <= _milliseconds(now):
            return {}
        # The text is "~name-digest~name-digest".
        digests = dict(part.split("-") for part in digests_of_page.split("~")[1:])
        return {name: html for name, html in self.parts.items() if digests.get(name) != _digest(html)}


def thinned(html: str, previous_html: str) -> str:
    """Return the HTML of a part in which one element replaces each run of rows that the browser has already.

    So an update of a long list sends only the rows that have changed. The rows of a run are the same in both
    versions, and follow one another in both. The element has the name and the key of the first row of the
    run, and the number of its rows as ``data-same``.
    """
    previous_rows = list(_rows(previous_html))
    previous_indexes = {row.key: index for index, row in enumerate(previous_rows)}
    parts: list[str] = []
    # The run in progress: the key of its first row, and the number of its rows.
    first_key, number = "", 0
    # The end of the row before in the HTML, and the index that this row had in the previous version.
    end, last_index = 0, -1
    for row in _rows(html):
        index = previous_indexes.get(row.key, -1)
        is_same = index >= 0 and previous_rows[index].compared == row.compared
        # In both versions, the row comes right after the one before it.
        follows = index == last_index + 1 and row.is_adjacent and previous_rows[index].is_adjacent
        if is_same and number and follows:
            number += 1
        else:
            # The run in progress ends before this row. Then follows the HTML between the two rows.
            parts += [_stand_in(first_key, number), html[end : row.start]]
            if is_same:
                # This row begins a new run.
                first_key, number = row.key, 1
            else:
                first_key, number = "", 0
                parts.append(html[row.start : row.end])
        last_index, end = index, row.end
    return "".join([*parts, _stand_in(first_key, number), html[end:]])


def _rows(html: str) -> Iterator[_Row]:
    """Yield the rows in the HTML of a part: the elements with a ``data-key``."""
    end = 0
    for match in _ROW.finditer(html):
        element, key = match[1], match[2]
        yield _Row(
            start=match.start(),
            end=match.end(),
            key=f'{element} data-key="{key}"',
            compared=_compared(match[0]),
            is_adjacent=not html[end : match.start()].strip(),
        )
        end = match.end()


def _stand_in(key: str, number: int) -> str:
    """Return the element that replaces a run of rows; an empty text for a run without rows.

    ``key`` is the begin of a tag, such as ``tr data-key="5"``.
    """
    if not number:
        return ""
    element, _, _ = key.partition(" ")
    return f'<{key} data-same="{number}"></{element}>'


def _milliseconds(at: datetime) -> int:
    """Return an instant as milliseconds since 1970."""
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def _digest(html: str) -> str:
    """Return the digest of a part, by which its versions are compared."""
    return sha256(_compared(html).encode()).hexdigest()[:8]


def _compared(html: str) -> str:
    """Return HTML without what time alone changes, such as the text of an instant, which is not compared."""
    for pattern in _CHANGING:
        html = pattern.sub(r"\1", html)
    return html
