"""Load the statements of the files ``*.sql``, each in the folder of the modules that use it.

A statement begins with its declarations::

    -- name: renew_lease
    -- route: shared, tuned
    -- timeout: call

``route`` names the connection that runs the statement (see ``Route``). ``shared, <route>`` tries the shared
connection first. ``<route> | <route>`` leaves the choice to the method; the first is the default. ``timeout``
is ``call`` or ``hot``, by default ``call``.

``{schema}`` before a table's name becomes the quoted schema, so that statements mean the same tables whatever
the search path of their connection is. ``{channel}`` becomes the notification channel of the schema,
``{lock_mask}`` a number by which its advisory locks differ from those of others, and ``{name}`` the text
after ``-- fragment: name``. Built-in functions, operators and types are qualified too; see ``sqlbuiltins``.

A statement that joins a large table by an id also limits it by a condition of its own, with an argument or an
array of ids, or joins it in a lateral with ``OFFSET 0``. Otherwise a plan that was made while the table was
drained reads all of it; see ``tests/store/test_drained_plans.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from hashlib import md5, sha256
from importlib.resources import files
from itertools import product
from types import MappingProxyType
from typing import Final, NamedTuple

from pg_scheduler.base.figures import OUTCOMES
from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.base.sqltext import qualify
from pg_scheduler.database.options import LOCK_TIMEOUT_MS
from pg_scheduler.jobs.model import JobPriority


class Route(StrEnum):
    """The connection that runs a statement, unless the caller passes one."""

    CALLER = "caller"
    """The connection of the transaction that the statement is part of; it has no other."""
    CHECKOUT = "checkout"
    """A connection that is held for long, because the statement changes its session."""
    DEDICATED = "dedicated"
    """`DedicatedConnection` in ``held.py``, for claims and completions."""
    POOL = "pool"
    """A connection of the pool, for this statement."""
    RESERVED = "reserved"
    """The same, or the dedicated connection while jobs use up the pool."""
    STEP = "step"
    """One of a few connections of the pool that are kept for steps for a moment; RESERVED if none is free."""
    STICKY = "sticky"
    """A connection of the pool that is kept for a moment, for the next call."""
    STICKY_RESERVED = "sticky-reserved"
    """The same, or the dedicated connection while jobs use up the pool."""
    TUNED = "tuned"
    """A transaction of its own with settings, on a reserved connection. It waits for a lock for a second."""


class Timeout(StrEnum):
    """The time limit of a statement; see ``ConnectionOptions``."""

    CALL = "call"
    HOT = "hot"


@dataclass(frozen=True, slots=True)
class Query:
    """One statement, with its route and timeout.

    Attributes:
        name: Its name.
        text: The SQL.
        routes: The connections that may run it, the default first.
        is_shareable: Whether it runs on the shared connection if that is free.
        timeout: Its time limit.
        is_recorded: Whether it also writes a record of what it does, for people.
        limits_wait: Whether ``load_variant()`` can give it a lock timeout, so that a call repeats it.
    """

    name: str
    text: str
    routes: tuple[Route, ...]
    is_shareable: bool
    timeout: Timeout
    is_recorded: bool = False
    limits_wait: bool = False


FOLDERS: Final = (
    "database",
    "queue",
    "worker",
    "admission",
    "steps",
    "streams",
    "schedules",
    "statistics",
    "facts",
    "inspect/store/sql",
)
"""The folders of the package that contain statements."""

DEFAULT_SCHEMA: Final = "public"

_MARK: Final = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_DECLARATION: Final = re.compile(r"-- (route|timeout): (.*)\n")
_COMMENT: Final = re.compile(r"^--.*\n?", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"\{(?!schema\})(\w+)\}")
_OF_RECORDS: Final = ("into_audit", "once_per_release", "counted_failures")
LEFT_OUT: Final = {
    "exchange_jobs": " AND job_id <> ALL ($16::text[])",
    "expire_jobs": " AND coalesce(function, job_name) <> ALL ($7::text[])",
    "find_late": " AND coalesce(function, job_name) <> ALL ($4::text[])",
    "block_surplus": " AND job_id <> ALL ($9::text[])",
    "unblock_limited": " AND job_id <> ALL ($8::text[])",
    "unblock_late": " AND job_id <> ALL ($7::text[])",
    "unblock_unclaimed": " AND job_id <> ALL ($6::text[])",
    "unblock_forgotten": " AND job_id <> ALL ($4::text[])",
    # Its own argument $7 has the jobs that it leaves out.
    "feed_shares": " AND job_id <> ALL ($8::text[])",
    "renew_due": " AND job_id <> ALL ($8::text[])",
    "renew_blocked": " AND job_id <> ALL ($9::text[])",
    "end_pauses": " AND name <> ALL ($2::text[])",
    "delete_past_starts": " AND start.ctid::text <> ALL ($3::text[])",
    "report_gone": " AND job_id <> ALL ($5::text[])",
    "restart_leases": " AND job_id <> ALL ($3::text[])",
    "correct_waits": " AND job_id <> ALL ($3::text[])",
    "correct_due_times": " AND job_id <> ALL ($3::text[])",
    "retire_schedules": " AND schedule_id <> ALL ($7::text[])",
    "continue_schedules": " AND schedule_id <> ALL ($4::text[])",
    "vacuum_schedules": " AND schedule_id <> ALL ($3::text[])",
    "vacuum_results": " AND job_id <> ALL ($3::text[])",
    "vacuum_steps": " AND job_id <> ALL ($4::text[])",
    "end_past_deadlines": " AND job_id <> ALL ($4::text[])",
    "forget_deadlines": " AND entry.entry_id::text <> ALL ($3::text[])",
    "vacuum_deadlines": " AND entry.entry_id::text <> ALL ($4::text[])",
    "vacuum_streams": " AND job_id <> ALL ($4::text[])",
}
"""The fragments by which a claim or another service leaves out rows, and an expiry leaves out names, by
statement. If there are none to leave out, the fragment is empty, so that these statements and their plans
stay the same."""

REFUSABLE: Final = {
    "block_surplus": "SELECT job_id FROM surplus",
    "unblock_limited": "SELECT job_id FROM first",
    "unblock_late": "SELECT job_id FROM late",
    "unblock_unclaimed": "SELECT job_id FROM first",
    "unblock_forgotten": "SELECT job_id FROM first",
    "feed_shares": "SELECT job_id FROM chosen",
    "renew_due": "SELECT job_id FROM unrenewed",
    "renew_blocked": "SELECT job_id FROM unrenewed",
    "end_pauses": "SELECT name FROM ended",
    "delete_past_starts": "SELECT ctid::pg_catalog.text FROM past",
    "report_gone": "SELECT job_id FROM gone",
    "restart_leases": "SELECT job_id FROM early",
    "correct_waits": "SELECT DISTINCT job_id FROM early",
    "correct_due_times": "SELECT job_id FROM early",
    "retire_schedules": "SELECT schedule_id FROM undeclared",
    "continue_schedules": "SELECT schedule_id FROM stalled",
    "vacuum_schedules": "SELECT schedule_id FROM old",
    "vacuum_results": "SELECT job_id FROM old",
    "vacuum_steps": "SELECT DISTINCT job_id FROM old",
    "end_past_deadlines": "SELECT job_id FROM old",
    "forget_deadlines": "SELECT entry_id::pg_catalog.text FROM past",
    "vacuum_deadlines": "SELECT entry_id::pg_catalog.text FROM old",
    "vacuum_streams": "SELECT DISTINCT job_id FROM old",
}
"""What reads the keys of the rows that a statement is about to change. In the variant of the statement that
finds them, it replaces the part that changes them, which begins with the query ``changed``."""

_CHANGES: Final = ",\nchanged AS ("

WITHOUT_RESULT: Final = """
      AND NOT EXISTS (
          SELECT FROM {schema}scheduler_results AS kept WHERE kept.job_id = scheduled_jobs.job_id OFFSET 0
      )"""
"""The fragment by which a statement that completes and deletes jobs leaves out those with a kept result,
which is that of an earlier end. It is empty where the rows of completed jobs are kept."""

DELETING: Final = ("exchange_jobs", "complete_unlocked", "hand_over")
"""The statements that either keep or delete the rows of the jobs that they complete."""

LOCK_LIMIT: Final = f" AND (SELECT set_config('lock_timeout', '{LOCK_TIMEOUT_MS}ms', true) IS NOT NULL)"
"""The fragment by which a statement limits its waits for locks, before it reads the first row. It is empty in
the transaction of a caller, where the limit would last until the end of the transaction."""

_PRIORITIES: Final = {priority.value: str(priority.db_value) for priority in JobPriority}
_COUNTS: Final = {
    # The array begins with the numbers of scheduled jobs and of started attempts, and SQL counts from 1.
    f"count_{outcome}": f"coalesce(examined.counts[{place}], 0)"
    for place, outcome in enumerate(OUTCOMES, start=3)
}
"""The number of each outcome in a row of statistics; an earlier release may have written a shorter array."""


def load_queries(schema: str) -> Mapping[str, Query]:
    """Return every statement by name, for the tables in ``schema``."""
    return MappingProxyType({name: load_query(schema, name) for name in _sources().texts})


@cache
def load_query(schema: str, name: str) -> Query:
    """Return one statement. Loading all of them at once would block the event loop for 14 ms."""
    return compose_query(schema, name)


@cache
def load_variant(
    schema: str,
    name: str,
    *,
    is_recorded: bool = True,
    leaves_out: bool = False,
    deletes: bool = False,
    is_limited: bool = False,
    selects: bool = False,
    finds: bool = False,
) -> Query:
    """Return a statement as one call needs it: with or without some of its parts.

    Args:
        schema: The schema of the tables.
        name: The name of the statement.
        is_recorded: Whether it writes a record of what it does, if it has one.
        leaves_out: Whether it leaves out the rows or names of one more argument, the last.
        deletes: Whether it deletes the jobs that it completes.
        is_limited: Whether it waits for no lock for long, for a transaction of its own.
        selects: Whether it changes only the rows of one more argument, the last.
        finds: Whether it returns the keys of the rows that it is about to change, and changes none.
    """
    fragments = {} if is_recorded else dict.fromkeys(_OF_RECORDS, "")
    if leaves_out:
        fragments["left_out"] = LEFT_OUT[name]
    # The condition that leaves out the rows of a list selects them with the opposite operator.
    if selects:
        fragments["left_out"] = LEFT_OUT[name].replace("<> ALL", "= ANY")
    if deletes:
        fragments["without_result"] = WITHOUT_RESULT
        fragments["updated_heads"] = ""
        fragments["ended_heads"] = "{deleted_heads}"
    if is_limited:
        fragments["within_lock_limit"] = LOCK_LIMIT
    query = compose_query(schema, name, **fragments)
    if finds:
        before_changes, _, _ = query.text.partition(_CHANGES)
        query = replace(query, text=f"{before_changes}\n{REFUSABLE[name]};")
    return query


def names_by_text(schema: str) -> dict[str, str]:
    """Return the name of the statement that each text belongs to.

    A statement has several texts if ``load_variant()`` can change it, and this returns all of them.
    """
    names: dict[str, str] = {}
    for name, query in load_queries(schema).items():
        # For each argument of load_variant(), the values that make a difference for this statement.
        records = (True, False) if query.is_recorded else (True,)
        omissions = (False, True) if name in LEFT_OUT else (False,)
        deletions = (False, True) if name in DELETING else (False,)
        limits = (False, True) if query.limits_wait else (False,)
        for is_recorded, leaves_out, deletes, is_limited in product(records, omissions, deletions, limits):
            variant = load_variant(
                schema,
                name,
                is_recorded=is_recorded,
                leaves_out=leaves_out,
                deletes=deletes,
                is_limited=is_limited,
            )
            names[variant.text] = name
    # Such a statement can also return the rows that it is about to change, or change only some of them.
    for name in REFUSABLE:
        for leaves_out in (False, True):
            names[load_variant(schema, name, leaves_out=leaves_out, finds=True).text] = name
        names[load_variant(schema, name, selects=True).text] = name
    return names


def compose_query(schema: str, name: str, **fragments: str) -> Query:
    """Return one statement. The given texts replace the fragments of these names in the files."""
    sources = _sources()
    schema_fragments = {
        "channel": f"'{channel_of(schema)}'",
        "lock_mask": f"'{_lock_mask_of(schema)}'::bigint",
    }
    # Of several fragments with one name, the last one counts.
    all_fragments = {**sources.fragments, **schema_fragments, **fragments}
    query = _query(name, sources.texts[name], all_fragments)
    return replace(query, text=qualify(query.text, schema))


@cache
def channel_of(schema: str) -> str:
    """Return the notification channel of a schema. Its name has a fixed length."""
    return f"pg_scheduler_{md5(schema.encode(), usedforsecurity=False).hexdigest()}"


def _lock_mask_of(schema: str) -> int:
    """Return the number by which the keys of the advisory locks of a schema differ from those of others.

    It is 0 for the default schema, whose keys have to stay those that other releases and programs use.
    """
    if schema == DEFAULT_SCHEMA:
        return 0
    return int.from_bytes(sha256(schema.encode()).digest()[:8], signed=True)


def load_fragment(name: str) -> str:
    """Return one fragment of the files ``*.sql``, with the fragments that it contains itself."""
    fragments = _sources().fragments
    return _expand(fragments[name], fragments)


class _Sources(NamedTuple):
    """The texts of the files."""

    texts: Mapping[str, str]
    """The statements by name."""
    fragments: Mapping[str, str]


@cache
def _sources() -> _Sources:
    """Return the statements and fragments of all files.

    The comments of fragments are removed, since these stand within statements. Those of statements stay.
    """
    fragments: dict[str, str] = {**_PRIORITIES, **_COUNTS}
    texts: dict[str, str] = {}
    for kind, name, text in _parts():
        if kind == "fragment" and name in fragments:
            raise LookupError(f"two fragments are named {name!r}")
        if kind == "fragment":
            fragments[name] = _COMMENT.sub("", text).strip()
        elif name in texts:
            raise LookupError(f"two statements are named {name!r}")
        else:
            texts[name] = text
    return _Sources(texts, fragments)


def _parts() -> Iterator[tuple[str, str, str]]:
    """Yield the parts of all files: ``name`` or ``fragment``, the name after that, and the text."""
    for folder in FOLDERS:
        for file in sorted(files("pg_scheduler").joinpath(folder).iterdir(), key=lambda file: file.name):
            if file.name.endswith(".sql"):
                # After the text before the first mark, split() returns three texts for each mark: its two
                # groups, and what follows it.
                _, *parts = _MARK.split(file.read_text(encoding="utf-8"))
                yield from zip(parts[::3], parts[1::3], parts[2::3], strict=True)


def _query(name: str, text: str, fragments: Mapping[str, str]) -> Query:
    """Return the statement of a text that begins with its declarations.

    Raises:
        LookupError: A declaration is missing or invalid, a fragment is unknown, a comment follows the
            statement, or the search path matters.
    """
    declared: dict[str, str] = {}
    while match := _DECLARATION.match(text):
        declared[match[1]] = match[2]
        text = text[match.end() :]
    if "route" not in declared:
        raise LookupError(f"statement {name!r} declares no route; write '-- route: ...' below its name")
    is_shareable = declared["route"].startswith("shared, ")
    routes = declared["route"].removeprefix("shared, ")
    # These names show which variants the statement has, and are replaced by the fragments below.
    is_recorded = "{into_audit}" in text or "{counted_failures}" in text
    limits_wait = "{within_lock_limit}" in text
    try:
        text = _expand(text, fragments).strip()
    except KeyError as error:
        raise LookupError(f"statement {name!r} names an unknown fragment: {error}") from error
    if text.rpartition("\n")[2].startswith("--"):
        raise LookupError(
            f"a comment follows statement {name!r}; write it below the mark of what it describes"
        )
    try:
        text = qualify_builtins(text)
    except ValueError as error:
        raise LookupError(f"statement {name!r} depends on the search path: {error}") from error
    try:
        return Query(
            name=name,
            text=text,
            routes=tuple(Route(route) for route in routes.split(" | ")),
            is_shareable=is_shareable,
            timeout=Timeout(declared.get("timeout", Timeout.CALL)),
            is_recorded=is_recorded,
            limits_wait=limits_wait,
        )
    except ValueError as error:
        raise LookupError(f"statement {name!r} has the invalid declaration {declared!r}: {error}") from error


def _expand(text: str, fragments: Mapping[str, str]) -> str:
    """Return a text with the fragments in place of their names. ``{schema}`` stays as it is."""
    while _PLACEHOLDER.search(text):  # a fragment may contain others
        text = _PLACEHOLDER.sub(lambda match: fragments[match[1]], text)
    return text
