"""The code blocks of README and documentation, and how the tests treat each of them.

The ``python`` blocks of a page build on one another, as at a prompt that supports ``await``, with ``pool``,
``dsn`` and a started ``scheduler`` defined. No block is left out. A comment directly above the fence declares
any other treatment; it is visible in the source and not on the built page.

``<!-- snippet: raises ValueError -->``
    The block must raise the exception.
``<!-- snippet: file worker.py -->``
    The block is a complete file; the test named in ``test_files.py`` runs it.
``<!-- snippet: file examples/shop/chapter1.py -->``
    The block is that file of the checkout; ``test_tutorial.py`` compares the two, and runs it.

``sql`` blocks are run too, with the schema's tables in the search path. ``<!-- snippet: file worker.sql -->``
works for them likewise. ``test_docstrings.py`` and ``tests/repository/test_reference.py`` run
the examples in docstrings.
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
        ROOT / "pg_scheduler/ops/skill/SKILL.md",
    ]
)

RUN = {"python", "sql"}
KINDS = RUN | {"console", "dockerfile", "text", "yaml"}
"""The languages that a fence may declare."""

_MARKER = re.compile(r"<!-- snippet: (?P<verb>raises|file) (?P<word>[\w./]+) -->")
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<kind>.*)$")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A fenced block.

    Attributes:
        line: The first line of its code, from 1.
        raises: The exception that it must raise.
        file: The name of the file that it contains; with a slash, the path of one in the checkout.
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
    """Return the path of a page within the checkout."""
    return page.relative_to(ROOT).as_posix()


def snippets_of(page: Path) -> list[Snippet]:
    """Return the fenced blocks of a page but Sphinx's directives; reject unknown markers and languages."""
    found = []
    marker: re.Match[str] | None = None
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        place = f"{page_id(page)}:{number}"
        opening = _FENCE.match(line)
        if opening is None:
            if marker is not None:
                raise ValueError(f"{place}: a marker must be directly above its block")
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
        raise ValueError(f"{place}: a block must not be indented")
    marker = _MARKER.fullmatch(line)
    if marker is None and line.lstrip().startswith("<!--") and "snippet" in line:
        raise ValueError(f"{place}: unknown marker {line!r}")
    return marker


def _code_until(end: str, lines: Iterator[tuple[int, str]], place: str) -> str:
    inside: list[str] = []
    for _, line in lines:
        if line.rstrip() == end:
            return "".join(inside)
        inside.append(f"{line}\n")
    raise ValueError(f"{place}: the block has no end")


def _snippet(page: Path, line: int, kind: str, code: str, marker: re.Match[str] | None) -> Snippet:
    if kind not in KINDS:
        raise ValueError(
            f"{page_id(page)}:{line}: the language of a block must be one of {sorted(KINDS)}, not {kind!r}"
        )
    if marker is None:
        return Snippet(page, line, kind, code)
    if kind not in RUN:
        raise ValueError(f"{page_id(page)}:{line}: {kind} blocks are not run and must not have markers")
    options = {marker["verb"]: marker["word"]}
    return Snippet(page, line, kind, code, raises=options.get("raises"), file=options.get("file"))


async def run_python(snippet: Snippet, module: ModuleType) -> None:
    """Run a block in a module; tracebacks contain the page and its line."""
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
