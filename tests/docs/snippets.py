"""The code blocks of README and docs, and what a test does with each.

A page's ``python`` blocks go on from one another, as at a prompt that knows ``await``, with ``pool``, ``dsn``
and a started ``scheduler`` at hand. Nothing is ever left out: what cannot go on from the block before says so
in a comment right above the fence, which readers of the source see and readers of the page do not.

``<!-- snippet: raises ValueError -->``
    the block must raise that.
``<!-- snippet: file worker.py -->``
    the block is a whole file; the test named in ``test_files.py`` runs it.

``sql`` blocks are run too, with the schema's tables in the search path. ``<!-- snippet: file worker.sql -->``
works for them likewise.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

__all__ = ["PAGES", "ROOT", "RUN", "Snippet", "page_id", "run_python", "snippets_of"]

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for page in ROOT.glob("docs/**/*.md") if "_build" not in page.relative_to(ROOT).parts),
    ]
)

RUN = {"python", "sql"}
KINDS = RUN | {"console", "dockerfile", "text", "yaml"}
"""What a fence may say."""

_MARKER = re.compile(r"<!-- snippet: (?P<verb>raises|file) (?P<word>[\w.]+) -->")
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<kind>.*)$")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A fenced block.

    Attributes:
        line: Where its code begins, from 1.
        raises: The exception it must raise.
        file: The name of the file it is.
    """

    page: Path
    line: int
    kind: str
    code: str
    raises: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        return f"{page_id(self.page)}:{self.line}"


def page_id(page: Path) -> str:
    """The page's path within the checkout."""
    return page.relative_to(ROOT).as_posix()


def snippets_of(page: Path) -> list[Snippet]:
    """Every fenced block of a page but Sphinx's own directives; what is not understood is refused."""
    found = []
    marker: re.Match[str] | None = None
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        place = f"{page_id(page)}:{number}"
        opening = _FENCE.match(line)
        if opening is None:
            if marker is not None:
                raise ValueError(f"{place}: a marker stands right above its block")
            marker = _marker_in(line, place)
            continue
        code = _code_until(opening["fence"], lines, place)
        kind = opening["kind"].strip()
        if not kind.startswith("{"):
            found.append(_snippet(page, number + 1, kind, code, marker))
        marker = None
    return found


def _marker_in(line: str, place: str) -> re.Match[str] | None:
    if re.match(r"\s+(`{3}|~{3})", line):
        raise ValueError(f"{place}: blocks are not indented, or no test would find them")
    marker = _MARKER.fullmatch(line)
    if marker is None and line.lstrip().startswith("<!--") and "snippet" in line:
        raise ValueError(f"{place}: no marker is written like {line!r}")
    return marker


def _code_until(end: str, lines: Iterator[tuple[int, str]], place: str) -> str:
    inside: list[str] = []
    for _, line in lines:
        if line.rstrip() == end:
            return "".join(inside)
        inside.append(f"{line}\n")
    raise ValueError(f"{place}: the block never ends")


def _snippet(page: Path, line: int, kind: str, code: str, marker: re.Match[str] | None) -> Snippet:
    if kind not in KINDS:
        raise ValueError(f"{page_id(page)}:{line}: a block is one of {sorted(KINDS)}, not {kind!r}")
    if marker is None:
        return Snippet(page, line, kind, code)
    if kind not in RUN:
        raise ValueError(f"{page_id(page)}:{line}: {kind} blocks are not run, so they have no markers")
    given = {marker["verb"]: marker["word"]}
    return Snippet(page, line, kind, code, raises=given.get("raises"), file=given.get("file"))


async def run_python(snippet: Snippet, module: ModuleType) -> None:
    """Run a block in a module; tracebacks show the page and the line in it."""
    code = compile(
        "\n" * (snippet.line - 1) + snippet.code,
        str(snippet.page),
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )
    result = eval(code, module.__dict__)
    if inspect.iscoroutine(result):
        await result
