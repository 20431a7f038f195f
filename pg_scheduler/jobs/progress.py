"""The progress of a job: checked, and as it is stored in the ``progress`` column."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from pg_scheduler.base.public import public
from pg_scheduler.base.sqltext import storable
from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.codec import PayloadCodec, decode_text, is_encoded
from pg_scheduler.jobs.history import to_ascii
from pg_scheduler.jobs.payload import object_from

MAX_NUMBER: Final = 1e300

LEAST_LARGE: Final = 1e16
"""From here on the database writes a float without a point."""

MAX_NOTE_LENGTH: Final = 200
"""Characters of a note that are kept."""


@public
@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress that a job reported last."""

    done: float
    """The amount of work that is done."""
    total: float | None = None
    """The amount of all work, in the same unit; None if it is unknown."""
    note: str | None = None
    """A text for people; None for no text."""


def checked_progress(done: float, total: float | None, note: str | None) -> JobProgress:
    """Return progress that can be stored; its note is cut to 200 characters.

    Raises:
        TypeError: A number is not an int or a float, or the note is not a str.
        ValueError: A number is not finite, or beyond 1e300.
    """
    done = _checked("done", done)
    total = None if total is None else _checked("total", total)
    if note is not None and not isinstance(note, str):
        raise TypeError(f"note must be a str or None, not {note!r}; pass note=str(...)")
    note = None if note is None else storable(str.__str__(note)[:MAX_NOTE_LENGTH])
    return JobProgress(done, total, note)


def progress_text(
    progress: JobProgress,
    *,
    in_ascii: bool = False,
    codec: PayloadCodec | None = None,
    job_name: str = "",
) -> str:
    """Return progress as JSON. If the codec fails, the error is stored as the note.

    Args:
        progress: Checked progress.
        in_ascii: Whether to escape the note, for a database whose encoding lacks a character of it.
        codec: Encodes the note; None for none.
        job_name: The name of the job, for the codec.
    """
    # The note is a text, or the object that a codec has made of it.
    note: Any = progress.note
    if note is not None and codec is not None and codec.key_id is not None:
        try:
            note = codec.encode(note, job_name)
        except PayloadError as error:
            note = storable(str(error))
    # An encoded note consists of ASCII anyway.
    if in_ascii and isinstance(note, str):
        note = to_ascii(note)
    values = {"done": progress.done, "total": progress.total, "note": note}
    return json.dumps({name: value for name, value in values.items() if value is not None})


def progress_from(
    column: str | None, codec: PayloadCodec | None = None, job_name: str = ""
) -> JobProgress | None:
    """Return the progress in a column; None if the column has none, or has something else.

    If the note cannot be decoded, the reason stands in its place.
    """
    value = object_from(column)
    if not _is_number(value.get("done")):
        return None
    total, note = value.get("total"), value.get("note")
    if is_encoded(note):
        try:
            note = decode_text(note, codec, job_name)
        except PayloadError as error:
            note = str(error)
    valid_total = total if _is_number(total) else None
    valid_note = note if isinstance(note, str) else None
    return JobProgress(value["done"], valid_total, valid_note)


def _checked(name: str, value: Any) -> float:
    """Return a number as a plain int or float, in a form that the database returns unchanged.

    Raises:
        TypeError: It is not an int or a float.
        ValueError: It is not finite, or beyond 1e300.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(
            f"{name} must be an int or a float, not {value!r}; pass {name}=int(...) or float(...)"
        )
    # A subclass may override any method.
    value = int.__int__(value) if isinstance(value, int) else float.__float__(value)
    if not _is_number(value):
        # Python refuses to write an int of thousands of digits.
        text = f"{value}" if isinstance(value, float) else f"an int of {value.bit_length()} bits"
        raise ValueError(f"{name} must be finite and at most 1e300, not {text}")
    # The database writes a large float as its shortest digits, which Python would read as another int. The
    # digits of an int are exact.
    return int(value) if abs(value) >= LEAST_LARGE else value


def _is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is an int or a float from -1e300 to 1e300, which excludes NaN and infinities."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER
