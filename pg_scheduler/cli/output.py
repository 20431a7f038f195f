"""Write data to stdout in the format that was asked for, and messages to stderr."""

from __future__ import annotations

import codecs
import csv
import errno
import io
import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TextIO, TypeVar, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pg_scheduler.base.text.values import csv_cell, escape, json_text, plain

from .errors import UsageError
from .local_zone import local_zone
from .schema import NUMBERS, field_types, without_none

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from .tables import Kind

Format = Literal["table", "wide", "json", "jsonl", "csv", "ids"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)

SHAPE_VERSION: Final = 1
"""The version of all shapes. A change that removes or redefines a key raises it."""

VERSION_KEY: Final = "v"
"""The key of every JSON object that has this version. Tables and CSV leave it out."""

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Numbers of the errors of an output that takes no more."""

ESCAPES: Final = "pg_scheduler.escapes"
"""The name of the error handler that writes escapes for characters which the encoding of stdout lacks."""

T = TypeVar("T", bound="DataclassInstance")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Numbers are aligned to the right.

    Attributes:
        key: The key of the value in a row.
        title: The heading; empty for that of the key: ``DUE`` of ``due_at``, ``LAG (S)`` of ``lag_s``.
        is_wide: Whether ``-o table`` omits it.
        is_long: Whether ``-o table`` cuts it to what fits into the line.
        is_id: Whether ``-o table`` shortens it in its middle if the line is too long.
    """

    key: str
    title: str = ""
    is_wide: bool = False
    is_long: bool = False
    is_id: bool = False

    @property
    def heading(self) -> str:
        """The title, or that of the key."""
        if self.title:
            return self.title
        words = self.key.removesuffix("_s").removesuffix("_at").replace("_", " ")
        unit = " (s)" if self.key.endswith("_s") else ""
        return f"{words}{unit}".upper()


def columns(*keys: str, is_wide: bool = False) -> list[Column]:
    """Return a column for each key, whose heading is made of the key."""
    return [Column(key, is_wide=is_wide) for key in keys]


@dataclass(frozen=True, slots=True)
class Shape(Generic[T]):
    """The objects that a command writes.

    Attributes:
        name: Its name, by which ``shapes`` prints its JSON schema.
        kind: The type of the objects.
        columns: The columns of tables; csv has all keys.
        identity: The key that ``-o ids`` writes; empty for that of the first column.
        keys: The fields of the type that the objects have; None for all.
    """

    name: str
    kind: type[T]
    columns: Sequence[Column] = ()
    identity: str = ""
    keys: Sequence[str] | None = None

    def row(self, value: T) -> dict[str, Any]:
        """Return the keys and values of an object, after the version of the shapes."""
        keys = [field.name for field in fields(value)] if self.keys is None else self.keys
        row: dict[str, Any] = {VERSION_KEY: SHAPE_VERSION}
        row.update((key, getattr(value, key)) for key in keys)
        return row

    @property
    def numbers(self) -> frozenset[str]:
        """The keys of the columns that have numbers."""
        types = field_types(self.kind)
        keys = [column.key for column in self.columns]
        return frozenset(key for key in keys if without_none(types.get(key)) in NUMBERS)


def read_format(text: str | None, *, is_terminal: bool) -> Format | None:
    """Return the format; None if none was asked for and stdout is not a terminal.

    Raises:
        CommandError: The format is unknown.
    """
    if text is None:
        return "table" if is_terminal else None
    # The name of the format, which has the type of one, unlike the text.
    choice = next((name for name in FORMATS if name == text), None)
    if choice is None:
        raise UsageError(f"unknown output format {text!r}; formats: {', '.join(FORMATS)}")
    return choice


def read_zone(text: str) -> tzinfo:
    """Return the time zone in which tables show times and searches read them.

    Raises:
        CommandError: The zone is unknown, or that of this machine is a day or more from UTC.
    """
    if text.lower() == "local":
        return local_zone()
    if text.lower() == "utc":
        return UTC
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"unknown time zone {text!r}; pass local, utc or a name such as Europe/Berlin"
        ) from None


class Output:
    """The two streams of a command."""

    def __init__(
        self,
        format: Format | None = None,  # noqa: A002 - the name of the option
        zone: tzinfo = UTC,
        *,
        out: TextIO | None = None,
    ) -> None:
        self.format: Final = format
        self.zone: Final = zone
        self._out = sys.stdout if out is None else out

    @property
    def is_table(self) -> bool:
        """Whether people read the output."""
        return self.format in {"table", "wide"}

    def write_list(
        self, shape: Shape[T], values: Iterable[T | Row], *, is_continued: bool = False, **keys: Any
    ) -> None:
        """Write a list of objects.

        Args:
            shape: Their shape.
            values: The objects, or mappings of keys to values in place of objects.
            is_continued: Whether a part of the list was written before, and with it the header of csv.
            keys: Further keys of the document of ``-o json``, with their values.
        """
        rows = [_row(shape, value) for value in values]
        match self.format:
            case "json":
                items = [plain(row) for row in rows]
                self._write_json({VERSION_KEY: SHAPE_VERSION, "items": items, **plain(keys)})
            case "jsonl" | None:
                for row in rows:
                    self._out.write(f"{json_text(plain(row))}\n")
            case "csv":
                self._write_csv(rows, with_header=not is_continued)
            case "ids":
                id_key = shape.identity or shape.columns[0].key
                for row in rows:
                    self._out.write(f"{escape(str(row[id_key]))}\n")
            case "table" | "wide":
                self._write_table(shape, rows)
        self._out.flush()

    def write_one(self, shape: Shape[T], value: T | Row, *, keys: Iterable[str] | None = None) -> None:
        """Write a single object.

        A table has a line for each of ``keys``. Without ``keys``, it has one for each column of the shape, or
        for each key of the object if the shape has no columns.
        """
        row = _row(shape, value)
        match self.format:
            case "json" | None:
                self._write_json(plain(row))
                self._out.flush()
            case "table" | "wide":
                from .tables import draw_one  # noqa: PLC0415 - rich is for tables only

                keys_by_title = {column.heading: column.key for column in shape.columns}
                if keys is not None:
                    keys_by_title = {key: key for key in keys}
                elif not keys_by_title:
                    keys_by_title = {key: key for key in row if key != VERSION_KEY}
                pairs = ((title, self._cell(row[key])) for title, key in keys_by_title.items())
                self._out.writelines(draw_one(pairs, out=self._out, is_wide=self.format == "wide"))
                self._out.flush()
            # In the other formats, a single object is written as a list of one object.
            case "jsonl" | "csv" | "ids":
                self.write_list(shape, [row])

    def write_text(self, text: str) -> None:
        """Write text as it is."""
        self._out.write(text)
        self._out.flush()

    def write_paragraph(self, text: str) -> None:
        """Write lines of text for people, with escapes for control characters."""
        self.write_text(f"{escape(text.rstrip())}\n")

    def write_line(self, line: str) -> None:
        """Write a line of text for people, with escapes for control characters, line breaks included."""
        self.write_text(f"{escape(line, kept='')}\n")

    def say(self, message: str) -> None:
        """Write a message to stderr."""
        sys.stderr.write(f"{escape(message)}\n")
        sys.stderr.flush()

    def say_next(self, after: str | None) -> None:
        """Write to stderr how to continue after a page of a list; nothing after the last page.

        ``after`` is the position at the end of the page, which ``--after`` takes; None for the last page.
        """
        if after is not None:
            self.say(f"continue with --after '{after}'")

    def when(self, instant: datetime | None) -> str:
        """Return an instant as tables show it."""
        if instant is None:
            return "-"
        # The wall time may be outside of the years 1 to 9999. The text has the time in UTC then.
        with suppress(OverflowError):
            instant = instant.astimezone(self.zone)
        return instant.isoformat(sep=" ", timespec="seconds")

    def _write_json(self, document: Any) -> None:
        """Write a document of JSON in lines that people can read."""
        self._out.write(f"{json_text(document, indent=2)}\n")

    def _write_csv(self, rows: Sequence[Row], *, with_header: bool) -> None:
        """Write rows as CSV. Its columns are the keys of the first row, which are those of each row."""
        if not rows:
            return
        writer = csv.writer(self._out, lineterminator="\n")
        keys = [key for key in rows[0] if key != VERSION_KEY]
        if with_header:
            writer.writerow(keys)
        for row in rows:
            writer.writerow([_csv_cell(plain(row[key])) for key in keys])

    def _write_table(self, shape: Shape[Any], rows: Sequence[Row]) -> None:
        """Write rows as a table for people, with the columns that the format shows."""
        from .tables import draw_list  # noqa: PLC0415 - rich is for tables only

        is_wide = self.format == "wide"
        columns = [column for column in shape.columns if is_wide or not column.is_wide]
        number_keys = shape.numbers
        # Each of these lists has an item for each column.
        headings = [column.heading for column in columns]
        kinds = [_kind(shape, column, number_keys, rows) for column in columns]
        are_numbers = [column.key in number_keys for column in columns]
        cells = [[self._cell(row[column.key]) for column in columns] for row in rows]
        lines = draw_list(headings, cells, kinds, are_numbers, out=self._out, is_wide=is_wide)
        self._out.writelines(lines)

    def _cell(self, value: Any) -> str:
        """Return a value as the text in a cell of a table."""
        if isinstance(value, datetime):
            return self.when(value)
        value = plain(value)
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return escape(value, kept="")
        return json_text(value)


def _row(shape: Shape[T], value: T | Row) -> Row:
    """Return the keys and values of an object; a mapping has them already."""
    return value if isinstance(value, Mapping) else shape.row(value)


def _kind(shape: Shape[Any], column: Column, number_keys: Collection[str], rows: Sequence[Row]) -> Kind:
    """Return how a column becomes narrower if the table is too wide for the terminal.

    An id is shortened in its middle, a long text is cut at its end, and other texts continue on the next
    line. The first column, numbers and times stay whole.
    """
    if column.is_id:
        return "id"
    if column.is_long:
        return "cut"
    is_first = column is shape.columns[0]
    if is_first or column.key in number_keys:
        return "whole"
    has_times = any(isinstance(row[column.key], datetime) for row in rows)
    return "whole" if has_times else "folded"


def escape_unencodable() -> None:
    """Let stdout write escapes for characters that its encoding lacks, as ASCII does in the locale C.

    Otherwise a command would fail at its output, after it has made its change.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPES)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Return escapes of JSON for the characters of an error, so that a document of JSON stays one.

    As an error handler of ``codecs``, it also returns the position behind these characters.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # Without the quotation marks, the text of JSON is the escapes.
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(ESCAPES, _escaped)


def discard_stdout() -> None:
    """Discard what is written to stdout from now on, since its pipe is closed or its disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _csv_cell(value: Any) -> Any:
    """Return a cell of CSV for a value: booleans and numbers as in JSON, texts with escapes.

    The escapes are for control characters, and for a text that a spreadsheet would execute. None is an empty
    cell.
    """
    if value is None:
        return None
    if isinstance(value, bool | int | float):
        return json_text(value)
    return escape(csv_cell(value))
