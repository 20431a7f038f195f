"""The texts of reasons and remedies: instants, lengths of time, lists, commands, terms of searches."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from pg_scheduler.base.text import numbers
from pg_scheduler.inspect.store.inspections import LockRow
from pg_scheduler.inspect.store.workers import InspectedWorker
from pg_scheduler.jobs.model import Worker

# For modules of this room that import them together with the functions below.
count, counted, plural = numbers.count, numbers.counted, numbers.plural

MAX_LISTED: Final = 5
"""The maximum number of texts that a list shows."""

MAX_LENGTH: Final = 200
"""The maximum number of characters of a text that are shown."""


def holder(session: LockRow) -> str:
    """Describe the session that holds a lock."""
    application = f" ({session.application})" if session.application else ""
    statement = f", {short(session.statement)}" if session.statement else ""
    return f"process {session.pid}{application}{statement}"


def on_host(worker: Worker | InspectedWorker) -> str:
    """Name a worker and its machine."""
    return f"{worker.worker_id} on {worker.hostname}"


def hosts(workers: Sequence[Worker | InspectedWorker]) -> str:
    """Name workers and their machines."""
    return listed([*map(on_host, workers)])


def listed(texts: Sequence[str], number: int | None = None, *, is_capped: bool = False) -> str:
    """Join the first five texts, and state how many follow.

    ``number`` is the total number of texts if ``texts`` has only some of them; None if it has all.
    ``is_capped`` is whether there may be more than this number.
    """
    shown = ", ".join(texts[:MAX_LISTED])
    total = len(texts) if number is None else number
    remainder = total - min(len(texts), MAX_LISTED)
    if remainder <= 0:
        return shown
    return f"{shown} and {count(remainder, is_capped=is_capped)} more"


def extent_of(searched: int, total: int | None, *, is_complete: bool, noun: str = "job") -> str:
    """Return how many jobs a search examined: ``all of 500 jobs``, ``20,000 of about 1.2 M jobs``.

    ``total`` is about how many jobs an incomplete search would examine in the end; None if that is unknown.
    """
    if is_complete:
        number = counted(searched, noun)
        return number if searched == 1 else f"all of {number}"
    if total is None:
        return f"{searched:,} of an unknown number of {noun}s"
    return f"{searched:,} of about {rounded(total)} {plural(total, noun)}"


def rounded(number: int) -> str:
    """Return a number as people read it: ``9.8 M``, ``45 k``, ``9,500``."""
    # Thousands are abbreviated from 10,000 on, because smaller numbers are short enough.
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if number >= least:
            amount = number / size
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{number:,}"


def instant(at: datetime | None) -> str:
    """Return an instant as a text in UTC, to the second; ``its time`` for None."""
    return "its time" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def length(time: timedelta | float) -> str:
    """Return a timedelta, or seconds, as a text in the largest unit of which it has at least two.

    A negative length is shown as 0, and a length that would be rounded to 0 as ``< 1 ms``.
    """
    seconds = max(time.total_seconds() if isinstance(time, timedelta) else time, 0)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 1:
        return f"{seconds:.0f} s"
    return "< 1 ms" if 0 < seconds <= 0.0005 else f"{seconds * 1000:.0f} ms"


def estimated(seconds: float) -> str:
    """Show a length of time that was estimated by a histogram, as every front end does: ``~30 s``."""
    text = length(seconds)
    # A text such as "< 1 ms" already shows that it is not exact.
    return text if text.startswith("<") else f"~{text}"


def short(text: str) -> str:
    """Return a text in one line of bounded length, for messages that quote it."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_LENGTH else f"{line[:MAX_LENGTH]}..."


def later(at: datetime, seconds: float) -> datetime | None:
    """Return an instant plus some seconds; None if the calendar of Python ends before that."""
    try:
        return at + timedelta(seconds=seconds)
    except OverflowError:
        return None


def command(*words: str, arguments: Sequence[str] = ()) -> str:
    """Return a command of ``pg-scheduler`` that a person can copy, quoted for a shell.

    ``arguments`` are ids, names and keys, which follow the words. One that begins with a hyphen would count
    as an option, so they follow ``--`` then.

    Example:
        >>> command("jobs", "explain", arguments=["mail:9"])
        'pg-scheduler jobs explain mail:9'
        >>> command("sequences", "skip", arguments=["accounts", "-7"])
        'pg-scheduler sequences skip -- accounts -7'
    """
    end_of_options = ["--"] if any(argument.startswith("-") for argument in arguments) else []
    return f"pg-scheduler {shlex.join([*words, *end_of_options, *arguments])}"


def term(field: str, value: str) -> str:
    """Return a term of a search.

    Example:
        >>> print(term("name", "mail.send"), term("name", "send mail"))
        name:mail.send name:"send mail"
    """
    return f"{field}:{quoted(value)}"


def quoted(value: str) -> str:
    """Return a value as a term of a search contains it: in quotes if it has special characters."""
    if re.fullmatch(r"[A-Za-z0-9._/-]+", value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
