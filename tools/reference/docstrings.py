"""Docstrings in Google's style, taken apart."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

ITEM_SECTIONS = ("Args", "Attributes", "Raises")

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Examples?):{1,2}$")
_ITEM = re.compile(r"^\*{0,2}(?P<name>\w+)(?: \([^)]*\))?: (?P<text>.+)$", re.DOTALL)


@dataclass
class Docstring:
    """The parts of a docstring.

    Attributes:
        text: Everything outside the sections.
        items: The entries of Args, Attributes and Raises, by section and name.
        blocks: The text of the other sections.
    """

    text: str = ""
    items: dict[str, dict[str, str]] = field(default_factory=dict)
    blocks: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """Return the first paragraph in one line."""
        return " ".join(self.text.partition("\n\n")[0].split())


def parse_docstring(raw: str | None) -> Docstring:
    """Take a docstring apart.

    Raises:
        ValueError: A section of items contains something else.
    """
    found = Docstring()
    section, collected = "", list[str]()
    for line in [
        *inspect.cleandoc(raw or "").splitlines(),
        "Returns:",
    ]:  # the last line ends the last section
        heading = _SECTION.match(line)
        ends = heading or (section and line and not line.startswith(" "))
        if ends:
            _add(found, section, "\n".join(collected))
            section, collected = heading[1] if heading else "", []
        if not heading:
            collected.append(line)
    return found


def _add(found: Docstring, section: str, text: str) -> None:
    block = textwrap.dedent(text).strip("\n")
    if section in ITEM_SECTIONS:
        found.items[section] = dict(_items(block))
    elif section:
        found.blocks[section] = block
    else:
        found.text = f"{found.text}\n\n{block}".strip("\n")


def _items(block: str) -> Iterator[tuple[str, str]]:
    for entry in re.split(r"\n(?=\S)", block):
        match = _ITEM.match(entry)
        if match is None:
            raise ValueError(f"{entry!r} in a docstring is not of the form 'name: description'")
        yield match["name"], " ".join(match["text"].split())
