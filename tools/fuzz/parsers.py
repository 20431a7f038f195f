"""The parsers of foreign text: what each reads, how long a text may be, and which errors are its refusals.

A foreign text comes from a request, a row, a notification, another program or a command line. A parser may
refuse it by the errors of its `Parser`. Any other error is a finding, and so is a promise that does not hold,
such as a password that a masked DSN still contains.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

from starlette.requests import Request

from pg_scheduler import ConfigurationError
from pg_scheduler.base.dsn import (
    MASK,
    MIN_SECRET_LENGTH,
    address_parts,
    mask_dsn,
    normalise_dsn,
    passwords_in,
)
from pg_scheduler.base.dsn import MAX_LENGTH as MAX_DSN
from pg_scheduler.base.health import Health
from pg_scheduler.base.sqltext import is_storable
from pg_scheduler.base.status import JobStatus
from pg_scheduler.base.text.times import TimeError, read_instant, read_span
from pg_scheduler.cli import values as command_values
from pg_scheduler.cli.errors import CommandError
from pg_scheduler.cluster_events import wire
from pg_scheduler.dashboard import messages, positions
from pg_scheduler.dashboard.access import Access, basic_auth, bearer
from pg_scheduler.dashboard.actions.request import MAX_BODY_BYTES, ActionRequest, read_form
from pg_scheduler.dashboard.arguments import value_of
from pg_scheduler.dashboard.context import RejectedError, entered_instant
from pg_scheduler.dashboard.csrf import is_own_request
from pg_scheduler.dashboard.pages import workflows
from pg_scheduler.dashboard.pages.errors import error_text
from pg_scheduler.dashboard.pages.schedule_form import DEFAULTS, trigger_of
from pg_scheduler.dashboard.snapshot import Snapshot
from pg_scheduler.dashboard.texts import linked, marked, sentence, short, timed, unbroken, visible
from pg_scheduler.dashboard.tracebacks import blocks_of
from pg_scheduler.database import faults
from pg_scheduler.importing import procrastinate
from pg_scheduler.importing.imported import NotImportedError
from pg_scheduler.inspect.bulk_runs import BulkJobs
from pg_scheduler.inspect.dependencies import cancelled_because_of
from pg_scheduler.inspect.paths import Path as Path_
from pg_scheduler.inspect.paths import Plan, Segment
from pg_scheduler.inspect.positions import MAX_LENGTH as MAX_POSITION
from pg_scheduler.inspect.positions import Position, read_now, read_position, write_position
from pg_scheduler.inspect.search.conditions import conditions_of
from pg_scheduler.inspect.search.parser import FIELDS, parse_search
from pg_scheduler.inspect.search.schedules import SCHEDULE_FIELDS, parse_schedule_search
from pg_scheduler.inspect.search.words import MAX_LENGTH as MAX_SEARCH
from pg_scheduler.inspect.search.words import SearchError
from pg_scheduler.jobs import context, deadlines, keys, metadata
from pg_scheduler.jobs.codec import encoding_of, is_encoded
from pg_scheduler.jobs.error_text import normalized
from pg_scheduler.jobs.history import errors_from, instant_from
from pg_scheduler.jobs.payload import decode, has_encoded_arguments, object_from, value_from
from pg_scheduler.jobs.worker_report import ReportedHealth, ReportedSettings
from pg_scheduler.schedules.declared import reported_declarations
from pg_scheduler.telemetry.probes import _answer
from pg_scheduler.telemetry.server import MAX_REQUEST_BYTES, request_of
from pg_scheduler.triggers import Trigger, parse_trigger
from pg_scheduler.triggers.cron_fields import parse_cron
from pg_scheduler.triggers.phrases import EXAMPLES
from pg_scheduler.triggers.search import SearchLimitError
from pg_scheduler.triggers.serialization import MAX_LENGTH as MAX_TRIGGER
from pg_scheduler.triggers.zones import named_zone

ROOT: Final = Path(__file__).resolve().parents[2]
NOW: Final = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
BERLIN: Final = ZoneInfo("Europe/Berlin")

TIMEOUT_S: Final = 5
"""Seconds that a text may take while atheris measures, which makes Python several times slower."""

SEARCH_TIMEOUT_S: Final = 20
"""Seconds for a text with a trigger, whose fire times are searched in 50,000 steps at most."""

MAX_NOTIFICATION: Final = 7_999
"""Bytes of a notification, by PostgreSQL."""

MAX_COLUMN: Final = 65_536
"""Characters of a column that is tried. Constraints bound most of them, and PostgreSQL the others."""

MAX_ARGUMENT: Final = 131_071
"""Bytes of an argument of a command, by Linux."""

MAX_TARGET: Final = 65_536
"""Bytes of the address and the headers of a request, by the usual servers."""


class BrokenPromiseError(AssertionError):
    """A parser returned what it promises never to return."""


@dataclass(frozen=True, slots=True)
class Parser:
    """A reader of foreign text.

    Attributes:
        name: Its name on the command line.
        read: Reads a text.
        refusals: The errors by which it refuses one.
        max_length: The characters that it accepts, or that can reach it.
        refuses_longer: Whether it refuses longer texts itself; otherwise, what hands the text over does.
        files: The test modules whose texts are its corpus.
        seeds: Further texts of the corpus.
        prefixes: What precedes the repeated parts in the test of its work.
        timeout_s: Seconds that one text may take under the fuzzer.
        needs: The optional package that it imports; empty for none.
    """

    name: str
    read: Callable[[str], object]
    refusals: tuple[type[Exception], ...]
    max_length: int
    refuses_longer: bool = False
    files: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    timeout_s: int = TIMEOUT_S
    needs: str = ""

    def call(self, data: bytes) -> bool:
        """Read the bytes as a text; return whether the parser has accepted it.

        Bytes that are no UTF-8 become lone surrogates, as in the arguments of a command.
        """
        text = data.decode("utf-8", "surrogateescape")
        try:
            self.read(text)
        except self.refusals:
            return False
        return True

    def corpus(self) -> list[str]:
        """Return the texts from which a search for others starts, each once, short ones first."""
        texts = {*self.seeds, *(text for file in self.files for text in _texts_of(file))}
        return sorted(
            (text for text in texts if len(text) <= self.max_length), key=lambda text: (len(text), text)
        )


def _texts_of(file: str) -> list[str]:
    """Return the texts in a Python module."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= 2_000
    ]


def promise(holds: bool, text: str) -> None:
    """Raise `BrokenPromiseError` if a promise does not hold."""
    if not holds:
        raise BrokenPromiseError(text)


# -- searches ------------------------------------------------------------------------------------------


def read_search(text: str) -> None:
    """Read a search for jobs, and make its conditions."""
    conditions_of(parse_search(text, now=NOW, tz=BERLIN))


def read_schedule_search(text: str) -> None:
    """Read a search for schedules."""
    parse_schedule_search(text, now=NOW, tz=BERLIN)


PLAN: Final = Plan(tuple(map(Segment, Path_)))
"""A plan with a segment of each kind, so that keys of all types are read."""


def read_search_position(text: str) -> None:
    """Read the position at which a search continues; the database must be able to compare with its key."""
    if text.startswith("["):
        # So the search need not find out how Base64 is written.
        text = base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode().rstrip("=")
    read_now(text).astimezone(BERLIN)
    for value in read_position(text, PLAN).key:
        if isinstance(value, datetime):
            value.astimezone(UTC)
        promise(not isinstance(value, str) or is_storable(value), "a key can be stored")


def read_sealed_position(text: str) -> None:
    """Read an encrypted position; one that was changed must not be accepted."""
    positions._decrypt(b"key", text)  # noqa: SLF001 - the parser behind a page


def read_workflow_position(text: str) -> None:
    """Read the position of the list of workflows."""
    for value in workflows._position(text):  # noqa: SLF001 - the parser behind a page
        promise(is_storable(value), "a key can be stored")


# -- times and triggers --------------------------------------------------------------------------------


def read_time(text: str) -> None:
    """Read a time, or a range of two."""
    start, dots, end = text.partition("..")
    read_instant(start, NOW, BERLIN)
    if dots:
        read_span(end, NOW, BERLIN, start)


def read_cron(text: str) -> None:
    """Read a cron expression, and find its next time."""
    parse_cron(text).at_or_after(datetime(2026, 11, 21))  # noqa: DTZ001 - wall time


def _use(trigger: Trigger) -> None:
    """Describe a trigger, find its next fire times, and read its JSON again."""
    str(trigger)
    promise(
        Trigger.from_json(json.dumps(trigger.to_json())) == trigger, "its JSON is that of an equal trigger"
    )
    try:
        fires = trigger.upcoming(2, after=NOW, anchor=NOW)
    except SearchLimitError:
        return
    promise(all(fire > NOW for fire in fires), "fire times are later than the given instant")


def read_trigger(text: str) -> None:
    """Read a trigger as people write it."""
    _use(parse_trigger(text, "Europe/Berlin"))


def read_trigger_json(text: str) -> None:
    """Read a trigger of a row or of a request."""
    _use(Trigger.from_json(text))


def read_zone(text: str) -> None:
    """Read the name of a time zone."""
    named_zone(text)


# -- connection strings --------------------------------------------------------------------------------


def read_dsn(text: str) -> None:
    """Read a DSN; its passwords must not be in its masked form."""
    dsn = normalise_dsn(text, "dsn")
    promise(normalise_dsn(dsn, "dsn") == dsn, "a normal DSN stays as it is")
    address_parts(dsn)
    masked = mask_dsn(dsn)
    visible_parts = "".join(address_parts(dsn).values())
    for password in passwords_in(dsn):
        # A password that is also a part of the address, or of the mask, is found in the masked form.
        is_unique = dsn.count(password) == 1 and password not in f"{visible_parts} {MASK}"
        if len(password) >= MIN_SECRET_LENGTH and is_unique:
            promise(password not in masked, "a masked DSN has no password")


# -- requests ------------------------------------------------------------------------------------------


def _request(headers: list[tuple[str, str]], body: bytes = b"") -> Request:
    """Return a request with these headers and this body."""

    async def receive() -> dict[str, Any]:
        """Return the body in one message."""
        return {"type": "http.request", "body": body}

    encoded = [
        (name.encode("latin-1", "replace"), text.encode("latin-1", "replace")) for name, text in headers
    ]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": encoded}, receive)


def read_form_body(text: str) -> None:
    """Read the body of a form, and its fields as actions read them."""
    body = text.encode("utf-8", "surrogateescape")
    headers = [("content-type", "application/x-www-form-urlencoded")]
    form = asyncio.run(read_form(_request(headers, body)))
    page = cast("Any", SimpleNamespace(now=NOW, parameters={}, operations=None))
    request = ActionRequest(page, form)
    for name in form:
        for read in (request.number, request.instant):
            try:
                read(name)
            except RejectedError:
                continue
        value_of(request.text(name))
    promise(all(map(is_storable, request.rows)), "an id can be stored")


def read_trigger_form(text: str) -> None:
    """Read the fields of a trigger, as the form of a schedule sends them."""
    _use(trigger_of({**DEFAULTS, **dict(parse_qsl(text, keep_blank_values=True))}))


def read_entered_time(text: str) -> None:
    """Read the time of a form."""
    zone, _, entered = text.rpartition("|")
    entered_instant("until", entered, NOW, zone)


def read_cookie(text: str) -> None:
    """Read the cookie with the message of the last action."""
    messages.message_of(text)
    messages.undo_of(text)
    messages.job_of(text)


SNAPSHOT: Final = Snapshot({"jobs": "<p>1</p>", "counts": "<p>2</p>"}, "", NOW)


def read_versions(text: str) -> None:
    """Read the versions of the parts that a page shows."""
    SNAPSHOT.is_shown(text)
    SNAPSHOT.since(text, NOW)


AUTHORIZE: Final = (basic_auth("ann", "secret"), bearer("secret"))


def read_headers(text: str) -> None:
    """Read the headers by which a request proves who sends it and from where."""
    headers = [
        (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in text.split("\n"))
    ]
    request = _request(headers)
    for authorize in AUTHORIZE:
        result = authorize(request)
        has_password = any("secret" in value or "YW5uOnNlY3JldA==" in value for _, value in headers)
        promise(not isinstance(result, Access) or has_password, "only the password opens the dashboard")
    is_own_request(request, frozenset({"https://example.org"}))


HEALTH: Final = SimpleNamespace(health=lambda: Health("running", 4, 1, (), None))


def read_probe(text: str) -> None:
    """Read the head of a request to the servers of probes and metrics."""
    request = request_of(text.encode("utf-8", "surrogateescape").decode("latin-1"))
    answer = _answer(cast("Any", HEALTH), request)
    promise(answer.status in {200, 404, 405, 503}, "the status is one of four")


# -- rows and notifications ----------------------------------------------------------------------------


def read_events(text: str) -> None:
    """Read the events of a notification, and write them again."""
    for event in wire.decode(text):
        promise(len(wire.decode(f"[{wire.encode(event)}]")) == 1, "an event that was read can be sent")


def read_arguments(text: str) -> None:
    """Read the arguments and the metadata of a job."""
    has_encoded_arguments(text)
    values = metadata.metadata_of(text)
    metadata.trace_from(values)
    metadata.trace_id_of(values)
    metadata.tags_of(values)
    decode(text)


def read_history(text: str) -> None:
    """Read the history of a job's attempts, and find the cause of a cancellation in it."""
    errors = errors_from(text)
    job = SimpleNamespace(errors=errors, status=JobStatus.CANCELLED)
    cancelled_because_of(cast("Any", job))
    for error in errors:
        for traceback in (error.traceback, error.message):
            read_error(traceback or "")


def read_cause(text: str) -> None:
    """Find the job that caused a cancellation in its message."""
    error = SimpleNamespace(outcome="parent", message=text)
    cancelled_because_of(cast("Any", SimpleNamespace(errors=(error,), status=JobStatus.CANCELLED)))


def read_options(text: str) -> None:
    """Read the options of a job, and other columns with an object."""
    deadlines.deadline_of(text)
    context._origin(text)  # noqa: SLF001 - the reader of the column
    values = object_from(text)
    for value in values.values():
        instant_from(value)
        deadlines.instant_of(value)
        if is_encoded(value):
            encoding_of(value)
    reported_declarations(values)
    BulkJobs.of(values)
    value_from(text)


def read_report(text: str) -> None:
    """Read the health and the settings that a worker reports in its row."""
    values = object_from(text)
    ReportedHealth.of(values).without_names()
    settings = ReportedSettings(values)
    for name in ("aliases", "limits", "shares", "zone_data", "fingerprints", "declared_ids", "retention"):
        value = getattr(settings, name)
        list(value or ())
    for task in ("mail.send", *list(values)[:3]):
        settings.options_of(task)
        settings.parameters_of(task)
        settings.positional_of(task)
        settings.retention_of(task)


def read_error(text: str) -> None:
    """Show the error of a job with its traceback, as pages do."""
    for block in blocks_of(text):
        for frame in block.frames:
            str((frame.library, frame.folder, frame.file))
    for status in JobStatus:
        error_text(text, status)
    normalized(text)
    for show in (visible, short, unbroken, sentence, linked):
        show(text)
    timed(text, NOW)
    marked(text, text[:50])


def read_key(text: str) -> None:
    """Show the key of a limit, and find its parts."""
    keys.readable(text)
    keys.short_ascii(text)
    keys.name_and_key("limit:", text)
    keys.prefix_of("limit:", text)


def read_server_message(text: str) -> None:
    """Find the character that the database lacks in an error of the server."""
    error = Exception(text)
    cast("Any", error).context = text
    faults._unstorable_character(error)  # noqa: SLF001 - the reader of the message


# -- other programs ------------------------------------------------------------------------------------


def read_procrastinate(text: str) -> None:
    """Read the arguments of a job of procrastinate."""
    row = {
        "id": 1,
        "task_name": "mail",
        "priority": 0,
        "lock": None,
        "args": text,
        "status": "todo",
        "due": None,
    }
    row |= procrastinate.DEFAULTS
    procrastinate.convert(cast("Any", row), ignores_locks=False)


def read_apscheduler(text: str) -> None:
    """Read a crontab of APScheduler."""
    from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415 - optional

    from pg_scheduler.importing.apscheduler import cron_of  # noqa: PLC0415 - optional

    cron_of(CronTrigger.from_crontab(text, timezone="Europe/Berlin"), NOW)


def read_celery(text: str) -> None:
    """Read a column of a periodic task of Celery."""
    from pg_scheduler.importing.django_celery_beat import _json  # noqa: PLC0415 - optional

    for kind in (list, dict):
        try:
            _json("args", text, kind)
        except NotImportedError:
            continue


def read_token(text: str) -> None:
    """Read the token of an event of an agent."""
    from pg_scheduler.integrations.pydantic_ai import _target_of  # noqa: PLC0415 - optional

    if text.startswith("["):
        text = base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()
    target = _target_of(text)
    promise(
        is_storable(target.job_id) and is_storable(target.signal_name), "the id and the name can be stored"
    )


def read_command(text: str) -> None:
    """Read a value of the command line in each of the forms that an option may have."""
    readers: tuple[Callable[[], object], ...] = (
        lambda: command_values.read_duration("--x", text),
        lambda: command_values.read_deadline("--x", text, BERLIN),
        lambda: command_values.read_time("--x", text, BERLIN),
        lambda: command_values.read_since("--x", text, BERLIN),
        lambda: command_values.read_move("--x", text, BERLIN),
        lambda: command_values.read_rate(text),
        lambda: command_values.read_json("--x", text),
    )
    refused = 0
    for read in readers:
        try:
            read()
        except CommandError:
            refused += 1
    if refused == len(readers):
        raise ValueError("no option accepts the text")


HISTORY: Final = json.dumps(
    [
        {
            "attempt": 1,
            "outcome": "parent",
            "message": "job 'a', after which this job was to run, ended as 'failed'",
            "at": "2026-11-21T12:30:00+00:00",
            "log": ["a"],
            "trace": {"a": "b"},
        }
    ]
)
OPTIONS: Final[tuple[dict[str, Any], ...]] = (
    {
        "deadline": "2026-11-21T12:30:00.000000+00:00",
        "schedule_id": "a",
        "fire_time": "2026-11-21T12:30:00+01:00",
    },
    {"a": {"function": "f", "task": "t", "names": ["n"], "derived_key": True}},
    {
        "verb": "move",
        "where": "status:failed",
        "names": None,
        "rate": 5,
        "to": "2026-11-21T12:30:00+00:00",
        "group": None,
    },
)
REPORT: Final[dict[str, Any]] = {
    "pool": {"size": 1, "idle": 1, "max": 4},
    "loop_lag_s": 0.1,
    "limits": [{"name": "a", "task": "b"}],
    "options": {"mail.send": {"priority": "high", "max_retries": 3}},
    "parameters": {"mail.send": [["to", True]]},
    "abandoned": [{"job_id": "a"}],
    "vacuum_enabled": True,
    "vacuum": {"mail.send": {"days": 3}},
}
TRACEBACK: Final = (
    'Traceback (most recent call last):\n  File "/app/a.py", line 7, in f\n    g()\n    ~^^\nE: no'
)
EXPIRED: Final = (
    "not started between 2026-11-21 12:30 and 2026-11-21 12:35 UTC; at 2026-11-21 12:30:00 UTC, 5 s ago"
)
TRACE: Final = (
    '{"metadata": {"trace": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}}'
)
POSITION: Final = write_position(Position(0, ("job:7",), 10, 3), NOW)
EVENT: Final = (
    '["JobFailed",{"job_id":"a","job_name":"b","error":"E","attempt":1,"at":"2026-11-21T12:30:00+00:00"}]'
)
TOKEN: Final = base64.urlsafe_b64encode(b'["a","b","approval"]').decode()

PARSERS: Final[dict[str, Parser]] = {
    parser.name: parser
    for parser in (
        Parser(
            "search",
            read_search,
            (SearchError,),
            MAX_SEARCH,
            refuses_longer=True,
            files=("tests/unit/inspect/test_search.py",),
            seeds=tuple(f"{field}:{value}" for field, value in FIELDS.items()),
            prefixes=("id:", "arg.", "due:"),
        ),
        Parser(
            "schedule-search",
            read_schedule_search,
            (SearchError,),
            MAX_SEARCH,
            refuses_longer=True,
            seeds=tuple(f"{field}:{value}" for field, value in SCHEDULE_FIELDS.items()),
            prefixes=("metadata.", "next:"),
        ),
        Parser(
            "search-position",
            read_search_position,
            (ValueError,),
            MAX_POSITION,
            refuses_longer=True,
            seeds=(POSITION, '["2026-11-21T12:30:00+00:00", 10, 3, 0, "job:7"]'),
        ),
        Parser(
            "sealed-position",
            read_sealed_position,
            (ValueError,),
            MAX_POSITION,
            refuses_longer=True,
            seeds=(positions._encrypt(b"key", POSITION),),  # noqa: SLF001 - as a page does
        ),
        Parser(
            "workflow-position",
            read_workflow_position,
            (RejectedError,),
            MAX_POSITION,
            refuses_longer=True,
            seeds=('["mail.send", "job:7"]',),
            prefixes=("", "["),
        ),
        Parser(
            "time",
            read_time,
            (TimeError,),
            MAX_TARGET,
            seeds=("now", "today", "-1h30m", "+2w", "2026-11-20", "2026-11-20T14:30Z", "2026-11-20..21"),
            prefixes=("", "+", "2026-11-20T"),
        ),
        Parser(
            "cron",
            read_cron,
            (ValueError,),
            1000,
            refuses_longer=True,
            files=("tests/unit/triggers/test_cron.py",),
            seeds=("*/5 0-6,22-23 1,15,L * mon-fri", "0 8 * * 5#3,L1", "@hourly", "0 0 1 1 * 30"),
            prefixes=("", "* * * * ", "0-59/"),
        ),
        Parser(
            "trigger",
            read_trigger,
            (ValueError,),
            40_000,
            refuses_longer=True,
            seeds=EXAMPLES,
            prefixes=("", "at ", "every ", "after "),
            timeout_s=SEARCH_TIMEOUT_S,
        ),
        Parser(
            "trigger-json",
            read_trigger_json,
            (ValueError,),
            MAX_TRIGGER,
            refuses_longer=True,
            files=("tests/unit/triggers/test_serialization.py",),
            seeds=('{"kind": "every", "every": "PT15M"}', '{"kind": "cron", "expression": "0 8 * * *"}'),
            prefixes=("", '{"kind": "every", "every": '),
            timeout_s=SEARCH_TIMEOUT_S,
        ),
        Parser(
            "zone",
            read_zone,
            (ValueError,),
            64,
            refuses_longer=True,
            seeds=("Europe/Berlin", "UTC", "America/Argentina/Buenos_Aires", "Etc/GMT+3"),
        ),
        Parser(
            "dsn",
            read_dsn,
            (ConfigurationError,),
            MAX_DSN,
            refuses_longer=True,
            files=("tests/unit/test_dsn.py", "tests/unit/test_dsn_options.py"),
            prefixes=("", "postgresql://", "postgresql://u:p@h:", "postgresql://h/d?"),
        ),
        Parser(
            "form",
            read_form_body,
            (RejectedError, UnicodeDecodeError),
            MAX_BODY_BYTES,
            refuses_longer=True,
            seeds=(
                "row=job%3A7&row=b",
                "rate=1%2C000&until=%2B1h&zone=UTC&row=a",
                "confirm=yes&kwargs=%7B%7D",
            ),
            prefixes=("row=", "a="),
        ),
        Parser(
            "trigger-form",
            read_trigger_form,
            (ValueError,),
            MAX_BODY_BYTES,
            seeds=(
                "kind=cron&cron=0+8+*+*+*&timezone=Europe%2FBerlin",
                "kind=interval&interval=15m",
                "kind=instants&instants=2027-01-31T09:00%0A2027-02-01",
                "kind=calendar&calendar=2&unit=months&time=09:00&first=2027-01-31&missing_day=skip",
                "kind=json&json=%7B%22kind%22%3A%22every%22%2C%22every%22%3A%22PT1M%22%7D",
                "kind=after&after=10m",
            ),
            prefixes=("", "kind=instants&instants="),
            timeout_s=SEARCH_TIMEOUT_S,
        ),
        Parser(
            "entered-time",
            read_entered_time,
            (RejectedError,),
            MAX_BODY_BYTES,
            seeds=("+1h", "tomorrow 08:00", "Europe/Berlin|2027-01-31T09:00"),
        ),
        Parser(
            "cookie",
            read_cookie,
            (),
            messages.MAX_LENGTH,
            files=("tests/dashboard/test_undo.py",),
            seeds=(
                "jobs_retried.5.0.1",
                "cancel.1.0.0!job%3A7",
                "pause_task~%2Ftask%2Fresume%3Fname%3Da%23note%3Db",
            ),
        ),
        Parser("versions", read_versions, (), MAX_TARGET, seeds=(SNAPSHOT.versions, "1~jobs-00000000")),
        Parser(
            "headers",
            read_headers,
            (),
            MAX_TARGET,
            seeds=(
                "authorization: Basic YW5uOm5v",
                "authorization: Bearer other",
                "origin: https://example.org\nhost: example.org\nsec-fetch-site: same-origin",
            ),
        ),
        Parser(
            "probe",
            read_probe,
            (),
            MAX_REQUEST_BYTES,
            seeds=("GET /readyz?verbose&exclude=pool,loop HTTP/1.1\r\nAccept: application/json\r\n",),
            prefixes=("", "GET /livez?", "GET /livez?exclude="),
        ),
        Parser(
            "events",
            read_events,
            (),
            MAX_NOTIFICATION,
            files=("tests/unit/events/test_wire.py",),
            seeds=(f"[{EVENT}]",),
            prefixes=("", "["),
        ),
        Parser(
            "arguments",
            read_arguments,
            (ValueError,),
            MAX_COLUMN,
            files=("tests/unit/jobs/test_payload.py",),
            seeds=(
                '{"args": [1, "a"], "kwargs": {"b": null}, "metadata": {"tags": ["x"]}}',
                '{"args": {"codec": "fernet", "key": "ab", "data": "YQ=="}, "kwargs": {}}',
                TRACE,
            ),
        ),
        Parser(
            "history",
            read_history,
            (),
            MAX_COLUMN,
            files=("tests/unit/jobs/test_history.py",),
            seeds=(HISTORY,),
        ),
        Parser(
            "cause",
            read_cause,
            (),
            MAX_COLUMN,
            seeds=("job 'a\\n\\u200b', after which this job was to run, ended as 'failed'",),
            prefixes=("", "job ", "job '"),
        ),
        Parser(
            "options",
            read_options,
            (ValueError,),
            MAX_COLUMN,
            seeds=tuple(map(json.dumps, OPTIONS)),
        ),
        Parser(
            "report",
            read_report,
            (),
            MAX_COLUMN,
            files=("tests/unit/jobs/test_worker_report.py",),
            seeds=(json.dumps(REPORT),),
        ),
        Parser(
            "error",
            read_error,
            (),
            MAX_COLUMN,
            files=("tests/dashboard/test_tracebacks.py",),
            seeds=(
                TRACEBACK,
                EXPIRED,
                "see https://example.org/a?b=c or ann@example.org",
            ),
            prefixes=("", '  File "', "http://"),
        ),
        Parser(
            "key", read_key, (), MAX_COLUMN, seeds=("limit:stripe:42", "limit:caf\\xe9:\\u20ac\\U0001f600")
        ),
        Parser(
            "server-message",
            read_server_message,
            (),
            MAX_COLUMN,
            seeds=(
                'character 0xe2 0x82 0xac in encoding "UTF8"',
                'JSON data, line 1: {"a": "\\ud83d\\ude00...',
            ),
            prefixes=("", "\\u"),
        ),
        Parser("procrastinate", read_procrastinate, (ValueError,), MAX_COLUMN, seeds=('{"a": [1, null]}',)),
        Parser(
            "apscheduler",
            read_apscheduler,
            (ValueError,),
            1000,
            seeds=("*/5 0-6 1,last 1-12/2 mon-fri", "0 8 2nd mon * *", "0 0 * * *"),
            needs="apscheduler",
            timeout_s=SEARCH_TIMEOUT_S,
        ),
        Parser(
            "celery",
            read_celery,
            (),
            MAX_COLUMN,
            seeds=('[1, "a"]', '{"a": null}'),
            needs="django_celery_beat",
        ),
        Parser(
            "token",
            read_token,
            (ValueError,),
            40_000,
            refuses_longer=True,
            seeds=(TOKEN, '["a", "b", "approval"]'),
            needs="pydantic_ai",
        ),
        Parser(
            "command",
            read_command,
            (ValueError,),
            MAX_ARGUMENT,
            seeds=("90s", "1h30m", "+1h", "-30m", "2027-01-31T09:00", "50/s", "500/h", '{"a": 1}', "[1]"),
            prefixes=("", "+"),
        ),
    )
}
