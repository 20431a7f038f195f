"""Read the jobs of an APScheduler 3 job store, as jobs and schedules of this library.

Rows of the store are pickles, so this runs where APScheduler and the classes of the arguments are installed.
The store's own methods are not used: they delete the rows that they cannot restore.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import Any, Final

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import inspect, select
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from pg_scheduler.base.foreign import guarded
from pg_scheduler.importing.imported import (
    Definition,
    JobDefinition,
    NotImportedError,
    ScheduleDefinition,
    Source,
    StoreInvalidError,
    StoreUnreadableError,
    check_sqlite_file,
    converted,
    upcoming,
)
from pg_scheduler.schedules.policies import CatchUp, Overlap
from pg_scheduler.triggers import Cron, During, Every, Trigger
from pg_scheduler.triggers.search import INSTANT

PREFIX: Final = "aps:"
"""The prefix of the ids of imported jobs and schedules."""

URL_HELP: Final = "pass a URL of SQLAlchemy such as postgresql+psycopg2://user@host/database"

KEYS: Final = ("args", "coalesce", "func", "kwargs", "max_instances", "name", "next_run_time", "trigger")
"""The keys of a pickled job that are read."""

COMPARED_FIRES: Final = 10
"""How many fire times must be equal before a cron trigger is imported."""

# The order in which APScheduler numbers weekdays.
WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MONDAY: Final = datetime(2024, 1, 1)  # noqa: DTZ001 - a wall time
MAXIMA: Final = {"second": 59, "minute": 59, "hour": 23, "day": 31, "month": 12}
POSITIONS: Final = {"1st": 1, "2nd": 2, "3rd": 3, "4th": 4, "5th": 5}

_OPEN_RANGE: Final = re.compile(r"(\d+)/(\d+)")
"""A range without an end, with its start and its step."""

_POSITION: Final = re.compile(r"(1st|2nd|3rd|4th|5th|last) (\w{3})")
"""A weekday of the month, such as ``2nd fri``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A row of the store.

    Attributes:
        source_id: The id of the job in the store.
        state: What APScheduler has pickled; None if the pickle cannot be read.
        problem: Why the pickle cannot be read; None if it was read.
    """

    source_id: str
    state: dict[str, Any] | None
    problem: str | None = None


def read_store(url: str, table: str, schema: str | None, now: datetime) -> list[Source]:
    """Return what the rows of a store become, in the order of their ids. Nothing is written.

    Raises:
        StoreInvalidError: The URL is invalid, its driver is not installed, or there is no such table.
        StoreUnreadableError: The database is unavailable.
    """
    try:
        store = SQLAlchemyJobStore(url=url, tablename=table, tableschema=schema)
    except ImportError as error:
        raise StoreInvalidError(
            f"{error}; install the driver of the URL, or name another one in it"
        ) from error
    except SQLAlchemyError as error:
        raise StoreInvalidError(f"{error}; {URL_HELP}") from error
    except ValueError as error:
        # The message of this error may have a part of the URL, such as its password.
        raise StoreInvalidError(f"the URL is invalid; {URL_HELP}") from error
    columns = store.jobs_t.c
    engine = store.engine
    if engine.dialect.is_async:
        raise StoreInvalidError(
            f"the driver {engine.driver} is for asyncio, and APScheduler is not; {URL_HELP}"
        )
    try:
        if engine.url.get_backend_name() == "sqlite":
            check_sqlite_file(engine.url.database or "")
        with engine.connect() as connection:
            if not inspect(connection).has_table(table, schema):
                name = table if schema is None else f"{schema}.{table}"
                raise StoreInvalidError(
                    f"the database has no table {name}; pass its name by --table and --table-schema"
                )
            rows = connection.execute(select(columns.id, columns.job_state).order_by(columns.id)).all()
    except (OperationalError, InterfaceError) as error:
        raise StoreUnreadableError(str(error)) from error
    except SQLAlchemyError as error:
        raise StoreInvalidError(f"{error}; check the URL, the table and the rights of the role") from error
    finally:
        engine.dispose()
    jobs = [_unpickled(*row) for row in rows]
    return [converted(job.source_id, _task_of(job), partial(convert, job, now)) for job in jobs]


def _unpickled(source_id: str, state: bytes) -> StoredJob:
    """Return a row of the store with the contents of its pickle, or with the error that the pickle raises.

    Code of the application may raise any error while its objects are made.
    """
    return guarded(
        lambda: StoredJob(source_id=source_id, state=dict(pickle.loads(state))),  # noqa: S301 - as APScheduler does
        lambda kind: StoredJob(source_id=source_id, state=None, problem=f"its pickle raises {kind}"),
    )


def _task_of(job: StoredJob) -> str | None:
    """Return the name of the job's function here; None if the pickle cannot be read.

    APScheduler stores ``module:name``, and the name here is ``module.name``.
    """
    if job.state is None:
        return None
    return str(job.state.get("func", "")).replace(":", ".")


def convert(job: StoredJob, now: datetime) -> Definition:
    """Return what a row becomes: a job if it is due at one time, else a schedule.

    Raises:
        NotImportedError: The row has no equivalent, or its pickle cannot be read.
    """
    state = job.state
    if state is None:
        raise NotImportedError(job.problem)
    missing_keys = [key for key in KEYS if key not in state]
    if missing_keys:
        raise NotImportedError(f"its pickle has no {missing_keys[0]!r}, so it is none of APScheduler 3")
    # A paused job has no next time.
    trigger, due = state["trigger"], state["next_run_time"]
    # APScheduler pickles no other time, but another program may have written the row.
    if due is not None and (not isinstance(due, datetime) or due.utcoffset() is None):
        raise NotImportedError("its next run time is no time with a time zone")
    _, _, function = str(state["func"]).partition(":")
    # The name of a lambda or of a function within another one has a part such as <lambda> or <locals>.
    if "<" in function or not function:
        raise NotImportedError(f"the function {state['func']} has no name")
    # A job that was given no name has that of its function in APScheduler.
    _, _, last_part = function.rpartition(".")
    metadata = None if state["name"] in {function, last_part} else {"name": state["name"]}
    common: dict[str, Any] = {
        "task": _task_of(job),
        "args": tuple(state["args"]),
        "kwargs": dict(state["kwargs"]),
        "metadata": metadata,
    }
    # Subclasses of these triggers may fire at other times, so the class itself is compared.
    if type(trigger) is DateTrigger:
        if due is None:
            raise NotImportedError("it is paused, and a job at one time cannot be; schedule it by hand")
        return JobDefinition(**common, due=due)
    jitter = getattr(trigger, "jitter", None) or 0
    converted_trigger: Trigger
    start: datetime | None
    if type(trigger) is IntervalTrigger:
        converted_trigger = Every(trigger.interval)
        start = upcoming(due or trigger.start_date, trigger.interval, now)
    elif type(trigger) is CronTrigger:
        # The stored time is up to the jitter later than the fire time.
        next_fire = None if due is None else due - timedelta(seconds=jitter)
        # A cron expression needs no start that has passed.
        start = next_fire if next_fire is not None and next_fire > now else None
        converted_trigger = cron_of(trigger, start or now)
    else:
        raise NotImportedError(f"{type(trigger).__name__} has no equivalent that is certain")
    may_overlap = state["max_instances"] > 1
    # CatchUp.all() enqueues the jobs of all missed fire times at once, so they have to be able to overlap.
    catches_up_all = may_overlap and not state["coalesce"]
    return ScheduleDefinition(
        **common,
        trigger=converted_trigger,
        start=start,
        end=trigger.end_date,
        jitter=jitter,
        paused=due is None,
        overlap=Overlap.ALLOW if may_overlap else Overlap.SKIP,
        catch_up=CatchUp.all() if catches_up_all else CatchUp.latest(),
    )


# -- cron ----------------------------------------------------------------------------------------------


def cron_of(trigger: CronTrigger, since: datetime) -> Trigger:
    """Return a trigger with the fire times of a cron trigger of APScheduler.

    Raises:
        NotImportedError: No trigger is equivalent, or the next fire times of the two triggers differ.
    """
    fields = {field.name: field for field in trigger.fields}
    # The fields as texts of a cron expression.
    text = {name: _field(name, str(field)) for name, field in fields.items()}
    if text["year"] != "*" or text["week"] != "*":
        raise NotImportedError("it restricts years or weeks; write Cron(...) & During(...)")
    zone = _zone_name(trigger.timezone)
    # A weekday matches if it is itself the next one that matches. So names and numbers of weekdays, which
    # differ between the libraries, need not be read.
    matching_weekdays = []
    for number, name in enumerate(WEEKDAYS):
        next_weekday = fields["day_of_week"].get_next_value(MONDAY + timedelta(days=number))
        if next_weekday == number:
            matching_weekdays.append(name)
    weekdays = "*" if len(matching_weekdays) == len(WEEKDAYS) else ",".join(matching_weekdays)
    day = "L" if text["day"] == "last" else text["day"]
    during: During | None = None
    # The day may be a weekday of the month, such as the second Friday.
    if position := _POSITION.fullmatch(day):
        if weekdays != "*":
            raise NotImportedError(f"it restricts weekdays to {weekdays} and days to {day}")
        # APScheduler counts weekdays from Monday, and cron from Sunday.
        weekday = (WEEKDAYS.index(position[2]) + 1) % 7
        # The last one of the month has no number.
        week = POSITIONS.get(position[1])
        day = "*"
        weekdays = f"L{weekday}" if week is None else f"{weekday}#{week}"
    elif day != "*" and weekdays != "*":
        # In APScheduler the day and the weekday must both match. In a cron expression one of them is enough,
        # so the weekdays restrict the trigger from outside.
        during, weekdays = During(weekdays=weekdays, timezone=zone), "*"
    words = [text["minute"], text["hour"], day, text["month"], weekdays]
    # An expression may have the seconds as its sixth field.
    if text["second"] != "0":
        words.append(text["second"])
    try:
        cron: Trigger = Cron(" ".join(words), timezone=zone)
    except ValueError as error:
        raise NotImportedError(f"{trigger}: {error}") from error
    equivalent = cron if during is None else cron & during
    # The next fire times of both triggers show whether the conversion is right.
    their_fires = list(_fires_of(trigger, since))
    # Fire times at ``since`` count, and those at the instant of after= do not. If the trigger of APScheduler
    # ends, fewer fire times are compared.
    our_fires = equivalent.upcoming(COMPARED_FIRES, after=since - INSTANT)[: len(their_fires)]
    if our_fires != their_fires:
        # The first fire time that only one of the two triggers has.
        difference = min({*our_fires} ^ {*their_fires})
        raise NotImportedError(
            f"the fire times of {trigger} and {equivalent} differ at {difference.isoformat()}"
        )
    return equivalent


def _field(name: str, text: str) -> str:
    """Return a field of a cron expression. A range without an end gets one: ``5/10`` becomes ``5-59/10``."""
    maximum = MAXIMA.get(name)
    if maximum is None:
        return text
    parts = []
    for part in text.split(","):
        open_range = _OPEN_RANGE.fullmatch(part)
        if open_range is None:
            parts.append(part)
        else:
            start, step = open_range.groups()
            parts.append(f"{start}-{maximum}/{step}")
    return ",".join(parts)


def _zone_name(zone: tzinfo) -> str:
    """Return the IANA name of a time zone; raise NotImportedError if it has none."""
    # pytz has the attribute "zone" instead of the "key" of zoneinfo. Cron checks the name.
    name = getattr(zone, "key", None) or getattr(zone, "zone", None) or str(zone)
    try:
        return Cron("0 0 * * *", timezone=name).timezone
    except ValueError as error:
        raise NotImportedError(f"its time zone {name!r} has no IANA name") from error


def _fires_of(trigger: CronTrigger, since: datetime) -> Iterator[datetime]:
    """Yield the first fire times from this time on, at most ``COMPARED_FIRES``, without the random jitter."""
    # The trigger would add its jitter to each fire time, so it has none meanwhile.
    jitter, trigger.jitter = trigger.jitter, None
    try:
        previous_fire, now = None, since
        for _ in range(COMPARED_FIRES):
            fire = trigger.get_next_fire_time(previous_fire, now)
            # The trigger has ended.
            if fire is None:
                return
            yield fire
            previous_fire, now = fire, fire + INSTANT
    finally:
        trigger.jitter = jitter
