"""The index ``llms.txt`` of the documentation, and its pages as Markdown, for assistants.

The index has each page in the order of the contents, with its title, its first sentence and its headings,
which are what a reader would search for. It is made at each build from the pages, so it has all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

SITE: Final = "https://pg-scheduler.github.io/pg-scheduler/"
MAX_LENGTH: Final = 200
"""Characters of a description."""

MIN_LENGTH: Final = 80
"""Characters that state what a page is about; a shorter sentence is followed by the next ones."""

MAX_HEADINGS: Final = 15
"""Headings of a page."""

_CONTENTS: Final = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CAPTION: Final = re.compile(r"^:caption: (.+)$", re.MULTILINE)
_TITLED: Final = re.compile(r"(?P<title>.+) <(?P<page>.+)>")
_SECTION: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_HEADING: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_NO_PROSE: Final = re.compile(r"^(#|%|<|\||```|~~~|- |\d+\. |>|!)")
"""The start of a block that is no paragraph."""
_LINK: Final = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\([^)]*\)")
"""A link, whose text may have brackets, as that of an extra has."""


_EMPHASIS: Final = re.compile(r"\*\*((?:[^*]|\*(?!\*))+)\*\*")
"""Bold text, which would be cut in half."""


class Entry(NamedTuple):
    """A page in the contents."""

    section: str
    page: str
    """Its path without a suffix, as Sphinx names it."""


def entries_of(contents: str) -> Iterator[Entry]:
    """Yield the pages of the contents, which are the ``toctree`` blocks of the first page, in their order."""
    for block in _CONTENTS.findall(contents):
        caption = _CAPTION.search(block)
        section = "Pages" if caption is None else caption[1]
        for line in block.splitlines():
            if line.strip() and not line.startswith(":"):
                titled = _TITLED.fullmatch(line)
                yield Entry(section, line if titled is None else titled["page"])


def title_of(text: str) -> str:
    """Return the title of a page."""
    heading = _HEADING.search(text)
    if heading is None:
        raise ValueError(f"the page that begins with {text[:50]!r} has no title")
    return heading[1]


def first_sentence(text: str) -> str:
    """Return the first sentence of the prose of a page, or the first ones if it is short.

    It has neither links nor emphasis. It is empty for a page without prose.
    """
    for block in re.split(r"\n\s*\n", _without_code(text)):
        if not block.strip() or _NO_PROSE.match(block.strip()):
            continue
        prose = _EMPHASIS.sub(r"\1", _LINK.sub(r"\1", " ".join(block.split())))
        first, *others = re.split(r"(?<=[.!?])\s", prose)
        sentence = first
        for other in others:
            if len(sentence) >= MIN_LENGTH or len(sentence) + len(other) >= MAX_LENGTH:
                break
            sentence = f"{sentence} {other}"
        if len(sentence) > MAX_LENGTH:
            return f"{sentence[:MAX_LENGTH].rsplit(' ', 1)[0]} ..."
        return sentence if sentence.endswith(".") else f"{sentence.rstrip(':')}."
    return ""


def headings_of(text: str) -> list[str]:
    """Return the headings of the sections of a page, the first ones of a long page."""
    headings: list[str] = _SECTION.findall(_without_code(text))
    return [*headings[:MAX_HEADINGS], "..."] if len(headings) > MAX_HEADINGS else headings


def _without_code(text: str) -> str:
    """Return a page without its code, whose lines can look like prose and headings."""
    return re.sub(r"^(```|~~~).*?^\1$", "```", text, flags=re.MULTILINE | re.DOTALL)


def index_of(pages: Mapping[str, str]) -> str:
    """Return the index of pages, which are given by their names; that of the contents is ``index``."""
    contents = pages["index"]
    lines = [f"# {title_of(contents)}", "", f"> {first_sentence(contents)}"]
    section = None
    for entry in entries_of(contents):
        if entry.section != section:
            section = entry.section
            lines += ["", f"## {section}", ""]
        text = pages[entry.page]
        headings = headings_of(text)
        sections = f"Sections: {'; '.join(headings)}." if headings else ""
        description = " ".join(filter(None, (first_sentence(text), sections)))
        lines.append(f"- [{title_of(text)}]({SITE}{entry.page}.md): {description}")
    return "\n".join(lines) + "\n"
