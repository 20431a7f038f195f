"""The ``OPTIONS`` of a backend in ``TASKS``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Self

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from pg_scheduler.base.dsn import normalise_dsn
from pg_scheduler.base.settings import check_identifier
from pg_scheduler.jobs.call import JobExecutor
from pg_scheduler.jobs.codec import Codec
from pg_scheduler.jobs.middleware import Middleware
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT
from pg_scheduler.jobs.task import JOB_OPTIONS
from pg_scheduler.jobs.validation import check_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options, by their names in lower case.

    Attributes:
        database: The alias of the database with the tables.
        schema: The schema of the tables; None for the one on the search path.
        max_retries: The default of tasks.
        timeout: The default of tasks: the time limit of one attempt; None for no limit.
        keep_result: The default of tasks: how long return values are kept; None for not at all.
        dsn: How a worker connects; None for the address in ``DATABASES``.
        middleware: Middleware of the worker and of ``enqueue()``, the outermost first: objects, or the dotted
            paths of objects or classes.
        executors: Where functions run, by the names in their ``executor=``: objects or such paths.
        codec: Encodes the arguments, results and progress notes of jobs: an object or such a path.
    """

    database: str = DEFAULT_DB_ALIAS
    schema: str | None = None
    max_retries: int = 0
    timeout: float | timedelta | None = DEFAULT_TIMEOUT
    keep_result: timedelta | None = timedelta(days=1)
    dsn: str | None = None
    middleware: Sequence[str | Middleware] = ()
    executors: Mapping[str, str | JobExecutor] = field(default_factory=dict)
    codec: str | Codec | None = None

    @classmethod
    def read(cls, alias: str, values: Mapping[str, Any]) -> Self:
        """Return the options of a backend.

        Raises:
            ImproperlyConfigured: A name is unknown, or a value is invalid.
        """
        place = f"TASKS[{alias!r}]['OPTIONS']"
        # The names of the fields, by those of the keys.
        names = {field.name.upper(): field.name for field in fields(cls)}
        unknown_keys = sorted(str(key) for key in values if key not in names)
        if unknown_keys:
            raise ImproperlyConfigured(
                f"{place} has the unknown key {unknown_keys[0]!r}; known keys: {', '.join(names)}"
            )
        options = cls(**{names[name]: value for name, value in values.items()})
        try:
            # The rules for these are those of a job.
            for name in ("max_retries", "timeout", "keep_result"):
                JOB_OPTIONS[name].check(getattr(options, name))
            check_text("DATABASE", options.database)
            if options.schema is not None:
                _check_schema(check_text("SCHEMA", options.schema))
            if options.dsn is not None:
                normalise_dsn(str(options.dsn), "DSN")
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"{place}: {error}") from error
        if not isinstance(options.middleware, list | tuple):
            raise ImproperlyConfigured(f"{place}: MIDDLEWARE must be a list, not {options.middleware!r}")
        if not isinstance(options.executors, Mapping):
            raise ImproperlyConfigured(f"{place}: EXECUTORS must be a dict, not {options.executors!r}")
        return options


def _check_schema(schema: str) -> None:
    """Raise ValueError with the remedy unless a schema can have this name."""
    try:
        check_identifier(schema)
    except ValueError as error:
        raise ValueError(
            f"SCHEMA {error}, not {schema!r}; omit it for the schema on the search path"
        ) from error
