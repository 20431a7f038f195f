"""The programs of the tutorial on its pages: the lines that a chapter adds to the one before are marked.

A page has each program as a block below ``<!-- snippet: file examples/shop/chapter2.py -->``, which a test
compares with the file. So readers of the repository see the program too, and the build only marks lines.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Final

from tools.environment import ROOT

_PROGRAM: Final = re.compile(
    r"^<!-- snippet: file (?P<path>\S+/chapter(?P<chapter>\d+)\.py) -->\n```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def new_lines(before: str, program: str) -> list[int]:
    """Return the numbers of the lines of a program, from 1, that the one before does not have."""
    lines = program.splitlines()
    matcher = SequenceMatcher(None, before.splitlines(), lines, autojunk=False)
    return [
        number + 1
        for kind, _, _, start, end in matcher.get_opcodes()
        if kind in ("insert", "replace")
        for number in range(start, end)
        if lines[number].strip()
    ]


def with_new_lines(page: str) -> str:
    """Return the text of a page whose programs have their new lines marked; the first chapter has none."""

    def mark(match: re.Match[str]) -> str:
        chapter = int(match["chapter"])
        before = ROOT / match["path"].replace(f"chapter{chapter}", f"chapter{chapter - 1}")
        if not before.exists():
            return match[0]
        numbers = new_lines(before.read_text(encoding="utf-8"), match["code"])
        option = f":emphasize-lines: {','.join(map(str, numbers))}\n\n" if numbers else ""
        return f"```{{code-block}} python\n{option}{match['code']}```"

    return _PROGRAM.sub(mark, page)
