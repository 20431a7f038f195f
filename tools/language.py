"""Reject the words that the glossary replaces: ``python -m tools.language [PATH ...]``.

tools/language.toml has the words, by the term of docs/project/glossary.md that replaces them, and the
legitimate uses.
"""

from __future__ import annotations

import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tools.environment import ROOT

WORDS = ROOT / "tools" / "language.toml"
CHECKED = (
    "*.md",
    "dev.py",
    "docs/**/*.md",
    "docs/figures/*.txt",
    "examples/**/*.py",
    "pg_scheduler/**/*.py",
    "pg_scheduler_plugins/*.py",
    "pg_scheduler/**/*.sql",
    "tools/**/*.py",
)
STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


class Hit(NamedTuple):
    """A rejected word in a file."""

    path: str
    line: int
    word: str
    text: str


class Use(NamedTuple):
    """A legitimate use of a rejected word."""

    word: str
    path: str
    reason: str


def read_rejected(words: str) -> dict[str, list[str]]:
    """Return the rejected words, by the term that replaces them."""
    rejected: dict[str, list[str]] = tomllib.loads(words)["rejected"]
    return rejected


def read_allowed(words: str) -> list[Use]:
    """Return the legitimate uses."""
    return [Use(**entry) for entry in tomllib.loads(words)["use"]]


def compile_words(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds any of the words: whole words, across line breaks, in any case."""
    patterns = (
        r"\s+".join(re.escape(part).replace(r"\*", r"[a-z]*") for part in word.split()) for word in words
    )
    return re.compile(rf"(?<![\w-])(?:{'|'.join(patterns)})(?![\w-])", re.IGNORECASE)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file with its first line: text, docstrings, strings, comments; no identifiers."""
    if path.suffix in {".md", ".txt"}:
        yield 1, re.sub(r"`[^`\n]+`", "``", path.read_text(encoding="utf-8"))
    elif path.suffix == ".sql":
        yield from _joined(_sql_comments(path))
    else:
        with tokenize.open(path) as file:
            tokens = list(tokenize.generate_tokens(file.readline))
        yield from _joined((it.start[0], it.string[1:]) for it in tokens if it.type == tokenize.COMMENT)
        for token in tokens:
            if token.type in STRINGS:
                text = re.sub(r"``?[^`\n]+``?", "``", token.string)
                yield token.start[0], re.sub(r"\{[^{}\n]*\}", "{}", text)


def _sql_comments(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if (found := re.search(r"--\s(.*)", line)) and not found[1].startswith("name:"):
            yield number, found[1]


def _joined(comments: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join the comments of consecutive lines: a phrase may span two of them."""
    first, block = 0, list[str]()
    for number, text in comments:
        if block and number != first + len(block):
            yield first, "\n".join(block)
            block = []
        first = first if block else number
        block.append(text)
    if block:
        yield first, "\n".join(block)


def check_file(path: Path, name: str, pattern: re.Pattern[str]) -> Iterator[Hit]:
    """Yield the rejected words of a file."""
    for first, text in prose(path):
        for found in pattern.finditer(text):
            line = first + text.count("\n", 0, found.start())
            start = text.rfind("\n", 0, found.start()) + 1
            context = text[start : (text.find("\n", found.end()) + 1 or len(text) + 1) - 1]
            yield Hit(name, line, " ".join(found[0].lower().split()), " ".join(context.split()))


def check(root: Path, paths: Sequence[Path], pattern: re.Pattern[str], allowed: Sequence[Use]) -> list[str]:
    """Return the complaints: hits that no entry allows, and entries that allow nothing."""
    hits = [hit for path in paths for hit in check_file(path, path.relative_to(root).as_posix(), pattern)]
    uses = {(use.word, use.path) for use in allowed}
    complaints = [
        f"{hit.path}:{hit.line}: {hit.word!r} in {hit.text!r}"
        for hit in hits
        if (hit.word, hit.path) not in uses
    ]
    checked = {path.relative_to(root).as_posix() for path in paths}
    found = {(hit.word, hit.path) for hit in hits}
    unused = [use for use in allowed if use.path in checked and (use.word, use.path) not in found]
    return complaints + [f"{use.path}: the allowed word {use.word!r} does not occur" for use in unused]


def main(arguments: Sequence[str]) -> int:
    """Check the files, all by default; 1 if a rejected word was found."""
    paths = [Path(argument).resolve() for argument in arguments]
    paths = paths or sorted({path for pattern in CHECKED for path in ROOT.glob(pattern)})
    paths = [path for path in paths if "_build" not in path.parts]
    words = WORDS.read_text(encoding="utf-8")
    pattern = compile_words(chain.from_iterable(read_rejected(words).values()))
    complaints = check(ROOT, paths, pattern, read_allowed(words))
    print(*complaints, sep="\n", end="\n" if complaints else "")
    if complaints:
        print(f"{len(complaints)} findings; docs/project/glossary.md lists the accepted terms")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
