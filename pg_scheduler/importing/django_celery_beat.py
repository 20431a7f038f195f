"""Read the periodic tasks of django-celery-beat, as jobs and schedules of this library.

Django reads the tables and Celery reads the crontabs, both with the settings of the project: the database,
the time zone of Django and the time zone of Celery. So this runs where the project runs.
"""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import django
from celery.schedules import ParseException, crontab
from celery.utils.time import maybe_make_aware
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, InterfaceError, OperationalError, connections
from django.db.utils import ConnectionDoesNotExist
from kombu.utils.json import loads

from pg_scheduler.base.foreign import class_name, message_of
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
from pg_scheduler.jobs.validation import MAX_INTEGER
from pg_scheduler.schedules.policies import CatchUp, Overlap
from pg_scheduler.triggers import Cron, During, Every, Trigger
from pg_scheduler.triggers.cron_fields import CronFields, parse_cron
from pg_scheduler.triggers.search import INSTANT

PREFIX: Final = "celery:"
"""The prefix of the ids of imported jobs and schedules."""

APPLICATION: Final = "django_celery_beat"
DJANGO: Final = "pg_scheduler.integrations.django"
SETTINGS_HELP: Final = "pass the settings of the project by --settings, such as shop.settings"
CLEANUP: Final = "celery.backend_cleanup"
"""The task that deletes old results of Celery."""

KINDS: Final = ("interval", "crontab", "clocked", "solar")
"""The columns of a periodic task that refer to its schedule. One of them is set."""

LABELS: Final = ("description", "queue", "exchange", "routing_key", "priority")
"""Columns that become metadata."""

SECOND: Final = timedelta(seconds=1)
WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
FIELDS: Final = (
    ("minute", "minutes", 60),
    ("hour", "hours", 24),
    ("day_of_month", "days", 31),
    ("month_of_year", "months", 12),
    ("day_of_week", "weekdays", 7),
)
"""The fields of a cron expression, in its order: the name in Celery, the name in `CronFields`, and how many
values the field can have."""


def read_store(settings: str | None, database: str, now: datetime) -> list[Source]:
    """Return what the periodic tasks become, in the order of their names. Nothing is written.

    Args:
        settings: The module with the settings of Django; None for ``DJANGO_SETTINGS_MODULE``.
        database: The alias of the database.
        now: The current time.

    Raises:
        StoreInvalidError: Django cannot be set up, or the settings have no such database or no tables.
        StoreUnreadableError: The database is unavailable.
    """
    if settings is not None:
        os.environ["DJANGO_SETTINGS_MODULE"] = settings
    try:
        django.setup()
    except Exception as error:  # user code: the settings and applications
        raise StoreInvalidError(
            f"Django raises {class_name(error)}: {message_of(error)}; {SETTINGS_HELP}"
        ) from error
    if not apps.is_installed(APPLICATION):
        raise StoreInvalidError(f"{APPLICATION} is not in INSTALLED_APPS; {SETTINGS_HELP}")
    model = import_module(f"{APPLICATION}.models").PeriodicTask
    try:
        connection = connections[database]
        if connection.vendor == "sqlite":
            check_sqlite_file(str(connection.settings_dict["NAME"]))
        table = model._meta.db_table
        if table not in connection.introspection.table_names(include_views=True):
            raise StoreInvalidError(
                f"the database {database!r} has no table {table}; pass another alias by --database"
            )
        rows = list(model.objects.using(database).select_related(*KINDS).order_by("name"))
    except (OperationalError, InterfaceError) as error:
        raise StoreUnreadableError(str(error)) from error
    except (Error, ConnectionDoesNotExist, ImproperlyConfigured) as error:
        raise StoreInvalidError(f"{error}; check --database and DATABASES in the settings") from error
    finally:
        connections.close_all()
    return [converted(row.name, task_of(row.task, row.queue), partial(convert, row, now)) for row in rows]


def task_of(path: str, queue: str | None) -> str:
    """Return the name that a task has here: its path, or for a task of Django Tasks the path with a queue.

    Args:
        path: The path that Celery stores.
        queue: The queue of the entry; None for the queue that Django's task declares. The declared queue also
            replaces a queue in which jobs do not run Django's task.
    """
    has_django_tasks = find_spec("django.tasks") or find_spec("django_tasks")
    if not apps.is_installed(DJANGO) or not has_django_tasks:
        return path
    runner: Any = import_module(f"{DJANGO}.runner")
    names: Any = import_module(f"{DJANGO}.task")
    task = runner.task_named(path)
    if task is None:
        return path
    name_in_queue: str = names.job_name(task.module_path, queue or task.queue_name)
    declared_name: str = names.name_of(task)
    # Jobs in the queue of the entry run this task only if that name leads to it.
    if runner.task_named(name_in_queue) is task:
        return name_in_queue
    return declared_name


def convert(row: Any, now: datetime) -> Definition:
    """Return what a periodic task becomes: a job if it is due at one time, else a schedule.

    Raises:
        NotImportedError: The periodic task has no equivalent.
    """
    kind = _kind_of(row)
    begin = None if row.start_time is None else _utc(row.start_time)
    end = None if row.expires is None else _utc(row.expires)
    if end is not None and end <= now:
        raise NotImportedError(f"it expired at {end.isoformat()}")
    metadata: dict[str, Any] = {}
    for name in LABELS:
        label = getattr(row, name)
        if label not in {None, ""}:
            metadata[name] = label
    headers = _json("headers", row.headers, dict)
    if headers:
        metadata["headers"] = headers
    common: dict[str, Any] = {
        "task": task_of(row.task, row.queue),
        "args": tuple(_json("args", row.args, list)),
        "kwargs": _json("kwargs", row.kwargs, dict),
        "metadata": metadata or None,
        "misfire_grace_time": row.expire_seconds or None,
    }
    if kind == "clocked":
        clocked_at = _utc(row.clocked.clocked_time)
        # Celery does not send it before its start.
        due = clocked_at if begin is None else max(clocked_at, begin)
        if end is not None:
            if end <= due:
                raise NotImportedError(f"it expires before it is due, at {end.isoformat()}")
            # The job must not start after its end. A row has an end or expire_seconds, and never both.
            grace = math.ceil((end - due).total_seconds())
            common["misfire_grace_time"] = min(grace, MAX_INTEGER)
        elif due <= now:
            # Celery counts these seconds from the sending, and sends an overdue task when it starts. Here the
            # first worker finds the job when it starts, so no time passes in between.
            common["misfire_grace_time"] = None
        return JobDefinition(**common, due=due)
    trigger: Trigger
    start: datetime | None
    if kind == "interval":
        interval = row.schedule.run_every
        trigger = Every(interval)
        start = upcoming(_next_run(row, interval), interval, now)
    else:
        trigger = cron_of(_crontab(row))
        # A cron expression needs no start that has passed.
        start = begin if begin is not None and begin > now else None
    return ScheduleDefinition(
        **common,
        trigger=trigger,
        start=start,
        # Celery does not fire at the end itself.
        end=None if end is None else end - INSTANT,
        max_runs=1 if row.one_off else None,
        paused=not row.enabled,
        # Celery sends a task whether or not the one before has ended, and once for several missed times.
        overlap=Overlap.ALLOW,
        catch_up=CatchUp.latest(),
    )


def _kind_of(row: Any) -> str:
    """Return the kind of schedule of a periodic task, one of ``KINDS``.

    Raises:
        NotImportedError: The task or its schedule has no equivalent.
    """
    kinds = [kind for kind in KINDS if getattr(row, kind) is not None]
    if row.task == CLEANUP:
        raise NotImportedError("it maintains the result backend of Celery")
    if len(kinds) != 1:
        raise NotImportedError(f"it has {len(kinds)} schedules, and only one can be right")
    if row.solar is not None:
        raise NotImportedError(f"no trigger follows the sun: {row.solar}")
    if row.one_off and row.enabled and row.total_run_count:
        raise NotImportedError("it was to run once, and has run")
    if row.clocked is not None and not row.enabled:
        raise NotImportedError("it is disabled, which a job at one time cannot be; schedule it by hand")
    if row.interval is not None and row.schedule.run_every < SECOND:
        raise NotImportedError(f"its interval of {row.schedule.run_every} means as often as Celery can")
    return kinds[0]


def _next_run(row: Any, interval: timedelta) -> datetime:
    """Return when Celery would send an interval task next."""
    begin = None if row.start_time is None else _utc(row.start_time)
    # A task that was never sent is sent at its start.
    if row.last_run_at is None and begin is not None:
        return begin
    # The interval of a task that was never sent begins with the last change of its row.
    due = _utc(row.last_run_at or row.date_changed) + interval
    return due if begin is None else max(due, begin)


def _json(name: str, text: str | None, kind: type[Any]) -> Any:
    """Return the value of a column as Celery reads it; an empty list or dict if the column has no text.

    Raises:
        NotImportedError: The text is no JSON, or its value has another type.
    """
    try:
        value = loads(text) if text else kind()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotImportedError(f"{name} cannot be read: {error}") from error
    if not isinstance(value, kind):
        raise NotImportedError(f"{name} must be a {kind.__name__} in JSON, not {text}")
    return value


def _utc(time: datetime) -> datetime:
    """Return a time in UTC. Celery reads a time without a time zone as UTC."""
    aware: datetime = maybe_make_aware(time)
    return aware.astimezone(UTC)


# -- crontab -------------------------------------------------------------------------------------------


def _crontab(row: Any) -> crontab:
    """Return the crontab of a periodic task, which the property parses from the texts of the row."""
    try:
        return row.schedule
    except (ParseException, ValueError) as error:
        raise NotImportedError(f"its crontab is invalid: {error}") from error


def cron_of(schedule: crontab) -> Trigger:
    """Return a trigger with the fire times of a crontab of Celery.

    If a crontab restricts both the day of the month and the day of the week, Celery fires when both match. A
    cron expression fires when one of them matches, so `During` restricts the weekdays then.
    """
    minute, hour, day, month, weekday = (_word(schedule, *field) for field in FIELDS)
    during: During | None = None
    if day != "*" and weekday != "*":
        weekdays = ",".join(WEEKDAYS[number] for number in sorted(schedule.day_of_week))
        during, weekday = During(weekdays=weekdays, timezone=schedule.tz), "*"
    cron = Cron(f"{minute} {hour} {day} {month} {weekday}", timezone=schedule.tz)
    return cron if during is None else cron & during


def _word(schedule: crontab, name: str, attribute: str, size: int) -> str:
    """Return a field of a cron expression: Celery's text if it means the same here, else a list of values.

    Args:
        schedule: The crontab.
        name: The name of the field in Celery.
        attribute: The name of the field in `CronFields`.
        size: How many values the field can have.
    """
    # The numbers at which the field matches.
    values = getattr(schedule, name)
    if len(values) == size:
        return "*"
    # Celery keeps the text from which it has read the numbers.
    text = str(getattr(schedule, f"_orig_{name}")).replace(" ", "")
    try:
        # An expression with this text in its place, and with "*" in all others.
        words = [text if field_name == name else "*" for field_name, _, _ in FIELDS]
        fields: CronFields = parse_cron(" ".join(words))
        if set(getattr(fields, attribute)) == values:
            return text
    except ValueError:
        # Only Celery can read this text.
        pass
    return ",".join(str(number) for number in sorted(values))
