"""Run the named statements on connections of other libraries, as on those of asyncpg.

Values travel as texts, and each row as one text of JSON. So nothing that the owner of a connection has set
can change them: no codec, adapter, row factory or time zone. The statement is rewritten once for each
combination of types: a placeholder has the type of its value, and NULL is written out.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.database.callers.adapter import EMPTY_ROWS, TEXT, ConnectionAdapter
from pg_scheduler.database.faults import sqlstate_of
from pg_scheduler.database.options import BEGIN

TIME_COLUMNS: Final = frozenset(
    {
        "anchor",
        "due",
        "execution_time",
        "last_beat",
        "last_heartbeat",
        "last_run",
        "last_vacuum_run",
        "lease_until",
        "now",
        "paused_until",
        "resume_from",
        "searched_from",
        "timeouts",
        "until",
    }
)
"""The columns with times, besides those whose names end with ``_at``."""

MAX_INTEGER: Final = 2**31 - 1

WIDEST: Final = ("float8", "int8")
"""The types of an array with numbers of several types: the first of these that one of its numbers has."""

NO_TRANSACTION: Final = "25P01"

SAVEPOINT: Final = "pg_scheduler_savepoint"

ROW: Final = "pg_scheduler_row"
ROW_TEXT: Final = f"pg_catalog.row_to_json({ROW})::pg_catalog.text"

_TOKEN: Final = re.compile(
    r"""(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<comment>--[^\n]*)|\$(?P<place>\d+)"""
    r"""|(?<!\w)\(\$(?P<json>\d+)::pg_catalog\.text\)(?=::pg_catalog\.jsonb)|(?P<bracket>[()])"""
    r"""|\b(?P<word>SELECT|INSERT|UPDATE|DELETE|RETURNING)\b"""
)
_NULL_OR_CLOCK: Final = re.compile(r"coalesce\(NULL, ([\w.]+\(\))\)")
"""An expression that the server would initialise at each execution. The clock in it is enough: what precedes
the clock is NULL."""


class Rewritten(NamedTuple):
    """A statement for other libraries.

    Attributes:
        text: Each placeholder occurs once, and their numbers ascend.
        places: For each placeholder, the index of its value among the values of the original statement.
        has_columns: Whether its rows have any columns.
    """

    text: str
    places: tuple[int, ...]
    has_columns: bool


class Row(dict[str, Any]):
    """A row that is read as those of asyncpg: by name or place, and by iterating over its values."""

    def __getitem__(self, key: str | int) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())


class ForeignConnection:
    """A connection of another library, with the methods of asyncpg's that statements use."""

    def __init__(self, adapter: ConnectionAdapter) -> None:
        self._adapter = adapter

    @property
    def transaction_of(self) -> Callable[[], object] | None:
        """A function that returns its open transaction; None if the adapter has none.

        It is also None for a blocking connection, because no event loop could call the function later.
        """
        return self._adapter.transaction if self._adapter.is_async else None

    async def fetch(self, statement: str, *values: Any, timeout: float | None = None) -> list[Row]:  # noqa: ARG002
        """Run a statement and return its rows. The connection has time limits of its own."""
        # The type and the text of each value.
        typed_texts = [_WRITERS.get(type(value), _write_other)(value) for value in values]
        # The rewritten statement has a placeholder for each use of a value that is not NULL.
        rewritten = rewrite(statement, tuple([kind for kind, _ in typed_texts]))
        texts = [text for _, text in typed_texts]
        rows = await self._run(rewritten.text, [texts[place] for place in rewritten.places])
        return [_row_from(row) for row in rows] if rewritten.has_columns else []

    async def fetchval(self, statement: str, *values: Any, timeout: float | None = None) -> Any:  # noqa: ARG002
        """Run a statement and return the first value of its first row; None if there is no row."""
        rows = await self.fetch(statement, *values)
        return rows[0][0] if rows else None

    async def execute(self, statement: str, *, timeout: float | None = None) -> None:  # noqa: ARG002
        """Run a statement without values and rows."""
        await self._run(statement, [])

    @asynccontextmanager
    async def savepoint(self, *, begins: bool = False) -> AsyncIterator[None]:
        """Run the block within a savepoint.

        Args:
            begins: Whether a connection without a transaction begins one for the block.

        Raises:
            ValueError: The connection is not in a transaction, and does not begin one.
        """
        try:
            await self.execute(f"SAVEPOINT {SAVEPOINT}")
        except Exception as error:
            if sqlstate_of(error) != NO_TRANSACTION:
                raise
            if begins:
                async with self._transaction():
                    yield
                return
            raise ValueError(
                "connection is not in a transaction, which this call needs to write all of its rows or none; "
                "begin a transaction, or turn autocommit off"
            ) from error
        try:
            yield
        except BaseException:  # the owner of the connection may catch it, an interruption too, and commit
            with suppress(Exception):  # the error of the block may have broken the connection
                await self._undo_savepoint()
            raise
        await self.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")

    async def _undo_savepoint(self) -> None:
        """Undo what was written since the savepoint, and remove it, which the rollback does not."""
        await self.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
        await self.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        """Run the block in a transaction, on a connection that has none."""
        await self.execute(BEGIN)
        try:
            yield
        except BaseException:  # whatever it was, the connection goes back to its owner
            with suppress(Exception):  # the error of the block may have broken the connection
                await self.execute("ROLLBACK")
            raise
        await self.execute("COMMIT")

    async def _run(self, statement: str, texts: Sequence[str]) -> Iterable[str]:
        """Return the rows of a statement: an adapter returns them, or something to await for them."""
        rows = self._adapter.run(statement, texts)
        # This is the usual case, and the check for an Awaitable costs more.
        if isinstance(rows, list):
            return rows
        if isinstance(rows, Awaitable):
            return await rows
        return rows


def as_foreign(connection: object) -> ForeignConnection | None:
    """Return a connection of another library, which stands for one of asyncpg; None for any other object."""
    return connection if isinstance(connection, ForeignConnection) else None


@lru_cache(maxsize=1000)
def rewrite(statement: str, kinds: tuple[str | None, ...]) -> Rewritten:
    """Return a statement whose values are texts, and whose rows have one column, their JSON.

    Args:
        statement: A statement that PostgreSQL can prepare.
        kinds: The types of its values; None for NULL.
    """
    places: list[int] = []
    # The statement in pieces: by turns the text before a token, and the token as it is rewritten.
    parts: list[str] = []
    # For each word, the index in ``parts`` of its first occurrence outside of brackets.
    starts: dict[str, int] = {}
    # How many brackets are open, and where the previous token has ended.
    depth = end = 0
    for token in _TOKEN.finditer(statement):
        parts.append(statement[end : token.start()])
        end = token.end()
        text = token[0]
        match token.lastgroup:
            case "comment":
                text = ""
            case "place" | "json":
                # Placeholders count from 1.
                place = int(token["place"] or token["json"]) - 1
                kind = kinds[place]
                if kind is not None:
                    places.append(place)
                text = "NULL" if kind is None else TEXT.format(len(places))
                # The statement itself casts a text of JSON.
                if kind is not None and token["place"]:
                    text += f"::pg_catalog.{kind}"
            case "bracket":
                depth += 1 if text == "(" else -1
            case "word" if depth == 0:
                starts.setdefault(text, len(parts))
        parts.append(text)
    parts.append(statement[end:])
    returning = starts.pop("RETURNING", None)
    # The first word decides the kind of the statement. What precedes it, such as a WITH clause, stays there.
    word, begin = min(starts.items(), key=lambda item: item[1])
    prefix, body = "".join(parts[:begin]).strip(), _without_end(parts[begin:returning])
    # A SELECT becomes one more query of the WITH clause, from which its rows are read as JSON. Any other
    # statement returns its columns as JSON. If it has none, it returns rows without contents.
    if word == "SELECT":
        text = f"{prefix}," if prefix else "WITH"
        text += f" {ROW} AS ({body})\nSELECT {ROW_TEXT} FROM {ROW}"
    elif returning is None:
        text = f"{prefix} {body}{EMPTY_ROWS}"
    else:
        columns = _without_end(parts[returning + 1 :]).strip()
        row = f"(SELECT {ROW_TEXT} FROM (SELECT {columns}) AS {ROW})"  # noqa: S608
        # A single column needs no subquery, which costs the server 15 us more.
        if columns.isidentifier():
            row = f"pg_catalog.json_build_object('{columns}', {columns})::pg_catalog.text"
        text = f"{prefix} {body} RETURNING {row}"
    text = _NULL_OR_CLOCK.sub(r"\1", text.strip())
    return Rewritten(text, tuple(places), word == "SELECT" or returning is not None)


def _without_end(parts: Sequence[str]) -> str:
    """Join the parts of a text, without the semicolon at the end.

    Blanks may follow the semicolon, where a comment was removed.
    """
    return "".join(parts).rstrip().removesuffix(";")


def _write_other(value: Any) -> tuple[str | None, str]:
    """Return the type and the text of a value whose class has no writer: of a subclass, or an array."""
    for base, write in _WRITERS.items():
        if isinstance(value, base):
            return write(value)
    return _write_array(value)


def _write_integer(value: int) -> tuple[str, str]:
    """Return the smaller type that can hold an integer, and its text."""
    kind = "int4" if -MAX_INTEGER <= value <= MAX_INTEGER else "int8"
    return kind, str(value)


def _write_array(values: Iterable[Any]) -> tuple[str, str]:
    """Return the type and the text of an array; without any value but NULL, it is one of texts."""
    elements = [_WRITERS.get(type(element), _write_other)(element) for element in values]
    kinds = {kind for kind, _ in elements if kind is not None} or {"text"}
    # Numbers may have several types, of which the widest can hold all. Other elements have one type.
    kind = next((candidate for candidate in WIDEST if candidate in kinds), min(kinds))
    # NULL is not quoted: with quotes it would be a text.
    text = ",".join(
        element_text if element_kind is None else _quoted(element_text)
        for element_kind, element_text in elements
    )
    return f"{kind}[]", f"{{{text}}}"


_WRITERS: Final[Mapping[type, Callable[[Any], tuple[str | None, str]]]] = {
    type(None): lambda _: (None, "NULL"),
    str: lambda value: ("text", value),
    bool: lambda value: ("bool", str(value)),
    int: _write_integer,
    float: lambda value: ("float8", repr(value)),
    datetime: lambda value: ("timestamptz", value.isoformat()),
}


def _quoted(text: str) -> str:
    """Return an element of an array in quotes, as the text format of PostgreSQL writes it."""
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def _row_from(text: str) -> Row:
    """Return a row that is read from JSON, in which times are texts."""
    row = Row(load_json(text))
    for name, value in row.items():
        if value is not None and (name in TIME_COLUMNS or name.endswith("_at")):
            if isinstance(value, list):
                row[name] = [_time_from(element) for element in value]
            else:
                row[name] = _time_from(value)
    return row


def _time_from(text: str) -> datetime:
    """Return the time of a text in UTC. The text is in the time zone of the session.

    There it may be some hours after the year 9999, the last one that Python can represent.
    """
    if not text.startswith("10000-01-01"):
        return datetime.fromisoformat(text).astimezone(UTC)
    # Python has no year 10000. So the day before is read, and a day is added when the time is in UTC.
    return datetime.fromisoformat(f"9999-12-31{text[11:]}").astimezone(UTC) + timedelta(days=1)
