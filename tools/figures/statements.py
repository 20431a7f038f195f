"""The statements of a checkout as its own loader completes them, and the JSON keys that they read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.figures.programs import ask
from tools.figures.source import PACKAGE

_PROGRAM: Final = """
import json, sys
from pg_scheduler.database.queries import load_queries
json.dump({name: query.text for name, query in load_queries("public").items()}, sys.stdout)
"""
_MARK: Final = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_QUALIFIED: Final = re.compile(r"OPERATOR\s*\(\s*(?:pg_catalog\.)?([^)\s]+)\s*\)")
_ARROW: Final = re.compile(r"\s*(#>>|#>|->>|->|\?\||\?&|\?|#-|-)\s*(?:ARRAY\s*\[([^\]]*)\]|'([^']*)')")
_ALIAS: Final = re.compile(r"\)?\s+AS\s+(\w+)")
_CLOSING: Final = re.compile(r"\)*(?:::jsonb)?")
COLUMNS: Final = ("options", "on_end")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement."""

    name: str
    module: str
    """The file that has it, as the name of a module below the package."""
    text: str
    """With its fragments, without comments and with plain operators."""

    @property
    def lines(self) -> int:
        """The number of lines."""
        return sum(bool(line.strip()) for line in self.text.splitlines())

    @property
    def reads(self) -> frozenset[str]:
        """The paths of JSON keys of a job that the statement reads or removes, such as ``on_end.result``."""
        return frozenset(paths(self.text))

    def mentions(self, state: frozenset[str]) -> bool:
        """Whether the statement names a table or a column of a feature, or a key of its own."""
        for entry in state:
            column, _, key = entry.rpartition(".")
            if re.search(rf"'{key}'" if column else rf"\b{key}\b", self.text):
                return True
        return False


def paths(text: str) -> Iterator[str]:
    """Yield the paths of keys that a text reads of the JSON columns of a job, also by other names."""
    known = {column: column for column in COLUMNS}
    pending = list(known)
    while pending:
        name = pending.pop()
        for match in re.finditer(rf"\b{name}\b\)*", text):
            path, end = known[name], match.end()
            while arrow := _ARROW.match(text, end):
                keys = re.findall(r"\w+", arrow[2] if arrow[2] is not None else arrow[3])
                end = arrow.end()
                if arrow[1].startswith("?") or arrow[1] == "-":
                    yield from (f"{path}.{key}" for key in keys)
                    break
                path = ".".join([path, *keys])
                closing = _CLOSING.match(text, end)
                end = closing.end() if closing else end
            if path != known[name] and not (arrow and arrow[1] in {"?", "?|", "?&", "-"}):
                yield path
            alias = _ALIAS.match(text, end) if path != known[name] else None
            # Another name for an object whose keys are read by it.
            if alias and alias[1] not in known and re.search(rf"\b{alias[1]}\b\s*(?:->|#>|\?)", text):
                known[alias[1]] = path
                pending.append(alias[1])


def load_statements(root: Path) -> list[Statement]:
    """Return the statements of a checkout, completed by its own loader in a process of its own."""
    files = {name: module for kind, name, module, _ in parts(root) if kind == "name"}
    return [
        Statement(name, files[name], _QUALIFIED.sub(r"\1", _COMMENT.sub("", text)))
        for name, text in ask(root, _PROGRAM).items()
    ]


def parts(root: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield each part of the SQL files: name or fragment, its name, its module, and its text as written."""
    package = root / PACKAGE
    for path in sorted(package.rglob("*.sql")):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        _, *pieces = _MARK.split(path.read_text(encoding="utf-8"))
        for kind, name, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            yield kind, name, module, _COMMENT.sub("", text)
