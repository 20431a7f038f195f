"""The changes of SQL, in the statements and fragments of the files ``*.sql``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tools.mutants.mutant import Mutant, Places

OPERATORS: Final = {
    "sql-border": "`<` becomes `<=`, `>=` becomes `>`, and so on",
    "sql-condition": "a condition after `AND` is removed",
    "sql-lock": "`FOR UPDATE` and the like is removed",
    "sql-skip": "`SKIP LOCKED` is removed",
    "sql-order": "the first direction of `ORDER BY` is reversed",
}

HEADER: Final = re.compile(r"^-- (?:name|fragment): (\w+)$", re.MULTILINE)
HIDDEN: Final = re.compile(r"--[^\n]*|'(?:[^']|'')*'")
"""Comments and texts."""

BORDERS: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
BORDER: Final = re.compile(r"(?<=\s)[<>]=?(?=\s)")
AND: Final = re.compile(r"\s+\bAND\b")
BETWEEN: Final = re.compile(r"\bBETWEEN\s+\S+$")
LOCK: Final = re.compile(
    r"\s+FOR (?:NO KEY UPDATE|UPDATE|KEY SHARE|SHARE)(?: OF \w+(?:, \w+)*)?(?: SKIP LOCKED| NOWAIT)?\b"
)
SKIP: Final = re.compile(r"\s+SKIP LOCKED\b")
ORDER: Final = re.compile(r"\bORDER BY\s+")
DIRECTION: Final = re.compile(r"\s+(?:ASC|DESC)\b")
TOKEN: Final = re.compile(r"[(),;\[\]]|(?<=[^\s(,])\{|\b[A-Za-z_]+\b")
"""A brace directly after a value is a fragment that adds further conditions."""

ENDS: Final = frozenset(
    [
        *("AND", "AS", "ASC", "CROSS", "DESC", "ELSE", "EXCEPT", "FETCH", "FOR", "FROM", "GROUP", "HAVING"),
        *("INNER", "INTERSECT", "JOIN", "LEFT", "LIMIT", "NULLS", "OFFSET", "ON", "OR", "ORDER", "RANGE"),
        *("RETURNING", "ROWS", "SELECT", "SET", "THEN", "UNION", "WHEN", "WHERE"),
    ]
)
"""The words that end a condition or a key of an order."""


def mutants(path: str, text: str) -> Iterator[Mutant]:
    """Yield the mutants of a file of statements."""
    places = Places(text)
    code = HIDDEN.sub(_hide, text)
    headers = list(HEADER.finditer(text))
    for index, header in enumerate(headers):
        end = headers[index + 1].start() if index + 1 < len(headers) else len(text)
        first, last = places.line_and_column(header.start())[0], places.line_and_column(end - 1)[0]
        changes = sorted(_changes(code, header.end(), end), key=lambda change: change[1])
        for operator, start, stop, replacement in changes:
            line, column = places.line_and_column(start + _blank(code, start))
            yield Mutant(
                path, header[1], range(first, last + 1), operator, line, column, start, stop, replacement
            )


def _hide(hidden: re.Match[str]) -> str:
    """Return a text of the same length without words."""
    return " " * len(hidden[0]) if hidden[0].startswith("--") else f"'{'x' * (len(hidden[0]) - 2)}'"


def _blank(code: str, start: int) -> int:
    """Return how much space a change removes before its first word, which names its place."""
    return len(code[start:]) - len(code[start:].lstrip())


def _changes(code: str, begin: int, end: int) -> Iterator[tuple[str, int, int, str]]:
    """Yield the operator, the offsets and the replacement of each change of a statement."""
    for border in BORDER.finditer(code, begin, end):
        yield "sql-border", border.start(), border.end(), BORDERS[border[0]]
    for word in AND.finditer(code, begin, end):
        if not BETWEEN.search(code, begin, word.start()):
            yield "sql-condition", word.start(), _end_of_value(code, word.end(), end), ""
    for lock in LOCK.finditer(code, begin, end):
        yield "sql-lock", lock.start(), lock.end(), ""
    for skip in SKIP.finditer(code, begin, end):
        yield "sql-skip", skip.start(), skip.end(), ""
    for order in ORDER.finditer(code, begin, end):
        stop = _end_of_value(code, order.end(), end)
        direction = DIRECTION.match(code, stop, end)
        if direction and direction[0].strip() == "DESC":
            yield "sql-order", direction.start(), direction.end(), ""
        else:
            yield "sql-order", stop, direction.end() if direction else stop, " DESC"


def _end_of_value(code: str, begin: int, end: int) -> int:
    """Return the offset behind the condition or key that begins there."""
    depth = 0
    for token in TOKEN.finditer(code, begin, end):
        word = token[0]
        if word in "([" or word == "CASE":
            depth += 1
        elif word in ")]" or word == "END":
            depth -= 1
        if depth < 0 or (depth == 0 and (word in ENDS or word in ",;{")):
            end = token.start()
            break
    return begin + len(code[begin:end].rstrip())
